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
