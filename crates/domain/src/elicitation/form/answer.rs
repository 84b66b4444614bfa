//! The value that a user gives for a field: how it is read and which limits it keeps.

use serde_json::Value;
use time::{
    Date, OffsetDateTime,
    format_description::well_known::{Iso8601, Rfc3339},
};
use url::Url;

use super::{AnswerError, Field, Format, Kind, match_choice, yes_or_no};
use crate::message::Choice;

impl Field {
    /// What a text means as a value of this field; `-` takes the default, or leaves an optional field out.
    pub(crate) fn value(&self, text: &str) -> Result<Value, AnswerError> {
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
                let number = decimal(said)?
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
    pub(super) fn admits(&self, value: &Value) -> bool {
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
}

/// A number with a point, as it was written. Separators of thousands are not read: `1,234` and `1.234` are refused, since
/// each is more than a thousand to some people and a little more than one to others.
pub(crate) fn decimal(said: &str) -> Result<String, AnswerError> {
    let unsigned = said.trim_start_matches(['-', '+']);
    if let Some((whole, rest)) = unsigned.split_once([',', '.'])
        && (1..=3).contains(&whole.len())
        && !whole.starts_with('0')
        && rest.len() == 3
        && rest.bytes().all(|digit| digit.is_ascii_digit())
    {
        return Err(AnswerError::AmbiguousNumber);
    }
    Ok(said.replace(',', "."))
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
