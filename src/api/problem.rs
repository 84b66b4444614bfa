//! The answer to a failed request: problem+json (RFC 9457), or OpenAI's error object on the routes that OpenAI clients
//! use.
//!
//! A handler returns a [`Problem`]. [`layers`] logs it and writes the body, because only it knows the request's id,
//! span and format. A cause is logged and never sent.
//!
//! [`layers`]: super::layers

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;

use super::web;
use domain::{
    error::{Error, ErrorCode, Missing, Reason},
    ids::{ConversationId, RunId},
};

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub status: StatusCode,
    /// For programs. It never changes for a case.
    pub code: ErrorCode,
    /// For people: a sentence, or a clause that continues the name of the field.
    pub detail: String,
    /// The path of the input that cannot be used.
    pub field: Option<String>,
    /// Whether the detail is a sentence that names the field itself.
    pub is_sentence: bool,
    pub retry_after: Option<Duration>,
    /// Whether something was done already, so that a client must not simply send the request again.
    pub begun: bool,
    /// The run that the request has begun or asked for.
    pub run: Option<AnswerIds>,
    /// Whether the request failed because an agent was not found.
    pub is_unknown_agent: bool,
    /// For the log only.
    pub cause: Option<Arc<anyhow::Error>>,
}

/// The conversation and the run with the answer to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerIds {
    pub conversation: ConversationId,
    pub run: RunId,
    /// Whether the run has ended, and the problem is its end.
    pub is_over: bool,
}

