//! Sends requests with their headers, limits, cookies and access token. A token that the server refuses is replaced once.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;

use super::{
    CONTROL_TIMEOUT, MAX_STREAM, SESSION_ID,
    cookies::Jar,
    response::{MAX_REFUSAL, Refusal, refusal_by_status, send_failure},
};
use crate::{
    LIVE_TIME_LIMIT,
    call::IMMEDIATE_REFUSAL,
    error::Failure,
    redaction::Redactor,
    request::{OpenRequest, Request},
    tokens::{Bearer, Token},
};
use domain::{
    clock,
    ids::ServerId,
    scrub::carries_credential,
    secret::Secret,
    server::{ServerSpec, Timeouts},
};
use egress::{Egress, Handshake, Limits, Request as HttpRequest, Response, Socket};

/// The headers of a pack as a header map. The error names the header and never its value.
pub(crate) fn read_headers(headers_of_pack: &[(String, Secret)]) -> Result<HeaderMap, Failure> {
    const RESERVED: [&str; 6] = [
        "accept",
        "content-type",
        "mcp-session-id",
        "mcp-protocol-version",
        "last-event-id",
        "host",
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in headers_of_pack {
        let bad = |why: &str| Failure::Misconfigured(format!("header {name:?} {why}"));
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| bad("is not a valid header name"))?;
        if RESERVED.contains(&parsed.as_str()) {
            return Err(bad("belongs to the protocol; leave it out"));
        }
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| bad("has a value with characters that a header cannot carry"))?;
        value.set_sensitive(true);
        headers.append(parsed, value);
    }
    Ok(headers)
}

/// What all requests to one server share, whatever the transport.
pub(crate) struct Client {
    egress: Egress,
    pub(super) url: Url,
    /// The headers of the pack.
    pub(super) headers: HeaderMap,
    pub(super) cookies: Jar,
    pub(super) timeouts: Timeouts,
    /// Closing the connection ends the session with a DELETE request.
    pub(super) terminates: bool,
    pub(super) redactor: Arc<Redactor>,
    /// The source of access tokens, if the server needs them.
    bearer: Option<Bearer>,
    pub(super) server: ServerId,
    /// Whether requests carry a credential.
    pub(super) has_credential: bool,
    /// A tenant wrote the address.
    of_tenant: bool,
}

impl Client {
    /// Whether a server may say that it is at another address. The rules of a tenant's server are those of its address, so
    /// it stays there, but for a slash at the end.
    pub(super) fn may_move_to(&self, url: &Url) -> bool {
        let path = |url: &'_ Url| url.path().trim_end_matches('/').to_owned();
        url.origin() == self.url.origin() && (!self.of_tenant || path(url) == path(&self.url))
    }

