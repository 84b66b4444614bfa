//! Tool calls and other lines of an answer as Markdown text.

use crate::domain::message::{
    CALL_BOX, CALL_BOX_END, CALL_LINE, Message, Part, Role, ToolCall, ToolResult,
};

/// Characters of the arguments in a line, and of a result in a box.
const MAX_ARGUMENTS: usize = 200;

const MAX_RESULT: usize = 4000;

fn name(call: &ToolCall) -> String {
    match (&call.server, &call.tool) {
        (Some(server), Some(tool)) => format!("{server} {tool}"),
        _ => call.name.clone(),
    }
}

pub(super) fn line(call: &ToolCall, result: &ToolResult) -> String {
    let status = serde_json::to_value(result.status).unwrap_or_default();
    let status = status.as_str().unwrap_or_default().replace('_', " ");
    let arguments = clipped(call.arguments.get(), MAX_ARGUMENTS);
    format!("{CALL_LINE}{} `{arguments}`: {status}", name(call))
}

/// As Open WebUI writes the calls that it makes itself: JSON in attributes, the arguments as a JSON text in JSON.
pub(super) fn boxed(call: &ToolCall, result: &ToolResult) -> String {
    let json = |text: &str| escaped(&serde_json::Value::from(text).to_string());
    format!(
        "{CALL_BOX} done=\"true\" id=\"{}\" name=\"{}\" arguments=\"{}\" result=\"{}\" files=\"\" embeds=\"\">\n\
         <summary>Tool Executed</summary>\n{CALL_BOX_END}",
        escaped(&call.call_id),
        escaped(&name(call)),
        json(call.arguments.get()),
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
pub(super) fn said(message: &Message) -> String {
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
