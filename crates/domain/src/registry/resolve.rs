//! Fills in values: an entry, a pack's reference to it and the values of a run make a server that the program
//! can connect to. A missing required value is an error that names it.

mod key;
mod refusal;
mod values;

use std::{collections::BTreeMap, sync::Arc};

use sha2::Digest;
use url::Url;

use self::key::key_of;
pub use self::{
    refusal::ResolveError,
    values::{ReferenceValues, Sources},
};
use super::{
    Entry, EntryId, Origin, ServerRef,
    config::{ConfigValue, Kind, Unresolved},
    entry::host_of,
    merge::{depends_on_run, merge},
};
use crate::{
    header,
    ids::ServerId,
    oauth::ClientProof,
    secret::Secret,
    server::{
        AccessMode, CatalogScope, ClientCredentials, Endpoint, Parts, Remote, ServerAuth,
        ServerSpec, TokenIssuer,
    },
    template::{OnMissing, Reference, address::AddressError},
};

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

/// Resolves one reference.
pub fn resolve(
    entry: &Entry,
    reference: &ServerRef,
    sources: Sources,
) -> Result<ResolvedServer, ResolveError> {
    let host = host_of(&entry.definition.url);
    let sources = sources.to(host.as_deref());
    let alias = &reference.alias;
    let merged = merge(entry, reference).map_err(|fault| ResolveError::Key {
        alias: alias.clone(),
        key: fault.field,
        reason: fault.reason,
    })?;
    let mut config = Vec::new();
    for (key, merged) in &merged {
        if let Some((resolved, origin)) = key_of(entry, reference, key, merged, sources)? {
            config.push(ResolvedKey {
                key: key.clone(),
                value: resolved.text,
                sensitive: resolved.sensitive,
                origin,
            });
        }
    }
    let url = url_of(entry, alias, sources)?;
    let auth = auth(entry, sources).map_err(|reason| ResolveError::Field {
        alias: alias.clone(),
        field: "auth",
        reason,
    })?;
    let per_run = depends_on_run(entry, &merged);
    let endpoint = Endpoint::Remote {
        transport: Remote::StreamableHttp,
        url,
        headers: config
            .iter()
            .map(|resolved| (header_of(entry, &resolved.key), resolved.value.clone()))
            .collect(),
    };
    let spec = ServerSpec {
        required: reference.required && !per_run,
        entered: entered_values(&config, auth.as_ref()),
        run_config: per_run.then(|| digest_of(&endpoint, auth.as_ref())),
        of_tenant: sources.rules.is_tenants(),
        ..spec_of(reference, endpoint, auth)
    };
    Ok(ResolvedServer {
        alias: alias.clone(),
        entry: entry.id.clone(),
        config,
        spec: Arc::new(spec),
        per_run,
    })
}

fn url_of(entry: &Entry, alias: &ServerId, sources: Sources) -> Result<Url, ResolveError> {
    let refused = |reason: String| ResolveError::Field {
        alias: alias.clone(),
        field: "url",
        reason,
    };
    let references: Vec<_> = entry.url.references().cloned().collect();
    if let Some(reason) = sources.refused(&references) {
        return Err(refused(reason));
    }
    let url = entry.url.address(|reference| sources.get(reference));
    url.map_err(|error| match &error {
        AddressError::Missing(missing) => ResolveError::Missing {
            alias: alias.clone(),
            what: missing.0.first().map(Reference::dotted).unwrap_or_default(),
            key: "url".to_owned(),
        },
        _ => refused(error.to_string()),
    })
}

/// The secret values, which are removed from every text of the server.
fn entered_values(config: &[ResolvedKey], auth: Option<&ClientCredentials>) -> Vec<Secret> {
    let sensitive = config
        .iter()
        .filter(|key| key.sensitive)
        .map(|key| key.value.clone());
    sensitive
        .chain(auth.map(|auth| auth.secret().clone()))
        .collect()
}

/// A server as the reference describes it, not yet of a run or of a tenant.
fn spec_of(
    reference: &ServerRef,
    endpoint: Endpoint,
    auth: Option<ClientCredentials>,
) -> ServerSpec {
    ServerSpec {
        id: reference.alias.clone(),
        endpoint,
        access_mode: AccessMode::AdminControlled,
        tool_access: reference.tool_access.clone(),
        tools: reference.tools.clone(),
        pin: reference.pin,
        held: BTreeMap::new(),
        elsewhere: reference.elsewhere.clone(),
        summaries: BTreeMap::new(),
        required: reference.required,
        // What a tenant's registry and admins say is in it.
        per_tenant: true,
        at_start: false,
        timeouts: reference.timeouts,
        user_config: Vec::new(),
        catalog: CatalogScope::Shared,
        entered: Vec::new(),
        auth: auth.map(ServerAuth::Client),
        oauth: None,
        credential_test: None,
        operator_headers: Vec::new(),
        from_variables: Vec::new(),
        has_user_values: false,
        asks_for_sign_in: false,
        run_config: None,
        of_tenant: false,
        load_tools: true,
        load_prompts: true,
        terminate_on_close: true,
    }
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

fn auth(entry: &Entry, sources: Sources) -> Result<Option<ClientCredentials>, String> {
    let Some(auth) = &entry.auth else {
        return Ok(None);
    };
    let written = entry.definition.auth.as_ref();
    let host = written.and_then(|auth| host_of(&auth.token_url));
    let sources = sources.to(host.as_deref());
    Ok(Some(ClientCredentials {
        issued_by: auth
            .token_url
            .address(|it| sources.get(it))
            .map(TokenIssuer::Endpoint)
            .map_err(|error| format!("token_url {error}"))?,
        client_id: text_of(&auth.client_id, sources)?,
        proof: ClientProof::Secret(text_of(&auth.client_secret, sources)?),
        scope: auth.scope.clone(),
        of_tenant: sources.rules.is_tenants(),
    }))
}

fn text_of(value: &ConfigValue, sources: Sources) -> Result<Secret, String> {
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
}

/// Equal for servers that are sent the same, and only for these. It does not reveal what was hashed.
fn digest_of(endpoint: &Endpoint, auth: Option<&ClientCredentials>) -> [u8; 16] {
    let mut parts = Parts::default();
    endpoint.add_to(&mut parts);
    if let Some(auth) = auth {
        auth.add_to(&mut parts);
    }
    let mut short = [0; 16];
    short.copy_from_slice(&parts.0.finalize()[..16]);
    short
}
