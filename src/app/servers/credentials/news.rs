//! Changes of credentials by other replicas. A hint announces them at once; each second a process that has
//! credentials in memory also looks for them. Connections of a removed or replaced credential are closed.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{UserCredentials, UserOfAgent, owner};
use crate::{
    app::App,
    domain::{
        credential::{CredentialMeta, CredentialRef},
        error::Result,
        ids::{AgentId, CredentialId, TenantId, UserId},
        owner::ConnectionOwner,
    },
    mcp::Key,
    store,
};

/// Another replica changed a user's credentials.
pub async fn changed_elsewhere(app: &App, tenant: TenantId, agent: &AgentId, user: &UserId) {
    app.credentials
        .users
        .invalidate(&(tenant, agent.clone(), user.clone()))
        .await;
    let keys = app
        .mcp
        .personal_keys()
        .into_iter()
        .filter(|key| key.tenant == tenant && key.agent == *agent);
    if let Err(error) = close_outdated(app, keys.collect()).await {
        tracing::debug!(%error, "connections are looked at again within a second");
    }
}

/// Closes a user's connections; what they entered stays.
pub async fn close_all(app: &App, tenant: TenantId, user: &UserId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let ids = store::credentials::ids_of_user(&mut tx, user).await?;
    drop(tx);
    let ids: HashSet<CredentialId> = ids.into_iter().collect();
    for key in app.mcp.personal_keys() {
        let credential = key.owner.credential();
        if key.tenant == tenant && credential.is_some_and(|(id, _)| ids.contains(&id)) {
            close(app, &key).await;
        }
    }
    Ok(())
}

/// Closes the personal connections of everybody of a tenant.
pub async fn close_tenant(app: &App, tenant: TenantId) {
    for key in app.mcp.personal_keys() {
        if key.tenant == tenant {
            close(app, &key).await;
        }
    }
}

/// Closes a personal connection and forgets the credential that it was made with.
async fn close(app: &App, key: &Key) {
    app.mcp.close(key).await;
    if let Some(credential) = key.owner.credential() {
        app.credentials.decrypted.invalidate(&credential).await;
    }
}

/// Closes the connections that were made with other generations of a credential and are not in force any more.
pub(super) async fn close_older(app: &App, of: &CredentialRef) {
    let keys = app.mcp.personal_keys().into_iter();
    let keys = keys.filter(|key| {
        let credential = key.owner.credential();
        key.tenant == of.tenant && credential.is_some_and(|(id, _)| id == of.id)
    });
    if let Err(error) = close_outdated(app, keys.collect()).await {
        tracing::debug!(%error, "connections are looked at again within a second");
    }
}

/// Looks for changed credentials as long as any are in memory: two queries for all tenants.
pub async fn find_news(app: &Arc<App>) -> Result<()> {
    for whose in outdated(app).await? {
        app.credentials.users.invalidate(&*whose).await;
    }
    close_outdated(app, app.mcp.personal_keys()).await
}

/// The users whose cached credentials differ from the rows.
async fn outdated(app: &App) -> Result<Vec<Arc<UserOfAgent>>> {
    let known: Vec<(Arc<UserOfAgent>, Arc<UserCredentials>)> =
        app.credentials.users.iter().collect();
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let mut tx = app.db.system().await?;
    let rows =
        store::credentials::of_users(&mut tx, known.iter().map(|(whose, _)| &**whose)).await?;
    drop(tx);
    let mut now: HashMap<UserOfAgent, Vec<CredentialMeta>> = HashMap::new();
    for (whose, credential) in rows {
        now.entry(whose).or_default().push(credential);
    }
    let differs = |(whose, credentials): &(Arc<UserOfAgent>, Arc<UserCredentials>)| {
        now.get(&**whose).map_or(&[][..], Vec::as_slice) != credentials.0
    };
    Ok(known
        .into_iter()
        .filter(differs)
        .map(|(whose, _)| whose)
        .collect())
}

/// Closes connections whose credential is not in force any more. One that is only being tried is left alone.
async fn close_outdated(app: &App, mut keys: Vec<Key>) -> Result<()> {
    // In this order: a trial that ends between the two is a row when the rows are read.
    keys.retain(|key| !app.credentials.trials().contains(key));
    let ids: HashSet<(TenantId, CredentialId)> = keys
        .iter()
        .filter_map(|key| Some((key.tenant, key.owner.credential()?.0)))
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = ids.into_iter().collect();
    let mut tx = app.db.system().await?;
    let rows = store::credentials::in_force(&mut tx, &ids).await?;
    drop(tx);
    let in_force: HashSet<(TenantId, ConnectionOwner)> = rows
        .into_iter()
        .map(|(tenant, id, generation)| (tenant, owner(id, generation)))
        .collect();
    for key in keys {
        if !in_force.contains(&(key.tenant, key.owner)) {
            close(app, &key).await;
        }
    }
    Ok(())
}
