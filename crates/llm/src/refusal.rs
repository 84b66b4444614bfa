//! Reads a provider's refusal: which error it is by its status and body, and which part of the request it is about.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc2822};

use super::{
    ModelError,
    error::{AttemptError, RefusedPart, ToolPlace, clean},
};
use domain::{clock::Clock, secret::Secret};

/// The error for a provider's refusal: a response with this status, or an error event inside a stream (`status` is
/// `None`). `key` is removed from the message.
pub(super) fn refusal_error(
    status: Option<StatusCode>,
    headers: &HeaderMap,
    body: &Value,
    key: Option<&Secret>,
) -> AttemptError {
    let message = message_in_body(body)
        .map(|text| clean(text, key))
        .unwrap_or_default();
    let retry_after = retry_after(headers);
    let status = status
        .or_else(|| status_in_body(body))
        .map(|status| status.as_u16());
    let error = match status {
        Some(401..=403) => ModelError::Unauthorized(message),
        Some(400 | 429) if is_account_problem(body) => ModelError::Unauthorized(message),
        Some(404 | 405 | 410) => ModelError::NotFound(message),
        Some(429) => ModelError::RateLimited { retry_after },
        None | Some(408 | 500..=599) => ModelError::Unavailable {
            reason: message,
            retry_after,
        },
        Some(300..=399) => {
            ModelError::Protocol("it sends elsewhere, and redirects are not followed".to_owned())
        }
        // Among them 413, for a request that is too large.
        Some(400..=499) => ModelError::BadRequest(message),
        Some(_) => ModelError::Protocol(message),
    };
    let refused_part = matches!(error, ModelError::BadRequest(_))
        .then(|| refused_part(body))
        .flatten();
    AttemptError {
        status,
        refused_part,
        ..error.into()
    }
}

/// The `error` of an error body, or the body itself.
fn error_in(body: &Value) -> &Value {
    body.get("error").unwrap_or(body)
}

/// Whether the account has no credit (OpenAI, status 429) or the key is invalid (Gemini, status 400).
fn is_account_problem(body: &Value) -> bool {
    let error = error_in(body);
    let unpaid = ["code", "type"]
        .iter()
        .any(|key| error[key] == "insufficient_quota");
    let details = error["details"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    unpaid
        || details
            .iter()
            .any(|detail| detail["reason"] == "API_KEY_INVALID")
}

/// The status that corresponds to the code of an error inside a stream.
fn status_in_body(body: &Value) -> Option<StatusCode> {
    let error = error_in(body);
    let number = error
        .get("code")
        .and_then(Value::as_u64)
        .and_then(|code| u16::try_from(code).ok());
    if let Some(status) = number
        .and_then(|code| StatusCode::from_u16(code).ok())
        .filter(|code| code.as_u16() >= 400)
    {
        return Some(status);
    }
    let words = ["code", "type", "status"]
        .into_iter()
        .filter_map(|key| error.get(key)?.as_str());
    words
        .into_iter()
        .find_map(|word| match word.to_ascii_lowercase().as_str() {
            "rate_limit_exceeded"
            | "rate_limit_error"
            | "resource_exhausted"
            | "insufficient_quota" => Some(StatusCode::TOO_MANY_REQUESTS),
            "invalid_api_key"
            | "authentication_error"
            | "permission_error"
            | "permission_denied"
            | "unauthenticated" => Some(StatusCode::UNAUTHORIZED),
            "model_not_found" | "not_found_error" | "not_found" => Some(StatusCode::NOT_FOUND),
            "context_length_exceeded"
            | "invalid_request_error"
            | "invalid_argument"
            | "request_too_large" => Some(StatusCode::BAD_REQUEST),
            "overloaded_error" | "api_error" | "server_error" | "unavailable" | "internal" => {
                Some(StatusCode::SERVICE_UNAVAILABLE)
            }
            _ => None,
        })
}

/// The part of the request that a refusal is about, read from its `param` and its message.
fn refused_part(body: &Value) -> Option<RefusedPart> {
    let error = error_in(body);
    let param = error
        .get("param")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let message = message_in_body(body).unwrap_or_default();
    if is_too_long(error, message) {
        return Some(RefusedPart::Length);
    }
    if is_description(param, message) {
        return Some(RefusedPart::LongDescriptions);
    }
    if names_format(param) || names_format(message) {
        return Some(RefusedPart::Format);
    }
    if let Some(place) = refused_tool(param).or_else(|| refused_tool(message)) {
        return Some(RefusedPart::Tool(place));
    }
    if is_some_schema(message) {
        return Some(RefusedPart::Schemas);
    }
    [
        ("temperature", RefusedPart::Temperature),
        ("reasoning_effort", RefusedPart::ReasoningEffort),
        ("stream_options", RefusedPart::StreamOptions),
    ]
    .into_iter()
    .find(|(name, _)| param.starts_with(name) || (param.is_empty() && message.contains(name)))
    .map(|(_, field)| field)
    .or_else(|| refused_images(message))
}

/// Whether a message refuses one image, or all images because the model takes none.
fn refused_images(message: &str) -> Option<RefusedPart> {
    let message = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|words| message.contains(words));
    if !says(&["image"]) {
        return None;
    }
    // The word "support" alone is not enough: the format of one image may not be supported.
    let takes_none = [
        "support image",
        "image input",
        "images are not supported",
        "`image_url`",
    ];
    Some(if says(&takes_none) {
        RefusedPart::AnyImages
    } else {
        RefusedPart::Images
    })
}

