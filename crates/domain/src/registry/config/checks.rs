//! The checks of the text of a configuration value.

use std::fmt::Write as _;

use serde_json::Value;

use super::Kind;

/// Checks that a text is of a type.
pub(super) fn check_kind(kind: Kind, text: &str) -> Result<(), String> {
    let fits = match kind {
        Kind::String => true,
        Kind::Boolean => matches!(text, "true" | "false"),
        Kind::Number => serde_json::from_str::<serde_json::Number>(text).is_ok(),
        Kind::Json => serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok(),
    };
    if fits {
        Ok(())
    } else {
        Err(expected_form(kind))
    }
}

pub(super) fn expected_form(kind: Kind) -> String {
    match kind {
        Kind::String => "must be text",
        Kind::Boolean => "must be true or false",
        Kind::Number => "must be a number",
        Kind::Json => "must be JSON",
    }
    .to_owned()
}

/// JSON on one line that a header can carry.
pub(super) fn ascii(json: &str) -> String {
    let compact = serde_json::from_str::<Value>(json)
        .map_or_else(|_| json.to_owned(), |value| value.to_string());
    let mut text = String::with_capacity(compact.len());
    for char in compact.chars() {
        if char.is_ascii() {
            text.push(char);
        } else {
            let mut units = [0; 2];
            for unit in char.encode_utf16(&mut units) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}
