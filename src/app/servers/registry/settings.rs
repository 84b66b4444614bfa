//! What the admins of a tenant set for the servers of an agent or of a capability: they add servers of the registry, set
//! keys and take keys away. It is stored in rows and never in the file of a pack. `domain::registry::settings` says how it
//! joins what the files say; this module checks and stores it.
//!
//! Invariant: a setting is checked by the functions that check entries, packs and their merge. Its variables of the
//! environment are those that the operator granted, also where the entry is the operator's own.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    IfMatch, RegistrySnapshot, announce_change,
    change::{ChangeOutcome, TRIES, invalid_definition},
    check_capacity, entry_named, entry_of, join_settings,
    secrets::{check_secrets, delete_typed, insert_typed, list_typed, seal_typed},
    snapshot,
};
use crate::app::App;
use domain::{
    error::{Error, ErrorCode, Missing, Result},
    ids::{AgentId, ServerId, TenantId},
    pack::{Authentication, Pack},
    principal::Admin,
    registry::{
        AGENTS, CAPABILITIES, ConfigValue, EntryId, InvalidDefinition, Rules, ServerRef, granted,
        host_of,
        merge::merge,
        settings::{ServerSetting, SettingOwner},
    },
    scrub::MASK,
    secret::Secret,
};
use packs::Severity;
use store::{Tx, audit::AuditRow, secrets::StoredSecret, server_settings::StoredSetting};

/// Bytes of a whole setting as JSON.
const MAX_DEFINITION: usize = 65_536;

/// What an admin sets for one server, as a pack writes it.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SettingDefinition {
    /// The entry of the registry. Of a server that a file refers to, the entry that the file names.
    pub r#ref: String,
    /// Values of keys, in place of what earlier levels say. `null` takes a key away. A text that is given for a sensitive
    /// key is stored as a secret and never comes back: `{"$secret": "name"}` stands for it, and is removed with it.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub config: BTreeMap<String, Value>,
    /// Who may call which tool, as in a pack. A server that is added needs it; the access to a server that a file
    /// refers to is the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub tool_access: Option<Value>,
    /// The allowlist of a server that is added; absent: all tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
}

/// What is set for one server, as the admins see it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct SettingView {
    #[serde(flatten)]
    pub definition: SettingDefinition,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// The version, for `If-Match`.
    #[serde(skip)]
    pub etag: String,
}

/// A capability that agents of the tenant have.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct CapabilityView {
    pub name: String,
    /// The agents that have it.
    pub agents: Vec<String>,
}

/// The packs of a tenant that a setting of this owner applies to, as their authors wrote them. `NotFound` without any.
pub(in crate::app) async fn packs_of(
    app: &App,
    tenant: TenantId,
    owner: &SettingOwner,
) -> Result<Vec<Arc<Pack>>> {
    let tenant = app.accounts.tenant(tenant).await?;
    let has = |pack: &Arc<Pack>| match owner {
        SettingOwner::Agent(id) => pack.id() == id,
        SettingOwner::Capability(name) => pack.capabilities.contains(name),
    };
    let packs = app.packs.snapshot();
    let served = packs.packs().filter(|pack| tenant.serves(pack.id()));
    let found: Vec<_> = served.filter(|pack| has(pack)).cloned().collect();
    match (found.is_empty(), owner) {
        (false, _) => Ok(found),
        (true, SettingOwner::Agent(id)) => Err(Error::NotFound(Missing::Agent(id.to_string()))),
        (true, SettingOwner::Capability(name)) => {
            Err(Error::not_found(format!("capability {name:?}")))
        }
    }
}

/// The agent of a request as the owner of settings.
pub fn agent_owner(id: &str) -> Result<SettingOwner> {
    let id = AgentId::parse(id).map_err(|_| Error::NotFound(Missing::Agent(id.to_owned())))?;
    Ok(SettingOwner::Agent(id))
}

