//! Keys of a configuration and the values they are given. A value is written as JSON; its text may hold
//! references, and `{"$secret": "name"}` stands for a sealed secret of the tenant.

mod checks;
mod tree;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::{
    checks::{ascii, check_kind, expected_form},
    tree::{check_tree, first, template, tree, tree_template, walk},
};
use crate::{
    header,
    secret::Secret,
    template::{OnMissing, Reference, Resolved, Source, Template},
};

/// Bytes of one value, as written and as resolved.
pub const MAX_VALUE: usize = 8192;
/// The reason for a value that no header can carry.
pub const UNCARRIED: &str = "its value holds a line break or another character that a header cannot carry, such as `ü`; a key of \
     `type: json` takes any text";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ScopeKind))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    String,
    Json,
    Boolean,
    Number,
}

/// What a server says of one key that it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
                check_kind(kind, &template.resolve(|_| None).unwrap_or_default())
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
        check_kind(kind, resolved.text.expose()).map_err(Unresolved::WrongType)?;
        if kind == Kind::Json {
            resolved.text = Secret::new(ascii(resolved.text.expose()));
        }
        Ok(Some(resolved))
    }
}
