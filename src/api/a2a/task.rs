//! Tasks: runs as A2A shows them. Each request builds them anew from the rows.

use std::{collections::HashMap, time::Duration};

use ::a2a::{A2AError, Artifact, Message, Part, Role, Task, TaskState, TaskStatus};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{A2aRequest, RequestError};
use crate::app::{
    self,
    runs::{
        OpenRequests, RunView,
        ending::{self, wait},
        starting::StartedRun,
    },
    tools::{
        approvals::{self, view::ApprovalView},
        skills::outcome::{RequestOutcome, SkillRunOutcome, SkillRunStatus},
    },
};
use domain::{
    approval::{Kind, State},
    error::Error,
    ids::RunId,
    json,
    run::{RunKind, RunStatus},
};

/// How long an answer waits for a cancelled run to stop.
const STOPPING: Duration = Duration::from_secs(5);

/// Parses the id of a task. A malformed id is an unknown task.
pub(super) fn read_task_id(id: &str) -> Result<RunId, RequestError> {
    id.parse().map_err(|_| unknown(id))
}

fn unknown(id: &str) -> RequestError {
    A2AError::task_not_found(&id.chars().take(64).collect::<String>()).into()
}

impl A2aRequest<'_> {
    pub(super) async fn get_task(self, id: &str) -> Result<Task, RequestError> {
        self.task_of(read_task_id(id)?).await
    }

    /// The task of a run, if the run is the caller's and at this agent.
    pub(super) async fn task_of(self, id: RunId) -> Result<Task, RequestError> {
        let app = &self.state.app;
        let found = async {
            let run = app::runs::view(app, self.principal, id).await?;
            let agent = app::chat::conversations::get(app, self.principal, run.session_id)
                .await?
                .agent
                .to_string();
            if self.agent.is_some_and(|asked| asked != agent) {
                return Err(Error::not_found("task"));
            }
            match run.run.kind {
                RunKind::Turn => {
                    let requests = if run.run.status.is_final() {
                        ending::list_request_outcomes(app, self.principal, id).await?
                    } else {
                        Vec::new()
                    };
                    Ok(task_of_turn(run, &requests))
                }
                RunKind::Command => Ok(task_of_skill(
                    &app::tools::skills::outcome::get(app, self.principal, &agent, id).await?,
                )),
            }
        };
        found.await.map_err(|error| no_task(id, error))
    }

    pub(super) async fn cancel(self, id: &str) -> Result<Task, RequestError> {
        let (app, run) = (&self.state.app, read_task_id(id)?);
        // This checks the owner and the agent.
        let task = self.task_of(run).await?;
        let view = app::runs::get(app, self.principal, run)
            .await
            .map_err(|error| no_task(run, error))?;
        let agent = app::chat::conversations::get(app, self.principal, view.conversation_id)
            .await?
            .agent;
        let stopped = match view.kind {
            RunKind::Turn => self.cancel_turn(run).await,
            RunKind::Command => {
                app::tools::skills::outcome::cancel(app, self.principal, agent.as_str(), run).await
            }
        };
        stopped.map_err(|error| match error {
            Error::Conflict(..) => A2AError::task_not_cancelable(&task.id).into(),
            other => no_task(run, other),
        })?;
        let begun = StartedRun {
            run,
            session: view.conversation_id,
            agent,
        };
        // A run that has not stopped in time is returned as it is.
        let _ = tokio::time::timeout(STOPPING, wait(app, self.principal, &begun)).await;
        self.task_of(run).await
    }

    /// Stops a turn and takes its approval requests back. `Conflict` when there was nothing to stop.
    async fn cancel_turn(self, run: RunId) -> Result<(), Error> {
        let app = &self.state.app;
        let mut is_stopped = false;
        for request in ending::list_request_outcomes(app, self.principal, run).await? {
            if request.status == SkillRunStatus::AwaitingApproval {
                match approvals::cancel(app, self.principal, request.approval.id).await {
                    Ok(_) => is_stopped = true,
                    // Somebody has decided the request in the meantime.
                    Err(Error::Conflict(..)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        match app::runs::cancel(app, self.principal, run, OpenRequests::Withdraw).await {
            Err(Error::Conflict(..)) if is_stopped => Ok(()),
            stopped => stopped.map(|_| ()),
        }
    }
}

fn no_task(id: RunId, error: Error) -> RequestError {
    match error {
        Error::NotFound(_) | Error::SessionNotFound(_) | Error::Forbidden(_) => {
            unknown(&id.to_string())
        }
        other => other.into(),
    }
}

fn task_of_turn(view: RunView, requests: &[RequestOutcome]) -> Task {
    let RunView { run, result, .. } = view;
    let (state, decisive) = state_of_turn(run.status, requests);
    let message_text = match (&state, decisive) {
        (TaskState::Completed, _) => None,
        (_, Some(request)) => Some(request.approval.text_with_arguments()),
        (_, None) => run.error,
    };
    // The results of approved calls, then the answer of the agent, although the agent gave it before these results.
    let results = requests
        .iter()
        .filter(|request| request.status == SkillRunStatus::Succeeded)
        .map(|request| (request.approval.tool.as_str(), &request.text));
    let artifacts = results
        .chain(result.iter().map(|answer| ("answer", answer)))
        .enumerate();
    let artifacts = artifacts.map(|(at, (name, text))| Artifact {
        artifact_id: match name {
            "answer" => name.to_owned(),
            _ => format!("result-{}", at + 1),
        },
        name: Some(name.to_owned()),
        description: None,
        parts: vec![Part::text(text.clone())],
        metadata: None,
        extensions: None,
    });
    let artifacts: Vec<_> = artifacts.collect();
    // The text of an agent about a call that waits is not the artifact that was asked for.
    let waits = matches!(state, TaskState::AuthRequired | TaskState::InputRequired);
    let is_answered = !artifacts.is_empty() && !waits;
    let finished_at = run.finished_at.unwrap_or(run.created_at);
    let changed_at = requests.iter().map(|request| request.approval.changed_at);
    let at = changed_at.fold(finished_at, OffsetDateTime::max);
    let (id, context_id) = (run.id.to_string(), run.conversation_id.to_string());
    let status = status(state, message_text, &id, &context_id, at);
    Task {
        id,
        context_id,
        status,
        artifacts: is_answered.then_some(artifacts),
        history: None,
        metadata: metadata_of_turn(requests, decisive),
    }
}

/// The state of a turn, and the approval request that decides it. A call that waits decides before all others, because
/// somebody can act on it.
fn state_of_turn(
    run: RunStatus,
    requests: &[RequestOutcome],
) -> (TaskState, Option<&RequestOutcome>) {
    let found = |wanted: TaskState| {
        let mut states = requests.iter().map(|request| {
            let state = state_of_request(request.status, Some(&request.approval));
            (state, Some(request))
        });
        states.find(|(state, _)| *state == wanted)
    };
    let own = match run {
        RunStatus::Queued => TaskState::Submitted,
        RunStatus::Running => TaskState::Working,
        RunStatus::Succeeded => TaskState::Completed,
        RunStatus::Failed => TaskState::Failed,
        RunStatus::Cancelled => TaskState::Canceled,
    };
    let asks = found(TaskState::InputRequired).or_else(|| found(TaskState::AuthRequired));
    let waiting = asks.or_else(|| found(TaskState::Working));
    let refused = || {
        let refusals = [TaskState::Failed, TaskState::Rejected, TaskState::Canceled];
        refusals.into_iter().find_map(found)
    };
    match own {
        TaskState::Completed => waiting.or_else(refused),
        _ => waiting,
    }
    .unwrap_or((own, None))
}

/// The approval request that decides the state, as with a skill, and all requests where there are several.
fn metadata_of_turn(
    requests: &[RequestOutcome],
    decisive: Option<&RequestOutcome>,
) -> Option<HashMap<String, Value>> {
    let shown = decisive.or(requests.first())?;
    let mut metadata = HashMap::from([("approval".to_owned(), request_json(&shown.approval))]);
    if requests.len() > 1 {
        let all = requests
            .iter()
            .map(|request| request_json(&request.approval));
        metadata.insert("approvals".to_owned(), all.collect());
    }
    if requests
        .iter()
        .any(|request| request.status == SkillRunStatus::OutcomeUnknown)
    {
        metadata.insert("outcome".to_owned(), json!("unknown"));
    }
    Some(metadata)
}

fn request_json(approval: &ApprovalView) -> Value {
    json!({
        "id": approval.id,
        "code": approval.code,
        "kind": approval.kind,
        "state": approval.state,
        "approvers": approval.approvers,
        "minApprovals": approval.min_approvals,
        "approvals": approval.approvals,
        "expiresAt": approval.expires_at.format(&Rfc3339).unwrap_or_default(),
        "url": approval.link,
    })
}

fn task_of_skill(outcome: &SkillRunOutcome) -> Task {
    let state = state(outcome);
    let (id, context_id) = (
        outcome.run_id.to_string(),
        outcome.conversation_id.to_string(),
    );
    let mut metadata = HashMap::from([("skillId".to_owned(), json!(outcome.skill))]);
    if outcome.status == SkillRunStatus::OutcomeUnknown {
        metadata.insert("outcome".to_owned(), json!("unknown"));
    }
    if let Some(approval) = &outcome.approval {
        metadata.insert("approval".to_owned(), request_json(approval));
    }
    let (message_text, artifacts) = match (state == TaskState::Completed, outcome.text.clone()) {
        (true, text) => (
            None,
            Some(vec![artifact(outcome, text.unwrap_or_default())]),
        ),
        // The text of an approval request is written for its requester; the text of the outcome is written for a model.
        (false, text) => (
            outcome
                .approval
                .as_ref()
                .map(ApprovalView::text_with_arguments)
                .or(text),
            None,
        ),
    };
    let status = status(state, message_text, &id, &context_id, outcome.changed_at);
    Task {
        id,
        context_id,
        status,
        artifacts,
        history: None,
        metadata: Some(metadata),
    }
}

fn state(outcome: &SkillRunOutcome) -> TaskState {
    // A run that was stopped is cancelled. Its message and metadata say that the call may have been made all the same.
    if outcome.stopped && outcome.status == SkillRunStatus::OutcomeUnknown {
        return TaskState::Canceled;
    }
    state_of_request(outcome.status, outcome.approval.as_ref())
}

/// The state of a call that needs consent.
fn state_of_request(status: SkillRunStatus, approval: Option<&ApprovalView>) -> TaskState {
    let is_confirmation = approval.is_some_and(|it| it.kind == Kind::Confirmation);
    match (status, approval.map(|approval| approval.state)) {
        (SkillRunStatus::Running, _)
        | (SkillRunStatus::AwaitingApproval, Some(State::Approved | State::Executing)) => {
            TaskState::Working
        }
        // The client's own user is asked.
        (SkillRunStatus::AwaitingApproval, _) if is_confirmation => TaskState::InputRequired,
        // The protocol's state for a human who has to approve (section 7.6).
        (SkillRunStatus::AwaitingApproval, _) => TaskState::AuthRequired,
        (SkillRunStatus::Succeeded, _) => TaskState::Completed,
        (SkillRunStatus::Refused, Some(State::Rejected)) => TaskState::Rejected,
        (SkillRunStatus::Failed | SkillRunStatus::Refused | SkillRunStatus::OutcomeUnknown, _) => {
            TaskState::Failed
        }
        (SkillRunStatus::Cancelled, _) => TaskState::Canceled,
    }
}

/// The result of a tool: its text, and its data if it has any.
fn artifact(outcome: &SkillRunOutcome, text: String) -> Artifact {
    let data = outcome
        .structured_content
        .as_ref()
        .and_then(|raw| json::read_value(raw.get()).ok());
    Artifact {
        artifact_id: "result".to_owned(),
        name: Some(outcome.skill.clone()),
        description: None,
        parts: std::iter::once(Part::text(text))
            .chain(data.map(Part::data))
            .collect(),
        metadata: None,
        extensions: None,
    }
}

fn status(
    state: TaskState,
    message_text: Option<String>,
    id: &str,
    context_id: &str,
    at: OffsetDateTime,
) -> TaskStatus {
    let message = message_text.map(|text| Message {
        // The id must be the same each time that the task is read.
        message_id: format!("{id}-status"),
        context_id: Some(context_id.to_owned()),
        task_id: Some(id.to_owned()),
        role: Role::Agent,
        parts: vec![Part::text(text)],
        metadata: None,
        extensions: None,
        reference_task_ids: None,
    });
    // The crate uses another library's type of a time; both libraries read RFC 3339.
    let timestamp = at
        .format(&Rfc3339)
        .ok()
        .and_then(|text| serde_json::from_value(Value::String(text)).ok());
    TaskStatus {
        state,
        message,
        timestamp,
    }
}
