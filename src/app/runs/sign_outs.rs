//! Ending the sessions of a user, who signs out or whom an admin signs out or blocks: their tokens are refused, their
//! runs are stopped, and the connections that carry their credentials are closed, on every replica. Their sign-ins at
//! servers end. The values that they entered in fields stay sealed for the next time.
//!
//! The sessions of all users of a tenant end when the tenant is suspended or removed.

use std::{collections::HashSet, sync::Arc};

use time::OffsetDateTime;
use uuid::Uuid;

use crate::app::{
    App,
    accounts::{self, users},
    runs::{self, OpenRequests},
    servers::{credentials, pins},
};
use domain::{
    audit::OPERATOR,
    error::{Error, Result},
    ids::{ApiKeyId, RunId, TenantId, UserId},
    principal::{Admin, Principal},
    session::SessionEnd,
};
use store::{hints::Hint, sign_outs::RecentChange};

/// Ends the principal's sessions. `except` is the run that asks for this: it goes on. Returns whether their tokens
/// ended, too. A sign-out does not end a key.
pub async fn end(app: &App, principal: &Principal, except: RunId) -> Result<bool> {
    let ended = app.accounts.sign_out(principal).await?;
    let by = &principal.user;
    let stop = Stop {
        tenant: principal.tenant,
        user: by,
        except: Some(except),
        ended_by: Some(by).filter(|_| ended),
        cause: SessionEnd::SignedOut,
    };
    stop.carry_out(app).await?;
    Ok(ended)
}

/// Ends the sessions of a user by their id. `NotFound` for a user whom the tenant has never seen.
pub async fn end_by_id(app: &App, admin: &Admin, user: &str) -> Result<()> {
    let user = users::get(app, admin, user).await?.id;
    end_for(app, admin, &UserId(user.into())).await
}

/// Ends a user's sessions on behalf of an admin.
pub async fn end_for(app: &App, admin: &Admin, user: &UserId) -> Result<()> {
    app.accounts.sign_out_user(admin, user).await?;
    let stop = Stop {
        tenant: admin.tenant(),
        user,
        except: None,
        ended_by: Some(admin.user()),
        cause: SessionEnd::SignedOut,
    };
    stop.carry_out(app).await
}

/// Blocks a user: their sessions end everywhere, and no session or run of theirs begins until they are unblocked.
/// `NotFound` for a user whom the tenant has never seen.
pub async fn block(app: &App, admin: &Admin, user: &str) -> Result<()> {
    let user = UserId(users::get(app, admin, user).await?.id.into());
    accounts::block_user(&app.db, admin.tenant(), &user, admin.user()).await?;
    let stop = Stop {
        tenant: admin.tenant(),
        user: &user,
        except: None,
        ended_by: Some(admin.user()),
        cause: SessionEnd::Blocked,
    };
    stop.carry_out(app).await
}

/// Ends the block of a user. `NotFound` when the user is not blocked.
pub async fn unblock(app: &App, admin: &Admin, user: &str) -> Result<()> {
    let (tenant, user) = (admin.tenant(), UserId(user.into()));
    accounts::unblock_user(&app.db, tenant, &user, admin.user()).await?;
    app.accounts.signed_out(tenant, &user).await?;
    let _ = app.hints.send(Hint::SignedOut { tenant, user });
    Ok(())
}

/// A user whose work is stopped, and why.
struct Stop<'a> {
    tenant: TenantId,
    user: &'a UserId,
    /// The run that asks for the stop: it goes on.
    except: Option<RunId>,
    /// The user or admin who ended the sessions; absent when the sessions go on, as those of a key do.
    ended_by: Option<&'a UserId>,
    cause: SessionEnd,
}

impl Stop<'_> {
    /// Stops the user's runs and closes their connections. If their sessions ended, their open requests for consent are
    /// withdrawn, and their event streams are closed.
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

    /// Withdraws the user's open requests for consent, if the sessions ended, and cancels the runs.
    async fn stop_work(&self, app: &App) -> Result<()> {
        let (tenant, user) = (self.tenant, self.user);
        let mut tx = app.db.tenant(tenant).await?;
        let withdrawn = match self.ended_by {
            Some(by) => store::approvals::withdraw_of_user(&mut tx, user, by, self.cause).await?,
            None => Vec::new(),
        };
        let mut open = store::runs::list_open_of_user(&mut tx, user).await?;
        open.retain(|run| Some(*run) != self.except);
        // No session is notified: the session that would continue belongs to the same user.
        store::trees::stop(&mut tx, &open).await?;
        tx.commit().await?;
        app.settle_requests(tenant, withdrawn);
        for run in open {
            cancel(app, tenant, user, run).await?;
        }
        Ok(())
    }
}

