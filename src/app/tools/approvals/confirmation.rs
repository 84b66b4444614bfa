//! Confirmations: calls about which their own user is asked "really?". They are requests like those for approval, with one
//! vote, which only their requester may give: by a command, a decision over REST, or an answer to an interrupt. Nothing
//! that a model or a tool has written is such an answer.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    App, Ballot, decide, decider,
    decision::{PreparedDecision, RequestChange, other_arguments, write_cancel},
    find, unknown_request,
};
use crate::app::platform::polls::POLL;
use domain::{
    approval::{Approval, Choice, Kind, ShownId},
    error::{Error, ErrorCode, Result},
    ids::{ApprovalId, ConversationId},
    principal::Principal,
};
use store::Tx;

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

/// An answer, and the interrupt that it is about.
#[derive(Clone, Debug)]
pub struct InterruptResponse {
    /// A [`ShownId`] as the client has it.
    pub interrupt: String,
    pub answer: InterruptAnswer,
}

/// Answers to interrupts of a conversation, with what must be known before their transaction begins. They are written all
/// or none.
pub struct PreparedAnswers(Vec<PreparedAnswer>);

struct PreparedAnswer {
    principal: Principal,
    approval: Approval,
    step: AnswerStep,
}

/// What an answer does.
enum AnswerStep {
    Nothing,
    Cancel,
    Decide(Box<PreparedDecision>),
}

/// The answers as a transaction has written them. They are published after the commit.
pub struct WrittenAnswers(Vec<RequestChange>);

/// Prepares the answers of a client. A confirmation is confirmed or declined in the conversation that asked for it, and in
/// no other, and by the hash of the arguments that were shown. What others decide stays with them.
pub async fn prepare_answers(
    app: &Arc<App>,
    principal: &Principal,
    conversation: Option<ConversationId>,
    responses: &[InterruptResponse],
) -> Result<PreparedAnswers> {
    let mut prepared = Vec::new();
    let mut given = HashMap::new();
    for InterruptResponse { interrupt, answer } in responses {
        let shown: ShownId = interrupt.parse().map_err(|()| unknown_request(interrupt))?;
        if *given.entry(shown.id).or_insert(answer) != answer {
            return Err(answered_twice(interrupt));
        }
        let approval = find(app, principal, &shown.id.to_string()).await?;
        let asks_user = approval.rule.kind() == Kind::Confirmation;
        let choice = match answer {
            InterruptAnswer::Confirm => Some(Choice::Approve),
            InterruptAnswer::Decline => Some(Choice::Reject),
            InterruptAnswer::Continue | InterruptAnswer::Cancel => None,
        };
        let step = match choice.filter(|_| asks_user) {
            None if *answer == InterruptAnswer::Cancel => AnswerStep::Cancel,
            None => AnswerStep::Nothing,
            Some(_) if conversation.is_none() || approval.conversation != conversation => {
                return Err(unknown_request(interrupt));
            }
            Some(choice) => {
                let args_sha256 = shown.args_sha256;
                let ballot = Ballot {
                    choice,
                    reason: None,
                    args_sha256: args_sha256.ok_or_else(|| other_arguments(&approval))?,
                };
                let decider = decider(app, principal, &approval).await?;
                let decision = PreparedDecision::new(app, &decider, approval.id, ballot).await?;
                AnswerStep::Decide(Box::new(decision))
            }
        };
        prepared.push(PreparedAnswer {
            principal: principal.clone(),
            approval,
            step,
        });
    }
    Ok(PreparedAnswers(prepared))
}

