//! The value that a user gives for a field: how it is read and which limits it keeps.

use serde_json::Value;
use time::{
    Date, OffsetDateTime,
    format_description::well_known::{Iso8601, Rfc3339},
};
use url::Url;

use super::{AnswerError, Field, Format, Kind, match_choice, yes_or_no};
use crate::{
    decimal::{Unreadable, read_written},
    message::Choice,
    tool_schema::TextPattern,
};

/// Zeros that may be added to a fraction so that it fits its pattern.
const MORE_ZEROS: usize = 4;
/// A pattern that admits one of them is that of numbers below zero, too.
const BELOW: [&str; 3] = ["-1", "-1.5", "-1.50"];

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
            Kind::Text {
                is_decimal: true, ..
            } => Value::from(self.spell(&self.digits(said)?)),
            Kind::Text { .. } => Value::from(said),
            Kind::Boolean => Value::Bool(yes_or_no(said).ok_or(AnswerError::NotABoolean)?),
            Kind::Number { whole, .. } => {
                let digits = without_zeros(&self.digits(said)?);
                if *whole {
                    Value::from(digits.parse::<i64>().map_err(|_| AnswerError::NotANumber)?)
                } else {
                    let number = digits.parse().map_err(|_| AnswerError::NotANumber)?;
                    serde_json::Number::from_f64(number)
                        .map(Value::Number)
                        .ok_or(AnswerError::NotANumber)?
                }
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

    /// The digits of a number that is said for this field. A dash before it may be a slip of the hand, so it is a minus
    /// only where the server says how far down numbers may go; the word for it says the same anywhere.
    pub(crate) fn digits(&self, said: &str) -> Result<String, AnswerError> {
        let minus = ["minus ", "menos ", "moins "];
        let below = minus.iter().find_map(|word| {
            said.get(..word.len())?
                .eq_ignore_ascii_case(word)
                .then_some(word.len())
        });
        let digits = match below {
            Some(at) => format!("-{}", read_number(&said[at..])?),
            None => read_number(said)?,
        };
        let says_how_far = match &self.kind {
            Kind::Number { least, .. } => least.is_some(),
            Kind::Text { pattern, .. } => {
                let anchored = pattern.as_ref().map(|pattern| format!("^(?:{pattern})$"));
                let pattern = anchored.as_deref().and_then(TextPattern::compile);
                pattern.is_some_and(|pattern| BELOW.iter().any(|text| pattern.admits(text)))
            }
            _ => false,
        };
        let may_be_below = below.is_some() || says_how_far;
        if digits.starts_with('-') && !may_be_below || digits.starts_with("--") {
            return Err(AnswerError::NotANumber);
        }
        Ok(digits)
    }

    /// A number as this text is to be written, with as many digits behind the point as were said where that fits.
    fn spell(&self, digits: &str) -> String {
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let needed = fraction.trim_end_matches('0');
        let lengths = [fraction.len()]
            .into_iter()
            .chain(needed.len()..=needed.len() + MORE_ZEROS);
        let spellings = lengths.flat_map(|length| {
            [".", ","].map(|sign| match length {
                0 => whole.to_owned(),
                _ => format!("{whole}{sign}{needed:0<length$}"),
            })
        });
        let fits = |text: &String| self.admits(&Value::from(text.as_str()));
        spellings
            .into_iter()
            .find(fits)
            .unwrap_or_else(|| digits.to_owned())
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
                    pattern,
                    ..
                },
                Value::String(text),
            ) => {
                let pattern = pattern.as_deref().and_then(TextPattern::compile);
                (*least..=*most).contains(&(text.chars().count() as u64))
                    && fits(*format, text)
                    && pattern.is_none_or(|pattern| pattern.admits(text))
            }
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

/// A number as JSON has it: no zeros before it.
pub(crate) fn without_zeros(digits: &str) -> String {
    let (sign, number) = match digits.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", digits),
    };
    let number = number.trim_start_matches('0');
    let zero = if number.is_empty() || number.starts_with('.') {
        "0"
    } else {
        ""
    };
    format!("{sign}{zero}{number}")
}

fn read_number(said: &str) -> Result<String, AnswerError> {
    read_written(said).map_err(|why| match why {
        Unreadable::NotANumber => AnswerError::NotANumber,
        Unreadable::Ambiguous => AnswerError::AmbiguousNumber,
    })
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
