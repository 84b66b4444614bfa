//! Schemas of approvals.

use serde_json::{Value, value::RawValue};
use time::OffsetDateTime;

use super::schemas;
use crate::app::tools::approvals::{
    listening,
    view::{self, Person, ServerSays, VoteView},
};
use domain::{
    approval::{self, Choice, Recorded, State},
    ids::{ApprovalId, ConversationId, UserId},
};

schemas! {
    /// How many requests concern a user.
    struct Badge for listening::Badge {
        /// Requests that wait for the user's decision.
        pending_approvals: i64,
        /// The user's own requests that are open.
        my_approval_requests: i64,
    }

    #[schema(as = ApprovalView)]
    struct View for view::ApprovalView {
        id: ApprovalId,
        /// What people type.
        code: String,
        state: State,
        agent: String,
        server: String,
        tool: String,
        /// What the server says of the tool. Nobody has checked it.
        server_says: ServerSays,
        requester: Person,
        /// Exactly what runs when it is approved. Only when one request is looked at; absent when it is closed and its
        /// arguments were erased.
        #[schema(value_type = Option<Object>)]
        arguments: Option<Box<RawValue>>,
        /// SHA-256 over the canonical arguments (RFC 8785, but numbers keep their digits), in hex; a decision repeats it.
        args_sha256: String,
        /// The roles that may decide.
        approvers: Vec<String>,
        /// So many people have to approve.
        min_approvals: u32,
        /// Whether its requester may decide it, holding one of the roles.
        self_approval: bool,
        votes: Vec<VoteView>,
        /// Whether the one who asks may decide it now.
        decidable: bool,
        /// Whether the one who asks made it.
        own: bool,
        /// Where its outcome is told; only its requester sees it.
        conversation_id: Option<ConversationId>,
        reason: Option<String>,
        #[schema(value_type = Option<String>)]
        decided_by: Option<UserId>,
        decided_at: Option<OffsetDateTime>,
        created_at: OffsetDateTime,
        /// From this moment on nobody can approve it.
        expires_at: OffsetDateTime,
        changed_at: OffsetDateTime,
        finished_at: Option<OffsetDateTime>,
        /// What arrived after the outcome was given up for unknown.
        evidence: Option<String>,
        recorded: Option<Recorded>,
        /// How it stands, in words for the one who asks.
        text: String,
        /// Where people find it.
        link: String,
    }

    /// A server's own words.
    struct ServerSays for view::ServerSays {
        title: Option<String>,
        description: String,
        /// Such as `destructiveHint`.
        #[schema(value_type = Option<Object>)]
        hints: Option<Value>,
    }

    struct Person for view::Person {
        #[schema(value_type = String)]
        user: UserId,
        name: String,
    }

    struct VoteView for view::VoteView {
        #[schema(value_type = String)]
        by: UserId,
        decision: Choice,
        reason: Option<String>,
        at: OffsetDateTime,
        /// Of an approval while the request waits: whether it counts. The vote of somebody who is gone does not, nor
        /// does the second one of ids that look the same.
        counts: Option<bool>,
    }

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
