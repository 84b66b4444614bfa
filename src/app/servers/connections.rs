//! Shared servers: the connections that everybody uses, and the tools that were found over them. The result of a
//! discovery is an immutable catalog, kept in memory and in Postgres.
//!
//! [`SharedKey`] says who shares: a server of a pack is one connection for all tenants and agents that reach it in the same
//! way, and one for each tenant where the pack or the transport says so. What a tenant's registry has is that tenant's.
//!
//! [`supervise`] runs one task for each connection that is known here: those that packs want at the start, and the others
//! from their first use until nobody has used them for a while. A personal server has such a task only where the operator
//! gave it headers for discovery. A server whose requests contain values of a run has none: its catalog is fetched by the
//! first run that needs it, and shared by the runs that reach the server with the same values ([`catalog_of`]).

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
use uuid::Uuid;

pub use self::{
    supervision::{await_connecting, await_first_discovery, await_required, supervise},
    view::{ConnectionKind, ConnectionView, State},
};
use crate::app::{App, servers::pins};
use domain::{
    clock,
    error::Result,
    ids::{AgentId, ServerId, TenantId},
    orchestrator,
    owner::{CatalogOwner, SharedKey},
    server::{AccessMode, ServerSpec},
    tool::Catalog,
};
use mcp::{Discovery, Key, McpError};

#[derive(Default)]
pub struct Connections {
    servers: Mutex<HashMap<SharedKey, SharedServer>>,
    /// Set when all packs have been read once and the tasks of the servers that are connected at the start were begun.
    reconciled: CancellationToken,
    /// Notified when a server is used that has no task yet.
    first_use: Notify,
    per_run: PerRunCatalogs,
}

/// One shared server, its state and its tools.
struct SharedServer {
    spec: Arc<ServerSpec>,
    /// The agent whose pack it was read from. Together with the name of the server it is where its catalog is stored.
    agent: AgentId,
    stop: CancellationToken,
    has_task: bool,
    catalog: Option<Arc<Catalog>>,
    state: State,
    used: Instant,
}

/// The key of the connection to a shared server.
pub fn shared_key(tenant: TenantId, spec: &ServerSpec) -> Key {
    Key::Shared(SharedKey::new(tenant, spec))
}

impl Connections {
    /// The catalog of a shared server; `None` before its first discovery. This counts as a use.
    pub fn catalog(
        &self,
        tenant: TenantId,
        agent: &AgentId,
        spec: &ServerSpec,
    ) -> Option<Arc<Catalog>> {
        self.read(tenant, agent, spec, |server| server.catalog.clone())
    }

