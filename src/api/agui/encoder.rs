//! Encodes the parts of an answer as events of AG-UI 1.0.

use std::collections::{BTreeMap, HashMap};

use axum::response::{Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use time::format_description::well_known::Rfc3339;

use crate::api::{
    answer_text::Piece,
    events,
    problem::Problem,
    turn::{AnswerEnd, AnswerPart},
};
use domain::{
    approval::{Approval, Kind, Note, State},
    error::ErrorCode,
    ids::{ApprovalId, ConversationId, RunId},
    message::{Part, ToolResult},
    run::Usage,
};

/// The version of the protocol.
const VERSION: &str = "1.0";

/// The state of a stream: the messages and interrupts so far.
pub(super) struct Encoder {
    thread: String,
    /// The client's id of the run.
    client_run: String,
    conversation: ConversationId,
    /// Absent when the request only resumes.
    run: Option<RunId>,
    /// The number of messages so far, which is part of a message's id.
    messages: usize,
    /// Whether a text message has begun and not ended.
    is_open: bool,
    /// The approval requests that the run has made.
    notes: HashMap<ApprovalId, Note>,
    interrupts: Vec<Interrupt>,
}

impl Encoder {
    pub fn new(
        thread: &str,
        client_run: &str,
        conversation: ConversationId,
        run: Option<RunId>,
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

    /// Answers a request that only resumes: the events since the last run, and the calls that still wait.
    pub fn answer_resume(mut self, pieces: Vec<Piece>, waiting: Vec<Interrupt>) -> Response {
        let mut events = Vec::from(self.begin());
        for piece in pieces {
            events.extend(self.add(piece));
        }
        events.extend(self.finish(outcome(waiting), None));
        let events: Vec<_> = events.iter().map(sse).collect();
        events::answer(stream::iter(events))
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
            // Text that was sent stays; the step goes on in a message of its own.
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
                // Raw, because a server's result in the part may hold text and numbers that Rust cannot represent.
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
        let kind = note.map(|note| note.kind).unwrap_or_default();
        self.interrupts.push(Interrupt {
            id: note.map_or_else(|| approval.to_string(), |note| note.shown_id().to_string()),
            reason: Interrupt::reason(kind),
            message: note.map_or(&result.text, |note| &note.text).clone(),
            tool_call_id: result.call_id.clone(),
            response_schema: Interrupt::response_schema(kind),
            expires_at: note.and_then(|note| note.expires_at.format(&Rfc3339).ok()),
        });
    }

    fn end(&mut self, end: AnswerEnd) -> Vec<AguiEvent> {
        let mut interrupts = std::mem::take(&mut self.interrupts);
        interrupts.retain(|interrupt| {
            let decided = |note: &Note| {
                note.state != State::Pending && note.shown_id().to_string() == interrupt.id
            };
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
    /// The id of the request for consent, a dot, and the hash of the arguments that the message shows.
    pub id: String,
    /// `tool_call`: others decide. `confirmation`: the user is asked to confirm the call.
    pub reason: &'static str,
    pub message: String,
    pub tool_call_id: String,
    /// What the answer to a confirmation looks like.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub response_schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

impl Interrupt {
    pub fn new(approval: &Approval, message: String) -> Self {
        let kind = approval.rule.kind();
        Self {
            id: approval.shown_id().to_string(),
            reason: Self::reason(kind),
            message,
            tool_call_id: approval.call_id.clone(),
            response_schema: Self::response_schema(kind),
            expires_at: approval.expires_at.format(&Rfc3339).ok(),
        }
    }

    fn reason(kind: Kind) -> &'static str {
        match kind {
            Kind::Approval => "tool_call",
            Kind::Confirmation => "confirmation",
        }
    }

    fn response_schema(kind: Kind) -> Option<Value> {
        (kind == Kind::Confirmation).then(|| {
            json!({
                "type": "object",
                "properties": { "approved": { "type": "boolean" } },
                "required": ["approved"],
            })
        })
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
