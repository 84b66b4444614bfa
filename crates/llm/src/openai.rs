//! OpenAI's Chat Completions API, which most other endpoints have too: writes requests and reads the chunks of answers.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use super::{
    Stop, answer_format,
    history::{self, Call, CallResult, Piece, Prepared},
    provider::{Request, UnsupportedParams},
    reply::{CallBuilder, Counts, ReplyBuilder, is_object},
};
use domain::{json, pack::Llm};

const BASE: &str = "https://api.openai.com/v1";

/// Where the endpoint lists its models.
pub(super) fn models_url(base: Option<&str>) -> String {
    format!("{}/models", base.unwrap_or(BASE))
}

pub(super) fn write_request(
    llm: &Llm,
    base: Option<&str>,
    prepared: &Prepared<'_>,
    without: UnsupportedParams,
) -> Request {
    let mut messages = history::chat_messages(prepared, user, call, result);
    if requires_reasoning(llm) {
        let said = messages
            .iter_mut()
            .filter(|message| message["role"] == "assistant");
        said.for_each(|message| message["reasoning_content"] = json!(""));
    }
    if is_gemini_3_or_later(llm) {
        let calls = messages.iter_mut().filter_map(|message| calls_mut(message));
        calls.flatten().for_each(|call| {
            // Gemini 3 requires the signatures of its thoughts, which are not stored. This value, from Google's
            // documentation, tells the API that they are missing on purpose.
            call["extra_content"] =
                json!({ "google": { "thought_signature": "skip_thought_signature_validator" } });
        });
    }
    if is_mistral(llm) {
        messages.iter_mut().for_each(shorten_ids);
    }
    let mut body = json!({ "model": llm.model, "stream": true });
    let tools = history::function_tools(prepared);
    if !tools.is_empty() {
        body["tools"] = tools.into();
    }
    let effort = llm.reasoning_effort.filter(|_| !without.reasoning_effort);
    if let Some(effort) = effort {
        body["reasoning_effort"] = effort.as_str().into();
    }
    // Models that take an effort refuse a temperature.
    let temperature = llm
        .temperature
        .filter(|_| effort.is_none() && !without.temperature);
    if let Some(temperature) = temperature {
        body["temperature"] = temperature.into();
    }
    if let Some(limit) = llm.max_tokens {
        let key = if is_reasoning(&llm.model) {
            "max_completion_tokens"
        } else {
            "max_tokens"
        };
        body[key] = limit.into();
    }
    if let Some(format) = prepared.format {
        body["response_format"] = answer_format::openai(format);
    }
    if !without.stream_options {
        body["stream_options"] = json!({ "include_usage": true });
    }
    // The messages come last, so that the beginning of the body stays the same for caches.
    body["messages"] = messages.into();
    Request {
        url: format!("{}/chat/completions", base.unwrap_or(BASE)),
        headers: &[],
        body,
    }
}

/// A message of the user. Without images its content is a plain text, which every endpoint accepts.
fn user(pieces: &[Piece<'_>]) -> Value {
    let has_image = pieces
        .iter()
        .any(|piece| matches!(piece, Piece::Image { .. }));
    if !has_image {
        return json!({ "role": "user", "content": history::text_of(pieces) });
    }
    let parts = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => json!({ "type": "text", "text": text }),
        Piece::Image { media_type, data } => {
            let url = format!("data:{media_type};base64,{}", history::base64(data));
            json!({ "type": "image_url", "image_url": { "url": url } })
        }
    });
    json!({ "role": "user", "content": parts.collect::<Vec<_>>() })
}

fn call(call: &Call<'_>) -> Value {
    let arguments = call.arguments.to_string();
    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
}

fn result(result: &CallResult<'_>) -> Value {
    json!({ "role": "tool", "tool_call_id": result.id, "content": result.text })
}

/// Whether this is a model of OpenAI that accepts the token limit only as `max_completion_tokens`: `o3`, `gpt-5-mini` and
/// later models. A name with a vendor in it belongs to a gateway, which accepts `max_tokens`.
fn is_reasoning(model: &str) -> bool {
    let digit = |text: &str, from: char| text.starts_with(|c| (from..='9').contains(&c));
    match model.strip_prefix("gpt-") {
        _ if model.contains('/') => false,
        Some(version) => digit(version, '5'),
        None => model.strip_prefix('o').is_some_and(|rest| digit(rest, '0')),
    }
}

/// Whether the model refuses assistant messages without `reasoning_content`. The content is not stored, so it is sent
/// empty.
fn requires_reasoning(llm: &Llm) -> bool {
    let host = llm.base_url.as_ref().and_then(Url::host_str);
    let model = llm
        .model
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    host.is_some_and(|host| host.ends_with("deepseek.com"))
        || model.starts_with("kimi-k")
        || model.starts_with("deepseek")
}

/// Whether this is Gemini 3 or later behind OpenAI's API, at Google or at a gateway.
fn is_gemini_3_or_later(llm: &Llm) -> bool {
    let model = llm.model.rsplit('/').next().unwrap_or_default();
    model.starts_with("gemini-") && !model.starts_with("gemini-1") && !model.starts_with("gemini-2")
}

/// Whether this is a model of Mistral. Their chat templates accept only call ids of nine letters and digits.
fn is_mistral(llm: &Llm) -> bool {
    let host = llm.base_url.as_ref().and_then(Url::host_str);
    let model = llm.model.to_ascii_lowercase();
    let families = [
        "mistral",
        "mixtral",
        "ministral",
        "magistral",
        "codestral",
        "devstral",
        "pixtral",
        "voxtral",
    ];
    host.is_some_and(|host| host.ends_with("mistral.ai"))
        || families.iter().any(|family| model.contains(family))
}

