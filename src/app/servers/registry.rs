//! The registry of servers: the entries that a tenant's admins define, and the packs that refer to them.
//!
//! The rows are the truth. A process keeps each tenant's entries and secrets, decrypted, in memory
//! ([`RegistrySnapshot`]) while requests need them. A change is announced to the other replicas at once, and each
//! process also polls for changes every second ([`poll_changes`]). [`pack_for`] completes a pack for a tenant;
//! [`pack_for_run`] completes it with the values of a run.
//!
//! Invariant: a variable of the environment reaches a server that a tenant defined only if the operator granted it,
//! whoever wrote the reference.

mod change; // entries, as admins change them
mod resolution; // packs with the servers of their references
mod secrets;
pub mod settings; // what admins set for the servers of agents and capabilities

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use moka::future::Cache;
use tokio::sync::{Notify, OnceCell};

use self::resolution::{ResolvedPack, entry_named};
pub(in crate::app) use self::resolution::{entry_of, join_settings, resolution_problem};
pub use self::{
    change::{ChangeOutcome, EntryView, IfMatch, create, get, list, remove, update},
    resolution::{ResolutionError, pack_for, pack_for_run, resolve},
    secrets::{SecretView, list_secrets, put_secret, remove_secret},
};
use crate::app::{App, platform::keys::contexts};
use domain::{
    config::Environment,
    error::{Error, ErrorCode, Result},
    ids::{AgentId, TenantId},
    pack::Pack,
    registry::{
        Definition, Entry, EntryId, Grants, Rules, SensitiveValues, ServerRef,
        settings::ServerSetting,
    },
    secret::Secret,
};
use egress::Egress;
use store::{Tx, hints::Hint, registry::StoredEntry, secrets::StoredSecret, vault::Context};

/// Tenants whose registry is in memory, and how long an idle one stays there.
const TENANTS: u64 = 10_000;
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// The most entries of one tenant, and the most secrets.
pub const MAX_ENTRIES: i64 = 1000;

pub struct Registry {
    egress: Egress,
    env: Environment,
    grants: Grants,
    snapshots: Cache<TenantId, Arc<RegistrySnapshot>>,
    /// How often each tenant's registry has changed, as far as this process knows.
    changes: Mutex<HashMap<TenantId, u64>>,
    /// Tenants whose admins may have set something for the servers of agents: those with rows, and those whose registry
    /// has changed since. The registry of any other tenant is not needed for a pack without references.
    configured: Mutex<HashSet<TenantId>>,
    /// Set when the rows have been asked once.
    configured_known: OnceCell<()>,
    /// Packs with the servers that they take from a tenant's registry.
    packs: Cache<(TenantId, AgentId), Arc<ResolvedPack>>,
    news: Notify,
}

impl Registry {
    /// `granted`: the variables that tenants' entries may refer to.
    pub fn new(egress: Egress, env: &Environment, granted: &[String]) -> Self {
        let cache = |most| {
            Cache::builder()
                .max_capacity(most)
                .time_to_idle(FORGOTTEN_AFTER)
        };
        Self {
            egress,
            env: env.clone(),
            grants: Grants::new(granted),
            snapshots: cache(TENANTS).build(),
            changes: Mutex::default(),
            configured: Mutex::default(),
            configured_known: OnceCell::new(),
            packs: Cache::builder()
                .max_capacity(TENANTS)
                .time_to_idle(FORGOTTEN_AFTER)
                .build(),
            news: Notify::new(),
        }
    }

