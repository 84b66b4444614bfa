//! The tools of personal servers. A shared catalog is listed with the credential of whoever was first and
//! serves everybody who has one; a per-user catalog is listed for each. Both are rows, so that they outlive
//! restarts and connections, and are listed again in the background when they are old or the server says so.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::broadcast::error::RecvError;

use super::{Listing, connection, reject};
use crate::{
    app::{App, servers::connections},
    domain::{
        connection::Held,
        error::Result,
        ids::{AgentId, CredentialId, ServerId, TenantId},
        owner::CatalogOwner,
        pack::Pack,
        principal::Principal,
        server::{CatalogScope, ServerSpec},
        tool::Catalog,
    },
    mcp::{Discovery, Key},
    store::{self, hints::Hint},
};

/// Whose list of a server's tools the holder of a credential sees; `None` when nothing can be known without one.
fn owner(server: &ServerSpec, held: Option<&Held>) -> Option<CatalogOwner> {
    match server.catalog {
        CatalogScope::Shared => Some(CatalogOwner::Shared),
        CatalogScope::PerUser => held.map(|held| CatalogOwner::Credential(held.id)),
    }
}

/// The catalogs that a principal's toolbox is made of, a server each. One is listed in the background when there is
/// none or it is old.
pub(super) async fn of(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Pack,
    servers: &[(&ServerSpec, Option<&Held>)],
) -> Result<Vec<Option<Arc<Catalog>>>> {
    let catalogs = known(app, principal.tenant, pack.id(), servers).await?;
    for ((server, held), catalog) in servers.iter().zip(&catalogs) {
        let age = catalog
            .as_ref()
            .map(|catalog| app.clock.now() - catalog.fetched_at);
        if held.is_some()
            && age.is_none_or(|age| age > connections::REFRESH)
            && let Some(owner) = owner(server, *held)
        {
            let (app, principal) = (app.clone(), principal.clone());
            let (agent, spec) = (pack.id().clone(), Arc::new((*server).clone()));
            app.tasks
                .clone()
                .spawn(async move { refresh(&app, &principal, &agent, &spec, owner).await });
        }
    }
    Ok(catalogs)
}

/// What was listed before, without asking a server. What is not in memory is read with one query for all.
pub(super) async fn known(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    servers: &[(&ServerSpec, Option<&Held>)],
) -> Result<Vec<Option<Arc<Catalog>>>> {
    let place = |(server, held): &(&ServerSpec, Option<&Held>)| {
        Some((server.id.clone(), owner(server, *held)?))
    };
    let places: Vec<Option<(ServerId, CatalogOwner)>> = servers.iter().map(place).collect();
    let mut found = HashMap::new();
    let mut unknown = Vec::new();
    for (server, owner) in places.iter().flatten() {
        let listing: Listing = (tenant, agent.clone(), server.clone(), *owner);
        match app.credentials.catalogs.get(&listing).await {
            Some(catalog) => drop(found.insert((server.clone(), *owner), catalog)),
            None => unknown.push((server.clone(), *owner)),
        }
    }
    if !unknown.is_empty() {
        let mut tx = app.db.tenant(tenant).await?;
        let stored = store::catalogs::get(&mut tx, agent, &unknown).await?;
        drop(tx);
        for (catalog, owner) in stored {
            let (server, catalog) = (catalog.server.clone(), Arc::new(catalog));
            let listing = (tenant, agent.clone(), server.clone(), owner);
            app.credentials
                .catalogs
                .insert(listing, catalog.clone())
                .await;
            found.insert((server, owner), catalog);
        }
    }
    Ok(places
        .iter()
        .map(|place| found.get(place.as_ref()?).cloned())
        .collect())
}

