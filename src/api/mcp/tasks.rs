//! The extension `io.modelcontextprotocol/tasks` (2026-07-28): a call that waits for consent is a task of its client. The
//! id of the task is that of the request in the queue of approvals.

use serde::Deserialize;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;

use super::{
    Client, RpcRequest,
    call::of_consent,
    message::{self, Failure, RpcError},
};
use crate::{
    app::tools::approvals::{
        self,
        client_calls::{self, ClientCall, KEPT},
        view::ApprovalView,
    },
    domain::{approval::State, error::Error, ids::ApprovalId},
};

pub(super) const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// How often a client may ask.
const POLL_MS: u64 = 2000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskParams {
    task_id: String,
}

/// What a client that knows tasks is answered in place of a result.
pub(super) fn created(view: &ApprovalView) -> String {
    let mut task = task_json(view, "working");
    task["resultType"] = "task".into();
    task.to_string()
}

fn task_json(view: &ApprovalView, status: &str) -> Value {
    let time = |at: time::OffsetDateTime| at.format(&Rfc3339).unwrap_or_default();
    let kept = i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX);
    let ttl = i64::try_from((view.expires_at - view.created_at).whole_milliseconds());
    json!({
        "taskId": view.id,
        "status": status,
        "statusMessage": format!("{} {}", view.text, view.link),
        "createdAt": time(view.created_at),
        "lastUpdatedAt": time(view.changed_at),
        "ttlMs": ttl.unwrap_or_default().max(0).saturating_add(kept),
        "pollIntervalMs": POLL_MS,
    })
}

impl Client {
    pub(super) async fn task(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let call = self.call_of_task(request).await?;
        let status = match call.view.state {
            State::Cancelled => "cancelled",
            _ if call.is_open() => "working",
            // A call that was refused has a result: one that says so.
            _ => "completed",
        };
        let mut task = task_json(&call.view, status);
        task["resultType"] = "complete".into();
        if status == "completed" {
            let result = of_consent(call);
            task["result"] = serde_json::from_str(&result).unwrap_or_default();
        }
        Ok(task.to_string())
    }

    /// A task that is over, or that was carried out meanwhile, stays as it is.
    pub(super) async fn cancel_task(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let call = self.call_of_task(request).await?;
        if call.is_open() {
            let cancelled = approvals::cancel(&self.state.app, &self.principal, call.view.id);
            match cancelled.await {
                Ok(_) | Err(Error::Conflict(..)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(r#"{"resultType":"complete"}"#.to_owned())
    }

    /// A task never asks its client for anything, so there is nothing to take in.
    pub(super) async fn update_task(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        self.call_of_task(request).await?;
        Ok(r#"{"resultType":"complete"}"#.to_owned())
    }

    async fn call_of_task(&self, request: &RpcRequest<'_>) -> Result<ClientCall, Failure> {
        if !request.meta.has_extension(EXTENSION) {
            let required = json!({ "extensions": { EXTENSION: {} } });
            return Err(RpcError::missing_capability(&required).into());
        }
        let params: TaskParams = message::params(request.params)?;
        let unknown = || RpcError::invalid_params("there is no such task");
        let id: ApprovalId = params.task_id.parse().map_err(|_| unknown())?;
        let agent = self.tools.toolbox.agent();
        let call = client_calls::outcome(&self.state.app, &self.principal, agent, id).await;
        match call {
            Err(Error::NotFound(_)) => Err(unknown().into()),
            call => Ok(call?),
        }
    }
}
