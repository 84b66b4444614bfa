//! Confirmations: calls about which their own user is asked "really?". They are requests like those for approval, with one
//! vote, which only their requester may give: by a command, a decision over REST, or an answer to an interrupt. Nothing
//! that a model or a tool has written is such an answer.

use std::sync::Arc;

use tokio::time::{Instant, sleep, sleep_until};

use super::{App, Verdict, cancel, decide, decider, find, unknown_request};
use crate::app::platform::polls::POLL;
use domain::{
    approval::{Approval, Choice, Kind},
    error::{Error, Result},
    ids::{ApprovalId, ConversationId},
    principal::Principal,
};

/// What a client answers to an interrupt, which is a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptAnswer {
    Confirm,
    Decline,
    /// The request stays with those whom it asks.
    Continue,
    /// The request is taken back.
    Cancel,
}

/// Answers the interrupt of a conversation, which a client names by the id of the request. A confirmation is confirmed or
/// declined in the conversation that asked for it, and in no other. What others decide stays with them, and a request
/// that was decided meanwhile stays as it is. Returns the request as it stands then.
pub async fn answer_interrupt(
    app: &Arc<App>,
    principal: &Principal,
    conversation: Option<ConversationId>,
    interrupt: &str,
    answer: InterruptAnswer,
) -> Result<Approval> {
    let approval = find(app, principal, interrupt).await?;
    let choice = match answer {
        InterruptAnswer::Continue => None,
        InterruptAnswer::Cancel => return cancel_if_open(app, principal, approval).await,
        InterruptAnswer::Confirm => Some(Choice::Approve),
        InterruptAnswer::Decline => Some(Choice::Reject),
    };
    let Some(choice) = choice.filter(|_| approval.rule.kind() == Kind::Confirmation) else {
        return Ok(approval);
    };
    if conversation.is_none() || approval.conversation != conversation {
        return Err(unknown_request(interrupt));
    }
    decide_own(app, principal, &approval, choice).await
}

/// Confirms or declines the call of a client that calls tools itself, in which it has no conversation, and waits for its
/// end. The caller has checked that the request is for the call that the client makes again.
pub async fn confirm_for_client(
    app: &Arc<App>,
    principal: &Principal,
    id: ApprovalId,
    choice: Choice,
) -> Result<()> {
    let approval = find(app, principal, &id.to_string()).await?;
    decide_own(app, principal, &approval, choice).await?;
    await_end(app, principal, id).await?;
    Ok(())
}

/// Decides with the hash of the arguments of this very request. One that was decided meanwhile stays as it is.
async fn decide_own(
    app: &Arc<App>,
    principal: &Principal,
    approval: &Approval,
    choice: Choice,
) -> Result<Approval> {
    let decider = decider(app, principal, approval).await?;
    let verdict = Verdict {
        choice,
        reason: None,
        args_sha256: approval.args_sha256,
    };
    match Box::pin(decide(app, &decider, approval.id, &verdict)).await {
        Err(Error::Conflict(..)) => find(app, principal, &approval.id.to_string()).await,
        decided => decided,
    }
}

/// Takes a request back. One that was decided meanwhile stays as it is, and is returned as it was.
async fn cancel_if_open(
    app: &Arc<App>,
    principal: &Principal,
    approval: Approval,
) -> Result<Approval> {
    match cancel(app, principal, approval.id).await {
        Err(Error::Conflict(..)) => Ok(approval),
        cancelled => cancelled,
    }
}

/// Waits until nothing more happens to a request of the principal's, but no longer than the settings say that an answer
/// waits for a run. Returns the request as it is then.
pub async fn await_end(app: &App, principal: &Principal, id: ApprovalId) -> Result<Approval> {
    // Watch before the first read, so that no change is missed in between.
    let mut changed = app.live.watch_approvals(principal.tenant);
    let until = Instant::now() + app.config.run_wait;
    loop {
        let approval = find(app, principal, &id.to_string()).await?;
        if !approval.state.is_open() {
            return Ok(approval);
        }
        tokio::select! {
            _ = changed.changed() => {}
            () = sleep(POLL) => {}
            () = sleep_until(until) => return Ok(approval),
            () = app.shutdown.cancelled() => return Ok(approval),
        }
    }
}
