//! Fills in values: an entry, a pack's reference to it and the values of a run make a server that the program
//! can connect to. A missing required value is an error that names it.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{
    Entry, EntryId, Origin, Rules, SecretName, ServerRef,
    config::{ConfigValue, Kind, MAX_VALUE, UNCARRIED, Unresolved},
    entry::{host_of, not_granted},
    merge::{MergedKey, depends_on_run, merge},
};
use crate::domain::{
    config::Environment,
    error::{Error, Reason},
    header,
    ids::ServerId,
    oauth::ClientProof,
    secret::Secret,
    server::{
        AccessMode, CatalogScope, ClientCredentials, Endpoint, Remote, ServerAuth, ServerSpec,
        TokenIssuer,
    },
    template::{OnMissing, Reference, Resolved, Source, address::AddressError},
};

/// What a run was started with and what is known of it. Empty outside of runs.
#[derive(Clone, Default)]
pub struct ReferenceValues(BTreeMap<Reference, Secret>);

impl ReferenceValues {
    /// Visible to the model.
    #[must_use]
    pub fn params(self, params: &Map<String, Value>) -> Self {
        self.all(Source::Params, params)
    }

    /// Invisible to it.
    #[must_use]
    pub fn scope(self, scope: &Map<String, Value>) -> Self {
        self.all(Source::Scope, scope)
    }

    #[must_use]
    pub fn runtime(self, session_id: &str, run_id: &str) -> Self {
        self.with(Source::Runtime, "session_id", session_id)
            .with(Source::Runtime, "run_id", run_id)
    }

    #[must_use]
    pub fn runner(self, orchestrator_mcp_url: &str) -> Self {
        self.with(Source::Runner, "orchestrator_mcp_url", orchestrator_mcp_url)
    }

    /// Strings as they are, any other value as JSON. `null` sets nothing.
    fn all(self, source: Source, values: &Map<String, Value>) -> Self {
        values.iter().fold(self, |known, (key, value)| match value {
            Value::Null => known,
            Value::String(text) => known.with(source, key, text),
            other => known.with(source, key, &other.to_string()),
        })
    }

    fn with(mut self, source: Source, key: &str, value: &str) -> Self {
        self.0.insert(
            Reference {
                source,
                key: key.to_owned(),
            },
            Secret::new(value),
        );
        self
    }
}

/// Where values come from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub env: &'a Environment,
    /// Which variables may be used.
    pub rules: Rules<'a>,
    /// The tenant's own.
    pub secrets: &'a BTreeMap<String, Secret>,
    pub run: &'a ReferenceValues,
}

impl<'a> Sources<'a> {
    /// The same for values that are sent to this host.
    fn to(self, host: Option<&'a str>) -> Self {
        Self {
            rules: self.rules.to(host),
            ..self
        }
    }

    fn get(&self, reference: &Reference) -> Option<&'a str> {
        match reference.source {
            Source::Env => self.rules.variable(self.env, &reference.key),
            _ => self.run.0.get(reference).map(Secret::expose),
        }
    }

    fn secret(&self, name: &SecretName) -> Option<&'a Secret> {
        self.secrets.get(name.as_str())
    }

    /// The variable that is used although the operator did not grant it.
    fn refused(&self, references: &[Reference]) -> Option<String> {
        let refused = |reference: &&Reference| {
            reference.source == Source::Env && !self.rules.allow(&reference.key)
        };
        references
            .iter()
            .find(refused)
            .map(|reference| not_granted(&reference.key))
    }
}

/// A server with everything filled in: what the document calls `resolved_mcp_servers.<alias>`.
#[derive(Clone)]
pub struct ResolvedServer {
    pub alias: ServerId,
    pub entry: EntryId,
    /// The final keys, in order.
    pub config: Vec<ResolvedKey>,
    /// What is connected to.
    pub spec: Arc<ServerSpec>,
    /// The server depends on the run, so its connection is not shared.
    pub per_run: bool,
}

#[derive(Clone)]
pub struct ResolvedKey {
    pub key: String,
    pub value: Secret,
    pub sensitive: bool,
    pub origin: Origin,
}

/// Why the server cannot be resolved. Never holds a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("Failed to resolve MCP server '{alias}' (ref: {entry}): Not found in registry")]
    UnknownEntry { alias: ServerId, entry: EntryId },
    #[error("Missing required value: {what} for config key '{key}'")]
    Missing {
        alias: ServerId,
        what: String,
        key: String,
    },
    #[error("config key '{key}' of MCP server '{alias}': {reason}")]
    Key {
        alias: ServerId,
        key: String,
        reason: String,
    },
    #[error("{field} of MCP server '{alias}': {reason}")]
    Field {
        alias: ServerId,
        field: &'static str,
        reason: String,
    },
}

