//! The streamable HTTP transport, on top of egress. The meaning of a response is decided here, where its status is known,
//! and becomes the answer of the pending request.
//!
//! The headers of a server, which carry credentials, are kept here and not in rmcp's configuration, whose `Debug` would
//! print them. Egress sends them to the server's own origin only.

mod cookies;
mod legacy_sse;
mod request;
mod response;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
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

use self::{
    cookies::Jar,
    request::Attempts,
    response::{
        MAX_REFUSAL, Refusal, body_excerpt, body_failure, collect, collect_object, is_handshake,
        media_type, refusal_by_status, text_of,
    },
};
pub(super) use self::{legacy_sse::LegacySse, request::read_headers};
use super::{
    error::Failure,
    interceptor::{AskedRequest, Interceptor, PendingRequest, body_of, clip, empty_response, lock},
    sse,
    tokens::Bearer,
};
use domain::{
    backoff, clock,
    ids::ServerId,
    scrub::carries_credential,
    server::{ServerSpec, Timeouts},
};
use egress::{Egress, Limits, MAX_BODY, Request, Response};

/// The most bytes of the response to one request, with the notifications in it.
const MAX_STREAM: usize = 4 * MAX_BODY;
/// How long sending a notification, a reply or the end of a session may take.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

/// The first and the longest pause before a notification stream is opened again, after it ended early twice in a row.
const NOTIFICATION_PAUSES: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(60)];
/// The same pauses for a stream that resumes the answer to a request, which is awaited.
const ANSWER_PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];
/// A stream that lasted this long did not end early.
const GOOD_STREAM: Duration = Duration::from_secs(60);

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
    /// The URL that answered the handshake, after redirects within the origin. All further requests go there.
    address: Mutex<Option<Url>>,
    headers: HeaderMap,
    cookies: Jar,
    timeouts: Timeouts,
    /// Closing the connection ends the session with a DELETE request.
    terminates: bool,
    interceptor: Arc<Interceptor>,
    /// The source of access tokens, if the server needs them.
    bearer: Option<Bearer>,
    /// Why the latest failed request failed.
    failure: Mutex<Option<Failure>>,
    server: ServerId,
    /// Whether requests carry a credential.
    has_credential: bool,
    /// For the stream of notifications.
    notification_pace: ReconnectPace,
    /// For streams that resume an answer.
    answer_pace: ReconnectPace,
}

/// The error for rmcp; the details are in the pending request.
#[derive(Debug, thiserror::Error)]
#[error("the request failed")]
pub(super) struct Failed;

type HttpError = StreamableHttpError<Failed>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

impl Client {
    pub(super) fn new(
        egress: Egress,
        url: Url,
        headers: HeaderMap,
        spec: &ServerSpec,
        interceptor: Arc<Interceptor>,
        bearer: Option<Bearer>,
    ) -> Self {
        let (timeouts, terminates, failure) =
            (spec.timeouts, spec.terminate_on_close, Mutex::default());
        let has_credential = !spec.asks_for_sign_in
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
                has_credential,
                notification_pace: ReconnectPace::new(NOTIFICATION_PAUSES),
                answer_pace: ReconnectPace::new(ANSWER_PAUSES),
            }),
        }
    }

    pub(super) fn interceptor(&self) -> &Arc<Interceptor> {
        &self.shared.interceptor
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.shared.timeouts
    }

    /// Why the latest failed request failed.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        lock(&self.shared.failure).take()
    }

    /// The URL for requests.
    fn address(&self) -> Url {
        let address = lock(&self.shared.address).clone();
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
            // Following a redirect would send a call twice, and a ping to another place says nothing about the session.
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

    /// The meaning of the response to a POST. `in_session`: the request named a session. `asked`: the pending request of the
    /// message, if it has one.
    async fn read_response(
        &self,
        message: &ClientJsonRpcMessage,
        in_session: bool,
        asked: Option<AskedRequest>,
        response: Response,
    ) -> Result<Answer, Failure> {
        let status = response.status;
        let ClientJsonRpcMessage::Request(request) = message else {
            return refusal_by_status(&response).map_or(Ok(Answer::Accepted), Err);
        };
        let interceptor = &self.shared.interceptor;
        if !status.is_success() {
            let refusal = Refusal::read(response, self.shared.has_credential).await;
            return match (in_session, asked) {
                (true, _) => Err(refusal.failure_in_session(interceptor, &request.id)),
                (false, Some(_)) => Err(refusal.failure(interceptor, Some(&request.id))),
                (false, None) => refusal.to_rmcp_answer(interceptor, &request.request, &request.id),
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
                    .map_err(|error| body_failure(&error))?;
                let message = read_json_answer(interceptor, &body, &request.id, asked)?;
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
            // Some servers send JSON with another content type.
            other => {
                let body = collect_object(response.body, MAX_BODY).await;
                match (body.map_err(|error| body_failure(&error))?, other) {
                    (Some(body), _) => {
                        let message = read_json_answer(interceptor, &body, &request.id, asked)?;
                        Ok(Answer::Json(message, session))
                    }
                    (None, Some(other)) => Err(Failure::Lost(format!(
                        "the server answered with {:?} instead of JSON or events",
                        clip(other)
                    ))),
                    (None, None) => Err(Failure::Lost(
                        "the server answered without a content type".to_owned(),
                    )),
                }
            }
        }
    }

    /// Opens a stream of events with GET: for notifications, or to resume an answer after `last_event`.
    async fn listen(
        &self,
        session: Option<&str>,
        last_event: Option<String>,
        extra: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, HttpError> {
        let shared = self.shared.clone();
        // While a request waits, the stream may bring its answer, and is opened again sooner.
        let is_awaited = shared.interceptor.has_requests();
        sleep(shared.reconnect_pace(is_awaited).pause()).await;
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
                Ok(end_when_broken(events, server, move || {
                    shared.reconnect_pace(is_awaited).note_end(opened);
                }))
            }
            (status, _) if status.is_server_error() => Err(HttpError::Client(Failed)),
            // The server offers no stream, so rmcp must not ask again.
            _ => Err(HttpError::ServerDoesNotSupportSse),
        }
    }

    /// Requests a stream of events, which may last forever.
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
            limits: self.endless_limits(),
        };
        self.send(request, Attempts::WithAnotherToken, || {}).await
    }
}

