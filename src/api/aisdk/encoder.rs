//! Encodes the parts of an answer as chunks of a UI message stream.

use std::collections::HashMap;

use axum::response::{Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};

use crate::{
    api::{
        answer_text::Piece,
        events,
        problem::Problem,
        turn::{AnswerEnd, AnswerPart},
    },
    app::tools::skills::outcome::{RequestOutcome, SkillRunStatus},
};
use domain::{
    approval::{Kind, Note},
    error::ErrorCode,
    ids::{ApprovalId, ConversationId, RunId},
    message::{CallStatus, Part, ToolCall, ToolResult},
    run::Usage,
};

/// The state of a stream.
pub(super) struct Encoder {
    conversation: ConversationId,
    run: RunId,
    /// The number of texts so far, which is part of a text's id.
    texts: usize,
    /// Whether a text has begun and not ended.
    is_open: bool,
    /// Whether the calls of the step have results. Then the next piece begins another step.
    is_step_over: bool,
    /// The requests that the user is asked to confirm.
    confirmations: HashMap<ApprovalId, Note>,
}

impl Encoder {
    pub fn new(conversation: ConversationId, run: RunId) -> Self {
        Self {
            conversation,
            run,
            texts: 0,
            is_open: false,
            is_step_over: false,
            confirmations: HashMap::new(),
        }
    }

    /// Answers a request that confirms or declines calls: what came of them, and the events since the last answer. They
    /// belong to `message`, which is the client's.
    pub fn answer_responses(
        mut self,
        message: Option<String>,
        outcomes: Vec<(String, RequestOutcome)>,
        pieces: Vec<Piece>,
    ) -> Response {
        let mut chunks = vec![
            UiChunk::Start {
                message_id: message.unwrap_or_else(|| self.run.to_string()),
                message_metadata: self.metadata(),
            },
            UiChunk::StartStep,
        ];
        for (call, outcome) in outcomes {
            self.is_step_over = true;
            chunks.push(confirmed_output(call, outcome));
        }
        for piece in pieces {
            chunks.extend(self.add(piece));
        }
        chunks.extend(self.end(AnswerEnd {
            reason: "stop",
            usage: Usage::default(),
            finished_at: None,
        }));
        let mut events: Vec<_> = chunks.iter().map(data).collect();
        events.push(Event::default().data("[DONE]"));
        events::answer(stream::iter(events))
    }

    fn metadata(&self) -> UiMetadata {
        UiMetadata {
            conversation_id: self.conversation,
            run_id: self.run,
        }
    }

    pub fn stream(
        mut self,
        parts: impl Stream<Item = Result<AnswerPart, Problem>> + Send + 'static,
    ) -> Response {
        let start = UiChunk::Start {
            message_id: self.run.to_string(),
            message_metadata: self.metadata(),
        };
        let first = [data(&start), data(&UiChunk::StartStep)];
        let rest = parts.flat_map(move |part| {
            let (chunks, is_last) = match part {
                Ok(AnswerPart::Piece(piece)) => (self.add(piece), false),
                Ok(AnswerPart::AnswerEnd(end)) => (self.end(end), true),
                Err(problem) => (self.fail(&problem), true),
            };
            let mut events: Vec<_> = chunks.iter().map(data).collect();
            if is_last {
                events.push(Event::default().data("[DONE]"));
            }
            stream::iter(events)
        });
        events::answer(stream::iter(first).chain(rest))
    }

    fn add(&mut self, piece: Piece) -> Vec<UiChunk> {
        match piece {
            Piece::Text(delta) => {
                let mut chunks = Vec::new();
                if !self.is_open {
                    self.begin_step(&mut chunks);
                    (self.is_open, self.texts) = (true, self.texts + 1);
                    chunks.push(UiChunk::TextStart { id: self.text() });
                }
                let id = self.text();
                chunks.push(UiChunk::TextDelta { id, delta });
                chunks
            }
            Piece::Break => self.close(),
            // Text that was sent stays; the step goes on in a text of its own.
            Piece::Reset => Vec::new(),
            Piece::Call(call) => {
                let mut chunks = self.close();
                self.begin_step(&mut chunks);
                chunks.push(UiChunk::ToolInputAvailable {
                    title: title(&call),
                    tool_call_id: call.call_id,
                    tool_name: call.name,
                    input: call.arguments,
                    provider_executed: true,
                    dynamic: true,
                });
                chunks
            }
            Piece::Result(result) => {
                let mut chunks = self.close();
                // The client looks for the user's answers in its last step only.
                self.is_step_over = self.confirmations.is_empty();
                let asked = result.1.approval.and_then(|id| self.confirmations.get(&id));
                chunks.push(output(result.1, asked));
                chunks
            }
            Piece::Part(part) => {
                let mut chunks = self.close();
                if let Part::Approval(note) = &part
                    && note.kind == Kind::Confirmation
                {
                    self.confirmations.insert(note.id, (**note).clone());
                }
                chunks.extend(data_part(&part));
                chunks
            }
        }
    }

