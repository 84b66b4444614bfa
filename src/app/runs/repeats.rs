//! Requests that a client sends again. A request writes its key and the run that it begins in one transaction, so a
//! second request with the key finds that run and begins none.

use std::{sync::Arc, time::Duration};

use time::OffsetDateTime;
use tokio_util::task::AbortOnDropHandle;

use super::OpenRequests;
use crate::app::App;
use domain::{
    clock,
    error::{Error, Result},
    ids::{ConversationId, RunId},
    message::called_tools,
    principal::Principal,
    request_key::{
        KeySource, KeyedRun, REFUSED_SECONDS, REMEMBERED_HOURS, RequestKey, RequestServer,
    },
    run::{Run, RunStatus},
};
use store::{Tx, client_chats::ChatAnswer};

/// The time within which an SDK repeats a request.
const ATTEMPTS: Duration = Duration::from_secs(600);

/// Time between two reads of the row of a request whose client is connected to another replica.
const LEASE_POLL: Duration = Duration::from_millis(250);
/// How long after its arrival a request still counts as the latest of its client.
const OUTRUN: Duration = Duration::from_secs(5);

/// An earlier request with the same key.
pub enum EarlierRequest {
    /// The request was the same, and began this.
    Same(KeyedRun),
    /// The request had another method, path or body.
    Different,
}

/// Joins the earlier request with this key, and counts the repetition. `None` when this request is the first, or when
/// it begins a run of its own.
pub async fn join(
    app: &App,
    principal: &Principal,
    key: &RequestKey,
) -> Result<Option<EarlierRequest>> {
    if !key.joins_earlier_run() {
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
            || store::runs::get_retry_after(&mut tx, run.id)
                .await?
                .is_some()
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

/// Whether the run of an earlier attempt does not count. A cancelled run does not, since the client had closed the
/// connection. Under a key that names no person, another person may have sent an equal request, so only a run counts
/// that is under way or has ended just now.
fn is_void(principal: &Principal, run: &Run, now: OffsetDateTime) -> bool {
    let within = Duration::from_secs(REFUSED_SECONDS.unsigned_abs().into());
    let is_past = run.finished_at.is_some_and(|at| at + within < now);
    run.status == RunStatus::Cancelled || (principal.names_nobody() && is_past)
}

/// A run because of which an equal request is refused.
#[derive(Clone, Copy, Debug)]
pub struct RefusedRun {
    pub conversation: ConversationId,
    pub run: RunId,
    /// Whether the run has failed. Otherwise it goes on, or has answered since.
    pub has_failed: bool,
}

/// The consequence of an earlier equal request.
pub enum EqualRequest {
    /// This request is refused: the turn of the earlier one failed after a call not long ago, or its client was left
    /// without the answer.
    Refused(RefusedRun),
    /// This request begins a run of its own: there is no earlier one, it has its answer, or its client still waits.
    Replaced(Option<RunId>),
}

/// Decides what happens to an earlier equal request, and whether this request is refused:
///
/// - Its turn failed after it had called tools, or ended without its client, a short time ago: this request is refused.
/// - Its run goes on and has called tools: this request is refused, too, because a proxy may hold the connection of a client
///   that has long given up.
/// - Its run has called no tools and has lost its client: the run is cancelled.
/// - Its client has its answer, or still waits for it: this request replaces it, and what the answer showed of approvals
///   is forgotten if the client did not get it.
///
/// A replica that is killed cannot record that its clients were left. So while another replica has the connection of
/// the client, this function waits until that replica renews its record, or until the record has run out.
pub async fn settle_equal(
    app: &App,
    principal: &Principal,
    key: &RequestKey,
) -> Result<EqualRequest> {
    let mut served_until = None;
    loop {
        let mut tx = app.db.tenant(principal.tenant).await?;
        let found =
            store::request_keys::find_equal_run(&mut tx, &principal.user, key, app.replica).await?;
        let Some(found) = found else {
            return Ok(EqualRequest::Replaced(None));
        };
        let (conversation, run, is_over) = (found.conversation, found.run, found.status.is_final());
        let has_failed = is_over && found.status != RunStatus::Succeeded;
        let refused = EqualRequest::Refused(RefusedRun {
            conversation,
            run,
            has_failed,
        });
        let replaced = EqualRequest::Replaced(Some(run));
        if key.joins_earlier_run() {
            // An SDK counts its attempts. A repeated attempt reads the answer of the earlier one, if there is an
            // answer.
            let is_refused = found.is_left && has_failed;
            return Ok(if is_refused { refused } else { replaced });
        }
        let written = store::messages::list_of_run(&mut tx, conversation, run).await?;
        let has_called = !called_tools(&written).is_empty();
        drop(tx);
        // This request was held up for so long that its client has sent it again elsewhere.
        let is_outrun = found.is_newer && key.arrived.elapsed() > OUTRUN;
        match (found.is_left, is_over) {
            (true, true) => return Ok(refused),
            _ if is_outrun && served_until.is_none() => return Ok(refused),
            (_, false) if has_called && !found.is_stopped => return Ok(refused),
            (false, false) if key.names_message => return Ok(refused),
            (true, false) => {
                match super::cancel(app, principal, run, OpenRequests::Withdraw).await {
                    Ok(_) | Err(Error::Conflict(..)) => {}
                    Err(error) => return Err(error),
                }
            }
            (false, _) => {
                let is_awaited = found
                    .served_elsewhere_until
                    .is_some_and(|until| until <= *served_until.get_or_insert(until));
                if !is_awaited {
                    // The row of the key will belong to this request from now on. What the row says about the earlier
                    // request is used before that.
                    forget_undelivered(app, principal, run).await?;
                    return Ok(replaced);
                }
            }
        }
        tokio::time::sleep(LEASE_POLL).await;
    }
}

/// Forgets which requests for consent a run has shown, if its client did not get the answer.
async fn forget_undelivered(app: &App, principal: &Principal, run: RunId) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::approvals::forget_undelivered(&mut tx, run).await?;
    tx.commit().await
}

/// Records at intervals that this replica has the connection of a run's client, until the returned handle is dropped.
pub fn keep_served(
    app: &Arc<App>,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
    server: RequestServer,
) -> AbortOnDropHandle<()> {
    let (app, tenant) = (app.clone(), principal.tenant);
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(server.lease / 3).await;
            let recorded = async {
                let mut tx = app.db.tenant(tenant).await?;
                store::request_keys::mark_served(&mut tx, conversation, run, server).await?;
                tx.commit().await
            };
            let recorded: Result<()> = recorded.await;
            if let Err(error) = recorded {
                tracing::debug!(%run, error = error.with_cause(), "that a client still waits is not recorded");
            }
        }
    }))
}

