//! The tools that a model is offered. If there are more tools than a request takes, the model is offered a tool that
//! searches them, and the tools that it has found or called in the conversation so far. Which tools a user may call is
//! not decided here.

use serde::{Deserialize, Serialize};
use serde_json::{json, value::to_raw_value};

use crate::app::tools::toolset::{NamedTool, Toolset, truncate_text};
use domain::{
    error::{Error, Result},
    json::Json,
    message::{CallStatus, Message, Part, ToolCall, ToolResult},
};
use llm::ToolDef;

/// The name of the model's tool. A server's tools are called `<server>__<tool>`, so none of them has it.
pub const TOOL: &str = "search_tools";
/// The most tools that one search finds.
const FOUND: usize = 10;
/// Characters of a description in the result of a search. The tool itself has its whole description.
const SHOWN: usize = 200;

/// The names of the tools that a search has found, as they are stored with its result.
#[derive(Serialize, Deserialize)]
struct Found {
    tools: Vec<String>,
}

/// Whether there are more tools than a request takes.
pub fn is_needed(toolset: &Toolset, most: usize) -> bool {
    toolset.len() > most
}

/// The tools of a request. `messages` are the messages that the model reads.
pub fn tools_to_offer(
    toolset: &Toolset,
    messages: &[Message],
    most: usize,
) -> Result<Vec<ToolDef>> {
    if !is_needed(toolset, most) {
        return Ok(toolset.iter().map(|(_, named)| define(named)).collect());
    }
    let mut names: Vec<&str> = Vec::new();
    let found = messages
        .iter()
        .rev()
        .flat_map(|message| message.parts.iter().rev());
    let found: Vec<Vec<String>> = found.map(names_in).collect();
    for name in found.iter().flatten() {
        if names.len() + 1 < most && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    // The tools stand in the pack's order, so that requests of one conversation begin alike.
    let known = toolset
        .iter()
        .filter(|(_, named)| names.contains(&named.name.as_str()))
        .map(|(_, named)| define(named));
    Ok(std::iter::once(definition(toolset)?).chain(known).collect())
}

/// The tools that a part of a message makes known: a tool that was called, or the tools that a search has found.
fn names_in(part: &Part) -> Vec<String> {
    match part {
        Part::ToolCall(call) if call.server.is_some() => vec![call.name.clone()],
        Part::ToolResult(result) => result
            .raw
            .as_ref()
            .and_then(|raw| serde_json::from_str::<Found>(raw.get()).ok())
            .map(|found| found.tools)
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn define(named: &NamedTool) -> ToolDef {
    ToolDef {
        name: named.name.clone(),
        description: named.tool.description.clone(),
        schema: named.tool.input_schema.clone().into(),
    }
}

fn definition(toolset: &Toolset) -> Result<ToolDef> {
    let schema = json!({
        "type": "object",
        "properties": { "query": { "type": "string", "description": "a few words, as in a name or a description" } },
        "required": ["query"],
    });
    Ok(ToolDef {
        name: TOOL.to_owned(),
        description: format!(
            "Searches the {} tools of this user by words. The tools that it finds can be called from the next step on. \
             Search before you say that there is no tool for something.",
            toolset.len()
        ),
        schema: to_raw_value(&schema).map_err(Error::internal)?.into(),
    })
}

/// Answers a call of the model's tool.
pub fn call(toolset: &Toolset, call: &ToolCall) -> Result<ToolResult> {
    let arguments = call.arguments();
    let Some(query) = arguments.get("query").and_then(Json::as_text) else {
        let text = format!("not executed: {TOOL} needs the argument `query`");
        return Ok(ToolResult::new(&call.call_id, CallStatus::Denied, text));
    };
    let found = toolset.search(query, FOUND);
    let mut text = if found.is_empty() {
        "No tool fits these words; try others.".to_owned()
    } else {
        "These tools can be called now:".to_owned()
    };
    for (_, named) in &found {
        let description =
            truncate_text(&named.tool.description, SHOWN).replace(['\n', '\r', '\0'], " ");
        text = format!("{text}\n{}: {description}", named.name);
    }
    let tools = found.iter().map(|(_, named)| named.name.clone()).collect();
    let raw = to_raw_value(&Found { tools }).map_err(Error::internal)?;
    Ok(ToolResult {
        raw: Some(raw),
        ..ToolResult::new(&call.call_id, CallStatus::Succeeded, text)
    })
}
