//! The servers that an agent takes from the registry, as people see them: their addresses, their configuration, and
//! the origin of each value. Sensitive values are masked, and a value of a run is shown as its reference.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{
    agents,
    connections::State,
    registry::{
        self,
        settings::{self, SettingView},
    },
};
use crate::app::App;
use domain::{
    error::{Error, Result},
    ids::TenantId,
    pack::Pack,
    principal::{Admin, Principal},
    registry::{
        ConfigValue, Entry, KeySchema, Kind, ServerRef,
        merge::{MergedKey, depends_on_run, merge},
        resolve::header_of,
        settings::{RefusedSetting, SettingOwner},
    },
    scrub::MASK,
    template::{Reference, Source},
};

/// One server that an agent takes from the registry.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ServerView {
    /// The agent's name for the server.
    pub server: String,
    /// The entry of the registry.
    pub r#ref: String,
    pub name: String,
    pub description: String,
    /// Whether the server differs from run to run and exists only within runs.
    pub per_run: bool,
    /// The keys of a run's scope that are sent to the server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<ScopeView>,
    /// The state of its connection, if that is the same for every run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explained: Option<ServerDetails>,
}

/// A key of a run's scope, for the people who start runs.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ScopeView {
    pub key: String,
    /// Without it no run of the agent is created.
    pub required: bool,
    /// The type in the definition's `scope_schema`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// Details for the people who run the agent.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Explained)]
pub struct ServerDetails {
    /// The URL with its placeholders; absent when the entry does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Why the server cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Every key that the server takes.
    pub config: Vec<KeyView>,
}

/// A key of a server's configuration and where its value comes from.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ConfigKey)]
pub struct KeyView {
    pub key: String,
    /// The value as it was written; `••••` when it is sensitive, absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub value: Option<Value>,
    /// `registry default`, `capability <name>`, `an admin for capability <name>`, `agent`, `an admin for the agent` or
    /// `framework`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The origin in a sentence: `overrides registry default (default)`, `from registry default`.
    pub note: String,
    /// The header that carries it.
    pub header: String,
    #[serde(flatten)]
    pub schema: KeySchema,
}

/// The servers that an agent takes from the registry. `explain` is for a principal that the pack names in
/// `adminUsers`, or with the right to administrate (`operator`).
pub async fn list(
    app: &App,
    principal: &Principal,
    agent: &str,
    explain: bool,
    operator: bool,
) -> Result<Vec<ServerView>> {
    let pack = agents::pack(app, principal, agent).await?;
    if explain && !operator && !principal.access(&pack).admin {
        return Err(Error::Forbidden(
            "`explain` is for the pack's adminUsers and for keys with the `admin` scope".to_owned(),
        ));
    }
    if pack.references.is_empty() {
        return Ok(Vec::new());
    }
    let snapshot = registry::snapshot(app, principal.tenant).await?;
    let view = |reference| {
        let mut view = view(app, principal.tenant, &snapshot, &pack, reference);
        view.explained = explain.then(|| details(app, &snapshot, &pack, reference));
        view
    };
    Ok(pack.references.iter().map(view).collect())
}

/// A server of an agent or a capability, as the admins who set its keys see it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ConfiguredServer {
    /// The name of the server there.
    pub server: String,
    /// The entry of the registry.
    pub r#ref: String,
    /// The name of the entry.
    pub name: String,
    /// Whether a file or an earlier level has it, which says who may call its tools; otherwise it is added at this level.
    pub inherited: bool,
    /// What the admins set at this level; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<SettingView>,
    /// Why the server cannot be used, or why what is set has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Every key that the server takes, with what it has at this level.
    pub config: Vec<KeyView>,
}

/// The servers that an agent or a capability takes from the registry, with what the tenant's admins set. Of a
/// capability, the values are as its first agent has them.
pub async fn list_configured(
    app: &App,
    admin: &Admin,
    owner: &SettingOwner,
) -> Result<Vec<ConfiguredServer>> {
    let tenant = admin.tenant();
    let packs = settings::packs_of(app, tenant, owner).await?;
    let mut set = settings::list_of(app, tenant, owner).await?;
    let snapshot = registry::snapshot(app, tenant).await?;
    // Why a setting has no effect.
    let reason = |server: &str| {
        packs.iter().find_map(|pack| {
            let (_, refused) = registry::join_settings(&snapshot, pack, &snapshot.settings);
            let of_server =
                |it: &&RefusedSetting| it.owner == *owner && it.server.as_str() == server;
            refused.iter().find(of_server).map(|it| it.reason.clone())
        })
    };
    let mut found = Vec::new();
    let (joined, _) = registry::join_settings(&snapshot, &packs[0], &snapshot.settings);
    for reference in &joined.references {
        let is_set = reference
            .levels
            .iter()
            .any(|it| it.origin == owner.origin());
        let of_owner = is_set || owner.refers_to(reference);
        let of_agent = matches!(owner, SettingOwner::Agent(_));
        if !(of_owner || of_agent) {
            continue;
        }
        let cut = settings::up_to(reference, owner);
        let setting = set.remove(reference.alias.as_str());
        let inherited = match owner {
            SettingOwner::Agent(_) => {
                let mut levels = reference.levels.iter();
                levels.any(|level| level.origin != owner.origin())
            }
            SettingOwner::Capability(_) => owner.refers_to(reference),
        };
        let details = details(app, &snapshot, &joined, &cut);
        let without_effect = setting.is_some() && !is_set;
        let problem = match owner {
            _ if without_effect => reason(reference.alias.as_str()),
            SettingOwner::Agent(_) => details.problem,
            // A later level may bring what is missing.
            SettingOwner::Capability(_) => registry::entry_of(app, &snapshot, &joined, &cut)
                .and_then(|(entry, _)| merge(entry, &cut).err())
                .map(|fault| fault.to_string()),
        };
        let view = view(app, tenant, &snapshot, &joined, reference);
        found.push(ConfiguredServer {
            server: view.server,
            r#ref: view.r#ref,
            name: view.name,
            inherited,
            setting,
            problem,
            config: details.config,
        });
    }
    for (server, setting) in set {
        found.push(ConfiguredServer {
            r#ref: setting.definition.r#ref.clone(),
            name: setting.definition.r#ref.clone(),
            inherited: false,
            problem: reason(&server),
            server,
            setting: Some(setting),
            config: Vec::new(),
        });
    }
    Ok(found)
}

