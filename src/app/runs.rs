//! Runs: started by programs and by agents, looked at, waited for, cancelled. A run is a turn of a conversation like
//! any other; a session is a conversation.
//!
//! What the servers of a run may be told and its model may not (`scope`) is sealed on the row of the run that began
//! the tree, serves all of the tree, and is forgotten when the tree is over.

pub mod ending;
pub mod endpoint;
pub mod starting;
mod tools;
pub mod values;

use serde::Serialize;

use super::App;
use crate::{
    domain::{
        error::Result,
        ids::{ConversationId, RunId, TenantId, UserId},
        message::Part,
        principal::Principal,
        run::{Run, RunKind, RunStatus},
    },
    store,
};

/// A run with what came of it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct RunView {
    #[serde(flatten)]
    pub run: Run,
    /// The same as `conversation_id`.
    pub session_id: ConversationId,
    /// What the agent said last, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// A run of the principal.
pub async fn get(app: &App, principal: &Principal, id: RunId) -> Result<Run> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::runs::get(&mut tx, &principal.user, id).await
}

/// The same with its result.
pub async fn view(app: &App, principal: &Principal, id: RunId) -> Result<RunView> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let run = store::runs::get(&mut tx, &principal.user, id).await?;
    let result =
        if run.status.is_final() && run.kind == RunKind::Turn { ending::said(&mut tx, id).await? } else { None };
    Ok(RunView { session_id: run.conversation_id, run, result })
}

/// Asks a run to stop. What a tool is doing already is not undone; the run ends at its next step.
pub async fn cancel(app: &App, principal: &Principal, id: RunId) -> Result<Run> {
    cancel_of(app, principal.tenant, &principal.user, id).await
}

/// The same for a user who does not ask for it.
pub async fn cancel_of(app: &App, tenant: TenantId, user: &UserId, id: RunId) -> Result<Run> {
    let mut tx = app.db.tenant(tenant).await?;
    let ended = store::runs::request_cancel(&mut tx, user, id).await?;
    let run = store::runs::get(&mut tx, user, id).await?;
    let event = if ended {
        let status = RunStatus::Cancelled;
        Some(store::messages::append_run_event(&mut tx, tenant, run.conversation_id, id, status, None).await?)
    } else {
        None
    };
    tx.commit().await?;
    match event {
        Some(event) => {
            app.announce(tenant, run.conversation_id, event);
            ending::settle(app, tenant, id).await;
        }
        None => app.running.cancel(id),
    }
    Ok(run)
}

/// What a message of an assistant says, for programs.
fn words(parts: &[Part]) -> String {
    let said = parts.iter().filter_map(|part| match part {
        Part::Text { text } => Some(text.as_str()),
        _ => None,
    });
    said.collect::<Vec<_>>().join("\n")
}
