//! The registry of servers at work: what a tenant's admins define, and what packs make of it.
//!
//! Truth is rows. A process keeps each tenant's entries and secrets in memory ([`RegistrySnapshot`]), opened, for as long as
//! somebody asks for them; a change is told to the other replicas at once and looked for each second. A pack is
//! put to use for a tenant by [`pack_for`]; within a run, whose values it needs, by [`pack_for_run`].
//!
//! Invariant: a variable of the environment reaches a server that a tenant defined only if the operator granted
//! it, whoever wrote the reference.

mod change;
mod secret_hosts;
mod secrets;
pub mod tokens;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use moka::future::Cache;
use tokio::sync::Notify;

pub use self::{
    change::{ChangeOutcome, EntryView, IfMatch, create, get, list, remove, update},
    secrets::{SecretView, list_secrets, put_secret, remove_secret},
};
use crate::app::{App, platform::keys::contexts};
use crate::{
    domain::{
        config::Environment,
        error::{Error, Result},
        ids::{AgentId, TenantId},
        pack::Pack,
        registry::{
            Definition, Entry, EntryId, Grants, Rules, SensitiveValues, ServerRef,
            merge::{depends_on_run, merge},
            resolve::{self, ReferenceValues, ResolveError, ResolvedServer, Sources},
        },
        secret::Secret,
    },
    egress::Egress,
    store::{self, hints::Hint, registry::StoredEntry, secrets::StoredSecret},
    vault::Context,
};

/// Tenants whose registry is in memory, and for how long when nobody asks.
const TENANTS: u64 = 10_000;
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Entries of one tenant, and secrets.
pub const MOST: i64 = 1000;

pub struct Registry {
    egress: Egress,
    env: Environment,
    grants: Grants,
    snapshots: Cache<TenantId, Arc<RegistrySnapshot>>,
    /// How often each tenant's registry has changed, as far as this process knows.
    changes: Mutex<HashMap<TenantId, u64>>,
    /// Packs as tenants see them.
    packs: Cache<(TenantId, AgentId), Arc<ResolvedPack>>,
    news: Notify,
}

/// A tenant's registry as it was at one moment.
#[derive(Default)]
pub struct RegistrySnapshot {
    stamp: String,
    /// Read after so many changes.
    after: u64,
    entries: BTreeMap<EntryId, Arc<Entry>>,
    secrets: BTreeMap<String, Secret>,
}

/// A pack with the servers that it takes from one state of the registry.
struct ResolvedPack {
    base: Arc<Pack>,
    stamp: String,
    pack: Arc<Pack>,
}

/// Why a run's servers were not resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolutionError {
    /// The caller can mend it: nothing was begun.
    #[error(transparent)]
    Config(#[from] ResolveError),
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<ResolutionError> for Error {
    fn from(error: ResolutionError) -> Self {
        match error {
            ResolutionError::Config(error) => error.into(),
            ResolutionError::Failed(error) => error,
        }
    }
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

    /// Completes when a tenant's registry has changed since the last time.
    pub async fn news(&self) {
        self.news.notified().await;
    }
}

/// What a pack's reference refers to, and whose it is. What lies beside the pack goes first.
pub(in crate::app) fn entry_of<'a>(
    app: &'a App,
    snapshot: &'a RegistrySnapshot,
    pack: &'a Pack,
    reference: &ServerRef,
) -> Option<(&'a Arc<Entry>, Rules<'a>)> {
    let own = pack
        .entries
        .iter()
        .find(|entry| entry.id == reference.entry);
    match own {
        Some(entry) => Some((entry, Rules::Operator)),
        None => Some((
            snapshot.entries.get(&reference.entry)?,
            Rules::of_tenant(&app.registry.grants),
        )),
    }
}

/// The pack as it is for a tenant outside of runs: with the servers of its references that are the same for every
/// run. One that cannot be resolved is left out, and said so in the log and by `servers::list`.
pub async fn pack_for(app: &App, tenant: TenantId, pack: &Arc<Pack>) -> Result<Arc<Pack>> {
    if pack.references.is_empty() {
        return Ok(pack.clone());
    }
    let snapshot = snapshot(app, tenant).await?;
    let place = (tenant, pack.id().clone());
    let known = app.registry.packs.get(&place).await;
    if let Some(known) =
        known.filter(|known| Arc::ptr_eq(&known.base, pack) && known.stamp == snapshot.stamp)
    {
        return Ok(known.pack.clone());
    }
    let mut servers = Vec::new();
    for reference in &pack.references {
        match resolve_one(
            app,
            &snapshot,
            pack,
            reference,
            &ReferenceValues::default(),
            true,
        ) {
            Ok(Some(resolved)) => servers.push(resolved),
            Ok(None) => {}
            Err(reason) => {
                tracing::warn!(%tenant, agent = %pack.id(), %reason, "a server of the registry is left out");
            }
        }
    }
    let served = with_servers(pack, &servers);
    let new = ResolvedPack {
        base: pack.clone(),
        stamp: snapshot.stamp.clone(),
        pack: served.clone(),
    };
    app.registry.packs.insert(place, Arc::new(new)).await;
    Ok(served)
}

/// Every reference of a pack with the values of a run, in the pack's order. One that cannot be resolved is an
/// error that says what is missing, and nothing should be begun.
pub async fn resolve(
    app: &App,
    tenant: TenantId,
    pack: &Pack,
    values: &ReferenceValues,
) -> Result<Vec<ResolvedServer>, ResolutionError> {
    if pack.references.is_empty() {
        return Ok(Vec::new());
    }
    let snapshot = snapshot(app, tenant).await?;
    let mut resolved = Vec::with_capacity(pack.references.len());
    for reference in &pack.references {
        resolved.extend(resolve_one(app, &snapshot, pack, reference, values, false)?);
    }
    Ok(resolved)
}

