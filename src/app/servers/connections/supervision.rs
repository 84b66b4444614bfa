//! The tasks that keep servers connected: one for each shared server of an agent of a tenant, and for each personal one
//! that the operator gave headers to discover its tools with. They are started and
//! stopped when packs, tenants or registries change.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use super::{SharedServer, SharedServerKey, State, catalogs, discover, shared_key};
use crate::{
    app::{App, servers::registry},
    domain::{
        backoff,
        connection::DownCause,
        error::Result,
        ids::{AgentId, TenantId},
        pack::Pack,
        principal::claims_named_by,
        server::{AccessMode, ServerSpec},
    },
    mcp::{ConnectionState, Key},
};

/// How often packs and tenants are looked at for servers to keep.
const LOOK: Duration = Duration::from_secs(2);
/// Between two looks at a server's tools, however often it says that they changed.
const QUIET: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MOST: Duration = Duration::from_secs(60);
/// The same where somebody has to change something first.
const RETRY_LASTING: Duration = Duration::from_secs(600);

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
                Ok(pack) => wanted.extend(kept_servers(app, &pack).map(|server| {
                    let place = (tenant, agent.clone(), server.id.clone());
                    (place, Arc::new(server))
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
    let is_personal = spec.access_mode == AccessMode::UserControlled;
    if !is_personal && let Err(error) = catalogs::load_stored(&app, &place, &spec).await {
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
                let fresh_for = if is_personal {
                    catalogs::learn_for_users(&app, &key, &place, &spec, &discovery).await
                } else {
                    catalogs::put_in_force(&app, &place, &spec, discovery).await
                };
                (QUIET, fresh_for)
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
async fn changed(changes: &mut Receiver<Key>, key: &Key) {
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
