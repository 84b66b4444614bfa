//! What tools answered: an id chosen from a list, and results in plain words.

use serde_json::{Map, Value};
use time::{OffsetDateTime, UtcOffset, format_description::well_known::Rfc3339};

use super::{
    arguments::Role,
    sentence::Facts,
    words::{Lang, fold},
};

/// Lines of a list; the rest is counted.
const LINES: usize = 20;
/// Characters of a result that is no JSON.
const LONGEST: usize = 600;

/// The id in a list that a recipient or an account is called by; the choices there are when none is clearly meant.
pub(super) fn choose(result: &str, role: Role, facts: &Facts) -> Result<String, Vec<String>> {
    let parsed: Value = serde_json::from_str(result).unwrap_or_default();
    let items = objects_in(&parsed);
    let ids: Vec<String> = items.iter().filter_map(|item| id_of(item)).collect();
    let said = if role == Role::Account {
        &facts.account
    } else {
        &facts.recipient
    };
    let fits: Vec<&Map<String, Value>> = match said {
        Some(said) => {
            let exact: Vec<_> = items
                .iter()
                .copied()
                .filter(|item| is_called(item, said, |a, b| a == b))
                .collect();
            let begins = |name: &str, said: &str| {
                name.split_whitespace().any(|word| word == said) || name.starts_with(said)
            };
            if exact.is_empty() {
                items
                    .iter()
                    .copied()
                    .filter(|item| is_called(item, said, begins))
                    .collect()
            } else {
                exact
            }
        }
        None if role == Role::Account => {
            let currency = facts.currencies.first().copied();
            let in_currency = |item: &&Map<String, Value>| {
                currency.is_some_and(|code| item.values().any(|value| value.as_str() == Some(code)))
            };
            // The bank lists its accounts in its own order: the first one in the currency is used, and the answer names it.
            let first = items.iter().copied().find(in_currency);
            first
                .or_else(|| items.first().copied().filter(|_| items.len() == 1))
                .into_iter()
                .collect()
        }
        None => Vec::new(),
    };
    match fits.as_slice() {
        [only] => id_of(only).ok_or(ids),
        _ => Err(ids),
    }
}

fn is_called(item: &Map<String, Value>, said: &str, fits: impl Fn(&str, &str) -> bool) -> bool {
    let said = fold(said);
    item.values()
        .filter_map(Value::as_str)
        .any(|value| fits(&fold(value), &said))
}

fn id_of(item: &Map<String, Value>) -> Option<String> {
    let id = ["id", "code", "key", "name"]
        .iter()
        .find_map(|key| item.get(*key)?.as_str());
    id.or_else(|| item.values().find_map(Value::as_str))
        .map(str::to_owned)
}

