//! The streamable HTTP transport, on top of egress: one request is one POST, whose response is read where it was sent. The
//! meaning of a response is decided here, where its status is known.
//!
//! The headers of a server, which carry credentials, go to the server's own origin only: egress sees to that.

mod client;
mod cookies;
mod legacy_sse;
mod response;
mod streams;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;

use self::{
    client::Attempts,
    response::{
        MAX_REFUSAL, Refusal, body_excerpt, body_failure, collect, collect_object, media_type,
    },
    streams::ReconnectPace,
};
pub(super) use self::{
    client::{Client, read_headers},
    legacy_sse::LegacySse,
};
use super::{
    answer::{self, Answer},
    error::Failure,
    lock,
    param_headers::encode_header,
    peer::{Asked, Peer},
    redaction::clip,
    request::{OpenRequest, Request},
    sse::Events,
};
use domain::{revision::Revision, server::Lifecycle};
use egress::{Limits, MAX_BODY, Request as HttpRequest, Response};

/// The most bytes of the response to one request, with the notifications in it.
const MAX_STREAM: usize = 4 * MAX_BODY;
/// How long sending a notification, a reply or the end of a session may take.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// A connection over streamable HTTP.
pub(super) struct Http {
    client: Client,
    session: ArcSwap<HttpSession>,
    /// What the response to the newest handshake said.
    handshake: Mutex<Option<HandshakeResponse>>,
    /// For the stream of notifications.
    notification_pace: ReconnectPace,
    /// For streams that resume an answer.
    answer_pace: ReconnectPace,
}

/// What all requests of a session share.
struct HttpSession {
    headers: HeaderMap,
    /// The URL that answered the handshake, after redirects within the origin.
    url: Url,
    /// Requests name a session.
    is_named: bool,
    /// Headers repeat what requests say.
    has_standard_headers: bool,
}

struct HandshakeResponse {
    session: Option<HeaderValue>,
    url: Url,
}

impl Http {
    pub(super) fn new(client: Client) -> Self {
        let session = HttpSession {
            headers: base_headers(&client),
            url: client.url.clone(),
            is_named: false,
            has_standard_headers: false,
        };
        Self {
            client,
            session: ArcSwap::from_pointee(session),
            handshake: Mutex::default(),
            notification_pace: ReconnectPace::for_notifications(),
            answer_pace: ReconnectPace::for_answers(),
        }
    }

    /// Makes all further requests those of the session that the handshake has begun.
    pub(super) fn begin_session(&self, revision: Revision) {
        let response = lock(&self.handshake).take();
        let mut headers = base_headers(&self.client);
        headers.insert(VERSION, HeaderValue::from_static(revision.as_str()));
        let (session, url) = match response {
            Some(response) => (response.session, Some(response.url)),
            None => (None, None),
        };
        let is_named = session.is_some();
        if let Some(session) = session {
            headers.insert(SESSION_ID, session);
        }
        let url = url.filter(|url| self.client.may_move_to(url));
        self.session.store(Arc::new(HttpSession {
            headers,
            url: url.unwrap_or_else(|| self.client.url.clone()),
            is_named,
            has_standard_headers: revision.lifecycle() == Lifecycle::Stateless,
        }));
    }

    pub(super) fn is_in_session(&self) -> bool {
        self.session.load().is_named
    }

