//! A tenant's registry in memory: its entries and secrets, opened, as they were at one moment.

use std::{collections::BTreeMap, sync::Arc};

use super::{MAX_ENTRIES, changed};
use crate::{
    app::{App, platform::keys::contexts},
    domain::{
        error::{Error, ErrorCode, Result},
        ids::TenantId,
        registry::{Definition, Entry, EntryId, Rules, SensitiveValues},
        secret::Secret,
    },
    store::{self, registry::StoredEntry, secrets::StoredSecret},
    vault::Context,
};

/// A tenant's registry as it was at one moment.
#[derive(Default)]
pub struct RegistrySnapshot {
    pub(super) stamp: String,
    /// Read after so many changes.
    after: u64,
    pub(super) entries: BTreeMap<EntryId, Arc<Entry>>,
    pub(super) secrets: BTreeMap<String, Secret>,
}

/// A tenant's registry, from memory or from its rows: never as it was before a change that was made here and answered.
pub(in crate::app) async fn snapshot(app: &App, tenant: TenantId) -> Result<Arc<RegistrySnapshot>> {
    let (snapshots, changes) = (&app.registry.snapshots, app.registry.changes_of(tenant));
    loop {
        if let Some(snapshot) = snapshots.get(&tenant).await {
            if snapshot.after >= changes {
                return Ok(snapshot);
            }
            // A reader that began before the change may have stored the old state after it.
            snapshots.invalidate(&tenant).await;
        }
        // Boxed to keep the futures of the callers small.
        let loaded = Box::pin(snapshots.try_get_with(tenant, load(app, tenant))).await;
        let snapshot = loaded.map_err(|error: Arc<Error>| match &*error {
            Error::Busy {
                reason,
                retry_after,
            } => Error::Busy {
                reason: reason.clone(),
                retry_after: *retry_after,
            },
            Error::Unavailable(reason) => Error::Unavailable(reason.clone()),
            other => Error::Internal(anyhow::anyhow!("{other:?}")),
        })?;
        if snapshot.after >= changes {
            return Ok(snapshot);
        }
    }
}

async fn load(app: &App, tenant: TenantId) -> Result<Arc<RegistrySnapshot>> {
    let after = app.registry.changes_of(tenant);
    let mut tx = app.db.tenant(tenant).await?;
    let stamp = store::registry::stamp(&mut tx).await?;
    let rows = store::registry::list(&mut tx, None, 2 * MAX_ENTRIES).await?;
    let stored = store::secrets::all(&mut tx).await?;
    drop(tx);
    let (mut entries, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for row in rows {
        match opened(app, tenant, &row).await {
            Ok(entry) => drop(entries.insert(entry.id.clone(), Arc::new(entry))),
            Err(error @ (Error::Busy { .. } | Error::Unavailable(_) | Error::Internal(_))) => {
                return Err(error);
            }
            Err(error) => {
                tracing::error!(%tenant, entry = row.entry, %error, "an entry of the registry cannot be used");
            }
        }
    }
    for row in stored {
        let context = secret_context(tenant, &row);
        match app
            .keys
            .open(tenant, &context, &row.sealed)
            .await
            .map_err(Error::from)
        {
            Ok(secret) => drop(secrets.insert(row.name, secret)),
            Err(error @ (Error::Busy { .. } | Error::Unavailable(_) | Error::Internal(_))) => {
                return Err(error);
            }
            Err(error) => {
                tracing::error!(%tenant, secret = row.name, %error, "a secret cannot be opened");
            }
        }
    }
    Ok(Arc::new(RegistrySnapshot {
        stamp,
        after,
        entries,
        secrets,
    }))
}

/// An entry with its secrets. What was allowed when it was written is checked again when it is resolved.
pub(super) async fn opened(app: &App, tenant: TenantId, row: &StoredEntry) -> Result<Entry> {
    let mut definition: Definition =
        serde_json::from_str(&row.definition).map_err(Error::internal)?;
    if let Some(sealed) = &row.sealed {
        let text = app
            .keys
            .open(tenant, &entry_context(tenant, row), sealed)
            .await?;
        definition = definition.with(SensitiveValues::from_text(&text).map_err(Error::internal)?);
    }
    Entry::parse(definition, Rules::Operator)
        .map_err(|fault| Error::conflict(ErrorCode::Conflict, fault.to_string()))
}

/// The context of an entry. Its scope contains a colon, which no scope of a credential has, so the two
/// never mix.
pub(super) fn entry_context(tenant: TenantId, row: &StoredEntry) -> Context {
    contexts::of_entry(tenant, &row.entry, row.id, row.version)
}

pub(super) fn secret_context(tenant: TenantId, row: &StoredSecret) -> Context {
    contexts::of_secret(tenant, &row.name, row.id, row.version)
}

/// Has a registry changed that is in memory? One query for all tenants.
pub async fn find_news(app: &Arc<App>) -> Result<()> {
    let known: Vec<(TenantId, Arc<RegistrySnapshot>)> = app
        .registry
        .snapshots
        .iter()
        .map(|(tenant, snapshot)| (*tenant, snapshot))
        .collect();
    if known.is_empty() {
        return Ok(());
    }
    let tenants: Vec<_> = known.iter().map(|(tenant, _)| *tenant).collect();
    let mut tx = app.db.system().await?;
    let stamps = store::registry::stamps(&mut tx, &tenants).await?;
    drop(tx);
    for (tenant, snapshot) in known {
        if stamps.get(&tenant).map_or("", String::as_str) != snapshot.stamp {
            changed(app, tenant).await;
        }
    }
    Ok(())
}
