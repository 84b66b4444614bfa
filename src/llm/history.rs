//! From our turns to a request that every provider takes.
//!
//! Providers refuse a whole conversation for one detail: a call without its result right after, a name with a
//! dot, an empty text, a schema that is not an object. One such row would silence a conversation for good, so
//! all of that is put right here, and a history can be cut anywhere.

use std::collections::HashSet;

use rig_core::{
    completion::{CompletionRequest, OnUnsupported, ToolDefinition},
    message::{
        AssistantContent, CallId, Message, ToolCall, ToolFunction, ToolName, ToolResult,
        ToolResultContent,
    },
};
use serde_json::{Map, Value, json, value::RawValue};

use super::{ModelCall, StepRequest, ToolDef, Turn};
use crate::domain::pack::Llm;

/// Said for a call whose result is not in the history.
const NO_RESULT: &str = "there is no result of this call";
/// Blank texts are refused by some providers.
const NO_TEXT: &str = "(empty)";
/// Schema keywords that providers refuse at the top of a tool's arguments; the server checks them anyway.
const NOT_AT_TOP: [&str; 7] = ["$schema", "$id", "oneOf", "anyOf", "allOf", "enum", "not"];

/// The request of one step.
pub(super) fn request(llm: &Llm, step: &StepRequest) -> CompletionRequest {
    let mut request = CompletionRequest::new("");
    request.chat_history = messages(step);
    request.tools = step.tools.iter().filter_map(definition).collect();
    request.temperature = llm.temperature;
    request.max_tokens = llm.max_tokens;
    // Otherwise a reason the library does not know would make the turn a failed one.
    request.accept_unknown_finish_reasons = true;
    // What the library knows that a model refuses (a temperature, say) is left out instead of failing the step.
    request.options.on_unsupported = Some(OnUnsupported::Ignore);
    request
}

fn messages(step: &StepRequest) -> Vec<Message> {
    let mut messages = Vec::with_capacity(step.history.len() + 1);
    if !step.system.trim().is_empty() {
        messages.push(Message::system(step.system.clone()));
    }
    let mut used = HashSet::new();
    for (at, turn) in step.history.iter().enumerate() {
        match turn {
            Turn::User(text) => messages.push(Message::user(unblank(text))),
            Turn::Assistant { text, calls } => {
                let mut content = Vec::with_capacity(calls.len() + 1);
                if !text.trim().is_empty() {
                    content.push(AssistantContent::text(text.clone()));
                }
                content.extend(
                    calls
                        .iter()
                        .map(|call| AssistantContent::ToolCall(tool_call(call))),
                );
                if !content.is_empty() {
                    messages.push(Message::from(content));
                }
                if !calls.is_empty() {
                    let results = calls
                        .iter()
                        .map(|call| result(call, &step.history, at, &mut used));
                    messages.push(Message::tool_results(results.collect()));
                }
            }
            // Said right after its call, or nowhere.
            Turn::ToolResult { .. } => {}
        }
    }
    messages
}

fn tool_call(call: &ModelCall) -> ToolCall {
    ToolCall::new(
        CallId::from_wire(&call.call_id),
        ToolFunction::parse(legal_name(&call.name), &call.arguments),
    )
}

/// The first result after `at` that answers `call` and answered no other one.
fn result(call: &ModelCall, history: &[Turn], at: usize, used: &mut HashSet<usize>) -> ToolResult {
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
    ToolResult {
        call: CallId::from_wire(&call.call_id),
        name: legal_name(&call.name),
        content: vec![ToolResultContent::text(unblank(text))],
        is_error,
    }
}

fn unblank(text: &str) -> String {
    if text.trim().is_empty() {
        NO_TEXT.to_owned()
    } else {
        text.to_owned()
    }
}

/// A name that a model made up, in the shape that providers accept back.
fn legal_name(name: &str) -> ToolName {
    let fold = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().map(fold).take(64).collect();
    ToolName::new(name)
        .or_else(|_| ToolName::new("unnamed"))
        .expect("`unnamed` is not empty")
}

/// `None` only for a tool without a name, which nobody can call.
fn definition(tool: &ToolDef) -> Option<ToolDefinition> {
    let name = ToolName::new(tool.name.clone()).ok()?;
    Some(ToolDefinition::new(
        name,
        tool.description.clone(),
        schema(&tool.schema),
    ))
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
