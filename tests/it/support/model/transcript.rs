//! What a conversation must look like when it is shown to a model, and helpers for rules that read one.

use std::collections::HashSet;

use serde_json::Value;

/// Everything that is wrong with a request.
pub fn violations(body: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    if body["stream"] != true {
        wrong.push("it does not ask for a stream".to_owned());
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        wrong.push("it names no model".to_owned());
    }
    tools(body, &mut wrong);
    messages(body, &mut wrong);
    wrong
}

fn tools(body: &Value, wrong: &mut Vec<String>) {
    let mut names = HashSet::new();
    if body["tools"].as_array().is_some_and(Vec::is_empty) {
        wrong.push("`tools` is an empty list".to_owned());
    }
    for tool in array(&body["tools"]) {
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        if tool["type"] != "function" || !legal(name) {
            wrong.push(format!(
                "the tool {name:?} is not a function with a legal name"
            ));
        }
        if !names.insert(name) {
            wrong.push(format!("two tools are named {name:?}"));
        }
        let schema = &tool["function"]["parameters"];
        if schema["type"] != "object" || !schema["properties"].is_object() {
            wrong.push(format!("the schema of {name:?} is not that of an object"));
        }
    }
}

fn messages(body: &Value, wrong: &mut Vec<String>) {
    let messages = array(&body["messages"]);
    // An agent without a prompt has nothing to say where there are no tools.
    let has_tools = !array(&body["tools"]).is_empty();
    if messages
        .first()
        .is_none_or(|first| first["role"] != "system" && has_tools)
    {
        wrong.push("the first message is not the system's".to_owned());
    }
    let mut waiting: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            match waiting.iter().position(|call| *call == id) {
                Some(index) => drop(waiting.remove(index)),
                None => wrong.push(format!(
                    "message {at} is a result of {id:?}, which nobody waits for"
                )),
            }
        } else if !waiting.is_empty() {
            wrong.push(format!(
                "message {at} stands between calls and their results: {waiting:?}"
            ));
            waiting.clear();
        }
        let blank = text_of(message).trim().is_empty();
        match role {
            "assistant" => waiting = assistant(at, message, blank, wrong),
            "system" | "user" | "tool" if blank => {
                wrong.push(format!("message {at} of {role} is empty"));
            }
            "system" | "user" | "tool" => {}
            other => wrong.push(format!("message {at} has the role {other:?}")),
        }
    }
    if !waiting.is_empty() {
        wrong.push(format!("these calls have no result: {waiting:?}"));
    }
}

fn assistant<'a>(
    at: usize,
    message: &'a Value,
    blank: bool,
    wrong: &mut Vec<String>,
) -> Vec<&'a str> {
    let calls = array(&message["tool_calls"]);
    if blank && calls.is_empty() {
        wrong.push(format!("message {at} of the assistant is empty"));
    }
    let mut ids = Vec::new();
    for call in calls {
        let (id, name) = (
            call["id"].as_str().unwrap_or_default(),
            call["function"]["name"].as_str(),
        );
        if id.is_empty() || ids.contains(&id) {
            wrong.push(format!(
                "message {at} has a call without an id of its own: {id:?}"
            ));
        }
        if !name.is_some_and(legal) {
            wrong.push(format!(
                "message {at} calls {name:?}, which is not a legal name"
            ));
        }
        let arguments = call["function"]["arguments"]
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        if !arguments.is_some_and(|arguments: Value| arguments.is_object()) {
            wrong.push(format!(
                "message {at} calls {name:?} with arguments that are not an object"
            ));
        }
        ids.push(id);
    }
    ids
}

fn legal(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The text of a message, whether it is one string or a list of parts.
pub fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

/// The newest text of the user.
pub fn last_user(request: &Value) -> String {
    let user = array(&request["messages"])
        .iter()
        .rfind(|message| message["role"] == "user");
    user.map(text_of).unwrap_or_default()
}

/// Whether the newest text of the user has `words` in it and nothing was called since: the start of a turn.
pub fn said(request: &Value, words: &str) -> bool {
    let last = array(&request["messages"]).last();
    last.is_some_and(|message| message["role"] == "user" && text_of(message).contains(words))
}

/// The texts of the results that came since the last text of the user.
pub fn results(request: &Value) -> Vec<String> {
    let messages = array(&request["messages"]);
    let since = messages
        .iter()
        .rposition(|message| message["role"] == "user")
        .map_or(0, |at| at + 1);
    messages[since..]
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(text_of)
        .collect()
}

/// The names of the tools that were offered.
pub fn tool_names(request: &Value) -> Vec<String> {
    array(&request["tools"])
        .iter()
        .filter_map(|tool| tool["function"]["name"].as_str())
        .map(str::to_owned)
        .collect()
}
