//! Shared servers: connected in the background, all at once; one that is down is retried while the
//! others serve. What was discovered is kept as an immutable catalog, in memory and in Postgres.
//!
//! One task per (tenant, agent, shared server). [`supervise`] starts and stops the tasks when packs or tenants
//! change. Personal servers have no task: they never connect without a credential.

mod first_discovery;
mod listing;
mod per_run;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, broadcast::error::RecvError};
use tokio_util::sync::CancellationToken;

pub(in crate::app) use self::listing::discover;
pub use self::{
    first_discovery::{await_connecting, await_first_discovery, await_required},
    per_run::{catalog_of, key},
};
use super::registry;
use crate::app::App;
use crate::{
    domain::{
        backoff,
        connection::DownCause,
        error::Result,
        ids::{AgentId, ServerId, TenantId},
        owner::{CatalogOwner, ConnectionOwner},
        pack::Pack,
        principal::claims_named_by,
        server::{AccessMode, ServerSpec},
        tool::Catalog,
    },
    mcp::{ConnectionState, Discovery, Key},
    store,
};

/// How often packs and tenants are looked at for servers to keep.
const LOOK: Duration = Duration::from_secs(2);
/// Between two looks at a server's tools, however often it says that they changed.
const QUIET: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MOST: Duration = Duration::from_secs(60);
/// The same where somebody has to change something first.
const RETRY_LASTING: Duration = Duration::from_secs(600);

/// A shared server of an agent of a tenant.
type SharedServerKey = (TenantId, AgentId, ServerId);

#[derive(Default)]
pub struct Connections {
    servers: Mutex<HashMap<SharedServerKey, SharedServer>>,
    /// Set when packs and tenants were looked at for the first time.
    looked: CancellationToken,
    /// Somebody needs a server that is not known yet.
    wanted: Notify,
    per_run: per_run::Catalogs,
}

/// What is known of one shared server.
struct SharedServer {
    spec: Arc<ServerSpec>,
    stop: CancellationToken,
    catalog: Option<Arc<Catalog>>,
    state: State,
}

/// The state of a server, as users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    Connecting,
    /// Connected at least once and not known to be down. `protocol`: the revision, such as `2026-07-28`.
    Ready {
        protocol: String,
    },
    /// Could not be reached; tried again by itself. Known tools stay listed.
    Down {
        cause: DownCause,
        reason: String,
    },
    /// Personal, and the user has not entered a credential.
    NotConfigured,
    /// Personal, and the user's credential is in force.
    Configured,
    /// Personal, and what the user entered is no longer good. `reason`: `rejected` by the server, or
    /// `quarantined` because it cannot be opened.
    NeedsAttention {
        reason: String,
    },
}

/// Whose credential a server is reached with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionKind {
    Shared,
    Personal,
}

impl ConnectionKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Personal => "personal",
        }
    }
}

/// One server of an agent, for `GET …/connections`.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionView {
    pub server: String,
    /// `shared` or `personal`.
    pub kind: ConnectionKind,
    #[serde(flatten)]
    pub state: State,
    /// Tools that the caller may use; all of them for whoever runs the agent.
    pub tools: usize,
    /// What discovery left out, and why; only for whoever runs the agent.
    pub dropped: Vec<String>,
    /// What the pack's allowlist names and the server does not have; only for whoever runs the agent.
    pub missing: Vec<String>,
    /// Names in the pack's rules for this server that fit none of its tools, each as a sentence; only for whoever runs
    /// the agent.
    pub unmatched: Vec<String>,
}

impl ConnectionView {
    /// Keeps what a user of the agent may see: how many tools they may use, and whether a shared server is
    /// down. The exact reason is replaced by a general sentence.
    pub fn redact_for_user(&mut self, usable: usize) {
        self.tools = usable;
        self.dropped.clear();
        self.missing.clear();
        self.unmatched.clear();
        if let (State::Down { cause, reason }, ConnectionKind::Shared) =
            (&mut self.state, self.kind)
        {
            cause.sentence().clone_into(reason);
        }
    }
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

