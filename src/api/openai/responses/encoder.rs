//! Encodes the parts of an answer as a response, and as the events of its stream.

use std::collections::HashMap;

use axum::response::{Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use time::OffsetDateTime;
use uuid::Uuid;

use super::wire::{
    ArgumentsDeltaEvent, ArgumentsEvent, CallEvent, ContentPart, DeltaEvent, ErrorEvent,
    InConversation, Incomplete, ItemEvent, McpCall, OutputItem, OutputMessage, PartEvent,
    ResponseError, ResponseEvent, ResponseObject, TextEvent, WholeEvent, item_id, response_id,
    text,
};
use crate::api::{
    answer_text::Piece,
    events,
    problem::Problem,
    turn::{AnswerEnd, AnswerPart},
};
use domain::{
    error::ErrorCode,
    ids::{AgentId, ConversationId, RunId},
    message::{CallStatus, ToolCall, ToolResult},
    response::ResponseSettings,
    run::{Run, RunKind, RunStatus, Usage},
};

/// The state of a stream: the response so far.
pub(in crate::api) struct Encoder {
    info: AnswerInfo,
    items: Vec<OutputItem>,
    /// Whether the last item is a message whose text goes on.
    is_open: bool,
    /// Whether the step starts again. Its text goes on in the open message.
    is_reset: bool,
    /// The end of the open message, which was not sent yet because it may be the beginning of a word.
    unsent: String,
    /// The indexes of the calls whose results have not arrived.
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
            unsent: String::new(),
            calls: HashMap::new(),
            sequence: 0,
        }
    }

    /// Streams the events of an answer. A client that knows a part of them gets those with a higher number than
    /// `after`.
    pub(super) fn stream(
        mut self,
        parts: impl Stream<Item = Result<AnswerPart, Problem>> + Send + 'static,
        after: Option<u64>,
    ) -> Response {
        let begun = WholeEvent {
            sequence_number: self.next(),
            response: self.begun(),
        };
        let first = ResponseEvent::Created(begun);
        let begun = WholeEvent {
            sequence_number: self.next(),
            response: self.begun(),
        };
        let second = ResponseEvent::InProgress(begun);
        let is_new =
            move |event: &&ResponseEvent| after.is_none_or(|after| event.sequence_number() > after);
        let begin: Vec<_> = [&first, &second]
            .into_iter()
            .filter(is_new)
            .map(sse)
            .collect();
        let rest = parts.flat_map(move |part| {
            let events = match part {
                Ok(AnswerPart::Piece(piece)) => self.add(piece),
                Ok(AnswerPart::AnswerEnd(end)) => self.last_events(Ok(end)),
                Err(problem) => self.last_events(Err(&problem)),
            };
            let events = events.iter().filter(is_new).map(sse);
            stream::iter(events.collect::<Vec<_>>())
        });
        events::answer(stream::iter(begin).chain(rest))
    }

    /// Reads an answer to its end. A failed answer is a response too.
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

    /// Adds a piece to the response. Returns its events.
    pub(super) fn add(&mut self, piece: Piece) -> Vec<ResponseEvent> {
        match piece {
            Piece::Text(text) => self.add_text(&text),
            Piece::Break if std::mem::take(&mut self.is_reset) => self.add_text("\n\n"),
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
                    ErrorCode::RunCancelled => "cancelled",
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
        let mut events = if is_whole { self.close() } else { self.flush() };
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
}

/// Whether a problem is the end of the answer, and not a problem of the stream alone.
fn is_end(problem: &Problem) -> bool {
    problem.run.is_some_and(|run| run.is_over)
}

fn sse(event: &ResponseEvent) -> Event {
    Event::default()
        .event(event.name())
        .json_data(event)
        .expect("events are plain data that can be written")
}

impl Encoder {
    fn add_text(&mut self, text: &str) -> Vec<ResponseEvent> {
        let mut events = Vec::new();
        if !self.is_open {
            events = self.open();
        }
        let output_index = self.items.len() - 1;
        let Some(OutputItem::Message(message)) = self.items.last_mut() else {
            return events;
        };
        if let Some(part) = message.content.first_mut() {
            part.text.push_str(text);
        }
        let item_id = message.id.clone();
        self.unsent.push_str(text);
        while let Some(end) = end_of_first(&self.unsent) {
            let rest = self.unsent.split_off(end);
            let delta = std::mem::replace(&mut self.unsent, rest);
            events.push(self.delta(item_id.clone(), output_index, delta));
        }
        events
    }

    fn delta(&mut self, item_id: String, output_index: usize, delta: String) -> ResponseEvent {
        ResponseEvent::TextDelta(DeltaEvent {
            sequence_number: self.next(),
            item_id,
            output_index,
            content_index: 0,
            delta,
            logprobs: [],
        })
    }

    /// Sends the rest of the open message.
    fn flush(&mut self) -> Vec<ResponseEvent> {
        let (unsent, output_index) = (std::mem::take(&mut self.unsent), self.items.len());
        match self.items.last() {
            Some(OutputItem::Message(message)) if !unsent.is_empty() => {
                let item_id = message.id.clone();
                vec![self.delta(item_id, output_index - 1, unsent)]
            }
            _ => Vec::new(),
        }
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

    /// Ends the open message, if there is one.
    fn close(&mut self) -> Vec<ResponseEvent> {
        if !self.is_open {
            return Vec::new();
        }
        let mut events = self.flush();
        let Some(message) = self.finish_message("completed") else {
            return events;
        };
        let output_index = self.items.len() - 1;
        let (content_index, item_id) = (0, message.id.clone());
        let part = message.content[content_index].clone();
        events.extend([
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
        ]);
        events
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
}

/// The most characters of a piece of text.
const MAX_PIECE: usize = 16;

/// The end of the first piece of a text: after a word and its blanks, or after [`MAX_PIECE`] characters. `None` while
/// more text may belong to the piece. A text is cut in the same way whatever deltas it arrived in, so that an event has
/// the same number each time that the response is read.
fn end_of_first(text: &str) -> Option<usize> {
    let mut blank = false;
    for (count, (at, c)) in text.char_indices().enumerate() {
        if count == MAX_PIECE || (blank && !c.is_whitespace()) {
            return Some(at);
        }
        blank = c.is_whitespace();
    }
    None
}

impl Encoder {
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
        let (item_id, arguments) = (item.id.clone(), call.arguments.get().to_owned());
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

/// The values of a response that are known before its answer.
pub(super) struct AnswerInfo {
    pub run: Run,
    pub model: String,
    pub is_stored: bool,
    pub settings: ResponseSettings,
}

impl AnswerInfo {
    /// The values of an answer without a run.
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

/// The state of a run as OpenAI names it.
fn status(run: RunStatus) -> &'static str {
    match run {
        RunStatus::Queued => "queued",
        // The end of a response comes from its answer.
        _ => "in_progress",
    }
}
