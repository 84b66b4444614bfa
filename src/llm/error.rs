//! Why a step failed: what the user of the chat reads, and what the caller branches on.
//!
//! A provider's own words are shown only as one short, cleaned `message_in_body`; they never carry the key, and the raw
//! body, the prompt and addresses stay out.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc2822};

use crate::domain::{clock::Clock, secret::Secret};

/// The longest `message_in_body` of a provider that is shown.
const MAX_CHARS: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    #[error("this agent has no model; use its commands, /help lists them")]
    NoModel,
    /// The operator must fix the key, the account or its rights.
    #[error("the model's provider refused the operator's key{}; ask the operator to check `llm.apiKey`", after(.0))]
    Unauthorized(String),
    /// The operator must fix the model's name or the address.
    #[error("the model was not found{}; ask the operator to check `llm.model` and `llm.baseUrl`", after(.0))]
    NotFound(String),
    #[error("the model has too many requests; try again {}", later(*.retry_after))]
    RateLimited { retry_after: Option<Duration> },
    /// The endpoint cannot be reached, is overloaded or is broken.
    #[error("the model does not answer at the moment{}; try again {}", after(.reason), later(*.retry_after))]
    Unavailable {
        reason: String,
        retry_after: Option<Duration>,
    },
    /// The provider refuses this conversation, for example because it is too long.
    #[error("the model refused the request{}; start a new conversation or ask the operator", after(.0))]
    BadRequest(String),
    #[error("the model's answer broke off before its end; try again")]
    Truncated,
    #[error("the model took too long to answer; try again")]
    TimedOut,
    /// The answer does not follow the protocol of the provider that the pack names.
    #[error("the model's answer was not understood{}; ask the operator to check `llm.provider` and `llm.baseUrl`", after(.0))]
    Protocol(String),
    #[error("the model's answer was too large; ask for less at once")]
    TooLarge,
}

fn after(words: &str) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!(": {}", words.trim_end_matches('.'))
    }
}

fn later(wait: Option<Duration>) -> String {
    match wait.map(|wait| wait.as_secs().max(1)) {
        Some(1) => "in a second".to_owned(),
        Some(seconds) => format!("in {seconds} seconds"),
        None => "in a minute".to_owned(),
    }
}

impl ModelError {
    /// For metrics and log lines, which must not carry what a provider said.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoModel => "no_model",
            Self::Unauthorized(_) => "unauthorized",
            Self::NotFound(_) => "not_found",
            Self::RateLimited { .. } => "rate_limited",
            Self::Unavailable { .. } => "unavailable",
            Self::BadRequest(_) => "bad_request",
            Self::Truncated => "truncated",
            Self::TimedOut => "timed_out",
            Self::Protocol(_) => "protocol",
            Self::TooLarge => "too_large",
        }
    }

    /// The time after which the same request may work, if the provider or our own breaker named one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after } | Self::Unavailable { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }
}

/// A failed attempt, and whether the step may try again.
pub(super) struct AttemptError {
    pub(super) error: ModelError,
    /// The same request may work in a moment, and the provider has computed no part of an answer.
    pub(super) is_retryable: bool,
    /// The endpoint gave no definite answer.
    pub(super) is_outage: bool,
    /// The request field that the endpoint says it does not take.
    pub(super) field: Option<Field>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Temperature,
    StreamOptions,
    /// An image, or images at all.
    Images,
}

impl From<ModelError> for AttemptError {
    fn from(error: ModelError) -> Self {
        let is_outage = matches!(
            error,
            ModelError::Unavailable { .. } | ModelError::Truncated | ModelError::TimedOut
        );
        let is_retryable = matches!(
            error,
            ModelError::Unavailable { .. } | ModelError::RateLimited { .. }
        );
        Self {
            error,
            is_retryable,
            is_outage,
            field: None,
        }
    }
}

/// The error for a provider's refusal, which is a status or an error in the stream. `key` is removed from the
/// message.
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
        Some(400..=499) => ModelError::BadRequest(message),
        Some(_) => ModelError::Protocol(message),
    };
    let field = matches!(error, ModelError::BadRequest(_))
        .then(|| rejected_field(body))
        .flatten();
    AttemptError {
        field,
        ..error.into()
    }
}

/// The `error` of an error body, or the body itself.
fn error_in(body: &Value) -> &Value {
    body.get("error").unwrap_or(body)
}

/// Whether the account has no credit (OpenAI) or the key is invalid (Gemini). Neither status says so.
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

/// The status that corresponds to an error inside a stream.
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

/// The request field that a refusal is about. If `param` does not name the field, the message does.
fn rejected_field(body: &Value) -> Option<Field> {
    let error = error_in(body);
    let param = error
        .get("param")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let message = message_in_body(body).unwrap_or_default();
    [
        ("temperature", Field::Temperature),
        ("stream_options", Field::StreamOptions),
    ]
    .into_iter()
    .find(|(name, _)| param.starts_with(name) || (param.is_empty() && message.contains(name)))
    .map(|(_, field)| field)
    .or_else(|| {
        message
            .to_ascii_lowercase()
            .contains("image")
            .then_some(Field::Images)
    })
}

/// The one `message_in_body` for people in an error body.
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

/// One short line without control characters, without the key and without any text that looks like a key.
pub(super) fn clean(text: &str, key: Option<&Secret>) -> String {
    let text = match key.map(Secret::expose).filter(|key| !key.is_empty()) {
        Some(key) => text.replace(key, "[secret]"),
        None => text.to_owned(),
    };
    let clean_word = |word: &str| {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let keylike = ["sk-", "AIza", "gsk_", "xai-"]
            .iter()
            .any(|start| bare.starts_with(start) && bare.len() > 6);
        if keylike {
            "[secret]".to_owned()
        } else {
            word.chars().filter(|c| !c.is_control()).collect()
        }
    };
    let mut line = text
        .split_whitespace()
        .map(clean_word)
        .collect::<Vec<_>>()
        .join(" ");
    if let Some((cut, _)) = line.char_indices().nth(MAX_CHARS) {
        line.truncate(cut);
        line.push('…');
    }
    line
}

/// `Retry-After`, in seconds or as a date.
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