/// Whether a tool's description is refused for its length, as in `Invalid 'tools[5].function.description': string too
/// long`.
fn is_description(param: &str, message: &str) -> bool {
    let names_it = |text: &str| text.starts_with("tools") && text.ends_with("description");
    let quoted = message.split('\'').any(names_it);
    (names_it(param) || quoted) && message.to_ascii_lowercase().contains("too long")
}

/// Whether a message refuses a schema without naming the tool, as llama.cpp, Gemini (nesting) and Ollama (types) do.
fn is_some_schema(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    [
        "json schema conversion failed",
        "unrecognized schema",
        "failed to parse grammar",
        "maximum allowed nesting depth",
        "tools.function.parameters",
        "of type api.toolproperty",
        "toolproperty.",
        "toolfunctionparameters",
        "invalid schema",
        "invalid json schema",
        "json schema is invalid",
        "property keys should match",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// Whether a text names the answer format, by its name in a provider's request.
fn names_format(text: &str) -> bool {
    [
        "response_format",
        "output_config",
        "output_format",
        "response_json_schema",
        "responseJsonSchema",
        "response_schema",
        "response mime type",
        "response_mime_type",
        // llama.cpp, beside tools.
        "grammar constraints",
        // Ollama.
        "invalid format",
        "invalid JSON schema in format",
    ]
    .iter()
    .any(|name| text.contains(name))
}

/// Whether a refusal says that the request is longer than the model's context.
fn is_too_long(error: &Value, message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    error["code"] == "context_length_exceeded"
        || [
            "context length",
            "context window",
            "context size",
            "maximum context",
            "prompt is too long",
            "too many tokens",
            "input token count",
            "input is too long",
            "reduce the length",
        ]
        .iter()
        .any(|words| message.contains(words))
}

/// The tool that a text names: by its name (`Invalid schema for function 'x'`) or by its index (`tools.1.custom`,
/// `tools[1].function`, `tools[0].function_declarations[1]`).
fn refused_tool(text: &str) -> Option<ToolPlace> {
    let lower = text.to_ascii_lowercase();
    if !lower.contains("schema") && !lower.contains("tools") && !lower.contains("function") {
        return None;
    }
    for (before, after) in [
        ("function_declarations[", ']'),
        ("tools[", ']'),
        ("tools.", '.'),
    ] {
        if let Some((_, rest)) = lower.split_once(before)
            && let Some((number, _)) = rest.split_once(after)
            && let Ok(at) = number.parse()
        {
            return Some(ToolPlace::Index(at));
        }
    }
    for before in ["functiondeclaration ", "function ", "tool "] {
        for quote in ['\'', '"', '`'] {
            if let Some(at) = lower.find(&format!("{before}{quote}"))
                && let Some((name, _)) = text[at + before.len() + 1..].split_once(quote)
            {
                return Some(ToolPlace::Name(name.to_owned()));
            }
        }
    }
    None
}

/// The message for people in an error body.
fn message_in_body(body: &Value) -> Option<&str> {
    let error = error_in(body);
    [
        error.get("message"),
        Some(error),
        error.get("detail"),
        body.get("message"),
    ]
    .into_iter()
    .find_map(|value| value?.as_str())
}

/// The wait that `Retry-After` asks for, in seconds or until a date (RFC 9110, section 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers
        .get(http::header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = OffsetDateTime::parse(text, &Rfc2822).ok()?;
    Some(Duration::try_from(at - Clock::System.now()).unwrap_or_default())
}
