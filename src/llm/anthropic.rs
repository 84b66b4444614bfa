//! Anthropic's messages.

use serde_json::{Value, json};

use super::{
    ModelError, StepRequest, Stop,
    history::{self, Message, Piece},
    provider::{Request, UnsupportedParams},
    reply::{CallBuilder, ReplyBuilder, is_object},
};
use crate::domain::pack::{Llm, Provider};

const BASE: &str = "https://api.anthropic.com";

pub(super) fn request(
    llm: &Llm,
    base: Option<&str>,
    step: &StepRequest,
    without: UnsupportedParams,
) -> Request {
    let limit = llm.max_tokens.unwrap_or_else(|| max_tokens(&llm.model));
    let mut body = json!({
        "model": llm.model, "messages": messages(step), "max_tokens": limit, "stream": true,
    });
    if let Some(system) = history::system(step) {
        body["system"] = json!([cached(text(system))]);
    }
    let tools = history::tools(&step.tools, Provider::Anthropic).map(|(tool, schema)| {
        json!({ "name": tool.name, "description": tool.description, "input_schema": schema })
    });
    let mut tools: Vec<Value> = tools.collect();
    if let Some(last) = tools.pop() {
        tools.push(cached(last));
        body["tools"] = tools.into();
    }
    if let Some(temperature) = llm.temperature.filter(|_| !without.temperature) {
        body["temperature"] = temperature.into();
    }
    let base = base.map_or(BASE, |base| base.strip_suffix("/v1").unwrap_or(base));
    Request {
        url: format!("{base}/v1/messages"),
        headers: &[("anthropic-version", "2023-06-01")],
        body,
    }
}

/// The largest `max_tokens` that a model accepts. The API requires the field, and a pack may leave it out.
fn max_tokens(model: &str) -> u64 {
    let is = |families: &[&str]| families.iter().any(|family| model.starts_with(family));
    if is(&[
        "claude-fable-",
        "claude-opus-5",
        "claude-sonnet-5",
        "claude-opus-4-6",
        "claude-opus-4-7",
        "claude-opus-4-8",
        "claude-sonnet-4-6",
    ]) {
        128_000
    } else if is(&["claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-2"]) {
        32_000
    } else if is(&["claude-opus-4", "claude-sonnet-4", "claude-haiku-4-5"]) {
        64_000
    } else {
        8192
    }
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// The last block of what the provider keeps for the next request: tools, system prompt, and the conversation so far.
fn cached(mut block: Value) -> Value {
    block["cache_control"] = json!({ "type": "ephemeral" });
    block
}

fn piece(piece: Piece<'_>) -> Value {
    match piece {
        Piece::Text(said) => text(said),
        Piece::Image { media_type, data } => json!({ "type": "image", "source": {
            "type": "base64", "media_type": media_type, "data": history::base64(data),
        } }),
    }
}

/// In this API, results belong to the user's turn: one message holds them and the user's next text.
fn messages(step: &StepRequest) -> Vec<Value> {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in history::messages(&step.history) {
        let (role, blocks) = match message {
            Message::User(pieces) => ("user", pieces.into_iter().map(piece).collect()),
            Message::Assistant { text: said, calls } => {
                let said = Some(said).filter(|said| !said.is_empty());
                let said = said.map(|said| text(&said));
                let calls = calls.into_iter().map(|call| {
                    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments.to_value() })
                });
                (
                    "assistant",
                    said.into_iter().chain(calls).collect::<Vec<_>>(),
                )
            }
            Message::Results(results) => {
                let results = results.into_iter().map(|result| {
                    let mut block = json!({
                        "type": "tool_result", "tool_use_id": result.id, "content": [text(result.text)],
                    });
                    if result.is_error {
                        block["is_error"] = true.into();
                    }
                    block
                });
                ("user", results.collect())
            }
        };
        match messages.last_mut() {
            Some(("user", last)) if role == "user" => last.extend(blocks),
            _ => messages.push((role, blocks)),
        }
    }
    if let Some(last) = messages
        .last_mut()
        .and_then(|(_, blocks)| blocks.last_mut())
    {
        *last = cached(last.take());
    }
    let message = |(role, content)| json!({ "role": role, "content": content });
    messages.into_iter().map(message).collect()
}

/// Takes in one event; `true` after the last one.
pub(super) fn read(event: &Value, draft: &mut ReplyBuilder) -> Result<bool, ModelError> {
    let slot = event["index"].as_u64();
    match event["type"].as_str().unwrap_or_default() {
        "message_start" => draft.usage = usage(&event["message"]["usage"]),
        "content_block_start" => {
            let block = &event["content_block"];
            match block["type"].as_str() {
                Some("text") => draft.push(block["text"].as_str().unwrap_or_default()),
                Some("tool_use") => {
                    let field = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
                    draft.calls.push(CallBuilder {
                        slot,
                        id: field("id"),
                        name: field("name"),
                        arguments: String::new(),
                        input: Some(block["input"].clone()).filter(Value::is_object),
                        is_open: true,
                    });
                }
                _ => {}
            }
        }
        "content_block_delta" => {
            let delta = &event["delta"];
            draft.push(delta["text"].as_str().unwrap_or_default());
            if let Some(call) = draft.call_in(slot) {
                call.arguments
                    .push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
        }
        "content_block_stop" => {
            if let Some(call) = draft.call_in(slot) {
                call.is_open = false;
            }
        }
        "message_delta" => {
            let Some(reason) = event["delta"]["stop_reason"].as_str() else {
                return Ok(false);
            };
            let (input, output) = usage(&event["usage"]);
            draft.usage = (input.filter(|count| *count > 0).or(draft.usage.0), output);
            let stop = stop(reason);
            // Only a limit or a filter can end the answer in the middle of a call.
            let is_whole = !matches!(stop, Stop::Length | Stop::ContentFilter);
            draft.stop = Some(stop);
            let is_cut = |call: &CallBuilder| {
                call.is_open && !call.arguments.is_empty() && !is_object(&call.arguments)
            };
            return if is_whole && draft.calls.iter().any(is_cut) {
                Err(ModelError::Truncated)
            } else {
                Ok(true)
            };
        }
        _ => {}
    }
    Ok(false)
}

/// Tokens read from a cache count as input.
fn usage(usage: &Value) -> (Option<u64>, Option<u64>) {
    let count = |key: &str| usage[key].as_u64();
    let cached = ["cache_read_input_tokens", "cache_creation_input_tokens"]
        .into_iter()
        .filter_map(count);
    let input = count("input_tokens").map(|tokens| tokens + cached.sum::<u64>());
    (input, count("output_tokens"))
}

fn stop(reason: &str) -> Stop {
    match reason {
        "end_turn" | "stop_sequence" | "pause_turn" => Stop::End,
        "max_tokens" | "model_context_window_exceeded" => Stop::Length,
        "tool_use" => Stop::ToolCalls,
        "refusal" => Stop::ContentFilter,
        other => Stop::Other(other.to_owned()),
    }
}
