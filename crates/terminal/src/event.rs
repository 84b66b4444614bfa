//! Parses the events and messages of a conversation.

use serde::Deserialize;
use serde_json::Value;

use domain::{
    hidden::{escape_unclear, remove_hidden},
    json,
    message::Choice,
};

/// One event of a conversation. `run` is empty when the event belongs to no run.
pub enum ConversationEvent {
    Delta {
        run: String,
        text: String,
    },
    Reset,
    ToolStarted {
        call: String,
        server: String,
        tool: String,
    },
    ToolProgress {
        text: String,
    },
    ToolFinished {
        call: String,
        server: String,
        tool: String,
        status: String,
    },
    /// A whole message.
    Message {
        /// The number of the message in the conversation.
        seq: i64,
        role: String,
        run: String,
        text: String,
        /// Whether it asks for a secret, which must not be shown while it is typed.
        secret: bool,
        /// Whether its run waits for the answer.
        waits: bool,
    },
    /// A run waits or is under way.
    Begun {
        run: String,
    },
    Ended {
        run: String,
        status: String,
    },
    Other,
}

impl ConversationEvent {
    pub fn parse(name: &str, data: &Value) -> Self {
        let field = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        let run = field("run_id");
        match name {
            "delta" => Self::Delta {
                run,
                text: field("text"),
            },
            "reset" => Self::Reset,
            "tool_started" => Self::ToolStarted {
                call: field("call_id"),
                server: field("server"),
                tool: field("tool"),
            },
            "tool_progress" => Self::ToolProgress {
                text: field("message"),
            },
            "tool_finished" => Self::ToolFinished {
                call: field("call_id"),
                server: field("server"),
                tool: field("tool"),
                status: field("status"),
            },
            "message" => Self::Message {
                seq: data["seq"].as_i64().unwrap_or_default(),
                role: field("role"),
                run,
                text: readable_text(data),
                secret: parts(data)
                    .iter()
                    .any(|part| part["type"] == "prompt" && part["secret"] == true),
                waits: parts(data)
                    .iter()
                    .any(|part| part["type"] == "prompt" && part["asking"]["live"] == true),
            },
            "run" if matches!(data["status"].as_str(), Some("queued" | "running")) => {
                Self::Begun { run }
            }
            "run" => Self::Ended {
                run,
                status: field("status"),
            },
            _ => Self::Other,
        }
    }
}

/// The calls and results in a message, in full.
pub fn call_details(message: &Value) -> String {
    let mut lines = Vec::new();
    for part in parts(message) {
        let text = |name: &str| part[name].as_str().unwrap_or_default();
        match part["type"].as_str() {
            Some("tool_call") => lines.push(format!(
                "⚙ {} {} {}",
                text("server"),
                text("tool"),
                escape_unclear(&json::to_text(&part["arguments"]))
            )),
            Some("tool_result") => lines.push(format!("  {}: {}", text("status"), text("text"))),
            _ => {}
        }
    }
    lines.join("\n")
}

fn parts(message: &Value) -> &[Value] {
    message["parts"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Quotes text of a server, so that no line of it looks like a line of this program.
fn quote(text: &str) -> String {
    let lines = remove_hidden(text);
    let lines: Vec<_> = lines.lines().map(|line| format!("> {line}")).collect();
    lines.join("\n")
}

/// Whether a server wrote the text of a part: a tool's result, and not the reason why the program did not call the
/// tool.
fn is_of_server(part: &Value) -> bool {
    let is_made = matches!(
        part["status"].as_str(),
        Some("succeeded" | "failed" | "outcome_unknown")
    );
    part["source"]["server"].is_string() || part["type"] == "tool_result" && is_made
}

/// The readable parts of a message.
pub fn readable_text(message: &Value) -> String {
    let mut lines = Vec::new();
    for part in parts(message)
        .iter()
        .filter(|part| part["type"] != "tool_call")
    {
        lines.extend(part["text"].as_str().map(|text| {
            if is_of_server(part) {
                quote(text)
            } else {
                text.to_owned()
            }
        }));
        // The result of an approved call.
        lines.extend(part["result"].as_str().map(quote));
        let choices = part["choices"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let choices = choices
            .iter()
            .filter_map(|choice| Choice::deserialize(choice).ok());
        lines.extend(
            choices
                .enumerate()
                .map(|(at, choice)| format!("  {}. {}", at + 1, choice.plain())),
        );
        lines.extend(part["url"].as_str().map(str::to_owned));
    }
    lines.join("\n")
}
