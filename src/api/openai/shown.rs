//! From deltas and messages to the one text that an OpenAI client shows.
//!
//! Deltas are shown as they come; the durable message of a step says what they should have come to, and
//! whatever of it was not shown yet (the run is worked on by another replica, or this listener fell behind)
//! is added then. Steps are set apart by a blank line. What was shown cannot be unsaid on this wire: a step
//! that starts again goes on after a blank line.
//!
//! What happened since the client's last turn stands before the answer. What happens while the answer is shown is told
//! with the next one.

use std::collections::{HashMap, HashSet};

use crate::{
    app::chat::conversations::Heard,
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

/// What the client shows so far.
pub(super) struct Shown {
    run: RunId,
    calls: ShownCalls,
    /// Something was shown.
    is_begun: bool,
    /// Something of the run itself was shown.
    is_answering: bool,
    /// What comes next begins a paragraph.
    is_apart: bool,
    /// The end of it that belongs to a step whose message has not been heard yet.
    step: String,
    /// Calls whose results have not been heard.
    open: HashMap<String, ToolCall>,
    /// Runs that the program has begun, to tell of something.
    follow_ups: HashSet<RunId>,
    /// The first event that is told with the next answer.
    untold: Option<i64>,
}

impl Shown {
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

    /// The last event that the client was told of, when the last one that was heard is `last`.
    pub fn told(&self, last: i64) -> i64 {
        self.untold.map_or(last, |untold| untold - 1)
    }

    /// What has to be shown now of the run itself.
    pub fn hear(&mut self, heard: &Heard) -> String {
        match heard {
            Heard::Transient(event) => match &**event {
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
            Heard::Durable(event) => match &event.kind {
                EventKind::Message(message) if message.run_id == Some(self.run) => {
                    let text = self.settle(&said(message));
                    text + &self.calls_of(message)
                }
                _ => String::new(),
            },
        }
    }

    /// What has to be shown now of what happened besides the run.
    pub fn news(&mut self, heard: &Heard) -> String {
        let Heard::Durable(event) = heard else {
            return String::new();
        };
        let EventKind::Message(message) = &event.kind else {
            return String::new();
        };
        if message.run_id == Some(self.run) {
            return String::new();
        }
        let text = self.told_by_program(message);
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

    /// What the program, or a run that it has begun, tells the user.
    fn told_by_program(&mut self, message: &Message) -> String {
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

    /// Compares a step's message with what was shown of it.
    fn settle(&mut self, whole: &str) -> String {
        let (whole, step) = (whole.trim(), std::mem::take(&mut self.step));
        let step = step.trim_start();
        if whole.is_empty() {
            step.clone_into(&mut self.step);
            return String::new();
        }
        if let Some(ahead) = step.strip_prefix(whole) {
            // What is left over is the beginning of the next step.
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

    /// Shows more; after a blank line when a step begins and another was shown before.
    fn add(&mut self, text: &str) -> String {
        let begins = self.is_begun && (self.step.is_empty() || self.is_apart);
        (self.is_begun, self.is_answering, self.is_apart) = (true, true, false);
        if begins {
            format!("\n\n{text}")
        } else {
            text.to_owned()
        }
    }

    /// Shows a text that stands for itself.
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

/// What a message of a run says to its user. Why it failed is said by the run's end.
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
