//! What a user enters for a personal server: the values are checked, and from them comes the server as this
//! user reaches it.
//!
//! Substitution is literal and happens once: a value that holds `{token}` or `$&` arrives as those
//! characters. A value can end no header and start no other one: CR, LF and NUL are refused.

use std::collections::BTreeMap;

use url::Url;

use super::{
    secret::Secret,
    server::{Endpoint, FieldKind, ServerSpec, UserField},
    template::Template,
};

/// Bytes of one value. The token of a user in many groups is large.
pub const MAX_VALUE: usize = 32 * 1024;

/// Checked values by the names of their fields. Optional fields may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<String, Secret>);

/// Why a value cannot be used. Never holds the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    #[error("is missing; enter a value")]
    Missing,
    #[error("holds a line break or a NUL character; remove it")]
    LineBreak,
    #[error("is longer than {MAX_VALUE} bytes; check what was entered")]
    TooLong,
    #[error("is not an address; enter one that starts with https://")]
    NotAnAddress,
    #[error("is neither `true` nor `false`")]
    NotABoolean,
    #[error("is none of the options")]
    NotAnOption,
    #[error("is no field of this server")]
    Unknown,
    #[error("holds a character that a header cannot carry; check what was entered")]
    NotForHeaders,
}

/// A field and what is wrong with its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {fault}")]
pub struct InvalidField {
    pub field: String,
    pub fault: FieldError,
}

impl Values {
    /// Checks everything that a user entered at once.
    pub fn check(
        fields: &[UserField],
        entered: &BTreeMap<String, Secret>,
    ) -> Result<Self, InvalidField> {
        let unfit = |field: &str, fault| InvalidField {
            field: field.to_owned(),
            fault,
        };
        if let Some(stray) = entered
            .keys()
            .find(|name| !fields.iter().any(|field| field.name == **name))
        {
            return Err(unfit(stray, FieldError::Unknown));
        }
        let mut values = Self::default();
        for field in fields {
            let entered = entered.get(&field.name).map_or("", Secret::expose);
            values.set(
                field,
                check(field, entered).map_err(|fault| unfit(&field.name, fault))?,
            );
        }
        Ok(values)
    }

    /// Sets or leaves out one checked value.
    pub fn set(&mut self, field: &UserField, value: Option<Secret>) {
        match value {
            Some(value) => drop(self.0.insert(field.name.clone(), value)),
            None => drop(self.0.remove(&field.name)),
        }
    }

    /// For sealing: a JSON object.
    pub fn to_sealable(&self) -> Secret {
        let map: BTreeMap<_, _> = self
            .0
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect();
        Secret::new(serde_json::to_string(&map).expect("a map of texts is JSON"))
    }

    /// Back from [`Values::to_sealable`].
    pub fn from_sealable(text: &Secret) -> Result<Self, serde_json::Error> {
        let map: BTreeMap<String, String> = serde_json::from_str(text.expose())?;
        Ok(Self(
            map.into_iter()
                .map(|(name, value)| (name, Secret::new(value)))
                .collect(),
        ))
    }

    /// The values with false secrets of the same shape, to see whether a server tells them from the right ones. The name
    /// of an account that is one credential with a secret is false, too, so that no account is tried with a false secret.
    /// `None` where there is no secret to replace, or where a name goes beside the secret and might be an account's.
    pub fn falsify(&self, fields: &[UserField]) -> Option<Self> {
        let is_secret = |name: &str| {
            let named = fields.iter().find(|field| field.name == name);
            named.is_some_and(|field| field.kind == FieldKind::Secret)
        };
        let with_secret = |name: &str| {
            fields.iter().any(|field| {
                let named = references(field);
                named.iter().any(|other| other == name)
                    && named.iter().any(|other| is_secret(other))
            })
        };
        let mut falsified = self.clone();
        let mut has_secret = false;
        for field in fields {
            let Some(value) = falsified.0.get_mut(&field.name) else {
                continue;
            };
            match field.kind {
                FieldKind::Secret => {
                    *value = falsify(value);
                    has_secret = true;
                }
                FieldKind::Text if with_secret(&field.name) => *value = falsify(value),
                FieldKind::Text => return None,
                FieldKind::Url | FieldKind::Boolean | FieldKind::Select => {}
            }
        }
        has_secret.then_some(falsified)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(Secret::expose)
    }
}

/// The fields that the header of a field is made of.
fn references(field: &UserField) -> Vec<String> {
    let Some(header) = &field.header else {
        return Vec::new();
    };
    let template = Template::parse_user(&header.template, &field.name);
    let references = template.iter().flat_map(Template::references);
    references.map(|reference| reference.key.clone()).collect()
}

/// Characters at the beginning that say what kind of secret it is, such as `ghp_`.
const MARK: usize = 12;

/// Random bits of a false secret. With fewer, the false secret of a short one could be somebody's.
const RANDOM_BITS: f64 = 64.0;

