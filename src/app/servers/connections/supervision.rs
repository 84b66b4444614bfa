//! The tasks that keep servers connected: one for each connection that packs want at the start, and one for each that
//! somebody uses. They stop when packs, tenants or registries change, and those of the second kind when nobody has used
//! their server for a while.
//!
//! A starting process waits here for required servers, and the first turn of a new tenant for servers that are still
//! being connected.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::app::{
    App,
    servers::{
        connections::{
            QUIET, SharedServer, State, add, list_within, load_stored, shared_key, shared_servers,
        },
        credentials::ResolvedConnection,
        registry,
    },
};
use domain::{
    backoff, clock,
    connection::DownCause,
    error::Result,
    ids::{AgentId, TenantId},
    owner::SharedKey,
    pack::Pack,
    principal::claims_named_by,
    server::{Endpoint, ServerSpec},
};
use mcp::{ConnectionState, Key};

/// How often the tasks are compared with the packs and tenants, and a connection with its state and its use.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MOST: Duration = Duration::from_secs(60);
/// The longest pause between two tries if a person has to change something first.
const RETRY_LASTING: Duration = Duration::from_secs(600);
/// A server that is connected at its first use, and that nobody has used for this long, is forgotten.
const UNUSED: Duration = Duration::from_secs(600);
/// What was used this short a time ago is kept: a run may be about to hold it.
const LAST_USE: Duration = Duration::from_secs(2);

/// Keeps shared servers connected, until the process stops.
pub async fn supervise(app: Arc<App>) {
    let mut packs = app.packs.changes();
    let compare = async {
        loop {
            match reconcile(&app).await {
                Ok(()) => app.connections.reconciled.cancel(),
                Err(error) => {
                    tracing::warn!(
                        error = error.with_cause(),
                        "cannot see which servers to keep; trying again"
                    );
                }
            }
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                // A lagging receiver has missed a change, which is as good as receiving one.
                Ok(_) | Err(RecvError::Lagged(_)) = packs.recv() => {}
                () = app.registry.wait_for_change() => {}
            }
        }
    };
    let begin = async {
        loop {
            app.connections.first_use.notified().await;
            begin_tasks(&app);
        }
    };
    tokio::select! {
        () = compare => {}
        () = begin => {}
        () = app.shutdown.cancelled() => {}
    }
    for server in app.connections.servers().values() {
        server.stop.cancel();
    }
}

/// Begins the tasks of servers that have none.
fn begin_tasks(app: &Arc<App>) {
    for (key, server) in app.connections.servers().iter_mut() {
        if !server.has_task {
            server.has_task = true;
            app.tasks.spawn(keep_connected(app.clone(), *key));
        }
    }
}

/// Adds the servers that are connected at the start, and stops those that are gone. A tenant whose registry cannot be read
/// keeps what it has, and stops no other tenant.
async fn reconcile(app: &Arc<App>) -> Result<()> {
    // A server that is used for the first time meanwhile is looked at the next time.
    let known: HashSet<SharedKey> = app.connections.servers().keys().copied().collect();
    let packs = app.packs.snapshot();
    app.accounts
        .keep_claims(claims_named_by(packs.packs().map(AsRef::as_ref)));
    let tenants = app.accounts.tenants().await?;
    let mut wanted: HashSet<SharedKey> = HashSet::new();
    for pack in packs.packs() {
        let serving = tenants.iter().filter(|tenant| tenant.serves(pack.id()));
        for spec in servers_of_operator(pack) {
            // Of one tenant's own connections only those are wanted that are used, unless the pack says another.
            let count = match (spec.per_tenant, spec.at_start) {
                (false, _) => 1,
                (true, true) => usize::MAX,
                (true, false) => 0,
            };
            for tenant in serving.clone().take(count) {
                let key = SharedKey::new(tenant.id, &spec);
                wanted.insert(key);
                let mut servers = app.connections.servers();
                if spec.at_start && !servers.contains_key(&key) {
                    add(&mut servers, key, pack.id(), &spec);
                }
            }
        }
    }
    begin_tasks(app);
    let own: HashSet<TenantId> = known.iter().filter_map(|key| key.tenant).collect();
    let mut unread: HashSet<TenantId> = HashSet::new();
    for tenant in tenants.iter().filter(|tenant| own.contains(&tenant.id)) {
        for pack in packs.packs().filter(|pack| tenant.serves(pack.id())) {
            match registry::pack_for(app, tenant.id, pack).await {
                Ok(pack) => wanted.extend(
                    pack.servers
                        .iter()
                        .filter(|spec| spec.per_tenant)
                        .map(|spec| SharedKey::new(tenant.id, spec)),
                ),
                Err(error) => {
                    let error = error.with_cause();
                    let (tenant, agent) = (tenant.id, pack.id());
                    tracing::warn!(%tenant, %agent, error, "the registry of a tenant cannot be read; trying again");
                    unread.insert(tenant);
                }
            }
        }
    }
    app.connections.servers().retain(|key, server| {
        let keep = !known.contains(key)
            || wanted.contains(key)
            || key.tenant.is_some_and(|tenant| unread.contains(&tenant))
            || server.used.elapsed() < LAST_USE
            || Arc::strong_count(&server.holders) > 1;
        if !keep {
            server.stop.cancel();
        }
        keep
    });
    Ok(())
}

