//! Ending sessions. Of a user, who signs out or is signed out by an admin: their tokens are taken no more, what runs
//! for them is stopped, and the connections that carry their credentials are closed, on every replica. Their sign-ins
//! at servers end. What they entered in fields stays sealed for the next time. Of a tenant that is suspended or removed:
//! the same for everybody.

use std::{collections::HashSet, sync::Arc};

use time::OffsetDateTime;

use crate::app::{
    App,
    accounts::users,
    runs::{self, OpenRequests},
    servers::credentials,
};
use crate::{
    domain::{
        audit::OPERATOR,
        error::{Error, Result},
        ids::{ApiKeyId, ApprovalId, RunId, TenantId, UserId},
        principal::{Admin, Principal},
    },
    store::{self, hints::Hint, sign_outs::Ended},
};

/// Ends the principal's sessions; `but` is the run that asks for it. Whether their tokens ended, too: a key is
/// its holder's to put away.
pub async fn end(app: &App, principal: &Principal, but: RunId) -> Result<bool> {
    let ended = app.accounts.sign_out(principal).await?;
    let by = &principal.user;
    stop(
        app,
        (principal.tenant, by),
        Some(but),
        Some(by).filter(|_| ended),
    )
    .await?;
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
    stop(app, (admin.tenant(), user), None, Some(admin.user())).await
}

/// Stops what runs for a user and closes their connections. If somebody ended their sessions, what waits for approval
/// is taken back, and those who listen are let go.
async fn stop(
    app: &App,
    (tenant, user): (TenantId, &UserId),
    but: Option<RunId>,
    ended_by: Option<&UserId>,
) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let withdrawn = match ended_by {
        Some(by) => store::approvals::withdraw_of_user(&mut tx, user, by).await?,
        None => Vec::new(),
    };
    let open = store::runs::open_of_user(&mut tx, user).await?;
    let open: Vec<RunId> = open.into_iter().filter(|run| Some(*run) != but).collect();
    // No session is notified: the session that would continue belongs to the same user.
    store::trees::stop(&mut tx, &open).await?;
    store::oauth_sign_ins::end(&mut tx, Some(user), None).await?;
    let now = tx.now().await?;
    tx.commit().await?;
    let by = ended_by.unwrap_or(user).as_str();
    credentials::end_sign_ins(app, tenant, Some(user), now, by).await?;
    settle(app, tenant, withdrawn);
    for run in open {
        cancel(app, tenant, user, run).await?;
    }
    if ended_by.is_some() {
        app.accounts.signed_out(tenant, user).await?;
    }
    credentials::close_all(app, tenant, user).await?;
    let _ = app.hints.send(Hint::SignedOut {
        tenant,
        user: user.clone(),
    });
    Ok(())
}

/// Requests that were taken back are ended in the background.
fn settle(app: &App, tenant: TenantId, withdrawn: Vec<ApprovalId>) {
    for approval in withdrawn {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((tenant, approval));
    }
}

/// A user signed out on another replica.
pub async fn signed_out(app: &App, tenant: TenantId, user: &UserId) -> Result<()> {
    app.accounts.signed_out(tenant, user).await?;
    credentials::close_all(app, tenant, user).await
}

/// Revokes a key of the admin's tenant, with what runs and waits for those who came with it.
pub async fn revoke_key(app: &App, admin: &Admin, key: ApiKeyId) -> Result<()> {
    app.accounts.revoke_key(admin, key).await?;
    key_revoked(app, admin.tenant(), key, admin.user()).await?;
    let _ = app.hints.send(Hint::KeyRevoked {
        tenant: admin.tenant(),
        key,
    });
    Ok(())
}

async fn key_revoked(app: &App, tenant: TenantId, key: ApiKeyId, by: &UserId) -> Result<()> {
    app.accounts.key_revoked(tenant, key).await;
    let mut tx = app.db.tenant(tenant).await?;
    let withdrawn = store::approvals::withdraw_of_key(&mut tx, key, by).await?;
    let open = store::runs::open_of_key(&mut tx, key).await?;
    let runs: Vec<RunId> = open.iter().map(|(run, _)| *run).collect();
    store::trees::stop(&mut tx, &runs).await?;
    tx.commit().await?;
    settle(app, tenant, withdrawn);
    for (run, user) in open {
        cancel(app, tenant, &user, run).await?;
    }
    Ok(())
}

/// Looks for sessions that ended a moment ago, on a replica whose hint was lost or on the command line. `known` is what
/// the last look saw.
pub async fn find_ended(
    app: &Arc<App>,
    known: &mut HashSet<(TenantId, Ended, OffsetDateTime)>,
) -> Result<()> {
    let mut tx = app.db.system().await?;
    let found = store::sign_outs::recent(&mut tx).await?;
    drop(tx);
    for (tenant, ended, at) in &found {
        if known.contains(&(*tenant, ended.clone(), *at)) {
            continue;
        }
        match ended {
            Ended::User(user) => {
                // The replica where they signed out may have ended before it came to this.
                credentials::end_sign_ins(app, *tenant, Some(user), *at, user.as_str()).await?;
                signed_out(app, *tenant, user).await?;
            }
            Ended::Key(key) => key_revoked(app, *tenant, *key, &UserId(OPERATOR.into())).await?,
        }
    }
    *known = found.into_iter().collect();
    app.accounts.sessions_were_checked();
    Ok(())
}

async fn cancel(app: &App, tenant: TenantId, user: &UserId, run: RunId) -> Result<()> {
    match runs::cancel_of(app, tenant, user, run, OpenRequests::TakeBack).await {
        // It ended by itself meanwhile.
        Ok(_) | Err(Error::Conflict(..) | Error::NotFound(_)) => Ok(()),
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
        end_sign_ins_of_all(app, tenant).await?;
        stop_all(app, tenant).await?;
    }
    Ok(())
}

/// Ends the sign-ins at servers of everybody of a tenant, and those that have begun.
pub(super) async fn end_sign_ins_of_all(app: &App, tenant: TenantId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    store::oauth_sign_ins::end(&mut tx, None, None).await?;
    let now = tx.now().await?;
    tx.commit().await?;
    credentials::end_sign_ins(app, tenant, None, now, OPERATOR).await
}
