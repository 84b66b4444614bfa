//! Keys of a configuration and the values they are given. A value is written as JSON; its text may hold
//! references, and `{"$secret": "name"}` stands for a sealed secret of the tenant.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::{
    header,
    secret::Secret,
    template::{Missing, OnMissing, Reference, Resolved, Source, Template},
};

/// Bytes of one value, as written and as resolved.
pub const MAX_VALUE: usize = 8192;
/// The reason for a value that no header can carry.
pub const UNCARRIED: &str =
    "its value holds a line break or another character that a header cannot carry";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    String,
    Json,
    Boolean,
    Number,
}

/// What a server says of one key that it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySchema {
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// A value must be there when a run begins. One that is not required is left out then.
    #[serde(default)]
    pub required: bool,
    /// The value is never shown, and never comes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
    /// The program fills it in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal: bool,
    /// For people who fill it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example: Option<String>,
    /// The header that carries it; absent: made from the key, `X-Context-Id` for `context_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

/// `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`: the name of a secret of the tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName(String);

impl SecretName {
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let first = text
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric());
        if first && text.len() <= 64 && text.bytes().all(rest) {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(80).collect();
        Err(format!(
            "{shown:?} is not the name of a secret: use 1 to 64 letters, digits, `_`, `.` or `-`, starting with a letter or digit"
        ))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A value as it was written, understood. Printed as `[config]`, since what is written may be secret.
#[derive(Clone, PartialEq)]
pub struct ConfigValue {
    written: Value,
    parsed: ParsedValue,
}

#[derive(Clone, PartialEq)]
enum ParsedValue {
    Text(Template),
    /// A number or a boolean.
    Plain,
    /// An object or a list; its texts are templates.
    Tree,
    Secret(SecretName),
}

impl fmt::Debug for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[config]")
    }
}

/// Why a value was not resolved.
#[derive(Debug)]
pub enum Unresolved {
    /// `scope.context_id`, or the secret's name.
    Missing(String),
    /// The text is not of its type.
    WrongType(String),
}

impl ConfigValue {
    /// Reads a value that is not `null`; references may be to these sources. An error never quotes a literal.
    pub fn parse(written: &Value, sources: &[Source]) -> Result<Self, String> {
        if written.to_string().len() > MAX_VALUE {
            return Err(format!("is longer than {MAX_VALUE} bytes"));
        }
        let parsed = match written {
            Value::Null => return Err("has no value".to_owned()),
            Value::String(text) => ParsedValue::Text(template(text, sources)?),
            Value::Bool(_) | Value::Number(_) => ParsedValue::Plain,
            Value::Object(fields) if fields.contains_key("$secret") => match &written["$secret"] {
                Value::String(name) if fields.len() == 1 => {
                    ParsedValue::Secret(SecretName::parse(name)?)
                }
                _ => {
                    return Err(
                        "write `{\"$secret\": \"<name>\"}` and nothing else in it".to_owned()
                    );
                }
            },
            Value::Object(_) | Value::Array(_) => {
                check_tree(written, sources)?;
                ParsedValue::Tree
            }
        };
        Ok(Self {
            written: written.clone(),
            parsed,
        })
    }

    /// Whether a value of this type may be written like this. A value that only a run brings is checked when
    /// the run resolves it.
    pub fn fits(&self, kind: Kind) -> Result<(), String> {
        match (&self.parsed, kind, &self.written) {
            (ParsedValue::Text(template), kind, _) if template.references().next().is_none() => {
                check_text(kind, &template.resolve(|_| None).unwrap_or_default())
            }
            (ParsedValue::Secret(_) | ParsedValue::Text(_), ..)
            | (ParsedValue::Tree, Kind::Json, _)
            | (ParsedValue::Plain, Kind::Boolean | Kind::Json, Value::Bool(_))
            | (ParsedValue::Plain, Kind::Number | Kind::Json, Value::Number(_)) => Ok(()),
            (_, kind, _) => Err(expected_form(kind)),
        }
    }

    /// Whether a header can carry the literal text, whatever a run fills in. JSON is serialised anew for its
    /// header.
    pub fn can_be_sent(&self, kind: Kind) -> Result<(), String> {
        match &self.parsed {
            ParsedValue::Text(template)
                if kind != Kind::Json && !template.literals().all(header::can_carry) =>
            {
                Err(UNCARRIED.to_owned())
            }
            _ => Ok(()),
        }
    }

    /// The value as it was written.
    pub fn written(&self) -> &Value {
        &self.written
    }

    /// Whether the value is only a reference, so that it may be shown even where the value itself is
    /// sensitive.
    pub fn only_refers(&self) -> bool {
        match &self.parsed {
            ParsedValue::Secret(_) => true,
            ParsedValue::Text(template) => template.is_one_reference(),
            ParsedValue::Plain | ParsedValue::Tree => false,
        }
    }

    pub fn secret(&self) -> Option<&SecretName> {
        match &self.parsed {
            ParsedValue::Secret(name) => Some(name),
            _ => None,
        }
    }

