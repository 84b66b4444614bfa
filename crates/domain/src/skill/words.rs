//! Reads the words after a command as the arguments of its tool: `/pay acme 12.50`.
//!
//! The order is that of the schema's `required`, then of the skill's own values, then of the other properties as they
//! are written. A word that is no value of its argument is never given to another one: it is named, and asked for again.

use serde_json::{Value, value::RawValue};

use super::INPUT;
use crate::{
    decimal::is_number_space,
    elicitation::{AnswerError, Field, Kind, without_zeros},
    json::{Json, Members, Number},
};

/// References that are followed from one property.
const MAX_REFERENCES: usize = 8;
const QUOTES: [(char, char); 3] = [('"', '"'), ('“', '”'), ('«', '»')];

/// What the words of a command say.
#[derive(Debug, Default)]
pub struct Reading {
    /// The arguments that the words give.
    pub given: Members,
    /// What is still to be asked for.
    pub missing: Vec<Field>,
    /// Why words are no values of these arguments, which are among the missing ones.
    pub faults: Vec<(Field, AnswerError)>,
    /// The words of each of the faults.
    pub unread: Vec<String>,
    /// There are more words than arguments, so that nobody knows which words belong together. Then none is given.
    pub is_unclear: bool,
    /// What the tool needs and what no single text can say: an object, say.
    pub unaskable: Vec<String>,
    /// The arguments in the order of the words: `to amount [currency]`.
    pub usage: String,
}

impl Reading {
    /// Whether the call can be made.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unaskable.is_empty() && !self.is_unclear
    }
}

/// Reads the words by the schema of the tool. `own` are the values that the skill itself has for arguments.
pub fn read(schema: &RawValue, own: &Members, text: &str) -> Reading {
    let schema = Json::parse(schema.get()).unwrap_or(Json::Null);
    let mut rest = text.trim();
    let properties = schema.get("properties").and_then(Json::as_object);
    let takes_input = properties.is_none_or(|all| all.is_empty() || all.get(INPUT).is_some());
    let mut reading = Reading::default();
    if takes_input && !rest.is_empty() {
        reading.given.add(INPUT, Json::Text(rest.to_owned()));
        rest = "";
    }
    let mut fields = Vec::new();
    for (name, is_required) in names(&schema, own) {
        let property = properties.and_then(|all| all.get(name));
        let field = property.and_then(|property| field(&schema, name, property, is_required));
        match field {
            _ if reading.given.get(name).is_some() => {}
            Some(field) => fields.push(field),
            None if is_required => reading.unaskable.push(name.to_owned()),
            None => {}
        }
    }
    let usage = fields.iter().map(|field| {
        if field.required {
            field.name.clone()
        } else {
            format!("[{}]", field.name)
        }
    });
    reading.usage = usage.collect::<Vec<_>>().join(" ");
    let taker = taker_of_rest(&fields);
    let mut faulty = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        let word = match taker {
            Some(taker) if taker == at => std::mem::take(&mut rest),
            _ => take_word(&mut rest),
        };
        let takes_next = fields.get(at + 1).is_some_and(is_numeric);
        if is_numeric(field)
            && !takes_next
            && let Some(groups) = groups_of_number(word, rest)
        {
            // `1 234,50` is one number, or a one and a word: nobody knows.
            let said = format!("{word} {}", &rest[..groups]);
            rest = rest[groups..].trim_start();
            faulty.push((at, AnswerError::AmbiguousNumber, said));
            continue;
        }
        match value(field, word) {
            _ if word.is_empty() && !field.required => {}
            Ok(Json::Null) => {}
            Ok(value) => {
                reading.given.add(&field.name, value);
            }
            Err(fault) => faulty.push((at, fault, word.to_owned())),
        }
    }
    reading.is_unclear = !rest.is_empty();
    if reading.is_unclear {
        reading.given = Members::default();
        fields.retain(|field| field.required);
        reading.missing = fields;
        return reading;
    }
    for (at, fault, said) in faulty {
        reading.missing.push(fields[at].clone());
        // What was not said is asked for, and is no mistake.
        if fault != AnswerError::Missing {
            reading.faults.push((fields[at].clone(), fault));
            reading.unread.push(said);
        }
    }
    reading
}

/// The arguments of a tool that are decimal numbers, as amounts are.
pub fn decimals(schema: &RawValue) -> Vec<String> {
    let schema = Json::parse(schema.get()).unwrap_or(Json::Null);
    let properties = schema.get("properties").and_then(Json::as_object);
    let properties = properties.into_iter().flat_map(Members::iter);
    let is_decimal = |(name, property): &(&str, &Json)| {
        let field = field(&schema, name, property, false);
        field.is_some_and(|field| {
            is_numeric(&field) && !matches!(field.kind, Kind::Number { whole: true, .. })
        })
    };
    let decimals = properties.filter(is_decimal);
    decimals.map(|(name, _)| name.to_owned()).collect()
}

/// The names of the arguments in the order of the words, and whether each must be said.
fn names<'s>(schema: &'s Json, own: &'s Members) -> Vec<(&'s str, bool)> {
    let required = match schema.get("required") {
        Some(Json::List(names)) => names.iter().filter_map(Json::as_text).collect(),
        _ => Vec::new(),
    };
    let properties = schema.get("properties").and_then(Json::as_object);
    let properties = properties.into_iter().flat_map(Members::iter);
    let needed = required.into_iter().filter(|name| own.get(name).is_none());
    let others = own.iter().chain(properties).map(|(name, _)| (name, false));
    let mut names: Vec<(&str, bool)> = Vec::new();
    for (name, is_required) in needed.map(|name| (name, true)).chain(others) {
        if !names.iter().any(|(known, _)| *known == name) {
            names.push((name, is_required));
        }
    }
    names
}

