//! Streamable HTTP for rmcp, on top of the guarded client. What the status of an answer means is decided
//! here, where it is known, and written into the tap of the request.
//!
//! The headers of a server, which carry credentials, live here and never in rmcp's configuration, whose
//! `Debug` would print them. They go with requests to the server's own origin only; egress sees to that.

mod pair;
mod reconnect;
mod signed;
mod verdict;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
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

pub(super) use self::pair::Pair;
use self::reconnect::{Pace, end_quietly};
use self::verdict::{MAX_REFUSAL, Refusal, broken, status_only, words};
use super::{
    error::Failure,
    live_questions, sse,
    tokens::Bearer,
    wire::{AnswerBody, Asked, Tap, Wire, body_of, clipped, locked, stand_in},
};
use crate::{
    domain::{
        clock,
        ids::ServerId,
        secret::Secret,
        server::{ServerSpec, Timeouts},
    },
    egress::{Body, Egress, EgressError, Limits, MAX_BODY, Request, Response},
};

/// Everything that comes in answer to one request, notifications on the way included.
const MAX_STREAM: usize = 4 * MAX_BODY;
/// How long a notification, a reply or the end of a session may take.
const CONTROL: Duration = Duration::from_secs(5);

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// One connection's way to its server.
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
    wire: Arc<Wire>,
    /// How it signs in, where not by its headers.
    bearer: Option<Bearer>,
    /// Why the latest request failed, for requests that have no tap.
    failure: Mutex<Option<Failure>>,
    server: ServerId,
    /// Requests carry a credential.
    signed: bool,
    /// Of the stream of the server's news.
    pace: Pace,
}

/// What rmcp is given as the error; the details are in the tap.
#[derive(Debug, thiserror::Error)]
#[error("the request failed")]
pub(super) struct Failed;

type HttpError = StreamableHttpError<Failed>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

/// The headers of a pack, ready to send; the error names the header and never its value.
pub(super) fn headers(of: &[(String, Secret)]) -> Result<HeaderMap, Failure> {
    const OURS: [&str; 6] = [
        "accept",
        "content-type",
        "mcp-session-id",
        "mcp-protocol-version",
        "last-event-id",
        "host",
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in of {
        let bad = |why: &str| Failure::Misconfigured(format!("header {name:?} {why}"));
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| bad("is not a valid header name"))?;
        if OURS.contains(&parsed.as_str()) {
            return Err(bad("belongs to the protocol; leave it out"));
        }
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| bad("has a value with characters that a header cannot carry"))?;
        value.set_sensitive(true);
        headers.append(parsed, value);
    }
    Ok(headers)
}

impl Client {
    pub(super) fn new(
        egress: Egress,
        url: Url,
        headers: HeaderMap,
        spec: &ServerSpec,
        wire: Arc<Wire>,
        bearer: Option<Bearer>,
    ) -> Self {
        let (timeouts, terminates, failure) =
            (spec.timeouts, spec.terminate_on_close, Mutex::default());
        // What a user entered may stand in the address.
        let signed = !headers.is_empty()
            || bearer.is_some()
            || !spec.entered.is_empty()
            || url.query().is_some();
        Self {
            shared: Arc::new(Shared {
                egress,
                url,
                headers,
                timeouts,
                terminates,
                wire,
                bearer,
                failure,
                server: spec.id.clone(),
                signed,
                pace: Pace::default(),
            }),
        }
    }