/// Lists the tools anew with a principal's credential, unless somebody is at it or was a moment ago.
async fn refresh(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    spec: &Arc<ServerSpec>,
    owner: CatalogOwner,
) {
    let listing: Listing = (principal.tenant, agent.clone(), spec.id.clone(), owner);
    if !app
        .credentials
        .refreshing
        .entry(listing)
        .or_insert(())
        .await
        .is_fresh()
    {
        return;
    }
    let connection = match connection(app, principal, agent, spec).await {
        Ok(Some(connection)) => connection,
        Ok(None) => return,
        Err(error) => {
            return tracing::warn!(%error, server = %spec.id, "a list of tools cannot be refreshed");
        }
    };
    let discovered = tokio::select! {
        discovered = connections::discover(app, &connection.key, &connection.spec) => discovered,
        () = app.shutdown.cancelled() => return,
    };
    let done = match discovered {
        Ok(discovery) => learn(app, &connection.key, spec, &discovery).await,
        Err(error) if error.is_credential() => reject(app, principal, &connection.key).await,
        Err(error) => {
            return tracing::info!(%error, server = %spec.id, "tools not listed; the known ones serve on");
        }
    };
    if let Err(error) = done {
        tracing::warn!(%error, server = %spec.id, "what a server said of its tools cannot be stored");
    }
}

/// Puts a list in force, here and on the other replicas.
pub(super) async fn learn(
    app: &App,
    key: &Key,
    spec: &ServerSpec,
    discovery: &Discovery,
) -> Result<()> {
    let catalog = Arc::new(connections::catalog(app, &spec.id, discovery));
    let owner = match (spec.catalog, key.owner.credential()) {
        (CatalogScope::PerUser, Some((id, _))) => CatalogOwner::Credential(id),
        _ => CatalogOwner::Shared,
    };
    let (tenant, agent, server) = (key.tenant, key.agent.clone(), key.server.clone());
    let mut tx = app.db.tenant(tenant).await?;
    store::catalogs::put(&mut tx, tenant, &agent, owner, &catalog).await?;
    tx.commit().await?;
    tracing::info!(%server, %agent, tools = catalog.tools.len(), "tools of a personal server listed");
    let listing = (tenant, agent.clone(), server.clone(), owner);
    app.credentials.catalogs.insert(listing, catalog).await;
    let _ = app.hints.send(Hint::Catalog {
        tenant,
        agent,
        server,
        owner,
    });
    Ok(())
}

/// Another replica listed tools.
pub async fn catalog_changed_elsewhere(
    app: &App,
    tenant: TenantId,
    agent: AgentId,
    server: ServerId,
    owner: CatalogOwner,
) {
    app.credentials
        .catalogs
        .invalidate(&(tenant, agent, server, owner))
        .await;
}

/// Lists again whenever a personal server says that its tools changed, until the process stops.
pub async fn follow_changes(app: Arc<App>) {
    let mut changes = app.mcp.changes();
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            () = app.shutdown.cancelled() => return,
        };
        match change {
            Ok(which) if which.owner.credential().is_some() => {
                let app = app.clone();
                app.tasks
                    .clone()
                    .spawn(async move { listen_to(&app, &which).await });
            }
            // Whatever was missed is found when the catalog is old.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// A server said over this connection that its tools changed.
async fn listen_to(app: &App, which: &Key) {
    let Some(credential) = which.owner.credential() else {
        return;
    };
    let Some(opened) = app.credentials.opened.get(&credential).await else {
        return;
    };
    match connections::discover(app, which, &opened.spec).await {
        Ok(discovery) => {
            if let Err(error) = learn(app, which, &opened.base, &discovery).await {
                tracing::warn!(%error, server = %which.server, "a list of tools cannot be stored");
            }
        }
        Err(error) => {
            tracing::info!(%error, server = %which.server, "tools not listed; the known ones serve on")
        }
    }
}

/// Forgets what one credential saw.
pub(super) async fn forget(
    app: &App,
    tx: &mut store::Tx,
    tenant: TenantId,
    agent: &AgentId,
    server: &ServerId,
    credential: CredentialId,
) -> Result<()> {
    store::catalogs::delete(tx, agent, server, credential).await?;
    let owner = CatalogOwner::Credential(credential);
    let listing = (tenant, agent.clone(), server.clone(), owner);
    app.credentials.catalogs.invalidate(&listing).await;
    Ok(())
}