/// Records that a client was left without the answer of a run that goes on, so that an equal request does not begin a
/// second run beside it. Returns whether the run has called tools by now.
pub async fn leave_unanswered(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
) -> Result<bool> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::request_keys::mark_failed(&mut tx, conversation, run, false).await?;
    let written = store::messages::list_of_run(&mut tx, conversation, run).await?;
    tx.commit().await?;
    Ok(!called_tools(&written).is_empty())
}

/// Records what a request began under its key, in the transaction that begins it. [`Error::Repeated`] when another
/// request with the key came first.
pub async fn remember(
    tx: &mut Tx,
    principal: &Principal,
    key: Option<&RequestKey>,
    begun: KeyedRun,
) -> Result<()> {
    remember_answer(tx, principal, key, begun, None).await
}

/// Like [`remember`], and also records the answer in the chat that the client names.
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
            is_new.then_some(()).ok_or(Error::Repeated)?;
            match key.replaced.filter(|_| !key.joins_earlier_run()) {
                Some(run) => supersede(tx, run).await,
                None => Ok(()),
            }
        }
        (None, Some(answer)) => store::client_chats::put(tx, user, answer).await,
        (None, None) => Ok(()),
    }
}

/// Forbids a run to call tools, since an equal request takes its place. The run may go on until then, because a proxy
/// may hold the connection of a client that has given up. [`Error::Repeated`] when the run has called a tool meanwhile.
async fn supersede(tx: &mut Tx, run: RunId) -> Result<()> {
    let Some(conversation) = store::runs::supersede(tx, run).await? else {
        return Ok(());
    };
    let written = store::messages::list_of_run(tx, conversation, run).await?;
    if called_tools(&written).is_empty() {
        Ok(())
    } else {
        Err(Error::Repeated)
    }
}