/// The capabilities that agents of the tenant have, by name.
pub async fn list_capabilities(app: &App, admin: &Admin) -> Result<Vec<CapabilityView>> {
    let tenant = app.accounts.tenant(admin.tenant()).await?;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let packs = app.packs.snapshot();
    for pack in packs.packs().filter(|pack| tenant.serves(pack.id())) {
        for name in &pack.capabilities {
            let agents = found.entry(name.clone()).or_default();
            agents.push(pack.id().to_string());
        }
    }
    let view = |(name, agents)| CapabilityView { name, agents };
    Ok(found.into_iter().map(view).collect())
}

/// Everything that is set for the servers of an agent or a capability, by server.
pub(in crate::app) async fn list_of(
    app: &App,
    tenant: TenantId,
    owner: &SettingOwner,
) -> Result<BTreeMap<String, SettingView>> {
    let mut tx = app.db.tenant(tenant).await?;
    let (level, name) = columns(owner);
    let rows = store::server_settings::list(&mut tx).await?;
    let own = rows
        .iter()
        .filter(|row| row.level == level && row.owner == name);
    own.map(|row| Ok((row.server.clone(), view(row)?)))
        .collect()
}

/// Creates or replaces what is set for one server.
pub async fn put(
    app: &App,
    admin: &Admin,
    owner: &SettingOwner,
    server: &str,
    definition: &SettingDefinition,
    wanted: &IfMatch,
) -> Result<ChangeOutcome<()>> {
    let tenant = admin.tenant();
    let packs = packs_of(app, tenant, owner).await?;
    let who = &packs[0].flows.authentication;
    let (definition, typed) =
        &seal_literals(app, tenant, owner, server, &packs, definition).await?;
    let setting = parse(owner, server, definition, who).map_err(invalid_definition)?;
    for _ in 0..TRIES {
        let before = find_row(app, tenant, owner, server).await?;
        if !wanted.allows_row(before.as_ref().map(etag).as_deref()) {
            return Ok(ChangeOutcome::Another);
        }
        check(app, tenant, &packs, &setting, definition).await?;
        let (level, name) = columns(owner);
        let row = StoredSetting {
            id: before.as_ref().map_or_else(Uuid::now_v7, |row| row.id),
            level: level.to_owned(),
            owner: name,
            server: setting.server.to_string(),
            entry: setting.entry.to_string(),
            definition: serde_json::to_string(definition).map_err(Error::internal)?,
            version: before.as_ref().map_or(1, |row| row.version + 1),
            updated_at: app.clock.now(),
        };
        let unnamed = match &before {
            Some(row) => list_typed(app, tenant, row.id, owner, server).await?,
            None => Vec::new(),
        };
        let is_named = |name: &String| {
            let mut named = setting.config.values().flatten();
            named.any(|value| value.secret().is_some_and(|secret| secret.as_str() == name))
        };
        let unnamed: Vec<_> = unnamed.into_iter().filter(|name| !is_named(name)).collect();
        let mut tx = app.db.tenant(tenant).await?;
        if before.is_none() {
            let count = store::server_settings::count(&mut tx).await?;
            check_capacity(count, "servers that are set for agents and capabilities")?;
        }
        if store::server_settings::put(&mut tx, tenant, &row).await? {
            insert_typed(app, &mut tx, admin, row.id, typed).await?;
            delete_typed(app, &mut tx, admin, &unnamed).await?;
            audit(app, &mut tx, admin, "server_setting.stored", &row).await?;
            tx.commit().await?;
            announce_change(app, tenant).await;
            return Ok(ChangeOutcome::Done(()));
        }
        if !wanted.is_any() {
            return Ok(ChangeOutcome::Another);
        }
    }
    Err(concurrent_change(server))
}

