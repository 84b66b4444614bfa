//! Why a step failed: the message for the user of the chat, and the kinds that callers branch on.
//!
//! Of a provider's own text, a message holds at most one short, cleaned line. It never holds the key, the raw body, the
//! prompt or an address.

use std::time::Duration;

use domain::secret::Secret;

/// The most characters of a provider's own message that are shown.
const MAX_CHARS: usize = 300;

/// How long a client waits that asks a busy model again, where the provider does not say it.
const PAUSE: Duration = Duration::from_secs(5);

/// Why a step failed. The display text is for the user of the chat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    #[error("this agent has no model; use its commands, /help lists them")]
    NoModel,
    /// The operator must fix the key, the account or its rights.
    #[error("the model's provider refused the operator's key{}; ask the operator to check `llm.apiKey`", with_colon(.0))]
    Unauthorized(String),
    /// The operator must fix the model's name or the address.
    #[error("the model was not found{}; ask the operator to check `llm.model` and `llm.baseUrl`", with_colon(.0))]
    NotFound(String),
    #[error("the model has too many requests; try again {}", retry_note(*.retry_after))]
    RateLimited { retry_after: Option<Duration> },
    /// The endpoint cannot be reached, is overloaded or is broken.
    #[error("the model does not answer at the moment{}; try again {}", with_colon(.reason), retry_note(*.retry_after))]
    Unavailable {
        reason: String,
        retry_after: Option<Duration>,
    },
    /// The endpoint failed several times in a row, and no request is sent to it for this long.
    #[error("the model does not answer at the moment; try again {}", retry_note(Some(*.retry_after)))]
    Paused { retry_after: Duration },
    /// The provider refuses this conversation, for example because it is too long.
    #[error("the model refused the request{}; start a new conversation or ask the operator", with_colon(.0))]
    BadRequest(String),
    /// The provider refuses a tool, and which one could not be found out.
    #[error("the model's provider refused the agent's tools{}; ask the operator to leave out the one that it is, with `tools` of its server", with_colon(.0))]
    RefusedTools(String),
    #[error("the model's answer broke off before its end; try again")]
    Truncated,
    #[error("the model took too long to answer; try again")]
    TimedOut,
    /// The answer does not follow the protocol of the provider that the pack names.
    #[error("the model's answer was not understood{}; ask the operator to check `llm.provider` and `llm.baseUrl`", with_colon(.0))]
    Protocol(String),
    #[error("the model's answer was too large; ask for less at once")]
    TooLarge,
}

/// `: words`, or nothing for an empty text.
fn with_colon(words: &str) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!(": {}", words.trim_end_matches('.'))
    }
}

fn retry_note(wait: Option<Duration>) -> String {
    match wait.map(|wait| wait.as_secs().max(1)) {
        Some(1) => "in a second".to_owned(),
        Some(seconds) => format!("in {seconds} seconds"),
        None => "in a minute".to_owned(),
    }
}

impl ModelError {
    /// Every code of a request that failed.
    pub const CODES: &[&str] = &[
        "unauthorized",
        "not_found",
        "rate_limited",
        "unavailable",
        "bad_request",
        "truncated",
        "timed_out",
        "protocol",
        "too_large",
    ];

    /// A code for metrics and log lines, which must not carry a provider's text.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoModel => "no_model",
            Self::Unauthorized(_) => "unauthorized",
            Self::NotFound(_) => "not_found",
            Self::RateLimited { .. } => "rate_limited",
            Self::Unavailable { .. } | Self::Paused { .. } => "unavailable",
            Self::BadRequest(_) | Self::RefusedTools(_) => "bad_request",
            Self::Truncated => "truncated",
            Self::TimedOut => "timed_out",
            Self::Protocol(_) => "protocol",
            Self::TooLarge => "too_large",
        }
    }

    /// When the same request may work, if what failed it passes.
    pub fn passes_after(&self) -> Option<Duration> {
        let passes = matches!(
            self,
            Self::RateLimited { .. } | Self::Unavailable { .. } | Self::Paused { .. }
        );
        passes.then(|| self.retry_after().unwrap_or(PAUSE))
    }

    /// The time after which the same request may work, if the provider or our circuit breaker named one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after } | Self::Unavailable { retry_after, .. } => {
                *retry_after
            }
            Self::Paused { retry_after } => Some(*retry_after),
            _ => None,
        }
    }
}

/// A failed attempt, with what the step needs to decide whether to try again.
pub(super) struct AttemptError {
    pub(super) error: ModelError,
    /// The same request may work in a moment, and the provider has computed no part of an answer.
    pub(super) is_retryable: bool,
    /// The status of the endpoint's answer, if it is what says that the attempt failed.
    pub(super) status: Option<u16>,
    /// Nothing came from the endpoint.
    pub(super) outage: Option<Outage>,
    /// The part of the request that the endpoint refused, if the refusal names one.
    pub(super) refused_part: Option<RefusedPart>,
}

/// Why nothing came from an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outage {
    /// No connection could be made.
    Unreachable,
    /// The connection or the time limit ended before the first byte of an answer. The request itself may be the reason.
    Silent,
}

impl Outage {
    /// The error of an attempt that failed with this outage.
    pub(super) fn into_error(self, error: ModelError) -> AttemptError {
        AttemptError {
            outage: Some(self),
            ..error.into()
        }
    }
}

/// A part of a request that an endpoint refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RefusedPart {
    Temperature,
    ReasoningEffort,
    StreamOptions,
    /// The description of some tool, for its length.
    LongDescriptions,
    /// The schema of some tool; the refusal does not say which.
    Schemas,
    /// The answer format.
    Format,
    /// One of the images.
    Images,
    /// All images: the model takes none.
    AnyImages,
    /// The length of the request.
    Length,
    /// One tool, mostly for its schema.
    Tool(ToolPlace),
}

/// How a refusal names a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolPlace {
    Name(String),
    /// The index of the tool in the request.
    Index(usize),
}

impl From<ModelError> for AttemptError {
    fn from(error: ModelError) -> Self {
        let is_retryable = matches!(
            error,
            ModelError::Unavailable { .. } | ModelError::RateLimited { .. }
        );
        Self {
            error,
            is_retryable,
            status: None,
            outage: None,
            refused_part: None,
        }
    }
}

/// Cleans a provider's text for a message: one short line without control characters, without the key and without words
/// that look like a key.
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
