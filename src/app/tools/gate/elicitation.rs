//! A call whose server may ask its user something first. What may be asked becomes a question of the user
//! (`elicitations`); what must not be asked is declined at once, which is an answer like any other. The server has
//! answered before each repetition of a call, so that none of them repeats a call of unknown outcome.
//!
//! Invariant: when a call is over, however it ended, so are the questions that were asked while it was open.

mod questions;
mod resumption;

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::mpsc;
use uuid::Uuid;

pub use self::resumption::resume;
use self::{questions::CallQuestions, resumption::awaiting_input};
use super::{
    Call,
    send::{CallContext, Permit, counted_result},
};
use crate::{
    app::{App, tools::elicitations::ElicitationTarget},
    domain::{
        elicitation::{Answer, Elicitation, State},
        error::Error,
        ids::RunId,
        message::{CallStatus, ToolResult},
        run::ClaimedRun,
        texts,
        tool::ToolOutcome,
    },
    mcp::CallOptions,
    store::audit::AuditRow,
};

/// How often a call is made again without the user: a question was declined for them, or there was none.
const MAX_SENDS: usize = 4;
/// How often the user is asked in the course of one call.
const MAX_ROUNDS: i32 = 5;

/// A call that passed the gate.
pub(super) struct AdmittedCall<'a> {
    pub permit: Permit<'a>,
    pub tool: &'a str,
    pub arguments: Box<RawValue>,
    /// How often its user has been asked.
    pub rounds: i32,
}

/// A call whose user has answered.
pub struct AnsweredCall {
    /// The credential of the connection that the server asked on.
    pub credential: String,
    pub arguments: Box<RawValue>,
    pub answer: Answer,
    pub rounds: i32,
}

/// Makes the call, again while its server's questions need no user.
pub(super) async fn make(
    app: &Arc<App>,
    call: &Call<'_>,
    ready: AdmittedCall<'_>,
    mut answer: Option<Answer>,
) -> ToolResult {
    let live = call.elicitation.is_some_and(|target| target.live);
    let target = call.elicitation.zip(call.run);
    let draft = target.map(|(target, run)| draft(call, &ready, target, run));
    let (principal, arguments) = (call.principal, &*ready.arguments);
    let asking = draft.map(|draft| CallQuestions {
        app,
        principal,
        arguments,
        draft,
    });
    for _ in 0..MAX_SENDS {
        let (questions, asked) = mpsc::unbounded_channel();
        let options = CallOptions {
            live: live.then_some(questions),
            progress: Some(call.progress.clone()),
            cancel: call.cancel.clone(),
            once: None,
            asks: asking.is_some(),
            answer: answer.take(),
            ..CallOptions::default()
        };
        let calling = Box::pin(ready.permit.call(ready.tool, arguments, options));
        let sent = match &asking {
            Some(asking) if live => Box::pin(asking.answer_while_open(asked, calling)).await,
            _ => calling.await,
        };
        let Some(asked) = ask_user(asking.as_ref(), sent.as_ref().ok()).await else {
            return ready.permit.into_result(call.call_id, sent);
        };
        let result = match asked {
            QuestionOutcome::Answer(given) => {
                answer = Some(given);
                continue;
            }
            QuestionOutcome::User => awaiting_input(call),
            QuestionOutcome::Failed(reason) => failed(call, &reason),
        };
        ready.permit.end(result.status);
        return result;
    }
    let result = failed(call, "the server asks again and again instead of answering");
    ready.permit.end(result.status);
    result
}

/// Asks what the server wants to know. `None` when the call is over; then the user learns of questions that came too
/// late.
async fn ask_user(
    asking: Option<&CallQuestions<'_>>,
    outcome: Option<&ToolOutcome>,
) -> Option<QuestionOutcome> {
    let (asking, outcome) = asking.zip(outcome)?;
    if let Some(input) = &outcome.input {
        return Some(asking.ask(input).await);
    }
    for message in &outcome.declined {
        asking
            .notify_declined(texts::Key::AskTooLate, message)
            .await;
    }
    None
}

/// What comes of questions that a call was answered with.
enum QuestionOutcome {
    /// They need no user.
    Answer(Answer),
    /// The user is being asked, and the call is over.
    User,
    Failed(String),
}

/// The row of a question in the course of a call.
fn draft(
    call: &Call<'_>,
    ready: &AdmittedCall<'_>,
    target: ElicitationTarget,
    run: RunId,
) -> Elicitation {
    Elicitation {
        id: Uuid::nil(),
        conversation: target.conversation,
        user: call.principal.user.clone(),
        agent: call.toolbox.agent().clone(),
        server: ready.permit.server().id.clone(),
        tool: ready.tool.to_owned(),
        run,
        call_id: call.call_id.to_owned(),
        credential: ready.permit.credential(),
        for_model: target.for_model,
        round: ready.rounds + 1,
        state: State::Open,
        step: 0,
        request: Vec::new(),
        entered: None,
        fault: None,
        answer_run: None,
        live: false,
    }
}

fn log_store_failure(error: Error) {
    let error = format!("{:#}", anyhow::Error::from(error));
    tracing::error!(error, "a question could not be kept");
}

/// The line of the audit trail for a call whose user has answered. It is written in the transaction that marks the call
/// as sent.
pub fn opening_line(
    app: &Arc<App>,
    run: &ClaimedRun,
    elicitation: &Elicitation,
    arguments: &RawValue,
) -> AuditRow {
    let caller = CallContext {
        app,
        principal: &run.principal,
        agent: &elicitation.agent,
        run: Some(run.id),
        is_recorded: true,
    };
    let what = (elicitation.server.as_str(), elicitation.tool.as_str());
    let unknown = CallStatus::OutcomeUnknown;
    AuditRow {
        detail: Some(format!("with the user's answer {}", elicitation.round)),
        ..caller.audit_row("tool.call", what, arguments.get(), unknown)
    }
}

fn failed(call: &Call<'_>, reason: &str) -> ToolResult {
    let text = format!("failed: {reason}");
    counted_result(call.call_id, CallStatus::Failed, text)
}
