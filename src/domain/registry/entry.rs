//! A definition that can be used. It is checked once, when it is read: every template of an [`Entry`] parses,
//! every key can be a header, and every value has its type.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use super::{
    EntryId,
    config::{ConfigValue, Kind},
    definition::{CLIENT_SECRET, Definition, SensitiveValues, path},
};
use crate::domain::{
    config::{Environment, OWN_SECRETS, is_own},
    header,
    policy::ToolPattern,
    scrub::MASK,
    template::{Reference, Source, Template, address::AddressError},
};

const MAX_NAME: usize = 200;
const MAX_TEXT: usize = 4000;
const MAX_URL: usize = 2048;
const MAX_KEYS: usize = 64;
const MAX_KEY: usize = 64;
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

/// The variables of the environment that the operator lets the registry use, each with the host that it may be sent
/// to. Names may hold `*`; the host `*` is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(Vec<(ToolPattern, String)>);

/// The owner of an entry, which decides the variables that it may refer to.
#[derive(Clone, Copy)]
pub enum Rules<'a> {
    /// The operator's own, from a file.
    Operator,
    /// A tenant's: the variables that were granted, and no others.
    Tenant {
        grants: &'a Grants,
        /// Where the values are sent; `None`: not known.
        host: Option<&'a str>,
    },
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

impl Grants {
    /// Of `NAME@host`; what names no host grants nothing.
    pub fn new(grants: &[String]) -> Self {
        let grants = grants.iter().filter_map(|grant| grant.split_once('@'));
        Self(
            grants
                .map(|(name, host)| (ToolPattern(name.to_owned()), host.to_ascii_lowercase()))
                .collect(),
        )
    }

    fn cover(&self, variable: &str, to: Option<&str>) -> bool {
        !is_own(variable)
            && self.0.iter().any(|(name, host)| {
                name.matches(variable) && (host == "*" || to.is_some_and(|to| to == host))
            })
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

impl<'a> Rules<'a> {
    pub fn of_tenant(grants: &'a Grants) -> Self {
        Self::Tenant { grants, host: None }
    }

    /// The same for values that are sent to this host.
    #[must_use]
    pub fn to(self, host: Option<&'a str>) -> Self {
        match self {
            Self::Operator => Self::Operator,
            Self::Tenant { grants, .. } => Self::Tenant { grants, host },
        }
    }

    pub fn is_tenants(self) -> bool {
        matches!(self, Self::Tenant { .. })
    }

    pub fn allow(self, variable: &str) -> bool {
        match self {
            Self::Operator => !OWN_SECRETS.contains(&variable),
            Self::Tenant { grants, host } => grants.cover(variable, host),
        }
    }

    /// The value of a variable, if it may be used.
    pub fn variable<'e>(self, env: &'e Environment, name: &str) -> Option<&'e str> {
        env.get(name).filter(|_| self.allow(name))
    }
}

