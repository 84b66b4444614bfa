//! Create, read, update and delete entries, for the admins of a tenant. Every change makes a new version, writes an
//! audit line in the same transaction, and is announced to every replica.

use std::collections::BTreeSet;

use serde::Serialize;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    announce_change, check_capacity, entry_context, find_agents, open_entry,
    secrets::check_secrets, settings::owner_of,
};
use crate::app::App;
use domain::{
    error::{Error, ErrorCode, Result},
    ids::TenantId,
    principal::Admin,
    registry::{Definition, Entry, EntryId, InvalidDefinition, Rules, host_of},
    template::Source,
};
use store::{Tx, audit::AuditRow, registry::StoredEntry};

/// How often a change is tried on a row that others change at the same time.
pub(super) const TRIES: u8 = 5;

/// An entry as its admins see it.
#[derive(Clone, Serialize, utoipa::ToSchema)]
pub struct EntryView {
    #[serde(flatten)]
    pub definition: Definition,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// The version, for `If-Match`.
    #[serde(skip)]
    pub etag: String,
}

/// The versions that a change may replace.
#[derive(Clone, Debug, Default)]
pub enum IfMatch {
    #[default]
    Any,
    /// Those of the header `If-Match`.
    Versions(String),
    /// None: what is there is not replaced (`If-None-Match: *`).
    Absent,
}

impl IfMatch {
    /// From the header `If-Match`; any version without one.
    pub fn new(header: Option<&str>) -> Self {
        match header.filter(|text| text.trim() != "*") {
            Some(wanted) => Self::Versions(wanted.to_owned()),
            None => Self::Any,
        }
    }

    fn allows(&self, etag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Versions(wanted) => wanted.split(',').any(|one| one.trim() == etag),
            Self::Absent => false,
        }
    }

    /// The same for a row that may not be there yet.
    pub(super) fn allows_row(&self, etag: Option<&str>) -> bool {
        match etag {
            Some(etag) => self.allows(etag),
            None => !matches!(self, Self::Versions(_)),
        }
    }

    pub(super) fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }
}

/// The outcome of a change.
pub enum ChangeOutcome<T> {
    Done(T),
    /// The entry has another version than `If-Match` allows; nothing was changed.
    Another,
}

/// The tenant's entries by name, after the entry with this name and id. Sensitive values are masked.
pub async fn list(
    app: &App,
    admin: &Admin,
    after: Option<(&str, &str)>,
    limit: i64,
) -> Result<Vec<EntryView>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    let rows = store::registry::list(&mut tx, after, limit).await?;
    drop(tx);
    let mut views = Vec::with_capacity(rows.len());
    for row in rows {
        views.push(view(
            &row,
            masked_definition(app, admin.tenant(), &row).await?,
        ));
    }
    Ok(views)
}

pub async fn get(app: &App, admin: &Admin, id: &str) -> Result<EntryView> {
    let row = find_row(app, admin.tenant(), id).await?;
    let shown = masked_definition(app, admin.tenant(), &row).await?;
    Ok(view(&row, shown))
}