/// Removes what is set for one server. A server that was added so is gone from the agents.
pub async fn remove(
    app: &App,
    admin: &Admin,
    owner: &SettingOwner,
    server: &str,
    wanted: &IfMatch,
) -> Result<ChangeOutcome<()>> {
    for _ in 0..TRIES {
        let Some(row) = find_row(app, admin.tenant(), owner, server).await? else {
            return Err(unknown(owner, server));
        };
        if !wanted.allows_row(Some(&etag(&row))) {
            return Ok(ChangeOutcome::Another);
        }
        let typed = list_typed(app, admin.tenant(), row.id, owner, server).await?;
        let mut tx = app.db.tenant(admin.tenant()).await?;
        if store::server_settings::delete(&mut tx, row.id, row.version).await? {
            delete_typed(app, &mut tx, admin, &typed).await?;
            audit(app, &mut tx, admin, "server_setting.removed", &row).await?;
            tx.commit().await?;
            announce_change(app, admin.tenant()).await;
            return Ok(ChangeOutcome::Done(()));
        }
    }
    Err(concurrent_change(server))
}

/// A definition in which secrets stand for the texts of sensitive keys, and these secrets.
async fn seal_literals(
    app: &App,
    tenant: TenantId,
    owner: &SettingOwner,
    server: &str,
    packs: &[Arc<Pack>],
    definition: &SettingDefinition,
) -> Result<(SettingDefinition, Vec<StoredSecret>)> {
    let (mut definition, mut secrets) = (definition.clone(), Vec::new());
    let Ok(id) = EntryId::parse(&definition.r#ref) else {
        return Ok((definition, secrets));
    };
    // Memory may be behind the rows, so they are read again.
    app.registry.snapshots.invalidate(&tenant).await;
    let snapshot = snapshot(app, tenant).await?;
    let is_sensitive = |key: &str| {
        let entries = packs
            .iter()
            .filter_map(|pack| entry_named(app, &snapshot, pack, &id));
        let mut schemas = entries.filter_map(|(entry, _)| entry.definition.config_schema.get(key));
        schemas.any(|schema| schema.sensitive && !schema.internal)
    };
    for (key, written) in &mut definition.config {
        let Value::String(text) = &*written else {
            continue;
        };
        // What refers to something is checked as any other value.
        if text == MASK || text.contains("${") || !is_sensitive(key) {
            continue;
        }
        let secret =
            seal_typed(app, tenant, owner, server, key, &Secret::new(text.clone())).await?;
        *written = json!({ "$secret": secret.name });
        secrets.push(secret);
    }
    Ok((definition, secrets))
}

/// The error for a server for which nothing is set.
pub(in crate::app) fn unknown(owner: &SettingOwner, server: &str) -> Error {
    let shown: String = server.chars().take(80).collect();
    Error::not_found(format!("server {shown:?} of the {owner}"))
}

fn concurrent_change(server: &str) -> Error {
    Error::Busy {
        reason: format!("others are changing the server {server}; try again"),
        retry_after: std::time::Duration::from_secs(1),
    }
}

async fn find_row(
    app: &App,
    tenant: TenantId,
    owner: &SettingOwner,
    server: &str,
) -> Result<Option<StoredSetting>> {
    let mut tx = app.db.tenant(tenant).await?;
    let (level, name) = columns(owner);
    store::server_settings::get(&mut tx, level, &name, server).await
}

/// The columns of an owner.
fn columns(owner: &SettingOwner) -> (&'static str, String) {
    match owner {
        SettingOwner::Agent(id) => ("agent", id.to_string()),
        SettingOwner::Capability(name) => ("capability", name.clone()),
    }
}

/// The owner of a row, as its users are named in messages.
pub(super) fn owner_of(row: &StoredSetting) -> String {
    format!("{} {}", row.level, row.owner)
}

/// The setting of a row. One that cannot be read is left out, and the log names it.
pub(super) fn read_row(tenant: TenantId, row: &StoredSetting) -> Option<ServerSetting> {
    let owner = match row.level.as_str() {
        "agent" => SettingOwner::Agent(AgentId::parse(&row.owner).ok()?),
        _ => SettingOwner::Capability(row.owner.clone()),
    };
    let read = serde_json::from_str::<SettingDefinition>(&row.definition)
        .map_err(|_| "its definition is not understood".to_owned())
        .and_then(|definition| {
            // Who can hold a role changes warnings only.
            parse(&owner, &row.server, &definition, &Authentication::default())
                .map_err(|fault| fault.to_string())
        });
    match read {
        Ok(setting) => Some(setting),
        Err(reason) => {
            tracing::error!(%tenant, %owner, server = row.server, reason, "what an admin set for a server cannot be used");
            None
        }
    }
}

