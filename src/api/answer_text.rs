//! Turns the events of a conversation into the pieces of an answer.
//!
//! Deltas are sent as they arrive. The durable message of a step has the whole text of the step; the part that was not
//! sent yet (because another replica works on the run, or this listener fell behind) is added then. Each step is a
//! paragraph. Text that was sent cannot be withdrawn, so a step that starts again goes on in a new paragraph.
//!
//! Outcomes of approvals, notices for approvers and other reports since the client's last turn stand before the answer. Reports that arrive
//! during the answer are delivered with the next one.
//!
//! Below are the texts of tool calls ([`call_line`], [`call_box`]), the limits of a client ([`Limiter`]), and the reports
//! for a client that asks no question ([`render_unread`]).

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::app::{
    chat::{
        conversations::ConversationEvent,
        transcript::{Transcript, UnreadEvents},
    },
    tools::approvals::notices::ApprovalNotice,
};
use domain::{
    account::ShownCalls,
    event::{EventKind, Transient},
    ids::RunId,
    message::{
        CALL_BOX, CALL_BOX_END, CALL_LINE, CallStatus, Message, Part, Role, ToolCall, ToolResult,
    },
};

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerStyle {
    /// As one text, in which tool calls are shown in this form.
    Text(ShownCalls),
    /// As texts, calls and other parts, each a piece of its own.
    Typed,
}

/// A piece of an answer.
pub(super) enum Piece {
    /// More of the current text.
    Text(String),
    /// The current text is complete. The next text is a new paragraph.
    Break,
    /// The text of the step is void, and the step starts again. Only in the style `Typed`, like the pieces below.
    Reset,
    Call(ToolCall),
    Result(Box<(ToolCall, ToolResult)>),
    /// A part of a message with more than text. Its text was sent before.
    Part(Part),
}

/// The answer so far, as its client shows it.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct AnswerText {
    run: RunId,
    style: AnswerStyle,
    /// Whether the answer has a format. Then only the last text of the run is sent, and all others are in the
    /// conversation alone.
    is_formatted: bool,
    /// Pieces that were not taken yet.
    pieces: Vec<Piece>,
    /// Whether some text was sent.
    has_sent_text: bool,
    /// Whether some text of the run itself was sent.
    is_answering: bool,
    /// Whether the next text begins a paragraph.
    begins_paragraph: bool,
    /// The text that was sent of a step whose message has not arrived.
    step: String,
    /// Calls whose results have not arrived.
    open: HashMap<String, ToolCall>,
    /// The runs that the program has started to report an outcome.
    follow_ups: HashSet<RunId>,
    /// The first report that is left for the next answer.
    first_undelivered: Option<i64>,
}

impl AnswerText {
    pub fn new(run: RunId, style: AnswerStyle, is_formatted: bool) -> Self {
        Self {
            run,
            style,
            is_formatted,
            pieces: Vec::new(),
            has_sent_text: false,
            is_answering: false,
            begins_paragraph: false,
            step: String::new(),
            open: HashMap::new(),
            follow_ups: HashSet::new(),
            first_undelivered: None,
        }
    }

    /// The last event whose report was delivered to the client. `last` is the last event that arrived.
    pub fn last_delivered(&self, last: i64) -> i64 {
        self.first_undelivered.map_or(last, |first| first - 1)
    }

    /// The pieces to send for an event of the run itself.
    pub fn render_run_event(&mut self, event: &ConversationEvent) -> Vec<Piece> {
        match event {
            ConversationEvent::Transient(event) => match &**event {
                Transient::Delta { run_id, text } if *run_id == self.run => {
                    self.add(text);
                    self.step.push_str(text);
                }
                Transient::Reset { run_id } if *run_id == self.run && !self.step.is_empty() => {
                    self.step.clear();
                    self.pieces.push(Piece::Reset);
                }
                _ => {}
            },
            ConversationEvent::Durable(event) => match &event.kind {
                EventKind::Message(message) if message.run_id == Some(self.run) => {
                    if !self.is_formatted || is_last_text(message) {
                        self.complete_step(&text_of(message));
                    }
                    self.add_calls(message);
                    self.add_parts(message);
                }
                _ => {}
            },
        }
        std::mem::take(&mut self.pieces)
    }