/// The objects of the first list in a result.
fn objects_in(value: &Value) -> Vec<&Map<String, Value>> {
    match value {
        Value::Array(items) => items.iter().filter_map(Value::as_object).collect(),
        Value::Object(members) => {
            let lists = members.values().find(|member| member.is_array());
            lists.map(objects_in).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// The result of a call, as far as it says how the call went.
pub(super) enum Told {
    Data(Value),
    /// Somebody has to consent first: the code, who may, and until when.
    Waits {
        code: String,
        approvers: String,
        until: String,
    },
    Failed(String),
    Text(String),
}

pub(super) fn read(result: &str) -> Told {
    if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(result) {
        return Told::Data(value);
    }
    // What stands behind is for the model.
    let text = result.split("; do not retry").next().unwrap_or_default();
    if let Some(waits) = waits(text) {
        return waits;
    }
    let short: String = text.chars().take(LONGEST).collect();
    let failures = [
        "failed",
        "not executed",
        "denied",
        "cancelled",
        "outcome unknown",
        "error",
        "there is no result",
    ];
    let lower = text.to_lowercase();
    if failures.iter().any(|begin| lower.starts_with(begin)) {
        Told::Failed(short)
    } else {
        Told::Text(short)
    }
}

fn waits(text: &str) -> Option<Told> {
    let (_, rest) = text.split_once("waiting for approval ")?;
    let (code, rest) = rest.split_once(" by ")?;
    let (approvers, until) = rest.rsplit_once(" until ")?;
    Some(Told::Waits {
        code: code.to_owned(),
        approvers: approvers.to_owned(),
        until: to_minute(until),
    })
}

/// A result in words: a list has a line for each item, an object its members.
pub(super) fn plain(value: &Value, lang: Lang) -> String {
    let nothing = lang.of(&["Nothing there.", "No hay nada.", "Il n'y a rien."]);
    match value {
        Value::Array(items) if items.is_empty() => nothing.to_owned(),
        Value::Array(items) => lines(items, lang),
        Value::Object(members) => {
            if let Some(Value::Array(items)) = members.values().find(|member| member.is_array()) {
                return plain(&Value::Array(items.clone()), lang);
            }
            line(members)
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn lines(items: &[Value], lang: Lang) -> String {
    let shown = items.iter().take(LINES).map(|item| match item {
        Value::Object(members) => format!("- {}", line(members)),
        other => format!("- {}", scalar(other).unwrap_or_else(|| other.to_string())),
    });
    let mut lines: Vec<String> = shown.collect();
    if items.len() > LINES {
        let more = lang.of(&["and more", "y más", "et plus"]);
        lines.push(format!("- … {more}: {}", items.len() - LINES));
    }
    lines.join("\n")
}

/// The name of a thing, its id, its amount with the currency, and the rest as it is called.
fn line(members: &Map<String, Value>) -> String {
    let text = |key: &str| members.get(key).and_then(scalar);
    let name = ["name", "title", "text"]
        .iter()
        .find_map(|key| Some((*key, text(key)?)));
    let id = ["id", "code", "number"]
        .iter()
        .find_map(|key| Some((*key, text(key)?)));
    let amount = ["balance", "amount", "value"]
        .iter()
        .find_map(|key| Some((*key, text(key)?)));
    let currency = ["currency", "ccy"]
        .iter()
        .find_map(|key| Some((*key, text(key)?)));
    let used: Vec<&str> = [&name, &id, &amount, &currency]
        .into_iter()
        .flatten()
        .map(|(key, _)| *key)
        .collect();
    let mut said = match (&name, &id) {
        (Some((_, name)), Some((_, id))) => format!("**{name}** ({id})"),
        (Some((_, only)), None) | (None, Some((_, only))) => format!("**{only}**"),
        (None, None) => String::new(),
    };
    let money = match (&amount, &currency) {
        (Some((_, amount)), Some((_, currency))) => Some(format!("{amount} {currency}")),
        (Some((_, only)), None) | (None, Some((_, only))) => Some(only.clone()),
        (None, None) => None,
    };
    let rest = members
        .iter()
        .filter(|(key, _)| !used.contains(&key.as_str()));
    let rest = rest
        .filter_map(|(key, value)| Some(format!("{}: {}", key.replace('_', " "), scalar(value)?)));
    let details: Vec<String> = money.into_iter().chain(rest).collect();
    if !details.is_empty() {
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&details.join(", "));
    }
    said
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(to_minute(text)),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is_so) => Some(is_so.to_string()),
        _ => None,
    }
}

/// A time as people write it, `2026-11-25 21:37 UTC`. What is no time stays as it is.
fn to_minute(text: &str) -> String {
    let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) else {
        return text.to_owned();
    };
    let at = at.to_offset(UtcOffset::UTC);
    format!("{} {:02}:{:02} UTC", at.date(), at.hour(), at.minute())
}

/// The exchange rate in a result, without zeros at its end.
pub(super) fn rate(value: &Value) -> Option<String> {
    let members = value.as_object()?;
    let found = members.iter().find(|(key, _)| {
        let key = key.to_lowercase();
        ["rate", "price", "quote"]
            .iter()
            .any(|word| key.contains(word))
    });
    if let Some(text) = found.and_then(|(_, value)| scalar(value)) {
        let is_decimal = text.chars().all(|c| c.is_ascii_digit() || c == '.')
            && text.contains(|c: char| c.is_ascii_digit());
        let short = if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.')
        } else {
            &text
        };
        return is_decimal.then(|| short.to_owned());
    }
    members.values().find_map(rate)
}

/// An amount times a rate, rounded to cents.
pub(super) fn times(amount: &str, rate: &str) -> Option<String> {
    let scaled = |text: &str| {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let digits: i128 = format!("{whole}{part}").parse().ok()?;
        Some((digits, u32::try_from(part.len()).ok()?))
    };
    let ((left, left_digits), (right, right_digits)) = (scaled(amount)?, scaled(rate)?);
    let over = 10_i128.checked_pow(left_digits + right_digits)?;
    let cents = (left.checked_mul(right)?.checked_mul(100)? + over / 2) / over;
    Some(format!("{}.{:02}", cents / 100, cents % 100))
}

/// The times in a result: each with the place it is for, `22:05` and `2026-11-25`.
pub(super) fn times_of_day(value: &Value) -> Vec<(String, String, String)> {
    let Some(members) = value.as_object() else {
        return Vec::new();
    };
    let texts: Vec<&str> = members.values().filter_map(Value::as_str).collect();
    let is_date = |text: &&&str| {
        text.as_bytes().get(4) == Some(&b'-')
            && text.as_bytes().get(10) == Some(&b'T')
            && text.is_ascii()
            && text.len() >= 16
    };
    if let Some(moment) = texts.iter().find(is_date) {
        let place = texts
            .iter()
            .find(|text| text.contains('/') || **text == "UTC")
            .copied()
            .unwrap_or_default();
        return vec![(
            place.to_owned(),
            moment[11..16].to_owned(),
            moment[..10].to_owned(),
        )];
    }
    members.values().flat_map(times_of_day).collect()
}
