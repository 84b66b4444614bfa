//! Encodes the parts of an answer as events of AG-UI.

use std::collections::{BTreeMap, HashMap};

use axum::response::{Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use time::format_description::well_known::Rfc3339;

use super::wire::{AguiEvent, AguiOutcome, Interrupt};
use crate::{
    api::{
        events,
        problem::Problem,
        turn::{AnswerEnd, AnswerPart, Piece},
    },
    domain::{
        approval::{Note, State},
        error::ErrorCode,
        ids::{ApprovalId, ConversationId, RunId},
        message::{Part, ToolResult},
    },
};

/// The version of the protocol.
const VERSION: &str = "1.0";

/// Where a stream stands.
pub(super) struct Encoder {
    thread: String,
    /// The client's id of the run.
    client_run: String,
    conversation: ConversationId,
    /// Absent when nothing was asked.
    run: Option<RunId>,
    /// Messages so far; the number is part of a message's id.
    messages: usize,
    is_open: bool,
    /// What is known of the requests for consent that the run has made.
    notes: HashMap<ApprovalId, Note>,
    interrupts: Vec<Interrupt>,
}

impl Encoder {
    pub fn new(
        thread: &str,
        client_run: &str,
        (conversation, run): (ConversationId, Option<RunId>),
    ) -> Self {
        Self {
            thread: thread.to_owned(),
            client_run: client_run.to_owned(),
            conversation,
            run,
            messages: 0,
            is_open: false,
            notes: HashMap::new(),
            interrupts: Vec::new(),
        }
    }

    pub fn stream(
        mut self,
        parts: impl Stream<Item = Result<AnswerPart, Problem>> + Send + 'static,
    ) -> Response {
        let first = self.begin().map(|event| sse(&event));
        let rest = parts.flat_map(move |part| {
            let events = match part {
                Ok(AnswerPart::Piece(piece)) => self.add(piece),
                Ok(AnswerPart::AnswerEnd(end)) => self.end(end),
                Err(problem) => self.fail(&problem),
            };
            stream::iter(events.iter().map(sse).collect::<Vec<_>>())
        });
        events::answer(stream::iter(first).chain(rest))
    }

    /// What happened since the last run, and the calls that still wait.
    pub fn tell(mut self, pieces: Vec<Piece>, waiting: Vec<Interrupt>) -> Response {
        let mut told = Vec::from(self.begin());
        for piece in pieces {
            told.extend(self.add(piece));
        }
        told.extend(self.finish(outcome(waiting), None));
        let told: Vec<_> = told.iter().map(sse).collect();
        events::answer(stream::iter(told))
    }

    fn begin(&self) -> [AguiEvent; 2] {
        [
            AguiEvent::RunStarted {
                thread_id: self.thread.clone(),
                run_id: self.client_run.clone(),
                protocol_version: VERSION,
            },
            AguiEvent::Custom {
                name: "run".to_owned(),
                value: to_raw_value(
                    &json!({ "conversation_id": self.conversation, "run_id": self.run }),
                )
                .expect("two ids can be written"),
            },
        ]
    }

    fn add(&mut self, piece: Piece) -> Vec<AguiEvent> {
        match piece {
            Piece::Text(delta) => {
                let mut events = Vec::new();
                if !self.is_open {
                    self.is_open = true;
                    events.push(AguiEvent::TextMessageStart {
                        message_id: self.next_message(),
                        role: "assistant",
                    });
                }
                let message_id = self.message();
                events.push(AguiEvent::TextMessageContent { message_id, delta });
                events
            }
            Piece::Break => self.close(),
            // What was sent stays; the step goes on in a message of its own.
            Piece::Reset => Vec::new(),
            Piece::Call(call) => {
                let mut events = self.close();
                let tool_call_id = call.call_id;
                events.extend([
                    AguiEvent::ToolCallStart {
                        tool_call_id: tool_call_id.clone(),
                        tool_call_name: call.name,
                    },
                    AguiEvent::ToolCallArgs {
                        tool_call_id: tool_call_id.clone(),
                        delta: call.arguments.get().to_owned(),
                    },
                    AguiEvent::ToolCallEnd { tool_call_id },
                ]);
                events
            }
            Piece::Result(result) => {
                let mut events = self.close();
                self.note_interrupt(&result.1);
                events.push(AguiEvent::ToolCallResult {
                    message_id: self.next_message(),
                    tool_call_id: result.1.call_id,
                    content: result.1.text,
                    role: "tool",
                });
                events
            }
            Piece::Part(part) => {
                let mut events = self.close();
                if let Part::Approval(note) = &part {
                    self.notes.insert(note.id, (**note).clone());
                }
                let part =
                    serde_json::to_string(&part).expect("parts are plain data that can be written");
                // A server's own result in it may hold text and numbers that Rust cannot represent.
                let mut part: BTreeMap<String, Box<RawValue>> =
                    serde_json::from_str(&part).expect("they are one JSON object");
                let name = part.remove("type");
                let name = name.and_then(|name| serde_json::from_str(name.get()).ok());
                events.push(AguiEvent::Custom {
                    name: name.unwrap_or_default(),
                    value: to_raw_value(&part).expect("parts are plain data that can be written"),
                });
                events
            }
        }
    }

    fn note_interrupt(&mut self, result: &ToolResult) {
        let Some(approval) = result.approval else {
            return;
        };
        let note = self.notes.get(&approval);
        self.interrupts.push(Interrupt {
            id: approval.to_string(),
            reason: "tool_call",
            message: note.map_or(&result.text, |note| &note.text).clone(),
            tool_call_id: result.call_id.clone(),
            expires_at: note.and_then(|note| note.expires_at.format(&Rfc3339).ok()),
        });
    }

    fn end(&mut self, end: AnswerEnd) -> Vec<AguiEvent> {
        let mut interrupts = std::mem::take(&mut self.interrupts);
        interrupts.retain(|interrupt| {
            let decided =
                |note: &Note| note.state != State::Pending && note.id.to_string() == interrupt.id;
            !self.notes.values().any(decided)
        });
        self.finish(outcome(interrupts), Some(end))
    }

    fn fail(&mut self, problem: &Problem) -> Vec<AguiEvent> {
        if problem.code == ErrorCode::RunCancelled {
            return self.finish(AguiOutcome::Cancelled, None);
        }
        let mut events = self.close();
        events.push(AguiEvent::RunError {
            message: problem.detail.clone(),
            code: problem.code,
        });
        events
    }

    fn finish(&mut self, outcome: AguiOutcome, end: Option<AnswerEnd>) -> Vec<AguiEvent> {
        let mut events = self.close();
        events.push(AguiEvent::RunFinished {
            thread_id: self.thread.clone(),
            run_id: self.client_run.clone(),
            outcome,
            usage: end.map(|end| end.usage.into()).into_iter().collect(),
        });
        events
    }

    fn message(&self) -> String {
        format!("{}-{}", self.client_run, self.messages)
    }

    fn next_message(&mut self) -> String {
        self.messages += 1;
        self.message()
    }

    fn close(&mut self) -> Vec<AguiEvent> {
        let is_open = std::mem::take(&mut self.is_open);
        let end = is_open.then(|| AguiEvent::TextMessageEnd {
            message_id: self.message(),
        });
        end.into_iter().collect()
    }
}

fn outcome(interrupts: Vec<Interrupt>) -> AguiOutcome {
    if interrupts.is_empty() {
        AguiOutcome::Success
    } else {
        AguiOutcome::Interrupt { interrupts }
    }
}

fn sse(event: &AguiEvent) -> Event {
    Event::default()
        .json_data(event)
        .expect("events are plain data that can be written")
}
