//! Encodes the parts of an answer as a response, and as the events of its stream.

use std::collections::HashMap;

use axum::response::{Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use time::OffsetDateTime;

use super::{
    info::AnswerInfo,
    wire::{
        ArgumentsDeltaEvent, ArgumentsEvent, CallEvent, ContentPart, DeltaEvent, ErrorEvent,
        Incomplete, ItemEvent, McpCall, OutputItem, OutputMessage, PartEvent, ResponseError,
        ResponseEvent, ResponseObject, TextEvent, WholeEvent, item_id,
    },
};
use crate::{
    api::{
        events,
        problem::Problem,
        turn::{AnswerEnd, AnswerPart, Piece},
    },
    domain::message::{CallStatus, ToolCall, ToolResult},
};

/// The response so far.
pub(in crate::api) struct Encoder {
    info: AnswerInfo,
    items: Vec<OutputItem>,
    /// The last item is a message whose text goes on.
    is_open: bool,
    /// The step starts again; its text goes on in the open message.
    is_reset: bool,
    /// Places of the calls whose results have not come.
    calls: HashMap<String, usize>,
    sequence: u64,
}

impl Encoder {
    pub(super) fn new(info: AnswerInfo) -> Self {
        Self {
            info,
            items: Vec::new(),
            is_open: false,
            is_reset: false,
            calls: HashMap::new(),
            sequence: 0,
        }
    }

    /// The events of an answer.
    pub(super) fn stream(
        mut self,
        parts: impl Stream<Item = Result<AnswerPart, Problem>> + Send + 'static,
    ) -> Response {
        let begun = WholeEvent {
            sequence_number: self.next(),
            response: self.begun(),
        };
        let first = sse(&ResponseEvent::Created(begun));
        let begun = WholeEvent {
            sequence_number: self.next(),
            response: self.begun(),
        };
        let second = sse(&ResponseEvent::InProgress(begun));
        let rest = parts.flat_map(move |part| {
            let events = match part {
                Ok(AnswerPart::Piece(piece)) => self.add(piece),
                Ok(AnswerPart::AnswerEnd(end)) => self.last_events(Ok(end)),
                Err(problem) => self.last_events(Err(&problem)),
            };
            stream::iter(events.iter().map(sse).collect::<Vec<_>>())
        });
        events::answer(stream::iter([first, second]).chain(rest))
    }

    /// The response of an answer that has ended, well or not.
    pub(super) async fn read(
        mut self,
        parts: impl Stream<Item = Result<AnswerPart, Problem>>,
    ) -> Result<ResponseObject, Problem> {
        let mut parts = std::pin::pin!(parts);
        while let Some(part) = parts.next().await {
            match part {
                Ok(AnswerPart::Piece(piece)) => _ = self.add(piece),
                Ok(AnswerPart::AnswerEnd(end)) => return Ok(self.end(Ok(end))),
                Err(problem) if is_end(&problem) => return Ok(self.end(Err(&problem))),
                Err(problem) => return Err(problem),
            }
        }
        Ok(self.begun())
    }

    /// The response before its answer.
    pub(super) fn begun(&self) -> ResponseObject {
        self.info.response()
    }

    /// Adds a piece; the events that tell of it.
    pub(super) fn add(&mut self, piece: Piece) -> Vec<ResponseEvent> {
        match piece {
            Piece::Text(text) => self.add_text(text),
            Piece::Break if std::mem::take(&mut self.is_reset) => self.add_text("\n\n".to_owned()),
            Piece::Break => self.close(),
            Piece::Reset => {
                self.is_reset = self.is_open;
                Vec::new()
            }
            Piece::Call(call) => {
                let mut events = self.close();
                events.extend(self.add_call(&call));
                events
            }
            Piece::Result(result) => self.add_result(&result.0, &result.1),
            Piece::Part(_) => Vec::new(),
        }
    }

    /// The response as it has ended.
    pub(super) fn end(&mut self, end: Result<AnswerEnd, &Problem>) -> ResponseObject {
        let mut response = self.begun();
        if self.is_open {
            self.finish_message(if end.is_ok_and(|end| end.reason == "stop") {
                "completed"
            } else {
                "incomplete"
            });
        }
        response.output = std::mem::take(&mut self.items);
        match end {
            Ok(end) => {
                response.usage = Some(end.usage.into());
                response.status = "completed";
                response.completed_at = end.finished_at.map(OffsetDateTime::unix_timestamp);
                if end.reason == "length" {
                    response.status = "incomplete";
                    let reason = "max_output_tokens";
                    response.incomplete_details = Some(Incomplete { reason });
                }
            }
            Err(problem) => {
                response.status = match problem.code {
                    "run_cancelled" => "cancelled",
                    _ => "failed",
                };
                let message = problem.detail.clone();
                let code = "server_error";
                response.error =
                    (response.status == "failed").then_some(ResponseError { code, message });
            }
        }
        response
    }

    fn last_events(&mut self, end: Result<AnswerEnd, &Problem>) -> Vec<ResponseEvent> {
        if let Err(problem) = end
            && !is_end(problem)
        {
            let sequence_number = self.next();
            return vec![ResponseEvent::Error(ErrorEvent::new(
                sequence_number,
                problem,
            ))];
        }
        let is_whole = end.as_ref().is_ok_and(|end| end.reason == "stop");
        let mut events = if is_whole { self.close() } else { Vec::new() };
        let response = self.end(end);
        let event = match response.status {
            "completed" => ResponseEvent::Completed,
            "incomplete" => ResponseEvent::Incomplete,
            _ => ResponseEvent::Failed,
        };
        events.push(event(WholeEvent {
            sequence_number: self.next(),
            response,
        }));
        events
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    fn add_text(&mut self, text: String) -> Vec<ResponseEvent> {
        let mut events = Vec::new();
        if !self.is_open {
            events = self.open();
        }
        let output_index = self.items.len() - 1;
        let Some(OutputItem::Message(message)) = self.items.last_mut() else {
            return events;
        };
        if let Some(part) = message.content.first_mut() {
            part.text.push_str(&text);
        }
        let item_id = message.id.clone();
        events.push(ResponseEvent::TextDelta(DeltaEvent {
            sequence_number: self.next(),
            item_id,
            output_index,
            content_index: 0,
            delta: text,
            logprobs: [],
        }));
        events
    }

    /// Begins a message.
    fn open(&mut self) -> Vec<ResponseEvent> {
        let output_index = self.items.len();
        let mut message = OutputMessage {
            id: item_id("msg", self.info.run.id, output_index),
            status: "in_progress",
            role: "assistant",
            content: Vec::new(),
        };
        let added = ResponseEvent::ItemAdded(ItemEvent {
            sequence_number: self.next(),
            output_index,
            item: OutputItem::Message(message.clone()),
        });
        let part = ContentPart::text(String::new());
        let part_added = ResponseEvent::PartAdded(PartEvent {
            sequence_number: self.next(),
            item_id: message.id.clone(),
            output_index,
            content_index: 0,
            part: part.clone(),
        });
        message.content.push(part);
        self.items.push(OutputItem::Message(message));
        self.is_open = true;
        vec![added, part_added]
    }

    /// Ends the open message, if one is.
    fn close(&mut self) -> Vec<ResponseEvent> {
        if !self.is_open {
            return Vec::new();
        }
        let Some(message) = self.finish_message("completed") else {
            return Vec::new();
        };
        let output_index = self.items.len() - 1;
        let (content_index, item_id) = (0, message.id.clone());
        let part = message.content[content_index].clone();
        vec![
            ResponseEvent::TextDone(TextEvent {
                sequence_number: self.next(),
                item_id: item_id.clone(),
                output_index,
                content_index,
                text: part.text.clone(),
                logprobs: [],
            }),
            ResponseEvent::PartDone(PartEvent {
                sequence_number: self.next(),
                item_id,
                output_index,
                content_index,
                part,
            }),
            ResponseEvent::ItemDone(ItemEvent {
                sequence_number: self.next(),
                output_index,
                item: OutputItem::Message(message),
            }),
        ]
    }

    fn finish_message(&mut self, status: &'static str) -> Option<OutputMessage> {
        (self.is_open, self.is_reset) = (false, false);
        match self.items.last_mut() {
            Some(OutputItem::Message(message)) => {
                message.status = status;
                Some(message.clone())
            }
            _ => None,
        }
    }

    fn add_call(&mut self, call: &ToolCall) -> Vec<ResponseEvent> {
        let output_index = self.items.len();
        self.calls.insert(call.call_id.clone(), output_index);
        let mut item = McpCall {
            id: item_id("mcp", self.info.run.id, output_index),
            status: "in_progress",
            approval_request_id: None,
            arguments: String::new(),
            error: None,
            name: call.tool.as_ref().unwrap_or(&call.name).clone(),
            output: None,
            server_label: call.server.clone().unwrap_or_default(),
        };
        let (item_id, arguments) = (item.id.clone(), call.arguments.to_string());
        let events = vec![
            ResponseEvent::ItemAdded(ItemEvent {
                sequence_number: self.next(),
                output_index,
                item: OutputItem::McpCall(item.clone()),
            }),
            ResponseEvent::CallStarted(CallEvent {
                sequence_number: self.next(),
                item_id: item_id.clone(),
                output_index,
            }),
            ResponseEvent::ArgumentsDelta(ArgumentsDeltaEvent {
                sequence_number: self.next(),
                item_id: item_id.clone(),
                output_index,
                delta: arguments.clone(),
            }),
            ResponseEvent::ArgumentsDone(ArgumentsEvent {
                sequence_number: self.next(),
                item_id,
                output_index,
                arguments: arguments.clone(),
            }),
        ];
        item.arguments = arguments;
        self.items.push(OutputItem::McpCall(item));
        events
    }

    fn add_result(&mut self, call: &ToolCall, result: &ToolResult) -> Vec<ResponseEvent> {
        let Some(output_index) = self.calls.remove(&call.call_id) else {
            return Vec::new();
        };
        let Some(OutputItem::McpCall(item)) = self.items.get_mut(output_index) else {
            return Vec::new();
        };
        let text = Some(result.text.clone());
        (item.status, item.output, item.error) = match result.status {
            CallStatus::Succeeded => ("completed", text, None),
            CallStatus::AwaitingApproval
            | CallStatus::AwaitingInput
            | CallStatus::OutcomeUnknown => ("incomplete", text, None),
            CallStatus::Failed | CallStatus::Denied | CallStatus::Cancelled => {
                ("failed", None, text)
            }
        };
        let item = item.clone();
        let ended = match item.status {
            "failed" => ResponseEvent::CallFailed,
            _ => ResponseEvent::CallCompleted,
        };
        vec![
            ended(CallEvent {
                sequence_number: self.next(),
                item_id: item.id.clone(),
                output_index,
            }),
            ResponseEvent::ItemDone(ItemEvent {
                sequence_number: self.next(),
                output_index,
                item: OutputItem::McpCall(item),
            }),
        ]
    }
}

/// Whether a problem is how the answer has ended, and not of the stream alone.
fn is_end(problem: &Problem) -> bool {
    matches!(problem.code, "run_failed" | "run_cancelled")
}

fn sse(event: &ResponseEvent) -> Event {
    Event::default()
        .event(event.name())
        .json_data(event)
        .expect("events are plain data that can be written")
}