/// The entry of a row; `None` when its sealed values can no longer be opened. Such an entry can still be seen without
/// them, replaced and removed.
async fn try_open_entry(app: &App, tenant: TenantId, row: &StoredEntry) -> Result<Option<Entry>> {
    match open_entry(app, tenant, row).await {
        Ok(entry) => Ok(Some(entry)),
        Err(Error::Conflict(_, reason)) => {
            tracing::error!(%tenant, entry = row.entry, reason, "an entry of the registry cannot be used");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn masked_definition(app: &App, tenant: TenantId, row: &StoredEntry) -> Result<Definition> {
    match try_open_entry(app, tenant, row).await? {
        Some(entry) => Ok(entry.masked()),
        None => serde_json::from_str(&row.definition).map_err(Error::internal),
    }
}

/// Adds an entry. An id that is taken is a conflict.
pub async fn create(app: &App, admin: &Admin, definition: Definition) -> Result<EntryView> {
    let entry = definition
        .keep_sensitive(None)
        .and_then(|definition| parse_checked(app, definition))
        .map_err(invalid_definition)?;
    check_secrets(app, admin.tenant(), &entry, &[]).await?;
    let mut row = StoredEntry {
        id: Uuid::now_v7(),
        entry: entry.id.to_string(),
        name: entry.definition.name.clone(),
        definition: String::new(),
        sealed: None,
        version: 1,
        updated_at: app.clock.now(),
    };
    fill_row(app, admin.tenant(), &mut row, &entry).await?;
    let mut tx = app.db.tenant(admin.tenant()).await?;
    check_capacity(store::registry::count(&mut tx).await?, "MCP servers")?;
    if !store::registry::insert(&mut tx, admin.tenant(), &row).await? {
        return Err(Error::conflict(
            ErrorCode::DuplicateId,
            format!("MCP server '{}' already exists", entry.id),
        ));
    }
    audit(app, &mut tx, admin, "registry.created", &row).await?;
    tx.commit().await?;
    announce_change(app, admin.tenant()).await;
    Ok(view(&row, entry.masked()))
}

/// Replaces the definition of an entry. The id never changes; sensitive values that the new definition leaves out
/// stay.
pub async fn update(
    app: &App,
    admin: &Admin,
    id: &str,
    mut definition: Definition,
    wanted: &IfMatch,
) -> Result<ChangeOutcome<EntryView>> {
    if definition.id.is_empty() {
        id.clone_into(&mut definition.id);
    }
    for _ in 0..TRIES {
        let before = find_row(app, admin.tenant(), id).await?;
        if definition.id != before.entry {
            return Err(Error::unfit(
                ErrorCode::ReadOnlyField,
                "id",
                "never changes; leave it out, or create another entry",
            ));
        }
        if !wanted.allows(&etag(&before)) {
            return Ok(ChangeOutcome::Another);
        }
        let old = try_open_entry(app, admin.tenant(), &before).await?;
        let kept = definition.clone().keep_sensitive(old.as_ref());
        let entry = kept
            .and_then(|definition| parse_checked(app, definition))
            .map_err(invalid_definition)?;
        check_secrets(app, admin.tenant(), &entry, &[]).await?;
        let mut row = StoredEntry {
            name: entry.definition.name.clone(),
            version: before.version + 1,
            updated_at: app.clock.now(),
            ..before
        };
        fill_row(app, admin.tenant(), &mut row, &entry).await?;
        let mut tx = app.db.tenant(admin.tenant()).await?;
        if store::registry::update(&mut tx, &row).await? {
            audit(app, &mut tx, admin, "registry.updated", &row).await?;
            tx.commit().await?;
            announce_change(app, admin.tenant()).await;
            return Ok(ChangeOutcome::Done(view(&row, entry.masked())));
        }
        if !wanted.is_any() {
            return Ok(ChangeOutcome::Another);
        }
    }
    Err(concurrent_change(id))
}

/// Removes an entry, unless an agent of the tenant refers to it: then a conflict that names the agents.
pub async fn remove(
    app: &App,
    admin: &Admin,
    id: &str,
    wanted: &IfMatch,
) -> Result<ChangeOutcome<()>> {
    for _ in 0..TRIES {
        let row = find_row(app, admin.tenant(), id).await?;
        if !wanted.allows(&etag(&row)) {
            return Ok(ChangeOutcome::Another);
        }
        let users = find_agents(app, admin.tenant(), |pack, reference| {
            reference.entry.as_str() == id
                && pack.entries.iter().all(|own| own.id != reference.entry)
        });
        let users = users.await?;
        let mut tx = app.db.tenant(admin.tenant()).await?;
        let set = store::server_settings::list_of_entry(&mut tx, id).await?;
        let users: BTreeSet<String> = users.into_iter().chain(set.iter().map(owner_of)).collect();
        if !users.is_empty() {
            let users: Vec<_> = users.into_iter().collect();
            let users = users.join(", ");
            return Err(Error::conflict(
                ErrorCode::ServerInUse,
                format!("MCP server '{id}' is used by {users}; remove it from there first"),
            ));
        }
        if store::registry::delete(&mut tx, row.id, row.version).await? {
            audit(app, &mut tx, admin, "registry.removed", &row).await?;
            tx.commit().await?;
            announce_change(app, admin.tenant()).await;
            return Ok(ChangeOutcome::Done(()));
        }
    }
    Err(concurrent_change(id))
}

async fn find_row(app: &App, tenant: TenantId, id: &str) -> Result<StoredEntry> {
    let unknown = || Error::not_found(format!("MCP server {id:?}"));
    // A text that cannot be an id names no entry.
    EntryId::parse(id).map_err(|_| unknown())?;
    let mut tx = app.db.tenant(tenant).await?;
    store::registry::get(&mut tx, id).await?.ok_or_else(unknown)
}

/// Parses a definition and checks that requests to its addresses are allowed.
fn parse_checked(app: &App, definition: Definition) -> Result<Entry, InvalidDefinition> {
    let rules = Rules::of_tenant(&app.registry.grants);
    let entry = Entry::parse(definition, rules)?;
    let token_url = entry
        .auth
        .as_ref()
        .zip(entry.definition.auth.as_ref())
        .map(|(auth, written)| ("auth.token_url", &auth.token_url, &written.token_url));
    let url = ("url", &entry.url, &entry.definition.url);
    for (field, template, written) in std::iter::once(url).chain(token_url) {
        let host = host_of(written);
        let rules = rules.to(host.as_deref());
        let variable = |reference: &domain::template::Reference| match reference.source {
            Source::Env => rules.variable(&app.registry.env, &reference.key),
            _ => None,
        };
        let url = template
            .example_address(variable)
            .map_err(|error| InvalidDefinition::new(field, error.to_string()))?;
        if let Some(Err(refused)) = url.map(|url| app.registry.egress.check_url(&url)) {
            // The message names the refused address, but must not reveal the value of a variable.
            let variable = template
                .references()
                .find(|reference| reference.source == Source::Env);
            let reason = variable.map_or_else(
                || refused.to_string(),
                |variable| {
                    let name = &variable.key;
                    format!(
                        "may not be gone to with the value of {name}: it must be https and public, or named in \
                         the operator's CHATELAINE_TENANT_EGRESS_ALLOW"
                    )
                },
            );
            return Err(InvalidDefinition::new(field, reason));
        }
    }
    Ok(entry)
}

pub(super) fn invalid_definition(fault: InvalidDefinition) -> Error {
    Error::invalid(fault.field, fault.reason)
}

/// Writes an entry into its row, with its sensitive values sealed.
async fn fill_row(app: &App, tenant: TenantId, row: &mut StoredEntry, entry: &Entry) -> Result<()> {
    row.definition = serde_json::to_string(&entry.without_secrets()).map_err(Error::internal)?;
    let sealable = entry.sealable();
    row.sealed = if sealable.is_empty() {
        None
    } else {
        Some(
            app.keys
                .seal(tenant, &entry_context(tenant, row), &sealable.to_text())
                .await?,
        )
    };
    Ok(())
}

async fn audit(
    app: &App,
    tx: &mut Tx,
    admin: &Admin,
    action: &'static str,
    row: &StoredEntry,
) -> Result<()> {
    let line = AuditRow {
        server: row.entry.clone(),
        args_sha256: Sha256::digest(&row.definition).to_vec(),
        ..AuditRow::new(
            admin.tenant(),
            app.clock.now(),
            admin.user().as_str(),
            action,
        )
    };
    store::audit::insert(tx, admin.tenant(), &[line]).await
}

fn view(row: &StoredEntry, definition: Definition) -> EntryView {
    EntryView {
        definition,
        updated_at: row.updated_at,
        etag: etag(row),
    }
}

/// The tag of a version. Every version has another tag, even when an entry is removed and created again.
fn etag(row: &StoredEntry) -> String {
    format!("\"{}.{}\"", row.id.simple(), row.version)
}

fn concurrent_change(id: &str) -> Error {
    Error::Busy {
        reason: format!("others are changing MCP server '{id}'; try again"),
        retry_after: std::time::Duration::from_secs(1),
    }
}