    /// The pieces to send for an event outside of the run, if the event reports something to the client.
    pub fn render_report(&mut self, event: &ConversationEvent) -> Vec<Piece> {
        let ConversationEvent::Durable(event) = event else {
            return Vec::new();
        };
        let EventKind::Message(message) = &event.kind else {
            return Vec::new();
        };
        if message.run_id == Some(self.run) {
            return Vec::new();
        }
        let text = self.report_text(message);
        if text.trim().is_empty() {
            return Vec::new();
        }
        if self.is_formatted {
            return Vec::new();
        }
        if self.is_answering {
            self.first_undelivered.get_or_insert(event.seq);
            return Vec::new();
        }
        self.add_paragraph(text.trim());
        self.add_parts(message);
        self.is_answering = false;
        std::mem::take(&mut self.pieces)
    }

    /// The text of a report: an outcome or a notice that the program has written, or the answer of the run that reports it.
    fn report_text(&mut self, message: &Message) -> String {
        let is_outcome = |part: &&Part| {
            matches!(
                part,
                Part::Approval(_) | Part::AgentCallback(_) | Part::CallOutcome(_)
            ) || ApprovalNotice::is_in(part)
        };
        match (message.role, message.run_id) {
            (Role::System, run) => {
                let outcomes: Vec<_> = message.parts.iter().filter(is_outcome).collect();
                if !outcomes.is_empty() {
                    self.follow_ups.extend(run);
                }
                let outcomes = outcomes.into_iter().map(Part::plain);
                outcomes.collect::<Vec<_>>().join("\n")
            }
            (Role::Assistant, Some(run)) if self.follow_ups.contains(&run) => text_of(message),
            _ => String::new(),
        }
    }

    /// Compares the message of a step with the text that was sent, and adds the rest.
    fn complete_step(&mut self, whole: &str) {
        if whole.trim().is_empty() {
            return;
        }
        let step = std::mem::take(&mut self.step);
        let (begun, trimmed) = (step.trim(), whole.trim());
        // Blanks count: a limit of the client may have cut the answer at a blank, and a repeated answer must end at the
        // same blank.
        if let Some(rest) = whole.strip_prefix(&step).filter(|_| !begun.is_empty()) {
            self.pieces.push(Piece::Text(rest.to_owned()));
        } else if let Some(ahead) = step.trim_start().strip_prefix(trimmed) {
            // The text that goes beyond the message is the beginning of the next step.
            ahead.trim_start().clone_into(&mut self.step);
        } else if let Some(rest) = trimmed.strip_prefix(begun).filter(|_| !begun.is_empty()) {
            self.pieces.push(Piece::Text(rest.to_owned()));
        } else {
            self.add(whole);
        }
        if self.style == AnswerStyle::Typed && self.step.is_empty() {
            self.pieces.push(Piece::Break);
        }
    }

    /// Adds text. The first text of a step is a new paragraph if another step was sent before.
    fn add(&mut self, text: &str) {
        if self.has_sent_text && (self.step.is_empty() || self.begins_paragraph) {
            self.pieces.push(Piece::Break);
        }
        (self.has_sent_text, self.is_answering, self.begins_paragraph) = (true, true, false);
        self.pieces.push(Piece::Text(text.to_owned()));
    }

    /// Adds a text as a paragraph of its own.
    fn add_paragraph(&mut self, text: &str) {
        self.begins_paragraph = true;
        self.add(text);
        self.begins_paragraph = true;
    }

