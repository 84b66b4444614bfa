//! Schemas of conversations: messages, events, runs and the menu.

use time::OffsetDateTime;

use crate::{
    ids::{AgentId, ConversationId},
    menu as domain_menu, orchestrator, run, schemas,
};

schemas! {
    #[serde(rename_all = "kebab-case")]
    enum Action for domain_menu::Action {
        /// Says how to sign in.
        Authenticate,
        /// Ends the session and closes its connections.
        Logout,
        /// Starts the configuration of personal servers.
        McpConfig,
        /// Leaves that configuration.
        AbortConfig,
        /// Shows the requests that the user can decide about.
        PendingApprovals,
        /// Shows the user's own requests, to take one back.
        MyApprovalRequests,
    }
    /// A session that was started has ended.
    struct Callback for orchestrator::Callback {
        #[serde(rename = "session_id")]
        session: ConversationId,
        agent: String,
        /// `finished`, `failed` or `stopped`.
        status: String,
        /// What the agent said last, or why it failed.
        text: String,
    }
    /// A chat between one user and one agent.
    struct Conversation for run::Conversation {
        id: ConversationId,
        #[schema(value_type = String)]
        agent: AgentId,
        title: String,
        /// The session whose run started this one.
        parent_id: Option<ConversationId>,
        /// Number of its last durable event, for `Last-Event-ID`.
        last_event: i64,
        /// Listed only when asked for.
        archived: bool,
        /// Listed before the others.
        pinned: bool,
        /// The branch that goes on; 0 is the first one.
        branch: i32,
        created_at: OffsetDateTime,
        updated_at: OffsetDateTime,
    }
    /// A version of a conversation, which begins where a message was edited or asked again.
    struct ConversationBranch for run::ConversationBranch {
        number: i32,
        /// The branch whose messages it has up to `from_seq`; the first branch has none.
        parent: Option<i32>,
        /// The number of the message in the parent that its own messages stand in place of, with all after it.
        from_seq: i64,
        created_at: OffsetDateTime,
        /// It is shown, and goes on.
        active: bool,
    }
}
