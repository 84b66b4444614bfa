//! Tasks: runs as A2A shows them. They are built from the rows for each request.

use std::{collections::HashMap, time::Duration};

use ::a2a::{A2AError, Artifact, Message, Part, Role, Task, TaskState, TaskStatus};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{A2aRequest, request_error::RequestError};
use crate::{
    app::{
        self,
        runs::{OpenRequests, RunView, ending::wait, starting::StartedRun},
        tools::skills::outcome::{SkillRunOutcome, SkillRunStatus},
    },
    domain::{
        approval::State,
        error::Error,
        ids::RunId,
        run::{RunKind, RunStatus},
    },
};

/// How long a request to stop a run may take to have an effect.
const STOPPING: Duration = Duration::from_secs(5);

/// Parses the id of a task. A malformed id is not found.
pub(super) fn parsed(id: &str) -> Result<RunId, RequestError> {
    id.parse().map_err(|_| unknown(id))
}

fn unknown(id: &str) -> RequestError {
    A2AError::task_not_found(&id.chars().take(64).collect::<String>()).into()
}

impl A2aRequest<'_> {
    pub(super) async fn task(self, id: &str) -> Result<Task, RequestError> {
        self.task_of(parsed(id)?).await
    }

    /// A run of the caller's at this agent, if there is one.
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
                RunKind::Turn => Ok(of_turn(run)),
                RunKind::Command => Ok(of_skill(
                    &app::tools::skills::outcome::of(app, self.principal, &agent, id).await?,
                )),
            }
        };
        found.await.map_err(|error| no_task(id, error))
    }

    pub(super) async fn cancel(self, id: &str) -> Result<Task, RequestError> {
        let (app, run) = (&self.state.app, parsed(id)?);
        // Checks the owner and the agent.
        let task = self.task_of(run).await?;
        let view = app::runs::get(app, self.principal, run)
            .await
            .map_err(|error| no_task(run, error))?;
        let agent = app::chat::conversations::get(app, self.principal, view.conversation_id)
            .await?
            .agent;
        let stopped = match view.kind {
            RunKind::Turn => app::runs::cancel(app, self.principal, run, OpenRequests::TakeBack)
                .await
                .map(|_| ()),
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
}

fn no_task(id: RunId, error: Error) -> RequestError {
    match error {
        Error::NotFound(_) | Error::SessionNotFound(_) | Error::Forbidden(_) => {
            unknown(&id.to_string())
        }
        other => other.into(),
    }
}

fn of_turn(view: RunView) -> Task {
    let RunView { run, result, .. } = view;
    let state = match run.status {
        RunStatus::Queued => TaskState::Submitted,
        RunStatus::Running => TaskState::Working,
        RunStatus::Succeeded => TaskState::Completed,
        RunStatus::Failed => TaskState::Failed,
        RunStatus::Cancelled => TaskState::Canceled,
    };
    let said = if run.status == RunStatus::Failed {
        run.error
    } else {
        None
    };
    let artifact = result.map(|text| Artifact {
        artifact_id: "answer".to_owned(),
        name: Some("answer".to_owned()),
        description: None,
        parts: vec![Part::text(text)],
        metadata: None,
        extensions: None,
    });
    let at = run.finished_at.unwrap_or(run.created_at);
    let (id, context_id) = (run.id.to_string(), run.conversation_id.to_string());
    let status = status(state, said, &id, &context_id, at);
    Task {
        id,
        context_id,
        status,
        artifacts: artifact.map(|artifact| vec![artifact]),
        history: None,
        metadata: None,
    }
}

fn of_skill(outcome: &SkillRunOutcome) -> Task {
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
        let request = json!({
            "id": approval.id,
            "code": approval.code,
            "state": approval.state,
            "approvers": approval.approvers,
            "expiresAt": approval.expires_at.format(&Rfc3339).unwrap_or_default(),
            "url": approval.link,
        });
        metadata.insert("approval".to_owned(), request);
    }
    let (said, artifacts) = match (state == TaskState::Completed, outcome.text.clone()) {
        (true, text) => (
            None,
            Some(vec![artifact(outcome, text.unwrap_or_default())]),
        ),
        // A request is described in the words for its requester, not in those for a model.
        (false, text) => (
            outcome
                .approval
                .as_ref()
                .map(|approval| approval.text.clone())
                .or(text),
            None,
        ),
    };
    let status = status(state, said, &id, &context_id, outcome.changed_at);
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
    match (
        outcome.status,
        outcome.approval.as_ref().map(|approval| approval.state),
    ) {
        (SkillRunStatus::Running, _)
        | (SkillRunStatus::AwaitingApproval, Some(State::Approved | State::Executing)) => {
            TaskState::Working
        }
        // The protocol's state for a human who has to approve (section 7.6).
        (SkillRunStatus::AwaitingApproval, _) => TaskState::AuthRequired,
        (SkillRunStatus::Succeeded, _) => TaskState::Completed,
        (SkillRunStatus::Refused, Some(State::Rejected)) => TaskState::Rejected,
        // The run was stopped. The message and the metadata say that the call may have been made all the
        // same.
        (SkillRunStatus::OutcomeUnknown, _) if outcome.stopped => TaskState::Canceled,
        (SkillRunStatus::Failed | SkillRunStatus::Refused | SkillRunStatus::OutcomeUnknown, _) => {
            TaskState::Failed
        }
        (SkillRunStatus::Cancelled, _) => TaskState::Canceled,
    }
}

/// What the tool said as text, and as data where it is data.
fn artifact(outcome: &SkillRunOutcome, text: String) -> Artifact {
    let data = outcome
        .structured_content
        .as_ref()
        .and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
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
    said: Option<String>,
    id: &str,
    context_id: &str,
    at: OffsetDateTime,
) -> TaskStatus {
    let message = said.map(|text| Message {
        // The same each time the task is read.
        message_id: format!("{id}-status"),
        context_id: Some(context_id.to_owned()),
        task_id: Some(id.to_owned()),
        role: Role::Agent,
        parts: vec![Part::text(text)],
        metadata: None,
        extensions: None,
        reference_task_ids: None,
    });
    // The crate's type of it is that of another library; both read what RFC 3339 writes.
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
