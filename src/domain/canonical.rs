//! JSON that has one spelling (RFC 8785), so that what was approved can be named by a hash and compared byte
//! by byte with what runs. Text that two readers could understand differently (I-JSON, RFC 7493) has none:
//! [`ambiguity`] finds it in the text, because a parsed value no longer shows it.

mod distinct;
mod hex;

use serde::de::DeserializeSeed;
use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

use self::distinct::Distinct;
pub use self::hex::{Hex, hash_of_row, parse_hash};
use super::tool::Tool;

pub type Hash = [u8; 32];

/// The one spelling of a value: members sorted by UTF-16, numbers as ECMAScript writes them, no space.
pub fn text(value: &Value) -> Result<String, String> {
    serde_json_canonicalizer::to_string(value).map_err(|error| error.to_string())
}

/// SHA-256 of a text.
pub fn hash(text: &str) -> Hash {
    Sha256::digest(text.as_bytes()).into()
}

/// What a tool was when an approver consented to a call of it: SHA-256 over its whole description.
pub fn fingerprint(tool: &Tool) -> Result<Hash, String> {
    let raw = |json: &RawValue| {
        serde_json::from_str::<Value>(json.get()).map_err(|error| error.to_string())
    };
    let or_null = |json: Option<&RawValue>| json.map_or(Ok(Value::Null), raw);
    let said = serde_json::json!({
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": raw(&tool.input_schema)?,
        "outputSchema": or_null(tool.output_schema.as_deref())?,
        "annotations": or_null(tool.annotations.as_deref())?,
    });
    Ok(hash(&text(&said)?))
}

/// Puts the defaults that a schema names for members of the whole object where the arguments lack them.
pub fn with_defaults(schema: &RawValue, mut arguments: Value) -> Value {
    let schema: Value = serde_json::from_str(schema.get()).unwrap_or_default();
    let properties = schema.get("properties").and_then(Value::as_object);
    if let (Some(properties), Some(arguments)) = (properties, arguments.as_object_mut()) {
        for (name, default) in properties
            .iter()
            .filter_map(|(name, schema)| Some((name, schema.get("default")?)))
        {
            arguments
                .entry(name.clone())
                .or_insert_with(|| default.clone());
        }
    }
    arguments
}

/// Why two readers could understand this JSON differently. `None` when they cannot, and for text that is not
/// JSON, which the parser reports.
pub fn ambiguity(text: &str) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    if let Some(number) = numbers(text).find(|number| !is_interoperable(number)) {
        return Some(format!(
            "the number {} cannot be kept exactly; write it as text",
            clipped(number)
        ));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    Distinct
        .deserialize(&mut json)
        .err()
        .map(|error| error.to_string())
}

fn clipped(number: &str) -> &str {
    &number[..number.len().min(40)]
}

/// The numbers in a text that is valid JSON, as they are written.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            match bytes[at] {
                b'"' => at = end_of_string(bytes, at),
                b'-' | b'0'..=b'9' => {
                    let start = at;
                    while at < bytes.len()
                        && matches!(bytes[at], b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
                    {
                        at += 1;
                    }
                    return Some(&text[start..at]);
                }
                _ => at += 1,
            }
        }
        None
    })
}

/// The position behind a string that begins at `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Whether a double holds the number: every integer exactly, of others at least something.
fn is_interoperable(number: &str) -> bool {
    let Ok(value) = number.parse::<f64>() else {
        return false;
    };
    if number
        .bytes()
        .all(|byte| byte == b'-' || byte.is_ascii_digit())
    {
        return format!("{value:.0}") == number;
    }
    let digits = number.split(['e', 'E']).next().unwrap_or_default();
    value.is_finite()
        && (value != 0.0
            || digits
                .bytes()
                .all(|byte| matches!(byte, b'-' | b'.' | b'0')))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let given =
            r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
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
}
