//! Turns deltas and messages into the pieces of an answer. Deltas are sent as they come. The durable message of a
//! step has the whole text of the step, and the part that was not sent yet (because another replica works on the
//! run, or this listener fell behind) is added then. Steps are apart from each other. Text that was sent cannot be
//! withdrawn: a step that starts again goes on apart from it. What happened since the client's last turn stands
//! before the answer. What happens during the answer is reported with the next one.

mod format;

use std::collections::{HashMap, HashSet};

use self::format::{boxed, line, said};
use crate::{
    app::chat::conversations::ConversationEvent,
    domain::{
        account::ShownCalls,
        event::{EventKind, Transient},
        ids::RunId,
        message::{Message, Part, Role, ToolCall, ToolResult},
    },
};

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum AnswerStyle {
    /// One text, in which tool calls are shown like this.
    Text(ShownCalls),
    /// Texts, calls and other parts as pieces of their own.
    Typed,
}

/// A piece of an answer.
pub(in crate::api) enum Piece {
    /// More of the current text.
    Text(String),
    /// The current text is whole; what follows is apart from it.
    Break,
    /// The text of the step is void, and the step starts again. In the style `Typed`, like all below.
    Reset,
    Call(ToolCall),
    Result(Box<(ToolCall, ToolResult)>),
    /// A part of a message that is more than text. Its text was sent already.
    Part(Part),
}

/// The answer that the client shows so far.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct AnswerText {
    run: RunId,
    style: AnswerStyle,
    /// The answer has a form: of texts, only the last one of the run is sent. Everything else stands in the conversation.
    is_formatted: bool,
    /// Pieces that were not taken yet.
    pieces: Vec<Piece>,
    /// Some text was sent.
    is_begun: bool,
    /// Some text of the run itself was sent.
    is_answering: bool,
    /// The next text begins a paragraph.
    is_apart: bool,
    /// The end of the text, which belongs to a step whose message has not arrived.
    step: String,
    /// Calls whose results have not arrived.
    open: HashMap<String, ToolCall>,
    /// Runs that the program has started to report something.
    follow_ups: HashSet<RunId>,
    /// The first event that is reported with the next answer.
    untold: Option<i64>,
}

impl AnswerText {
    pub fn new(run: RunId, style: AnswerStyle, is_formatted: bool) -> Self {
        Self {
            run,
            style,
            is_formatted,
            pieces: Vec::new(),
            is_begun: false,
            is_answering: false,
            is_apart: false,
            step: String::new(),
            open: HashMap::new(),
            follow_ups: HashSet::new(),
            untold: None,
        }
    }

    /// The last event that was reported to the client, when `last` is the last one that arrived.
    pub fn last_reported(&self, last: i64) -> i64 {
        self.untold.map_or(last, |untold| untold - 1)
    }

    /// The pieces of the run itself to send for an event.
    pub fn render_event(&mut self, heard: &ConversationEvent) -> Vec<Piece> {
        match heard {
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
                        self.complete_step(&said(message));
                    }
                    self.add_calls(message);
                    self.add_parts(message);
                }
                _ => {}
            },
        }
        std::mem::take(&mut self.pieces)
    }

    /// The pieces to send for an event outside of the run.
    pub fn news(&mut self, heard: &ConversationEvent) -> Vec<Piece> {
        let ConversationEvent::Durable(event) = heard else {
            return Vec::new();
        };
        let EventKind::Message(message) = &event.kind else {
            return Vec::new();
        };
        if message.run_id == Some(self.run) {
            return Vec::new();
        }
        let text = self.program_text(message);
        if text.trim().is_empty() {
            return Vec::new();
        }
        if self.is_formatted {
            return Vec::new();
        }
        if self.is_answering {
            self.untold.get_or_insert(event.seq);
            return Vec::new();
        }
        self.add_paragraph(text.trim());
        self.add_parts(message);
        self.is_answering = false;
        std::mem::take(&mut self.pieces)
    }

    /// The text of a message by the program, or by a run that the program has started.
    fn program_text(&mut self, message: &Message) -> String {
        let is_outcome = |part: &&Part| {
            matches!(
                part,
                Part::Approval(_) | Part::AgentCallback(_) | Part::CallOutcome(_)
            )
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
            (Role::Assistant, Some(run)) if self.follow_ups.contains(&run) => said(message),
            _ => String::new(),
        }
    }

    /// Compares a step's message with the text that was sent, and adds the rest.
    fn complete_step(&mut self, whole: &str) {
        if whole.trim().is_empty() {
            return;
        }
        let step = std::mem::take(&mut self.step);
        let (begun, trimmed) = (step.trim(), whole.trim());
        // Spaces count: a client's limit may have cut the answer at one, and its end must be the same when read again.
        if let Some(rest) = whole.strip_prefix(&step).filter(|_| !begun.is_empty()) {
            self.pieces.push(Piece::Text(rest.to_owned()));
        } else if let Some(ahead) = step.trim_start().strip_prefix(trimmed) {
            // The rest is the beginning of the next step.
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

    /// Adds text; apart when a step begins and another step was sent before.
    fn add(&mut self, text: &str) {
        if self.is_begun && (self.step.is_empty() || self.is_apart) {
            self.pieces.push(Piece::Break);
        }
        (self.is_begun, self.is_answering, self.is_apart) = (true, true, false);
        self.pieces.push(Piece::Text(text.to_owned()));
    }

    /// Adds a text as a paragraph of its own.
    fn add_paragraph(&mut self, text: &str) {
        self.is_apart = true;
        self.add(text);
        self.is_apart = true;
    }

    /// Adds the calls of a message, or those whose results it has.
    fn add_calls(&mut self, message: &Message) {
        // A call that its user typed: the result is the answer.
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
                    if is_answer {
                        let said = Part::result(&call, result.status, result.text.clone());
                        self.complete_step(&said.plain());
                    }
                }
                _ => {}
            }
        }
    }

    fn add_result(&mut self, call: &ToolCall, result: &ToolResult, is_answer: bool) {
        match self.style {
            AnswerStyle::Text(ShownCalls::None) => {}
            // The text that follows is what a box would hold.
            AnswerStyle::Text(ShownCalls::Details) if is_answer => {}
            AnswerStyle::Text(ShownCalls::Details) => self.add_paragraph(&boxed(call, result)),
            AnswerStyle::Text(ShownCalls::Text) => self.add_paragraph(&line(call, result)),
            AnswerStyle::Typed => {
                let result = Piece::Result(Box::new((call.clone(), result.clone())));
                self.pieces.push(result);
            }
        }
    }

    /// Adds the parts of a message that are more than their text.
    fn add_parts(&mut self, message: &Message) {
        if self.style != AnswerStyle::Typed || message.role == Role::User {
            return;
        }
        let parts = message.parts.iter().filter(|part| match part {
            Part::Notice { code, .. } => code != "run_failed",
            Part::Text { .. } | Part::ToolCall(_) | Part::ToolResult(_) | Part::ServerPrompt(_) => {
                false
            }
            _ => true,
        });
        self.pieces.extend(parts.cloned().map(Piece::Part));
    }
}

/// Whether a message of a run is what the model says to the user in the end.
fn is_last_text(message: &Message) -> bool {
    let calls = |part: &Part| matches!(part, Part::ToolCall(_));
    message.role == Role::Assistant && !message.parts.iter().any(calls)
}