    /// How a server of a pack is for this tenant.
    pub fn view(&self, tenant: TenantId, pack: &Pack, server: &ServerSpec) -> ConnectionView {
        let servers = self.servers();
        let known = servers.get(&(tenant, pack.id().clone(), server.id.clone()));
        let (kind, unknown) = match server.access_mode {
            AccessMode::AdminControlled => (ConnectionKind::Shared, State::Connecting),
            AccessMode::UserControlled => (ConnectionKind::Personal, State::NotConfigured),
        };
        let catalog = known.and_then(|known| known.catalog.as_ref());
        ConnectionView {
            server: server.id.to_string(),
            kind,
            state: known.map_or(unknown, |known| known.state.clone()),
            tools: catalog.map_or(0, |catalog| catalog.tools.len()),
            dropped: catalog
                .map(|catalog| catalog.dropped.clone())
                .unwrap_or_default(),
            missing: catalog
                .map(|catalog| server.missing(&catalog.tools))
                .unwrap_or_default(),
            unmatched: catalog
                .map(|catalog| server.unmatched_names(&catalog.tool_names()))
                .unwrap_or_default(),
        }
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

/// Keeps every shared server that a tenant can see connected, until the process stops.
pub async fn supervise(app: Arc<App>) {
    let mut packs = app.library.changes();
    loop {
        match reconcile(&app).await {
            Ok(()) => app.connections.looked.cancel(),
            Err(error) => {
                tracing::warn!(%error, "cannot see which servers to keep; trying again");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            // One that was missed is seen all the same.
            Ok(_) | Err(RecvError::Lagged(_)) = packs.recv() => {}
            () = app.registry.news() => {}
            () = app.connections.wanted.notified() => {}
            () = app.shutdown.cancelled() => break,
        }
    }
    for server in app.connections.servers().values() {
        server.stop.cancel();
    }
}

/// Starts tasks for servers that are new or changed and stops those of servers that are gone. A tenant whose registry
/// cannot be read keeps what it has, and stops no other tenant.
async fn reconcile(app: &Arc<App>) -> Result<()> {
    let mut wanted: HashMap<SharedServerKey, Arc<ServerSpec>> = HashMap::new();
    let mut unread: HashSet<(TenantId, AgentId)> = HashSet::new();
    let packs = app.library.snapshot();
    app.accounts
        .keep_claims(claims_named_by(packs.packs().map(AsRef::as_ref)));
    for tenant in app.accounts.tenants().await? {
        for pack in packs.packs().filter(|pack| tenant.serves(pack.id())) {
            let (tenant, agent) = (tenant.id, pack.id().clone());
            match registry::pack_for(app, tenant, pack).await {
                Ok(pack) => wanted.extend(shared_servers(app, &pack).map(|server| {
                    let place = (tenant, agent.clone(), server.id.clone());
                    (place, Arc::new(server.clone()))
                })),
                Err(error) => {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::warn!(%tenant, %agent, error, "the registry of a tenant cannot be read; trying again");
                    unread.insert((tenant, agent));
                }
            }
        }
    }
    let mut servers = app.connections.servers();
    servers.retain(|place, server| {
        let keep = wanted.contains_key(place) || unread.contains(&(place.0, place.1.clone()));
        if !keep {
            server.stop.cancel();
        }
        keep
    });
    for (place, spec) in wanted {
        let known = servers
            .get(&place)
            .map(|server| (server.spec.clone(), server.catalog.clone()));
        if known.as_ref().is_some_and(|(kept, _)| is_same(kept, &spec)) {
            continue;
        }
        if let Some(server) = servers.get(&place) {
            server.stop.cancel();
        }
        let stop = app.shutdown.child_token();
        // The old catalog serves on until the changed server has answered.
        let catalog = known.and_then(|(_, catalog)| catalog);
        servers.insert(
            place.clone(),
            SharedServer {
                spec: spec.clone(),
                stop: stop.clone(),
                catalog,
                state: State::Connecting,
            },
        );
        app.tasks.spawn(keep(app.clone(), place, spec, stop));
    }
    Ok(())
}

/// Whether what is connected to one serves the other.
fn is_same(kept: &ServerSpec, spec: &ServerSpec) -> bool {
    kept.endpoint == spec.endpoint && kept.timeouts == spec.timeouts && kept.auth == spec.auth
}

/// Connects, discovers, and again whenever the server says that its tools changed.
async fn keep(
    app: Arc<App>,
    place: SharedServerKey,
    spec: Arc<ServerSpec>,
    stop: CancellationToken,
) {
    let key = shared_key(place.0, &place.1, &place.2);
    if let Err(error) = load_stored_catalog(&app, &place, &spec).await {
        tracing::warn!(%error, server = %place.2, "the stored catalog cannot be read");
    }
    let mut failures = 0;
    loop {
        // Subscribed before asking: a change between the answer and the wait is not missed.
        let mut changes = app.mcp.changes();
        let discovered = tokio::select! {
            discovered = discover(&app, &key, &spec) => discovered,
            () = stop.cancelled() => break,
        };
        let (least, pause) = match discovered {
            Ok(discovery) => {
                failures = 0;
                (QUIET, store_discovery(&app, &place, &spec, discovery).await)
            }
            Err(error) => {
                let (cause, reason) = (DownCause::from(error.kind), error.to_string());
                tracing::warn!(server = %place.2, agent = %place.1, reason, "server is down; trying again");
                app.connections.update(&place, &spec, |server| {
                    server.state = State::Down { cause, reason }
                });
                failures += 1;
                let most = if cause.is_lasting() {
                    RETRY_LASTING
                } else {
                    RETRY_MOST
                };
                let pause = backoff::delay(RETRY_FIRST, most, failures, rand::random());
                (pause, pause)
            }
        };
        let again = async {
            tokio::time::sleep(least).await;
            tokio::select! {
                () = tokio::time::sleep(pause.saturating_sub(least)) => {}
                () = changed(&mut changes, &key) => {}
                () = lost(&app, &key) => {}
            }
        };
        tokio::select! {
            () = again => {}
            () = stop.cancelled() => break,
        }
    }
    // When the process stops, calls may still be running; their connections are closed after them.
    if !app.shutdown.is_cancelled() {
        app.mcp.retire(&key, &spec).await;
    }
}

/// Waits until a call has found the server unreachable.
async fn lost(app: &App, key: &Key) {
    while !matches!(app.mcp.state(key), ConnectionState::Down { .. }) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until the server of `key` says that its tools changed.
async fn changed(changes: &mut tokio::sync::broadcast::Receiver<Key>, key: &Key) {
    loop {
        match changes.recv().await {
            Ok(which) if which == *key => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Takes over what an earlier process discovered, so that its tools are listed at once.
async fn load_stored_catalog(
    app: &App,
    place: &SharedServerKey,
    spec: &Arc<ServerSpec>,
) -> Result<()> {
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
async fn store_discovery(
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
    for unmatched in spec.unmatched_names(&catalog.tool_names()) {
        tracing::warn!(server = %place.2, agent = %place.1, unmatched, "a name in the pack fits no tool");
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

/// The shared servers of a pack that this process connects to.
fn shared_servers<'a>(app: &'a App, pack: &'a Pack) -> impl Iterator<Item = &'a ServerSpec> {
    pack.servers.iter().filter(|server| {
        server.access_mode == AccessMode::AdminControlled && !app.orchestrator.is(server)
    })
}
