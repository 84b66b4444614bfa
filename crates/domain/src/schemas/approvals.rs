//! Schemas of approvals.

use serde_json::value::RawValue;
use time::OffsetDateTime;

use crate::{
    approval::{self, Recorded, State},
    ids::{ApprovalId, UserId},
    schemas,
};

schemas! {
    #[serde(rename_all = "snake_case")]
    #[schema(as = ApprovalState)]
    enum State for approval::State {
        Pending,
        Approved,
        /// It is being sent, or has been and is not answered yet.
        Executing,
        Succeeded,
        Failed,
        /// It was sent, or may have been, and nobody knows what came of it. Never repeated.
        OutcomeUnknown,
        Rejected,
        Expired,
        Cancelled,
        /// Approved, but what was approved is not what would run now.
        Revoked,
        /// Approved, but it could not be executed in time.
        Lapsed,
    }
    #[serde(rename_all = "lowercase")]
    #[schema(as = ApprovalDecision)]
    enum Choice for approval::Choice {
        Approve,
        Reject,
    }
    /// What really happened to a call of unknown outcome, as an approver found out.
    struct Recorded for approval::Recorded {
        /// Whether the call was carried out.
        happened: bool,
        note: Option<String>,
        #[schema(value_type = String)]
        by: UserId,
        at: OffsetDateTime,
    }
    /// A request in a conversation, as things stood when the message was written.
    struct Note for approval::Note {
        id: ApprovalId,
        code: String,
        state: State,
        server: String,
        tool: String,
        /// SHA-256 over the canonical arguments, in hex.
        args_sha256: String,
        /// The roles that may decide.
        approvers: Vec<String>,
        expires_at: OffsetDateTime,
        /// Who brought it into this state, when a person did.
        #[schema(value_type = Option<String>)]
        by: Option<UserId>,
        reason: Option<String>,
        /// What the server answered.
        result: Option<String>,
        /// The server's own result (`content`, `structuredContent`), when there are images in it.
        #[schema(value_type = Option<Object>)]
        raw: Option<Box<RawValue>>,
        /// What an approver found out about an unknown outcome.
        recorded: Option<Recorded>,
        /// All of it for people, in their language.
        text: String,
    }
}
