//! Gemini's `streamGenerateContent`: writes requests and reads the chunks of answers.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{
    ModelError, Stop, answer_format,
    history::{self, Message, Piece, Prepared, PreparedTool},
    provider::{Request, UnsupportedParams},
    reply::{CallBuilder, Counts, ReplyBuilder},
};
use domain::pack::Llm;

const BASE: &str = "https://generativelanguage.googleapis.com";

/// Where the endpoint lists its models.
pub(super) fn models_url(base: Option<&str>) -> String {
    format!("{}/v1beta/models?pageSize=1000", without_version(base))
}

fn without_version(base: Option<&str>) -> &str {
    base.map_or(BASE, |base| base.strip_suffix("/v1beta").unwrap_or(base))
}

pub(super) fn write_request(
    llm: &Llm,
    base: Option<&str>,
    prepared: &Prepared<'_>,
    without: UnsupportedParams,
) -> Request {
    let model = llm.model.strip_prefix("models/").unwrap_or(&llm.model);
    let mut body = json!({});
    let temperature = llm
        .temperature
        .filter(|_| !without.temperature)
        .map(Value::from);
    let config = [
        ("temperature", temperature),
        ("maxOutputTokens", llm.max_tokens.map(Value::from)),
    ];
    let format = prepared
        .format
        .filter(|_| prepared.tools.is_empty() || is_gemini_3_or_later(model));
    let format = format.map(answer_format::gemini);
    let config = config
        .into_iter()
        .chain(format.into_iter().flatten())
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let config: Map<String, Value> = config.collect();
    if !config.is_empty() {
        body["generationConfig"] = config.into();
    }
    if let Some(system) = prepared.system {
        body["systemInstruction"] = json!({ "parts": [{ "text": system }] });
    }
    let declare = |tool: &PreparedTool<'_>| json!({ "name": tool.name, "description": tool.description, "parametersJsonSchema": tool.schema });
    let tools: Vec<Value> = prepared.tools.iter().map(declare).collect();
    if !tools.is_empty() {
        body["tools"] = json!([{ "functionDeclarations": tools }]);
    }
    body["contents"] = contents(model, prepared).into();
    let base = without_version(base);
    Request {
        url: format!("{base}/v1beta/models/{model}:streamGenerateContent?alt=sse"),
        headers: &[],
        body,
    }
}

/// The contents. In this API, results are a content of their own with the role `user`.
fn contents(model: &str, prepared: &Prepared<'_>) -> Vec<Value> {
    let is_current = is_gemini_3_or_later(model);
    let text = |text: Cow<'_, str>| json!({ "text": text });
    let piece = |piece| match piece {
        Piece::Text(said) => text(said.into()),
        Piece::Image { media_type, data } => {
            json!({ "inlineData": { "mimeType": media_type, "data": history::base64(data) } })
        }
    };
    let content = |message| match message {
        Message::User(pieces) => ("user", pieces.into_iter().map(piece).collect()),
        Message::Assistant { text: said, calls } => {
            let said = Some(said).filter(|said| !said.is_empty()).map(text);
            let calls = calls.into_iter().map(|call| {
                let mut part =
                    json!({ "functionCall": { "name": call.name, "args": call.arguments.to_value() } });
                if is_current {
                    part["functionCall"]["id"] = call.id.into();
                    // The signatures of the model's thoughts are not stored. This value, from Google's
                    // documentation, tells the API that they are missing on purpose.
                    part["thoughtSignature"] = "skip_thought_signature_validator".into();
                }
                part
            });
            ("model", said.into_iter().chain(calls).collect::<Vec<_>>())
        }
        Message::Results(results) => {
            let mut images = Vec::new();
            let results = results.into_iter().map(|result| {
                images.extend(result.images);
                let key = if result.is_error { "error" } else { "result" };
                let mut part = json!({ "name": result.name, "response": { key: result.text } });
                if is_current {
                    part["id"] = result.id.into();
                }
                json!({ "functionResponse": part })
            });
            let results: Vec<Value> = results.collect();
            // All results first: their number must be that of the calls.
            let images = images.into_iter().map(piece);
            ("user", results.into_iter().chain(images).collect())
        }
    };
    let contents = prepared.messages().into_iter().map(content);
    contents
        .map(|(role, parts)| json!({ "role": role, "parts": parts }))
        .collect()
}

/// Whether a model requires the ids of calls and the signatures of thoughts; earlier versions refuse them. A name without a
/// number means the newest version.
fn is_gemini_3_or_later(model: &str) -> bool {
    model.strip_prefix("gemini-").is_some_and(|version| {
        let number: String = version.chars().take_while(char::is_ascii_digit).collect();
        number
            .parse()
            .map_or(number.is_empty(), |major: u32| major >= 3)
    })
}

/// Adds one chunk to the reply; `true` when the rest of the stream must be ignored.
pub(super) fn read(chunk: &Value, draft: &mut ReplyBuilder) -> Result<bool, ModelError> {
    if let Some(usage) = chunk.get("usageMetadata") {
        let count = |key: &str| usage[key].as_u64().unwrap_or_default();
        let input = count("promptTokenCount") + count("toolUsePromptTokenCount");
        let output = count("candidatesTokenCount") + count("thoughtsTokenCount");
        draft.usage = Counts {
            input: Some(input),
            output: Some(output),
            cached: usage["cachedContentTokenCount"].as_u64(),
        };
    }
    match chunk["promptFeedback"]["blockReason"].as_str() {
        None | Some("BLOCK_REASON_UNSPECIFIED" | "BLOCKED_REASON_UNSPECIFIED") => {}
        Some(
            "SAFETY" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "IMAGE_SAFETY" | "MODEL_ARMOR"
            | "JAILBREAK",
        ) => {
            draft.stop = Some(Stop::ContentFilter);
            return Ok(true);
        }
        // Other reasons have nothing to do with the content, so the next attempt may succeed.
        Some(_) => {
            return Err(ModelError::Unavailable {
                reason: String::new(),
                retry_after: None,
            });
        }
    }
    let candidate = &chunk["candidates"][0];
    for part in candidate["content"]["parts"]
        .as_array()
        .into_iter()
        .flatten()
    {
        if let Some(call) = part.get("functionCall") {
            draft.calls.push(CallBuilder {
                id: call["id"].as_str().unwrap_or_default().to_owned(),
                name: call["name"].as_str().unwrap_or_default().to_owned(),
                input: call.get("args").cloned(),
                ..CallBuilder::default()
            });
        } else if part["thought"] != true {
            draft.push(part["text"].as_str().unwrap_or_default());
        }
    }
    let Some(reason) = candidate["finishReason"].as_str() else {
        return Ok(false);
    };
    let stop = stop_of(reason);
    // An answer that uses Google's own tools may stop and continue.
    let is_final = !matches!(stop, Stop::End | Stop::Length);
    draft.stop = Some(stop);
    Ok(is_final)
}

fn stop_of(reason: &str) -> Stop {
    match reason {
        "STOP" => Stop::End,
        "MAX_TOKENS" => Stop::Length,
        "SAFETY"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "MODEL_ARMOR" => Stop::ContentFilter,
        other => Stop::Other(other.to_owned()),
    }
}