    /// Reads what is known of a shared server. If nobody has used it yet, a task for it begins.
    fn read<T>(
        &self,
        tenant: TenantId,
        agent: &AgentId,
        spec: &ServerSpec,
        read: impl FnOnce(&SharedServer) -> T,
    ) -> T {
        let key = SharedKey::new(tenant, spec);
        let mut servers = self.servers();
        if let Some(server) = servers.get_mut(&key) {
            server.used = clock::instant();
            return read(server);
        }
        add(&mut servers, key, agent, spec);
        self.first_use.notify_one();
        read(&servers[&key])
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

    /// Changes the state of a server, unless it is not wanted any more.
    fn update<T>(&self, key: &SharedKey, change: impl FnOnce(&mut SharedServer) -> T) -> Option<T> {
        self.servers().get_mut(key).map(change)
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<SharedKey, SharedServer>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a server that is not connected. Until it has answered, the catalog of the version before serves on.
fn add(
    servers: &mut HashMap<SharedKey, SharedServer>,
    key: SharedKey,
    agent: &AgentId,
    spec: &ServerSpec,
) {
    let is_before = |(other, server): &(&SharedKey, &SharedServer)| {
        other.tenant == key.tenant && server.agent == *agent && server.spec.id == spec.id
    };
    let before = servers.iter().find(is_before);
    let catalog = before.and_then(|(_, server)| server.catalog.clone());
    let server = SharedServer {
        spec: Arc::new(spec.clone()),
        agent: agent.clone(),
        stop: CancellationToken::new(),
        has_task: false,
        catalog,
        state: State::Connecting,
        used: clock::instant(),
    };
    servers.insert(key, server);
}

/// Whether a server has a connection that everybody uses.
fn is_shared(spec: &ServerSpec) -> bool {
    spec.access_mode == AccessMode::AdminControlled && !orchestrator::is_built_in(spec)
}

/// Loads the catalog that an earlier process stored, so that the tools are listed at once.
async fn load_stored(app: &App, key: &SharedKey, agent: &AgentId, spec: &ServerSpec) -> Result<()> {
    let stored = match key.tenant {
        None => store::catalogs::get_of_all(&mut app.db.system().await?, agent, &spec.id).await?,
        Some(tenant) => {
            let wanted = [(spec.id.clone(), CatalogOwner::Shared)];
            let mut tx = app.db.tenant(tenant).await?;
            let found = store::catalogs::list(&mut tx, agent, &wanted).await?;
            found.into_iter().map(|(catalog, _)| catalog).next()
        }
    };
    app.connections.update(key, |server| {
        if server.catalog.is_none() {
            server.catalog = stored.map(Arc::new);
        }
    });
    Ok(())
}

/// Puts a discovery in force, stores it if it differs from the known catalog, and returns how long it is fresh.
async fn take_discovery(
    app: &App,
    key: &SharedKey,
    agent: &AgentId,
    spec: &ServerSpec,
    discovery: Discovery,
) -> Duration {
    let id = &spec.id;
    let catalog = Arc::new(make_catalog(app, id, &discovery));
    let is_changed = app.connections.update(key, |server| {
        server.state = State::Ready {
            protocol: discovery.protocol.clone(),
        };
        let is_changed = server
            .catalog
            .as_ref()
            .is_none_or(|known| (&known.version, known.cache) != (&catalog.version, catalog.cache));
        if is_changed {
            server.catalog = Some(catalog.clone());
        }
        is_changed
    });
    if is_changed != Some(true) {
        return catalog.fresh_for();
    }
    tracing::info!(server = %id, %agent, tools = catalog.tools.len(), "tools discovered");
    let pack = app.packs.get(agent);
    let unmatched = pack.map(|pack| pack.unmatched_names(spec, &catalog.tools));
    for unmatched in unmatched.unwrap_or_default() {
        tracing::warn!(server = %id, %agent, unmatched, "the names in the pack and those of the tools need a look");
    }
    for dropped in &catalog.dropped {
        tracing::warn!(server = %id, dropped, "a tool was left out");
    }
    if let Err(error) = store_catalog(app, key, agent, &catalog).await {
        tracing::warn!(%error, server = %id, "the catalog cannot be stored; it is kept in memory");
    }
    if let Err(error) = record_tools(app, key, agent, spec, &catalog).await {
        tracing::warn!(%error, server = %id, "the tools cannot be compared with those that were accepted; trying again when they are used");
    }
    catalog.fresh_for()
}

/// Compares the tools with what is accepted, for each agent that uses the connection.
async fn record_tools(
    app: &App,
    key: &SharedKey,
    agent: &AgentId,
    spec: &ServerSpec,
    catalog: &Catalog,
) -> Result<()> {
    if !is_shared(spec) {
        return Ok(());
    }
    // Where it serves all, the tenant says nothing.
    let tenant = key.tenant.unwrap_or(TenantId(Uuid::nil()));
    pins::record(app, tenant, agent, spec, &catalog.tools, true).await?;
    for pack in app.packs.snapshot().packs() {
        let sharing = pack.servers.iter().filter(|other| {
            let is_other = pack.id() != agent || other.id != spec.id;
            is_other && is_shared(other) && SharedKey::new(tenant, other) == *key
        });
        for other in sharing {
            pins::record(app, tenant, pack.id(), other, &catalog.tools, true).await?;
        }
    }
    Ok(())
}

async fn store_catalog(
    app: &App,
    key: &SharedKey,
    agent: &AgentId,
    catalog: &Catalog,
) -> Result<()> {
    let Some(tenant) = key.tenant else {
        let mut tx = app.db.system().await?;
        store::catalogs::put_of_all(&mut tx, agent, catalog).await?;
        return tx.commit().await;
    };
    let mut tx = app.db.tenant(tenant).await?;
    store::catalogs::put(&mut tx, tenant, agent, CatalogOwner::Shared, catalog).await?;
    tx.commit().await
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

/// The tools of a shared server; `None` when they are not known. A server that differs per run is asked now, unless a
/// run with the same values has asked it before.
pub async fn catalog_of(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    spec: &ServerSpec,
) -> Option<Arc<Catalog>> {
    if spec.run_config.is_none() {
        return app.connections.catalog(tenant, agent, spec);
    }
    let key = shared_key(tenant, spec);
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
