//! What the tenant's webhooks are told of a request, in the transaction of the change. The message never
//! contains the arguments; a receiver with access follows the link.

use serde_json::json;

use super::{App, time_of};
use crate::{
    domain::{
        approval::Approval,
        canonical::Hex,
        error::Result,
        ids::{ApprovalId, UserId},
    },
    store::{self, Tx},
};

/// The address of the request: as the operator has configured it, else in the web client.
pub(super) fn link(app: &App, id: ApprovalId) -> String {
    if app.config.approval_url.is_empty() {
        format!(
            "{}/#/approvals/{id}",
            app.config.public_url.trim_end_matches('/')
        )
    } else {
        app.config.approval_url.replace("{id}", &id.to_string())
    }
}

/// Puts the news into the outbox.
pub(super) async fn tell(app: &App, tx: &mut Tx, approval: &Approval, event: &str) -> Result<()> {
    let payload = json!({
        "id": approval.id,
        "code": approval.code,
        "state": approval.state,
        "agent": approval.agent.as_str(),
        "server": approval.server.as_str(),
        "tool": approval.tool,
        "requester": { "user": approval.requester().as_str(), "name": approval.requester_name },
        "approvers": approval.consent.approvers,
        "min_approvals": approval.consent.min_approvals,
        "args_sha256": Hex(approval.args_sha256).to_string(),
        "expires_at": time_of(approval.expires_at),
        "decided_by": approval.decided_by.as_ref().map(UserId::as_str),
        "reason": approval.reason,
        "link": link(app, approval.id),
    });
    store::webhooks::enqueue(tx, approval.tenant, event, &payload).await
}
