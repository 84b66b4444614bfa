//! The JSON of responses, their items and the events of their streams.

mod events;
mod input;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

pub(in crate::api) use self::events::{
    ArgumentsDeltaEvent, ArgumentsEvent, CallEvent, DeltaEvent, ErrorEvent, ItemEvent, PartEvent,
    ResponseEvent, TextEvent, WholeEvent,
};
pub(super) use self::input::message_id;
pub(in crate::api) use self::input::{InputItem, ItemList};
use crate::{
    api::openai::format,
    domain::{
        answer_format::AnswerFormat,
        ids::{ConversationId, RunId},
        run::Usage,
    },
};

/// The id of the response that is a run.
pub(super) fn response_id(run: RunId) -> String {
    format!("resp_{}", run.0.simple())
}

/// The run of a response.
pub(super) fn run_id(id: &str) -> Option<RunId> {
    Uuid::try_parse(id.strip_prefix("resp_")?).ok().map(RunId)
}

/// The id of an item of a run's answer.
pub(super) fn item_id(kind: &str, run: RunId, at: usize) -> String {
    format!("{kind}_{}_{at}", run.0.simple())
}

/// The run of a message among the items.
pub(super) fn item_run(id: &str) -> Option<RunId> {
    let (run, _) = id.strip_prefix("msg_")?.split_once('_')?;
    Uuid::try_parse(run).ok().map(RunId)
}

/// An answer.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OpenAiResponse)]
pub(in crate::api) struct ResponseObject {
    pub id: String,
    pub object: &'static str,
    /// Seconds since 1970.
    pub created_at: i64,
    /// `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    pub status: &'static str,
    pub completed_at: Option<i64>,
    pub background: bool,
    /// The conversation that the response is in.
    pub conversation: Option<InConversation>,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<Incomplete>,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub metadata: BTreeMap<String, String>,
    pub model: String,
    pub output: Vec<OutputItem>,
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub reasoning: Option<()>,
    pub service_tier: &'static str,
    pub store: bool,
    pub temperature: Option<f64>,
    #[schema(value_type = Object)]
    pub text: Value,
    pub tool_choice: &'static str,
    /// Always empty: the agent's own tools run on the server.
    #[schema(value_type = Vec<Object>)]
    pub tools: [(); 0],
    pub top_p: Option<f64>,
    pub truncation: &'static str,
    pub usage: Option<ResponseUsage>,
    pub user: Option<String>,
}

/// The form of an answer, as the request asked for it.
pub(super) fn text(format: Option<&AnswerFormat>) -> Value {
    json!({ "format": format::write(format) })
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseConversation)]
pub(in crate::api) struct InConversation {
    pub id: ConversationId,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(in crate::api) struct ResponseError {
    pub code: &'static str,
    pub message: String,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[schema(as = IncompleteDetails)]
pub(in crate::api) struct Incomplete {
    pub reason: &'static str,
}

/// The tokens of all steps of the run.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(in crate::api) struct ResponseUsage {
    input_tokens: i64,
    input_tokens_details: InputTokens,
    output_tokens: i64,
    output_tokens_details: OutputTokens,
    total_tokens: i64,
}

#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
struct InputTokens {
    /// Those that came from the provider's cache.
    cached_tokens: i64,
    /// Not known here.
    cache_write_tokens: i64,
}

/// Not known here.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
struct OutputTokens {
    reasoning_tokens: i64,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            input_tokens_details: InputTokens {
                cached_tokens: usage.cached_input_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.output_tokens,
            output_tokens_details: OutputTokens::default(),
            total_tokens: usage.input_tokens + usage.output_tokens,
        }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::api) enum OutputItem {
    Message(OutputMessage),
    /// A call of a tool of the agent's servers. It has run here.
    McpCall(McpCall),
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(in crate::api) struct OutputMessage {
    pub id: String,
    /// `in_progress`, `completed` or `incomplete`.
    pub status: &'static str,
    pub role: &'static str,
    pub content: Vec<ContentPart>,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OutputContent)]
pub(in crate::api) struct ContentPart {
    pub r#type: &'static str,
    pub text: String,
    #[schema(value_type = Vec<Object>)]
    pub annotations: [(); 0],
    #[schema(value_type = Vec<Object>)]
    pub logprobs: [(); 0],
}

impl ContentPart {
    pub fn text(text: String) -> Self {
        Self {
            r#type: "output_text",
            text,
            annotations: [],
            logprobs: [],
        }
    }
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(in crate::api) struct McpCall {
    pub id: String,
    /// `in_progress`, `completed`, `incomplete` (it waits, or its outcome is not known) or `failed`.
    pub status: &'static str,
    pub approval_request_id: Option<String>,
    /// JSON.
    pub arguments: String,
    pub error: Option<String>,
    pub name: String,
    pub output: Option<String>,
    pub server_label: String,
}

/// A response that was forgotten.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = DeletedResponse)]
#[expect(clippy::struct_field_names, reason = "OpenAI's names")]
pub(in crate::api) struct Deleted {
    id: String,
    object: &'static str,
    deleted: bool,
}

impl Deleted {
    pub fn new(id: String) -> Self {
        Self {
            id,
            object: "response",
            deleted: true,
        }
    }
}
