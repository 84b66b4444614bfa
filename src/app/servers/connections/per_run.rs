//! Shared servers whose requests contain values of a run. They have no background connection. Runs that
//! reach a server with the same values share a connection and its catalog; other runs do not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use moka::{Expiry, future::Cache};

use super::{catalog, discover, shared_key};
use crate::{
    app::App,
    domain::{
        ids::{AgentId, TenantId},
        owner::ConnectionOwner,
        server::ServerSpec,
        tool::Catalog,
    },
    mcp::{Key, McpError},
};

const REMEMBERED: u64 = 1024;

/// What was discovered, by connection.
pub(super) struct Catalogs(Cache<Key, Arc<Catalog>>);

impl Default for Catalogs {
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