    pub(crate) fn new(
        egress: Egress,
        url: Url,
        headers: HeaderMap,
        spec: &ServerSpec,
        redactor: Arc<Redactor>,
        bearer: Option<Bearer>,
    ) -> Self {
        let has_credential = !spec.asks_for_sign_in
            && (bearer.is_some()
                || !spec.entered.is_empty()
                || spec.has_user_values
                || carries_credential(spec));
        Self {
            egress,
            url,
            headers,
            cookies: Jar::default(),
            timeouts: spec.timeouts,
            terminates: spec.terminate_on_close,
            redactor,
            bearer,
            server: spec.id.clone(),
            has_credential,
            of_tenant: spec.of_tenant,
        }
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    pub(crate) fn server(&self) -> &ServerId {
        &self.server
    }

    /// Posts a request to an address of the server.
    pub(super) async fn post_request(
        &self,
        url: Url,
        mut headers: HeaderMap,
        request: &Request<'_>,
        open: &OpenRequest,
        text: String,
    ) -> Result<Response, Failure> {
        headers.extend(open.headers.iter().cloned());
        let mut limits = self.request_limits(request, open);
        if matches!(request, Request::Call { .. } | Request::Ping) {
            // Following a redirect would send a call twice, and a ping to another place says nothing about the session.
            limits.redirects = 0;
        }
        let attempts = match request {
            _ if open.idempotency_key.is_some() => Attempts::Once,
            Request::Call { .. } => Attempts::ToCall,
            _ => Attempts::ToRead,
        };
        let post = HttpRequest {
            method: Method::POST,
            url,
            headers,
            body: text.into(),
            limits,
        };
        let on_send = || {
            open.mark_sent();
        };
        self.send(post, attempts, on_send).await
    }

    /// Posts a notification or a reply to an address of the server.
    pub(super) async fn post_message(
        &self,
        url: Url,
        headers: HeaderMap,
        text: String,
    ) -> Result<(), Failure> {
        let post = HttpRequest {
            method: Method::POST,
            url,
            headers,
            body: text.into(),
            limits: Limits {
                deadline: Some(CONTROL_TIMEOUT),
                max_body: MAX_STREAM,
                ..self.wait_limits()
            },
        };
        let response = self.send(post, Attempts::ToRead, || {}).await?;
        refusal_by_status(&response).map_or(Ok(()), Err)
    }

    /// Requests a stream of events, which may last forever.
    pub(super) async fn get_events(
        &self,
        url: Url,
        mut headers: HeaderMap,
    ) -> Result<Response, Failure> {
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("text/event-stream"),
        );
        let request = HttpRequest {
            method: Method::GET,
            url,
            headers,
            body: Bytes::new(),
            limits: self.endless_limits(),
        };
        self.send(request, Attempts::ToRead, || {}).await
    }

    fn request_limits(&self, request: &Request<'_>, open: &OpenRequest) -> Limits {
        let deadline = match request {
            Request::Listen { .. } => return self.endless_limits(),
            Request::Discover | Request::Initialize => self.timeouts.connect,
            // The caller gives up earlier, after `request` and the time of its questions; this ends a request left behind.
            _ => {
                let questions = open.live_questions.as_ref();
                let for_questions = questions.map(|_| LIVE_TIME_LIMIT).unwrap_or_default();
                self.timeouts.request + for_questions + CONTROL_TIMEOUT
            }
        };
        Limits {
            deadline: Some(deadline),
            max_body: MAX_STREAM,
            ..self.wait_limits()
        }
    }

    /// The limits for a stream of notifications: it may last forever, unless it is silent for longer than the pack allows.
    fn endless_limits(&self) -> Limits {
        Limits {
            deadline: None,
            max_body: usize::MAX,
            idle: self.timeouts.stream_idle,
            ..self.wait_limits()
        }
    }

    /// The limits that all requests share.
    pub(super) fn wait_limits(&self) -> Limits {
        Limits {
            connect: self.timeouts.connect,
            idle: None,
            ..Limits::default()
        }
    }
}

/// How often a request may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempts {
    /// A second time with another access token, if the server refuses the first one. What is sent may be read twice.
    ToRead,
    /// A second time with another access token, if the server refuses the first one at once.
    ToCall,
    /// At most once. If the token ended too early, it is replaced for the next request.
    Once,
}

