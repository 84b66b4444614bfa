//! Sends requests with their headers, limits, cookies and access token. A token that the server refuses is replaced once.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest};

use super::{
    CONTROL_TIMEOUT, Client, MAX_REFUSAL, MAX_STREAM, SESSION_ID,
    response::{Refusal, send_failure},
};
use crate::{
    LIVE_TIME_LIMIT,
    error::Failure,
    interceptor::PendingRequest,
    tokens::{Bearer, Token},
};
use domain::{secret::Secret, server::Timeouts};
use egress::{Handshake, Limits, Request, Response, Socket};

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

impl Client {
    /// The headers of a request: those of the pack, those of rmcp (`extra`), and the session id.
    pub(super) fn headers(
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

    /// The limits for a POST of this message.
    pub(super) fn limits(
        &self,
        message: &ClientJsonRpcMessage,
        pending: Option<&PendingRequest>,
    ) -> Limits {
        let Timeouts {
            connect, request, ..
        } = self.shared.timeouts;
        let deadline = match (message, pending) {
            // The caller gives up earlier, after `request` and the time of its questions; this ends a request left behind.
            (ClientJsonRpcMessage::Request(_), Some(pending)) => {
                let for_questions = pending
                    .live_questions
                    .as_ref()
                    .map(|_| LIVE_TIME_LIMIT)
                    .unwrap_or_default();
                Some(request + for_questions + CONTROL_TIMEOUT)
            }
            (ClientJsonRpcMessage::Request(asked), _)
                if matches!(asked.request, ClientRequest::SubscriptionsListenRequest(_)) =>
            {
                return self.endless_limits();
            }
            (ClientJsonRpcMessage::Request(_), _) => Some(connect),
            _ => Some(CONTROL_TIMEOUT),
        };
        Limits {
            deadline,
            max_body: MAX_STREAM,
            ..self.wait_limits()
        }
    }

    /// The limits for a stream of notifications: it may last forever, unless it is silent for longer than the pack allows.
    pub(super) fn endless_limits(&self) -> Limits {
        Limits {
            deadline: None,
            max_body: usize::MAX,
            idle: self.shared.timeouts.stream_idle,
            ..self.wait_limits()
        }
    }

    /// The limits that all requests share.
    pub(super) fn wait_limits(&self) -> Limits {
        Limits {
            connect: self.shared.timeouts.connect,
            idle: None,
            ..Limits::default()
        }
    }
}

/// How often a request may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempts {
    /// A second time with another access token, if the server refuses the first one.
    WithAnotherToken,
    /// At most once. If the token ended too early, it is replaced for the next request.
    Once,
    /// Once, and every response is passed on as it is.
    Probe,
}

impl Client {
    /// Sends a request, with an access token if the server needs one. `on_send` is called just before it is sent. If the
    /// server refuses the token (401), nothing was executed, so the request may be sent again with another token.
    pub(super) async fn send(
        &self,
        mut request: Request,
        attempts: Attempts,
        on_send: impl FnOnce(),
    ) -> Result<Response, Failure> {
        let token = self.sign(&mut request, None).await?;
        on_send();
        let Some(token) = token.filter(|_| attempts != Attempts::Probe) else {
            return self.send_with_cookies(request).await;
        };
        let answer = self.send_with_cookies(request.clone()).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let is_of_user = self.shared.bearer.as_ref().is_some_and(Bearer::is_of_user);
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
    async fn send_with_cookies(&self, mut request: Request) -> Result<Response, Failure> {
        let shared = &*self.shared;
        if request.url.origin() == shared.url.origin() {
            shared.cookies.add_to(&request.url, &mut request.headers);
        }
        let answer = shared.egress.send(request).await;
        let answer = answer.map_err(|error| send_failure(&error))?;
        if answer.url.origin() == shared.url.origin() {
            shared.cookies.keep(&answer.url, &answer.headers);
        }
        Ok(answer)
    }

    /// Adds an access token to a request, if the server needs one. A `refused` token is not used again.
    async fn sign(
        &self,
        request: &mut Request,
        refused: Option<&Arc<Token>>,
    ) -> Result<Option<Arc<Token>>, Failure> {
        let Some(bearer) = &self.shared.bearer else {
            return Ok(None);
        };
        let token = bearer.token(refused).await?;
        self.shared
            .interceptor
            .set_token_scrubber(token.scrubber.clone());
        request
            .headers
            .insert(header::AUTHORIZATION, token.header.clone());
        Ok(Some(token))
    }

    /// Opens a WebSocket to the server, with its headers and access token.
    pub(crate) async fn open_web_socket(&self, protocol: &'static str) -> Result<Socket, Failure> {
        let shared = &*self.shared;
        let limits = Limits {
            deadline: Some(shared.timeouts.connect),
            max_body: MAX_REFUSAL,
            ..self.wait_limits()
        };
        let headers = shared.headers.clone();
        let mut request = Request {
            method: Method::GET,
            url: shared.url.clone(),
            headers,
            body: Bytes::new(),
            limits,
        };
        let token = self.sign(&mut request, None).await?;
        let dial = async |request| {
            shared
                .egress
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
                let refusal = Refusal::read(*answer, shared.has_credential).await;
                Err(refusal.failure(&shared.interceptor, None))
            }
        }
    }
}