/// The calls in a message, if it has any. (`message["tool_calls"]` of a mutable value would give every message a `null`.)
fn calls_mut(message: &mut Value) -> Option<&mut Vec<Value>> {
    message.get_mut("tool_calls")?.as_array_mut()
}

/// Replaces the call ids in a message by ids that Mistral accepts. The same id always gets the same replacement.
fn shorten_ids(message: &mut Value) {
    let shorten = |id: &mut Value| {
        let Some(text) = id.as_str() else { return };
        if text.len() != 9 || !text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            let digest = hex::encode(Sha256::digest(text));
            *id = digest[..9].into();
        }
    };
    for call in calls_mut(message).into_iter().flatten() {
        shorten(&mut call["id"]);
    }
    if message["role"] == "tool" {
        shorten(&mut message["tool_call_id"]);
    }
}

/// Adds one chunk to the reply. The chunk with the usage may come after the one with the stop reason.
pub(super) fn read(chunk: &Value, draft: &mut ReplyBuilder) {
    let choices = chunk["choices"].as_array().map(Vec::as_slice);
    // Only the first of several candidates is the answer.
    let first = |choice: &&Value| choice["index"].as_u64().unwrap_or_default() == 0;
    let choice = choices.unwrap_or_default().iter().find(first);
    let usage = [
        chunk.get("usage"),
        choice.and_then(|choice| choice.get("usage")),
    ];
    if let Some(usage) = usage.into_iter().flatten().find(|usage| usage.is_object()) {
        let count = |key: &str| usage[key].as_u64();
        let input = count("prompt_tokens");
        let rest = || Some(count("total_tokens")?.saturating_sub(input.unwrap_or_default()));
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        draft.usage = Counts {
            input,
            output: count("completion_tokens").or_else(rest),
            // The name that DeepSeek uses.
            cached: cached.or_else(|| count("prompt_cache_hit_tokens")),
        };
    }
    let Some(choice) = choice else { return };
    // Some endpoints send the whole message as their only chunk.
    let delta = choice.get("delta").or_else(|| choice.get("message"));
    if let Some(delta) = delta {
        add_text(delta, draft);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            add_fragment(call, draft);
        }
    }
    if let Some(reason) = choice["finish_reason"]
        .as_str()
        .filter(|reason| !reason.is_empty())
    {
        draft.stop = Some(stop_of(reason));
    }
}

/// Adds the text of a delta, which may come as parts. The model's thoughts are left out.
fn add_text(delta: &Value, draft: &mut ReplyBuilder) {
    match &delta["content"] {
        Value::Array(parts) => parts.iter().for_each(|part| draft.push(part_text(part))),
        part @ Value::Object(_) => draft.push(part_text(part)),
        content => {
            let content = content.as_str().filter(|text| !text.is_empty());
            draft.push(
                content
                    .or_else(|| delta["refusal"].as_str())
                    .unwrap_or_default(),
            );
        }
    }
}

fn part_text(part: &Value) -> &str {
    let text = match part["type"].as_str() {
        Some("text") | None => &part["text"],
        Some("refusal") => &part["refusal"],
        Some(_) => &Value::Null,
    };
    text.as_str().unwrap_or_default()
}

/// Adds a fragment to its call. Endpoints identify a call by index, by id or by both. Where an endpoint gives neither, a
/// new call begins when the arguments of the last call are complete.
fn add_fragment(piece: &Value, draft: &mut ReplyBuilder) {
    let id = match &piece["id"] {
        Value::Number(id) => id.to_string(),
        id => id
            .as_str()
            .filter(|id| *id != "null")
            .unwrap_or_default()
            .to_owned(),
    };
    let name = piece["function"]["name"].as_str().unwrap_or_default();
    let arguments = match &piece["function"]["arguments"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => json::to_text(other),
    };
    let slot = piece["index"].as_u64();
    let calls = &draft.calls;
    let held = match slot {
        Some(_) => calls.iter().rposition(|call| call.slot == slot),
        None if !id.is_empty() => calls.iter().rposition(|call| call.id == id),
        None => {
            let begins = !name.is_empty() || !arguments.is_empty();
            let open = |at: &usize| !begins || !is_object(&calls[*at].arguments);
            calls.len().checked_sub(1).filter(open)
        }
    };
    // Some endpoints give each fragment a new id, and some give all calls the same index.
    let continues = |at: &usize| {
        let call = &calls[*at];
        let other = !id.is_empty() && !call.id.is_empty() && call.id != id;
        !other || (name.is_empty() && !is_object(&call.arguments))
    };
    let at = held.filter(continues).unwrap_or_else(|| {
        draft.calls.push(CallBuilder {
            slot,
            ..CallBuilder::default()
        });
        draft.calls.len() - 1
    });
    let call = &mut draft.calls[at];
    if !id.is_empty() {
        call.id = id;
    }
    if call.name.is_empty() {
        name.clone_into(&mut call.name);
    }
    call.arguments.push_str(&arguments);
}

/// The stop reason, in the words of OpenAI and of compatible servers.
fn stop_of(reason: &str) -> Stop {
    match reason {
        "stop" | "end" | "eos" | "end_turn" | "stop_sequence" => Stop::End,
        "length" | "max_tokens" | "model_length" => Stop::Length,
        "tool_calls" | "function_call" => Stop::ToolCalls,
        "content_filter" => Stop::ContentFilter,
        other => Stop::Other(other.to_owned()),
    }
}