impl Client {
    /// Sends a request, with an access token if the server needs one. `on_send` is called just before it is sent. If the
    /// server refuses the token at once (401), nothing was executed, so the request may be sent again with another token.
    pub(super) async fn send(
        &self,
        mut request: HttpRequest,
        attempts: Attempts,
        on_send: impl FnOnce(),
    ) -> Result<Response, Failure> {
        let token = self.sign(&mut request, None).await?;
        on_send();
        let Some(token) = token else {
            return self.send_with_cookies(request).await;
        };
        let sent_at = clock::instant();
        let answer = self.send_with_cookies(request.clone()).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let took = sent_at.elapsed();
        if attempts != Attempts::ToRead && took > IMMEDIATE_REFUSAL {
            return Err(Failure::Lost(format!(
                "the server refused the access token only after {:.1} s, so the call may have been read before",
                took.as_secs_f32()
            )));
        }
        let is_of_user = self.bearer.as_ref().is_some_and(Bearer::is_of_user);
        let is_once = attempts == Attempts::Once;
        // In a session, 401 may also mean that the session is lost.
        let is_in_session = request.headers.contains_key(SESSION_ID);
        let is_final = !is_of_user || is_in_session || (token.is_fresh() && !token.has_ended());
        if is_once && is_final {
            return Ok(answer);
        }
        match self.sign(&mut request, Some(&token)).await {
            Ok(_) if is_once => Err(Failure::NotSent(
                "the access token had ended before its time; the server did nothing".to_owned(),
            )),
            Ok(another) => {
                let answer = self.send_with_cookies(request).await?;
                // The refusal of a token that had expired when it arrived does not mean that the user's sign-in has ended.
                let is_late = another.is_some_and(|token| token.has_ended());
                if is_of_user && is_late && answer.status == StatusCode::UNAUTHORIZED {
                    return Err(Failure::NotSent(
                        "the access token ended before it arrived; the server did nothing"
                            .to_owned(),
                    ));
                }
                Ok(answer)
            }
            // If the authorization server does not answer, the user's sign-in may still be good.
            Err(failure @ Failure::NotSent(_)) if is_of_user => Err(failure),
            Err(_) => Ok(answer),
        }
    }

    /// Sends a request with the cookies of the session, and keeps the cookies of the response.
    async fn send_with_cookies(&self, mut request: HttpRequest) -> Result<Response, Failure> {
        if request.url.origin() == self.url.origin() {
            self.cookies.add_to(&request.url, &mut request.headers);
        }
        let answer = self.egress.send(request).await;
        let answer = answer.map_err(|error| send_failure(&error))?;
        if answer.url.origin() == self.url.origin() {
            self.cookies.keep(&answer.url, &answer.headers);
        }
        Ok(answer)
    }

    /// Adds an access token to a request, if the server needs one. A `refused` token is not used again.
    async fn sign(
        &self,
        request: &mut HttpRequest,
        refused: Option<&Arc<Token>>,
    ) -> Result<Option<Arc<Token>>, Failure> {
        let Some(bearer) = &self.bearer else {
            return Ok(None);
        };
        let token = bearer.token(refused).await?;
        self.redactor.set_token(token.scrubber.clone());
        request
            .headers
            .insert(header::AUTHORIZATION, token.header.clone());
        Ok(Some(token))
    }

    /// Opens a WebSocket to the server, with its headers and access token.
    pub(crate) async fn open_web_socket(&self, protocol: &'static str) -> Result<Socket, Failure> {
        let limits = Limits {
            deadline: Some(self.timeouts.connect),
            max_body: MAX_REFUSAL,
            ..self.wait_limits()
        };
        let headers = self.headers.clone();
        let mut request = HttpRequest {
            method: Method::GET,
            url: self.url.clone(),
            headers,
            body: Bytes::new(),
            limits,
        };
        let token = self.sign(&mut request, None).await?;
        let dial = async |request| {
            self.egress
                .open_web_socket(request, protocol)
                .await
                .map_err(|error| send_failure(&error))
        };
        let mut handshake = dial(request.clone()).await?;
        if matches!(&handshake, Handshake::Answer(answer) if answer.status == StatusCode::UNAUTHORIZED)
            && token.is_some()
            && self.sign(&mut request, token.as_ref()).await.is_ok()
        {
            handshake = dial(request).await?;
        }
        match handshake {
            Handshake::Open(socket) => Ok(socket),
            Handshake::Answer(answer) if answer.status.is_success() => Err(Failure::Refused {
                code: None,
                message: "the server opens no WebSocket there".to_owned(),
            }),
            Handshake::Answer(answer) => {
                let refusal = Refusal::read(*answer, self.has_credential).await;
                Err(refusal.failure(&self.redactor, None))
            }
        }
    }
}
