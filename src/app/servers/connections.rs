//! Shared servers: all are connected in the background at once, and one that is down is retried while the others
//! serve. The result of a discovery is an immutable catalog, kept in memory and in Postgres.
//!
//! [`supervise`] runs one task per (tenant, agent, shared server). A personal server has such a task only where the
//! operator gave it headers for discovery. A server whose requests contain values of a run has none: its catalog is
//! fetched by the first run that needs it, and shared by the runs that reach the server with the same values
//! ([`catalog_of`]).

mod supervision; // the task of each server
mod view; // the state of a server, for people

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use moka::{Expiry, future::Cache};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::{
    supervision::{await_connecting, await_first_discovery, await_required, supervise},
    view::{ConnectionKind, ConnectionView, State},
};
use crate::app::{App, servers::credentials};
use domain::{
    error::Result,
    ids::{AgentId, ServerId, TenantId},
    owner::{CatalogOwner, ConnectionOwner},
    server::ServerSpec,
    tool::Catalog,
};
use mcp::{Discovery, Key, McpError};

/// Identifies a shared server of an agent of a tenant.
type SharedServerKey = (TenantId, AgentId, ServerId);

#[derive(Default)]
pub struct Connections {
    servers: Mutex<HashMap<SharedServerKey, SharedServer>>,
    /// Set when all packs and tenants have been read once and the tasks of their servers were started.
    reconciled: CancellationToken,
    /// Notified when a turn waits for a server that has no task yet.
    check_requested: Notify,
    per_run: PerRunCatalogs,
}

/// One shared server, its state and its tools.
struct SharedServer {
    spec: Arc<ServerSpec>,
    stop: CancellationToken,
    catalog: Option<Arc<Catalog>>,
    state: State,
}

/// The key of a shared server's connection.
pub fn server_key(tenant: TenantId, agent: &AgentId, server: &ServerId) -> Key {
    Key {
        tenant,
        agent: agent.clone(),
        server: server.clone(),
        owner: ConnectionOwner::Shared,
    }
}

impl Connections {
    /// The catalog of a shared server; `None` before its first discovery.
    pub fn catalog(
        &self,
        tenant: TenantId,
        agent: &AgentId,
        server: &ServerId,
    ) -> Option<Arc<Catalog>> {
        self.servers()
            .get(&(tenant, agent.clone(), server.clone()))?
            .catalog
            .clone()
    }

    /// The number of shared servers that are ready, and of those that are down.
    pub fn count(&self) -> (usize, usize) {
        let servers = self.servers();
        let count = |wanted: fn(&State) -> bool| {
            servers
                .values()
                .filter(|server| wanted(&server.state))
                .count()
        };
        (
            count(|state| matches!(state, State::Ready { .. })),
            count(|state| matches!(state, State::Down { .. })),
        )
    }

