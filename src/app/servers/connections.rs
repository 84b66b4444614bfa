//! Shared servers: all are connected in the background at once, and one that is down is retried while the others
//! serve. The result of a discovery is an immutable catalog, kept in memory and in Postgres.
//!
//! [`supervise`] runs one task per (tenant, agent, shared server). A personal server has such a task only where the
//! operator gave it headers for discovery. A server whose requests contain values of a run has none: its catalog is
//! fetched by the first run that needs it, and shared by the runs that reach the server with the same values
//! ([`catalog_of`]).

mod supervision; // a task for each server
mod view; // how a server is, for people

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
use crate::{
    app::{App, servers::credentials},
    domain::{
        error::Result,
        ids::{AgentId, ServerId, TenantId},
        owner::{CatalogOwner, ConnectionOwner},
        server::ServerSpec,
        tool::Catalog,
    },
    mcp::{Discovery, Key, McpError},
    store,
};

/// A shared server of an agent of a tenant.
type SharedServerKey = (TenantId, AgentId, ServerId);

#[derive(Default)]
pub struct Connections {
    servers: Mutex<HashMap<SharedServerKey, SharedServer>>,
    /// Set when packs and tenants were looked at for the first time.
    looked: CancellationToken,
    /// Somebody needs a server that is not known yet.
    wanted: Notify,
    per_run: PerRunCatalogs,
}

/// What is known of one shared server.
struct SharedServer {
    spec: Arc<ServerSpec>,
    stop: CancellationToken,
    catalog: Option<Arc<Catalog>>,
    state: State,
}

/// The key of a shared server's connection.
pub fn shared_key(tenant: TenantId, agent: &AgentId, server: &ServerId) -> Key {
    Key {
        tenant,
        agent: agent.clone(),
        server: server.clone(),
        owner: ConnectionOwner::Shared,
    }
}

impl Connections {
    /// The catalog of a shared server, if it was ever discovered.
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

    /// Shared servers that are ready, and that are down.
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

    /// Changes what is known, unless another version of the server has taken the place.
    fn update(
        &self,
        place: &SharedServerKey,
        spec: &Arc<ServerSpec>,
        change: impl FnOnce(&mut SharedServer),
    ) {
        if let Some(server) = self
            .servers()
            .get_mut(place)
            .filter(|server| Arc::ptr_eq(&server.spec, spec))
        {
            change(server);
        }
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<SharedServerKey, SharedServer>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A list that could not be stored is asked for again after this time.
const UNSTORED: Duration = Duration::from_secs(30);

/// Takes over what an earlier process discovered, so that its tools are listed at once.
async fn load_stored(app: &App, place: &SharedServerKey, spec: &Arc<ServerSpec>) -> Result<()> {
    let mut tx = app.db.tenant(place.0).await?;
    let stored = store::catalogs::get(
        &mut tx,
        &place.1,
        &[(place.2.clone(), CatalogOwner::Shared)],
    )
    .await?
    .pop();
    app.connections.update(place, spec, |server| {
        if server.catalog.is_none() {
            server.catalog = stored.map(|(catalog, _)| Arc::new(catalog));
        }
    });
    Ok(())
}

/// Puts a discovery in force and stores it when it says something new. For how long it is fresh.
async fn put_in_force(
    app: &App,
    place: &SharedServerKey,
    spec: &Arc<ServerSpec>,
    discovery: Discovery,
) -> Duration {
    let catalog = Arc::new(catalog(app, &place.2, &discovery));
    let mut news = false;
    app.connections.update(place, spec, |server| {
        server.state = State::Ready {
            protocol: discovery.protocol.clone(),
        };
        news = server
            .catalog
            .as_ref()
            .is_none_or(|known| (&known.version, known.cache) != (&catalog.version, catalog.cache));
        if news {
            server.catalog = Some(catalog.clone());
        }
    });
    if !news {
        return catalog.fresh_for();
    }
    tracing::info!(server = %place.2, agent = %place.1, tools = catalog.tools.len(), "tools discovered");
    let pack = app.library.get(&place.1);
    let unmatched = pack.map(|pack| pack.unmatched_names(spec, &catalog.tool_names()));
    for unmatched in unmatched.unwrap_or_default() {
        tracing::warn!(server = %place.2, agent = %place.1, unmatched, "the names in the pack and those of the tools need a look");
    }
    for dropped in &catalog.dropped {
        tracing::warn!(server = %place.2, dropped, "a tool was left out");
    }
    let stored = async {
        let mut tx = app.db.tenant(place.0).await?;
        store::catalogs::put(&mut tx, place.0, &place.1, CatalogOwner::Shared, &catalog).await?;
        tx.commit().await
    };
    if let Err(error) = stored.await {
        tracing::warn!(%error, server = %place.2, "the catalog cannot be stored; it is kept in memory");
    }
    catalog.fresh_for()
}

/// The same for a personal server that was asked with the operator's headers: its list is for the users who have a
/// credential of their own.
async fn learn_for_users(
    app: &App,
    key: &Key,
    place: &SharedServerKey,
    spec: &Arc<ServerSpec>,
    discovery: &Discovery,
) -> Duration {
    app.connections.update(place, spec, |server| {
        server.state = State::Ready {
            protocol: discovery.protocol.clone(),
        };
    });
    credentials::learn(app, key, spec, discovery).await.unwrap_or_else(|error| {
        tracing::warn!(%error, server = %spec.id, "what a server said of its tools cannot be stored");
        UNSTORED
    })
}

/// What a discovery comes to.
pub(in crate::app) fn catalog(app: &App, server: &ServerId, discovery: &Discovery) -> Catalog {
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

/// SHA-256 over everything that a server's lists say, in hex.
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

/// The moment between the two.
const AGAIN: Duration = Duration::from_millis(250);

/// What a server offers.
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
    // It has answered; what it said holds even if it does not say it twice.
    Ok(app.mcp.discover(key, spec).await.unwrap_or(first))
}

const REMEMBERED: u64 = 1024;

/// What was discovered, by connection.
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

/// The key of the connection to a shared server: one for all, or one for each way in which runs reach it.
pub fn key(tenant: TenantId, agent: &AgentId, spec: &ServerSpec) -> Key {
    Key {
        owner: spec
            .run_config
            .map_or(ConnectionOwner::Shared, ConnectionOwner::RunConfig),
        ..shared_key(tenant, agent, &spec.id)
    }
}

/// The tools of a shared server; `None` when they are not known. Those of a run's own server are asked for now,
/// unless a run that reaches it in the same way did so before.
pub async fn catalog_of(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    spec: &ServerSpec,
) -> Option<Arc<Catalog>> {
    if spec.run_config.is_none() {
        return app.connections.catalog(tenant, agent, &spec.id);
    }
    let key = key(tenant, agent, spec);
    let list = async {
        let discovery = discover(app, &key, &Arc::new(spec.clone())).await?;
        Ok::<_, McpError>(Arc::new(catalog(app, &spec.id, &discovery)))
    };
    match Box::pin(app.connections.per_run.0.try_get_with(key.clone(), list)).await {
        Ok(catalog) => Some(catalog),
        Err(error) => {
            tracing::warn!(server = %spec.id, %agent, reason = %error, "a run's server cannot be reached");
            None
        }
    }
}
