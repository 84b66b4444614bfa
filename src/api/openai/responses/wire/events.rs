//! The events of a streamed response.

use serde::Serialize;

use super::{ContentPart, OutputItem, ResponseObject};
use crate::api::problem::Problem;

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
    /// The place of the event in its stream.
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