impl Shared {
    fn reconnect_pace(&self, is_awaited: bool) -> &ReconnectPace {
        if is_awaited {
            &self.answer_pace
        } else {
            &self.notification_pace
        }
    }

    /// Resets the address to that of the pack, since a handshake begins.
    fn begin_handshake(&self, message: &ClientJsonRpcMessage) {
        *lock(&self.address) = None;
        let begins_session = matches!(message, ClientJsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::InitializeRequest(_)));
        if begins_session {
            self.cookies.open();
        }
    }

    /// Remembers the URL that answered the handshake.
    fn end_handshake(&self, answered: Url) {
        if answered.origin() == self.url.origin() {
            *lock(&self.address) = Some(answered);
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
        let pending = self.shared.interceptor.register_outgoing(&message);
        let _reply = self.shared.interceptor.begin_reply(&message);
        let asked = match (&message, &pending) {
            (ClientJsonRpcMessage::Request(request), Some(pending)) => Some(AskedRequest {
                id: request.id.clone(),
                pending: pending.clone(),
            }),
            _ => None,
        };
        let is_handshake = is_handshake(&message);
        if is_handshake {
            self.shared.begin_handshake(&message);
        } else if pending.is_some() {
            self.shared.answer_pace.restart();
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
                .read_response(&message, session.is_some(), asked, response)
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
            *lock(&self.shared.failure) = Some(self.shared.interceptor.scrub_token(failure));
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
            deadline: Some(CONTROL_TIMEOUT),
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
        // If the request fails, the server ends the session when it expires.
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

/// Reads a JSON body as the answer to a request. The answer of a pending request is put there; the message is for rmcp.
fn read_json_answer(
    interceptor: &Interceptor,
    body: &[u8],
    id: &RequestId,
    asked: Option<AskedRequest>,
) -> Result<ServerJsonRpcMessage, Failure> {
    if let Some(AskedRequest { id, pending }) = asked {
        let Some(answer) = interceptor.answer_in(body, &id) else {
            return Err(Failure::Lost(format!(
                "the answer of the server is not a JSON-RPC answer to the request{}",
                body_excerpt(interceptor, &HeaderMap::new(), body)
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

/// The pauses before streams of one kind are opened again. A stream that ends early is opened again more and more slowly,
/// whatever pause its server asks for.
struct ReconnectPace {
    /// The first pause and the longest one.
    pauses: [Duration; 2],
    /// How many streams in a row ended early.
    early_ends: Mutex<u32>,
}

impl ReconnectPace {
    fn new(pauses: [Duration; 2]) -> Self {
        Self {
            pauses,
            early_ends: Mutex::default(),
        }
    }

    /// How long to wait before the next stream is opened.
    fn pause(&self) -> Duration {
        let [first, longest] = self.pauses;
        match *lock(&self.early_ends) {
            0 | 1 => Duration::ZERO,
            ends => backoff::delay(first, longest, ends - 1, rand::random()),
        }
    }

    /// Forgets earlier streams, so that a new request does not wait because of them.
    fn restart(&self) {
        *lock(&self.early_ends) = 0;
    }

    /// Counts a stream that has ended.
    fn note_end(&self, opened: Instant) {
        let mut ends = lock(&self.early_ends);
        *ends = if opened.elapsed() >= GOOD_STREAM {
            0
        } else {
            ends.saturating_add(1)
        };
    }
}

/// The same events, but an error ends the stream: rmcp opens a stream that broke again at once, and one that ended after a
/// pause. `on_end` is called at the end.
fn end_when_broken(
    events: Events,
    server: ServerId,
    on_end: impl FnOnce() + Send + 'static,
) -> Events {
    stream::unfold(Some((events, server, on_end)), |state| async move {
        let (mut events, server, on_end) = state?;
        match events.next().await {
            Some(Ok(event)) => Some((Ok(event), Some((events, server, on_end)))),
            Some(Err(error)) => {
                tracing::debug!(%server, %error, "a stream of events broke");
                on_end();
                None
            }
            None => {
                on_end();
                None
            }
        }
    })
    .boxed()
}
