//! Shared servers: connected in the background, all at once; one that is down is retried while the
//! others serve. What was discovered is kept as an immutable catalog, in memory and in Postgres.
//!
//! One task per (tenant, agent, shared server). [`supervise`] starts and stops the tasks when packs or tenants
//! change. A personal server has one only where the operator gave it headers to discover its tools with.

mod catalogs; // what was discovered, in memory and in Postgres
mod first_discovery;
mod listing;
mod per_run;
mod supervision; // a task for each server
mod view; // how a server is, for people

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(in crate::app) use self::{catalogs::catalog, listing::discover};
pub use self::{
    first_discovery::{await_connecting, await_first_discovery, await_required},
    per_run::{catalog_of, key},
    supervision::supervise,
    view::{ConnectionKind, ConnectionView, State},
};
use crate::{
    domain::{
        ids::{AgentId, ServerId, TenantId},
        owner::ConnectionOwner,
        server::ServerSpec,
        tool::Catalog,
    },
    mcp::Key,
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
    per_run: per_run::Catalogs,
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