/// Applies a sign-out here that happened on another replica, or a block that was set there or on the command line.
pub async fn apply_sign_out(app: &App, tenant: TenantId, user: &UserId) -> Result<()> {
    if app.accounts.signed_out(tenant, user).await? {
        // This replica may have begun runs before it knew of the block.
        let stop = Stop {
            tenant,
            user,
            except: None,
            ended_by: Some(&UserId(OPERATOR.into())),
            cause: SessionEnd::Blocked,
        };
        stop.stop_work(app).await?;
    }
    credentials::close_all(app, tenant, user).await
}

/// Revokes a key of the admin's tenant. The runs and the requests for consent of callers who used the key end.
pub async fn revoke_key(app: &App, admin: &Admin, key: ApiKeyId) -> Result<()> {
    app.accounts.revoke_key(admin, key).await?;
    stop_work_of_key(app, admin.tenant(), key, admin.user()).await?;
    let _ = app.hints.send(Hint::KeyRevoked {
        tenant: admin.tenant(),
        key,
    });
    Ok(())
}

async fn stop_work_of_key(app: &App, tenant: TenantId, key: ApiKeyId, by: &UserId) -> Result<()> {
    app.accounts.key_revoked(tenant, key).await;
    let mut tx = app.db.tenant(tenant).await?;
    let withdrawn = store::approvals::withdraw_of_key(&mut tx, key, by).await?;
    let open = store::runs::list_open_of_key(&mut tx, key).await?;
    let runs: Vec<RunId> = open.iter().map(|(run, _)| *run).collect();
    store::trees::stop(&mut tx, &runs).await?;
    tx.commit().await?;
    app.settle_requests(tenant, withdrawn);
    for (run, user) in open {
        cancel(app, tenant, &user, run).await?;
    }
    Ok(())
}

/// Applies sign-outs, revoked keys, changed claims and changed tools that are new since the last poll (`known`): their hint
/// was lost, or the command line made them.
pub async fn poll_ended(
    app: &Arc<App>,
    known: &mut HashSet<(TenantId, RecentChange, OffsetDateTime)>,
) -> Result<()> {
    let found = app.db.look_at_access(|tx| {
        Box::pin(async move {
            let mut found = store::sign_outs::list_recent(tx).await?;
            let of_all = store::pins::list_recent_of_all(tx).await?.into_iter();
            found.extend(of_all.map(|(agent, server, at)| {
                let change = RecentChange::Tools(agent, server);
                (TenantId(Uuid::nil()), change, at)
            }));
            Ok(found)
        })
    });
    let found = found.await?;
    for (tenant, what, at) in &found {
        if known.contains(&(*tenant, what.clone(), *at)) {
            continue;
        }
        match what {
            RecentChange::Session(user) => {
                // The replica where they signed out may have stopped before it ended their sign-ins.
                credentials::end_sign_ins(app, *tenant, Some(user), *at, user.as_str()).await?;
                apply_sign_out(app, *tenant, user).await?;
            }
            RecentChange::Key(key) => {
                stop_work_of_key(app, *tenant, *key, &UserId(OPERATOR.into())).await?;
            }
            RecentChange::Claims(user) => app.accounts.claims_changed(*tenant, user).await,
            RecentChange::Tools(agent, server) => {
                pins::apply_change(app, *tenant, agent, server).await;
            }
        }
    }
    *known = found.into_iter().collect();
    if !app.accounts.sessions_were_checked() {
        pins::forget(app, None).await;
    }
    Ok(())
}

async fn cancel(app: &App, tenant: TenantId, user: &UserId, run: RunId) -> Result<()> {
    match runs::cancel_for_user(app, tenant, user, run, OpenRequests::Withdraw).await {
        // The run has ended by itself meanwhile.
        Ok(_) | Err(Error::Conflict(..) | Error::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Asks every run of a tenant to stop.
async fn stop_all(app: &App, tenant: TenantId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let open = store::runs::list_open(&mut tx).await?;
    drop(tx);
    for (run, user) in open {
        cancel(app, tenant, &user, run).await?;
    }
    Ok(())
}

/// Applies a change or the removal of a tenant, which happened here, on another replica or on the command line. If the
/// tenant is suspended or removed, its runs are stopped, and the connections and event streams of its users are closed.
/// The connections to its shared servers are closed within two seconds.
pub async fn apply_tenant_change(app: &App, tenant: TenantId) -> Result<()> {
    if !app.accounts.tenant_changed(tenant).await? {
        credentials::close_tenant(app, tenant).await;
        end_sign_ins_of_all(app, tenant).await?;
        stop_all(app, tenant).await?;
    }
    Ok(())
}

/// Ends the sign-ins at servers of all users of a tenant, also those that have only begun.
pub(super) async fn end_sign_ins_of_all(app: &App, tenant: TenantId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    store::oauth_sign_ins::end(&mut tx, None, None).await?;
    let now = tx.now().await?;
    tx.commit().await?;
    credentials::end_sign_ins(app, tenant, None, now, OPERATOR).await
}
