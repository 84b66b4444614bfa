//! A request of the user, as the export writes it.

use serde::Serialize;

use super::time_of;
use crate::domain::{
    approval::{Approval, State},
    ids::{ApprovalId, ConversationId},
};

/// A request for approval without its arguments, which are in the message that made it.
#[derive(Serialize)]
pub(super) struct ExportedApproval<'a> {
    pub(super) id: ApprovalId,
    code: &'a str,
    pub(super) state: State,
    pub(super) agent: &'a str,
    server: &'a str,
    tool: &'a str,
    conversation_id: Option<ConversationId>,
    created_at: String,
    decided_at: Option<String>,
    reason: Option<&'a str>,
}

impl<'a> ExportedApproval<'a> {
    pub(super) fn of(approval: &'a Approval) -> Self {
        Self {
            id: approval.id,
            code: &approval.code,
            state: approval.state,
            agent: approval.agent.as_str(),
            server: approval.server.as_str(),
            tool: &approval.tool,
            conversation_id: approval.conversation,
            created_at: time_of(approval.created_at),
            decided_at: approval.decided_at.map(time_of),
            reason: approval.reason.as_deref(),
        }
    }
}
