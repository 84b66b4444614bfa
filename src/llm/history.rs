//! Converts our turns to messages that every provider accepts.
//!
//! Providers refuse a whole conversation for one detail: a call without its result right after, a name with a
//! dot, an empty text, a schema that is not an object. One such row would break a conversation for good. This
//! module corrects all of these, so a history can be cut anywhere.

use std::collections::HashSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json, value::RawValue};

use super::{ModelCall, StepRequest, ToolDef, Turn};

/// The result of a call whose own result is not in the history.
const NO_RESULT: &str = "there is no result of this call";
/// Sent in place of a blank text, which some providers refuse.
const NO_TEXT: &str = "(empty)";
/// Schema keywords that providers refuse at the top level of a tool's arguments. The server still checks
/// them.
const NOT_AT_TOP: [&str; 7] = ["$schema", "$id", "oneOf", "anyOf", "allOf", "enum", "not"];

#[derive(Debug)]
pub(super) enum Message<'a> {
    /// What the user said and showed, without anything of the model between.
    User(Vec<Piece<'a>>),
    Assistant {
        text: &'a str,
        calls: Vec<Call<'a>>,
    },
    /// One result for each call of the message before, in the order of the calls.
    Results(Vec<CallResult<'a>>),
}

/// A text or an image of the user.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece<'a> {
    Text(&'a str),
    Image { media_type: &'a str, data: &'a [u8] },
}

/// The data of an image as JSON carries it.
pub(super) fn base64(data: &[u8]) -> String {
    STANDARD.encode(data)
}

#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) id: &'a str,
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

#[derive(Debug)]
pub(super) struct CallResult<'a> {
    pub(super) id: &'a str,
    pub(super) name: String,
    pub(super) text: &'a str,
    pub(super) is_error: bool,
}

/// The system prompt, if there is one.
pub(super) fn system(request: &StepRequest) -> Option<&str> {
    Some(request.system.as_str()).filter(|text| !text.trim().is_empty())
}

pub(super) fn messages(history: &[Turn]) -> Vec<Message<'_>> {
    let mut messages = Vec::with_capacity(history.len());
    let mut used = HashSet::new();
    for (at, turn) in history.iter().enumerate() {
        match turn {
            Turn::User(text) => add(&mut messages, Piece::Text(non_blank(text))),
            Turn::Image { media_type, data } => {
                add(&mut messages, Piece::Image { media_type, data });
            }
            Turn::Assistant { text, calls } => {
                let text = if text.trim().is_empty() { "" } else { text };
                if !text.is_empty() || !calls.is_empty() {
                    messages.push(Message::Assistant {
                        text,
                        calls: calls.iter().map(call).collect(),
                    });
                }
                if !calls.is_empty() {
                    let results = calls
                        .iter()
                        .map(|call| result(call, history, at, &mut used));
                    messages.push(Message::Results(results.collect()));
                }
            }
            // A result stands right after its call, or nowhere.
            Turn::ToolResult { .. } => {}
        }
    }
    messages
}

fn add<'a>(messages: &mut Vec<Message<'a>>, piece: Piece<'a>) {
    match messages.last_mut() {
        Some(Message::User(pieces)) => pieces.push(piece),
        _ => messages.push(Message::User(vec![piece])),
    }
}

/// The texts of the user in one.
pub(super) fn text_of(pieces: &[Piece<'_>]) -> String {
    let texts = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(*text),
        Piece::Image { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn call(call: &ModelCall) -> Call<'_> {
    Call {
        id: &call.call_id,
        name: legal_name(&call.name),
        arguments: serde_json::from_str(&call.arguments).unwrap_or_default(),
    }
}

/// The first result after `at` that belongs to `call` and was not used for another call.
fn result<'a>(
    call: &'a ModelCall,
    history: &'a [Turn],
    at: usize,
    used: &mut HashSet<usize>,
) -> CallResult<'a> {
    let found = history
        .iter()
        .enumerate()
        .skip(at + 1)
        .find_map(|(index, turn)| match turn {
            Turn::ToolResult {
                call_id,
                text,
                is_error,
                ..
            } if *call_id == call.call_id && !used.contains(&index) => {
                Some((index, text.as_str(), *is_error))
            }
            _ => None,
        });
    let (text, is_error) = found.map_or((NO_RESULT, true), |(index, text, is_error)| {
        used.insert(index);
        (text, is_error)
    });
    CallResult {
        id: &call.call_id,
        name: legal_name(&call.name),
        text: non_blank(text),
        is_error,
    }
}

fn non_blank(text: &str) -> &str {
    if text.trim().is_empty() {
        NO_TEXT
    } else {
        text
    }
}

/// A name that a model invented, changed so that providers accept it in a history.
fn legal_name(name: &str) -> String {
    let fold = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().map(fold).take(64).collect();
    if name.is_empty() {
        "unnamed".to_owned()
    } else {
        name
    }
}

/// Each tool with the schema of its arguments.
pub(super) fn tools(tools: &[ToolDef]) -> impl Iterator<Item = (&ToolDef, Value)> {
    let named = tools.iter().filter(|tool| !tool.name.is_empty());
    named.map(|tool| (tool, schema(&tool.schema)))
}

fn schema(raw: &RawValue) -> Value {
    let mut schema: Map<String, Value> = serde_json::from_str(raw.get()).unwrap_or_default();
    schema.retain(|key, _| !NOT_AT_TOP.contains(&key.as_str()));
    schema.insert("type".to_owned(), json!("object"));
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".to_owned(), json!({}));
    }
    Value::Object(schema)
}

/// The messages in the form that OpenAI and Ollama share. `user`, `call` and `result` write the parts that differ.
pub(super) fn chat_messages(
    request: &StepRequest,
    user: impl Fn(&[Piece<'_>]) -> Value,
    call: impl Fn(&Call<'_>) -> Value,
    result: impl Fn(&CallResult<'_>) -> Value,
) -> Vec<Value> {
    let system = system(request).map(|text| json!({ "role": "system", "content": text }));
    let mut chat: Vec<Value> = system.into_iter().collect();
    for message in messages(&request.history) {
        match message {
            Message::User(pieces) => chat.push(user(&pieces)),
            Message::Assistant { text, calls } => {
                let mut message = json!({ "role": "assistant", "content": text });
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().map(&call).collect();
                }
                chat.push(message);
            }
            Message::Results(results) => chat.extend(results.iter().map(&result)),
        }
    }
    chat
}

/// The tools in the form that OpenAI and Ollama share.
pub(super) fn function_tools(request: &StepRequest) -> Vec<Value> {
    let function = |(tool, schema): (&ToolDef, Value)| {
        json!({ "type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": schema,
        } })
    };
    tools(&request.tools).map(function).collect()
}
