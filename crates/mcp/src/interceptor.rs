//! The interceptor between rmcp and the transports. rmcp keeps the sessions, the eras and the correlation of
//! requests; what a request of ours carries and brings back passes it by as raw JSON, so that a large
//! result is scanned once and copied once, an unknown content type fails nothing, and numbers keep
//! their spelling.
//!
//! Invariant: a request with a [`PendingRequest`] is answered to rmcp with an empty result, and what the server said
//! is in the pending request; whether anything of it left this machine is written there before the first byte does.

mod answer;
mod body;
mod elicitations;
mod server_requests;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue};
use rmcp::model::{
    ClientJsonRpcMessage, EmptyResult, GetExtensions, GetMeta, NumberOrString, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(super) use self::body::{body_of, can_elicit};
use self::{
    answer::{Envelope, number},
    elicitations::UnansweredQuestion,
    server_requests::ServerRequests,
};
use super::{Progress, ProgressSender, error::Failure, live_questions::LiveQuestions};
use domain::{
    encoding::replace_lone_surrogates,
    hidden::{one_line, remove_hidden},
    ids::ServerId,
    scrub::Scrubber,
};

/// Requests that nobody waits for any more and that are remembered until their answers come.
const MOST_GIVEN_UP: usize = 1024;
/// Bytes of a server's own error message that are kept.
const MAX_MESSAGE: usize = 1024;
/// JSON-RPC: there is no such method.
const METHOD_NOT_FOUND: i64 = -32601;
/// A question to the user.
pub(super) const ELICIT: &str = "elicitation/create";
/// The requests of one connection that wait for an answer.
#[derive(Default)]
pub(super) struct Interceptor {
    waiting: Mutex<HashMap<i64, Arc<PendingRequest>>>,
    progress: Mutex<HashMap<String, ProgressSender>>,
    /// What servers asked, by the request's id.
    questions: Mutex<HashMap<RequestId, UnansweredQuestion>>,
    /// Calls that nobody waits for any more and that were not answered.
    given_up: Mutex<BTreeSet<i64>>,
    server_requests: ServerRequests,
    /// Why the connection was closed from this side.
    closed: OnceLock<String>,
    /// Cancelled when the server asks more than one connection may hold.
    overrun: CancellationToken,
    /// Whose messages these are, for log lines.
    server: String,
    /// Takes the credentials of this connection out of what the server says.
    scrubber: Scrubber,
    /// The same for the access token that was sent last.
    token: ArcSwap<Scrubber>,
}

/// One request: what travels with it past rmcp, and what became of it.
#[derive(Default)]
pub(super) struct PendingRequest {
    /// The arguments of a call, which are sent as they are.
    arguments: Option<Box<RawValue>>,
    /// `Mcp-Param-*`.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    progress: Option<ProgressSender>,
    /// Goes into `_meta`, for servers that know a request when it comes again.
    pub(super) idempotency_key: Option<String>,
    /// Somebody can be asked something in the course of this call.
    pub(super) asks: bool,
    /// Who is asked what the server asks while this call is open.
    pub(super) asking: Option<Arc<LiveQuestions>>,
    /// What the server asked while it was open, and nobody was asked.
    declined: Mutex<Vec<String>>,
    /// The progress token rmcp gave the request, as JSON.
    token: OnceLock<String>,
    was_sent: AtomicBool,
    sent: Notify,
    answer: Mutex<Option<Result<Box<RawValue>, Failure>>>,
}

impl PendingRequest {
    pub(super) fn of_call(
        arguments: Box<RawValue>,
        headers: Vec<(HeaderName, HeaderValue)>,
        progress: Option<ProgressSender>,
        idempotency_key: Option<String>,
    ) -> Self {
        Self {
            arguments: Some(arguments),
            headers,
            progress,
            idempotency_key,
            ..Self::default()
        }
    }

    pub(super) fn mark_sent(&self) {
        self.was_sent.store(true, Ordering::SeqCst);
        self.sent.notify_waiters();
    }

    pub(super) fn was_sent(&self) -> bool {
        self.was_sent.load(Ordering::SeqCst)
    }

    /// Waits until it leaves this machine.
    pub(super) async fn sent(&self) {
        let sent = self.sent.notified();
        if !self.was_sent() {
            sent.await;
        }
    }

    pub(super) fn take_declined(&self) -> Vec<String> {
        std::mem::take(&mut *locked(&self.declined))
    }

    /// The first answer counts.
    pub(super) fn settle(&self, answer: Result<Box<RawValue>, Failure>) {
        locked(&self.answer).get_or_insert(answer);
    }

    pub(super) fn take(&self) -> Option<Result<Box<RawValue>, Failure>> {
        locked(&self.answer).take()
    }
}

/// The request that a stream or a body answers.
pub(super) type Exchange = (RequestId, Arc<PendingRequest>);

/// What to do with a message from the server.
pub(super) enum Incoming {
    /// It is rmcp's.
    Pass,
    /// It answered a pending request; rmcp is told only that there was an answer.
    Answered(RequestId),
    /// It was for us alone.
    Taken,
}

/// Reads a JSON object. Serde would also make a struct of an array, member by member.
pub(super) fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, serde_json::Error> {
    if json.trim_ascii_start().starts_with('{') {
        return serde_json::from_str(json);
    }
    Err(serde::de::Error::custom("it is not an object"))
}

#[derive(Deserialize)]
struct ProgressParams<'a> {
    #[serde(borrow, rename = "progressToken")]
    token: &'a RawValue,
    progress: f64,
    #[serde(default)]
    total: Option<f64>,
    #[serde(default)]
    message: Option<String>,
}

