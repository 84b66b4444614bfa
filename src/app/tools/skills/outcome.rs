//! The outcome of a run of a skill, read from the rows at each request. So any replica can return it, after the first
//! caller has left and after an approver has consented to the call.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;

use super::{App, agents};
use crate::app::{
    runs::{self, OpenRequests},
    tools::approvals::{self, view::ApprovalView},
};
use domain::{
    approval::{Kind, Note, State},
    error::{Error, ErrorCode, Result},
    ids::{ApprovalId, ConversationId, RunId},
    message::{CallStatus, Message, Part, ToolResult},
    principal::Principal,
    run::{Run, RunKind, RunStatus},
    skill,
};

/// A run of a skill.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SkillRun)]
pub struct SkillRunOutcome {
    pub run_id: RunId,
    pub conversation_id: ConversationId,
    pub skill: String,
    pub status: SkillRunStatus,
    /// The answer of the tool: its structured content as JSON, or else its text. Without success: the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub structured_content: Option<Box<RawValue>>,
    /// The approval of its call, when it needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalView>,
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
    /// Whether the run was stopped, whatever the outcome of its call.
    #[serde(skip)]
    pub stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SkillStatus)]
pub enum SkillRunStatus {
    Running,
    /// The call waits for consent, or was approved and is being made.
    AwaitingApproval,
    Succeeded,
    /// The tool reported a failure, or its server could not be called.
    Failed,
    /// The tool was not called: the gate or an approver refused, or no approver decided in time.
    Refused,
    /// The tool was called and did not answer. The program never repeats such a call.
    OutcomeUnknown,
    Cancelled,
}

/// The outcome of a run of the principal's; `NotFound` for a run that is no run of a skill.
pub async fn get(
    app: &Arc<App>,
    principal: &Principal,
    agent: &str,
    id: RunId,
) -> Result<SkillRunOutcome> {
    let pack = agents::pack(app, principal, agent).await?;
    let unknown = || Error::not_found(format!("run {id} of a skill"));
    let mut tx = app.db.tenant(principal.tenant).await?;
    let run = store::runs::get(&mut tx, &principal.user, id).await?;
    let conversation =
        store::conversations::get(&mut tx, &principal.user, run.conversation_id, false).await?;
    if run.kind != RunKind::Command || conversation.agent != *pack.id() {
        return Err(unknown());
    }
    let written = store::messages::list_of_run(&mut tx, conversation.id, id).await?;
    drop(tx);
    let parts = || written.iter().flat_map(|message| &message.parts);
    let called = parts().find_map(|part| match part {
        Part::ToolCall(call) => skill::of_call(call).map(str::to_owned),
        _ => None,
    });
    let line = || written.first().map(Message::plain).unwrap_or_default();
    let skill =
        called.or_else(|| skill::find_in_text(&pack, &line()).map(|(skill, _)| skill.id.clone()));
    let result = parts().find_map(|part| match part {
        Part::ToolResult(result) => Some(result),
        _ => None,
    });
    let outcome = outcome_of_run(&run, skill.ok_or_else(unknown)?, result);
    match result
        .and_then(|result| result.approval)
        .filter(|_| outcome.status == SkillRunStatus::AwaitingApproval)
    {
        Some(approval) => {
            let RequestOutcome {
                status,
                text,
                approval,
            } = of_request(app, principal, approval).await?;
            Ok(SkillRunOutcome {
                status,
                text: Some(text),
                changed_at: approval.changed_at,
                approval: Some(approval),
                ..outcome
            })
        }
        None => Ok(outcome),
    }
}