    /// Sends a request and reads its answer.
    pub(super) async fn exchange(
        &self,
        peer: &Arc<Peer>,
        id: i64,
        request: &Request<'_>,
        open: &Arc<OpenRequest>,
    ) -> Answer {
        let session = self.session.load_full();
        let mut headers = session.headers.clone();
        match request {
            Request::Initialize => self.client.cookies.open(),
            Request::Discover => {
                let version = HeaderValue::from_static(Revision::STATELESS.as_str());
                headers.insert(VERSION, version);
            }
            _ => self.answer_pace.restart(),
        }
        if session.has_standard_headers || matches!(request, Request::Discover) {
            headers.insert(METHOD, HeaderValue::from_static(request.method()));
            if let Some(name) = request.name()
                && let Ok(name) = HeaderValue::from_str(&encode_header(name))
            {
                headers.insert(NAME, name);
            }
        }
        let text = request.to_json(id, peer.revision(), open);
        let response = self
            .client
            .post_request(session.url.clone(), headers, request, open, text)
            .await?;
        if request.is_handshake() && response.status.is_success() {
            // A server assigns no session in the answer to `server/discover`.
            let begins_session = matches!(request, Request::Initialize);
            let named = response.headers.get(SESSION_ID);
            let named = named.filter(|id| begins_session && id.to_str().is_ok());
            *lock(&self.handshake) = Some(HandshakeResponse {
                session: named.cloned(),
                url: response.url.clone(),
            });
        }
        if !response.status.is_success() {
            let refusal = Refusal::read(response, self.client.has_credential).await;
            let redactor = &self.client.redactor;
            return Err(if session.is_named {
                refusal.failure_in_session(redactor, id)
            } else {
                refusal.failure(redactor, Some(id))
            });
        }
        self.read_response(peer, Asked { id, open }, request.is_handshake(), response)
            .await
    }

    /// Reads the answer in a response whose status is success.
    async fn read_response(
        &self,
        peer: &Arc<Peer>,
        asked: Asked<'_>,
        is_handshake: bool,
        response: Response,
    ) -> Answer {
        let status = response.status;
        let body = match media_type(&response.headers).as_deref() {
            Some("text/event-stream") => {
                let silence = self.client.timeouts.stream_idle;
                let events = Events::new(response.body).with_silence(silence, asked.open);
                return Box::pin(self.read_answer(peer, asked, events)).await;
            }
            Some("application/json") => collect(response.body, MAX_BODY)
                .await
                .map_err(|error| body_failure(&error))?,
            _ if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) => {
                return Err(Failure::Lost(format!(
                    "the server took the request and did not answer it (HTTP {status})"
                )));
            }
            Some("text/html") => {
                return Err(Failure::WebPage(
                    "the server answered with a web page (\"text/html\") instead of JSON or events"
                        .to_owned(),
                ));
            }
            // Some servers send JSON with another content type.
            other => {
                let body = collect_object(response.body, MAX_BODY).await;
                match (body.map_err(|error| body_failure(&error))?, other) {
                    (Some(body), _) => body,
                    (None, Some(other)) => {
                        return Err(Failure::Lost(format!(
                            "the server answered with {:?} instead of JSON or events",
                            clip(other)
                        )));
                    }
                    (None, None) => {
                        return Err(Failure::Lost(
                            "the server answered without a content type".to_owned(),
                        ));
                    }
                }
            }
        };
        let redactor = &self.client.redactor;
        answer::read_body(&body, asked.id, is_handshake, redactor).unwrap_or_else(|| {
            Err(Failure::Lost(format!(
                "the answer of the server is not a JSON-RPC answer to the request{}",
                body_excerpt(redactor, &HeaderMap::new(), &body)
            )))
        })
    }

    /// Posts a notification (`method`) or a reply.
    pub(super) async fn post_message(
        &self,
        method: Option<&'static str>,
        text: String,
    ) -> Result<(), Failure> {
        let session = self.session.load_full();
        let mut headers = session.headers.clone();
        if let Some(method) = method
            && session.has_standard_headers
        {
            headers.insert(METHOD, HeaderValue::from_static(method));
        }
        self.client
            .post_message(session.url.clone(), headers, text)
            .await
    }

    /// Ends the session at the server, unless it is to expire by itself.
    pub(super) async fn end_session(&self) {
        let session = self.session.load_full();
        if !session.is_named || !self.client.terminates {
            return;
        }
        let request = HttpRequest {
            method: Method::DELETE,
            url: session.url.clone(),
            headers: session.headers.clone(),
            body: Bytes::new(),
            limits: Limits {
                deadline: Some(CONTROL_TIMEOUT),
                max_body: MAX_REFUSAL,
                ..self.client.wait_limits()
            },
        };
        // If the request fails, the server ends the session when it expires.
        let _ = self.client.send(request, Attempts::ToRead, || {}).await;
    }
}

/// The headers of every POST.
fn base_headers(client: &Client) -> HeaderMap {
    let mut headers = client.headers.clone();
    headers.insert(
        header::ACCEPT,
        HeaderValue::from_static("application/json, text/event-stream"),
    );
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers
}
