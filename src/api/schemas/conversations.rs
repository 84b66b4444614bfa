//! Schemas of conversations: messages, events, runs and the menu.

use time::OffsetDateTime;

use super::schemas;
use crate::app::chat::{conversations, menu as chat_menu};
use domain::{
    ids::{AgentId, ConversationId},
    menu as domain_menu,
    menu::Action,
    message::Message,
    orchestrator,
    run::{self, Run},
};

schemas! {
    /// What became of a message: where it stands and the run that answers it.
    struct Posted for conversations::PostedMessage {
        message: Message,
        run: Run,
    }

    /// A menu as a frontend shows it.
    struct MenuView for chat_menu::MenuView {
        /// The pack says itself what is in it. Another menu holds what every agent offers.
        own: bool,
        /// The heading that the pack gives it, in the caller's language.
        title: Option<String>,
        items: Vec<chat_menu::ItemView>,
    }

    /// An item as a frontend shows it.
    struct ItemView for chat_menu::ItemView {
        id: String,
        /// In the caller's language.
        label: String,
        action: Action,
        /// How many things wait behind it.
        badge: Option<i64>,
        /// What can be typed instead.
        command: &'static str,
    }

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

    /// A conversation with its messages.
    struct ConversationExport for crate::app::chat::export::ConversationExport {
        conversation: run::Conversation,
        /// Oldest first.
        messages: Vec<Message>,
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

    /// A conversation in a list.
    struct ListedConversation for conversations::ListedConversation {
        #[serde(flatten)]
        conversation: run::Conversation,
        /// Where a search found its words, unless it was in the title.
        found: Option<conversations::FoundMessage>,
    }

    /// A message with the words of a search.
    struct FoundMessage for conversations::FoundMessage {
        /// The number of the message.
        seq: i64,
        /// What stands around the first of the words.
        text: String,
    }
}