impl Problem {
    pub fn new(status: StatusCode, code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            field: None,
            is_sentence: false,
            retry_after: None,
            begun: false,
            run: None,
            is_unknown_agent: false,
            cause: None,
        }
    }

    pub fn not_found(missing: impl Into<Missing>) -> Self {
        Error::not_found(missing).into()
    }

    pub fn invalid(field: impl Into<String>, reason: impl Into<Reason>) -> Self {
        Error::invalid(field, reason).into()
    }

    /// An input that cannot be used, with a code of its own.
    pub fn unfit(code: ErrorCode, field: impl Into<String>, reason: impl Into<Reason>) -> Self {
        Error::unfit(code, field, reason).into()
    }

    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    #[must_use]
    pub fn begun(mut self) -> Self {
        self.begun = true;
        self
    }

    /// Names the run that the request has begun.
    #[must_use]
    pub fn with_run(mut self, ids: AnswerIds) -> Self {
        self.run = Some(ids);
        self.begun()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::NotFound(_) | Error::SessionNotFound(_) => StatusCode::NOT_FOUND,
            Error::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Error::Forbidden(_) | Error::Suspended(_) | Error::Blocked(_) => StatusCode::FORBIDDEN,
            Error::Invalid { .. } => StatusCode::BAD_REQUEST,
            Error::Conflict(..) | Error::Repeated => StatusCode::CONFLICT,
            Error::Busy { .. } | Error::Collided | Error::KeysUnreadable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Error::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Error::Unavailable(_) => StatusCode::BAD_GATEWAY,
            Error::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut problem = Self::new(status, error.code(), error.to_string());
        match error {
            Error::Invalid { field, reason, .. } => {
                problem.is_sentence = matches!(reason, Reason::Sentence(_));
                (problem.field, problem.detail) = (Some(field), reason.into_text());
            }
            Error::Busy { retry_after, .. } | Error::Limited { retry_after, .. } => {
                problem.retry_after = Some(retry_after);
            }
            Error::Collided => problem.retry_after = Some(Duration::from_secs(1)),
            Error::KeysUnreadable => problem.retry_after = Some(Duration::from_secs(60)),
            Error::NotFound(Missing::Agent(_)) => problem.is_unknown_agent = true,
            Error::Internal(cause) => problem.cause = Some(Arc::new(cause)),
            _ => {}
        }
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The format in which a route answers errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorFormat {
    Problem,
    /// Like `Problem`, with the member `error` that clients of the registry document read.
    Registry,
    OpenAi,
    /// One sentence, because the clients of the AI SDK and of AG-UI show the body to people as it is.
    Sentence,
}

impl ErrorFormat {
    /// The format of a path. It needs no handler, so errors before the handler (a body too large, too many requests) have
    /// the right format too.
    pub fn for_path(path: &str) -> Self {
        let openai = ["/v1/chat/", "/v1/models/", "/v1/responses/"];
        let whole = ["/v1/models", "/v1/responses"];
        let known = whole.contains(&path)
            || openai.iter().any(|prefix| path.starts_with(prefix))
            || is_of_items(path);
        let plain = path.strip_prefix("/v1").unwrap_or(path);
        let registry = ["/runs", "/mcp-servers"];
        let registry = registry.iter().any(|route| {
            plain
                .strip_prefix(route)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        let shown = ["/v1/ui/", "/v1/agui/"];
        if known {
            Self::OpenAi
        } else if registry {
            Self::Registry
        } else if shown.iter().any(|prefix| path.starts_with(prefix)) {
            Self::Sentence
        } else {
            Self::Problem
        }
    }
}

/// The items of a conversation: OpenAI's alone.
fn is_of_items(path: &str) -> bool {
    let rest = path.strip_prefix("/v1/conversations/");
    let rest = rest.and_then(|rest| rest.split_once('/'));
    rest.is_some_and(|(_, rest)| rest == "items" || rest.starts_with("items/"))
}

/// Whether a library of OpenAI sends the request. Routes that are ours and OpenAI's, too, answer it in OpenAI's shapes.
pub(super) fn is_openai_sdk(headers: &HeaderMap) -> bool {
    headers.contains_key("x-stainless-lang")
}

impl ErrorFormat {
    /// The format of a request. OpenAI's SDKs also call `/v1/conversations`; a header names them. A program that asks for JSON
    /// gets it where people get a sentence.
    pub fn of_request(path: &str, headers: &HeaderMap) -> Self {
        let is_conversation = path
            .strip_prefix("/v1/conversations")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let wants_json = || {
            ["application/json", "application/problem+json"]
                .iter()
                .any(|media| web::accepts(headers, header::ACCEPT, media))
        };
        match Self::for_path(path) {
            _ if is_conversation && is_openai_sdk(headers) => Self::OpenAi,
            Self::Sentence if wants_json() => Self::Problem,
            format => format,
        }
    }

    /// The format of a path without a route. OpenAI clients call more routes than exist here, but none of administration.
    pub fn of_unknown(path: &str) -> Self {
        if path.starts_with("/v1/") && !path.starts_with("/v1/admin/") {
            Self::OpenAi
        } else {
            Self::Problem
        }
    }
}

/// RFC 9457, extended by `code`, `error`, `field` and `request_id`.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct ProblemDocument<'a> {
    /// Always `about:blank`: the status says the kind, `code` the case.
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: String,
    /// What the case is, for programs.
    #[schema(value_type = String)]
    code: ErrorCode,
    /// On the paths of the registry document: `detail`, as a sentence that stands alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Path of the input that cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// Also in `x-request-id`, and in the log.
    request_id: &'a str,
    /// The conversation and the run that the request has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<ConversationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
}

/// What OpenAI clients expect of a failed request.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct OpenAiError<'a> {
    error: OpenAiErrorBody<'a>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct OpenAiErrorBody<'a> {
    message: String,
    r#type: &'static str,
    param: Option<&'a str>,
    code: &'a str,
    /// Not OpenAI's: the conversation and the run that the request has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<ConversationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
}

/// The first words of clauses that continue the name of a field.
const VERBS: [&str; 16] = [
    "must", "is", "are", "has", "have", "may", "cannot", "holds", "names", "needs", "do", "does",
    "never", "was", "belongs", "can",
];

impl Problem {
    /// The detail as a sentence with the field: `limit must be from 1 to 100`.
    pub fn sentence(&self) -> String {
        match &self.field {
            Some(field) if !self.is_sentence => {
                let first = self.detail.split(' ').next().unwrap_or_default();
                let between = if VERBS.contains(&first) { "" } else { ":" };
                format!("{field}{between} {}", self.detail)
            }
            _ => self.detail.clone(),
        }
    }

    /// The error object of OpenAI, also for an error in the middle of a stream.
    pub fn openai(&self) -> OpenAiError<'_> {
        let (kind, code) = match self.status {
            StatusCode::UNAUTHORIZED => ("invalid_request_error", "invalid_api_key"),
            StatusCode::FORBIDDEN => ("permission_error", self.code.as_str()),
            StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", "rate_limit_exceeded"),
            status if status.is_server_error() => ("server_error", self.code.as_str()),
            _ => ("invalid_request_error", self.code.as_str()),
        };
        OpenAiError {
            error: OpenAiErrorBody {
                message: self.sentence(),
                r#type: kind,
                param: self.field.as_deref(),
                code,
                conversation_id: self.run.map(|ids| ids.conversation),
                run_id: self.run.map(|ids| ids.run),
            },
        }
    }

    /// Writes the response. Headers that are set already (`Allow`) are kept. `has_credential` says whether the request
    /// brought one, which a 401 then calls invalid (RFC 6750, section 3.1).
    pub fn render(
        &self,
        mut headers: HeaderMap,
        request_id: &str,
        format: ErrorFormat,
        has_credential: bool,
    ) -> Response {
        let (media, body) = match format {
            ErrorFormat::Problem | ErrorFormat::Registry => {
                let document = self.document(request_id, format == ErrorFormat::Registry);
                ("application/problem+json", serde_json::to_vec(&document))
            }
            ErrorFormat::OpenAi => ("application/json", serde_json::to_vec(&self.openai())),
            ErrorFormat::Sentence => (
                "text/plain; charset=utf-8",
                Ok(self.sentence().into_bytes()),
            ),
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
        headers.remove(header::CONTENT_LENGTH);
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = headers.entry(header::WWW_AUTHENTICATE);
            challenge.or_insert(HeaderValue::from_static(if has_credential {
                r#"Bearer error="invalid_token""#
            } else {
                "Bearer"
            }));
        }
        if let Some(after) = self.retry_after {
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(after.as_secs().max(1)),
            );
        }
        if self.begun {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if let Some(AnswerIds {
            conversation, run, ..
        }) = self.run
        {
            for (name, id) in [
                ("x-conversation-id", conversation.to_string()),
                ("x-run-id", run.to_string()),
            ] {
                let id = HeaderValue::from_str(&id).expect("a UUID is a header value");
                headers.insert(name, id);
            }
        }
        let mut response = Response::new(Body::from(body.expect("plain data can be written")));
        (*response.status_mut(), *response.headers_mut()) = (self.status, headers);
        response
    }

    fn document<'a>(&'a self, request_id: &'a str, with_error: bool) -> ProblemDocument<'a> {
        ProblemDocument {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: self.sentence(),
            code: self.code,
            error: with_error.then(|| self.sentence()),
            field: self.field.as_deref(),
            request_id,
            conversation_id: self.run.map(|ids| ids.conversation),
            run_id: self.run.map(|ids| ids.run),
        }
    }
}
