//! An entry of the registry as the document writes it: what the API takes and gives, what a file in a pack's
//! folder holds, and, without what is secret, what a row holds.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};
use serde_json::Value;

use super::{
    config::{KeySchema, Kind},
    entry::{Entry, InvalidDefinition},
};
use crate::{scrub::MASK, secret::Secret};

/// What the registry knows of a server.
// Values may be secret: no `Debug`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// 2 to 60 lower-case letters, digits, `_` or `-`, starting with a letter. It never changes.
    #[serde(default)]
    pub id: String,
    /// Absent: the id.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// Where the server is; may hold placeholders such as `${env.NAME}` and, in path and query, `${scope.name}`.
    pub url: String,
    /// The keys that the server takes.
    #[serde(default)]
    pub config_schema: BTreeMap<String, KeySchema>,
    /// Values of keys, unless a capability or an agent sets others. A sensitive one reads as `••••`; one that is
    /// left out or sent back like that stays as it is, and `null` takes it away.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub default_config: BTreeMap<String, Value>,
    /// The keys of a run's scope that the server is about, for whoever starts runs. A scope is not checked against it:
    /// what the server cannot do without is a `required` key of `config_schema`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scope_schema: BTreeMap<String, ScopeKey>,
    /// How the program gets a token for the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// A reading of an entry has it, and may be sent back whole. The program sets it itself.
    #[serde(
        default,
        rename = "updated_at",
        deserialize_with = "ignore",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = OffsetDateTime))]
    sent_back: Option<()>,
}

/// Takes any value, and keeps nothing of it.
fn ignore<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<()>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| None)
}

/// A key that a run's scope may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScopeKey {
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4).
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Auth {
    #[serde(rename = "type")]
    pub kind: AuthKind,
    pub token_url: String,
    /// Text, or `{"$secret": "name"}`.
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub client_id: Value,
    /// The same; text reads as `••••`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub client_secret: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum AuthKind {
    #[serde(rename = "oauth2_client_credentials")]
    ClientCredentials,
}

/// The values of a definition that are kept sealed, by their paths.
#[derive(Clone, Default, PartialEq)]
pub struct SensitiveValues(pub(super) BTreeMap<String, Value>);

impl SensitiveValues {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// For sealing: a JSON object.
    pub fn to_text(&self) -> Secret {
        Secret::new(serde_json::to_string(&self.0).expect("a map of JSON is JSON"))
    }

    /// Back from [`SensitiveValues::to_text`].
    pub fn from_text(text: &Secret) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text.expose()).map(Self)
    }
}

pub(super) const CLIENT_SECRET: &str = "auth.client_secret";

pub(super) fn path(key: &str) -> String {
    format!("default_config.{key}")
}

impl Definition {
    /// Puts sealed values back in their places.
    #[must_use]
    pub fn with(mut self, sealed: SensitiveValues) -> Self {
        for (path, value) in sealed.0 {
            if path == CLIENT_SECRET {
                self.auth
                    .iter_mut()
                    .for_each(|auth| auth.client_secret = value.clone());
            } else if let Some(key) = path.strip_prefix("default_config.") {
                self.default_config.insert(key.to_owned(), value);
            }
        }
        self
    }

    /// A new definition that replaces an old one. Sensitive values that are left out, or sent back masked,
    /// are taken from the old one. They are not taken over when the server moves to another host, or when
    /// they are no longer sensitive.
    pub fn keep_sensitive(mut self, old: Option<&Entry>) -> Result<Self, InvalidDefinition> {
        let kept = old.map(Entry::sealable).unwrap_or_default();
        for (path, value) in kept.0 {
            let found = if path == CLIENT_SECRET {
                self.secret_slot(old)
            } else {
                self.key_slot(&path, old)?
            };
            let Some((moved, slot)) = found else { continue };
            if !(slot.is_null() || is_mask(slot)) {
                continue;
            }
            if moved {
                let reason =
                    "is not taken along to another host; enter its value again, or `null` for none";
                return Err(InvalidDefinition::new(path, reason));
            }
            *slot = value;
        }
        self.default_config.retain(|_, value| !value.is_null());
        match self.first_mask() {
            Some(path) => Err(InvalidDefinition::new(
                path,
                format!("`{MASK}` stands for a value that is there; enter one"),
            )),
            None => Ok(self),
        }
    }

    /// The place of the client's secret, and whether it would go to another host than before.
    fn secret_slot(&mut self, old: Option<&Entry>) -> Option<(bool, &mut Value)> {
        let auth = self.auth.as_mut()?;
        let before = old
            .and_then(|old| old.definition.auth.as_ref())
            .map(|auth| authority(&auth.token_url));
        let moved = before != Some(authority(&auth.token_url));
        Some((moved, &mut auth.client_secret))
    }

    /// The place of a sensitive key that is masked or left out, and whether it would go to another host.
    fn key_slot(
        &mut self,
        path: &str,
        old: Option<&Entry>,
    ) -> Result<Option<(bool, &mut Value)>, InvalidDefinition> {
        let key = path.trim_start_matches("default_config.");
        let masked = self.default_config.get(key).is_some_and(is_mask);
        let left_out = !self.default_config.contains_key(key);
        let sensitive = self
            .config_schema
            .get(key)
            .is_some_and(|schema| schema.sensitive);
        if !sensitive && masked {
            return Err(InvalidDefinition::new(
                path,
                "is not sensitive any more; enter its value again",
            ));
        }
        if !sensitive || !(masked || left_out) {
            return Ok(None);
        }
        let moved = old.is_some_and(|old| authority(&old.definition.url) != authority(&self.url));
        let slot = self.default_config.entry(key.to_owned());
        Ok(Some((moved, slot.or_insert(Value::Null))))
    }

    /// The path of a value that is still a mask.
    fn first_mask(&self) -> Option<String> {
        let key = self.default_config.iter().find(|(_, value)| is_mask(value));
        key.map(|(key, _)| path(key)).or_else(|| {
            let auth = self.auth.as_ref()?;
            is_mask(&auth.client_secret).then(|| CLIENT_SECRET.to_owned())
        })
    }
}

fn is_mask(value: &Value) -> bool {
    value.as_str() == Some(MASK)
}

/// Scheme, host and port as they are written.
fn authority(url: &str) -> String {
    let (scheme, rest) = url.trim().split_once("://").unwrap_or(("", url));
    format!(
        "{scheme}://{}",
        rest.split(['/', '?', '#']).next().unwrap_or_default()
    )
    .to_ascii_lowercase()
}