/// What is said of a variable that was not granted.
pub fn not_granted(variable: &str) -> String {
    format!(
        "the variable {variable} is not granted to the registry for this host; ask the operator to add `{variable}@host` \
         to CHATELAINE_REGISTRY_ENV"
    )
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

fn keys(definition: &Definition) -> Result<(), InvalidDefinition> {
    if definition.config_schema.len() > MAX_KEYS {
        return Err(InvalidDefinition::new(
            "config_schema",
            format!("has more than {MAX_KEYS} keys"),
        ));
    }
    let mut headers: BTreeMap<String, &str> = BTreeMap::new();
    if definition.auth.is_some() {
        headers.insert("authorization".to_owned(), "auth");
    }
    for (key, schema) in &definition.config_schema {
        let fault = |reason: String| InvalidDefinition::new(format!("config_schema.{key}"), reason);
        usable(key).map_err(fault)?;
        readable(
            &format!("config_schema.{key}.description"),
            &schema.description,
            MAX_TEXT,
        )?;
        let header = schema.header.clone().unwrap_or_else(|| header::of_key(key));
        header::check_name(&header).map_err(fault)?;
        if let Some(other) = headers.insert(header.to_ascii_lowercase(), key) {
            return Err(fault(format!(
                "becomes the header {header}, which {other} fills already"
            )));
        }
    }
    Ok(())
}

fn usable(key: &str) -> Result<(), String> {
    let rest = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if key.len() <= MAX_KEY
        && key.starts_with(|c: char| c.is_ascii_alphanumeric())
        && key.bytes().all(rest)
    {
        return Ok(());
    }
    let wanted = "use 1 to 64 letters, digits, `_` or `-`, starting with a letter or digit";
    Err(format!("is not a usable key; {wanted}"))
}

fn scope_keys(definition: &Definition) -> Result<(), InvalidDefinition> {
    if definition.scope_schema.len() > MAX_KEYS {
        return Err(InvalidDefinition::new(
            "scope_schema",
            format!("has more than {MAX_KEYS} keys"),
        ));
    }
    for (key, schema) in &definition.scope_schema {
        usable(key)
            .map_err(|reason| InvalidDefinition::new(format!("scope_schema.{key}"), reason))?;
        readable(
            &format!("scope_schema.{key}.description"),
            &schema.description,
            MAX_TEXT,
        )?;
    }
    Ok(())
}

fn auth(
    definition: &Definition,
    rules: Rules,
) -> Result<Option<ClientCredentialsConfig>, InvalidDefinition> {
    let Some(auth) = &definition.auth else {
        return Ok(None);
    };
    let host = host_of(&auth.token_url);
    let rules = rules.to(host.as_deref());
    let value = |name: &str, written: &Value| {
        let fault = |reason: String| InvalidDefinition::new(format!("auth.{name}"), reason);
        let value = ConfigValue::parse(written, &[Source::Env]).map_err(fault)?;
        value.fits(Kind::String).map_err(fault)?;
        granted(&value.references(), rules).map_err(fault)?;
        Ok(value)
    };
    Ok(Some(ClientCredentialsConfig {
        token_url: address("auth.token_url", &auth.token_url, &[Source::Env], rules)?,
        client_id: value("client_id", &auth.client_id)?,
        client_secret: value("client_secret", &auth.client_secret)?,
        scope: auth.scope.clone(),
    }))
}

/// Checks an address as far as possible without values.
fn address(
    field: &str,
    text: &str,
    sources: &[Source],
    rules: Rules,
) -> Result<Template, InvalidDefinition> {
    let fault = |reason: String| InvalidDefinition::new(field, reason);
    if text.len() > MAX_URL {
        return Err(fault(format!("is longer than {MAX_URL} characters")));
    }
    let template =
        Template::parse_sourced(text, sources).map_err(|error| fault(error.to_string()))?;
    let references: Vec<_> = template.references().cloned().collect();
    granted(&references, rules).map_err(fault)?;
    match template.example_address(|_| None) {
        Ok(_) => Ok(template),
        Err(error @ AddressError::Scheme) => Err(fault(format!(
            "{error}; a server of the registry is reached over HTTP"
        ))),
        Err(error) => Err(fault(error.to_string())),
    }
}

fn granted(references: &[Reference], rules: Rules) -> Result<(), String> {
    let refused =
        |reference: &&Reference| reference.source == Source::Env && !rules.allow(&reference.key);
    references
        .iter()
        .find(refused)
        .map_or(Ok(()), |reference| Err(not_granted(&reference.key)))
}

/// A key that the program fills in can be set only to a reference to the value that the program gives it.
pub fn internal(value: &ConfigValue) -> Result<(), String> {
    let references = value.references();
    let framework = value.only_refers()
        && references
            .iter()
            .all(|reference| reference.source == Source::Runtime);
    if framework && !references.is_empty() {
        return Ok(());
    }
    Err("is internal: the program fills it in; leave it out, or write `${runtime.run_id}` or `${runtime.session_id}`"
        .to_owned())
}

fn readable(field: &str, text: &str, most: usize) -> Result<(), InvalidDefinition> {
    if text.chars().count() > most {
        return Err(InvalidDefinition::new(
            field,
            format!("must have at most {most} characters"),
        ));
    }
    if text.contains(|c: char| c.is_control() && c != '\n' && c != '\t') {
        return Err(InvalidDefinition::new(
            field,
            "must not contain control characters",
        ));
    }
    Ok(())
}
