//! A message is a list of typed parts; each part has a plain-text rendering, so that a frontend that
//! knows nothing of parts can still be used.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use time::OffsetDateTime;

use super::ids::{ConversationId, MessageId, RunId};

/// One message of a conversation. `seq` counts from 1 within the conversation.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Message {
    pub id: MessageId,
    pub conversation_id: ConversationId,
    pub seq: i64,
    pub role: Role,
    pub parts: Vec<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
    /// Results of the assistant's tool calls.
    Tool,
    /// The program itself: greetings, answers to commands, notices. Not shown to the model.
    System,
}

#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text {
        text: String,
    },
    /// The model wants a tool to be called.
    ToolCall(ToolCall),
    /// What became of a call.
    ToolResult(ToolResult),
    /// The program tells the person something: `code` is stable, `text` is for reading.
    Notice {
        code: String,
        text: String,
    },
}

/// A call as the model asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ToolCall {
    /// Unique within the conversation.
    pub call_id: String,
    /// The name in the model's request (`bank__get_balances`).
    pub name: String,
    /// The server and tool behind the name; absent when the model made the name up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The arguments, or the text that could not be parsed as JSON.
    pub arguments: Value,
}

#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ToolResult {
    pub call_id: String,
    pub status: CallStatus,
    /// What the model reads.
    pub text: String,
    /// The server's own result (`content`, `structuredContent`, `isError`), when there was one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "raw_within_a_part")]
    #[schema(value_type = Option<Object>)]
    pub raw: Option<Box<RawValue>>,
}

/// Raw JSON cannot be read as such inside a tagged enum, since its parts are read before the tag is known.
fn raw_within_a_part<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    value.map(|value| serde_json::value::to_raw_value(&value).map_err(serde::de::Error::custom)).transpose()
}

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    Succeeded,
    /// The tool ran and said that it failed, or the server refused the request.
    Failed,
    /// The gate refused; nothing was sent.
    Denied,
    /// Sent, and no answer came. Never repeated by the program.
    OutcomeUnknown,
    /// The person cancelled the run before it was sent.
    Cancelled,
}

impl Part {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// The part as a frontend without typed parts shows it.
    pub fn plain(&self) -> String {
        match self {
            Self::Text { text } | Self::Notice { text, .. } => text.clone(),
            Self::ToolCall(call) => format!("[{} …]", call.name),
            Self::ToolResult(result) => result.text.clone(),
        }
    }
}

impl Message {
    /// The text of the message for people: what was said, without tool traffic.
    pub fn plain(&self) -> String {
        let said = self.parts.iter().filter(|part| matches!(part, Part::Text { .. } | Part::Notice { .. }));
        said.map(Part::plain).collect::<Vec<_>>().join("\n")
    }
}
