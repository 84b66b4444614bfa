//! Ending sessions. Of a user, who signs out or is signed out by an admin: their tokens are taken no more, what runs
//! for them is stopped, and the connections that carry their credentials are closed, on every replica. What they
//! entered stays sealed for the next time. Of a tenant that is suspended or removed: the same for everybody.

use crate::app::{App, accounts::users, runs, servers::credentials};
use crate::{
    domain::{
        error::{Error, Result},
        ids::{RunId, TenantId, UserId},
        principal::{Admin, Principal},
    },
    store::{self, hints::Hint},
};

/// Ends the principal's sessions; `but` is the run that asks for it. Whether their tokens ended, too: a key is
/// its holder's to put away.
pub async fn end(app: &App, principal: &Principal, but: RunId) -> Result<bool> {
    let ended = app.accounts.sign_out(principal).await?;
    stop(app, principal.tenant, &principal.user, Some(but), ended).await?;
    Ok(ended)
}

/// Ends the sessions of a user who has been seen.
pub async fn end_by_id(app: &App, admin: &Admin, user: &str) -> Result<()> {
    let user = users::get(app, admin, user).await?.id;
    end_for(app, admin, &UserId(user.into())).await
}

/// Ends a user's sessions in their stead.
pub async fn end_for(app: &App, admin: &Admin, user: &UserId) -> Result<()> {
    app.accounts.sign_out_user(admin, user).await?;
    stop(app, admin.tenant(), user, None, true).await
}

/// Stops what runs for a user and closes their connections; those who listen are let go if they `ended`.
async fn stop(
    app: &App,
    tenant: TenantId,
    user: &UserId,
    but: Option<RunId>,
    ended: bool,
) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let open = store::runs::open_of_user(&mut tx, user).await?;
    let open: Vec<RunId> = open.into_iter().filter(|run| Some(*run) != but).collect();
    // Nobody is called back: the session that would go on with it is the user's as well.
    store::trees::stop(&mut tx, &open).await?;
    tx.commit().await?;
    for run in open {
        cancel(app, tenant, user, run).await?;
    }
    if ended {
        app.accounts.signed_out(tenant, user).await;
    }
    credentials::close_all(app, tenant, user).await?;
    let _ = app.hints.send(Hint::SignedOut {
        tenant,
        user: user.clone(),
    });
    Ok(())
}

async fn cancel(app: &App, tenant: TenantId, user: &UserId, run: RunId) -> Result<()> {
    match runs::cancel_of(app, tenant, user, run).await {
        // It ended by itself meanwhile.
        Ok(_) | Err(Error::Conflict(_) | Error::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Asks everything that runs for a tenant to stop.
async fn stop_all(app: &App, tenant: TenantId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let open = store::runs::open(&mut tx).await?;
    drop(tx);
    for (run, user) in open {
        cancel(app, tenant, &user, run).await?;
    }
    Ok(())
}

/// A tenant was changed or removed, here, on another replica or on the command line. If it may not do anything any
/// more, what runs for it is stopped, its users' connections are closed, and whoever of them listens is let go; its
/// shared servers are left within two seconds.
pub async fn tenant_changed(app: &App, tenant: TenantId) -> Result<()> {
    if !app.accounts.tenant_changed(tenant).await? {
        credentials::close_tenant(app, tenant).await;
        stop_all(app, tenant).await?;
    }
    Ok(())
}
