//! The chunks of a UI message stream, as the AI SDK names them.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::domain::{
    ids::{ConversationId, RunId},
    run::Usage,
};

/// A chunk of a stream. The stream ends with `[DONE]`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(in crate::api) enum UiChunk {
    #[serde(rename_all = "camelCase")]
    Start {
        message_id: String,
        message_metadata: UiMetadata,
    },
    StartStep,
    #[serde(rename_all = "camelCase")]
    TextStart {
        id: String,
    },
    #[serde(rename_all = "camelCase")]
    TextDelta {
        id: String,
        delta: String,
    },
    #[serde(rename_all = "camelCase")]
    TextEnd {
        id: String,
    },
    /// A tool of the agent's servers is called. It runs on the server.
    #[serde(rename_all = "camelCase")]
    ToolInputAvailable {
        tool_call_id: String,
        tool_name: String,
        #[schema(value_type = Object)]
        input: Box<RawValue>,
        provider_executed: bool,
        dynamic: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<String>,
    },
    #[serde(rename_all = "camelCase")]
    ToolOutputAvailable {
        tool_call_id: String,
        /// As an MCP server answers: `content`, perhaps `structuredContent`.
        #[schema(value_type = Object)]
        output: Box<RawValue>,
        provider_executed: bool,
        dynamic: bool,
        /// The server asks the user something first.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        preliminary: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolOutputError {
        tool_call_id: String,
        error_text: String,
        provider_executed: bool,
        dynamic: bool,
    },
    /// The call waits for somebody's consent. `isAutomatic`: not this user's.
    #[serde(rename_all = "camelCase")]
    ToolApprovalRequest {
        approval_id: String,
        tool_call_id: String,
        reason: String,
        is_automatic: bool,
    },
    #[serde(rename = "data-approval")]
    DataApproval(UiData),
    #[serde(rename = "data-choices")]
    DataChoices(UiData),
    #[serde(rename = "data-prompt")]
    DataPrompt(UiData),
    #[serde(rename = "data-notice")]
    DataNotice(UiData),
    #[serde(rename = "data-call-outcome")]
    DataCallOutcome(UiData),
    #[serde(rename = "data-agent-callback")]
    DataAgentCallback(UiData),
    FinishStep,
    #[serde(rename_all = "camelCase")]
    Finish {
        /// `stop` or `length`.
        finish_reason: &'static str,
        message_metadata: UiUsage,
    },
    /// The run was stopped.
    #[serde(rename_all = "camelCase")]
    Abort {
        reason: String,
    },
    #[serde(rename_all = "camelCase")]
    Error {
        error_text: String,
    },
}

/// A part of a message that is more than text, as over REST. Its text is in the text.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(in crate::api) struct UiData {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[schema(value_type = Object)]
    pub data: Box<RawValue>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct UiMetadata {
    pub conversation_id: ConversationId,
    pub run_id: RunId,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(in crate::api) struct UiUsage {
    usage: UiTokens,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the AI SDK's names")]
struct UiTokens {
    input_tokens: i64,
    cached_input_tokens: i64,
    output_tokens: i64,
    total_tokens: i64,
}

impl From<Usage> for UiUsage {
    fn from(usage: Usage) -> Self {
        Self {
            usage: UiTokens {
                input_tokens: usage.input_tokens,
                cached_input_tokens: usage.cached_input_tokens,
                output_tokens: usage.output_tokens,
                total_tokens: usage.input_tokens + usage.output_tokens,
            },
        }
    }
}