/// Reads how often the request that began a run was sent again.
async fn count_repeats(app: &App, principal: &Principal, run: RunId) -> Result<i32> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::request_keys::count_repeats(&mut tx, run).await
}

/// What happens to a run when its client has left.
#[derive(Clone, Copy)]
pub enum AfterLeaving {
    GoOn,
    Stop,
    /// Stop, unless the client sends its request again: more often than this number of times.
    StopUnlessRepeated(i32),
}

/// A run whose client has left.
#[derive(Clone, Copy)]
pub struct LeftRun {
    pub conversation: ConversationId,
    pub run: RunId,
    /// Whether the client has read a part of the text. After that no client repeats a request by itself.
    pub is_read: bool,
}

/// Records that the client of a run has left, so that an equal request does not begin a second run beside it. Then
/// stops the run, if `after` says so.
pub fn leave(app: &Arc<App>, principal: &Principal, left: LeftRun, after: AfterLeaving) {
    let LeftRun {
        conversation, run, ..
    } = left;
    let (app, principal) = (app.clone(), principal.clone());
    let tasks = app.tasks.clone();
    tasks.spawn(async move {
        let goes_on = matches!(after, AfterLeaving::GoOn);
        let state = ClientState::Left {
            is_stopped: left.is_read && !goes_on,
        };
        record_client(&app, &principal, conversation, run, state).await;
        if goes_on {
            return;
        }
        if let AfterLeaving::StopUnlessRepeated(known) = after {
            tokio::select! {
                () = tokio::time::sleep(app.config.retry_grace) => {}
                // Another replica takes the run up.
                () = app.shutdown.cancelled() => return,
            }
            match count_repeats(&app, &principal, run).await {
                Ok(repeats) if repeats > known => return,
                Ok(_) => {}
                Err(error) => tracing::warn!(%run, error = error.with_cause(), "a run whose client went away goes on"),
            }
        }
        match super::cancel(&app, &principal, run, OpenRequests::Withdraw).await {
            Ok(_) | Err(Error::Conflict(..) | Error::NotFound(_)) => {}
            Err(error) => tracing::warn!(%run, error = error.with_cause(), "a run whose client went away goes on"),
        }
    });
}

/// Like [`leave`] for a run that goes on or has ended; returns when it is recorded.
pub async fn record_left(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
) {
    let state = ClientState::Left { is_stopped: false };
    record_client(app, principal, conversation, run, state).await;
}

/// Records that the client of a run has read the whole answer. An equal request of the client then begins a new run.
pub fn arrive(app: &Arc<App>, principal: &Principal, conversation: ConversationId, run: RunId) {
    let (app, principal) = (app.clone(), principal.clone());
    let tasks = app.tasks.clone();
    tasks.spawn(async move {
        record_client(&app, &principal, conversation, run, ClientState::HasAnswer).await;
    });
}

/// The state of a client that waited for an answer.
#[derive(Clone, Copy)]
enum ClientState {
    Left { is_stopped: bool },
    HasAnswer,
}

/// Records whether a client has its answer, since its next request depends on that. Tries again while the database
/// cannot be reached, until the time in which an equal request is refused would have passed.
async fn record_client(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
    state: ClientState,
) {
    let deadline = clock::instant() + Duration::from_secs(REFUSED_SECONDS.unsigned_abs().into());
    loop {
        let written = async {
            let mut tx = app.db.tenant(principal.tenant).await?;
            match state {
                ClientState::Left { is_stopped } => {
                    store::request_keys::mark_left(&mut tx, conversation, run, is_stopped).await?;
                }
                ClientState::HasAnswer => {
                    store::request_keys::mark_answered(&mut tx, conversation, run, true).await?;
                }
            }
            tx.commit().await
        };
        let written: Result<()> = written.await;
        let Err(error) = written else { return };
        if clock::instant() > deadline || app.shutdown.is_cancelled() {
            tracing::warn!(%run, error = error.with_cause(), "whether a client has its answer is not recorded");
            return;
        }
        tokio::time::sleep(LEASE_POLL).await;
    }
}
