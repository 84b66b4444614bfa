//! Removal of what users have for personal servers: the rows, the connections made with them, and the tokens of
//! sign-ins where they came from.

use time::OffsetDateTime;

use super::{catalogs, change::personal_server, changed, key, news};
use crate::{
    app::{App, accounts::users, servers::oauth},
    domain::{
        audit::Fact,
        error::Result,
        ids::{TenantId, UserId},
        principal::{Admin, Principal},
    },
    store::{self, credentials::Removed},
};

/// Removes what a user entered and closes the connection made with it. `false` when there was nothing.
pub async fn remove(app: &App, principal: &Principal, agent: &str, server: &str) -> Result<bool> {
    let (pack, spec) = personal_server(app, principal, agent, server).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let only = Some((pack.id(), &spec.id));
    store::oauth_sign_ins::end(&mut tx, Some(&principal.user), only).await?;
    let removed = store::credentials::delete(&mut tx, &principal.user, only).await?;
    let is_any = !removed.is_empty();
    let fact = Fact::new(principal.user.as_str(), "credential.removed");
    finish_removal(app, tx, removed, &fact).await?;
    Ok(is_any)
}

/// Removes what a user who has been seen entered for personal servers; how many that were.
pub async fn remove_by_id(app: &App, admin: &Admin, user: &str) -> Result<usize> {
    let user = users::get(app, admin, user).await?.id;
    remove_all(app, admin.tenant(), &UserId(user.into()), admin.user()).await
}

/// Removes all that a user entered and closes the connections made with it; for how many servers. `by` says so.
pub async fn remove_all(app: &App, tenant: TenantId, user: &UserId, by: &UserId) -> Result<usize> {
    let mut tx = app.db.tenant(tenant).await?;
    store::oauth_sign_ins::end(&mut tx, Some(user), None).await?;
    let removed = store::credentials::delete(&mut tx, user, None).await?;
    let count = removed.len();
    let detail = format!("of {user}");
    let fact = Fact::new(by.as_str(), "credential.removed").detail(&detail);
    finish_removal(app, tx, removed, &fact).await?;
    Ok(count)
}

/// Ends the sign-ins at servers that were made until then: those of a user who signed out, or those of everybody of a
/// tenant. What users entered in fields stays. `by` says so.
pub async fn end_sign_ins(
    app: &App,
    tenant: TenantId,
    user: Option<&UserId>,
    until: OffsetDateTime,
    by: &str,
) -> Result<()> {
    loop {
        let mut tx = app.db.tenant(tenant).await?;
        let removed = store::credentials::delete_sign_ins(&mut tx, user, until).await?;
        if removed.is_empty() {
            return Ok(());
        }
        let fact = Fact::new(by, "credential.removed").detail("the sign-in ended");
        finish_removal(app, tx, removed, &fact).await?;
    }
}

/// What goes with credentials that were deleted: a line of the audit trail each, what was seen with them, the
/// connections made with them, here and on the other replicas, and their tokens where they came from.
async fn finish_removal(
    app: &App,
    mut tx: store::Tx,
    removed: Vec<Removed>,
    fact: &Fact<'_>,
) -> Result<()> {
    for Removed { credential, .. } in &removed {
        catalogs::forget(app, &mut tx, credential).await?;
        let fact = (*fact).at(credential.agent.as_str(), credential.server.as_str());
        store::audit::record(&mut tx, credential.tenant, &fact).await?;
    }
    tx.commit().await?;
    let mut sign_ins = Vec::new();
    for Removed { credential, tokens } in removed {
        let generation = (credential.id, credential.generation);
        changed(app, credential.tenant, &credential.agent, &credential.user).await;
        app.credentials.decrypted.invalidate(&generation).await;
        app.mcp.close(&key(&credential)).await;
        news::close_older(app, &credential).await;
        sign_ins.extend(tokens.map(|tokens| (credential, tokens)));
    }
    oauth::revoke_in_background(app, sign_ins).await;
    Ok(())
}
