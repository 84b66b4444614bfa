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
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use self::{
    supervision::{await_connecting, await_first_discovery, await_required, supervise},
    view::{ConnectionKind, ConnectionView, State},
};
use crate::app::{
    App,
    servers::{
        credentials::{self, ResolvedConnection},
        pins,
    },
};
use domain::{
    clock,
    error::Result,
    ids::{AgentId, ServerId, TenantId},
    orchestrator,
    owner::{CatalogOwner, SharedKey},
    pack::Pack,
    server::{AccessMode, ServerSpec},
    tool::{Catalog, SHORTEST_FRESH},
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
    listings: Listings,
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
    /// The runs at work that have this server.
    holders: Arc<()>,
    /// When the log last had a line about its list.
    logged: Option<Instant>,
}

/// Least time between two discoveries of a server, however often it announces changes.
const QUIET: Duration = Duration::from_secs(1);

/// The least time between two lines of the log about the list of a server, which may change at each listing.
const LOG_PAUSE: Duration = Duration::from_secs(60);

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

    /// Keeps the shared servers of a run as long as the result lives, also when packs no longer name them: a run goes on
    /// with the pack that it began with.
    pub fn hold(&self, tenant: TenantId, pack: &Pack) -> Vec<Arc<()>> {
        let servers = self.servers();
        let keys = shared_servers(pack).map(|spec| SharedKey::new(tenant, spec));
        keys.filter_map(|key| servers.get(&key))
            .map(|server| server.holders.clone())
            .collect()
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
        holders: Arc::default(),
        logged: None,
    };
    servers.insert(key, server);
}