/// The outcome without the approval of the call.
fn outcome_of_run(run: &Run, skill: String, result: Option<&ToolResult>) -> SkillRunOutcome {
    let status = match (run.status, result.map(|result| result.status)) {
        (RunStatus::Queued | RunStatus::Running, _) => SkillRunStatus::Running,
        (_, Some(CallStatus::Succeeded)) => SkillRunStatus::Succeeded,
        (_, Some(CallStatus::AwaitingApproval)) => SkillRunStatus::AwaitingApproval,
        (_, Some(CallStatus::Denied)) => SkillRunStatus::Refused,
        (_, Some(CallStatus::OutcomeUnknown)) => SkillRunStatus::OutcomeUnknown,
        (_, Some(CallStatus::Cancelled)) | (RunStatus::Cancelled, None) => {
            SkillRunStatus::Cancelled
        }
        // A skill never asks its user.
        (_, Some(CallStatus::Failed | CallStatus::AwaitingInput) | None) => SkillRunStatus::Failed,
    };
    let said = result
        .filter(|_| status != SkillRunStatus::Running)
        .map(skill::result_text);
    let (text, structured_content) =
        said.map_or((None, None), |said| (Some(said.text), said.structured));
    SkillRunOutcome {
        run_id: run.id,
        conversation_id: run.conversation_id,
        skill,
        status,
        text: text.or_else(|| run.error.clone()),
        structured_content,
        approval: None,
        changed_at: run.finished_at.unwrap_or(run.created_at),
        stopped: run.status == RunStatus::Cancelled,
    }
}

/// The outcome of a call that needed consent.
pub struct RequestOutcome {
    pub status: SkillRunStatus,
    /// The answer of the tool; for a call that was not made, the state of its request.
    pub text: String,
    pub approval: ApprovalView,
}

/// The outcome of a request for consent. The answer to an approved call is read from the conversation that received it.
pub async fn of_request(
    app: &App,
    principal: &Principal,
    id: ApprovalId,
) -> Result<RequestOutcome> {
    let mut approval = approvals::view_for_list(app, principal, id).await?;
    if approval.kind == Kind::Confirmation && approval.decidable {
        // Who is asked to confirm a call sees its arguments.
        approval = approvals::get(app, principal, &id.to_string()).await?;
    }
    let status = match approval.state {
        State::Pending | State::Approved | State::Executing => SkillRunStatus::AwaitingApproval,
        State::Succeeded => SkillRunStatus::Succeeded,
        State::Failed => SkillRunStatus::Failed,
        State::OutcomeUnknown => SkillRunStatus::OutcomeUnknown,
        State::Rejected | State::Expired | State::Revoked | State::Lapsed => {
            SkillRunStatus::Refused
        }
        State::Cancelled => SkillRunStatus::Cancelled,
    };
    let answered = matches!(status, SkillRunStatus::Succeeded | SkillRunStatus::Failed);
    let delivered = match approval.conversation_id.filter(|_| answered) {
        Some(conversation) => note(app, principal, conversation, &approval)
            .await?
            .and_then(|note| note.result),
        None => None,
    };
    Ok(RequestOutcome {
        status,
        text: delivered.unwrap_or_else(|| approval.text.clone()),
        approval,
    })
}

async fn note(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    approval: &ApprovalView,
) -> Result<Option<Box<Note>>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::messages::find_approval_note(&mut tx, conversation, approval.id).await
}

/// Stops a run of a skill: its call is not sent, or nobody waits for its answer any more; a request for consent is
/// taken back. `Conflict` when there is nothing left to stop.
pub async fn cancel(app: &Arc<App>, principal: &Principal, agent: &str, id: RunId) -> Result<()> {
    let outcome = get(app, principal, agent, id).await?;
    match (outcome.status, outcome.approval) {
        (SkillRunStatus::Running, _) => runs::cancel(app, principal, id, OpenRequests::Withdraw)
            .await
            .map(|_| ()),
        (SkillRunStatus::AwaitingApproval, Some(approval)) => {
            approvals::cancel(app, principal, approval.id)
                .await
                .map(|_| ())
        }
        _ => Err(Error::conflict(
            ErrorCode::RunOver,
            format!("run {id} is over already"),
        )),
    }
}