/// Keeps one server connected and its catalog fresh: discovers again when the catalog is old and somebody uses it, when the
/// server announces a change, and when a call has found the server unreachable.
async fn keep_connected(app: Arc<App>, shared: SharedKey) {
    let parts = |server: &mut SharedServer| {
        let stop = server.stop.clone();
        (server.spec.clone(), server.agent.clone(), stop)
    };
    let Some((spec, agent, stop)) = app.connections.update(&shared, parts) else {
        return;
    };
    let key = Key::Shared(shared);
    let connection = ResolvedConnection {
        key: key.clone(),
        spec: spec.clone(),
    };
    if let Err(error) = load_stored(&app, &shared, &agent, &spec).await {
        tracing::warn!(error = error.with_cause(), server = %spec.id, "the stored catalog cannot be read");
    }
    let mut failures = 0;
    loop {
        // Subscribe before the request: a change between its answer and the wait is not missed.
        let mut changes = app.mcp.changes();
        let asked_at = clock::instant();
        let discovered = tokio::select! {
            discovered = list_within(&app, &agent, &spec, &connection, Duration::ZERO) => discovered,
            () = stop.cancelled() => break,
        };
        let is_known = discovered.is_ok();
        let (least, pause) = match discovered {
            Ok(catalog) => {
                failures = 0;
                (QUIET, catalog.fresh_for(spec.pin))
            }
            Err(error) => {
                let (cause, reason) = (DownCause::from(error.kind), error.to_string());
                let tenant = shared.tenant.map(tracing::field::display);
                tracing::warn!(server = %spec.id, %agent, tenant, reason, "server is down; trying again");
                app.connections.update(&shared, |server| {
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
        let old_and_used = async {
            tokio::time::sleep(pause.saturating_sub(least)).await;
            if is_known {
                wait_for_use(&app, &shared, asked_at).await;
            }
        };
        let again = async {
            tokio::time::sleep(least).await;
            tokio::select! {
                () = old_and_used => {}
                () = wait_for_change(&mut changes, &key) => {}
                () = wait_until_down(&app, &key) => {}
            }
        };
        tokio::select! {
            () = again => {}
            () = stop.cancelled() => break,
            // Its connection is closed already.
            () = forget_when_unused(&app, &shared, &spec) => return,
        }
    }
    // When the process stops, calls may still be running; their connections are closed after them.
    if !app.shutdown.is_cancelled() {
        app.mcp.retire(&key).await;
    }
}

/// Waits until somebody has used a server after this moment.
async fn wait_for_use(app: &App, key: &SharedKey, after: Instant) {
    let is_used = |server: &mut SharedServer| server.used > after;
    while app.connections.update(key, is_used) != Some(true) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Forgets a server that is connected at its first use, when nobody has used it for a while and its connection is closed.
async fn forget_when_unused(app: &App, key: &SharedKey, spec: &ServerSpec) {
    if spec.at_start {
        return std::future::pending().await;
    }
    let unused = spec.timeouts.idle.unwrap_or(UNUSED);
    loop {
        tokio::time::sleep(unused.min(CHECK_INTERVAL)).await;
        let is_open = matches!(
            app.mcp.state(&Key::Shared(*key)),
            ConnectionState::Ready { .. } | ConnectionState::Connecting
        );
        let mut servers = app.connections.servers();
        match servers.get(key) {
            Some(server) if is_open || server.used.elapsed() < unused => {}
            _ => {
                servers.remove(key);
                return;
            }
        }
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

/// The servers of a pack, as its author wrote it, that have a connection which everybody uses: the shared ones, and those
/// personal ones whose tools the operator's headers discover. No call of a user goes over such a connection of the second
/// kind.
fn servers_of_operator(pack: &Pack) -> impl Iterator<Item = ServerSpec> + '_ {
    let discovered = pack.servers.iter().filter_map(ServerSpec::for_discovery);
    shared_servers(pack).cloned().chain(discovered)
}

/// How often a waiting caller checks the servers that are being connected.
const SETTLING: Duration = Duration::from_millis(50);
/// How long a turn waits for a process to start, unless the pack says how long that may take.
const CHILD_START: Duration = Duration::from_secs(20);

/// Connects the servers that packs call `required`; the error names the first one that cannot be reached. A server of which
/// each tenant has its own is tried for one of them.
pub async fn await_required(app: &Arc<App>) -> anyhow::Result<()> {
    let packs = app.packs.snapshot();
    let tenants = app.accounts.tenants().await?;
    let mut asked = HashSet::new();
    let mut required: Vec<(Key, &AgentId, Arc<ServerSpec>)> = Vec::new();
    for pack in packs.packs() {
        let Some(tenant) = tenants.iter().find(|tenant| tenant.serves(pack.id())) else {
            continue;
        };
        for spec in shared_servers(pack).filter(|server| server.required) {
            let key = shared_key(tenant.id, spec);
            if asked.insert(key.clone()) {
                required.push((key, pack.id(), Arc::new(spec.clone())));
            }
        }
    }
    let discoveries = required.iter().map(async |(key, agent, spec)| {
        let id = &spec.id;
        app.mcp.discover(key, spec).await.map_err(|error| {
            anyhow::anyhow!(
                "agent {agent}: server {id} is `required: true` and cannot be reached: {error}"
            )
        })
    });
    let discovered: anyhow::Result<Vec<_>> = join_all(discoveries).await.into_iter().collect();
    discovered.map(drop)
}

/// Waits until each server that is connected at the start has been asked for its tools once, whether it answered or not.
pub async fn await_first_discovery(app: &App) {
    app.connections.reconciled.cancelled().await;
    let is_open = |server: &SharedServer| server.spec.at_start && server.state == State::Connecting;
    while app.connections.servers().values().any(is_open) {
        tokio::time::sleep(SETTLING).await;
    }
}

/// Waits for the shared servers of an agent that are being connected for the first time, for each as long as that may take.
pub async fn await_connecting(app: &App, tenant: TenantId, pack: &Pack) {
    let start = clock::instant();
    while let Some(longest) = pending_connect_times(app, tenant, pack).max() {
        if start.elapsed() >= longest {
            return;
        }
        tokio::time::sleep(SETTLING).await;
    }
}

/// How long each shared server that is being connected for the first time may take for it.
fn pending_connect_times<'a>(
    app: &'a App,
    tenant: TenantId,
    pack: &'a Pack,
) -> impl Iterator<Item = Duration> + 'a {
    let is_pending =
        |server: &SharedServer| server.catalog.is_none() && server.state == State::Connecting;
    shared_servers(pack)
        .filter(|spec| spec.run_config.is_none())
        .filter(move |spec| app.connections.read(tenant, pack.id(), spec, is_pending))
        .map(|spec| match spec.endpoint {
            Endpoint::Stdio { .. } => spec.timeouts.start.unwrap_or(CHILD_START),
            Endpoint::Remote { .. } => spec.timeouts.connect,
        })
}
