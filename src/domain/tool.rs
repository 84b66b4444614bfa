//! Tools as servers describe them, and the catalog they are kept in.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;

use super::{elicitation::InputRequired, ids::ServerId, prompt::ServerPrompt};

/// One discovered tool. JSON that nobody judges stays raw.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tool {
    /// The name on its server; the key of policy, approvals and audit together with the server.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments, always an object schema.
    pub input_schema: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Box<RawValue>>,
    /// The server's own hints (`readOnlyHint` …): shown to people, never part of a decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Box<RawValue>>,
}

/// The discovered tools of a server: an immutable snapshot.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub server: ServerId,
    pub tools: Vec<Arc<Tool>>,
    /// What it offers as commands.
    pub prompts: Vec<Arc<ServerPrompt>>,
    /// What was left out at discovery and why, in the server's order (`tool "x": …`).
    pub dropped: Vec<String>,
    pub fetched_at: OffsetDateTime,
    /// Changes whenever the content does: a SHA-256 of tools and prompts, in hex.
    pub version: String,
}

/// What a call brought back, as the gate hands it on.
#[derive(Clone, Debug)]
pub struct ToolOutcome {
    /// The server's `CallToolResult` as it came: `content`, `structuredContent`, `isError`.
    pub raw: Box<RawValue>,
    pub is_error: bool,
    /// What the model reads: text of the content, cut at 64 KiB with an explicit mark.
    pub text: String,
    /// The server wants to know something first; then this is no result.
    pub input: Option<Box<InputRequired>>,
    /// What the server asked while the call was open, which was declined.
    pub declined: Vec<String>,
}
