//! Streamable HTTP for rmcp, on top of the guarded client. What the status of an answer means is decided
//! here, where it is known, and written into the pending request.
//!
//! The headers of a server, which carry credentials, live here and never in rmcp's configuration, whose
//! `Debug` would print them. They go with requests to the server's own origin only; egress sees to that.

mod cookies;
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
    model::{ClientJsonRpcMessage, ClientRequest, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse as Answer,
    },
};
use sse_stream::Sse;
use tokio::time::sleep;
use url::Url;

use self::cookies::Jar;
use self::reconnect::{Pace, end_quietly};
use self::response::{collect, collect_object, media_type, text_of};
use self::signed::Attempts;
use self::verdict::{MAX_REFUSAL, Refusal, broken, is_handshake, status_only, words};
pub(super) use self::{legacy_sse::LegacySse, request::headers};
use super::{
    error::Failure,
    interceptor::{
        Exchange, Interceptor, PendingRequest, body_of, clipped, empty_response, locked,
    },
    sse,
    tokens::Bearer,
};
use domain::{
    clock,
    ids::ServerId,
    scrub::carries_credential,
    server::{ServerSpec, Timeouts},
};
use egress::{Egress, Limits, MAX_BODY, Request, Response};

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
    /// Where the handshake ended, after redirects within the origin: the address of everything that follows.
    address: Mutex<Option<Url>>,
    headers: HeaderMap,
    cookies: Jar,
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
    /// Of the stream of the server's news, and of streams that are to bring an answer.
    news_pace: Pace,
    answers_pace: Pace,
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
                address: Mutex::default(),
                headers,
                cookies: Jar::default(),
                timeouts,
                terminates,
                interceptor,
                bearer,
                failure,
                server: spec.id.clone(),
                signed,
                news_pace: Pace::of_news(),
                answers_pace: Pace::of_answers(),
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

    /// Where requests go.
    fn address(&self) -> Url {
        let address = locked(&self.shared.address).clone();
        address.unwrap_or_else(|| self.shared.url.clone())
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
        let (is_call, is_ping) = match message {
            ClientJsonRpcMessage::Request(request) => (
                matches!(request.request, ClientRequest::CallToolRequest(_)),
                matches!(request.request, ClientRequest::PingRequest(_)),
            ),
            _ => (false, false),
        };
        if is_call || is_ping {
            // A redirect would send the call again, and to ask for something else says nothing of the session.
            limits.redirects = 0;
        }
        let attempts = match pending {
            _ if is_ping => Attempts::Probe,
            Some(pending) if pending.idempotency_key.is_some() => Attempts::Once,
            _ => Attempts::WithAnotherToken,
        };
        let request = Request {
            method: Method::POST,
            url: url.clone(),
            headers,
            body: body.into(),
            limits,
        };
        self.send(request, attempts, || {
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
        let media_type = media_type(&response.headers);
        match media_type.as_deref() {
            Some("text/event-stream") => Ok(Answer::Sse(
                sse::events(
                    response.body,
                    interceptor.clone(),
                    asked,
                    self.shared.timeouts.stream_idle,
                ),
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
            // JSON is JSON, whatever its server calls it.
            other => {
                let body = collect_object(response.body, MAX_BODY).await;
                match (body.map_err(|error| broken(&error))?, other) {
                    (Some(body), _) => {
                        let message = read(interceptor, &body, &request.id, asked)?;
                        Ok(Answer::Json(message, session))
                    }
                    (None, Some(other)) => Err(Failure::Lost(format!(
                        "the server answered with {:?} instead of JSON or events",
                        clipped(other)
                    ))),
                    (None, None) => Err(Failure::Lost(
                        "the server answered without a content type".to_owned(),
                    )),
                }
            }
        }
    }

    async fn listen(
        &self,
        session: Option<&str>,
        last_event: Option<String>,
        extra: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, HttpError> {
        let shared = self.shared.clone();
        // Somebody waits for a stream that answers a request; a stream of news may be one too many.
        let is_waited_for = shared.interceptor.has_requests();
        sleep(shared.pace(is_waited_for).pause()).await;
        let mut headers = self
            .headers(session, extra)
            .map_err(|_| HttpError::Client(Failed))?;
        let last_event = last_event.filter(|id| !id.is_empty());
        if let Some(id) = last_event.and_then(|id| HeaderValue::from_str(&id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        let response = self
            .get_events(headers)
            .await
            .map_err(|_| HttpError::Client(Failed))?;
        let media_type = media_type(&response.headers);
        match (response.status, media_type.as_deref()) {
            (status, Some("text/event-stream")) if status.is_success() => {
                let events = sse::events(response.body, shared.interceptor.clone(), None, None);
                let (opened, server) = (clock::instant(), shared.server.clone());
                Ok(end_quietly(events, server, move || {
                    shared.pace(is_waited_for).ended(opened);
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
        let url = self.address();
        let request = Request {
            method: Method::GET,
            url,
            headers,
            body: Bytes::new(),
            limits: self.endless(),
        };
        self.send(request, Attempts::WithAnotherToken, || {}).await
    }
}

impl Shared {
    fn pace(&self, is_waited_for: bool) -> &Pace {
        if is_waited_for {
            &self.answers_pace
        } else {
            &self.news_pace
        }
    }

    /// A handshake begins, at the address that the pack has.
    fn begin(&self, message: &ClientJsonRpcMessage) {
        *locked(&self.address) = None;
        let begins_session = matches!(message, ClientJsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::InitializeRequest(_)));
        if begins_session {
            self.cookies.open();
        }
    }

    /// A handshake was answered from this address.
    fn end_handshake(&self, answered: Url) {
        if answered.origin() == self.url.origin() {
            *locked(&self.address) = Some(answered);
        }
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
        let is_handshake = is_handshake(&message);
        if is_handshake {
            self.shared.begin(&message);
        } else if pending.is_some() {
            self.shared.answers_pace.restart();
        }
        let answered = async {
            let headers = self.headers(session, custom_headers)?;
            let url = self.address();
            let response = self
                .send_message(&url, headers, &message, pending.as_deref())
                .await?;
            let answered =
                (is_handshake && response.status.is_success()).then(|| response.url.clone());
            let answer = self
                .answer(&message, session.is_some(), asked, response)
                .await?;
            if let Some(url) = answered {
                self.shared.end_handshake(url);
            }
            Ok(answer)
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
        let url = self.address();
        let request = Request {
            method: Method::DELETE,
            url,
            headers,
            body: Bytes::new(),
            limits,
        };
        // A server that keeps the session lets it lapse.
        let _ = self.send(request, Attempts::WithAnotherToken, || {}).await;
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
        let Some(answer) = interceptor.answer_in(body, &id) else {
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
