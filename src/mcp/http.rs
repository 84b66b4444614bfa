//! Streamable HTTP for rmcp, on top of the guarded client. What the status of an answer means is decided
//! here, where it is known, and written into the pending request.
//!
//! The headers of a server, which carry credentials, live here and never in rmcp's configuration, whose
//! `Debug` would print them. They go with requests to the server's own origin only; egress sees to that.

mod legacy_sse;
mod reconnect;
mod request;
mod response;
mod signed;
mod verdict;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use rmcp::{
    model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse as Answer,
    },
};
use sse_stream::Sse;
use tokio::time::sleep;
use url::Url;

use self::reconnect::{Pace, end_quietly};
use self::response::{collect, media_type, text_of};
use self::verdict::{MAX_REFUSAL, Refusal, broken, status_only, words};
pub(super) use self::{legacy_sse::LegacySse, request::headers};
use super::{
    error::Failure,
    interceptor::{
        AnswerBody, Exchange, Interceptor, PendingRequest, body_of, clipped, empty_response, locked,
    },
    sse,
    tokens::Bearer,
};
use crate::{
    domain::{
        clock,
        ids::ServerId,
        scrub::carries_credential,
        server::{ServerSpec, Timeouts},
    },
    egress::{Egress, Limits, MAX_BODY, Request, Response},
};

/// Everything that comes in answer to one request, notifications on the way included.
const MAX_STREAM: usize = 4 * MAX_BODY;
/// How long a notification, a reply or the end of a session may take.
const CONTROL: Duration = Duration::from_secs(5);

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The HTTP client of one connection.
#[derive(Clone)]
pub(super) struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    egress: Egress,
    url: Url,
    headers: HeaderMap,
    timeouts: Timeouts,
    /// A session is ended with a request when its connection is closed.
    terminates: bool,
    interceptor: Arc<Interceptor>,
    /// How it signs in, where not by its headers.
    bearer: Option<Bearer>,
    /// Why the latest request of rmcp itself failed.
    failure: Mutex<Option<Failure>>,
    server: ServerId,
    /// Requests carry a credential.
    signed: bool,
    /// Of the stream of the server's news.
    pace: Pace,
}

/// What rmcp is given as the error; the details are in the pending request.
#[derive(Debug, thiserror::Error)]
#[error("the request failed")]
pub(super) struct Failed;

type HttpError = StreamableHttpError<Failed>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

impl Client {
    pub(super) fn new(
        egress: Egress,
        (url, headers): (Url, HeaderMap),
        spec: &ServerSpec,
        interceptor: Arc<Interceptor>,
        bearer: Option<Bearer>,
    ) -> Self {
        let (timeouts, terminates, failure) =
            (spec.timeouts, spec.terminate_on_close, Mutex::default());
        let signed = !spec.asks_for_sign_in
            && (bearer.is_some()
                || !spec.entered.is_empty()
                || spec.has_user_values
                || carries_credential(spec));
        Self {
            shared: Arc::new(Shared {
                egress,
                url,
                headers,
                timeouts,
                terminates,
                interceptor,
                bearer,
                failure,
                server: spec.id.clone(),
                signed,
                pace: Pace::default(),
            }),
        }
    }

    pub(super) fn interceptor(&self) -> &Arc<Interceptor> {
        &self.shared.interceptor
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.shared.timeouts
    }

