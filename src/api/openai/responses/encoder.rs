//! Encodes the parts of an answer as a response, and as the events of its stream.

mod calls;
mod text;

use std::collections::HashMap;

use axum::response::{Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use time::OffsetDateTime;

use super::{
    info::AnswerInfo,
    wire::{
        ErrorEvent, Incomplete, OutputItem, ResponseError, ResponseEvent, ResponseObject,
        WholeEvent,
    },
};
use crate::api::{
    events,
    problem::Problem,
    turn::{AnswerEnd, AnswerPart, Piece},
};
use crate::domain::error::ErrorCode;

/// The response so far.
pub(in crate::api) struct Encoder {
    info: AnswerInfo,
    items: Vec<OutputItem>,
    /// The last item is a message whose text goes on.
    is_open: bool,
    /// The step starts again; its text goes on in the open message.
    is_reset: bool,
    /// The end of the open message that was not sent yet: it may be the beginning of a word.
    held: String,
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
            held: String::new(),
            calls: HashMap::new(),
            sequence: 0,
        }
    }

    /// The events of an answer; of an answer that the client knows in part, those with a higher number than `after`.
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

/// Whether a problem is how the answer has ended, and not of the stream alone.
fn is_end(problem: &Problem) -> bool {
    problem.run.is_some_and(|run| run.is_over)
}

fn sse(event: &ResponseEvent) -> Event {
    Event::default()
        .event(event.name())
        .json_data(event)
        .expect("events are plain data that can be written")
}