    pub fn references(&self) -> Vec<Reference> {
        match &self.parsed {
            ParsedValue::Text(template) => template.references().cloned().collect(),
            ParsedValue::Tree => {
                let mut found = Vec::new();
                walk(&self.written, &mut |text| {
                    found.extend(tree_template(text).references().cloned());
                });
                found
            }
            ParsedValue::Plain | ParsedValue::Secret(_) => Vec::new(),
        }
    }

    /// The text that is sent. `None`: a value is missing and the key is left out.
    pub fn resolve<'v>(
        &self,
        kind: Kind,
        on_missing: OnMissing,
        value: impl Fn(&Reference) -> Option<&'v str>,
        secret: impl Fn(&SecretName) -> Option<&'v Secret>,
    ) -> Result<Option<Resolved>, Unresolved> {
        let resolved = match &self.parsed {
            ParsedValue::Text(template) => template
                .resolve_or(on_missing, value)
                .map_err(|missing| first(&missing))?,
            ParsedValue::Plain => Some(Resolved {
                text: Secret::new(self.written.to_string()),
                sensitive: false,
            }),
            ParsedValue::Tree => tree(&self.written, on_missing, &value)?,
            ParsedValue::Secret(name) => match (secret(name), on_missing) {
                (Some(secret), _) => Some(Resolved {
                    text: secret.clone(),
                    sensitive: true,
                }),
                (None, OnMissing::Omit) => None,
                (None, OnMissing::Error) => {
                    return Err(Unresolved::Missing(format!("$secret {}", name.as_str())));
                }
            },
        };
        let Some(mut resolved) = resolved else {
            return Ok(None);
        };
        check_text(kind, resolved.text.expose()).map_err(Unresolved::WrongType)?;
        if kind == Kind::Json {
            resolved.text = Secret::new(ascii(resolved.text.expose()));
        }
        Ok(Some(resolved))
    }
}

fn template(text: &str, sources: &[Source]) -> Result<Template, String> {
    Template::parse_sourced(text, sources).map_err(|error| error.to_string())
}

/// A text of a tree that was checked when it was read.
fn tree_template(text: &str) -> Template {
    Template::parse_sourced(
        text,
        &[
            Source::Env,
            Source::Params,
            Source::Scope,
            Source::Runtime,
            Source::Runner,
        ],
    )
    .expect("checked when the value was read")
}

fn check_tree(value: &Value, sources: &[Source]) -> Result<(), String> {
    match value {
        Value::String(text) => template(text, sources).map(|_| ()),
        Value::Array(items) => items.iter().try_for_each(|item| check_tree(item, sources)),
        Value::Object(fields) if fields.contains_key("$secret") => {
            Err("`$secret` stands for a whole value, not for a part of one".to_owned())
        }
        Value::Object(fields) => fields
            .values()
            .try_for_each(|value| check_tree(value, sources)),
        _ => Ok(()),
    }
}

fn walk(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| walk(item, see)),
        Value::Object(fields) => fields.values().for_each(|value| walk(value, see)),
        _ => {}
    }
}

/// A tree with its texts resolved, as JSON.
fn tree<'v>(
    written: &Value,
    on_missing: OnMissing,
    value: &impl Fn(&Reference) -> Option<&'v str>,
) -> Result<Option<Resolved>, Unresolved> {
    let mut sensitive = false;
    match filled(written, value, &mut sensitive) {
        Ok(filled) => Ok(Some(Resolved {
            text: Secret::new(filled.to_string()),
            sensitive,
        })),
        Err(_) if on_missing == OnMissing::Omit => Ok(None),
        Err(missing) => Err(first(&missing)),
    }
}

fn filled<'v>(
    written: &Value,
    value: &impl Fn(&Reference) -> Option<&'v str>,
    sensitive: &mut bool,
) -> Result<Value, Missing> {
    Ok(match written {
        Value::String(text) => {
            let template = tree_template(text);
            *sensitive |= template
                .references()
                .any(|reference| reference.source.is_sensitive());
            Value::String(template.resolve(value)?)
        }
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| filled(item, value, sensitive))
                .collect::<Result<_, _>>()?,
        ),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, field)| Ok((name.clone(), filled(field, value, sensitive)?)));
            Value::Object(fields.collect::<Result<_, Missing>>()?)
        }
        other => other.clone(),
    })
}

fn first(missing: &Missing) -> Unresolved {
    Unresolved::Missing(missing.0.first().map(Reference::dotted).unwrap_or_default())
}

/// Whether a text is of a type.
fn check_text(kind: Kind, text: &str) -> Result<(), String> {
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

fn expected_form(kind: Kind) -> String {
    match kind {
        Kind::String => "must be text",
        Kind::Boolean => "must be true or false",
        Kind::Number => "must be a number",
        Kind::Json => "must be JSON",
    }
    .to_owned()
}

/// JSON on one line that a header can carry.
fn ascii(json: &str) -> String {
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