/// Reads the answer of a person in an object of a client: `approved`, and the words of a person who declines. It is no
/// answer with anything else beside it, such as other arguments for the call.
pub fn read_answer(interrupt: &str, given: &Value) -> Result<Option<InterruptAnswer>> {
    let members = given.as_object().into_iter().flatten();
    let is_blank = |value: &Value| value.is_null() || value.as_str().is_some_and(str::is_empty);
    let mut more = members.filter(|(name, value)| *name != "approved" && !is_blank(value));
    let answer = match given["approved"] {
        Value::Bool(true) => InterruptAnswer::Confirm,
        Value::Bool(false) => InterruptAnswer::Decline,
        _ => return Ok(None),
    };
    match more.find(|(name, _)| *name != "reason" || answer == InterruptAnswer::Confirm) {
        None => Ok(Some(answer)),
        Some((name, _)) => Err(Error::invalid(
            "body",
            format!(
                "has {name:?} beside the answer to {interrupt}; nothing is decided, answer with `approved` alone"
            ),
        )),
    }
}

/// The error for a client whose answers to one request contradict each other.
pub fn answered_twice(interrupt: &str) -> Error {
    let reason = format!("answers {interrupt} twice, and not alike; nothing is decided, ask again");
    Error::invalid("body", reason)
}

impl PreparedAnswers {
    /// Writes the answers into a transaction, which must end after an error. A request that was decided meanwhile stays as
    /// it is. Requests are locked before conversations.
    pub async fn write(&self, app: &Arc<App>, tx: &mut Tx) -> Result<WrittenAnswers> {
        let mut ids: Vec<_> = self.0.iter().map(|answer| answer.approval.id).collect();
        ids.sort_unstable();
        for id in ids {
            store::approvals::lock(tx, id).await?;
        }
        let mut written = Vec::new();
        for answer in &self.0 {
            let approval = &answer.approval;
            let change = match &answer.step {
                AnswerStep::Nothing => Ok(RequestChange::none(approval.clone())),
                AnswerStep::Cancel => write_cancel(app, tx, &answer.principal, approval.id).await,
                AnswerStep::Decide(decision) => Box::pin(decision.write(app, tx)).await,
            };
            written.push(match change {
                Err(error) if is_decided(&error) => {
                    let now = store::approvals::get(tx, approval.id).await?;
                    RequestChange::none(now.unwrap_or_else(|| approval.clone()))
                }
                change => change?,
            });
        }
        Ok(WrittenAnswers(written))
    }
}

impl WrittenAnswers {
    /// Publishes the answers after their commit. Returns the requests as they stand then, in the order of the answers.
    pub fn publish(self, app: &Arc<App>) -> Vec<Approval> {
        let published = self.0.into_iter();
        published
            .map(|change| change.publish(app).into_approval())
            .collect()
    }
}

/// Whether a decision comes too late. Then nothing was written for it; after any other error the transaction must end.
fn is_decided(error: &Error) -> bool {
    matches!(
        error.code(),
        ErrorCode::AlreadyDecided | ErrorCode::AlreadyVoted | ErrorCode::ApprovalRevoked
    )
}

/// Answers interrupts of a conversation, all or none. Returns the requests as they stand then.
pub async fn answer_interrupts(
    app: &Arc<App>,
    principal: &Principal,
    conversation: Option<ConversationId>,
    responses: &[InterruptResponse],
) -> Result<Vec<Approval>> {
    let prepared = prepare_answers(app, principal, conversation, responses).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let written = prepared.write(app, &mut tx).await?;
    tx.commit().await?;
    Ok(written.publish(app))
}

/// Confirms or declines the call of a client that calls tools itself, in which it has no conversation, and waits for its
/// end. The caller has checked that the request is for the call that the client makes again. One that was decided
/// meanwhile stays as it is.
pub async fn confirm_for_client(
    app: &Arc<App>,
    principal: &Principal,
    id: ApprovalId,
    choice: Choice,
) -> Result<()> {
    let approval = find(app, principal, &id.to_string()).await?;
    let decider = decider(app, principal, &approval).await?;
    let ballot = Ballot {
        choice,
        reason: None,
        args_sha256: approval.args_sha256,
    };
    match Box::pin(decide(app, &decider, id, ballot)).await {
        Err(error) if !is_decided(&error) => return Err(error),
        _ => {}
    }
    await_end(app, principal, id).await?;
    Ok(())
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
