//! Calls that need consent, from clients that call tools themselves. Such a client has no conversation that could
//! receive the outcome. It makes the same call again, or asks for its task.
//!
//! Invariant: an outcome answers the same call once, and again for `GRACE` after that, because the answer may have
//! been lost. A later call is a new request, which needs consent of its own.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use super::{
    App, unknown_request,
    view::{self, ApprovalView},
};
use domain::{
    approval::{Approval, Kind},
    error::{Error, Result},
    ids::{AgentId, ApprovalId},
    message::{CallStatus, ToolResult},
    principal::Principal,
};
use store::{Tx, approvals::NewApproval};

/// How long an outcome is kept.
pub const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long after its first delivery an outcome answers the same call again.
const GRACE: Duration = Duration::from_secs(60);
/// The most bytes of a result that is kept.
const MAX_RESULT: usize = 1 << 20;

/// A client's call that needed consent, and its outcome.
pub struct ClientCall {
    pub view: ApprovalView,
    /// The server's answer; `None` while the call waits, and when nothing was sent.
    pub result: Option<Box<RawValue>>,
}

impl ClientCall {
    /// Whether the call waits or is being executed.
    pub fn is_open(&self) -> bool {
        self.view.finished_at.is_none()
    }

    /// Whether it waits for its own user to confirm it.
    pub fn asks_user(&self) -> bool {
        self.view.kind == Kind::Confirmation && self.view.decidable
    }
}

pub(super) async fn await_result(tx: &mut Tx, id: ApprovalId) -> Result<()> {
    store::approvals::await_result(tx, id, KEPT).await
}

pub(super) async fn find_uncollected(
    tx: &mut Tx,
    new: &NewApproval<'_>,
) -> Result<Option<Approval>> {
    store::approvals::find_uncollected(tx, new, KEPT, GRACE).await
}

/// Keeps the result of a call, in the transaction that ends its request.
pub(super) async fn keep_result(tx: &mut Tx, id: ApprovalId, result: &ToolResult) -> Result<()> {
    let own = result
        .raw
        .as_ref()
        .filter(|raw| raw.get().len() <= MAX_RESULT);
    match own {
        Some(raw) => store::approvals::keep_result(tx, id, raw.get()).await,
        None => {
            let is_error = result.status != CallStatus::Succeeded;
            let ours = mcp::text_outcome(&result.text, is_error).raw;
            store::approvals::keep_result(tx, id, ours.get()).await
        }
    }
}

/// The outcome of a request of the principal's client at this agent. For a request that has ended, this counts as the
/// delivery.
pub async fn outcome(
    app: &Arc<App>,
    principal: &Principal,
    agent: &AgentId,
    id: ApprovalId,
) -> Result<ClientCall> {
    let not_found = || unknown_request(&id.to_string());
    let mut tx = app.db.tenant(principal.tenant).await?;
    let approval = store::approvals::get(&mut tx, id).await?;
    let approval = approval
        .filter(|found| *found.requester() == principal.user && found.agent == *agent)
        .ok_or_else(not_found)?;
    let result = store::approvals::get_result(&mut tx, id)
        .await?
        .ok_or_else(not_found)?;
    if approval.finished_at.is_some() {
        store::approvals::mark_collected(&mut tx, id).await?;
    }
    tx.commit().await?;
    let result = result.map(RawValue::from_string).transpose();
    let view = view::build_views(app, principal, vec![approval])
        .await?
        .pop();
    Ok(ClientCall {
        view: view.ok_or_else(not_found)?,
        result: result.map_err(Error::internal)?,
    })
}
