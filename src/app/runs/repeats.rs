//! Requests that a client sends again. What a request begins is written with its key in one transaction, so that a
//! second request with the key finds the first one's run and begins none.

use std::{sync::Arc, time::Duration};

use time::OffsetDateTime;

use super::OpenRequests;
use crate::{
    app::App,
    domain::{
        error::{Error, Result},
        ids::{ConversationId, RunId},
        message::called_tools,
        principal::Principal,
        request_key::{KeySource, KeyedRun, REFUSED_SECONDS, REMEMBERED_HOURS, RequestKey},
        run::{Run, RunStatus},
    },
    store::{self, Tx, client_chats::ChatAnswer},
};

/// The time within which an SDK repeats a request.
const ATTEMPTS: Duration = Duration::from_secs(600);

/// What an earlier request with the same key began.
pub enum EarlierRequest {
    Same(KeyedRun),
    /// Its method, path or body was another one.
    Different,
}

/// The request that came before with this key; `None` when this one is the first.
pub async fn earlier(
    app: &App,
    principal: &Principal,
    key: &RequestKey,
) -> Result<Option<EarlierRequest>> {
    if !key.may_be_repeated() {
        return Ok(None);
    }
    let within = match key.origin {
        KeySource::Named => Duration::from_secs(3600) * REMEMBERED_HOURS.unsigned_abs(),
        KeySource::Attempt(_) | KeySource::Body => ATTEMPTS,
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found =
        store::request_keys::repeat(&mut tx, &principal.user, &key.key, within.as_secs_f64())
            .await?;
    let Some((begun, digest)) = found else {
        return Ok(None);
    };
    if let (Some(run), KeySource::Attempt(_)) = (begun.run, key.origin) {
        let run = store::runs::get(&mut tx, &principal.user, run).await?;
        let now = tx.now().await?;
        if is_void(principal, &run, now)
            || store::runs::retry_after(&mut tx, run.id).await?.is_some()
        {
            return Ok(None);
        }
    }
    tx.commit().await?;
    Ok(Some(if digest == key.digest {
        EarlierRequest::Same(begun)
    } else {
        EarlierRequest::Different
    }))
}

/// Whether the run of an earlier attempt counts for nothing: it was cancelled, since the client had closed the
/// connection. Under a key that names no person another person may have sent an equal request, so only a run counts that
/// is under way or has ended just now.
fn is_void(principal: &Principal, run: &Run, now: OffsetDateTime) -> bool {
    let within = Duration::from_secs(REFUSED_SECONDS.unsigned_abs().into());
    let is_past = run.finished_at.is_some_and(|at| at + within < now);
    run.status == RunStatus::Cancelled || (principal.names_nobody() && is_past)
}

/// A run that is not begun again by an equal request.
#[derive(Clone, Copy, Debug)]
pub struct RefusedRun {
    pub conversation: ConversationId,
    pub run: RunId,
    /// Otherwise it goes on, or has answered since.
    pub has_failed: bool,
}

/// The run of an equal request that has failed after a call not long ago, or whose client was left without its answer.
pub async fn refused(
    app: &App,
    principal: &Principal,
    key: &RequestKey,
) -> Result<Option<RefusedRun>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found = store::request_keys::failed_lately(&mut tx, &principal.user, key).await?;
    let Some((conversation, run)) = found.and_then(|found| Some((found.conversation, found.run?)))
    else {
        return Ok(None);
    };
    let status = store::runs::get(&mut tx, &principal.user, run)
        .await?
        .status;
    Ok(Some(RefusedRun {
        conversation,
        run,
        has_failed: matches!(status, RunStatus::Failed | RunStatus::Cancelled),
    }))
}

/// Records that a client was left without the answer of a run that goes on, so that an equal request does not begin a
/// second run beside it. Whether the run has called tools by now.
pub async fn leave_unanswered(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
) -> Result<bool> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::request_keys::mark_failed(&mut tx, conversation, run, false).await?;
    let written = store::messages::of_run(&mut tx, conversation, run).await?;
    tx.commit().await?;
    Ok(!called_tools(&written).is_empty())
}

/// Records that a run was stopped because its client had all that it wanted, so that an equal request begins another run.
pub async fn mark_answered(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::request_keys::mark_answered(&mut tx, conversation, run).await?;
    tx.commit().await
}

/// Remembers what a request began, in the transaction that begins it. [`Error::Repeated`] when another request with the
/// key came first.
pub async fn remember(
    tx: &mut Tx,
    principal: &Principal,
    key: Option<&RequestKey>,
    begun: KeyedRun,
) -> Result<()> {
    remember_answer(tx, principal, key, begun, None).await
}

/// [`remember`], and with it the answer in a chat that the client names.
pub async fn remember_answer(
    tx: &mut Tx,
    principal: &Principal,
    key: Option<&RequestKey>,
    begun: KeyedRun,
    answer: Option<ChatAnswer<'_>>,
) -> Result<()> {
    let user = &principal.user;
    match (key, answer) {
        (Some(key), answer) => {
            let is_new = store::request_keys::insert(tx, user, key, begun, answer).await?;
            is_new.then_some(()).ok_or(Error::Repeated)
        }
        (None, Some(answer)) => store::client_chats::put(tx, user, answer).await,
        (None, None) => Ok(()),
    }
}

/// How often the request that began a run was sent again.
async fn count(app: &App, principal: &Principal, run: RunId) -> Result<i32> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::request_keys::repeats(&mut tx, run).await
}

/// Stops a run whose client went away. With `repeats`, waits for the client to send its request again, and stops the
/// run only if it was sent no more often than that.
pub fn stop_unless_repeated(
    app: &Arc<App>,
    principal: &Principal,
    run: RunId,
    repeats: Option<i32>,
) {
    let (app, principal) = (app.clone(), principal.clone());
    let tasks = app.tasks.clone();
    tasks.spawn(async move {
        if let Some(known) = repeats {
            tokio::select! {
                () = tokio::time::sleep(app.config.retry_grace) => {}
                // The run is taken up by another replica.
                () = app.shutdown.cancelled() => return,
            }
            match count(&app, &principal, run).await {
                Ok(repeats) if repeats > known => return,
                Ok(_) => {}
                Err(error) => tracing::warn!(%run, %error, "a run whose client went away goes on"),
            }
        }
        match super::cancel(&app, &principal, run, OpenRequests::TakeBack).await {
            Ok(_) | Err(Error::Conflict(..) | Error::NotFound(_)) => {}
            Err(error) => tracing::warn!(%run, %error, "a run whose client went away goes on"),
        }
    });
}
