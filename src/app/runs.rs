//! Runs as their users see them: look and cancel.

use super::App;
use crate::{
    domain::{
        error::Result,
        ids::RunId,
        principal::Principal,
        run::{Run, RunStatus},
    },
    store,
};

/// A run of the principal.
pub async fn get(app: &App, principal: &Principal, id: RunId) -> Result<Run> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::runs::get(&mut tx, &principal.user, id).await
}

/// Asks a run to stop. What a tool is doing already is not undone; the run ends at its next step.
pub async fn cancel(app: &App, principal: &Principal, id: RunId) -> Result<Run> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let ended = store::runs::request_cancel(&mut tx, &principal.user, id).await?;
    let run = store::runs::get(&mut tx, &principal.user, id).await?;
    let event = if ended {
        let status = RunStatus::Cancelled;
        Some(store::messages::append_run_event(&mut tx, principal.tenant, run.conversation_id, id, status, None).await?)
    } else {
        None
    };
    tx.commit().await?;
    match event {
        Some(event) => app.announce(principal.tenant, run.conversation_id, event),
        None => app.running.cancel(id),
    }
    Ok(run)
}
