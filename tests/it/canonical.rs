//! The canonical spelling of JSON, and JSON that two readers could understand differently.

use domain::{
    canonical::{ambiguity, text, with_defaults},
    json::{Json, read_value, to_text},
};
use proptest::prelude::*;
use serde_json::json;

fn of(json: &str) -> String {
    text(&Json::parse(json).expect("a test writes JSON")).expect("it has a spelling")
}

/// The example of RFC 8785, section 3.2.2 to 3.2.4, but for the escapes that a Rust literal would hide, and for numbers,
/// of which no digit is lost.
#[test]
fn the_rfcs_own_example_has_its_spelling() {
    let given = r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
        "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#;
    let wanted = concat!(
        r#"{"literals":[null,true,false],"numbers":[333333333.33333329,1000000000000000000000000000000,4.5,0.002,1e-27],"#,
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
fn a_number_is_written_in_one_way_and_keeps_its_digits() {
    for (given, wanted) in [
        ("0", "0"),
        ("-0.0", "0"),
        ("1.0", "1"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("9007199254740992", "9007199254740992"),
        ("295147905179352830000", "295147905179352830000"),
        ("9.999999999999997e22", "99999999999999970000000"),
        ("1e23", "100000000000000000000000"),
        ("999999999999999900000", "999999999999999900000"),
        ("1e21", "1000000000000000000000"),
        ("1E+101", "1e+101"),
        ("10e400", "1e+401"),
        ("-1.50e-400", "-1.5e-400"),
        ("0e999999999999999999999999", "0"),
        ("0.00e5", "0"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("1234567890.123456789", "1234567890.123456789"),
        (
            "1234567890123456789012345.50",
            "1234567890123456789012345.5",
        ),
        ("-100.0", "-100"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
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
        r#"{"n":[9007199254740993,123456789012345678901234567890,1e-400,1e999]}"#,
        r#"{"text":"9007199254740993 \" 9007199254740993","x\"9007199254740993":null}"#,
        "{not json",
    ] {
        assert_eq!(ambiguity(given), None, "{given}");
    }
}

#[test]
fn what_is_no_number_or_no_text_is_no_json_for_us() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    for given in [
        r#"{"s":"\ud800"}"#,
        r#"{"n":NaN}"#,
        "[01]",
        "[1.]",
        "{",
        "",
        deep.as_str(),
    ] {
        assert!(Json::parse(given).is_err(), "{given}");
    }
    let far = Json::parse("[1e99999999999999999999]").unwrap();
    assert!(text(&far).unwrap_err().contains("exponent"));
}

#[test]
fn what_is_read_is_written_again_with_every_digit() {
    for given in [
        r#"{"id":12345678901234567890123,"amount":1234567890.1234567890,"x":[1e400,-0.0,1.50]}"#,
        r#"{"a":{"b":[true,false,null,"\u0000\"é"]},"":{},"c":[]}"#,
    ] {
        assert_eq!(Json::parse(given).unwrap().to_string(), given);
        assert_eq!(
            to_text(&read_value(given).unwrap()),
            given.replace("1.50", "1.5")
        );
    }
    let twice = Json::parse(r#" { "a" : 1 , "b" : 2 , "a" : 3 } "#).unwrap();
    assert_eq!(twice.to_string(), r#"{"a":3,"b":2}"#, "the last counts");
}

proptest! {
    #[test]
    fn equal_decimals_have_one_spelling_and_others_another(
        digits in "[1-9][0-9]{0,30}", zeros in 0..6usize, point in -40..40i64, other in "[1-9][0-9]{0,30}",
    ) {
        let spell = |digits: &str, zeros: usize| {
            let exponent = point - i64::try_from(zeros).unwrap();
            of(&format!("{digits}{}e{exponent}", "0".repeat(zeros)))
        };
        let plain = spell(&digits, 0);
        prop_assert_eq!(&spell(&digits, zeros), &plain);
        prop_assert_eq!(&of(&plain), &plain);
        if point < 0 && digits.len() > 1 {
            let (whole, fraction) = digits.split_at(1);
            let shift = point + i64::try_from(fraction.len()).unwrap();
            prop_assert_eq!(&of(&format!("{whole}.{fraction}E{shift}")), &plain);
        }
        if digits.trim_end_matches('0') != other.trim_end_matches('0') {
            prop_assert_ne!(spell(&other, 0), plain);
        }
    }
}

#[test]
fn defaults_fill_only_what_is_missing() {
    let schema =
        json!({ "properties": { "a": { "default": 1 }, "b": { "default": [2] }, "c": {} } });
    let schema = serde_json::value::to_raw_value(&schema).expect("plain data");
    assert_eq!(
        with_defaults(&schema, Json::from(&json!({ "a": null, "d": 4 }))).to_string(),
        json!({ "a": null, "d": 4, "b": [2] }).to_string()
    );
}
