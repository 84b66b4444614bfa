//! Reads responses, and decides what a failed one means: the request was refused, may be sent again, or may have been
//! executed.
//!
//! Only the status, the request id and the JSON-RPC error code decide. The texts of a server are kept for people.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode, header};

use crate::{
    answer,
    error::{Failure, SessionDoubt},
    oauth::Challenge,
    redaction::Redactor,
};
use domain::jsonrpc::{INVALID_PARAMS, METHOD_NOT_FOUND};
use egress::{Body, EgressError, ErrorKind, Response};

/// The most bytes that are read of a refusal.
pub(super) const MAX_REFUSAL: usize = 64 * 1024;
/// The most characters of a body that are quoted in a message.
const MAX_EXCERPT: usize = 300;
/// The most bytes of white space before JSON.
const MAX_BLANK: usize = 1024;
/// Some servers write it before JSON.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A response with a status other than success, with its body.
pub(super) struct Refusal {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// The request carried a credential.
    has_credential: bool,
}

impl Refusal {
    pub(super) async fn read(response: Response, has_credential: bool) -> Self {
        // If the body cannot be read, the status must do.
        let body = collect(response.body, MAX_REFUSAL)
            .await
            .unwrap_or_default();
        Self {
            status: response.status,
            headers: response.headers,
            body,
            has_credential,
        }
    }

    pub(super) fn is_about_credential(&self) -> bool {
        matches!(
            self.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        )
    }

    /// The failure where no session can be lost. `request` is the id of the request, if the body may hold its JSON-RPC answer.
    pub(super) fn failure(&self, redactor: &Redactor, request: Option<i64>) -> Failure {
        let retry_after = retry_after(&self.headers);
        match self.status {
            StatusCode::UNAUTHORIZED if !self.has_credential => {
                return Failure::SignInRequired(
                    Challenge::from_headers(&self.headers).map(Box::new),
                );
            }
            StatusCode::UNAUTHORIZED => return Failure::Unauthorized,
            StatusCode::FORBIDDEN => {
                let challenge = Challenge::from_headers(&self.headers);
                let missing = challenge.as_ref().and_then(Challenge::missing_scope);
                return missing.map_or(Failure::Forbidden, |scope| {
                    Failure::ScopeRequired(scope.to_owned())
                });
            }
            StatusCode::TOO_MANY_REQUESTS => {
                return Failure::Busy {
                    status: 429,
                    retry_after,
                };
            }
            StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => {
                return Failure::Busy {
                    status: 503,
                    retry_after,
                };
            }
            _ => {}
        }
        let answer = request.and_then(|id| answer::read_body(&self.body, id, false, redactor));
        match answer {
            Some(Err(refused @ (Failure::Refused { .. } | Failure::OtherRevision { .. })))
                if !self.status.is_server_error() =>
            {
                refused
            }
            _ => Failure::Status {
                status: self.status.as_u16(),
                message: self.to_message(redactor),
            },
        }
    }

    /// The failure for a request in a session. Servers refuse an unknown session with one of these statuses and any body; only
    /// two codes of JSON-RPC say that it was the request that was refused.
    pub(super) fn failure_in_session(&self, redactor: &Redactor, request: i64) -> Failure {
        let own = self.failure(redactor, Some(request));
        let is_about_request = matches!(
            own,
            Failure::ScopeRequired(_)
                | Failure::Refused {
                    code: Some(METHOD_NOT_FOUND | INVALID_PARAMS),
                    ..
                }
        );
        match self.status {
            StatusCode::BAD_REQUEST
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
                if !is_about_request =>
            {
                Failure::SessionInDoubt(Box::new(SessionDoubt {
                    status: self.status.as_u16(),
                    words: self.to_message(redactor),
                    own,
                }))
            }
            _ => own,
        }
    }

    /// The refusal in words for people.
    fn to_message(&self, redactor: &Redactor) -> String {
        format!(
            "the server answered with HTTP {}{}",
            self.status,
            body_excerpt(redactor, &self.headers, &self.body)
        )
    }
}

