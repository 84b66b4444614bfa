//! The events of AG-UI 1.0.

use serde::Serialize;
use serde_json::value::RawValue;
use time::format_description::well_known::Rfc3339;

use crate::domain::error::ErrorCode;
use crate::domain::{approval::Approval, run::Usage};

/// An event of a run's stream.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
pub(in crate::api) enum AguiEvent {
    #[serde(rename_all = "camelCase")]
    RunStarted {
        thread_id: String,
        run_id: String,
        protocol_version: &'static str,
    },
    #[serde(rename_all = "camelCase")]
    TextMessageStart {
        message_id: String,
        role: &'static str,
    },
    #[serde(rename_all = "camelCase")]
    TextMessageContent { message_id: String, delta: String },
    #[serde(rename_all = "camelCase")]
    TextMessageEnd { message_id: String },
    /// A tool of the agent's servers is called. It runs on the server.
    #[serde(rename_all = "camelCase")]
    ToolCallStart {
        tool_call_id: String,
        tool_call_name: String,
    },
    #[serde(rename_all = "camelCase")]
    ToolCallArgs {
        tool_call_id: String,
        /// JSON.
        delta: String,
    },
    #[serde(rename_all = "camelCase")]
    ToolCallEnd { tool_call_id: String },
    #[serde(rename_all = "camelCase")]
    ToolCallResult {
        message_id: String,
        tool_call_id: String,
        content: String,
        role: &'static str,
    },
    /// `run`: the ids of the conversation and the run here. The others are parts of messages as over REST: `approval`,
    /// `choices`, `prompt`, `notice`, `call_outcome`, `agent_callback`. Their text is in the text.
    #[serde(rename_all = "camelCase")]
    Custom {
        name: String,
        #[schema(value_type = Object)]
        value: Box<RawValue>,
    },
    #[serde(rename_all = "camelCase")]
    RunFinished {
        thread_id: String,
        run_id: String,
        outcome: AguiOutcome,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        usage: Vec<AguiTokens>,
    },
    #[serde(rename_all = "camelCase")]
    RunError {
        message: String,
        #[schema(value_type = String)]
        code: ErrorCode,
    },
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(in crate::api) enum AguiOutcome {
    Success,
    /// Calls wait for consent.
    Interrupt {
        interrupts: Vec<Interrupt>,
    },
    Cancelled,
}

/// A call that waits for somebody's consent.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct Interrupt {
    /// The id of the request for consent.
    pub id: String,
    /// `tool_call`
    pub reason: &'static str,
    pub message: String,
    pub tool_call_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

impl Interrupt {
    pub fn new(approval: &Approval, message: String) -> Self {
        Self {
            id: approval.id.to_string(),
            reason: "tool_call",
            message,
            tool_call_id: approval.call_id.clone(),
            expires_at: approval.expires_at.format(&Rfc3339).ok(),
        }
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the names of AG-UI")]
pub(in crate::api) struct AguiTokens {
    input_tokens: i64,
    output_tokens: i64,
    total_tokens: i64,
}

impl From<Usage> for AguiTokens {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            total_tokens: usage.input_tokens + usage.output_tokens,
        }
    }
}
