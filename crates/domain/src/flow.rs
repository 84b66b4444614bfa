//! A configuration flow: the step at which a user is who connects a personal server in a conversation. It is
//! a row, so it survives restarts and goes on at any replica.

use time::OffsetDateTime;
use uuid::Uuid;

use super::ids::{AgentId, ConversationId, RunId, UserId};

#[derive(Clone, Debug)]
pub struct Flow {
    pub id: Uuid,
    pub conversation: ConversationId,
    pub user: UserId,
    /// The language that the user is asked in.
    pub locale: Option<String>,
    pub agent: AgentId,
    pub step: Step,
    /// Chosen; absent while picking.
    pub server: Option<String>,
    /// A text that the user types at this step may be a secret.
    pub secret: bool,
    /// What was entered so far, sealed.
    pub entered: Option<Vec<u8>>,
    /// An answer on its way to `answer_run`, sealed.
    pub answer: Option<Vec<u8>>,
    pub answer_run: Option<RunId>,
    /// SHA-256 of the code that the page shows.
    pub code_hash: Option<Vec<u8>>,
    /// Wrong codes so far.
    pub tries: i32,
    pub expires_at: OffsetDateTime,
}

/// `pick → field 0 → field 1 …`, or `pick → page → confirm` where the frontend keeps what is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Choosing a server.
    Pick,
    /// Being asked for a field of the server, by its position.
    Field(usize),
    /// Entering values on our page.
    Page,
    /// Naming the code that the page showed.
    Confirm,
}

impl Step {
    /// As the row says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pick => "pick",
            Self::Field(_) => "field",
            Self::Page => "page",
            Self::Confirm => "confirm",
        }
    }

    /// The position, as the row says it.
    pub fn field(self) -> i32 {
        match self {
            Self::Field(at) => i32::try_from(at).unwrap_or(i32::MAX),
            _ => 0,
        }
    }

    /// Back from [`Step::name`] and [`Step::field`].
    pub fn parse(name: &str, field: i32) -> Option<Self> {
        match name {
            "pick" => Some(Self::Pick),
            "field" => usize::try_from(field).ok().map(Self::Field),
            "page" => Some(Self::Page),
            "confirm" => Some(Self::Confirm),
            _ => None,
        }
    }
}