/// Reads a definition without regard to other levels.
fn parse(
    owner: &SettingOwner,
    server: &str,
    definition: &SettingDefinition,
    who: &Authentication,
) -> Result<ServerSetting, InvalidDefinition> {
    let fault = |field: &str, reason: String| InvalidDefinition::new(field, reason);
    if serde_json::to_string(definition).map_or(0, |text| text.len()) > MAX_DEFINITION {
        return Err(fault(
            "body",
            format!("is longer than {MAX_DEFINITION} bytes"),
        ));
    }
    let server = ServerId::parse(server).map_err(|reason| fault("server", reason))?;
    let entry = EntryId::parse(&definition.r#ref).map_err(|reason| fault("ref", reason))?;
    let sources = match owner {
        SettingOwner::Agent(_) => AGENTS,
        SettingOwner::Capability(_) => CAPABILITIES,
    };
    let mut config = BTreeMap::new();
    for (key, written) in &definition.config {
        let value = match written {
            Value::Null => None,
            written => {
                let parsed = ConfigValue::parse(written, sources);
                Some(parsed.map_err(|reason| fault(&path(key), reason))?)
            }
        };
        config.insert(key.clone(), value);
    }
    let mut written = serde_json::Map::new();
    if let Some(access) = &definition.tool_access {
        written.insert("toolAccess".to_owned(), access.clone());
    }
    if let Some(tools) = &definition.tools {
        written.insert("tools".to_owned(), json!(tools));
    }
    let (access, problems) = packs::read_access(&Value::Object(written), who);
    let Some(access) = access else {
        let error = problems
            .into_iter()
            .find(|problem| problem.severity == Severity::Error);
        let (field, reason) = error.map_or_else(Default::default, |error| {
            let hint = error.hint.map(|hint| format!("; {hint}"));
            (error.path, error.message + hint.as_deref().unwrap_or(""))
        });
        let field = if field.is_empty() {
            "toolAccess"
        } else {
            &field
        };
        return Err(fault(field, reason));
    };
    Ok(ServerSetting {
        owner: owner.clone(),
        server,
        entry,
        config,
        tool_access: access.tool_access,
        tools: access.tools,
    })
}

fn path(key: &str) -> String {
    format!("config.{key}")
}

/// Checks a setting against the packs that it applies to and against the registry.
async fn check(
    app: &App,
    tenant: TenantId,
    packs: &[Arc<Pack>],
    setting: &ServerSetting,
    definition: &SettingDefinition,
) -> Result<()> {
    // Memory may be behind the rows, so they are read again.
    app.registry.snapshots.invalidate(&tenant).await;
    let snapshot = snapshot(app, tenant).await?;
    let is_other =
        |other: &&ServerSetting| other.owner != setting.owner || other.server != setting.server;
    let mut settings: Vec<_> = snapshot.settings.iter().filter(is_other).cloned().collect();
    settings.push(setting.clone());
    for pack in packs {
        check_access(pack, setting, definition)?;
        let (joined, refused) = join_settings(&snapshot, pack, &settings);
        let own = refused
            .into_iter()
            .find(|it| it.owner == setting.owner && it.server == setting.server);
        if let Some(refused) = own {
            let code = match refused.field {
                "toolAccess" => ErrorCode::MissingField,
                _ => ErrorCode::Invalid,
            };
            return Err(Error::unfit(code, refused.field, refused.reason));
        }
        let reference = joined
            .references
            .iter()
            .find(|reference| reference.alias == setting.server);
        if let Some(reference) = reference {
            let reference = up_to(reference, &setting.owner);
            check_values(app, &snapshot, &joined, &reference, setting)?;
            let (entry, _) = entry_of(app, &snapshot, pack, &reference)
                .ok_or_else(|| Error::not_found(format!("MCP server '{}'", setting.entry)))?;
            let named = setting.config.values().flatten();
            let named: Vec<_> = named.filter_map(ConfigValue::secret).collect();
            check_secrets(app, tenant, entry, &named).await?;
        }
    }
    Ok(())
}

/// Refuses an access to a server that the owner's file refers to.
fn check_access(
    pack: &Pack,
    setting: &ServerSetting,
    definition: &SettingDefinition,
) -> Result<()> {
    let of_file = pack
        .references
        .iter()
        .find(|reference| reference.alias == setting.server)
        .is_some_and(|reference| setting.owner.refers_to(reference));
    let field = match (&definition.tool_access, &definition.tools) {
        (Some(_), _) => "toolAccess",
        (None, Some(_)) => "tools",
        (None, None) => return Ok(()),
    };
    if !of_file {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!(
            "of {} is what the file of the {} says; leave it out",
            setting.server, setting.owner
        ),
    ))
}

