//! From deltas and messages to the one text that an OpenAI client shows.
//!
//! Deltas are shown as they come; the durable message of a step says what they should have come to, and
//! whatever of it was not shown yet (the run is worked on by another replica, or this listener fell behind)
//! is added then. Steps are set apart by a blank line. What was shown cannot be unsaid on this wire: a step
//! that starts again goes on after a blank line.

use crate::{
    app::chat::conversations::Heard,
    domain::{
        event::{EventKind, Transient},
        ids::RunId,
        message::{Message, Part, Role},
    },
};

/// What the client shows so far.
#[derive(Default)]
pub(super) struct Shown {
    pub text: String,
    /// The end of it that belongs to a step whose message has not been heard yet.
    step: String,
}

impl Shown {
    /// What has to be shown now.
    pub fn hear(&mut self, run: RunId, heard: &Heard) -> String {
        match heard {
            Heard::Transient(event) => match &**event {
                Transient::Delta { run_id, text } if *run_id == run => {
                    let more = self.add(text);
                    self.step.push_str(text);
                    more
                }
                Transient::Reset { run_id } if *run_id == run => {
                    self.step.clear();
                    String::new()
                }
                _ => String::new(),
            },
            Heard::Durable(event) => match &event.kind {
                EventKind::Message(message) if message.run_id == Some(run) => {
                    self.settle(&said(message))
                }
                _ => String::new(),
            },
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
            Some(rest) => {
                self.text.push_str(rest);
                rest.to_owned()
            }
            None => self.add(whole),
        }
    }

    /// Shows more; after a blank line when a step begins and another was shown before.
    fn add(&mut self, text: &str) -> String {
        let begins = self.step.is_empty() && !self.text.is_empty();
        let more = if begins {
            format!("\n\n{text}")
        } else {
            text.to_owned()
        };
        self.text.push_str(&more);
        more
    }
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
