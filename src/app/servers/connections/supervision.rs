//! The tasks that keep servers connected: one for each shared server of an agent of a tenant, and one for each
//! personal server that the operator gave headers for discovery. They start and stop when packs, tenants or
//! registries change.
//!
//! A starting process waits here for required servers, and the first turn of a new tenant for servers that are still
//! being connected.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::app::{
    App,
    servers::{
        connections::{
            SharedServer, SharedServerKey, State, discover, load_stored, server_key,
            take_discovery, take_discovery_for_users,
        },
        registry,
    },
};
use domain::{
    backoff,
    connection::DownCause,
    error::Result,
    ids::{AgentId, TenantId},
    pack::Pack,
    principal::claims_named_by,
    server::{AccessMode, ServerSpec},
};
use mcp::{ConnectionState, Key};

/// How often the tasks are compared with the packs and tenants, and a connection with its state.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Least time between two discoveries of a server, however often it announces changes.
const QUIET: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MOST: Duration = Duration::from_secs(60);
/// The longest pause between two tries if a person has to change something first.
const RETRY_LASTING: Duration = Duration::from_secs(600);

/// Keeps every shared server that a tenant can see connected, until the process stops.
pub async fn supervise(app: Arc<App>) {
    let mut packs = app.packs.changes();
    loop {
        match reconcile(&app).await {
            Ok(()) => app.connections.reconciled.cancel(),
            Err(error) => {
                tracing::warn!(%error, "cannot see which servers to keep; trying again");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            // A lagging receiver has missed a change, which is as good as receiving one.
            Ok(_) | Err(RecvError::Lagged(_)) = packs.recv() => {}
            () = app.registry.wait_for_change() => {}
            () = app.connections.check_requested.notified() => {}
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
    let packs = app.packs.snapshot();
    app.accounts
        .keep_claims(claims_named_by(packs.packs().map(AsRef::as_ref)));
    for tenant in app.accounts.tenants().await? {
        for pack in packs.packs().filter(|pack| tenant.serves(pack.id())) {
            let (tenant, agent) = (tenant.id, pack.id().clone());
            match registry::pack_for(app, tenant, pack).await {
                Ok(pack) => wanted.extend(kept_servers(app, &pack).map(|server| {
                    let server_id = (tenant, agent.clone(), server.id.clone());
                    (server_id, Arc::new(server))
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
    servers.retain(|server_id, server| {
        let keep =
            wanted.contains_key(server_id) || unread.contains(&(server_id.0, server_id.1.clone()));
        if !keep {
            server.stop.cancel();
        }
        keep
    });
    for (server_id, spec) in wanted {
        let known = servers
            .get(&server_id)
            .map(|server| (server.spec.clone(), server.catalog.clone()));
        if known.as_ref().is_some_and(|(kept, _)| is_same(kept, &spec)) {
            continue;
        }
        if let Some(server) = servers.get(&server_id) {
            server.stop.cancel();
        }
        let stop = app.shutdown.child_token();
        // The old catalog serves on until the changed server has answered.
        let catalog = known.and_then(|(_, catalog)| catalog);
        servers.insert(
            server_id.clone(),
            SharedServer {
                spec: spec.clone(),
                stop: stop.clone(),
                catalog,
                state: State::Connecting,
            },
        );
        app.tasks
            .spawn(keep_connected(app.clone(), server_id, spec, stop));
    }
    Ok(())
}

/// Whether a connection made for one spec also serves the other.
fn is_same(kept: &ServerSpec, spec: &ServerSpec) -> bool {
    kept.endpoint == spec.endpoint && kept.timeouts == spec.timeouts && kept.auth == spec.auth
}

/// Keeps one server connected and its catalog fresh: discovers again when the catalog is old, when the server
/// announces a change, and when a call has found the server unreachable.
async fn keep_connected(
    app: Arc<App>,
    server_id: SharedServerKey,
    spec: Arc<ServerSpec>,
    stop: CancellationToken,
) {
    let key = server_key(server_id.0, &server_id.1, &server_id.2);
    let is_personal = spec.access_mode == AccessMode::UserControlled;
    if !is_personal && let Err(error) = load_stored(&app, &server_id, &spec).await {
        tracing::warn!(%error, server = %server_id.2, "the stored catalog cannot be read");
    }
    let mut failures = 0;
    loop {
        // Subscribe before the request: a change between its answer and the wait is not missed.
        let mut changes = app.mcp.changes();
        let discovered = tokio::select! {
            discovered = discover(&app, &key, &spec) => discovered,
            () = stop.cancelled() => break,
        };
        let (least, pause) = match discovered {
            Ok(discovery) => {
                failures = 0;
                let fresh_for = if is_personal {
                    take_discovery_for_users(&app, &key, &server_id, &spec, &discovery).await
                } else {
                    take_discovery(&app, &server_id, &spec, discovery).await
                };
                (QUIET, fresh_for)
            }
            Err(error) => {
                let (cause, reason) = (DownCause::from(error.kind), error.to_string());
                tracing::warn!(server = %server_id.2, agent = %server_id.1, reason, "server is down; trying again");
                app.connections.update(&server_id, &spec, |server| {
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
                () = wait_for_change(&mut changes, &key) => {}
                () = wait_until_down(&app, &key) => {}
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
async fn wait_until_down(app: &App, key: &Key) {
    while !matches!(app.mcp.state(key), ConnectionState::Down { .. }) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Waits until the server of `key` says that its tools changed.
async fn wait_for_change(changes: &mut Receiver<Key>, key: &Key) {
    loop {
        match changes.recv().await {
            Ok(which) if which == *key => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// The servers that are kept connected: the shared ones, and those personal ones whose tools the operator's headers
/// discover. No call of a user goes over such a connection.
fn kept_servers<'a>(app: &'a App, pack: &'a Pack) -> impl Iterator<Item = ServerSpec> + 'a {
    let discovered = pack.servers.iter().filter_map(ServerSpec::for_discovery);
    shared_servers(app, pack).cloned().chain(discovered)
}

/// The shared servers of a pack that this process connects to.
pub(super) fn shared_servers<'a>(
    app: &'a App,
    pack: &'a Pack,
) -> impl Iterator<Item = &'a ServerSpec> {
    pack.servers.iter().filter(|server| {
        server.access_mode == AccessMode::AdminControlled && !app.orchestrator.is(server)
    })
}

/// How often a waiting caller checks the servers that are being connected.
const SETTLING: Duration = Duration::from_millis(50);

/// Connects the servers that packs call `required`; the error names the first one that cannot be reached. A required
/// server of a tenant's registry does not stop the start: only the log names it.
pub async fn await_required(app: &Arc<App>) -> anyhow::Result<()> {
    let packs = app.packs.snapshot();
    for tenant in app.accounts.tenants().await? {
        for pack in packs.packs().filter(|pack| tenant.serves(pack.id())) {
            let tenant_pack = match registry::pack_for(app, tenant.id, pack).await {
                Ok(tenant_pack) => tenant_pack,
                Err(error) => {
                    tracing::warn!(tenant = %tenant.id, agent = %pack.id(), %error, "the registry of a tenant cannot be read");
                    pack.clone()
                }
            };
            for spec in shared_servers(app, &tenant_pack).filter(|server| server.required) {
                let (key, id) = (server_key(tenant.id, pack.id(), &spec.id), &spec.id);
                let Err(error) = app.mcp.discover(&key, &Arc::new(spec.clone())).await else {
                    continue;
                };
                let agent = pack.id();
                if pack.servers.iter().any(|own| own.id == *id) {
                    anyhow::bail!(
                        "agent {agent}: server {id} is `required: true` and cannot be reached: {error}"
                    );
                }
                tracing::warn!(tenant = %tenant.id, %agent, server = %id, %error, "a required server of the registry cannot be reached");
            }
        }
    }
    Ok(())
}

/// Waits until each shared server has been asked for its tools once, whether it answered or not.
pub async fn await_first_discovery(app: &App) {
    app.connections.reconciled.cancelled().await;
    let is_open = |server: &SharedServer| server.state == State::Connecting;
    while app.connections.servers().values().any(is_open) {
        tokio::time::sleep(SETTLING).await;
    }
}

/// Waits for the shared servers of an agent that are being connected for the first time, for each as long as its
/// `connectSeconds`.
pub async fn await_connecting(app: &App, tenant: TenantId, pack: &Pack) {
    let start = Instant::now();
    while let Some(longest) = pending_connect_times(app, tenant, pack).max() {
        if start.elapsed() >= longest {
            return;
        }
        tokio::time::sleep(SETTLING).await;
    }
}

/// The `connectSeconds` of each shared server that is being connected for the first time.
fn pending_connect_times<'a>(
    app: &'a App,
    tenant: TenantId,
    pack: &'a Pack,
) -> impl Iterator<Item = Duration> + 'a {
    let is_unknown = move |spec: &&ServerSpec| {
        let server_id = (tenant, pack.id().clone(), spec.id.clone());
        match app.connections.servers().get(&server_id) {
            Some(server) => server.catalog.is_none() && server.state == State::Connecting,
            None => {
                app.connections.check_requested.notify_one();
                true
            }
        }
    };
    shared_servers(app, pack)
        .filter(|spec| spec.run_config.is_none())
        .filter(is_unknown)
        .map(|spec| spec.timeouts.connect)
}
