//! The canonical spelling of JSON, and JSON that two readers could understand differently.

use chatelaine::domain::canonical::{ambiguity, text, with_defaults};
use serde_json::{Value, json};

fn of(json: &str) -> String {
    text(&serde_json::from_str(json).expect("a test writes JSON")).expect("it has a spelling")
}

/// The example of RFC 8785, section 3.2.2 to 3.2.4, but for the escapes that a Rust literal would hide.
#[test]
fn the_rfcs_own_example_has_its_spelling() {
    let given = r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
        "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#;
    let wanted = concat!(
        r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
        r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
    );
    assert_eq!(of(given), wanted);
}

#[test]
fn members_are_sorted_by_utf_16_and_not_by_code_point() {
    let given = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
    assert_eq!(
        of(given),
        "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}"
    );
}

#[test]
fn numbers_are_written_as_ecmascript_does() {
    for (given, wanted) in [
        ("0", "0"),
        ("-0.0", "0"),
        ("1.0", "1"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("9007199254740992", "9007199254740992"),
        ("295147905179352830000", "295147905179352830000"),
        ("9.999999999999997e22", "9.999999999999997e+22"),
        ("1e23", "1e+23"),
        ("999999999999999900000", "999999999999999900000"),
        ("1e21", "1e+21"),
        ("333333333.33333325", "333333333.33333325"),
        ("-0.0000033333333333333333", "-0.0000033333333333333333"),
        ("1424953923781206.2", "1424953923781206.2"),
    ] {
        assert_eq!(of(given), wanted, "{given}");
    }
}

#[test]
fn what_readers_could_understand_differently_is_found() {
    for (given, word) in [
        (r#"{"amount":1,"amount":2}"#, "\"amount\" appears twice"),
        (r#"{"a":[{"b":1,"\u0062":2}]}"#, "\"b\" appears twice"),
        (r#"{"n":9007199254740993}"#, "9007199254740993"),
        (r#"{"n":-9007199254740993}"#, "-9007199254740993"),
        (
            "[123456789012345678901234567890]",
            "123456789012345678901234567890",
        ),
        (r#"{"n":1e-400}"#, "1e-400"),
    ] {
        let found = ambiguity(given).unwrap_or_default();
        assert!(found.contains(word), "{given}: {found:?}");
    }
}

#[test]
fn ordinary_arguments_are_regular() {
    for given in [
        r#"{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}"#,
        r#"{"n":[0,-0,-1,9007199254740991,9007199254740992,10000000000000000,0.1,1e5,0e0,-0.0,1.5e-9]}"#,
        r#"{"text":"9007199254740993 \" 9007199254740993","x\"9007199254740993":null}"#,
        "{not json",
    ] {
        assert_eq!(ambiguity(given), None, "{given}");
    }
}

#[test]
fn what_is_no_number_or_no_text_is_no_json_for_us() {
    for given in [r#"{"n":1e999}"#, r#"{"s":"\ud800"}"#, r#"{"n":NaN}"#] {
        assert!(serde_json::from_str::<Value>(given).is_err(), "{given}");
    }
}

#[test]
fn defaults_fill_only_what_is_missing() {
    let schema =
        json!({ "properties": { "a": { "default": 1 }, "b": { "default": [2] }, "c": {} } });
    let schema = serde_json::value::to_raw_value(&schema).expect("plain data");
    assert_eq!(
        with_defaults(&schema, json!({ "a": null, "d": 4 })),
        json!({ "a": null, "d": 4, "b": [2] })
    );
}
