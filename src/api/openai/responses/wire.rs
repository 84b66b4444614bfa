//! The JSON of responses, their items and the events of their streams.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{openai::request::write_format, problem::Problem};
use domain::{
    answer_format::AnswerFormat,
    ids::{AttachmentId, ConversationId, MessageId, RunId},
    message::{Message, Part, Role},
    run::Usage,
};

/// The id of a run as a response.
pub(super) fn response_id(run: RunId) -> String {
    format!("resp_{}", run.0.simple())
}

/// The run of the response with an id.
pub(super) fn run_id(id: &str) -> Option<RunId> {
    Uuid::try_parse(id.strip_prefix("resp_")?).ok().map(RunId)
}

/// The id of an item of a run's answer.
pub(super) fn item_id(kind: &str, run: RunId, at: usize) -> String {
    format!("{kind}_{}_{at}", run.0.simple())
}

/// The run of the output message with an id.
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
    json!({ "format": write_format(format) })
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

/// An event of a response's stream. `sequence_number` counts from 0.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "type")]
pub(in crate::api) enum ResponseEvent {
    #[serde(rename = "response.created")]
    Created(WholeEvent),
    #[serde(rename = "response.in_progress")]
    InProgress(WholeEvent),
    #[serde(rename = "response.completed")]
    Completed(WholeEvent),
    #[serde(rename = "response.incomplete")]
    Incomplete(WholeEvent),
    #[serde(rename = "response.failed")]
    Failed(WholeEvent),
    #[serde(rename = "response.output_item.added")]
    ItemAdded(ItemEvent),
    #[serde(rename = "response.output_item.done")]
    ItemDone(ItemEvent),
    #[serde(rename = "response.content_part.added")]
    PartAdded(PartEvent),
    #[serde(rename = "response.content_part.done")]
    PartDone(PartEvent),
    #[serde(rename = "response.output_text.delta")]
    TextDelta(DeltaEvent),
    #[serde(rename = "response.output_text.done")]
    TextDone(TextEvent),
    #[serde(rename = "response.mcp_call.in_progress")]
    CallStarted(CallEvent),
    #[serde(rename = "response.mcp_call_arguments.delta")]
    ArgumentsDelta(ArgumentsDeltaEvent),
    #[serde(rename = "response.mcp_call_arguments.done")]
    ArgumentsDone(ArgumentsEvent),
    #[serde(rename = "response.mcp_call.completed")]
    CallCompleted(CallEvent),
    #[serde(rename = "response.mcp_call.failed")]
    CallFailed(CallEvent),
    /// The stream has ended, and the response has not.
    #[serde(rename = "error")]
    Error(ErrorEvent),
}

impl ResponseEvent {
    /// The number of the event in its stream.
    pub fn sequence_number(&self) -> u64 {
        match self {
            Self::Created(event)
            | Self::InProgress(event)
            | Self::Completed(event)
            | Self::Incomplete(event)
            | Self::Failed(event) => event.sequence_number,
            Self::ItemAdded(event) | Self::ItemDone(event) => event.sequence_number,
            Self::PartAdded(event) | Self::PartDone(event) => event.sequence_number,
            Self::TextDelta(event) => event.sequence_number,
            Self::TextDone(event) => event.sequence_number,
            Self::CallStarted(event) | Self::CallCompleted(event) | Self::CallFailed(event) => {
                event.sequence_number
            }
            Self::ArgumentsDelta(event) => event.sequence_number,
            Self::ArgumentsDone(event) => event.sequence_number,
            Self::Error(event) => event.sequence_number,
        }
    }

    /// The SSE `event:` name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Created(_) => "response.created",
            Self::InProgress(_) => "response.in_progress",
            Self::Completed(_) => "response.completed",
            Self::Incomplete(_) => "response.incomplete",
            Self::Failed(_) => "response.failed",
            Self::ItemAdded(_) => "response.output_item.added",
            Self::ItemDone(_) => "response.output_item.done",
            Self::PartAdded(_) => "response.content_part.added",
            Self::PartDone(_) => "response.content_part.done",
            Self::TextDelta(_) => "response.output_text.delta",
            Self::TextDone(_) => "response.output_text.done",
            Self::CallStarted(_) => "response.mcp_call.in_progress",
            Self::ArgumentsDelta(_) => "response.mcp_call_arguments.delta",
            Self::ArgumentsDone(_) => "response.mcp_call_arguments.done",
            Self::CallCompleted(_) => "response.mcp_call.completed",
            Self::CallFailed(_) => "response.mcp_call.failed",
            Self::Error(_) => "error",
        }
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseWholeEvent)]
pub(in crate::api) struct WholeEvent {
    pub sequence_number: u64,
    pub response: ResponseObject,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseItemEvent)]
