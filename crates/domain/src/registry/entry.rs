//! A definition that can be used. It is checked once, when it is read: every template of an [`Entry`] parses,
//! every key can be a header, and every value has its type.

mod checks;
mod grants;

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use self::checks::{MAX_NAME, MAX_TEXT, address, auth, keys, readable, scope_keys};
pub use self::{
    checks::{granted, internal},
    grants::{Grants, Rules, not_granted},
};
use super::{
    EntryId,
    config::ConfigValue,
    definition::{CLIENT_SECRET, Definition, SensitiveValues, path},
};
use crate::{
    scrub::MASK,
    template::{Source, Template},
};

/// Bytes of a whole definition as JSON.
const MAX_DEFINITION: usize = 65_536;

/// The sources that defaults may refer to. Parameters belong to an agent, so only an agent's values may refer
/// to them.
pub const DEFAULTS: &[Source] = &[Source::Env, Source::Scope, Source::Runtime, Source::Runner];
/// What a capability may refer to.
pub const CAPABILITIES: &[Source] = DEFAULTS;
/// What an agent may refer to, and an address.
pub const AGENTS: &[Source] = &[
    Source::Env,
    Source::Params,
    Source::Scope,
    Source::Runtime,
    Source::Runner,
];

#[derive(Clone, PartialEq)]
pub struct Entry {
    pub id: EntryId,
    /// As it was written, with its secrets.
    pub definition: Definition,
    pub url: Template,
    pub defaults: BTreeMap<String, ConfigValue>,
    pub auth: Option<ClientCredentialsConfig>,
}

/// How to get tokens, before values are filled in.
#[derive(Clone, PartialEq)]
pub struct ClientCredentialsConfig {
    pub token_url: Template,
    pub client_id: ConfigValue,
    pub client_secret: ConfigValue,
    pub scope: Option<String>,
}

/// A field that cannot be used, and why. Never holds a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidDefinition {
    pub field: String,
    pub reason: String,
}

impl InvalidDefinition {
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.id)
    }
}

/// The host of an address as it is written; `None` when a value fills it in.
pub fn host_of(address: &str) -> Option<String> {
    let (_, rest) = address.split_once("://")?;
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    if authority.contains(['$', '{', '@']) {
        return None;
    }
    let url = url::Url::parse(&format!("https://{authority}")).ok()?;
    Some(url.host_str()?.trim_end_matches('.').to_ascii_lowercase())
}

impl Entry {
    /// Checks a definition; the error names the first field that cannot be used.
    pub fn parse(mut definition: Definition, rules: Rules) -> Result<Self, InvalidDefinition> {
        let id = EntryId::parse(&definition.id)
            .map_err(|reason| InvalidDefinition::new("id", reason))?;
        if definition.name.trim().is_empty() {
            definition.name.clone_from(&definition.id);
        }
        readable("name", &definition.name, MAX_NAME)?;
        readable("description", &definition.description, MAX_TEXT)?;
        let host = host_of(&definition.url);
        let of_url = rules.to(host.as_deref());
        let url = address("url", &definition.url, AGENTS, of_url)?;
        keys(&definition)?;
        scope_keys(&definition)?;
        if serde_json::to_string(&definition).map_or(0, |text| text.len()) > MAX_DEFINITION {
            return Err(InvalidDefinition::new(
                "body",
                format!("is longer than {MAX_DEFINITION} bytes"),
            ));
        }
        let mut defaults = BTreeMap::new();
        for (key, written) in &definition.default_config {
            let fault = |reason: String| InvalidDefinition::new(path(key), reason);
            let Some(schema) = definition.config_schema.get(key) else {
                return Err(fault(
                    "is not a key of `config_schema`; add it there".to_owned(),
                ));
            };
            let value = ConfigValue::parse(written, DEFAULTS).map_err(fault)?;
            value.fits(schema.kind).map_err(fault)?;
            value.can_be_sent(schema.kind).map_err(fault)?;
            if schema.internal {
                internal(&value).map_err(fault)?;
            }
            granted(&value.references(), of_url).map_err(fault)?;
            defaults.insert(key.clone(), value);
        }
        let auth = auth(&definition, rules)?;
        Ok(Self {
            id,
            definition,
            url,
            defaults,
            auth,
        })
    }

    /// The literals that are never shown: they are kept sealed.
    pub fn sealable(&self) -> SensitiveValues {
        let hidden = self.defaults.iter().filter(|(key, value)| {
            self.definition
                .config_schema
                .get(*key)
                .is_some_and(|schema| schema.sensitive)
                && !value.only_refers()
        });
        let mut sealable: BTreeMap<_, _> = hidden
            .map(|(key, value)| (path(key), value.written().clone()))
            .collect();
        if let Some(auth) = self
            .auth
            .as_ref()
            .filter(|auth| !auth.client_secret.only_refers())
        {
            sealable.insert(
                CLIENT_SECRET.to_owned(),
                auth.client_secret.written().clone(),
            );
        }
        SensitiveValues(sealable)
    }

    /// The definition without what is sealed.
    pub fn without_secrets(&self) -> Definition {
        let mut open = self.definition.clone();
        for path in self.sealable().0.keys() {
            match (path.strip_prefix("default_config."), &mut open.auth) {
                (Some(key), _) => drop(open.default_config.remove(key)),
                (None, Some(auth)) => auth.client_secret = Value::Null,
                (None, None) => {}
            }
        }
        open
    }

    /// The definition as people see it.
    pub fn masked(&self) -> Definition {
        let mask = |(path, _): (&String, &Value)| (path.clone(), Value::String(MASK.to_owned()));
        self.without_secrets().with(SensitiveValues(
            self.sealable().0.iter().map(mask).collect(),
        ))
    }

    /// The secrets of the tenant that it names.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let auth = self
            .auth
            .iter()
            .flat_map(|auth| [&auth.client_id, &auth.client_secret]);
        self.defaults
            .values()
            .chain(auth)
            .filter_map(ConfigValue::secret)
            .map(super::SecretName::as_str)
    }
}
