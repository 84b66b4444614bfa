//! Schemas of approvals.

use serde_json::{Value, value::RawValue};
use time::OffsetDateTime;

use crate::app::tools::approvals::{
    listening,
    view::{self, Person, ServerSays, VoteView},
};
use domain::{
    approval::{Choice, Recorded, State},
    ids::{ApprovalId, ConversationId, UserId},
    schemas,
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
}
