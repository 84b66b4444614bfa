//! The catalogs of personal servers. A shared catalog is listed with the credential of the first user and serves every
//! user who has one; a per-user catalog is listed for each user. Both are rows, so they outlive restarts and
//! connections. They are listed again in the background when they are old or the server announces a change.
//!
//! Invariant: a list that a server calls private is shown only to the holder of the credential it was listed with,
//! whatever the pack says. An empty private catalog then takes the place of the shared one.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::broadcast::error::RecvError;

use super::{CatalogKey, ResolvedConnection, reject, resolve_connection};
use crate::app::{
    App,
    servers::{connections, pins},
};
use domain::{
    credential::{CredentialMeta, CredentialRef},
    error::Result,
    ids::{AgentId, ServerId, TenantId},
    owner::CatalogOwner,
    pack::Pack,
    principal::Principal,
    server::{CatalogScope, ServerSpec},
    tool::Catalog,
};
use mcp::{Discovery, Key};
use store::hints::Hint;

type CatalogsByOwner = HashMap<(ServerId, CatalogOwner), Arc<Catalog>>;

/// The catalogs of a principal's personal servers, in the order of `servers`. A missing or old catalog is listed again
/// in the background.
pub(super) async fn load_all(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Pack,
    servers: &[(&ServerSpec, Option<&CredentialMeta>)],
) -> Result<Vec<Option<Arc<Catalog>>>> {
    let looked_up = look_up(app, principal.tenant, pack.id(), servers).await?;
    let mut catalogs = Vec::with_capacity(servers.len());
    for ((server, stored), (owner, catalog)) in servers.iter().zip(looked_up) {
        let is_old = catalog.as_ref().is_none_or(|catalog| {
            app.clock.now() - catalog.fetched_at > catalog.fresh_for(server.pin)
        });
        if let (Some(_), Some(owner), true) = (stored, owner, is_old) {
            let (app, principal) = (app.clone(), principal.clone());
            let (agent, spec) = (pack.id().clone(), Arc::new((*server).clone()));
            app.tasks
                .clone()
                .spawn(async move { refresh(&app, &principal, &agent, &spec, owner).await });
        }
        catalogs.push(catalog);
    }
    Ok(catalogs)
}

/// The catalogs that are known already. No server is asked.
pub(super) async fn load_known(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    servers: &[(&ServerSpec, Option<&CredentialMeta>)],
) -> Result<Vec<Option<Arc<Catalog>>>> {
    let looked_up = look_up(app, tenant, agent, servers).await?;
    Ok(looked_up.into_iter().map(|(_, catalog)| catalog).collect())
}

/// The catalog of each server for the holder of a credential, and the owner of that catalog. Without a credential, the
/// owner of a catalog that is not shared is unknown.
async fn look_up(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    servers: &[(&ServerSpec, Option<&CredentialMeta>)],
) -> Result<Vec<(Option<CatalogOwner>, Option<Arc<Catalog>>)>> {
    let shared: Vec<_> = servers
        .iter()
        .filter(|(server, _)| server.catalog == CatalogScope::Shared)
        .map(|(server, _)| (server.id.clone(), CatalogOwner::Shared))
        .collect();
    let mut shared = fetch(app, tenant, agent, shared).await?;
    for (server, _) in servers {
        // What the operator's headers have discovered is there once for all tenants.
        let discovered = server.for_discovery();
        let discovered = discovered.and_then(|spec| app.connections.catalog(tenant, agent, &spec));
        if let Some(discovered) = discovered {
            shared.insert((server.id.clone(), CatalogOwner::Shared), discovered);
        }
    }
    let is_shared = |server: &ServerSpec| {
        let found = shared.get(&(server.id.clone(), CatalogOwner::Shared));
        server.catalog == CatalogScope::Shared && !found.is_some_and(|found| found.is_private())
    };
    let key = |(server, stored): &(&ServerSpec, Option<&CredentialMeta>)| {
        if is_shared(server) {
            return Some((server.id.clone(), CatalogOwner::Shared));
        }
        Some((server.id.clone(), CatalogOwner::Credential((*stored)?.id)))
    };
    let keys: Vec<_> = servers.iter().map(key).collect();
    let own = keys.iter().flatten().cloned();
    let own = own.filter(|(_, owner)| *owner != CatalogOwner::Shared);
    let own = fetch(app, tenant, agent, own.collect()).await?;
    let found = |key: Option<(ServerId, CatalogOwner)>| {
        let catalog = key
            .as_ref()
            .and_then(|key| shared.get(key).or_else(|| own.get(key)));
        (key.as_ref().map(|(_, owner)| *owner), catalog.cloned())
    };
    Ok(keys.into_iter().map(found).collect())
}

/// The list of a personal server that serves all its users, where it is known.
pub(in crate::app::servers) async fn find_shared_list(
    app: &App,
    credential: &CredentialRef,
    server: &ServerSpec,
) -> Option<Arc<Catalog>> {
    if server.catalog != CatalogScope::Shared {
        return None;
    }
    let wanted = vec![(credential.server.clone(), CatalogOwner::Shared)];
    let found = fetch(app, credential.tenant, &credential.agent, wanted).await;
    let found = found.ok()?.into_values().next();
    found.filter(|catalog| !catalog.is_private())
}

