//! The checks of the parts of an entry: its keys, its address, its sign-in and its names.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ClientCredentialsConfig, InvalidDefinition, Rules, host_of, not_granted};
use crate::{
    header,
    registry::{
        config::{ConfigValue, Kind},
        definition::Definition,
    },
    template::{Reference, Source, Template, address::AddressError},
};

pub(super) const MAX_NAME: usize = 200;

pub(super) const MAX_TEXT: usize = 4000;

const MAX_URL: usize = 2048;

const MAX_KEYS: usize = 64;

const MAX_KEY: usize = 64;

pub(super) fn keys(definition: &Definition) -> Result<(), InvalidDefinition> {
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

pub(super) fn scope_keys(definition: &Definition) -> Result<(), InvalidDefinition> {
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

pub(super) fn auth(
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
pub(super) fn address(
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

/// Refuses the first variable that the rules do not allow.
pub fn granted(references: &[Reference], rules: Rules) -> Result<(), String> {
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

pub(super) fn readable(field: &str, text: &str, most: usize) -> Result<(), InvalidDefinition> {
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