    pub(super) fn wire(&self) -> &Arc<Wire> {
        &self.shared.wire
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
        tap: Option<&Tap>,
    ) -> Result<Response, Failure> {
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.extend(tap.iter().flat_map(|tap| tap.headers.iter().cloned()));
        let body = body_of(message, tap).map_err(|error| Failure::NotSent(error.to_string()))?;
        let mut limits = self.limits(message, tap);
        if tap.is_some_and(|tap| tap.idempotency_key.is_some()) {
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
        self.send(request, || tap.iter().for_each(|tap| tap.mark_sent()))
            .await
    }

    /// What an answer to a POST means.
    async fn answer(
        &self,
        message: &ClientJsonRpcMessage,
        in_session: bool,
        asked: Option<Asked>,
        response: Response,
    ) -> Result<Answer, Failure> {
        let status = response.status;
        let ClientJsonRpcMessage::Request(request) = message else {
            return status_only(&response).map_or(Ok(Answer::Accepted), Err);
        };
        let wire = &self.shared.wire;
        if !status.is_success() {
            let refusal = Refusal::read(response, self.shared.signed).await;
            return match (in_session, asked) {
                (true, _) => Err(refusal.failure_in_session(wire, &request.id)),
                (false, Some(_)) => Err(refusal.failure(wire, Some(&request.id))),
                (false, None) => refusal.for_rmcp(wire, &request.request, &request.id),
            };
        }
        let session = text_of(&response.headers, &SESSION_ID);
        match media_type(&response.headers) {
            Some("text/event-stream") => Ok(Answer::Sse(
                sse::events(response.body, wire.clone(), asked),
                session,
            )),
            Some("application/json") => {
                let body = collect(response.body, MAX_BODY)
                    .await
                    .map_err(|error| broken(&error))?;
                let message = read(wire, &body, &request.id, asked)?;
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
        if !shared.wire.has_requests() {
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
                let events = sse::events(response.body, shared.wire.clone(), None);
                let (opened, server) = (clock::instant(), shared.server.clone());
                Ok(end_quietly(events, server, move || {
                    shared.pace.ended(opened)
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

    fn headers(
        &self,
        session: Option<&str>,
        extra: HashMap<HeaderName, HeaderValue>,
    ) -> Result<HeaderMap, Failure> {
        let mut headers = self.shared.headers.clone();
        headers.extend(extra);
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        if let Some(session) = session {
            let id = HeaderValue::from_str(session);
            headers.insert(
                SESSION_ID,
                id.map_err(|_| Failure::NotSent("the session has no usable id".to_owned()))?,
            );
        }
        Ok(headers)
    }

    fn limits(&self, message: &ClientJsonRpcMessage, tap: Option<&Tap>) -> Limits {
        let Timeouts {
            connect, request, ..
        } = self.shared.timeouts;
        let deadline = match (message, tap) {
            // The one who asked waits no longer than `request`, and for their user; this closes what they left behind.
            (ClientJsonRpcMessage::Request(_), Some(tap)) => {
                let asking = tap
                    .asking
                    .as_ref()
                    .map(|_| live_questions::PATIENCE)
                    .unwrap_or_default();
                Some(request + asking + CONTROL)
            }
            (ClientJsonRpcMessage::Request(asked), _)
                if matches!(asked.request, ClientRequest::SubscriptionsListenRequest(_)) =>
            {
                return self.endless();
            }
            (ClientJsonRpcMessage::Request(_), _) => Some(connect),
            _ => Some(CONTROL),
        };
        Limits {
            deadline,
            max_body: MAX_STREAM,
            ..self.patience()
        }
    }

    /// Of a stream of what a server has to say: as long as it is not silent for longer than the pack bears.
    fn endless(&self) -> Limits {
        Limits {
            deadline: None,
            max_body: usize::MAX,
            idle: self.shared.timeouts.stream_idle,
            ..self.patience()
        }
    }

    fn patience(&self) -> Limits {
        Limits {
            connect: self.shared.timeouts.connect,
            idle: None,
            ..Limits::default()
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
        let tap = self.shared.wire.outgoing(&message);
        let asked = match (&message, &tap) {
            (ClientJsonRpcMessage::Request(request), Some(tap)) => {
                Some((request.id.clone(), tap.clone()))
            }
            _ => None,
        };
        let answered = async {
            let headers = self.headers(session, custom_headers)?;
            let url = &self.shared.url;
            let response = self
                .send_message(url, headers, &message, tap.as_deref())
                .await?;
            self.answer(&message, session.is_some(), asked, response)
                .await
        };
        answered.await.map_err(|failure: Failure| {
            if let Some(tap) = &tap {
                tap.settle(Err(failure.clone()));
            }
            *locked(&self.shared.failure) = Some(self.shared.wire.without_token(failure));
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
            ..self.patience()
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
    wire: &Wire,
    body: &[u8],
    id: &RequestId,
    asked: Option<Asked>,
) -> Result<ServerJsonRpcMessage, Failure> {
    if let Some((id, tap)) = asked {
        let Some(AnswerBody { answer, .. }) = wire.answer_in(body, &id) else {
            return Err(Failure::Lost(format!(
                "the answer of the server is not a JSON-RPC answer to the request{}",
                words(wire, &HeaderMap::new(), body)
            )));
        };
        tap.settle(answer);
        return Ok(stand_in(id));
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

async fn collect(mut body: Body, max: usize) -> Result<Bytes, EgressError> {
    let Some(first) = body.next().await.transpose()? else {
        return Ok(Bytes::new());
    };
    let mut whole = bytes::BytesMut::from(first);
    while let Some(chunk) = body.next().await.transpose()? {
        if whole.len() + chunk.len() > max {
            return Err(EgressError {
                kind: crate::egress::ErrorKind::TooLarge(max),
                sent: true,
            });
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// The media type without its parameters.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(str::trim)
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}