impl Interceptor {
    pub(super) fn new(server: &ServerId, scrubber: Scrubber) -> Self {
        Self {
            server: server.to_string(),
            scrubber,
            ..Self::default()
        }
    }

    /// The server's name.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// An answer without the credentials of this connection.
    pub(super) fn scrubbed(
        &self,
        answer: Result<Box<RawValue>, Failure>,
    ) -> Result<Box<RawValue>, Failure> {
        match answer {
            Ok(raw) => Ok(self.token.load().json(self.scrubber.json(raw))),
            Err(failure) => Err(self.without_token(failure.scrubbed(&self.scrubber))),
        }
    }

    /// A failure without the access token.
    pub(super) fn without_token(&self, failure: Failure) -> Failure {
        failure.scrubbed(&self.token.load())
    }

    /// Remembers the access token that is about to be sent.
    pub(super) fn hide(&self, token: Arc<Scrubber>) {
        self.token.store(token);
    }

    /// Notes a pending request that is about to be sent.
    pub(super) fn outgoing(&self, message: &ClientJsonRpcMessage) -> Option<Arc<PendingRequest>> {
        let ClientJsonRpcMessage::Request(request) = message else {
            return None;
        };
        let pending = request
            .request
            .extensions()
            .get::<Arc<PendingRequest>>()?
            .clone();
        let NumberOrString::Number(id) = request.id else {
            return None;
        };
        locked(&self.waiting).insert(id, pending.clone());
        if let Some(progress) = &pending.progress
            && let Some(token) = request.request.get_meta().get_progress_token()
            && let Ok(token) = serde_json::to_string(&token)
        {
            locked(&self.progress).insert(token.clone(), progress.clone());
            // A pending request travels once, so this is the first token.
            let _ = pending.token.set(token);
        }
        Some(pending)
    }

    /// Says why the connection is about to be closed from this side.
    pub(super) fn close(&self, reason: String) {
        // The first reason counts.
        let _ = self.closed.set(reason);
    }

    pub(super) fn close_reason(&self) -> Option<&str> {
        self.closed.get().map(String::as_str)
    }

    /// Why the connection ends because of what the server asked, if it does.
    pub(super) fn overrun_reason(&self) -> Option<&str> {
        self.close_reason().filter(|_| self.overrun.is_cancelled())
    }

    /// Waits until the server asks more than one connection may hold.
    pub(super) async fn overrun(&self) {
        self.overrun.cancelled().await;
    }

    /// Whether somebody waits for an answer.
    pub(super) fn has_requests(&self) -> bool {
        !locked(&self.waiting).is_empty()
    }

    /// Nobody waits for this request any more.
    pub(super) fn forget(&self, id: &RequestId, pending: &PendingRequest) {
        if let NumberOrString::Number(id) = id {
            // At once: in between the call of somebody else could look like the only one.
            let mut waiting = locked(&self.waiting);
            waiting.remove(id);
            if pending.is_given_up() {
                let mut given_up = locked(&self.given_up);
                given_up.insert(*id);
                // A server that answers none of them for so long will not ask about the first one.
                if given_up.len() > MOST_GIVEN_UP {
                    given_up.pop_first();
                }
            }
        }
        if let Some(token) = pending.token.get() {
            locked(&self.progress).remove(token);
        }
    }

    /// One message of a transport without envelopes of its own; `None` when it is none, or ours alone.
    pub(super) fn message(&self, text: &str) -> Option<ServerJsonRpcMessage> {
        let incoming = match self.incoming(text, None) {
            Incoming::Pass => self.without_id(text),
            incoming => incoming,
        };
        match incoming {
            Incoming::Pass => serde_json::from_str(text)
                .inspect_err(|_| {
                    let server = self.server();
                    tracing::debug!(%server, "the server wrote something that is no message of the protocol");
                })
                .ok(),
            Incoming::Answered(id) => Some(empty_response(id)),
            Incoming::Taken => None,
        }
    }

