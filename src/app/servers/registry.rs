//! The registry of servers at work: what a tenant's admins define, and what packs make of it.
//!
//! Truth is rows. A process keeps each tenant's entries and secrets in memory ([`RegistrySnapshot`]), opened, for as long as
//! somebody asks for them; a change is told to the other replicas at once and looked for each second. A pack is
//! put to use for a tenant by [`pack_for`]; within a run, whose values it needs, by [`pack_for_run`].
//!
//! Invariant: a variable of the environment reaches a server that a tenant defined only if the operator granted
//! it, whoever wrote the reference.

mod change; // what admins change
mod resolution; // packs with the servers of their references
mod secret_hosts;
mod secrets;
mod snapshot; // a tenant's registry in memory
pub mod tokens;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use moka::future::Cache;
use tokio::sync::Notify;

pub use self::{
    change::{ChangeOutcome, EntryView, IfMatch, create, get, list, remove, update},
    resolution::{ResolutionError, pack_for, pack_for_run, resolve},
    secrets::{SecretView, list_secrets, put_secret, remove_secret},
    snapshot::{RegistrySnapshot, find_news},
};
use self::{
    resolution::ResolvedPack,
    snapshot::{entry_context, opened, secret_context},
};
pub(in crate::app) use self::{
    resolution::{entry_of, resolution_problem},
    snapshot::snapshot,
};
use crate::{
    app::App,
    domain::{
        config::Environment,
        error::{Error, ErrorCode, Result},
        ids::{AgentId, TenantId},
        pack::Pack,
        registry::{Grants, ServerRef},
    },
    egress::Egress,
    store::hints::Hint,
};

/// Tenants whose registry is in memory, and for how long when nobody asks.
const TENANTS: u64 = 10_000;
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Entries of one tenant, and secrets.
pub const MAX_ENTRIES: i64 = 1000;

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
