//! The Messages API of Anthropic: writes requests and reads the events of answers.

use serde_json::{Value, json};

use super::{
    ModelError, Stop, answer_format,
    history::{self, Message, Piece, Prepared, PreparedTool},
    provider::{Request, UnsupportedParams},
    reply::{CallBuilder, Counts, ReplyBuilder, is_object},
};
use domain::pack::Llm;

/// What every request carries.
pub(super) const HEADERS: &[(&str, &str)] = &[("anthropic-version", "2023-06-01")];
const BASE: &str = "https://api.anthropic.com";
/// The provider looks for a cached beginning in the 20 content blocks before a cache mark; one less, to be safe.
const CACHE_LOOKBACK: usize = 19;

/// Where the endpoint lists its models.
pub(super) fn models_url(base: Option<&str>) -> String {
    format!("{}/v1/models?limit=1000", without_version(base))
}

fn without_version(base: Option<&str>) -> &str {
    base.map_or(BASE, |base| base.strip_suffix("/v1").unwrap_or(base))
}

pub(super) fn write_request(
    llm: &Llm,
    base: Option<&str>,
    prepared: &Prepared<'_>,
    without: UnsupportedParams,
) -> Request {
    let limit = llm.max_tokens.unwrap_or_else(|| max_tokens(&llm.model));
    let mut body = json!({ "model": llm.model, "max_tokens": limit, "stream": true });
    if let Some(temperature) = llm.temperature.filter(|_| !without.temperature) {
        body["temperature"] = temperature.into();
    }
    let define = |tool: &PreparedTool<'_>| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.schema });
    let mut tools: Vec<Value> = prepared.tools.iter().map(define).collect();
    if let Some(last) = tools.last_mut() {
        mark_cached(last);
        body["tools"] = tools.into();
    }
    if let Some(system) = prepared.system {
        let mut system = text_block(system);
        mark_cached(&mut system);
        body["system"] = json!([system]);
    }
    body["messages"] = messages(prepared).into();
    if let Some(config) = prepared.format.and_then(answer_format::anthropic) {
        body["output_config"] = config;
    }
    let base = without_version(base);
    Request {
        url: format!("{base}/v1/messages"),
        headers: HEADERS,
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

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// Marks a block: the provider caches the request up to it. The tools, the system prompt and the conversation are marked;
/// a request may have four marks.
fn mark_cached(block: &mut Value) {
    block["cache_control"] = json!({ "type": "ephemeral" });
}

fn content_block(piece: Piece<'_>) -> Value {
    match piece {
        Piece::Text(text) => text_block(text),
        Piece::Image { media_type, data } => json!({ "type": "image", "source": {
            "type": "base64", "media_type": media_type, "data": history::base64(data),
        } }),
    }
}

/// The messages. In this API, results belong to the user's turn: one message holds them and the user's next text.
fn messages(prepared: &Prepared<'_>) -> Vec<Value> {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in prepared.messages() {
        let (role, blocks) = match message {
            Message::User(pieces) => ("user", pieces.into_iter().map(content_block).collect()),
            Message::Assistant { text: said, calls } => {
                let said = Some(said).filter(|said| !said.is_empty());
                let said = said.map(|said| text_block(&said));
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
                    let said = std::iter::once(text_block(result.text));
                    let content: Vec<Value> = said
                        .chain(result.images.into_iter().map(content_block))
                        .collect();
                    let mut block = json!({
                        "type": "tool_result", "tool_use_id": result.id, "content": content,
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
    mark_ends(&mut messages);
    let message = |(role, content)| json!({ "role": role, "content": content });
    messages.into_iter().map(message).collect()
}

/// Marks the end of the conversation for the cache. When more than [`CACHE_LOOKBACK`] blocks were added since the request
/// before, the end of that request is marked too, or its cached beginning would not be found.
fn mark_ends(messages: &mut [(&str, Vec<Value>)]) {
    let mut since = 0;
    for (at, (role, blocks)) in messages.iter_mut().rev().enumerate() {
        let is_end = *role == "user" && (at == 0 || since >= CACHE_LOOKBACK);
        if let (true, Some(last)) = (is_end, blocks.last_mut()) {
            mark_cached(last);
        }
        since += blocks.len();
        if since >= CACHE_LOOKBACK && is_end && at > 0 {
            break;
        }
    }
}

/// Adds one event to the reply; `true` after the last one.
pub(super) fn read(event: &Value, draft: &mut ReplyBuilder) -> Result<bool, ModelError> {
    let slot = event["index"].as_u64();
    match event["type"].as_str().unwrap_or_default() {
        "message_start" => draft.usage = read_usage(&event["message"]["usage"]),
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
            let last = read_usage(&event["usage"]);
            draft.usage = Counts {
                input: last.input.max(draft.usage.input),
                output: last.output,
                cached: last.cached.max(draft.usage.cached),
            };
            let stop = stop_of(reason);
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

/// The token counts. `input_tokens` of this API does not include the tokens that are read from the cache or written to
/// it; they are added.
fn read_usage(usage: &Value) -> Counts {
    let count = |key: &str| usage[key].as_u64();
    let cached = count("cache_read_input_tokens");
    let cache_tokens =
        cached.unwrap_or_default() + count("cache_creation_input_tokens").unwrap_or_default();
    Counts {
        input: count("input_tokens").map(|tokens| tokens + cache_tokens),
        output: count("output_tokens"),
        cached,
    }
}

fn stop_of(reason: &str) -> Stop {
    match reason {
        "end_turn" | "stop_sequence" | "pause_turn" => Stop::End,
        "max_tokens" | "model_context_window_exceeded" => Stop::Length,
        "tool_use" => Stop::ToolCalls,
        "refusal" => Stop::ContentFilter,
        other => Stop::Other(other.to_owned()),
    }
}
