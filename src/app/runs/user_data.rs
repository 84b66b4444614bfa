//! All that is one user's: a copy of it, and its deletion. What others need keeps the user's id and nothing else of them:
//! lines of the audit trail, requests for approval and votes, usage, and the end of their sessions.

mod export;

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;

pub use self::export::export;

use crate::app::{
    App,
    accounts::{self, users},
    servers::credentials,
};
use crate::{
    domain::{
        audit::Fact,
        error::{Error, ErrorCode, Result},
        ids::{ApprovalId, ConversationId, RunId, TenantId, UserId},
        principal::{Admin, Principal},
        session::SessionEnd,
    },
    store::{self, Db, hints::Hint},
};

/// Pieces of a copy that wait for a slow reader.
const AHEAD: usize = 4;
/// How long a reader may take for a copy.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// How often a deletion is tried again that was in the way of another one.
const TRIES: usize = 3;

/// Deletes all that is the caller's. It goes on when the caller has left.
pub async fn delete_own(app: &Arc<App>, principal: &Principal) -> Result<()> {
    delete(app, principal.tenant, &principal.user, &principal.user).await
}

/// The same of a user who has been seen.
pub async fn delete_by_id(app: &Arc<App>, admin: &Admin, user: &str) -> Result<()> {
    let user = users::get(app, admin, user).await?.id;
    delete(app, admin.tenant(), &UserId(user.into()), admin.user()).await
}

async fn delete(app: &Arc<App>, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    let (at_work, user, by) = (app.clone(), user.clone(), by.clone());
    let work = async move { delete_here(&at_work, tenant, &user, &by).await };
    app.tasks.spawn(work).await.map_err(Error::internal)?
}

async fn delete_here(app: &App, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    credentials::remove_all(app, tenant, user, by).await?;
    let ended = end_sessions(&app.db, tenant, user, by).await?;
    for run in ended.runs {
        app.running.cancel(run);
    }
    for approval in ended.withdrawn {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((tenant, approval));
    }
    app.accounts.signed_out(tenant, user).await?;
    let _ = app.hints.send(Hint::SignedOut {
        tenant,
        user: user.clone(),
    });
    let deleted = delete_rows(&app.db, tenant, user, by).await;
    for conversation in deleted.conversations {
        app.live.look(tenant, conversation);
    }
    deleted.outcome
}

/// The same at the database. The replicas follow within seconds.
pub async fn delete_at_the_database(
    db: &Db,
    tenant: TenantId,
    user: &UserId,
    by: &UserId,
) -> Result<()> {
    end_sessions(db, tenant, user, by).await?;
    delete_rows(db, tenant, user, by).await.outcome
}

/// What was stopped.
struct Ended {
    runs: Vec<RunId>,
    withdrawn: Vec<ApprovalId>,
}

/// No token of the user is taken any more, what runs for them is asked to stop, and what waits for approval is taken back.
async fn end_sessions(db: &Db, tenant: TenantId, user: &UserId, by: &UserId) -> Result<Ended> {
    let mut tx = db.tenant(tenant).await?;
    accounts::end_sessions(&mut tx, tenant, user).await?;
    let withdrawn =
        store::approvals::withdraw_of_user(&mut tx, user, by, SessionEnd::SignedOut).await?;
    let runs = store::runs::open_of_user(&mut tx, user).await?;
    store::trees::stop(&mut tx, &runs).await?;
    let fact = Fact::new(by.as_str(), "user.deleted").detail(user.as_str());
    store::audit::record(&mut tx, tenant, &fact).await?;
    tx.commit().await?;
    Ok(Ended { runs, withdrawn })
}

/// The conversations that were deleted, also when something failed after that.
struct Deleted {
    conversations: Vec<ConversationId>,
    outcome: Result<()>,
}

/// Deletes the rows, some at a time. What is broken off can be begun again.
async fn delete_rows(db: &Db, tenant: TenantId, user: &UserId, by: &UserId) -> Deleted {
    let (mut conversations, mut tries) = (Vec::new(), 0);
    let outcome = loop {
        match delete_some_conversations(db, tenant, user).await {
            Ok(some) if some.is_empty() => break delete_rest(db, tenant, user, by).await,
            Ok(some) => conversations.extend(some),
            Err(error) if tries < TRIES && store::is_deadlock(&error) => tries += 1,
            Err(error) => break Err(error),
        }
    };
    Deleted {
        conversations,
        outcome,
    }
}

async fn delete_some_conversations(
    db: &Db,
    tenant: TenantId,
    user: &UserId,
) -> Result<Vec<ConversationId>> {
    let mut tx = db.tenant(tenant).await?;
    let some = store::retention::delete_of_user(&mut tx, user).await?;
    tx.commit().await?;
    Ok(some)
}

async fn delete_rest(db: &Db, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    let mut tx = db.tenant(tenant).await?;
    store::oauth_sign_ins::end(&mut tx, Some(user), None).await?;
    for removed in store::credentials::delete(&mut tx, user, None).await? {
        let credential = removed.credential;
        let (agent, server) = (&credential.agent, &credential.server);
        store::catalogs::delete(&mut tx, agent, server, credential.id).await?;
        let fact = Fact::new(by.as_str(), "credential.removed").at(agent.as_str(), server.as_str());
        store::audit::record(&mut tx, tenant, &fact).await?;
    }
    let all = store::user_data::delete(&mut tx, user).await?;
    tx.commit().await?;
    if all {
        return Ok(());
    }
    Err(Error::conflict(
        ErrorCode::CallInProgress,
        "a call of this user that was approved is being made at the moment, so its record is left; \
         everything else is deleted; delete the user again in a minute",
    ))
}

/// A copy of all that is the caller's, as one JSON document, piece by piece.
pub fn export_own(app: &Arc<App>, principal: &Principal) -> mpsc::Receiver<Result<String>> {
    let (tenant, user) = (principal.tenant, principal.user.clone());
    start_export(app, tenant, user.clone(), user)
}

/// The same of a user who has been seen.
pub async fn export_by_id(
    app: &Arc<App>,
    admin: &Admin,
    user: &str,
) -> Result<mpsc::Receiver<Result<String>>> {
    let user = UserId(users::get(app, admin, user).await?.id.into());
    Ok(start_export(
        app,
        admin.tenant(),
        user,
        admin.user().clone(),
    ))
}

fn start_export(
    app: &Arc<App>,
    tenant: TenantId,
    user: UserId,
    by: UserId,
) -> mpsc::Receiver<Result<String>> {
    let (pieces, inbox) = mpsc::channel(AHEAD);
    let db = app.db.clone();
    app.tasks.spawn(async move {
        let write = export(&db, tenant, &user, &by, pieces);
        let _ = tokio::time::timeout(LIFETIME, write).await;
    });
    inbox
}