/// The one text among the arguments that must be said, or among all if none must: it takes all words that are left,
/// if no other argument comes behind it.
fn taker_of_rest(fields: &[Field]) -> Option<usize> {
    let needed = fields.iter().filter(|field| field.required).count();
    let needed = if needed == 0 { fields.len() } else { needed };
    let is_text =
        |field: &Field| matches!(field.kind, Kind::Text { format: None, .. }) && !is_numeric(field);
    let texts = fields[..needed]
        .iter()
        .filter(|field| is_text(field))
        .count();
    let last = needed.checked_sub(1)?;
    (texts == 1 && is_text(&fields[last])).then_some(last)
}

/// Takes the first word, or what stands in quotation marks.
fn take_word<'t>(rest: &mut &'t str) -> &'t str {
    let quoted = QUOTES.iter().find_map(|(open, close)| {
        let (word, behind) = rest.strip_prefix(*open)?.split_once(*close)?;
        let is_end = behind.is_empty() || behind.starts_with(char::is_whitespace);
        is_end.then_some((word, behind))
    });
    // A blank that keeps a number together divides no words.
    let is_inside = |at: usize, c: char| {
        is_number_space(c)
            && rest[..at].ends_with(|c: char| c.is_ascii_digit())
            && rest[at + c.len_utf8()..].starts_with(|c: char| c.is_ascii_digit())
    };
    let mut blanks = rest.char_indices().filter(|(_, c)| c.is_whitespace());
    let end = blanks.find(|(at, c)| !is_inside(*at, *c));
    let (word, behind) = quoted
        .or_else(|| end.map(|(at, _)| rest.split_at(at)))
        .unwrap_or((rest, ""));
    *rest = behind.trim_start();
    word
}

fn is_numeric(field: &Field) -> bool {
    matches!(
        field.kind,
        Kind::Number { .. }
            | Kind::Text {
                is_decimal: true,
                ..
            }
    )
}

/// The bytes of the words behind a number that may be groups of it.
fn groups_of_number(word: &str, rest: &str) -> Option<usize> {
    let is_first = (1..=3).contains(&word.len()) && !word.starts_with('0');
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_first || !is_digits(word) {
        return None;
    }
    let (mut end, mut at) = (0, 0);
    for next in rest.split_inclusive(char::is_whitespace) {
        let group = next.trim_end();
        let (digits, fraction) = group.split_once(['.', ',']).unwrap_or((group, ""));
        if digits.len() != 3 || !is_digits(digits) || !is_digits(fraction) {
            break;
        }
        end = at + group.len();
        at += next.len();
        if digits != group {
            break;
        }
    }
    (end > 0).then_some(end)
}

/// The value of an argument, with the digits that were written.
fn value(field: &Field, word: &str) -> Result<Json, AnswerError> {
    // A number in a list means something only where the list is shown.
    let is_number = word.parse::<usize>().is_ok();
    if let Kind::One(choices) = &field.kind
        && is_number
        && !choices
            .iter()
            .any(|choice| choice.value == word || choice.label == word)
    {
        return Err(AnswerError::NotAnOption);
    }
    let value = field.value(word)?;
    // A default is a number that nobody said.
    let said = value.is_number().then(|| field.digits(word).ok()).flatten();
    let digits = said.map(|digits| without_zeros(&digits));
    Ok(match digits.and_then(|digits| Number::parse(&digits)) {
        Some(number) => Json::Number(number),
        None => Json::from(&value),
    })
}

/// The field of a property; `None` if one text cannot say its value.
fn field(schema: &Json, name: &str, property: &Json, is_required: bool) -> Option<Field> {
    let mut kind = property;
    for _ in 0..MAX_REFERENCES {
        let Some(next) = referred(schema, kind).or_else(|| only_alternative(kind)) else {
            break;
        };
        kind = next;
    }
    let mut read = kind.rounded();
    let members = read.as_object_mut()?;
    for said in ["title", "description", "default"] {
        if let Some(said_here) = property.get(said) {
            members.insert(said.to_owned(), said_here.rounded());
        }
    }
    if let Some(Value::Array(types)) = members.get("type") {
        let mut types = types.iter().filter(|name| *name != "null");
        let first = types.next().filter(|_| types.next().is_none())?.clone();
        members.insert("type".to_owned(), first);
    } else if members.contains_key("enum") || members.contains_key("oneOf") {
        members.entry("type").or_insert_with(|| "string".into());
    }
    Field::read(name, &read, is_required).ok()
}

/// What a reference within the schema refers to.
fn referred<'s>(schema: &'s Json, property: &Json) -> Option<&'s Json> {
    let path = property.get("$ref")?.as_text()?.strip_prefix("#/")?;
    path.split('/').try_fold(schema, |at, name| at.get(name))
}

/// The one alternative besides `null`.
fn only_alternative(property: &Json) -> Option<&Json> {
    let Json::List(all) = property.get("anyOf").or_else(|| property.get("oneOf"))? else {
        return None;
    };
    let is_null = |one: &&Json| one.get("type").and_then(Json::as_text) == Some("null");
    let mut others = all.iter().filter(|one| !is_null(one));
    let first = others.next()?;
    (others.next().is_none() && all.len() > 1).then_some(first)
}
