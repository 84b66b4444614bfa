//! A conversation's events and messages as the terminal client reads them.

use serde_json::Value;

/// One event of a conversation. `run` is empty when the event belongs to no run.
pub enum ConversationEvent {
    Delta {
        run: String,
        text: String,
    },
    Reset,
    ToolStarted {
        server: String,
        tool: String,
    },
    ToolProgress {
        text: String,
    },
    ToolFinished {
        status: String,
    },
    /// A whole message.
    Message {
        /// Its number in the conversation.
        seq: i64,
        role: String,
        run: String,
        text: String,
        /// It asks for something that must not be shown while it is typed.
        secret: bool,
        /// Its run waits for the answer.
        waits: bool,
    },
    /// A run waits or is under way.
    Begun {
        run: String,
    },
    Ended {
        run: String,
    },
    Other,
}

impl ConversationEvent {
    pub fn of(name: &str, data: &Value) -> Self {
        let field = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        let run = field("run_id");
        match name {
            "delta" => Self::Delta {
                run,
                text: field("text"),
            },
            "reset" => Self::Reset,
            "tool_started" => Self::ToolStarted {
                server: field("server"),
                tool: field("tool"),
            },
            "tool_progress" => Self::ToolProgress {
                text: field("message"),
            },
            "tool_finished" => Self::ToolFinished {
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
            "run" => Self::Ended { run },
            _ => Self::Other,
        }
    }
}

fn parts(message: &Value) -> &[Value] {
    message["parts"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The readable parts of a message.
pub fn readable_text(message: &Value) -> String {
    let mut lines = Vec::new();
    for part in parts(message)
        .iter()
        .filter(|part| part["type"] != "tool_call")
    {
        lines.extend(part["text"].as_str().map(str::to_owned));
        // What a call that was approved has answered.
        lines.extend(part["result"].as_str().map(str::to_owned));
        let choices = part["choices"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let labels = choices.iter().filter_map(|choice| choice["label"].as_str());
        lines.extend(
            labels
                .enumerate()
                .map(|(at, label)| format!("  {}. {label}", at + 1)),
        );
        lines.extend(part["url"].as_str().map(str::to_owned));
    }
    lines.join("\n")
}
