//! Requests as they leave: with an access token where the server wants one, which is replaced once when the server
//! refuses it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode, header};

use super::{
    Client, MAX_REFUSAL, SESSION_ID,
    verdict::{Refusal, unreachable},
};
use crate::{
    error::Failure,
    tokens::{Bearer, Token},
};
use egress::{Handshake, Limits, Request, Response, Socket};

/// How often a request may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempts {
    /// Again with another access token, when the server refuses the first one.
    WithAnotherToken,
    /// Once at most, whatever the answer. A token that ended too early is replaced for the next one.
    Once,
    /// Once, and the answer is what is asked for.
    Probe,
}

impl Client {
    /// Sends a request, with an access token where the server wants one; `sending` hears when it leaves. A token
    /// that the server refuses is replaced once: 401 says that nothing was done.
    pub(super) async fn send(
        &self,
        mut request: Request,
        attempts: Attempts,
        sending: impl FnOnce(),
    ) -> Result<Response, Failure> {
        let token = self.sign(&mut request, None).await?;
        sending();
        let Some(token) = token.filter(|_| attempts != Attempts::Probe) else {
            return self.exchange(request).await;
        };
        let answer = self.exchange(request.clone()).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let is_of_user = self.shared.bearer.as_ref().is_some_and(Bearer::is_of_user);
        let is_once = attempts == Attempts::Once;
        // In a session it may be the session that is refused.
        let is_in_session = request.headers.contains_key(SESSION_ID);
        let is_settled = !is_of_user || is_in_session || (token.is_fresh() && !token.has_ended());
        if is_once && is_settled {
            return Ok(answer);
        }
        match self.sign(&mut request, Some(&token)).await {
            Ok(_) if is_once => Err(Failure::NotSent(
                "the access token had ended before its time; the server did nothing".to_owned(),
            )),
            Ok(another) => {
                let answer = self.exchange(request).await?;
                // A refusal of a token that ended on its way says nothing of the user's sign-in.
                let is_late = another.is_some_and(|token| token.has_ended());
                if is_of_user && is_late && answer.status == StatusCode::UNAUTHORIZED {
                    return Err(Failure::NotSent(
                        "the access token ended before it arrived; the server did nothing"
                            .to_owned(),
                    ));
                }
                Ok(answer)
            }
            // An authorization server that is away refuses nothing: the user's sign-in stays.
            Err(failure @ Failure::NotSent(_)) if is_of_user => Err(failure),
            Err(_) => Ok(answer),
        }
    }

    /// One request and its answer, with the cookies of the session.
    async fn exchange(&self, mut request: Request) -> Result<Response, Failure> {
        let shared = &*self.shared;
        if request.url.origin() == shared.url.origin() {
            shared.cookies.add_to(&request.url, &mut request.headers);
        }
        let answer = shared.egress.send(request).await;
        let answer = answer.map_err(|error| unreachable(&error))?;
        if answer.url.origin() == shared.url.origin() {
            shared.cookies.keep(&answer.url, &answer.headers);
        }
        Ok(answer)
    }

    /// Puts an access token on a request, where the server wants one: another one than the `refused`.
    async fn sign(
        &self,
        request: &mut Request,
        refused: Option<&Arc<Token>>,
    ) -> Result<Option<Arc<Token>>, Failure> {
        let Some(bearer) = &self.shared.bearer else {
            return Ok(None);
        };
        let token = bearer.token(refused).await?;
        self.shared.interceptor.hide(token.scrubber.clone());
        request
            .headers
            .insert(header::AUTHORIZATION, token.header.clone());
        Ok(Some(token))
    }

    /// Opens a WebSocket at the address of the server, with its headers.
    pub(crate) async fn dial(&self, protocol: &'static str) -> Result<Socket, Failure> {
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
                .map_err(|error| unreachable(&error))
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
                let refusal = Refusal::read(*answer, shared.signed).await;
                Err(refusal.failure(&shared.interceptor, None))
            }
        }
    }
}