pub(in crate::api) struct ItemEvent {
    pub sequence_number: u64,
    pub output_index: usize,
    pub item: OutputItem,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponsePartEvent)]
pub(in crate::api) struct PartEvent {
    pub sequence_number: u64,
    pub item_id: String,
    pub output_index: usize,
    pub content_index: usize,
    pub part: ContentPart,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseTextDeltaEvent)]
pub(in crate::api) struct DeltaEvent {
    pub sequence_number: u64,
    pub item_id: String,
    pub output_index: usize,
    pub content_index: usize,
    pub delta: String,
    #[schema(value_type = Vec<Object>)]
    pub logprobs: [(); 0],
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseTextEvent)]
pub(in crate::api) struct TextEvent {
    pub sequence_number: u64,
    pub item_id: String,
    pub output_index: usize,
    pub content_index: usize,
    pub text: String,
    #[schema(value_type = Vec<Object>)]
    pub logprobs: [(); 0],
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseCallEvent)]
pub(in crate::api) struct CallEvent {
    pub sequence_number: u64,
    pub item_id: String,
    pub output_index: usize,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseArgumentsDeltaEvent)]
pub(in crate::api) struct ArgumentsDeltaEvent {
    pub sequence_number: u64,
    pub item_id: String,
    pub output_index: usize,
    pub delta: String,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseArgumentsEvent)]
pub(in crate::api) struct ArgumentsEvent {
    pub sequence_number: u64,
    pub item_id: String,
    pub output_index: usize,
    pub arguments: String,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseErrorEvent)]
pub(in crate::api) struct ErrorEvent {
    pub sequence_number: u64,
    pub code: &'static str,
    pub message: String,
    pub param: Option<String>,
}

impl ErrorEvent {
    pub fn new(sequence_number: u64, problem: &Problem) -> Self {
        Self {
            sequence_number,
            code: problem.code.as_str(),
            message: problem.detail.clone(),
            param: problem.field.clone(),
        }
    }
}

/// The id of a message as an item.
fn message_item_id(message: MessageId) -> String {
    format!("msg_{}", message.0.simple())
}

/// The message of the item with an id.
pub(super) fn message_id(id: &str) -> Option<MessageId> {
    let id = id.strip_prefix("msg_")?;
    uuid::Uuid::try_parse(id).ok().map(MessageId)
}

/// A page of items.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseInput)]
pub(in crate::api) struct ItemList {
    object: &'static str,
    data: Vec<InputItem>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl ItemList {
    /// A page of so many items. A message more was read when there are more.
    pub fn of_page(mut messages: Vec<Message>, limit: i64) -> Self {
        let limit = usize::try_from(limit).unwrap_or_default();
        let has_more = messages.len() > limit;
        messages.truncate(limit);
        let id = |message: Option<&Message>| message.map(|message| message_item_id(message.id));
        Self {
            object: "list",
            data: messages.iter().map(InputItem::from_message).collect(),
            first_id: id(messages.first()),
            last_id: id(messages.last()),
            has_more,
        }
    }
}

/// A message that a response answers, or that was said before.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseInputItem)]
pub(in crate::api) struct InputItem {
    id: String,
    r#type: &'static str,
    /// `user` or `assistant`.
    role: &'static str,
    status: &'static str,
    content: Vec<InputContent>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum InputContent {
    InputText {
        text: String,
    },
    OutputText {
        text: String,
        #[schema(value_type = Vec<Object>)]
        annotations: [(); 0],
    },
    /// An attachment of the conversation.
    InputImage {
        file_id: AttachmentId,
        filename: String,
    },
    /// A text file, which is an attachment of the conversation.
    InputFile {
        file_id: AttachmentId,
        filename: String,
    },
}

impl InputItem {
    pub fn from_message(message: &Message) -> Self {
        let is_answer = message.role == Role::Assistant;
        let content = message.parts.iter().filter_map(|part| match part {
            Part::Text { text, .. } if is_answer => Some(InputContent::OutputText {
                text: text.clone(),
                annotations: [],
            }),
            Part::Text { text, .. } => Some(InputContent::InputText { text: text.clone() }),
            Part::Attachment(file) => {
                let (file_id, filename) = (file.id, file.name.clone());
                Some(if file.is_image() {
                    InputContent::InputImage { file_id, filename }
                } else {
                    InputContent::InputFile { file_id, filename }
                })
            }
            _ => None,
        });
        Self {
            id: message_item_id(message.id),
            r#type: "message",
            role: if is_answer { "assistant" } else { "user" },
            status: "completed",
            content: content.collect(),
        }
    }
}
