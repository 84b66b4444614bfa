//! Calls of clients that call tools themselves and that need somebody's consent. Such a client has no conversation in
//! which it could be told the outcome: it makes the same call again, or asks for its task.
//!
//! Invariant: an outcome answers the same call once (and for `GRACE` after that, because the answer may have been
//! lost). The call after that is a new request, which needs consent of its own.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use super::{
    App, unknown,
    view::{self, ApprovalView},
};
use crate::{
    domain::{
        approval::Approval,
        error::{Error, Result},
        ids::{AgentId, ApprovalId},
        message::{CallStatus, ToolResult},
        principal::Principal,
    },
    mcp,
    store::{self, Tx, approvals::NewApproval},
};

/// An outcome is kept for this long.
pub const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// For this long after a client was told an outcome, the same call is answered with it again.
const GRACE: Duration = Duration::from_secs(60);
/// Bytes of a result that is kept.
const MAX_RESULT: usize = 1 << 20;

/// What became of a call that needed consent.
pub struct ClientCall {
    pub view: ApprovalView,
    /// What the server answered; absent while the call waits, and when nothing was sent.
    pub result: Option<Box<RawValue>>,
}

impl ClientCall {
    /// It waits, or is being carried out.
    pub fn is_open(&self) -> bool {
        self.view.finished_at.is_none()
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

/// Keeps what came of the call, in the transaction that ends the request.
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

/// What became of a request that the principal's client made at this agent. One that has ended is told now.
pub async fn outcome(
    app: &Arc<App>,
    principal: &Principal,
    agent: &AgentId,
    id: ApprovalId,
) -> Result<ClientCall> {
    let not_found = || unknown(&id.to_string());
    let mut tx = app.db.tenant(principal.tenant).await?;
    let approval = store::approvals::get(&mut tx, id).await?;
    let approval = approval
        .filter(|found| *found.requester() == principal.user && found.agent == *agent)
        .ok_or_else(not_found)?;
    let result = store::approvals::result(&mut tx, id)
        .await?
        .ok_or_else(not_found)?;
    if approval.finished_at.is_some() {
        store::approvals::collect(&mut tx, id).await?;
    }
    tx.commit().await?;
    let result = result.map(RawValue::from_string).transpose();
    let view = view::of(app, principal, vec![approval]).await?.pop();
    Ok(ClientCall {
        view: view.ok_or_else(not_found)?,
        result: result.map_err(Error::internal)?,
    })
}