/// Another secret that looks like this one: digits for digits, letters for letters, and the same mark before the first
/// `_` or `-`. A secret that leaves too little to chance becomes 32 random hex digits behind its mark.
fn falsify(secret: &Secret) -> Secret {
    let text = secret.expose();
    let mark = text.find(['_', '-']).filter(|at| *at < MARK);
    let (kept, rest) = text.split_at(mark.map_or(0, |at| at + 1));
    let is_hex = rest.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let letters = if is_hex { 6 } else { 26 };
    let choices = |char: char| match char {
        '0'..='9' => 10,
        'a'..='z' | 'A'..='Z' => letters,
        _ => 1,
    };
    let bits: f64 = rest
        .chars()
        .map(|char| f64::from(choices(char)).log2())
        .sum();
    if bits < RANDOM_BITS {
        let random = hex::encode(rand::random::<[u8; 16]>());
        return Secret::new(format!("{kept}{random}"));
    }
    let other = |char: char| {
        let first = match char {
            '0'..='9' => b'0',
            'a'..='z' => b'a',
            'A'..='Z' => b'A',
            other => return other,
        };
        char::from(first + rand::random_range(0..choices(char)))
    };
    let text: String = rest.chars().map(other).collect();
    Secret::new(format!("{kept}{text}"))
}

/// Checks one value. `Ok(None)` when an optional field was left empty. Blanks and line breaks at both ends are dropped:
/// they come from copying, and no header carries them.
pub fn check(field: &UserField, entered: &str) -> Result<Option<Secret>, FieldError> {
    let value = entered.trim_matches([' ', '\t', '\r', '\n']);
    if value.contains(['\r', '\n', '\0']) {
        return Err(FieldError::LineBreak);
    }
    if value.len() > MAX_VALUE {
        return Err(FieldError::TooLong);
    }
    if value.is_empty() {
        return if field.required {
            Err(FieldError::Missing)
        } else {
            Ok(None)
        };
    }
    match field.kind {
        FieldKind::Url => {
            let url = Url::parse(value).map_err(|_| FieldError::NotAnAddress)?;
            if !matches!(url.scheme(), "https" | "http") || !url.has_host() {
                return Err(FieldError::NotAnAddress);
            }
        }
        FieldKind::Boolean if !matches!(value, "true" | "false") => {
            return Err(FieldError::NotABoolean);
        }
        FieldKind::Select if !field.options.iter().any(|option| option.value == value) => {
            return Err(FieldError::NotAnOption);
        }
        FieldKind::Text | FieldKind::Secret | FieldKind::Boolean | FieldKind::Select => {}
    }
    Ok(Some(Secret::new(value)))
}

/// The server as this user reaches it. Headers, query parameters and variables are filled with the user's
/// values, which replace the pack's. A target without a value is left out.
pub fn effective(spec: &ServerSpec, values: &Values) -> Result<ServerSpec, InvalidField> {
    let mut spec = spec.clone();
    let fields = std::mem::take(&mut spec.user_config);
    spec.has_user_values = true;
    let secrets: Vec<&str> = fields
        .iter()
        .filter(|field| field.kind == FieldKind::Secret)
        .map(|field| field.name.as_str())
        .collect();
    spec.entered = secrets
        .iter()
        .filter_map(|name| values.0.get(*name).cloned())
        .collect();
    for field in &fields {
        match &mut spec.endpoint {
            Endpoint::Remote { url, headers, .. } => {
                if let Some(made) = header(field, values)? {
                    headers.retain(|(other, _)| !other.eq_ignore_ascii_case(&made.name));
                    if made
                        .template
                        .references()
                        .any(|reference| secrets.contains(&reference.key.as_str()))
                    {
                        spec.entered.extend(encoded(&made.value));
                    }
                    headers.push((made.name, made.value));
                }
                if let (Some(name), Some(value)) = (&field.query_name, values.get(&field.name)) {
                    *url = with_parameter(url, name, value);
                }
            }
            Endpoint::Stdio { env, .. } => {
                if let (Some(name), Some(value)) = (&field.env_name, values.0.get(&field.name)) {
                    env.insert(name.clone(), value.clone());
                }
            }
        }
    }
    spec.user_config = fields;
    Ok(spec)
}

/// A header that holds the user's values.
struct RenderedHeader {
    name: String,
    value: Secret,
    template: Template,
}

/// The header that a field fills. `None` when the field fills no header, or when one of its values is absent.
fn header(field: &UserField, values: &Values) -> Result<Option<RenderedHeader>, InvalidField> {
    let Some(header) = &field.header else {
        return Ok(None);
    };
    let template = Template::parse_user(&header.template, &field.name)
        .expect("checked when the pack was loaded");
    let Ok(text) = template.resolve(|reference| values.get(&reference.key)) else {
        return Ok(None);
    };
    if !text
        .bytes()
        .all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
    {
        return Err(InvalidField {
            field: field.name.clone(),
            fault: FieldError::NotForHeaders,
        });
    }
    Ok(Some(RenderedHeader {
        name: header.name.clone(),
        value: Secret::new(text),
        template,
    }))
}

/// The last word of a header's value (`Basic …`): a secret as it was entered, or encoded together with others.
fn encoded(value: &Secret) -> Option<Secret> {
    value
        .expose()
        .rsplit(' ')
        .next()
        .filter(|word| !word.is_empty())
        .map(Secret::new)
}

/// The address with this parameter, in place of one of the same name.
fn with_parameter(url: &Url, name: &str, value: &str) -> Url {
    let others: Vec<(String, String)> = url
        .query_pairs()
        .filter(|(other, _)| other != name)
        .map(|(k, v)| (k.into_owned(), v.into_owned()))
        .collect();
    let mut url = url.clone();
    url.query_pairs_mut()
        .clear()
        .extend_pairs(others)
        .append_pair(name, value);
    url
}
