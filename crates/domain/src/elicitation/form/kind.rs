//! The kinds of a field, read from the JSON Schema of an elicitation.

use serde_json::Value;

use super::{Format, Kind};
use crate::{hidden::one_line, message::Choice};

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
            Some(Kind::Text {
                format,
                least: whole_number("minLength").unwrap_or(0),
                most,
            })
        }
        "number" => Some(Kind::Number {
            whole: false,
            least: limit("minimum"),
            most: limit("maximum"),
        }),
        "integer" => Some(Kind::Number {
            whole: true,
            least: limit("minimum"),
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