/// Finds catalogs in memory. One query reads all that are missing there.
async fn fetch(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    wanted: Vec<(ServerId, CatalogOwner)>,
) -> Result<CatalogsByOwner> {
    let mut found = HashMap::new();
    let mut unknown = Vec::new();
    for (server, owner) in wanted {
        let listing: CatalogKey = (tenant, agent.clone(), server.clone(), owner);
        match app.credentials.catalogs.get(&listing).await {
            Some(catalog) => drop(found.insert((server, owner), catalog)),
            None => unknown.push((server, owner)),
        }
    }
    if unknown.is_empty() {
        return Ok(found);
    }
    let mut tx = app.db.tenant(tenant).await?;
    let stored = store::catalogs::list(&mut tx, agent, &unknown).await?;
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
    Ok(found)
}

/// Lists the tools again with a principal's credential, unless that is happening or has just happened.
async fn refresh(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    spec: &Arc<ServerSpec>,
    owner: CatalogOwner,
) {
    let listing: CatalogKey = (principal.tenant, agent.clone(), spec.id.clone(), owner);
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
    let connection = match resolve_connection(app, principal, agent, spec).await {
        Ok(Some(connection)) => connection,
        Ok(None) => return,
        Err(error) => {
            return tracing::warn!(error = error.with_cause(), server = %spec.id, "a list of tools cannot be refreshed");
        }
    };
    let Key::Personal(credential) = &connection.key else {
        return;
    };
    let listing = connections::list_within(app, agent, spec, &connection, Duration::ZERO);
    let listed = tokio::select! {
        listed = Box::pin(listing) => listed,
        () = app.shutdown.cancelled() => return,
    };
    let done = match listed {
        Ok(_) => Ok(()),
        Err(error) if error.is_credential_refused() => reject(app, principal, credential).await,
        Err(error) => {
            return tracing::info!(error = error.to_string(), server = %spec.id, "tools not listed; the known ones serve on");
        }
    };
    if let Err(error) = done {
        tracing::warn!(error = error.with_cause(), server = %spec.id, "what a server said of its tools cannot be stored");
    }
}

/// Puts a list that was fetched with a user's credential in force on every replica. Returns it also when that failed.
pub(in crate::app::servers) async fn store_catalog(
    app: &App,
    credential: &CredentialRef,
    spec: &ServerSpec,
    discovery: &Discovery,
) -> (Arc<Catalog>, Result<()>) {
    let catalog = Arc::new(connections::make_catalog(app, &spec.id, discovery));
    let stored = put_in_force(app, credential, spec, &catalog).await;
    (catalog, stored)
}

async fn put_in_force(
    app: &App,
    credential: &CredentialRef,
    spec: &ServerSpec,
    catalog: &Arc<Catalog>,
) -> Result<()> {
    let own = CatalogOwner::Credential(credential.id);
    let (tenant, agent, server) = (credential.tenant, &credential.agent, &credential.server);
    let kept = match (spec.catalog, catalog.is_private()) {
        (CatalogScope::PerUser, _) => vec![(own, catalog.clone())],
        (CatalogScope::Shared, false) => vec![(CatalogOwner::Shared, catalog.clone())],
        // An empty catalog takes the place of the one that was shared until now.
        (CatalogScope::Shared, true) => {
            let empty = Catalog {
                tools: Vec::new(),
                prompts: Vec::new(),
                dropped: Vec::new(),
                ..Catalog::clone(catalog)
            };
            vec![
                (CatalogOwner::Shared, Arc::new(empty)),
                (own, catalog.clone()),
            ]
        }
    };
    let mut tx = app.db.tenant(tenant).await?;
    for (owner, catalog) in &kept {
        store::catalogs::put(&mut tx, tenant, agent, *owner, catalog).await?;
    }
    tx.commit().await?;
    pins::record(app, tenant, agent, spec, &catalog.tools, true).await?;
    let tools = catalog.tools.len();
    tracing::debug!(%server, %agent, tools, "tools of a personal server listed");
    for (owner, catalog) in kept {
        let (agent, server) = (agent.clone(), server.clone());
        let listing = (tenant, agent.clone(), server.clone(), owner);
        app.credentials.catalogs.insert(listing, catalog).await;
        let _ = app.hints.send(Hint::Catalog {
            tenant,
            agent,
            server,
            owner,
        });
    }
    Ok(())
}

/// Forgets a catalog that another replica has listed again.
pub async fn forget_catalog(
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
            Ok(Key::Personal(credential)) => {
                let app = app.clone();
                app.tasks
                    .clone()
                    .spawn(async move { list_again(&app, credential).await });
            }
            // A missed change is found when the catalog is old.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Lists the tools again over the connection on which their server announced a change.
async fn list_again(app: &App, credential: CredentialRef) {
    let generation = (credential.id, credential.generation);
    let Some(opened) = app.credentials.decrypted.get(&generation).await else {
        return;
    };
    let (agent, server) = (&credential.agent, &credential.server);
    let connection = ResolvedConnection {
        key: Key::Personal(credential.clone()),
        spec: opened.spec.clone(),
    };
    let listing = connections::list_within(app, agent, &opened.base, &connection, Duration::ZERO);
    if let Err(error) = Box::pin(listing).await {
        tracing::info!(error = error.to_string(), %server, "tools not listed; the known ones serve on");
    }
}

/// Deletes the catalog that was listed with a credential.
pub(super) async fn forget(
    app: &App,
    tx: &mut store::Tx,
    credential: &CredentialRef,
) -> Result<()> {
    let (agent, server) = (&credential.agent, &credential.server);
    store::catalogs::delete(tx, agent, server, credential.id).await?;
    let owner = CatalogOwner::Credential(credential.id);
    let listing = (credential.tenant, agent.clone(), server.clone(), owner);
    app.credentials.catalogs.invalidate(&listing).await;
    Ok(())
}
