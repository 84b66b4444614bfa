//! A conversation and its branches, in which runs happen.

use serde::Serialize;
use time::OffsetDateTime;

use crate::ids::{AgentId, ConversationId};

/// A chat between one user and one agent.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Conversation {
    pub id: ConversationId,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent: AgentId,
    pub title: String,
    /// The session whose run started this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<ConversationId>,
    /// Number of its last durable event, for `Last-Event-ID`.
    pub last_event: i64,
    /// Listed only when asked for.
    pub archived: bool,
    /// Listed before the others.
    pub pinned: bool,
    /// The branch that goes on; 0 is the first one.
    pub branch: i32,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A version of a conversation, which begins where a message was edited or asked again.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConversationBranch {
    pub number: i32,
    /// The branch whose messages it has up to `from_seq`; the first branch has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<i32>,
    /// The number of the message in the parent that its own messages stand in place of, with all after it.
    pub from_seq: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// It is shown, and goes on.
    pub active: bool,
}

/// What a user changes of a conversation; what is absent stays.
#[derive(Clone, Copy, Default)]
pub struct ConversationChange<'a> {
    pub title: Option<&'a str>,
    pub archived: Option<bool>,
    pub pinned: Option<bool>,
    /// Switches to this branch.
    pub branch: Option<i32>,
}

/// Characters of a title that is taken from a text.
const MAX_TITLE: usize = 80;

impl Conversation {
    /// The first line of a text, as a title. The list of files that Open WebUI puts before the text is passed over.
    pub fn title_from(text: &str) -> String {
        let said = text.trim_start().strip_prefix("<attached_files>");
        let said = said.and_then(|list| list.split_once("</attached_files>"));
        let text = said.map_or(text, |(_, said)| said);
        let line = text.trim().lines().next().unwrap_or_default();
        if line.chars().count() <= MAX_TITLE {
            return line.to_owned();
        }
        line.chars().take(MAX_TITLE - 1).chain(['…']).collect()
    }
}
