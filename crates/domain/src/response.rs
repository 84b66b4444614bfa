//! A response of OpenAI's Responses API: an answer that can be read again and continued by its id, which is its run's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    answer_format::AnswerFormat,
    ids::{AgentId, ConversationId, RunId},
    run::Run,
};

/// What the request of a response said that is repeated with the response, or changes how it is read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponseSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<AnswerFormat>,
}

/// A response that was stored.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    pub agent: AgentId,
    pub conversation: ConversationId,
    pub run: Run,
    /// The answer begins after this event of the conversation.
    pub first_event: i64,
    pub settings: ResponseSettings,
}
