//! Schemas of conversations: messages, events, runs and the menu.

use crate::app::chat::{conversations, menu as chat_menu};
use domain::{
    menu::Action,
    message::Message,
    run::{self, Run},
    schemas,
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
    /// A conversation with its messages.
    struct ConversationExport for crate::app::chat::export::ConversationExport {
        conversation: run::Conversation,
        /// Oldest first.
        messages: Vec<Message>,
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