/// A reference without the levels that come after the settings of this owner.
pub(in crate::app) fn up_to(reference: &ServerRef, owner: &SettingOwner) -> ServerRef {
    let mut cut = reference.clone();
    let is_last = |origin: &_| match owner {
        SettingOwner::Agent(_) => false,
        SettingOwner::Capability(name) => {
            *origin == owner.origin()
                || matches!(origin, domain::registry::Origin::Capability(other) if other == name)
        }
    };
    if let Some(last) = cut.levels.iter().rposition(|level| is_last(&level.origin)) {
        cut.levels.truncate(last + 1);
    }
    cut
}

/// Checks the values against the schema of the entry, as a run would, and against what the operator granted.
fn check_values(
    app: &App,
    snapshot: &RegistrySnapshot,
    pack: &Pack,
    reference: &ServerRef,
    setting: &ServerSetting,
) -> Result<()> {
    let Some((entry, _)) = entry_of(app, snapshot, pack, reference) else {
        return Err(Error::unfit(
            ErrorCode::UnknownReference,
            "ref",
            format!("names no entry of the registry: {}", setting.entry),
        ));
    };
    let masked = |(_, value): &(&String, &Option<ConfigValue>)| {
        value.as_ref().is_some_and(|value| value.written() == MASK)
    };
    if let Some((key, _)) = setting.config.iter().find(masked) {
        let reason = format!("`{MASK}` stands for a value that is there; enter one");
        return Err(Error::invalid(path(key), reason));
    }
    merge(entry, reference).map_err(|fault| Error::invalid(path(&fault.field), fault.reason))?;
    let host = host_of(&entry.definition.url);
    let rules = Rules::of_tenant(&app.registry.grants);
    let rules = rules.to(host.as_deref());
    for (key, value) in &setting.config {
        let Some(value) = value else { continue };
        granted(&value.references(), rules).map_err(|reason| Error::invalid(path(key), reason))?;
        let schema = &entry.definition.config_schema[key];
        if schema.sensitive && !value.only_refers() {
            let reason =
                "is sensitive, so it is one text, one placeholder, or `{\"$secret\": \"name\"}`";
            return Err(Error::invalid(path(key), reason));
        }
    }
    Ok(())
}

async fn audit(
    app: &App,
    tx: &mut Tx,
    admin: &Admin,
    action: &'static str,
    row: &StoredSetting,
) -> Result<()> {
    let line = AuditRow {
        agent: if row.level == "agent" {
            row.owner.clone()
        } else {
            String::new()
        },
        server: row.server.clone(),
        args_sha256: Sha256::digest(&row.definition).to_vec(),
        detail: Some(format!("{}, entry {}", owner_of(row), row.entry)),
        ..AuditRow::new(
            admin.tenant(),
            app.clock.now(),
            admin.user().as_str(),
            action,
        )
    };
    store::audit::insert(tx, admin.tenant(), &[line]).await
}

fn view(row: &StoredSetting) -> Result<SettingView> {
    Ok(SettingView {
        definition: serde_json::from_str(&row.definition).map_err(Error::internal)?,
        updated_at: row.updated_at,
        etag: etag(row),
    })
}

/// The tag of a version.
fn etag(row: &StoredSetting) -> String {
    format!("\"{}.{}\"", row.id.simple(), row.version)
}