/// One server of [`list_configured`].
pub async fn get_configured(
    app: &App,
    admin: &Admin,
    owner: &SettingOwner,
    server: &str,
) -> Result<ConfiguredServer> {
    let servers = list_configured(app, admin, owner).await?;
    let mut found = servers.into_iter();
    let found = found.find(|it| it.server == server);
    found.ok_or_else(|| settings::unknown(owner, server))
}

/// The view of one server without the details.
fn view(
    app: &App,
    tenant: TenantId,
    snapshot: &registry::RegistrySnapshot,
    pack: &Pack,
    reference: &ServerRef,
) -> ServerView {
    let entry = registry::entry_of(app, snapshot, pack, reference).map(|(entry, _)| entry);
    let merged = entry.and_then(|entry| merge(entry, reference).ok());
    let definition = entry.map(|entry| &entry.definition);
    let spec = pack
        .servers
        .iter()
        .find(|server| server.id == reference.alias);
    ServerView {
        server: reference.alias.to_string(),
        r#ref: reference.entry.to_string(),
        name: definition.map_or_else(
            || reference.entry.to_string(),
            |definition| definition.name.clone(),
        ),
        description: definition
            .map(|definition| definition.description.clone())
            .unwrap_or_default(),
        scope: entry
            .zip(merged.as_ref())
            .map(|(entry, keys)| scope(entry, keys))
            .unwrap_or_default(),
        per_run: entry
            .zip(merged.as_ref())
            .is_some_and(|(entry, keys)| depends_on_run(entry, keys)),
        connection: spec.map(|spec| app.connections.view(tenant, pack, spec).0.state),
        explained: None,
    }
}

fn details(
    app: &App,
    snapshot: &registry::RegistrySnapshot,
    pack: &Pack,
    reference: &ServerRef,
) -> ServerDetails {
    let entry = registry::entry_of(app, snapshot, pack, reference).map(|(entry, _)| entry);
    let merged = entry.and_then(|entry| merge(entry, reference).ok());
    let config = entry.zip(merged).map(|(entry, keys)| {
        keys.iter()
            .map(|(key, merged)| key_view(entry, key, merged))
            .collect()
    });
    ServerDetails {
        url: entry.map(|entry| entry.definition.url.clone()),
        problem: registry::resolution_problem(app, snapshot, pack, reference),
        config: config.unwrap_or_default(),
    }
}

fn key_view(entry: &Entry, key: &str, merged: &MergedKey) -> KeyView {
    let schema = entry.definition.config_schema[key].clone();
    let masked = |value: &ConfigValue| {
        if schema.sensitive && !value.only_refers() {
            Value::from(MASK)
        } else {
            value.written().clone()
        }
    };
    let value = merged.value.as_ref().map(masked);
    let earlier: Vec<String> = merged
        .before
        .iter()
        .rev()
        .map(|(origin, value)| match value.as_ref().map(masked) {
            Some(Value::String(text)) => format!("{origin} ({text})"),
            Some(other) => format!("{origin} ({other})"),
            None => format!("{origin} (removed)"),
        })
        .collect();
    let note = match (&merged.origin, &value, earlier.is_empty()) {
        (None, ..) => "not set".to_owned(),
        (Some(origin), None, true) => format!("removed by {origin}"),
        (Some(origin), None, false) => format!("removed by {origin}, was {}", earlier.join(", ")),
        (Some(origin), Some(_), true) => format!("from {origin}"),
        (Some(_), Some(_), false) => format!("overrides {}", earlier.join(", ")),
    };
    KeyView {
        key: key.to_owned(),
        value,
        origin: merged.origin.as_ref().map(ToString::to_string),
        note,
        header: header_of(entry, key),
        schema,
    }
}

/// The keys of a run's scope that the configuration refers to or the definition describes.
fn scope(entry: &Entry, keys: &BTreeMap<String, MergedKey>) -> Vec<ScopeView> {
    let mut found: BTreeMap<String, bool> = BTreeMap::new();
    let mut refer = |reference: &Reference, required: bool| {
        if reference.source == Source::Scope {
            *found.entry(reference.key.clone()).or_default() |= required;
        }
    };
    entry
        .url
        .references()
        .for_each(|reference| refer(reference, true));
    for (key, merged) in keys {
        let required = entry.definition.config_schema[key].required;
        let references = merged
            .value
            .as_ref()
            .map(ConfigValue::references)
            .unwrap_or_default();
        for reference in &references {
            refer(reference, required);
        }
    }
    let said = &entry.definition.scope_schema;
    for key in said.keys() {
        found.entry(key.clone()).or_default();
    }
    let view = |(key, required): (String, bool)| {
        let schema = said.get(&key);
        let description = schema
            .map(|schema| schema.description.clone())
            .unwrap_or_default();
        ScopeView {
            kind: schema.map(|schema| schema.kind),
            description,
            key,
            required,
        }
    };
    found.into_iter().map(view).collect()
}