/// The shared servers of a pack that this process connects to.
fn shared_servers(pack: &Pack) -> impl Iterator<Item = &ServerSpec> {
    pack.servers.iter().filter(|server| is_shared(server))
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

/// Puts a discovery in force, and stores it if it differs from the known catalog.
async fn take_discovery(
    app: &App,
    key: &SharedKey,
    agent: &AgentId,
    spec: &ServerSpec,
    discovery: &Discovery,
) -> Arc<Catalog> {
    let id = &spec.id;
    let catalog = Arc::new(make_catalog(app, id, discovery));
    let taken = app.connections.update(key, |server| {
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
        let is_quiet = server.logged.is_some_and(|at| at.elapsed() < LOG_PAUSE);
        if is_changed && !is_quiet {
            server.logged = Some(clock::instant());
        }
        (is_changed, !is_quiet)
    });
    let (is_changed, is_logged) = taken.unwrap_or_default();
    if is_changed && is_logged {
        tracing::info!(server = %id, %agent, tools = catalog.tools.len(), "tools discovered");
        let pack = app.packs.get(agent);
        let unmatched = pack.map(|pack| pack.unmatched_names(spec, &catalog.tools));
        for unmatched in unmatched.unwrap_or_default() {
            tracing::warn!(server = %id, %agent, unmatched, "the names in the pack and those of the tools need a look");
        }
        for dropped in &catalog.dropped {
            tracing::warn!(server = %id, dropped, "a tool was left out");
        }
    }
    if is_changed && let Err(error) = store_catalog(app, key, agent, &catalog).await {
        tracing::warn!(error = error.with_cause(), server = %id, "the catalog cannot be stored; it is kept in memory");
    }
    // Also of a list that has not changed here: another replica may have seen another one since.
    if let Err(error) = record_tools(app, key, agent, spec, &catalog).await {
        tracing::warn!(error = error.with_cause(), server = %id, "the tools cannot be compared with those that were accepted; trying again when they are listed");
    }
    catalog
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

/// The catalogs of servers whose requests contain values of a run, by connection, and for how long each is fresh.
struct PerRunCatalogs(Cache<Key, (Arc<Catalog>, Duration)>);

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

impl Expiry<Key, (Arc<Catalog>, Duration)> for Freshness {
    fn expire_after_create(
        &self,
        _: &Key,
        (_, fresh_for): &(Arc<Catalog>, Duration),
        _: Instant,
    ) -> Option<Duration> {
        Some(*fresh_for)
    }
}

/// The most connections of which this process knows when they were listed, and for how long.
const LISTED: u64 = 16_384;
const LISTED_IDLE: Duration = Duration::from_secs(600);

/// The last listing of each connection, behind the lock by which one listing runs at a time.
struct Listings(Cache<Key, Arc<tokio::sync::Mutex<LastListing>>>);

#[derive(Default)]
struct LastListing {
    /// The list that is in force, and when it was asked for.
    list: Option<(OffsetDateTime, Arc<Catalog>)>,
    /// The end of the last listing, if it failed.
    failed: Option<(Instant, McpError)>,
}

impl Default for Listings {
    fn default() -> Self {
        let cache = Cache::builder().max_capacity(LISTED);
        Self(cache.time_to_idle(LISTED_IDLE).build())
    }
}

/// The list of a connection, at most so old. An older one is asked for again, once for all who wait, and is in force
/// and compared with what is accepted before anybody gets it. `server`: as the pack says it.
pub async fn list_within(
    app: &App,
    agent: &AgentId,
    server: &ServerSpec,
    connection: &ResolvedConnection,
    age: Duration,
) -> Result<Arc<Catalog>, McpError> {
    let ResolvedConnection { key, spec } = connection;
    let (asked, asked_at) = (app.clock.now(), clock::instant());
    let listing = app
        .connections
        .listings
        .0
        .get_with(key.clone(), async { Arc::default() });
    let listing = listing.await;
    let mut last = listing.lock().await;
    if let Some((at, catalog)) = &last.list
        && *at > asked - age
    {
        return Ok(catalog.clone());
    }
    // One list serves all users of such a server, whoever fetched it.
    if let Key::Personal(credential) = key
        && let Some(catalog) = credentials::find_shared_list(app, credential, server).await
        && catalog.fetched_at > asked - age
    {
        last.list = Some((catalog.fetched_at, catalog.clone()));
        return Ok(catalog);
    }
    if let Some((at, error)) = &last.failed
        && *at > asked_at
    {
        return Err(error.clone());
    }
    let began = app.clock.now();
    let discovery = match discover(app, key, spec).await {
        Ok(discovery) => discovery,
        Err(error) => {
            last.failed = Some((clock::instant(), error.clone()));
            return Err(error);
        }
    };
    let catalog = match key {
        Key::Shared(shared) if spec.run_config.is_none() => {
            take_discovery(app, shared, agent, server, &discovery).await
        }
        Key::Shared(shared) => {
            let catalog = Arc::new(make_catalog(app, &server.id, &discovery));
            let tenant = shared.tenant.unwrap_or(TenantId(Uuid::nil()));
            let recorded = pins::record(app, tenant, agent, server, &catalog.tools, true).await;
            if let Err(error) = recorded {
                tracing::warn!(error = error.with_cause(), server = %server.id, "the tools cannot be compared with those that were accepted; trying again when they are used");
            }
            let fresh = (catalog.clone(), catalog.fresh_for(server.pin));
            app.connections.per_run.0.insert(key.clone(), fresh).await;
            catalog
        }
        Key::Personal(credential) => {
            let (catalog, stored) =
                credentials::store_catalog(app, credential, server, &discovery).await;
            if let Err(error) = stored {
                tracing::warn!(error = error.with_cause(), server = %server.id, "a list of tools cannot be stored");
            }
            catalog
        }
    };
    last.list = Some((began, catalog.clone()));
    last.failed = None;
    Ok(catalog)
}

/// Notes a list that was asked for a moment ago and is in force.
pub(super) async fn note_listed(app: &App, key: Key, catalog: Arc<Catalog>) {
    let listing = app
        .connections
        .listings
        .0
        .get_with(key, async { Arc::default() });
    let asked = catalog.fetched_at;
    listing.await.lock().await.list = Some((asked, catalog));
}

/// Lists a shared server again in the background, because tools of it are held: it may have changed them back. At most one
/// listing runs, and at most one a second.
pub async fn list_held_again(
    app: &Arc<App>,
    tenant: TenantId,
    agent: &AgentId,
    spec: &Arc<ServerSpec>,
) {
    if !spec.is_one_list() {
        return;
    }
    let key = shared_key(tenant, spec);
    let listing = app
        .connections
        .listings
        .0
        .get_with(key.clone(), async { Arc::default() });
    let listing = listing.await;
    let Ok(last) = listing.try_lock() else { return };
    let is_recent = last
        .list
        .as_ref()
        .is_some_and(|(at, _)| *at > app.clock.now() - QUIET);
    let has_failed = last
        .failed
        .as_ref()
        .is_some_and(|(at, _)| at.elapsed() < QUIET);
    drop(last);
    if is_recent || has_failed {
        return;
    }
    let (app, agent, spec) = (app.clone(), agent.clone(), spec.clone());
    app.tasks.clone().spawn(async move {
        let connection = ResolvedConnection {
            key,
            spec: spec.clone(),
        };
        // A failure is in the state of the server.
        let _ = list_within(&app, &agent, &spec, &connection, QUIET).await;
    });
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
    if let Some((catalog, _)) = app.connections.per_run.0.get(&key).await {
        return Some(catalog);
    }
    let connection = ResolvedConnection {
        key,
        spec: Arc::new(spec.clone()),
    };
    match Box::pin(list_within(app, agent, spec, &connection, SHORTEST_FRESH)).await {
        Ok(catalog) => Some(catalog),
        Err(error) => {
            tracing::warn!(server = %spec.id, %agent, reason = error.to_string(), "a run's server cannot be reached");
            None
        }
    }
}
