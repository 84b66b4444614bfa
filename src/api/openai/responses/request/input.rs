//! The input of a request: texts, images and results, as parts of one question.

use serde_json::Value;

use crate::{
    api::{
        openai::{
            content::{content, role},
            responses::wire::item_run,
        },
        problem::Problem,
    },
    app::chat::transcript::Transcript,
    domain::{error::ErrorCode, ids::RunId, message::Role},
};

#[derive(Default)]
pub(super) struct Input {
    pub(super) transcript: Transcript,
    /// The messages of the role `system`, wherever they stand.
    pub(super) instructions: Vec<String>,
    /// The answer that is referred to last; what stands before it is known.
    pub(super) after: Option<RunId>,
}

impl Input {
    pub(super) fn add(&mut self, field: &str, item: &Value) -> Result<(), Problem> {
        match (item["type"].as_str(), item["role"].as_str()) {
            (None | Some("message"), Some(name)) => {
                let said = content(&format!("{field}.content"), item.get("content"))?;
                self.say(role(field, name)?, said);
            }
            (Some("item_reference") | None, None) if item["id"].is_string() => {
                let id = item["id"].as_str().unwrap_or_default();
                if let Some(run) = item_run(id) {
                    self.after = Some(run);
                    self.transcript.clear();
                }
            }
            (Some("function_call_output" | "custom_tool_call_output"), _) => {
                let said = content(&format!("{field}.output"), item.get("output"))?;
                self.say(Role::Tool, said);
            }
            (Some("message"), None) => {
                return Err(Problem::unfit(
                    ErrorCode::MissingField,
                    format!("{field}.role"),
                    "is missing",
                ));
            }
            (None, None) => {
                return Err(Problem::unfit(
                    ErrorCode::MissingField,
                    format!("{field}.type"),
                    "is missing",
                ));
            }
            // Calls, thoughts and the like: what came of them is in what was said.
            (Some(_), _) => {}
        }
        Ok(())
    }

    /// Adds a message. The items of one answer are one message.
    fn say(&mut self, role: Role, text: String) {
        if role == Role::System {
            self.instructions.push(text.clone());
        }
        match self.transcript.last_mut() {
            Some((Role::Assistant, said)) if role == Role::Assistant => {
                said.push_str("\n\n");
                said.push_str(&text);
            }
            _ => self.transcript.push((role, text)),
        }
    }
}