    /// Adds the calls of a message, or those whose results it has.
    fn add_calls(&mut self, message: &Message) {
        // The user typed the call, so its result is the answer.
        let is_answer = message.role == Role::System;
        for part in &message.parts {
            match part {
                Part::ToolCall(call) => {
                    self.open.insert(call.call_id.clone(), call.clone());
                    if self.style == AnswerStyle::Typed {
                        self.pieces.push(Piece::Call(call.clone()));
                    }
                }
                Part::ToolResult(result) => {
                    let Some(call) = self.open.remove(&result.call_id) else {
                        continue;
                    };
                    self.add_result(&call, result, is_answer);
                    // What a request waits for is told beside it, in the language of its reader.
                    if is_answer && result.status != CallStatus::AwaitingApproval {
                        let part = Part::result(&call, result.status, result.text.clone());
                        self.complete_step(&part.plain());
                    }
                }
                _ => {}
            }
        }
    }

    fn add_result(&mut self, call: &ToolCall, result: &ToolResult, is_answer: bool) {
        match self.style {
            AnswerStyle::Text(ShownCalls::None) => {}
            // The result follows as the text of the answer, so a box would repeat it.
            AnswerStyle::Text(ShownCalls::Details) if is_answer => {}
            AnswerStyle::Text(ShownCalls::Details) => self.add_paragraph(&call_box(call, result)),
            AnswerStyle::Text(ShownCalls::Text) => self.add_paragraph(&call_line(call, result)),
            AnswerStyle::Typed => {
                let result = Piece::Result(Box::new((call.clone(), result.clone())));
                self.pieces.push(result);
            }
        }
    }

    /// Adds the parts of a message with more than text.
    fn add_parts(&mut self, message: &Message) {
        if self.style != AnswerStyle::Typed || message.role == Role::User {
            return;
        }
        let parts = message.parts.iter().filter(|part| match part {
            Part::Notice { .. } => part.failure().is_none(),
            Part::Text { .. } | Part::ToolCall(_) | Part::ToolResult(_) | Part::ServerPrompt(_) => {
                false
            }
            _ => true,
        });
        self.pieces.extend(parts.cloned().map(Piece::Part));
    }
}

/// Whether a message is the final answer of a run: it calls no tools.
fn is_last_text(message: &Message) -> bool {
    let calls = |part: &Part| matches!(part, Part::ToolCall(_));
    message.role == Role::Assistant && !message.parts.iter().any(calls)
}

/// The most characters of the arguments in a line.
const MAX_ARGUMENTS: usize = 200;
/// The most characters of a result in a box.
const MAX_RESULT: usize = 4000;

fn call_name(call: &ToolCall) -> String {
    match (&call.server, &call.tool) {
        (Some(server), Some(tool)) => format!("{server} {tool}"),
        _ => call.name.clone(),
    }
}

/// A call and its status as a line of Markdown.
fn call_line(call: &ToolCall, result: &ToolResult) -> String {
    let status = serde_json::to_value(result.status).unwrap_or_default();
    let status = status.as_str().unwrap_or_default().replace('_', " ");
    let arguments = clip(call.arguments.get(), MAX_ARGUMENTS);
    format!("{CALL_LINE}{} `{arguments}`: {status}", call_name(call))
}

/// A call and its result as a box. Open WebUI writes its own calls so: attributes hold JSON, and the arguments are a JSON
/// text in JSON.
fn call_box(call: &ToolCall, result: &ToolResult) -> String {
    let json = |text: &str| escape(&serde_json::Value::from(text).to_string());
    format!(
        "{CALL_BOX} done=\"true\" id=\"{}\" name=\"{}\" arguments=\"{}\" result=\"{}\" files=\"\" embeds=\"\">\n\
         <summary>Tool Executed</summary>\n{CALL_BOX_END}",
        escape(&call.call_id),
        escape(&call_name(call)),
        json(call.arguments.get()),
        json(&clip(&result.text, MAX_RESULT)),
    )
}

