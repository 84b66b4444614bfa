//! The kinds of a field, read from the JSON Schema of an elicitation.

use serde_json::Value;

use super::{Format, Kind};
use crate::{hidden::one_line, message::Choice, tool_schema::TextPattern};

pub(super) const LABEL: usize = 500;

pub(super) const TEXT: usize = 8000;

/// What one field offers.
const CHOICES: usize = 64;

pub(super) fn kind(property: &Value) -> Option<Kind> {
    let whole_number = |key: &str| property.get(key).and_then(Value::as_u64);
    let limit = |key: &str| property.get(key).and_then(Value::as_f64);
    match property.get("type").and_then(Value::as_str)? {
        "string" => {
            if let Some(choices) = choices(property) {
                return (!choices.is_empty()).then_some(Kind::One(choices));
            }
            let format = property.get("format").and_then(Value::as_str);
            let format = format.and_then(|format| match format {
                "email" => Some(Format::Email),
                "uri" => Some(Format::Uri),
                "date" => Some(Format::Date),
                "date-time" => Some(Format::DateTime),
                "password" => Some(Format::Password),
                _ => None,
            });
            let most = whole_number("maxLength")
                .unwrap_or(u64::MAX)
                .min(TEXT as u64);
            let pattern = property.get("pattern").and_then(Value::as_str);
            Some(Kind::Text {
                format,
                least: whole_number("minLength").unwrap_or(0),
                most,
                pattern: pattern.map(str::to_owned),
                is_decimal: is_decimal(property),
            })
        }
        "number" => Some(Kind::Number {
            whole: false,
            least: limit("minimum").or(limit("exclusiveMinimum")),
            most: limit("maximum"),
        }),
        "integer" => Some(Kind::Number {
            whole: true,
            least: limit("minimum").or(limit("exclusiveMinimum")),
            most: limit("maximum"),
        }),
        "boolean" => Some(Kind::Boolean),
        "array" => {
            let choices = choices(property.get("items")?).filter(|choices| !choices.is_empty())?;
            let most = whole_number("maxItems")
                .unwrap_or(u64::MAX)
                .min(choices.len() as u64);
            Some(Kind::Many {
                choices,
                least: whole_number("minItems").unwrap_or(0),
                most,
            })
        }
        _ => None,
    }
}

/// Formats of texts that are decimal numbers.
const DECIMALS: [&str; 4] = ["decimal", "number", "double", "float"];
/// Texts of which a pattern for decimal numbers admits one, with either sign before the fraction.
const NUMBERS: [&str; 4] = ["1.5", "12.50", "1234.5", "1234.50"];
/// Texts of which it admits none: a pattern that does is for an identifier, a version, a time or any text.
const OTHER_TEXTS: [&str; 8] = [
    "a",
    "abc",
    "1a",
    "1.2.3",
    "12:50",
    "1-5",
    "1/5",
    "2026-01-02",
];

/// Whether a property of a tool is a decimal number: a number that may have a fraction, or a text whose format or pattern
/// is that of one, as amounts of money often are. A code of digits alone, such as an IBAN or a postcode, is none.
fn is_decimal(property: &Value) -> bool {
    let text_of = |key: &str| property.get(key).and_then(Value::as_str);
    if text_of("type") != Some("string") || property.get("enum").is_some() {
        return text_of("type") == Some("number");
    }
    let Some(pattern) = text_of("pattern") else {
        return text_of("format").is_some_and(|format| DECIMALS.contains(&format));
    };
    // An author who forgot the anchors meant the whole text.
    let compile = |pattern: &str| TextPattern::compile(&format!("^(?:{pattern})$"));
    let Some(pattern) = compile(pattern).or_else(|| compile(without_look_ahead(pattern)?)) else {
        return false;
    };
    let is_admitted = |text: &&str| pattern.admits(text) || pattern.admits(&text.replace('.', ","));
    NUMBERS.iter().any(is_admitted) && !OTHER_TEXTS.iter().any(|text| pattern.admits(text))
}

/// A pattern without the condition at its beginning, with which generators of schemas refuse a lone sign or point.
fn without_look_ahead(pattern: &str) -> Option<&str> {
    let inner = pattern.trim_start_matches('^').strip_prefix("(?!")?;
    Some(inner.split_once(')')?.1)
}

/// The choices of a property, in each of the spellings that revisions of the protocol have. Empty for a
/// property that cannot be shown.
pub(super) fn choices(property: &Value) -> Option<Vec<Choice>> {
    let titled = property
        .get("oneOf")
        .or_else(|| property.get("anyOf"))
        .and_then(Value::as_array);
    let choices: Option<Vec<Choice>> =
        match (titled, property.get("enum").and_then(Value::as_array)) {
            (Some(titled), _) => titled
                .iter()
                .map(|one| {
                    let value = one.get("const")?.as_str()?.to_owned();
                    let label = one
                        .get("title")
                        .and_then(Value::as_str)
                        .map_or_else(|| value.clone(), |t| one_line(t, LABEL));
                    Some(Choice { value, label })
                })
                .collect(),
            (None, Some(values)) => {
                let names = property.get("enumNames").and_then(Value::as_array);
                let name = |at: usize| {
                    names
                        .and_then(|names| names.get(at)?.as_str())
                        .map(|name| one_line(name, LABEL))
                };
                let choice = |(at, value): (usize, &Value)| {
                    let value = value.as_str()?.to_owned();
                    Some(Choice {
                        label: name(at).unwrap_or_else(|| value.clone()),
                        value,
                    })
                };
                values.iter().enumerate().map(choice).collect()
            }
            (None, None) => return None,
        };
    Some(
        choices
            .filter(|choices| choices.len() <= CHOICES)
            .unwrap_or_default(),
    )
}

/// The members of a schema that were read.
pub(super) fn kept_schema(property: &Value) -> Value {
    const KEPT: [&str; 14] = [
        "type",
        "title",
        "description",
        "format",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "enum",
        "enumNames",
        "oneOf",
        "items",
        "minItems",
        "maxItems",
    ];
    let kept = property
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| KEPT.contains(&key.as_str()));
    Value::Object(
        kept.map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
    )
}