impl From<ResolveError> for Error {
    fn from(error: ResolveError) -> Self {
        let field = match &error {
            ResolveError::UnknownEntry { alias, .. } => format!("mcpServers.{alias}.ref"),
            ResolveError::Missing { what, .. } => what.clone(),
            ResolveError::Key { alias, key, .. } => format!("mcpServers.{alias}.config.{key}"),
            ResolveError::Field { alias, field, .. } => format!("mcpServers.{alias}.{field}"),
        };
        let text = error.to_string();
        let reason = match error {
            ResolveError::UnknownEntry { .. } | ResolveError::Missing { .. } => {
                Reason::Sentence(text)
            }
            ResolveError::Key { .. } | ResolveError::Field { .. } => Reason::Clause(text),
        };
        Self::invalid(field, reason)
    }
}

/// Resolves one reference.
pub fn resolve(
    entry: &Entry,
    reference: &ServerRef,
    sources: Sources,
) -> Result<ResolvedServer, ResolveError> {
    let host = host_of(&entry.definition.url);
    let sources = sources.to(host.as_deref());
    let alias = || reference.alias.clone();
    let key_error = |key: &str, reason: String| ResolveError::Key {
        alias: alias(),
        key: key.to_owned(),
        reason,
    };
    let merged = merge(entry, reference).map_err(|fault| key_error(&fault.field, fault.reason))?;
    let mut config = Vec::new();
    for (key, merged) in &merged {
        if let Some((resolved, origin)) = key_of(entry, reference, key, merged, sources)? {
            let value = resolved.text;
            config.push(ResolvedKey {
                key: key.clone(),
                value,
                sensitive: resolved.sensitive,
                origin,
            });
        }
    }
    let field = |field| {
        move |reason: String| ResolveError::Field {
            alias: alias(),
            field,
            reason,
        }
    };
    let references: Vec<_> = entry.url.references().cloned().collect();
    if let Some(reason) = sources.refused(&references) {
        return Err(field("url")(reason));
    }
    let url = entry
        .url
        .address(|reference| sources.get(reference))
        .map_err(|error| match &error {
            AddressError::Missing(missing) => ResolveError::Missing {
                alias: alias(),
                what: missing.0.first().map(Reference::dotted).unwrap_or_default(),
                key: "url".to_owned(),
            },
            _ => field("url")(error.to_string()),
        })?;
    let auth = auth(entry, sources).map_err(field("auth"))?;
    let headers = config
        .iter()
        .map(|resolved| (header_of(entry, &resolved.key), resolved.value.clone()))
        .collect();
    let endpoint = Endpoint::Remote {
        transport: Remote::StreamableHttp,
        url,
        headers,
    };
    let per_run = depends_on_run(entry, &merged);
    let entered = config
        .iter()
        .filter(|key| key.sensitive)
        .map(|key| key.value.clone());
    let entered = entered
        .chain(auth.iter().map(|auth| auth.secret().clone()))
        .collect();
    let run_config = per_run.then(|| digest_of(&endpoint, auth.as_ref()));
    let spec = ServerSpec {
        id: alias(),
        endpoint,
        access_mode: AccessMode::AdminControlled,
        tool_access: reference.tool_access.clone(),
        tools: reference.tools.clone(),
        required: reference.required && !per_run,
        timeouts: reference.timeouts,
        user_config: Vec::new(),
        catalog: CatalogScope::Shared,
        entered,
        auth: auth.map(ServerAuth::Client),
        oauth: None,
        run_config,
        of_tenant: sources.rules.is_tenants(),
        load_tools: true,
        load_prompts: true,
        terminate_on_close: true,
    };
    Ok(ResolvedServer {
        alias: alias(),
        entry: entry.id.clone(),
        config,
        spec: Arc::new(spec),
        per_run,
    })
}

/// A required value that no run can bring: a variable, a secret, or a value that a later level removed. For a
/// server that depends on the run, and so cannot be resolved outside of one.
pub fn find_missing(
    entry: &Entry,
    reference: &ServerRef,
    sources: Sources,
) -> Option<ResolveError> {
    let merged = merge(entry, reference).ok()?;
    let host = host_of(&entry.definition.url);
    let sources = sources.to(host.as_deref());
    for (key, merged) in &merged {
        let of_run =
            |value: &ConfigValue| value.references().iter().any(|it| it.source.is_of_run());
        if merged.value.as_ref().is_some_and(of_run) {
            continue;
        }
        if let Err(error) = key_of(entry, reference, key, merged, sources) {
            return Some(error);
        }
    }
    let reason = auth(entry, sources).err()?;
    Some(ResolveError::Field {
        alias: reference.alias.clone(),
        field: "auth",
        reason,
    })
}