    /// An error without an id, on a transport that says in no other way what it answers: that of the one request that
    /// waits. When a server may still be at work on a call that was given up, it may be about that one.
    fn without_id(&self, text: &str) -> Incoming {
        if !text.contains("\"error\"") {
            return Incoming::Pass;
        }
        let text = replace_lone_surrogates(text);
        let Ok(envelope) = object::<Envelope>(&text) else {
            return Incoming::Pass;
        };
        if envelope.error.is_none() || envelope.id.is_some() || envelope.method.is_some() {
            return Incoming::Pass;
        }
        let answer = self.answer_of(&envelope);
        // Some servers answer notifications that they do not know in this way.
        if matches!(
            &answer,
            Err(Failure::Refused {
                code: Some(METHOD_NOT_FOUND),
                ..
            })
        ) {
            return Incoming::Pass;
        }
        let waiting = locked(&self.waiting);
        let mut requests = waiting.iter();
        let (Some((id, pending)), None) = (requests.next(), requests.next()) else {
            return Incoming::Pass;
        };
        if !pending.was_sent() || !locked(&self.given_up).is_empty() {
            return Incoming::Pass;
        }
        pending.settle(answer);
        Incoming::Answered(RequestId::Number(*id))
    }

    /// Takes what is ours out of the stream of messages; `of` is the request that the stream answers, if it is one's own.
    pub(super) fn incoming(&self, text: &str, of: Option<&Exchange>) -> Incoming {
        let text = replace_lone_surrogates(text);
        let Ok(envelope) = object::<Envelope>(&text) else {
            return Incoming::Pass;
        };
        match (&envelope.method, envelope.id) {
            (Some(_), _) if self.overrun.is_cancelled() => Incoming::Taken,
            (Some(_), Some(id)) if !self.admit_request(id) => Incoming::Taken,
            (Some(method), None) if method == "notifications/progress" => {
                self.progressed(envelope.params)
            }
            (Some(method), None) if method == "notifications/cancelled" => {
                self.take_request_back(envelope.params);
                Incoming::Pass
            }
            // Log lines for a person who watches the server: nobody here does.
            (Some(method), None) if method == "notifications/message" => Incoming::Taken,
            (None, Some(id)) => self.answered(id, &envelope),
            (None, None) if envelope.error.is_some() => match of {
                // An error without an id, on the stream that answers one request.
                Some((id, pending)) => {
                    pending.settle(self.answer_of(&envelope));
                    Incoming::Answered(id.clone())
                }
                None => Incoming::Pass,
            },
            (Some(method), Some(id)) if method == ELICIT => {
                self.note_question(id, envelope.params, of.map(|(_, pending)| pending));
                Incoming::Pass
            }
            _ => Incoming::Pass,
        }
    }

    /// What a server said, without the credentials of this connection, and cut.
    pub(super) fn excerpt(&self, text: &str) -> String {
        let mut text = text.to_owned();
        self.scrubber.clean(&mut text);
        self.token.load().clean(&mut text);
        clipped(&text)
    }

    fn answered(&self, id: &RawValue, envelope: &Envelope) -> Incoming {
        let Some(id) = number(id) else {
            return Incoming::Pass;
        };
        let Some(pending) = locked(&self.waiting).get(&id).cloned() else {
            locked(&self.given_up).remove(&id);
            return Incoming::Pass;
        };
        pending.settle(self.answer_of(envelope));
        Incoming::Answered(RequestId::Number(id))
    }

    fn progressed(&self, params: Option<&RawValue>) -> Incoming {
        let Some(progress) = params.and_then(|params| object::<ProgressParams>(params.get()).ok())
        else {
            return Incoming::Pass;
        };
        if let Some(listener) = locked(&self.progress).get(progress.token.get()) {
            let ProgressParams {
                progress,
                total,
                mut message,
                ..
            } = progress;
            if let Some(message) = &mut message {
                *message = self.excerpt(message);
            }
            // The listener may have stopped listening.
            let _ = listener.send(Progress {
                progress,
                total,
                message,
            });
        }
        Incoming::Taken
    }
}

/// What rmcp is told in place of an answer that we took.
pub(super) fn empty_response(id: RequestId) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::response(ServerResult::EmptyResult(EmptyResult {}), id)
}

/// A server's own words in the lines that it wrote, cut.
pub(super) fn clipped_lines(text: &str) -> String {
    remove_hidden(&text[..text.floor_char_boundary(MAX_MESSAGE)])
}

/// A server's own words in one line, cut.
pub(super) fn clipped(text: &str) -> String {
    one_line(&text[..text.floor_char_boundary(MAX_MESSAGE)], MAX_MESSAGE)
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