    /// Why the latest request failed.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        locked(&self.shared.failure).take()
    }

    /// Posts one message to an address of the server.
    async fn send_message(
        &self,
        url: &Url,
        mut headers: HeaderMap,
        message: &ClientJsonRpcMessage,
        pending: Option<&PendingRequest>,
    ) -> Result<Response, Failure> {
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.extend(
            pending
                .iter()
                .flat_map(|pending| pending.headers.iter().cloned()),
        );
        let body =
            body_of(message, pending).map_err(|error| Failure::NotSent(error.to_string()))?;
        let mut limits = self.limits(message, pending);
        if pending.is_some_and(|pending| pending.idempotency_key.is_some()) {
            // To be sent once at most: a redirect would send it again.
            limits.redirects = 0;
        }
        let request = Request {
            method: Method::POST,
            url: url.clone(),
            headers,
            body: body.into(),
            limits,
        };
        self.send(request, || {
            if let Some(pending) = &pending {
                pending.mark_sent();
            }
        })
        .await
    }

    /// What an answer to a POST means.
    async fn answer(
        &self,
        message: &ClientJsonRpcMessage,
        in_session: bool,
        asked: Option<Exchange>,
        response: Response,
    ) -> Result<Answer, Failure> {
        let status = response.status;
        let ClientJsonRpcMessage::Request(request) = message else {
            return status_only(&response).map_or(Ok(Answer::Accepted), Err);
        };
        let interceptor = &self.shared.interceptor;
        if !status.is_success() {
            let refusal = Refusal::read(response, self.shared.signed).await;
            return match (in_session, asked) {
                (true, _) => Err(refusal.failure_in_session(interceptor, &request.id)),
                (false, Some(_)) => Err(refusal.failure(interceptor, Some(&request.id))),
                (false, None) => refusal.for_rmcp(interceptor, &request.request, &request.id),
            };
        }
        let session = text_of(&response.headers, &SESSION_ID);
        match media_type(&response.headers) {
            Some("text/event-stream") => Ok(Answer::Sse(
                sse::events(response.body, interceptor.clone(), asked),
                session,
            )),
            Some("application/json") => {
                let body = collect(response.body, MAX_BODY)
                    .await
                    .map_err(|error| broken(&error))?;
                let message = read(interceptor, &body, &request.id, asked)?;
                Ok(Answer::Json(message, session))
            }
            _ if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) => {
                Err(Failure::Lost(format!(
                    "the server took the request and did not answer it (HTTP {status})"
                )))
            }
            Some("text/html") => Err(Failure::WebPage(
                "the server answered with a web page (\"text/html\") instead of JSON or events"
                    .to_owned(),
            )),
            Some(other) => Err(Failure::Lost(format!(
                "the server answered with {:?} instead of JSON or events",
                clipped(other)
            ))),
            None => Err(Failure::Lost(
                "the server answered without a content type".to_owned(),
            )),
        }
    }

    async fn listen(
        &self,
        session: Option<&str>,
        last_event: Option<String>,
        extra: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, HttpError> {
        let shared = self.shared.clone();
        // A stream that answers a request is taken up at once; a stream of news may be one too many.
        if !shared.interceptor.has_requests() {
            sleep(shared.pace.pause()).await;
        }
        let mut headers = self
            .headers(session, extra)
            .map_err(|_| HttpError::Client(Failed))?;
        if let Some(id) = last_event.and_then(|id| HeaderValue::from_str(&id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        let response = self
            .get_events(headers)
            .await
            .map_err(|_| HttpError::Client(Failed))?;
        match (response.status, media_type(&response.headers)) {
            (status, Some("text/event-stream")) if status.is_success() => {
                let events = sse::events(response.body, shared.interceptor.clone(), None);
                let (opened, server) = (clock::instant(), shared.server.clone());
                Ok(end_quietly(events, server, move || {
                    shared.pace.ended(opened);
                }))
            }
            (status, _) if status.is_server_error() => Err(HttpError::Client(Failed)),
            // Whatever it is, asking again will not make a stream of it.
            _ => Err(HttpError::ServerDoesNotSupportSse),
        }
    }

    /// Asks for a stream of events, which may last for ever.
    async fn get_events(&self, mut headers: HeaderMap) -> Result<Response, Failure> {
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("text/event-stream"),
        );
        let url = self.shared.url.clone();
        let request = Request {
            method: Method::GET,
            url,
            headers,
            body: Bytes::new(),
            limits: self.endless(),
        };
        self.send(request, || {}).await
    }
}

impl StreamableHttpClient for Client {
    type Error = Failed;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Answer, HttpError> {
        let session = session_id.as_deref();
        let pending = self.shared.interceptor.outgoing(&message);
        let _answering = self.shared.interceptor.answering(&message);
        let asked = match (&message, &pending) {
            (ClientJsonRpcMessage::Request(request), Some(pending)) => {
                Some((request.id.clone(), pending.clone()))
            }
            _ => None,
        };
        let answered = async {
            let headers = self.headers(session, custom_headers)?;
            let url = &self.shared.url;
            let response = self
                .send_message(url, headers, &message, pending.as_deref())
                .await?;
            self.answer(&message, session.is_some(), asked, response)
                .await
        };
        answered.await.map_err(|failure: Failure| {
            if let Some(pending) = &pending {
                pending.settle(Err(failure.clone()));
            }
            *locked(&self.shared.failure) = Some(self.shared.interceptor.without_token(failure));
            HttpError::Client(Failed)
        })
    }

    async fn delete_session(
        &self,
        _uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        if !self.shared.terminates {
            return Ok(());
        }
        let headers = self
            .headers(Some(&session_id), custom_headers)
            .map_err(|_| HttpError::Client(Failed))?;
        let limits = Limits {
            deadline: Some(CONTROL),
            max_body: MAX_REFUSAL,
            ..self.wait_limits()
        };
        let url = self.shared.url.clone();
        let request = Request {
            method: Method::DELETE,
            url,
            headers,
            body: Bytes::new(),
            limits,
        };
        // A server that keeps the session lets it lapse.
        let _ = self.send(request, || {}).await;
        Ok(())
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, HttpError> {
        self.listen(session_id.as_deref(), last_event_id, custom_headers)
            .await
    }
}

/// A body of JSON in answer to a request.
fn read(
    interceptor: &Interceptor,
    body: &[u8],
    id: &RequestId,
    asked: Option<Exchange>,
) -> Result<ServerJsonRpcMessage, Failure> {
    if let Some((id, pending)) = asked {
        let Some(AnswerBody { answer, .. }) = interceptor.answer_in(body, &id) else {
            return Err(Failure::Lost(format!(
                "the answer of the server is not a JSON-RPC answer to the request{}",
                words(interceptor, &HeaderMap::new(), body)
            )));
        };
        pending.settle(answer);
        return Ok(empty_response(id));
    }
    match serde_json::from_slice(body) {
        Ok(ServerJsonRpcMessage::Error(error)) => {
            Ok(ServerJsonRpcMessage::error(error.error, Some(id.clone())))
        }
        Ok(message) => Ok(message),
        Err(_) => Err(Failure::Lost(
            "the answer of the server is not JSON-RPC".to_owned(),
        )),
    }
}