/// The header that carries a key.
pub fn header_of(entry: &Entry, key: &str) -> String {
    let said = entry
        .definition
        .config_schema
        .get(key)
        .and_then(|schema| schema.header.clone());
    said.unwrap_or_else(|| header::of_key(key))
}

/// A key's text; `None` when it is left out.
fn key_of(
    entry: &Entry,
    reference: &ServerRef,
    key: &str,
    merged: &MergedKey,
    sources: Sources,
) -> Result<Option<(Resolved, Origin)>, ResolveError> {
    let alias = reference.alias.clone();
    let schema = &entry.definition.config_schema[key];
    let missing = |what: String| ResolveError::Missing {
        alias: alias.clone(),
        what,
        key: key.to_owned(),
    };
    let unfit = |reason: String| ResolveError::Key {
        alias: alias.clone(),
        key: key.to_owned(),
        reason,
    };
    let (Some(value), Some(origin)) = (&merged.value, &merged.origin) else {
        return if schema.required {
            Err(missing(key.to_owned()))
        } else {
            Ok(None)
        };
    };
    if let Some(reason) = sources.refused(&value.references()) {
        return Err(unfit(reason));
    }
    let on_missing = if schema.required {
        OnMissing::Error
    } else {
        OnMissing::Omit
    };
    let resolved = value.resolve(
        schema.kind,
        on_missing,
        |it| sources.get(it),
        |name| sources.secret(name),
    );
    let resolved = resolved.map_err(|why| match why {
        Unresolved::Missing(what) => missing(what),
        Unresolved::WrongType(reason) => unfit(reason),
    })?;
    let Some(mut resolved) = resolved else {
        return Ok(None);
    };
    if schema.required && resolved.text.expose().trim().is_empty() {
        // A server that is asked to limit itself to nothing may take it for no limit.
        return Err(missing(
            value
                .references()
                .first()
                .map_or_else(|| key.to_owned(), Reference::dotted),
        ));
    }
    if resolved.text.expose().len() > MAX_VALUE {
        return Err(unfit(format!("its value is longer than {MAX_VALUE} bytes")));
    }
    if !header::can_carry(resolved.text.expose()) {
        return Err(unfit(UNCARRIED.to_owned()));
    }
    resolved.sensitive |= schema.sensitive;
    Ok(Some((resolved, origin.clone())))
}

fn auth(entry: &Entry, sources: Sources) -> Result<Option<ClientCredentials>, String> {
    let Some(auth) = &entry.auth else {
        return Ok(None);
    };
    let written = entry.definition.auth.as_ref();
    let host = written.and_then(|auth| host_of(&auth.token_url));
    let sources = sources.to(host.as_deref());
    let text = |value: &ConfigValue| {
        if let Some(reason) = sources.refused(&value.references()) {
            return Err(reason);
        }
        let resolved = value.resolve(
            Kind::String,
            OnMissing::Error,
            |it| sources.get(it),
            |name| sources.secret(name),
        );
        match resolved {
            Ok(Some(resolved)) => Ok(resolved.text),
            Ok(None) => Err("has no value".to_owned()),
            Err(Unresolved::Missing(what)) => Err(format!("missing value: {what}")),
            Err(Unresolved::WrongType(reason)) => Err(reason),
        }
    };
    Ok(Some(ClientCredentials {
        issued_by: auth
            .token_url
            .address(|it| sources.get(it))
            .map(TokenIssuer::Endpoint)
            .map_err(|error| format!("token_url {error}"))?,
        client_id: text(&auth.client_id)?,
        proof: ClientProof::Secret(text(&auth.client_secret)?),
        scope: auth.scope.clone(),
        of_tenant: sources.rules.is_tenants(),
    }))
}

/// Equal for servers that are reached in the same way, and only for these. It does not reveal what was
/// hashed.
fn digest_of(endpoint: &Endpoint, auth: Option<&ClientCredentials>) -> [u8; 16] {
    let mut digest = Sha256::new();
    let mut part = |text: &str| {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    };
    if let Endpoint::Remote { url, headers, .. } = endpoint {
        part(url.as_str());
        for (name, value) in headers {
            part(name);
            part(value.expose());
        }
    }
    if let Some(auth) = auth {
        auth.identity().into_iter().for_each(&mut part);
        part(auth.secret().expose());
    }
    let mut short = [0; 16];
    short.copy_from_slice(&digest.finalize()[..16]);
    short
}