    /// Changes the state of a server, unless the server was replaced by another version of it.
    fn update(
        &self,
        server_id: &SharedServerKey,
        spec: &Arc<ServerSpec>,
        change: impl FnOnce(&mut SharedServer),
    ) {
        if let Some(server) = self
            .servers()
            .get_mut(server_id)
            .filter(|server| Arc::ptr_eq(&server.spec, spec))
        {
            change(server);
        }
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<SharedServerKey, SharedServer>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time until a list that could not be stored is fetched again.
const UNSTORED: Duration = Duration::from_secs(30);

/// Loads the catalog that an earlier process stored, so that the tools are listed at once.
async fn load_stored(app: &App, server_id: &SharedServerKey, spec: &Arc<ServerSpec>) -> Result<()> {
    let mut tx = app.db.tenant(server_id.0).await?;
    let stored = store::catalogs::list(
        &mut tx,
        &server_id.1,
        &[(server_id.2.clone(), CatalogOwner::Shared)],
    )
    .await?
    .pop();
    app.connections.update(server_id, spec, |server| {
        if server.catalog.is_none() {
            server.catalog = stored.map(|(catalog, _)| Arc::new(catalog));
        }
    });
    Ok(())
}

/// Puts a discovery in force, stores it if it differs from the known catalog, and returns how long it is fresh.
async fn take_discovery(
    app: &App,
    server_id: &SharedServerKey,
    spec: &Arc<ServerSpec>,
    discovery: Discovery,
) -> Duration {
    let (tenant, agent, id) = server_id;
    let catalog = Arc::new(make_catalog(app, id, &discovery));
    let mut is_changed = false;
    app.connections.update(server_id, spec, |server| {
        server.state = State::Ready {
            protocol: discovery.protocol.clone(),
        };
        is_changed = server
            .catalog
            .as_ref()
            .is_none_or(|known| (&known.version, known.cache) != (&catalog.version, catalog.cache));
        if is_changed {
            server.catalog = Some(catalog.clone());
        }
    });
    if !is_changed {
        return catalog.fresh_for();
    }
    tracing::info!(server = %id, %agent, tools = catalog.tools.len(), "tools discovered");
    let pack = app.packs.get(agent);
    let unmatched = pack.map(|pack| pack.unmatched_names(spec, &catalog.tool_names()));
    for unmatched in unmatched.unwrap_or_default() {
        tracing::warn!(server = %id, %agent, unmatched, "the names in the pack and those of the tools need a look");
    }
    for dropped in &catalog.dropped {
        tracing::warn!(server = %id, dropped, "a tool was left out");
    }
    let stored = async {
        let mut tx = app.db.tenant(*tenant).await?;
        store::catalogs::put(&mut tx, *tenant, agent, CatalogOwner::Shared, &catalog).await?;
        tx.commit().await
    };
    if let Err(error) = stored.await {
        tracing::warn!(%error, server = %id, "the catalog cannot be stored; it is kept in memory");
    }
    catalog.fresh_for()
}

/// Like [`take_discovery`], for a personal server that was discovered with the operator's headers. The list serves the
/// users who have a credential of their own.
async fn take_discovery_for_users(
    app: &App,
    key: &Key,
    server_id: &SharedServerKey,
    spec: &Arc<ServerSpec>,
    discovery: &Discovery,
) -> Duration {
    app.connections.update(server_id, spec, |server| {
        server.state = State::Ready {
            protocol: discovery.protocol.clone(),
        };
    });
    credentials::store_catalog(app, key, spec, discovery).await.unwrap_or_else(|error| {
        tracing::warn!(%error, server = %spec.id, "what a server said of its tools cannot be stored");
        UNSTORED
    })
}

/// Makes the catalog of a discovery.
pub(in crate::app) fn make_catalog(app: &App, server: &ServerId, discovery: &Discovery) -> Catalog {
    Catalog {
        server: server.clone(),
        tools: discovery.tools.clone(),
        prompts: discovery.prompts.clone(),
        dropped: discovery.dropped.clone(),
        fetched_at: app.clock.now(),
        cache: discovery.cache,
        version: fingerprint(discovery),
    }
}

/// SHA-256 over a server's lists of tools and prompts, in hex.
fn fingerprint(discovery: &Discovery) -> String {
    let mut digest = Sha256::new();
    for tool in &discovery.tools {
        digest.update(serde_json::to_vec(&**tool).expect("a tool is plain JSON"));
        digest.update([0]);
    }
    for prompt in &discovery.prompts {
        digest.update(serde_json::to_vec(&**prompt).expect("a prompt is plain JSON"));
        digest.update([1]);
    }
    hex::encode(digest.finalize())
}

/// The pause before a server that lacks tools is asked again.
const AGAIN: Duration = Duration::from_millis(250);

/// Discovers the tools and prompts of a server. A server that lists fewer tools than its pack names may still be
/// starting, so it is asked once more. A tool that is still missing costs only itself, and each run without it says
/// so.
pub(in crate::app) async fn discover(
    app: &App,
    key: &Key,
    spec: &Arc<ServerSpec>,
) -> Result<Discovery, McpError> {
    let first = app.mcp.discover(key, spec).await?;
    if !spec.load_tools || spec.missing(&first.tools).is_empty() {
        return Ok(first);
    }
    tokio::time::sleep(AGAIN).await;
    // The first answer holds even if the second request fails.
    Ok(app.mcp.discover(key, spec).await.unwrap_or(first))
}

const REMEMBERED: u64 = 1024;

/// The catalogs of servers whose requests contain values of a run, by connection.
struct PerRunCatalogs(Cache<Key, Arc<Catalog>>);

impl Default for PerRunCatalogs {
    fn default() -> Self {
        Self(
            Cache::builder()
                .max_capacity(REMEMBERED)
                .expire_after(Freshness)
                .build(),
        )
    }
}

struct Freshness;

impl Expiry<Key, Arc<Catalog>> for Freshness {
    fn expire_after_create(&self, _: &Key, catalog: &Arc<Catalog>, _: Instant) -> Option<Duration> {
        Some(catalog.fresh_for())
    }
}

/// The key of the connection to a shared server: one for all runs, or one for each set of values that runs send to it.
pub fn shared_key(tenant: TenantId, agent: &AgentId, spec: &ServerSpec) -> Key {
    Key {
        owner: spec
            .run_config
            .map_or(ConnectionOwner::Shared, ConnectionOwner::RunConfig),
        ..server_key(tenant, agent, &spec.id)
    }
}

/// The tools of a shared server; `None` when they are not known. A server that differs per run is asked now, unless a
/// run with the same values has asked it before.
pub async fn catalog_of(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    spec: &ServerSpec,
) -> Option<Arc<Catalog>> {
    if spec.run_config.is_none() {
        return app.connections.catalog(tenant, agent, &spec.id);
    }
    let key = shared_key(tenant, agent, spec);
    let list = async {
        let discovery = discover(app, &key, &Arc::new(spec.clone())).await?;
        Ok::<_, McpError>(Arc::new(make_catalog(app, &spec.id, &discovery)))
    };
    match Box::pin(app.connections.per_run.0.try_get_with(key.clone(), list)).await {
        Ok(catalog) => Some(catalog),
        Err(error) => {
            tracing::warn!(server = %spec.id, %agent, reason = %error, "a run's server cannot be reached");
            None
        }
    }
}
