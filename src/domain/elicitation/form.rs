//! The fields of a form. The schema is the flat one that the protocol allows and is read strictly. A person's
//! text is turned into the value of a field here.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use time::{
    Date, OffsetDateTime,
    format_description::well_known::{Iso8601, Rfc3339},
};
use url::Url;

use super::{OrderedMembers, readable};
use crate::domain::message::Choice;

/// Characters of a name, a label and a text that somebody enters.
const NAME: usize = 128;
const LABEL: usize = 500;
const TEXT: usize = 8000;
/// What one field offers.
const CHOICES: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Field {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub required: bool,
    pub kind: Kind,
    /// The value that is used when the user answers `-`.
    pub default: Option<Value>,
    /// What the server says of it, as far as it was understood; for frontends that draw a form.
    pub schema: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Text {
        format: Option<Format>,
        least: u64,
        most: u64,
    },
    Number {
        whole: bool,
        least: Option<f64>,
        most: Option<f64>,
    },
    Boolean,
    One(Vec<Choice>),
    Many {
        choices: Vec<Choice>,
        least: u64,
        most: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    Email,
    Uri,
    Date,
    DateTime,
    Password,
}

/// Why a text is not an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerError {
    Missing,
    NotABoolean,
    NotAnOption,
    NotANumber,
    /// The value is outside of the limits, or does not have the format.
    OutsideLimits,
}

impl AnswerError {
    /// As the row says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::NotABoolean => "not_a_boolean",
            Self::NotAnOption => "not_an_option",
            Self::NotANumber => "not_a_number",
            Self::OutsideLimits => "unfit",
        }
    }

    /// Back from [`AnswerError::name`].
    pub fn parse(name: &str) -> Option<Self> {
        [
            Self::Missing,
            Self::NotABoolean,
            Self::NotAnOption,
            Self::NotANumber,
            Self::OutsideLimits,
        ]
        .into_iter()
        .find(|fault| fault.name() == name)
    }
}

/// Reads a form's schema; the error says what about it cannot be shown.
pub(super) fn fields(schema: &str) -> Result<Vec<Field>, String> {
    #[derive(Deserialize)]
    struct Schema {
        #[serde(default)]
        properties: Option<OrderedMembers>,
        #[serde(default)]
        required: Vec<String>,
    }
    let unreadable = |_| "a form whose fields cannot be read".to_owned();
    let schema: Schema = serde_json::from_str(schema).map_err(unreadable)?;
    let properties = schema
        .properties
        .map(|properties| properties.0)
        .unwrap_or_default();
    let read = |(name, property): &(String, Box<RawValue>)| {
        let property = serde_json::from_str(property.get()).map_err(unreadable)?;
        field(name, &property, schema.required.contains(name))
    };
    properties.iter().map(read).collect()
}

fn field(name: &str, property: &Value, required: bool) -> Result<Field, String> {
    if name.is_empty() || name.chars().count() > NAME || name.chars().any(char::is_control) {
        return Err("a field whose name cannot be shown".to_owned());
    }
    let kind = kind(property)
        .ok_or_else(|| format!("the field {name:?}, which is not of a kind that can be asked"))?;
    let label = |key: &str| {
        let text = property
            .get(key)
            .and_then(Value::as_str)
            .map(|text| readable(text, LABEL));
        text.filter(|text| !text.is_empty())
    };
    let mut field = Field {
        name: name.to_owned(),
        title: label("title"),
        description: label("description"),
        required,
        kind,
        default: None,
        schema: kept_schema(property),
    };
    // A default that does not fit its own field is none.
    field.default = property
        .get("default")
        .filter(|value| field.admits(value))
        .cloned();
    Ok(field)
}