    fn changes(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes_of(&self, tenant: TenantId) -> u64 {
        self.changes().get(&tenant).copied().unwrap_or_default()
    }

    fn configured(&self) -> MutexGuard<'_, HashSet<TenantId>> {
        self.configured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes when a tenant's registry has changed since the last time.
    pub async fn wait_for_change(&self) {
        self.news.notified().await;
    }
}

/// Forgets a tenant's registry, which has changed here or on another replica.
pub async fn forget(app: &App, tenant: TenantId) {
    *app.registry.changes().entry(tenant).or_default() += 1;
    app.registry.configured().insert(tenant);
    app.registry.snapshots.invalidate(&tenant).await;
    app.registry.news.notify_one();
}

/// Forgets a tenant's registry on every replica.
async fn announce_change(app: &App, tenant: TenantId) {
    forget(app, tenant).await;
    let _ = app.hints.send(Hint::Registry { tenant });
}

/// The agents of a tenant that have a reference for which `uses` holds.
async fn find_agents(
    app: &App,
    tenant: TenantId,
    uses: impl Fn(&Pack, &ServerRef) -> bool,
) -> Result<Vec<String>> {
    let tenant = app.accounts.tenant(tenant).await?;
    let packs = app.packs.snapshot();
    let packs = packs.packs().filter(|pack| tenant.serves(pack.id()));
    let using = packs.filter(|pack| {
        pack.references
            .iter()
            .any(|reference| uses(pack, reference))
    });
    Ok(using.map(|pack| pack.id().to_string()).collect())
}

/// Refuses an addition beyond the limit. Two concurrent additions may both be accepted as the last one.
fn check_capacity(count: i64, of_what: &str) -> Result<()> {
    if count < MAX_ENTRIES {
        return Ok(());
    }
    Err(Error::conflict(
        ErrorCode::LimitReached,
        format!(
            "there are {count} {of_what}, and there may be {MAX_ENTRIES} at most; remove one first"
        ),
    ))
}

/// A tenant's registry as it was at one moment.
#[derive(Default)]
pub struct RegistrySnapshot {
    stamp: String,
    /// The number of changes that this process had seen before the rows were read.
    after: u64,
    entries: BTreeMap<EntryId, Arc<Entry>>,
    secrets: BTreeMap<String, Secret>,
    /// What the admins set for the servers of agents and capabilities.
    pub(in crate::app) settings: Vec<ServerSetting>,
}

/// A tenant's registry, from memory or from its rows. It includes every change that this process has answered before.
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
        let snapshot = loaded.map_err(|error: Arc<Error>| error.share())?;
        if snapshot.after >= changes {
            return Ok(snapshot);
        }
    }
}

async fn load(app: &App, tenant: TenantId) -> Result<Arc<RegistrySnapshot>> {
    let after = app.registry.changes_of(tenant);
    let mut tx = app.db.tenant(tenant).await?;
    let stamp = store::registry::get_stamp(&mut tx).await?;
    let rows = store::registry::list(&mut tx, None, 2 * MAX_ENTRIES).await?;
    let stored = store::secrets::list(&mut tx).await?;
    let set = store::server_settings::list(&mut tx).await?;
    drop(tx);
    let (mut entries, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for row in rows {
        match open_entry(app, tenant, &row).await {
            Ok(entry) => drop(entries.insert(entry.id.clone(), Arc::new(entry))),
            Err(error) if error.is_passing() => return Err(error),
            Err(error) => {
                tracing::error!(%tenant, entry = row.entry, error = error.with_cause(), "an entry of the registry cannot be used");
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
            Err(error) if error.is_passing() => return Err(error),
            Err(error) => {
                tracing::error!(%tenant, secret = row.name, error = error.with_cause(), "a secret cannot be opened");
            }
        }
    }
    Ok(Arc::new(RegistrySnapshot {
        stamp,
        after,
        entries,
        secrets,
        settings: set
            .iter()
            .filter_map(|row| settings::read_row(tenant, row))
            .collect(),
    }))
}

/// Decrypts an entry. It is parsed with the operator's rules, because the tenant's rules are checked at each
/// resolution.
async fn open_entry(app: &App, tenant: TenantId, row: &StoredEntry) -> Result<Entry> {
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

/// The context of an entry. Its scope contains a colon, which no credential's scope does, so neither opens as the
/// other.
fn entry_context(tenant: TenantId, row: &StoredEntry) -> Context {
    contexts::of_entry(tenant, &row.entry, row.id, row.version)
}

fn secret_context(tenant: TenantId, row: &StoredSecret) -> Context {
    contexts::of_secret(tenant, &row.name, row.id, row.version)
}

/// Whether a tenant's admins may have set something for the servers of agents.
async fn may_have_settings(app: &App, tenant: TenantId) -> Result<bool> {
    let find = async || find_configured(app, &mut app.db.system().await?).await;
    let known = &app.registry.configured_known;
    known.get_or_try_init(find).await?;
    Ok(app.registry.configured().contains(&tenant))
}

async fn find_configured(app: &App, tx: &mut Tx) -> Result<()> {
    let found = store::server_settings::list_tenants(tx).await?;
    app.registry.configured().extend(found);
    Ok(())
}

/// Looks for changed registries among those in memory: one query for all tenants, and one for the tenants with settings.
pub async fn poll_changes(app: &Arc<App>) -> Result<()> {
    let found = app
        .db
        .look(|tx| Box::pin(store::server_settings::list_tenants(tx)));
    let found = found.await?;
    app.registry.configured().extend(found);
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
    let stamps = app
        .db
        .look(move |tx| Box::pin(async move { store::registry::list_stamps(tx, &tenants).await }));
    let stamps = stamps.await?;
    for (tenant, snapshot) in known {
        if stamps.get(&tenant).map_or("", String::as_str) != snapshot.stamp {
            forget(app, tenant).await;
        }
    }
    Ok(())
}