/// The failure of a notification or a reply, by the status of the response; `None` for success.
pub(super) fn refusal_by_status(response: &Response) -> Option<Failure> {
    let (status, headers) = (response.status, response.headers.clone());
    let refusal = Refusal {
        status,
        headers,
        body: Bytes::new(),
        has_credential: true,
    };
    (!status.is_success()).then(|| refusal.failure(&Redactor::default(), None))
}

/// The beginning of a body for a message to people, with a separator. The text of a web page is left out.
pub(super) fn body_excerpt(redactor: &Redactor, headers: &HeaderMap, body: &[u8]) -> String {
    if media_type(headers).as_deref() == Some("text/html") {
        return " and an HTML page".to_owned();
    }
    let text = redactor.excerpt(&String::from_utf8_lossy(body));
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MAX_EXCERPT) {
        None if text.is_empty() => String::new(),
        None => format!(": {text}"),
        Some((end, _)) => format!(": {}…", &text[..end]),
    }
}

/// The failure of a request for which there is no response.
pub(super) fn send_failure(error: &EgressError) -> Failure {
    let message = error.to_string();
    match (error.sent, error.is_rejected(), error.is_timeout()) {
        (false, true, _) => Failure::Misconfigured(message),
        (false, ..) => Failure::NotSent(message),
        (true, _, true) => Failure::Silent(message),
        (true, ..) if matches!(error.kind, ErrorKind::TooManyRedirects(_)) => {
            Failure::Redirected(format!("MCP server {message}"))
        }
        (true, ..) if error.is_redirect() => Failure::Redirected(message),
        (true, ..) => Failure::Lost(message),
    }
}

/// The failure of a response whose body could not be read to its end.
pub(super) fn body_failure(error: &EgressError) -> Failure {
    if error.is_timeout() {
        Failure::Silent(error.to_string())
    } else {
        Failure::Lost(error.to_string())
    }
}

/// `Retry-After` in seconds, at most an hour; a date is taken as a minute.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    Some(Duration::from_secs(
        value.trim().parse().unwrap_or(60).min(3600),
    ))
}

/// Reads the whole body, without a byte order mark.
pub(super) async fn collect(mut body: Body, max: usize) -> Result<Bytes, EgressError> {
    let Some(first) = body.next().await.transpose()? else {
        return Ok(Bytes::new());
    };
    collect_from(BytesMut::from(first), body, max).await
}

/// Reads the whole body if it begins like a JSON object; otherwise reads only its beginning and returns `None`.
pub(super) async fn collect_object(
    mut body: Body,
    max: usize,
) -> Result<Option<Bytes>, EgressError> {
    let mut head = BytesMut::new();
    while let Some(chunk) = body.next().await.transpose()? {
        head.extend_from_slice(&chunk);
        let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
        match text.trim_ascii_start().first() {
            Some(b'{') => {
                return collect_from(head, body, max).await.map(Some);
            }
            None if head.len() < MAX_BLANK => {}
            _ if BYTE_ORDER_MARK.starts_with(&head) => {}
            _ => break,
        }
    }
    Ok(None)
}

async fn collect_from(
    mut whole: BytesMut,
    mut body: Body,
    max: usize,
) -> Result<Bytes, EgressError> {
    while let Some(chunk) = body.next().await.transpose()? {
        if whole.len() + chunk.len() > max {
            return Err(EgressError {
                kind: ErrorKind::TooLarge(max),
                sent: true,
            });
        }
        whole.extend_from_slice(&chunk);
    }
    if whole.starts_with(BYTE_ORDER_MARK) {
        whole.advance(BYTE_ORDER_MARK.len());
    }
    Ok(whole.freeze())
}

/// The media type without its parameters, in lower case, since it is case-insensitive (RFC 9110, section 8.3.1).
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let media_type = value.split(';').next()?.trim();
    (!media_type.is_empty()).then(|| media_type.to_ascii_lowercase())
}