/// The pack as it is in a run with these values: with every server that it takes from the registry. Toolbox and
/// gate need nothing else; connections are shared by runs that reach a server in the same way, and by no others.
pub async fn pack_for_run(
    app: &App,
    tenant: TenantId,
    pack: &Arc<Pack>,
    values: &ReferenceValues,
) -> Result<Arc<Pack>, ResolutionError> {
    Ok(with_servers(
        pack,
        &resolve(app, tenant, pack, values).await?,
    ))
}

/// The pack with these in the place of all servers of its references.
fn with_servers(pack: &Arc<Pack>, resolved: &[ResolvedServer]) -> Arc<Pack> {
    let mut served = Pack::clone(pack);
    served.servers.retain(|server| {
        !served
            .references
            .iter()
            .any(|reference| reference.alias == server.id)
    });
    served.servers.extend(
        resolved
            .iter()
            .map(|resolved| resolved.spec.as_ref().clone()),
    );
    Arc::new(served)
}

/// Resolves one reference. `Ok(None)`: the server differs for each run, and there is no run (`outside`).
fn resolve_one(
    app: &App,
    snapshot: &RegistrySnapshot,
    pack: &Pack,
    reference: &ServerRef,
    values: &ReferenceValues,
    outside: bool,
) -> Result<Option<ResolvedServer>, ResolveError> {
    let Some((entry, rules)) = entry_of(app, snapshot, pack, reference) else {
        let (alias, entry) = (reference.alias.clone(), reference.entry.clone());
        return Err(ResolveError::UnknownEntry { alias, entry });
    };
    if outside && merge(entry, reference).is_ok_and(|merged| depends_on_run(entry, &merged)) {
        return Ok(None);
    }
    let sources = Sources {
        env: &app.registry.env,
        rules,
        secrets: &snapshot.secrets,
        run: values,
    };
    resolve::resolve(entry, reference, sources).map(Some)
}

/// Why a reference cannot be resolved, for people; `None` when it can, as far as can be told outside of runs.
pub(in crate::app) fn resolution_problem(
    app: &App,
    snapshot: &RegistrySnapshot,
    pack: &Pack,
    reference: &ServerRef,
) -> Option<String> {
    let none = ReferenceValues::default();
    let resolution_problem = match resolve_one(app, snapshot, pack, reference, &none, true) {
        Ok(Some(_)) => None,
        Ok(None) => entry_of(app, snapshot, pack, reference).and_then(|(entry, rules)| {
            let sources = Sources {
                env: &app.registry.env,
                rules,
                secrets: &snapshot.secrets,
                run: &none,
            };
            resolve::find_missing(entry, reference, sources)
        }),
        Err(error) => Some(error),
    };
    resolution_problem.map(|error| error.to_string())
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
    let rows = store::registry::list(&mut tx, None, 2 * MOST).await?;
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
async fn opened(app: &App, tenant: TenantId, row: &StoredEntry) -> Result<Entry> {
    let mut definition: Definition =
        serde_json::from_str(&row.definition).map_err(Error::internal)?;
    if let Some(sealed) = &row.sealed {
        let text = app
            .keys
            .open(tenant, &entry_context(tenant, row), sealed)
            .await?;
        definition = definition.with(SensitiveValues::from_text(&text).map_err(Error::internal)?);
    }
    Entry::parse(definition, Rules::Operator).map_err(|fault| Error::Conflict(fault.to_string()))
}

/// The context of an entry. Its scope contains a colon, which no scope of a credential has, so the two
/// never mix.
fn entry_context(tenant: TenantId, row: &StoredEntry) -> Context {
    contexts::of_entry(tenant, &row.entry, row.id, row.version)
}

fn secret_context(tenant: TenantId, row: &StoredSecret) -> Context {
    contexts::of_secret(tenant, &row.name, row.id, row.version)
}

/// Forgets what is known of a tenant's registry: it has changed, here or elsewhere.
pub async fn changed(app: &App, tenant: TenantId) {
    *app.registry.changes().entry(tenant).or_default() += 1;
    app.registry.snapshots.invalidate(&tenant).await;
    app.registry.news.notify_one();
}

/// The same, and tells the other replicas.
async fn tell(app: &App, tenant: TenantId) {
    changed(app, tenant).await;
    let _ = app.hints.send(Hint::Registry { tenant });
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

/// The agents of a tenant whose references pass a test on what they refer to.
async fn agents_with(
    app: &App,
    tenant: TenantId,
    uses: impl Fn(&Pack, &ServerRef) -> bool,
) -> Result<Vec<String>> {
    let tenant = app.accounts.tenant(tenant).await?;
    let packs = app.library.snapshot();
    let packs = packs.packs().filter(|pack| tenant.serves(pack.id()));
    let using = packs.filter(|pack| {
        pack.references
            .iter()
            .any(|reference| uses(pack, reference))
    });
    Ok(using.map(|pack| pack.id().to_string()).collect())
}

/// Refuses one more row than the limit. Two concurrent additions may both be accepted as the last one.
fn check_capacity(count: i64, of_what: &str) -> Result<()> {
    if count < MOST {
        return Ok(());
    }
    Err(Error::Conflict(format!(
        "there are {count} {of_what}, and there may be {MOST} at most; remove one first"
    )))
}
