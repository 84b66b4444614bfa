//! Runs, and the conversations in which they happen. A run is one turn of an agent in a conversation, or one command that
//! the program itself answers.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::{
    answer_format::AnswerFormat,
    ids::{AgentId, ConversationId, RunId, TenantId},
    json::Members,
    message::{Message, ToolCall},
    policy::Origin,
    principal::Principal,
    skill,
    trace_context::TraceContext,
};

/// `queued → running → succeeded | failed | cancelled`; a queued run may be cancelled without running. If the replica
/// of a run stops, another one claims the run when the lease has ended, and goes on after the last stored step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum RunStatus {
    Queued,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl RunStatus {
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// Whether a run asks the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum RunKind {
    Turn,
    /// A slash command: answered by the program.
    Command,
}

/// A claimed run as its worker has it. The fence must match the row at every write.
#[derive(Clone, Debug)]
pub struct ClaimedRun {
    pub tenant: TenantId,
    pub id: RunId,
    pub conversation: ConversationId,
    pub agent: AgentId,
    pub principal: Principal,
    pub kind: RunKind,
    /// Position among the runs of the conversation.
    pub ordinal: i64,
    pub fence: i64,
    /// How often it was claimed; above 1 a replica died or lost its lease on the way.
    pub attempt: i32,
    /// The id of the HTTP request that made it, if one did.
    pub request: Option<String>,
    /// The span in which it was made, if there were traces.
    pub trace: Option<TraceContext>,
    pub start: RunStart,
}

impl ClaimedRun {
    pub fn origin_of(&self, call: &ToolCall) -> Origin {
        match self.kind {
            _ if skill::of_call(call).is_some() => Origin::Skill,
            RunKind::Command => Origin::Command,
            RunKind::Turn if self.start.is_delegated => Origin::Run,
            RunKind::Turn => Origin::Chat,
        }
    }
}

/// What is known of a run when it is claimed, so that its worker need not query for it.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "five independent facts, each read once"
)]
pub struct RunStart {
    /// Number of the conversation's last durable event.
    pub last_event: i64,
    /// The conversation has its first message for a title, and the model may make a better one.
    pub may_be_titled: bool,
    /// The client keeps the transcript: its user cannot speak before it has the answer.
    pub is_of_client: bool,
    /// A program or another run started it: there is no user to ask.
    pub is_delegated: bool,
    /// It has a message for the model.
    pub has_input: bool,
    /// A message of its user must be processed before the model is asked: it names a prompt of a server, or answers a
    /// question.
    pub needs_preparation: bool,
    /// The form that its answer must have, if it is not free text.
    pub format: Option<AnswerFormat>,
    /// The only message of a new conversation: all that the model is to read.
    pub only_message: Option<Message>,
}

/// Who waits for the result of a run, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The one who starts it, until it ends.
    Sync,
    /// No caller waits: a client polls the state.
    AsyncPoll,
    /// The session that started it is told.
    AsyncCallback,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sync" => Ok(Self::Sync),
            "async_poll" => Ok(Self::AsyncPoll),
            "async_callback" => Ok(Self::AsyncCallback),
            _ => Err(format!(
                "Invalid mode: {text}. Must be one of: sync, async_poll, async_callback"
            )),
        }
    }
}

/// What servers of a run may be told of it. No `Debug`: nothing of the scope may be printed.
#[derive(Clone)]
pub struct RunValues {
    /// Never seen by a model.
    pub scope: Members,
    /// Seen by the model, in the message that it answers.
    pub params: Members,
    pub run_id: RunId,
    pub session_id: ConversationId,
}

/// The position of a run in the tree of runs that started each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreePosition {
    /// The run that nobody started; all others are below it.
    pub root: RunId,
    /// The run that started this one. `None` for the root.
    pub parent: Option<RunId>,
    /// The number of generations below the root.
    pub depth: i32,
}

/// Tokens a model says it read and wrote. `estimated` when it did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    /// All of the input, including what came from a cache.
    pub input_tokens: i64,
    /// The part of the input that the provider had kept from an earlier request. It is cheaper, and counts in limits all the same.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub cached_input_tokens: i64,
    pub output_tokens: i64,
    pub estimated: bool,
}

impl Usage {
    pub fn add(&mut self, other: Self) {
        self.input_tokens += other.input_tokens;
        self.cached_input_tokens += other.cached_input_tokens;
        self.output_tokens += other.output_tokens;
        self.estimated |= other.estimated;
    }
}

/// A run as the API shows it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    pub id: RunId,
    pub kind: RunKind,
    pub conversation_id: ConversationId,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent: AgentId,
    pub status: RunStatus,
    /// Why it failed, for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub steps: i32,
    pub usage: Usage,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub finished_at: Option<OffsetDateTime>,
}

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
