//! Turns deltas and messages into the one text that an OpenAI client shows. Deltas are sent as they come. The
//! durable message of a step has the whole text of the step, and the part that was not sent yet (because
//! another replica works on the run, or this listener fell behind) is added then. Steps are separated by a
//! blank line. Text that was sent cannot be withdrawn: a step that starts again goes on after a blank line.
//! What happened since the client's last turn stands before the answer. What happens during the answer is
//! reported with the next one.

use std::collections::{HashMap, HashSet};

use crate::{
    app::chat::conversations::ConversationEvent,
    domain::{
        account::ShownCalls,
        event::{EventKind, Transient},
        ids::RunId,
        message::{CALL_BOX, CALL_BOX_END, CALL_LINE, Message, Part, Role, ToolCall, ToolResult},
    },
};

/// Characters of the arguments in a line, and of a result in a box.
const MAX_ARGUMENTS: usize = 200;
const MAX_RESULT: usize = 4000;

/// The text that the client shows so far.
pub(super) struct AnswerText {
    run: RunId,
    calls: ShownCalls,
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
    pub fn new(run: RunId, calls: ShownCalls) -> Self {
        Self {
            run,
            calls,
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

    /// The text of the run itself to send for an event.
    pub fn render_event(&mut self, heard: &ConversationEvent) -> String {
        match heard {
            ConversationEvent::Transient(event) => match &**event {
                Transient::Delta { run_id, text } if *run_id == self.run => {
                    let more = self.add(text);
                    self.step.push_str(text);
                    more
                }
                Transient::Reset { run_id } if *run_id == self.run => {
                    self.step.clear();
                    String::new()
                }
                _ => String::new(),
            },
            ConversationEvent::Durable(event) => match &event.kind {
                EventKind::Message(message) if message.run_id == Some(self.run) => {
                    let text = self.complete_step(&said(message));
                    text + &self.calls_of(message)
                }
                _ => String::new(),
            },
        }
    }

    /// The text to send for an event outside of the run.
    pub fn news(&mut self, heard: &ConversationEvent) -> String {
        let ConversationEvent::Durable(event) = heard else {
            return String::new();
        };
        let EventKind::Message(message) = &event.kind else {
            return String::new();
        };
        if message.run_id == Some(self.run) {
            return String::new();
        }
        let text = self.program_text(message);
        if text.trim().is_empty() {
            return String::new();
        }
        if self.is_answering {
            self.untold.get_or_insert(event.seq);
            return String::new();
        }
        let text = self.paragraph(text.trim());
        self.is_answering = false;
        text
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

    /// Compares a step's message with the text that was sent, and returns the rest.
    fn complete_step(&mut self, whole: &str) -> String {
        let (whole, step) = (whole.trim(), std::mem::take(&mut self.step));
        let step = step.trim_start();
        if whole.is_empty() {
            step.clone_into(&mut self.step);
            return String::new();
        }
        if let Some(ahead) = step.strip_prefix(whole) {
            // The rest is the beginning of the next step.
            ahead.trim_start().clone_into(&mut self.step);
            return String::new();
        }
        match whole
            .strip_prefix(step.trim_end())
            .filter(|_| !step.trim().is_empty())
        {
            Some(rest) => rest.to_owned(),
            None => self.add(whole),
        }
    }

    /// Adds text; after a blank line when a step begins and another step was sent before.
    fn add(&mut self, text: &str) -> String {
        let begins = self.is_begun && (self.step.is_empty() || self.is_apart);
        (self.is_begun, self.is_answering, self.is_apart) = (true, true, false);
        if begins {
            format!("\n\n{text}")
        } else {
            text.to_owned()
        }
    }

    /// Adds a text as a paragraph of its own.
    fn paragraph(&mut self, text: &str) -> String {
        self.is_apart = true;
        let text = self.add(text);
        self.is_apart = true;
        text
    }

    /// The calls whose results a message has.
    fn calls_of(&mut self, message: &Message) -> String {
        if self.calls == ShownCalls::None {
            return String::new();
        }
        let mut text = String::new();
        for part in &message.parts {
            match part {
                Part::ToolCall(call) => {
                    self.open.insert(call.call_id.clone(), call.clone());
                }
                Part::ToolResult(result) => {
                    if let Some(call) = self.open.remove(&result.call_id) {
                        let call = match self.calls {
                            ShownCalls::Details => boxed(&call, result),
                            _ => line(&call, result),
                        };
                        text.push_str(&self.paragraph(&call));
                    }
                }
                _ => {}
            }
        }
        text
    }
}

fn name(call: &ToolCall) -> String {
    match (&call.server, &call.tool) {
        (Some(server), Some(tool)) => format!("{server} {tool}"),
        _ => call.name.clone(),
    }
}

fn line(call: &ToolCall, result: &ToolResult) -> String {
    let status = serde_json::to_value(result.status).unwrap_or_default();
    let status = status.as_str().unwrap_or_default().replace('_', " ");
    let arguments = clipped(&call.arguments.to_string(), MAX_ARGUMENTS);
    format!("{CALL_LINE}{} `{arguments}`: {status}", name(call))
}

/// As Open WebUI writes the calls that it makes itself: JSON in attributes, the arguments as a JSON text in JSON.
fn boxed(call: &ToolCall, result: &ToolResult) -> String {
    let json = |text: &str| escaped(&serde_json::Value::from(text).to_string());
    format!(
        "{CALL_BOX} done=\"true\" id=\"{}\" name=\"{}\" arguments=\"{}\" result=\"{}\" files=\"\" embeds=\"\">\n\
         <summary>Tool Executed</summary>\n{CALL_BOX_END}",
        escaped(&call.call_id),
        escaped(&name(call)),
        json(&call.arguments.to_string()),
        json(&clipped(&result.text, MAX_RESULT)),
    )
}

fn clipped(text: &str, most: usize) -> String {
    let short: String = text.chars().take(most).collect();
    if short.len() < text.len() {
        short + "…"
    } else {
        short
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#x27;")
}

/// The text of a message of a run. The reason of a failure is in the run's end.
fn said(message: &Message) -> String {
    if !matches!(message.role, Role::Assistant | Role::System) {
        return String::new();
    }
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Notice { code, .. } if code == "run_failed" => None,
        Part::ToolCall(_) | Part::ToolResult(_) | Part::ServerPrompt(_) => None,
        said => Some(said.plain()),
    });
    texts.collect::<Vec<_>>().join("\n")
}