    fn end(&mut self, end: AnswerEnd) -> Vec<UiChunk> {
        let mut chunks = self.close();
        chunks.push(UiChunk::FinishStep);
        chunks.push(UiChunk::Finish {
            finish_reason: end.reason,
            message_metadata: end.usage.into(),
        });
        chunks
    }

    fn fail(&mut self, problem: &Problem) -> Vec<UiChunk> {
        let mut chunks = self.close();
        let text = problem.detail.clone();
        chunks.push(match problem.code {
            ErrorCode::RunCancelled => UiChunk::Abort { reason: text },
            _ => UiChunk::Error { error_text: text },
        });
        chunks
    }

    fn text(&self) -> String {
        format!("text-{}", self.texts)
    }

    fn begin_step(&mut self, chunks: &mut Vec<UiChunk>) {
        if std::mem::take(&mut self.is_step_over) {
            chunks.extend([UiChunk::FinishStep, UiChunk::StartStep]);
        }
    }

    fn close(&mut self) -> Vec<UiChunk> {
        let is_open = std::mem::take(&mut self.is_open);
        let end = is_open.then(|| UiChunk::TextEnd { id: self.text() });
        end.into_iter().collect()
    }
}

fn title(call: &ToolCall) -> Option<String> {
    Some(format!("{} {}", call.server.as_ref()?, call.tool.as_ref()?))
}

/// Encodes what came of a call that the user was asked to confirm.
fn confirmed_output(tool_call_id: String, outcome: RequestOutcome) -> UiChunk {
    let (provider_executed, dynamic) = (true, true);
    match outcome.status {
        SkillRunStatus::Succeeded | SkillRunStatus::AwaitingApproval | SkillRunStatus::Running => {
            UiChunk::ToolOutputAvailable {
                tool_call_id,
                output: text_output(&outcome.text),
                provider_executed,
                dynamic,
                preliminary: outcome.status != SkillRunStatus::Succeeded,
            }
        }
        SkillRunStatus::Refused | SkillRunStatus::Cancelled => {
            UiChunk::ToolOutputDenied { tool_call_id }
        }
        SkillRunStatus::Failed | SkillRunStatus::OutcomeUnknown => UiChunk::ToolOutputError {
            tool_call_id,
            error_text: outcome.text,
            provider_executed,
            dynamic,
        },
    }
}

/// A text as a result of an MCP server.
fn text_output(text: &str) -> Box<RawValue> {
    let output = json!({ "content": [{ "type": "text", "text": text }] });
    to_raw_value(&output).expect("text can be written")
}

/// Encodes the result of a call. `asked` is what the user is asked about it, if they can confirm it.
fn output(result: ToolResult, asked: Option<&Note>) -> UiChunk {
    let tool_call_id = result.call_id;
    let (provider_executed, dynamic) = (true, true);
    match (result.status, result.approval) {
        (CallStatus::AwaitingApproval, Some(approval)) => UiChunk::ToolApprovalRequest {
            approval_id: asked
                .map_or_else(|| approval.to_string(), |note| note.shown_id().to_string()),
            tool_call_id,
            reason: asked.map_or(result.text, |note| note.text.clone()),
            is_automatic: asked.is_none(),
        },
        (CallStatus::Succeeded | CallStatus::AwaitingInput | CallStatus::AwaitingApproval, _) => {
            UiChunk::ToolOutputAvailable {
                tool_call_id,
                output: result.raw.unwrap_or_else(|| text_output(&result.text)),
                provider_executed,
                dynamic,
                preliminary: result.status != CallStatus::Succeeded,
            }
        }
        _ => UiChunk::ToolOutputError {
            tool_call_id,
            error_text: result.text,
            provider_executed,
            dynamic,
        },
    }
}

fn data_part(part: &Part) -> Option<UiChunk> {
    let (chunk, id): (fn(UiData) -> UiChunk, _) = match part {
        Part::Approval(note) => (UiChunk::DataApproval, Some(note.id.to_string())),
        Part::Choices { .. } => (UiChunk::DataChoices, None),
        Part::Prompt(_) => (UiChunk::DataPrompt, None),
        Part::Notice { .. } => (UiChunk::DataNotice, None),
        Part::CallOutcome(outcome) => (UiChunk::DataCallOutcome, Some(outcome.call_id.clone())),
        Part::AgentCallback(_) => (UiChunk::DataAgentCallback, None),
        Part::Text { .. }
        | Part::Attachment(_)
        | Part::ToolCall(_)
        | Part::ToolResult(_)
        | Part::ServerPrompt(_) => {
            return None;
        }
    };
    let data = to_raw_value(part).expect("parts are plain data that can be written");
    Some(chunk(UiData { id, data }))
}

fn data(chunk: &UiChunk) -> Event {
    Event::default()
        .json_data(chunk)
        .expect("chunks are plain data that can be written")
}

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
    /// The call was not made: the user declined it, or it can no longer be confirmed.
    #[serde(rename_all = "camelCase")]
    ToolOutputDenied {
        tool_call_id: String,
    },
    /// The call waits for somebody's consent. `isAutomatic`: not this user's. Otherwise the next request brings the user's
    /// answer, in the part of the tool.
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
