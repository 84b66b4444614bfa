//! Waiting for servers that are being connected for the first time: before a replica is ready, and before the first turn of
//! a tenant that was added a moment ago.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{SharedServer, State, shared_key, supervision::shared_servers};
use crate::{
    app::{App, servers::registry},
    domain::{ids::TenantId, pack::Pack, server::ServerSpec},
};

/// Between two looks whether the first discovery is over.
const SETTLING: Duration = Duration::from_millis(50);

/// Waits for the servers that a pack calls `required`; the error names those that cannot be reached. A server that a
/// tenant's registry defines stops no start: the log names it.
pub async fn await_required(app: &Arc<App>) -> anyhow::Result<()> {
    let packs = app.library.snapshot();
    for tenant in app.accounts.tenants().await? {
        for pack in packs.packs().filter(|pack| tenant.serves(pack.id())) {
            let served = match registry::pack_for(app, tenant.id, pack).await {
                Ok(served) => served,
                Err(error) => {
                    tracing::warn!(tenant = %tenant.id, agent = %pack.id(), %error, "the registry of a tenant cannot be read");
                    pack.clone()
                }
            };
            for spec in shared_servers(app, &served).filter(|server| server.required) {
                let (key, id) = (shared_key(tenant.id, pack.id(), &spec.id), &spec.id);
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
    app.connections.looked.cancelled().await;
    let is_open = |server: &SharedServer| server.state == State::Connecting;
    while app.connections.servers().values().any(is_open) {
        tokio::time::sleep(SETTLING).await;
    }
}

/// Waits for those shared servers of an agent whose tools nobody knows yet and that are being connected, for each as long
/// as its `connectSeconds`.
pub async fn await_connecting(app: &App, tenant: TenantId, pack: &Pack) {
    let start = Instant::now();
    while let Some(longest) = unknown(app, tenant, pack).max() {
        if start.elapsed() >= longest {
            return;
        }
        tokio::time::sleep(SETTLING).await;
    }
}

/// How long each of these servers may take to connect.
fn unknown<'a>(
    app: &'a App,
    tenant: TenantId,
    pack: &'a Pack,
) -> impl Iterator<Item = Duration> + 'a {
    let is_unknown = move |spec: &&ServerSpec| {
        let place = (tenant, pack.id().clone(), spec.id.clone());
        match app.connections.servers().get(&place) {
            Some(server) => server.catalog.is_none() && server.state == State::Connecting,
            None => {
                app.connections.wanted.notify_one();
                true
            }
        }
    };
    shared_servers(app, pack)
        .filter(|spec| spec.run_config.is_none())
        .filter(is_unknown)
        .map(|spec| spec.timeouts.connect)
}