fn kind(property: &Value) -> Option<Kind> {
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
fn choices(property: &Value) -> Option<Vec<Choice>> {
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
                        .map_or_else(|| value.clone(), |t| readable(t, LABEL));
                    Some(Choice { value, label })
                })
                .collect(),
            (None, Some(values)) => {
                let names = property.get("enumNames").and_then(Value::as_array);
                let name = |at: usize| {
                    names
                        .and_then(|names| names.get(at)?.as_str())
                        .map(|name| readable(name, LABEL))
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
fn kept_schema(property: &Value) -> Value {
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

/// A yes or no in the languages of the interface: "yes", "sí" or "oui".
pub fn parse_boolean(text: &str) -> Option<bool> {
    match text.trim().to_lowercase().as_str() {
        "yes" | "y" | "true" | "sí" | "si" | "oui" | "o" | "1" => Some(true),
        "no" | "n" | "false" | "non" | "0" => Some(false),
        _ => None,
    }
}

/// Like [`parse_boolean`], and "ok" is a yes too: it is a good answer to a question, but no value of a
/// setting.
pub(super) fn yes_or_no(text: &str) -> Option<bool> {
    parse_boolean(text).or_else(|| (text.trim().to_lowercase() == "ok").then_some(true))
}

impl Field {
    pub fn label(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
    }

    /// What a text means as a value of this field; `-` takes the default, or leaves an optional field out.
    pub(super) fn value(&self, text: &str) -> Result<Value, AnswerError> {
        let said = text.trim();
        match (&self.default, said) {
            (Some(default), "-" | "") => return Ok(default.clone()),
            (None, "-" | "") if !self.required => return Ok(Value::Null),
            (None, "") => return Err(AnswerError::Missing),
            _ => {}
        }
        let value = match &self.kind {
            Kind::Text { .. } => Value::from(said),
            Kind::Boolean => Value::Bool(yes_or_no(said).ok_or(AnswerError::NotABoolean)?),
            Kind::Number { whole: true, .. } => {
                Value::from(said.parse::<i64>().map_err(|_| AnswerError::NotANumber)?)
            }
            Kind::Number { whole: false, .. } => {
                let number = said
                    .replace(',', ".")
                    .parse::<f64>()
                    .map_err(|_| AnswerError::NotANumber)?;
                serde_json::Number::from_f64(number)
                    .map(Value::Number)
                    .ok_or(AnswerError::NotANumber)?
            }
            Kind::One(choices) => {
                Value::from(match_choice(choices, said).ok_or(AnswerError::NotAnOption)?)
            }
            Kind::Many { choices, .. } => {
                let picked = said
                    .split(',')
                    .map(|one| match_choice(choices, one.trim()).map(Value::from));
                let mut picked = picked
                    .collect::<Option<Vec<Value>>>()
                    .ok_or(AnswerError::NotAnOption)?;
                let mut seen = Vec::new();
                picked.retain(|value| {
                    !seen.contains(value) && {
                        seen.push(value.clone());
                        true
                    }
                });
                Value::Array(picked)
            }
        };
        if self.admits(&value) {
            Ok(value)
        } else {
            Err(AnswerError::OutsideLimits)
        }
    }

    /// Whether a value is within what the server asks for.
    fn admits(&self, value: &Value) -> bool {
        let one_of = |choices: &[Choice], value: &Value| {
            choices.iter().any(|choice| *value == choice.value.as_str())
        };
        match (&self.kind, value) {
            (
                Kind::Text {
                    format,
                    least,
                    most,
                },
                Value::String(text),
            ) => (*least..=*most).contains(&(text.chars().count() as u64)) && fits(*format, text),
            (Kind::Number { whole, least, most }, Value::Number(number)) => {
                let in_reach = number.as_f64().is_some_and(|number| {
                    least.is_none_or(|least| number >= least)
                        && most.is_none_or(|most| number <= most)
                });
                in_reach && (!whole || number.is_i64() || number.is_u64())
            }
            (Kind::Boolean, Value::Bool(_)) => true,
            (Kind::One(choices), value) => one_of(choices, value),
            (
                Kind::Many {
                    choices,
                    least,
                    most,
                },
                Value::Array(values),
            ) => {
                (*least..=*most).contains(&(values.len() as u64))
                    && values.iter().all(|value| one_of(choices, value))
            }
            _ => false,
        }
    }

    /// The limits in a form that needs no language; empty when there are none.
    pub fn limits(&self) -> String {
        let span = |least: Option<String>, most: Option<String>| match (least, most) {
            (None, None) => String::new(),
            (least, most) => format!(
                "{} … {}",
                least.unwrap_or_default(),
                most.unwrap_or_default()
            )
            .trim()
            .to_owned(),
        };
        match &self.kind {
            Kind::Text {
                format: Some(format),
                ..
            } => match format {
                Format::Email => "name@example.org",
                Format::Uri => "https://…",
                Format::Date => "YYYY-MM-DD",
                Format::DateTime => "YYYY-MM-DDThh:mm:ssZ",
                Format::Password => "",
            }
            .to_owned(),
            Kind::Text { least, most, .. } => {
                let most = Some(*most).filter(|most| *most < TEXT as u64);
                span(
                    Some(*least)
                        .filter(|least| *least > 0)
                        .map(|n| n.to_string()),
                    most.map(|n| n.to_string()),
                )
            }
            Kind::Number { least, most, .. } => {
                span(least.map(|n| n.to_string()), most.map(|n| n.to_string()))
            }
            Kind::Many {
                choices,
                least,
                most,
            } => {
                let most = Some(*most).filter(|most| *most < choices.len() as u64);
                span(
                    Some(*least)
                        .filter(|least| *least > 0)
                        .map(|n| n.to_string()),
                    most.map(|n| n.to_string()),
                )
            }
            Kind::Boolean | Kind::One(_) => String::new(),
        }
    }
}

/// The value of the choice that a text names: by value, label or number in the list.
pub fn match_choice<'c>(choices: &'c [Choice], said: &str) -> Option<&'c str> {
    let named = |choice: &&Choice| {
        choice.value == said || choice.label.to_lowercase() == said.to_lowercase()
    };
    let numbered = || choices.get(said.parse::<usize>().ok()?.checked_sub(1)?);
    choices
        .iter()
        .find(named)
        .or_else(numbered)
        .map(|choice| choice.value.as_str())
}

fn fits(format: Option<Format>, text: &str) -> bool {
    match format {
        None | Some(Format::Password) => true,
        Some(Format::Email) => text.split_once('@').is_some_and(|(name, host)| {
            !name.is_empty()
                && !host.is_empty()
                && !host.contains('@')
                && !text.contains(char::is_whitespace)
        }),
        Some(Format::Uri) => Url::parse(text).is_ok(),
        Some(Format::Date) => Date::parse(text, &Iso8601::DATE).is_ok(),
        Some(Format::DateTime) => OffsetDateTime::parse(text, &Rfc3339).is_ok(),
    }
}
