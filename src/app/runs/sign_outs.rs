//! Ending sessions. Of a user, who signs out or is signed out by an admin: their tokens are taken no more, what runs
//! for them is stopped, and the connections that carry their credentials are closed, on every replica. Their sign-ins
//! at servers end. What they entered in fields stays sealed for the next time. Of a tenant that is suspended or removed:
//! the same for everybody.

use std::{collections::HashSet, sync::Arc};

use time::OffsetDateTime;

use crate::app::{
    App,
    accounts::{self, users},
    runs::{self, OpenRequests},
    servers::credentials,
};
use crate::{
    domain::{
        audit::OPERATOR,
        error::{Error, Result},
        ids::{ApiKeyId, ApprovalId, RunId, TenantId, UserId},
        principal::{Admin, Principal},
        session::SessionEnd,
    },
    store::{self, hints::Hint, sign_outs::Recent},
};

/// Ends the principal's sessions; `but` is the run that asks for it. Whether their tokens ended, too: a key is
/// its holder's to put away.
pub async fn end(app: &App, principal: &Principal, but: RunId) -> Result<bool> {
    let ended = app.accounts.sign_out(principal).await?;
    let by = &principal.user;
    let stop = Stop {
        tenant: principal.tenant,
        user: by,
        but: Some(but),
        ended_by: Some(by).filter(|_| ended),
        cause: SessionEnd::SignedOut,
    };
    stop.carry_out(app).await?;
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
    let stop = Stop {
        tenant: admin.tenant(),
        user,
        but: None,
        ended_by: Some(admin.user()),
        cause: SessionEnd::SignedOut,
    };
    stop.carry_out(app).await
}

/// Blocks a user who has been seen: what is theirs ends everywhere, and nothing of theirs begins until they are unblocked.
pub async fn block(app: &App, admin: &Admin, user: &str) -> Result<()> {
    let user = UserId(users::get(app, admin, user).await?.id.into());
    accounts::block_user(&app.db, admin.tenant(), &user, admin.user()).await?;
    let stop = Stop {
        tenant: admin.tenant(),
        user: &user,
        but: None,
        ended_by: Some(admin.user()),
        cause: SessionEnd::Blocked,
    };
    stop.carry_out(app).await
}

/// Ends the block of a user. `NotFound` when there is none.
pub async fn unblock(app: &App, admin: &Admin, user: &str) -> Result<()> {
    let (tenant, user) = (admin.tenant(), UserId(user.into()));
    accounts::unblock_user(&app.db, tenant, &user, admin.user()).await?;
    app.accounts.signed_out(tenant, &user).await?;
    let _ = app.hints.send(Hint::SignedOut { tenant, user });
    Ok(())
}

/// What is to be stopped.
struct Stop<'a> {
    tenant: TenantId,
    user: &'a UserId,
    /// The run that asks for it.
    but: Option<RunId>,
    /// Who ended the user's sessions, if somebody did.
    ended_by: Option<&'a UserId>,
    cause: SessionEnd,
}

impl Stop<'_> {
    /// Stops what runs for a user and closes their connections. If somebody ended their sessions, what waits for approval
    /// is taken back, and those who listen are let go.
    async fn carry_out(self, app: &App) -> Result<()> {
        let (tenant, user) = (self.tenant, self.user);
        self.stop_work(app).await?;
        let mut tx = app.db.tenant(tenant).await?;
        store::oauth_sign_ins::end(&mut tx, Some(user), None).await?;
        let now = tx.now().await?;
        tx.commit().await?;
        let by = self.ended_by.unwrap_or(user).as_str();
        credentials::end_sign_ins(app, tenant, Some(user), now, by).await?;
        if self.ended_by.is_some() {
            app.accounts.signed_out(tenant, user).await?;
        }
        credentials::close_all(app, tenant, user).await?;
        let _ = app.hints.send(Hint::SignedOut {
            tenant,
            user: user.clone(),
        });
        Ok(())
    }

    /// Takes back what waits for approval, if the sessions ended, and cancels the runs.
    async fn stop_work(&self, app: &App) -> Result<()> {
        let (tenant, user) = (self.tenant, self.user);
        let mut tx = app.db.tenant(tenant).await?;
        let withdrawn = match self.ended_by {
            Some(by) => store::approvals::withdraw_of_user(&mut tx, user, by, self.cause).await?,
            None => Vec::new(),
        };
        let mut open = store::runs::open_of_user(&mut tx, user).await?;
        open.retain(|run| Some(*run) != self.but);
        // No session is notified: the session that would continue belongs to the same user.
        store::trees::stop(&mut tx, &open).await?;
        tx.commit().await?;
        settle(app, tenant, withdrawn);
        for run in open {
            cancel(app, tenant, user, run).await?;
        }
        Ok(())
    }
}

/// Requests that were taken back are ended in the background.
fn settle(app: &App, tenant: TenantId, withdrawn: Vec<ApprovalId>) {
    for approval in withdrawn {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((tenant, approval));
    }
}

/// A user signed out on another replica, or was blocked there or on the command line.
pub async fn signed_out(app: &App, tenant: TenantId, user: &UserId) -> Result<()> {
    if app.accounts.signed_out(tenant, user).await? {
        // What this replica has begun before it knew of the block.
        let stop = Stop {
            tenant,
            user,
            but: None,
            ended_by: Some(&UserId(OPERATOR.into())),
            cause: SessionEnd::Blocked,
        };
        stop.stop_work(app).await?;
    }
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

/// Looks for sessions that ended and claims that changed a moment ago, on a replica whose hint was lost or on the command
/// line. `known` is what the last look saw.
pub async fn find_ended(
    app: &Arc<App>,
    known: &mut HashSet<(TenantId, Recent, OffsetDateTime)>,
) -> Result<()> {
    let mut tx = app.db.system().await?;
    let found = store::sign_outs::recent(&mut tx).await?;
    drop(tx);
    for (tenant, what, at) in &found {
        if known.contains(&(*tenant, what.clone(), *at)) {
            continue;
        }
        match what {
            Recent::Session(user) => {
                // The replica where they signed out may have ended before it came to this.
                credentials::end_sign_ins(app, *tenant, Some(user), *at, user.as_str()).await?;
                signed_out(app, *tenant, user).await?;
            }
            Recent::Key(key) => key_revoked(app, *tenant, *key, &UserId(OPERATOR.into())).await?,
            Recent::Claims(user) => app.accounts.claims_changed(*tenant, user).await,
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