fn clip(text: &str, most: usize) -> String {
    let short: String = text.chars().take(most).collect();
    if short.len() < text.len() {
        short + "…"
    } else {
        short
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#x27;")
}

/// The text of a message of a run. The reason of a failure is left out: the end of the run has it.
fn text_of(message: &Message) -> String {
    if !matches!(message.role, Role::Assistant | Role::System) {
        return String::new();
    }
    let texts = message.parts.iter().filter_map(|part| match part {
        part if part.failure().is_some() => None,
        Part::ToolCall(_) | Part::ToolResult(_) | Part::ServerPrompt(_) => None,
        part => Some(part.plain()),
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The bytes of a token, on average.
const BYTES_OF_TOKEN: usize = 4;

/// The limits of a client: an answer ends before one of its `stop` texts, or after `max_tokens`.
///
/// An answer has several steps, and a tool call must not be cut. So the limits hold for the text that the client is sent,
/// and not for a step of the model. The tokens of that text are estimated.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    stops: Vec<String>,
    /// The bytes that may still be sent.
    left: Option<usize>,
    /// The text that is not sent yet, because it may be the beginning of a stop text.
    pending: String,
    /// Why the answer has ended at a limit, as OpenAI names it.
    reason: Option<&'static str>,
}

impl Limiter {
    pub fn new(stops: Vec<String>, max_tokens: Option<u64>) -> Self {
        let bytes = |tokens| usize::try_from(tokens).unwrap_or(usize::MAX);
        Self {
            stops,
            left: max_tokens.map(|tokens| bytes(tokens).saturating_mul(BYTES_OF_TOKEN)),
            ..Self::default()
        }
    }

    /// Why nothing more is sent; `None` while the answer goes on.
    pub fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// Takes a piece of the answer and returns the text that can be sent now.
    pub fn pass(&mut self, text: &str) -> String {
        if self.reason.is_some() {
            return String::new();
        }
        self.pending.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.pending.find(stop));
        let ready = match found.min() {
            Some(at) => {
                self.reason = Some("stop");
                at
            }
            None => self.pending.len() - self.undecided_bytes(),
        };
        let rest = self.pending.split_off(ready);
        let sent = std::mem::replace(&mut self.pending, rest);
        self.shorten(sent)
    }

    /// Ends the answer. Returns the rest of the text, which is no stop text.
    pub fn flush(&mut self) -> String {
        let pending = std::mem::take(&mut self.pending);
        if self.reason.is_some() {
            String::new()
        } else {
            self.shorten(pending)
        }
    }

    /// The number of bytes at the end that may be the beginning of a stop text.
    fn undecided_bytes(&self) -> usize {
        let beginning = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|at| self.pending.ends_with(&stop[..*at])).max()
        };
        let longest = self.stops.iter().filter_map(beginning).max();
        longest.unwrap_or_default()
    }

    /// Cuts a text at the limit of bytes.
    fn shorten(&mut self, mut text: String) -> String {
        let Some(left) = &mut self.left else {
            return text;
        };
        if text.len() > *left {
            text.truncate(text.floor_char_boundary(*left));
            self.reason = Some("length");
        }
        *left -= text.len();
        text
    }
}

/// The reports in the events since a client's last turn, as pieces, and the last event that they cover. They answer no
/// question of the client. A report whose run has not ended yet is left for later, with all events after it.
pub(super) fn render_unread(unread: UnreadEvents) -> (Vec<Piece>, Option<i64>) {
    let until = unread.first_open_report();
    let events = unread.events.into_iter();
    let events = events.take_while(|event| until.is_none_or(|until| event.seq < until));
    let mut text = AnswerText::new(RunId(Uuid::nil()), AnswerStyle::Typed, false);
    let (mut pieces, mut last) = (Vec::new(), None);
    for event in events {
        last = Some(event.seq);
        pieces.extend(text.render_report(&ConversationEvent::Durable(event.into())));
    }
    (pieces, last)
}

/// Adds the pieces to the answer that a transcript ends with, as their client shows them.
pub(super) fn add_to_transcript(transcript: &mut Transcript, pieces: &[Piece]) {
    for piece in pieces {
        match (piece, transcript.last_mut()) {
            (Piece::Break, Some((Role::Assistant, answer))) => answer.push_str("\n\n"),
            (Piece::Text(text), Some((Role::Assistant, answer))) => {
                answer.push_str("\n\n");
                answer.push_str(text);
            }
            (Piece::Text(text), _) => transcript.push((Role::Assistant, text.clone())),
            _ => {}
        }
    }
}
