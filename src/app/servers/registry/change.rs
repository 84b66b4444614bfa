//! Create, read, update, delete: for the admins of a tenant. Every change is a version, an audit line in the same
//! transaction, and news for every replica.

use serde::Serialize;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{agents_with, check_capacity, entry_context, opened, secrets::check_secrets, tell};
use crate::{
    app::App,
    domain::{
        error::{Error, ErrorCode, Result},
        ids::TenantId,
        principal::Admin,
        registry::{Definition, Entry, EntryId, InvalidDefinition, Rules, host_of},
        template::Source,
    },
    store::{self, Tx, audit::AuditRow, registry::StoredEntry},
};

/// Looks at a row that others change at the same time.
const TRIES: u8 = 5;

/// An entry as its admins see it.
#[derive(Clone, Serialize)]
pub struct EntryView {
    #[serde(flatten)]
    pub definition: Definition,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// The version, for `If-Match`.
    #[serde(skip)]
    pub etag: String,
}

/// What a change wants to find: any version, or one of these.
#[derive(Clone, Debug, Default)]
pub struct IfMatch(Option<String>);

impl IfMatch {
    /// From the header `If-Match`, if there is one.
    pub fn new(header: Option<&str>) -> Self {
        Self(header.map(str::to_owned).filter(|text| text.trim() != "*"))
    }

    fn allows(&self, etag: &str) -> bool {
        self.0
            .as_ref()
            .is_none_or(|wanted| wanted.split(',').any(|one| one.trim() == etag))
    }

    fn is_any(&self) -> bool {
        self.0.is_none()
    }
}

/// What a change found.
pub enum ChangeOutcome<T> {
    Done(T),
    /// Another version than the one that was asked for.
    Another,
}

/// The tenant's entries by name, after the entry with this name and id; with everything but what is sealed.
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
        views.push(view(&row, shown(app, admin.tenant(), &row).await?));
    }
    Ok(views)
}

pub async fn get(app: &App, admin: &Admin, id: &str) -> Result<EntryView> {
    let row = row(app, admin.tenant(), id).await?;
    let shown = shown(app, admin.tenant(), &row).await?;
    Ok(view(&row, shown))
}

/// The entry behind a row; `None` when what is sealed in it cannot be opened any more. Then it can be seen without
/// that, replaced and removed.
async fn usable(app: &App, tenant: TenantId, row: &StoredEntry) -> Result<Option<Entry>> {
    match opened(app, tenant, row).await {
        Ok(entry) => Ok(Some(entry)),
        Err(Error::Conflict(_, reason)) => {
            tracing::error!(%tenant, entry = row.entry, reason, "an entry of the registry cannot be used");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn shown(app: &App, tenant: TenantId, row: &StoredEntry) -> Result<Definition> {
    match usable(app, tenant, row).await? {
        Some(entry) => Ok(entry.masked()),
        None => serde_json::from_str(&row.definition).map_err(Error::internal),
    }
}

/// Adds an entry. An id that is taken is a conflict.
pub async fn create(app: &App, admin: &Admin, definition: Definition) -> Result<EntryView> {
    let entry = definition
        .keep_sensitive(None)
        .and_then(|definition| checked(app, definition))
        .map_err(unusable)?;
    check_secrets(app, admin.tenant(), &entry).await?;
    let mut row = StoredEntry {
        id: Uuid::now_v7(),
        entry: entry.id.to_string(),
        name: entry.definition.name.clone(),
        definition: String::new(),
        sealed: None,
        version: 1,
        updated_at: app.clock.now(),
    };
    fill(app, admin.tenant(), &mut row, &entry).await?;
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
    tell(app, admin.tenant()).await;
    Ok(view(&row, entry.masked()))
}

/// Puts a definition in the place of the one that is there. Its id never changes; sensitive values that it leaves
/// out stay.
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
        let before = row(app, admin.tenant(), id).await?;
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
        let old = usable(app, admin.tenant(), &before).await?;
        let kept = definition.clone().keep_sensitive(old.as_ref());
        let entry = kept
            .and_then(|definition| checked(app, definition))
            .map_err(unusable)?;
        check_secrets(app, admin.tenant(), &entry).await?;
        let mut row = StoredEntry {
            name: entry.definition.name.clone(),
            version: before.version + 1,
            updated_at: app.clock.now(),
            ..before
        };
        fill(app, admin.tenant(), &mut row, &entry).await?;
        let mut tx = app.db.tenant(admin.tenant()).await?;
        if store::registry::update(&mut tx, &row).await? {
            audit(app, &mut tx, admin, "registry.updated", &row).await?;
            tx.commit().await?;
            tell(app, admin.tenant()).await;
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
        let row = row(app, admin.tenant(), id).await?;
        if !wanted.allows(&etag(&row)) {
            return Ok(ChangeOutcome::Another);
        }
        let users = agents_with(app, admin.tenant(), |pack, reference| {
            reference.entry.as_str() == id
                && pack.entries.iter().all(|own| own.id != reference.entry)
        });
        let users = users.await?;
        if !users.is_empty() {
            let users = users.join(", ");
            return Err(Error::conflict(
                ErrorCode::ServerInUse,
                format!("MCP server '{id}' is used by {users}; remove it from there first"),
            ));
        }
        let mut tx = app.db.tenant(admin.tenant()).await?;
        if store::registry::delete(&mut tx, row.id, row.version).await? {
            audit(app, &mut tx, admin, "registry.removed", &row).await?;
            tx.commit().await?;
            tell(app, admin.tenant()).await;
            return Ok(ChangeOutcome::Done(()));
        }
    }
    Err(concurrent_change(id))
}

async fn row(app: &App, tenant: TenantId, id: &str) -> Result<StoredEntry> {
    let unknown = || Error::not_found(format!("MCP server {id:?}"));
    // What cannot be an id names nothing.
    EntryId::parse(id).map_err(|_| unknown())?;
    let mut tx = app.db.tenant(tenant).await?;
    store::registry::get(&mut tx, id).await?.ok_or_else(unknown)
}

/// A definition that may be stored: also its addresses may be gone to.
fn checked(app: &App, definition: Definition) -> Result<Entry, InvalidDefinition> {
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
        let variable = |reference: &crate::domain::template::Reference| match reference.source {
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

fn unusable(fault: InvalidDefinition) -> Error {
    Error::invalid(fault.field, fault.reason)
}

/// Writes an entry into its row: what is sensitive sealed, the rest as it is.
async fn fill(app: &App, tenant: TenantId, row: &mut StoredEntry, entry: &Entry) -> Result<()> {
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

/// The tag of a version. It differs for each version, also when an entry is removed and created again.
fn etag(row: &StoredEntry) -> String {
    format!("\"{}.{}\"", row.id.simple(), row.version)
}

fn concurrent_change(id: &str) -> Error {
    Error::Busy {
        reason: format!("others are changing MCP server '{id}'; try again"),
        retry_after: std::time::Duration::from_secs(1),
    }
}
