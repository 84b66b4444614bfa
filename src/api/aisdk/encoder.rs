//! Encodes the parts of an answer as chunks of a UI message stream.

use axum::response::{Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{json, value::to_raw_value};

use super::wire::{UiChunk, UiData, UiMetadata};
use crate::domain::error::ErrorCode;
use crate::{
    api::{
        events,
        problem::Problem,
        turn::{AnswerEnd, AnswerPart, Piece},
    },
    domain::{
        ids::{ConversationId, RunId},
        message::{CallStatus, Part, ToolCall, ToolResult},
    },
};

/// Where a stream stands.
pub(super) struct Encoder {
    conversation: ConversationId,
    run: RunId,
    /// Texts so far; the number is a text's id.
    texts: usize,
    is_open: bool,
    /// The calls of the step have results, so what follows is another step.
    is_step_over: bool,
}

impl Encoder {
    pub fn new(conversation: ConversationId, run: RunId) -> Self {
        Self {
            conversation,
            run,
            texts: 0,
            is_open: false,
            is_step_over: false,
        }
    }

    pub fn stream(
        mut self,
        parts: impl Stream<Item = Result<AnswerPart, Problem>> + Send + 'static,
    ) -> Response {
        let start = UiChunk::Start {
            message_id: self.run.to_string(),
            message_metadata: UiMetadata {
                conversation_id: self.conversation,
                run_id: self.run,
            },
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
            // What was sent stays; the step goes on in a text of its own.
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
                self.is_step_over = true;
                chunks.push(output(result.1));
                chunks
            }
            Piece::Part(part) => {
                let mut chunks = self.close();
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

/// What came of a call.
fn output(result: ToolResult) -> UiChunk {
    let tool_call_id = result.call_id;
    let (provider_executed, dynamic) = (true, true);
    match (result.status, result.approval) {
        (CallStatus::AwaitingApproval, Some(approval)) => UiChunk::ToolApprovalRequest {
            approval_id: approval.to_string(),
            tool_call_id,
            reason: result.text,
            is_automatic: true,
        },
        (CallStatus::Succeeded | CallStatus::AwaitingInput | CallStatus::AwaitingApproval, _) => {
            let text = json!({ "content": [{ "type": "text", "text": result.text }] });
            UiChunk::ToolOutputAvailable {
                tool_call_id,
                output: result
                    .raw
                    .unwrap_or_else(|| to_raw_value(&text).expect("text can be written")),
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
