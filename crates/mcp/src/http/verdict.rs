//! What a status, a body or a broken connection says about a request: whether it was refused for good,
//! may come again, or may have been carried out.
//!
//! Only types decide: the status, the id and the code of a JSON-RPC error. The words of a server are kept for people.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage,
    },
    transport::streamable_http_client::StreamableHttpPostResponse as Answer,
};

use super::response::{collect, media_type};
use crate::{
    error::{Failure, Said, SessionDoubt},
    interceptor::Interceptor,
    oauth::Challenge,
};
use egress::{EgressError, Response};

/// What is read of an answer that says no.
pub(super) const MAX_REFUSAL: usize = 64 * 1024;
/// Characters that are kept of a body that is not JSON-RPC.
const MAX_WORDS: usize = 300;

/// An answer with a status other than success, read to its end.
pub(super) struct Refusal {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// The request carried a credential.
    signed: bool,
}

impl Refusal {
    pub(super) async fn read(response: Response, signed: bool) -> Self {
        // A body that cannot be read explains nothing; the status does.
        let body = collect(response.body, MAX_REFUSAL)
            .await
            .unwrap_or_default();
        Self {
            status: response.status,
            headers: response.headers,
            body,
            signed,
        }
    }

    pub(super) fn is_about_credential(&self) -> bool {
        matches!(
            self.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        )
    }

    /// What it means where no session can be lost. `request`: the one that it may answer in JSON-RPC.
    pub(super) fn failure(
        &self,
        interceptor: &Interceptor,
        request: Option<&RequestId>,
    ) -> Failure {
        let retry_after = retry_after(&self.headers);
        match self.status {
            StatusCode::UNAUTHORIZED if !self.signed => {
                return Failure::SignInRequired(Challenge::of(&self.headers).map(Box::new));
            }
            StatusCode::UNAUTHORIZED => return Failure::Unauthorized,
            StatusCode::FORBIDDEN => {
                let challenge = Challenge::of(&self.headers);
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
        match request.and_then(|request| interceptor.answer_in(&self.body, request)) {
            Some(Err(refused @ Failure::Refused { .. })) if !self.status.is_server_error() => {
                refused
            }
            _ => Failure::Status {
                status: self.status.as_u16(),
                message: self.words(interceptor),
            },
        }
    }

    /// What it means for a request in a session. Servers that do not know a session say so with one of these statuses
    /// and with any body; a tool that refuses a call may say the very same.
    pub(super) fn failure_in_session(
        &self,
        interceptor: &Interceptor,
        request: &RequestId,
    ) -> Failure {
        let own = self.failure(interceptor, Some(request));
        match (self.status, own) {
            (
                StatusCode::BAD_REQUEST
                | StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND,
                own,
            ) if !matches!(own, Failure::ScopeRequired(_)) => {
                Failure::SessionInDoubt(Box::new(SessionDoubt {
                    status: self.status.as_u16(),
                    said: Said::read(&self.body),
                    words: self.words(interceptor),
                    own,
                }))
            }
            (_, own) => own,
        }
    }

    /// An answer for rmcp to a request of its own. Servers of the older revisions answer `server/discover` with any
    /// status and any text; the older handshake follows, and it needs the answer under the id of its request.
    pub(super) fn for_rmcp(
        &self,
        interceptor: &Interceptor,
        request: &ClientRequest,
        id: &RequestId,
    ) -> Result<Answer, Failure> {
        let discovers = matches!(request, ClientRequest::DiscoverRequest(_));
        let (code, message) = match self.failure(interceptor, Some(id)) {
            Failure::Refused { code, message } => (code, message),
            Failure::Status {
                status: ..500,
                message,
            } if discovers => (None, message),
            failure => return Err(failure),
        };
        let code = code
            .and_then(|code| i32::try_from(code).ok())
            .map_or(ErrorCode::INVALID_REQUEST, ErrorCode);
        let error = ErrorData::new(code, message, error_data(&self.body));
        Ok(Answer::Json(
            ServerJsonRpcMessage::error(error, Some(id.clone())),
            None,
        ))
    }

    fn words(&self, interceptor: &Interceptor) -> String {
        format!(
            "the server answered with HTTP {}{}",
            self.status,
            words(interceptor, &self.headers, &self.body)
        )
    }
}

/// What a message that is no request was answered with, if it was refused.
pub(super) fn status_only(response: &Response) -> Option<Failure> {
    let (status, headers) = (response.status, response.headers.clone());
    let refusal = Refusal {
        status,
        headers,
        body: Bytes::new(),
        signed: true,
    };
    (!status.is_success()).then(|| refusal.failure(&Interceptor::default(), None))
}

/// The start of a body, for people. A page for a browser says nothing to them here.
pub(super) fn words(interceptor: &Interceptor, headers: &HeaderMap, body: &[u8]) -> String {
    if media_type(headers).as_deref() == Some("text/html") {
        return " and an HTML page".to_owned();
    }
    let text = interceptor.excerpt(&String::from_utf8_lossy(body));
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MAX_WORDS) {
        None if text.is_empty() => String::new(),
        None => format!(": {text}"),
        Some((end, _)) => format!(": {}…", &text[..end]),
    }
}

/// The `data` of an error, in which a server names the revisions it speaks.
fn error_data(body: &[u8]) -> Option<serde_json::Value> {
    match serde_json::from_slice(body) {
        Ok(ServerJsonRpcMessage::Error(error)) => error.error.data,
        _ => None,
    }
}

pub(super) fn unreachable(error: &EgressError) -> Failure {
    let message = error.to_string();
    match (error.sent, error.is_rejected(), error.is_timeout()) {
        (false, true, _) => Failure::Misconfigured(message),
        (false, ..) => Failure::NotSent(message),
        (true, _, true) => Failure::Silent(message),
        (true, ..) if error.is_redirect() => Failure::Redirected(message),
        (true, ..) => Failure::Lost(message),
    }
}

pub(super) fn broken(error: &EgressError) -> Failure {
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

/// The id of a request.
pub(super) fn id_of(message: &ClientJsonRpcMessage) -> Option<&RequestId> {
    match message {
        ClientJsonRpcMessage::Request(request) => Some(&request.id),
        _ => None,
    }
}

/// Whether it begins a connection.
pub(super) fn is_handshake(message: &ClientJsonRpcMessage) -> bool {
    matches!(message, ClientJsonRpcMessage::Request(request) if matches!(
        request.request,
        ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)
    ))
}
