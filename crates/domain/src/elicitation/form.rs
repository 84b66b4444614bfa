//! The fields of a form. The schema is the flat one that the protocol allows and is read strictly. A person's
//! text is turned into the value of a field here.

mod answer;
mod kind;
mod limits;

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

pub(crate) use self::answer::without_zeros;
use self::kind::{LABEL, kept_schema, kind};
use super::reading::OrderedMembers;
use crate::{
    hidden::{one_line, quote_imitations},
    message::Choice,
};

/// Characters of a name, a label and a text that somebody enters.
const NAME: usize = 128;

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
        /// An expression that nobody is shown.
        #[serde(default)]
        pattern: Option<String>,
        /// The text is a decimal number, so it is read like one.
        #[serde(default)]
        is_decimal: bool,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum AnswerError {
    Missing,
    NotABoolean,
    NotAnOption,
    NotANumber,
    /// People read it as one number or as another: [`crate::decimal::two_readings`].
    AmbiguousNumber,
    /// The value is outside of the limits, or does not have the format.
    #[strum(serialize = "unfit")]
    OutsideLimits,
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
        Field::read(name, &property, schema.required.contains(name))
    };
    properties.iter().map(read).collect()
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
    /// Reads a property; the error says what about it cannot be shown.
    pub(crate) fn read(name: &str, property: &Value, required: bool) -> Result<Self, String> {
        if name.is_empty() || name.chars().count() > NAME || name.chars().any(char::is_control) {
            return Err("a field whose name cannot be shown".to_owned());
        }
        let kind = kind(property).ok_or_else(|| {
            format!("the field {name:?}, which is not of a kind that can be asked")
        })?;
        let label = |key: &str| {
            let text = property
                .get(key)
                .and_then(Value::as_str)
                .map(|text| quote_imitations(&one_line(text, LABEL)));
            text.filter(|text| !text.is_empty())
        };
        let mut field = Self {
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

    pub fn label(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
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
