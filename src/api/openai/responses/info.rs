//! What is known of a response before its answer.

use time::OffsetDateTime;
use uuid::Uuid;

use super::wire::{InConversation, ResponseObject, response_id, text};
use crate::domain::{
    ids::{AgentId, ConversationId, RunId},
    response::ResponseSettings,
    run::{Run, RunKind, RunStatus, Usage},
};

/// What is known of a response before its answer.
pub(super) struct AnswerInfo {
    pub run: Run,
    pub model: String,
    pub is_stored: bool,
    pub settings: ResponseSettings,
}

impl AnswerInfo {
    /// For an answer without a run.
    pub fn plain(model: &str, now: OffsetDateTime) -> Self {
        let run = Run {
            id: RunId(Uuid::now_v7()),
            kind: RunKind::Turn,
            conversation_id: ConversationId(Uuid::nil()),
            agent: AgentId::parse(model).expect("an agent that answers has a valid id"),
            status: RunStatus::Running,
            error: None,
            steps: 0,
            usage: Usage::default(),
            created_at: now,
            finished_at: None,
        };
        Self {
            run,
            model: model.to_owned(),
            is_stored: false,
            settings: ResponseSettings::default(),
        }
    }

    /// The response before its answer.
    pub fn response(&self) -> ResponseObject {
        let (run, settings) = (&self.run, &self.settings);
        ResponseObject {
            id: response_id(run.id),
            object: "response",
            created_at: run.created_at.unix_timestamp(),
            status: status(run.status),
            completed_at: None,
            background: settings.background,
            conversation: (!run.conversation_id.0.is_nil()).then_some(InConversation {
                id: run.conversation_id,
            }),
            error: None,
            incomplete_details: None,
            instructions: settings.instructions.clone(),
            max_output_tokens: settings.max_output_tokens,
            metadata: settings.metadata.clone(),
            model: self.model.clone(),
            output: Vec::new(),
            parallel_tool_calls: true,
            previous_response_id: settings.previous.map(response_id),
            reasoning: None,
            service_tier: "default",
            store: self.is_stored,
            temperature: None,
            text: text(settings.format.as_ref()),
            tool_choice: "auto",
            tools: [],
            top_p: None,
            truncation: "disabled",
            usage: None,
            user: None,
        }
    }
}

/// As OpenAI names the state of a run.
fn status(run: RunStatus) -> &'static str {
    match run {
        RunStatus::Queued => "queued",
        // The end of a response comes from its answer.
        _ => "in_progress",
    }
}
