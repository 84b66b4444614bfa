//! The tap between rmcp and the transports. rmcp keeps the sessions, the eras and the correlation of
//! requests; what a request of ours carries and brings back passes it by as raw JSON, so that a large
//! result is scanned once and copied once, an unknown content type fails nothing, and numbers keep
//! their spelling.
//!
//! Invariant: a request with a [`Tap`] is answered to rmcp with an empty result, and what the server said
//! is in the tap; whether anything of it left this machine is written there before the first byte does.

mod questions;

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue};
use rmcp::model::{
    CallToolRequestMethod, CallToolRequestParams, ClientCapabilities, ClientJsonRpcMessage,
    ClientRequest, ElicitationCapability, EmptyResult, FormElicitationCapability, GetExtensions,
    GetMeta, JsonRpcVersion2_0, NumberOrString, RequestId, RequestMetaObject, ServerJsonRpcMessage,
    ServerResult, UrlElicitationCapability,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::mpsc::UnboundedSender;

use self::questions::UnansweredQuestion;
use super::{Progress, error::Failure, live_questions::LiveQuestions};
use crate::domain::scrub::Scrubber;

/// Bytes of a server's own error message that are kept.
const MAX_MESSAGE: usize = 1024;
/// A question to the user.
pub(super) const ELICIT: &str = "elicitation/create";
/// The requests of one connection that wait for an answer.
#[derive(Default)]
pub(super) struct Wire {
    waiting: Mutex<HashMap<i64, Arc<Tap>>>,
    progress: Mutex<HashMap<String, UnboundedSender<Progress>>>,
    /// What servers asked, by the request's id.
    questions: Mutex<HashMap<RequestId, UnansweredQuestion>>,
    /// Calls that nobody waits for any more and that were not answered.
    given_up: Mutex<HashSet<i64>>,
    /// Why the connection was closed from this side.
    closed: OnceLock<String>,
    /// Takes the credentials of this connection out of what the server says.
    scrubber: Scrubber,
    /// The same for the access token that was sent last.
    token: ArcSwap<Scrubber>,
}

/// One request: what travels with it past rmcp, and what became of it.
#[derive(Default)]
pub(super) struct Tap {
    /// The arguments of a call, which are sent as they are.
    arguments: Option<Box<RawValue>>,
    /// `Mcp-Param-*`.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    progress: Option<UnboundedSender<Progress>>,
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
    sent: AtomicBool,
    answer: Mutex<Option<Result<Box<RawValue>, Failure>>>,
}

impl Tap {
    pub(super) fn of_call(
        arguments: Box<RawValue>,
        headers: Vec<(HeaderName, HeaderValue)>,
        progress: Option<UnboundedSender<Progress>>,
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
        self.sent.store(true, Ordering::SeqCst);
    }

    pub(super) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::SeqCst)
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
pub(super) type Asked = (RequestId, Arc<Tap>);

/// What to do with a message from the server.
pub(super) enum Incoming {
    /// It is rmcp's.
    Pass,
    /// It answered a tapped request; rmcp is told only that there was an answer.
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
struct Envelope<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireError<'a> {
    code: i64,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct WireProgress<'a> {
    #[serde(borrow, rename = "progressToken")]
    token: &'a RawValue,
    progress: f64,
    #[serde(default)]
    total: Option<f64>,
    #[serde(default)]
    message: Option<String>,
}

impl Wire {
    pub(super) fn new(scrubber: Scrubber) -> Self {
        Self {
            scrubber,
            ..Self::default()
        }
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

    /// Notes a tapped request that is about to be sent.
    pub(super) fn outgoing(&self, message: &ClientJsonRpcMessage) -> Option<Arc<Tap>> {
        let ClientJsonRpcMessage::Request(request) = message else {
            return None;
        };
        let tap = request.request.extensions().get::<Arc<Tap>>()?.clone();
        let NumberOrString::Number(id) = request.id else {
            return None;
        };
        locked(&self.waiting).insert(id, tap.clone());
        if let Some(progress) = &tap.progress
            && let Some(token) = request.request.get_meta().get_progress_token()
            && let Ok(token) = serde_json::to_string(&token)
        {
            locked(&self.progress).insert(token.clone(), progress.clone());
            // A tap travels once, so this is the first token.
            let _ = tap.token.set(token);
        }
        Some(tap)
    }

    /// Says why the connection is about to be closed from this side.
    pub(super) fn close(&self, reason: String) {
        // The first reason counts.
        let _ = self.closed.set(reason);
    }

    pub(super) fn close_reason(&self) -> Option<&str> {
        self.closed.get().map(String::as_str)
    }

    /// Whether somebody waits for an answer.
    pub(super) fn has_requests(&self) -> bool {
        !locked(&self.waiting).is_empty()
    }

    /// Nobody waits for this request any more.
    pub(super) fn forget(&self, id: &RequestId, tap: &Tap) {
        if let NumberOrString::Number(id) = id {
            // At once: in between the call of somebody else could look like the only one.
            let mut waiting = locked(&self.waiting);
            waiting.remove(id);
            if tap.is_given_up() {
                locked(&self.given_up).insert(*id);
            }
        }
        if let Some(token) = tap.token.get() {
            locked(&self.progress).remove(token);
        }
    }

    /// One message of a transport without envelopes of its own; `None` when it is none, or ours alone.
    pub(super) fn message(&self, text: &str) -> Option<ServerJsonRpcMessage> {
        match self.incoming(text, None) {
            Incoming::Pass => serde_json::from_str(text)
                .inspect_err(|_| {
                    tracing::debug!("a server wrote something that is no message of the protocol");
                })
                .ok(),
            Incoming::Answered(id) => Some(stand_in(id)),
            Incoming::Taken => None,
        }
    }

    /// Takes what is ours out of the stream of messages; `of` is the request that the stream answers, if it is one's own.
    pub(super) fn incoming(&self, text: &str, of: Option<&Asked>) -> Incoming {
        let text = replace_lone_surrogates(text);
        let Ok(envelope) = object::<Envelope>(&text) else {
            return Incoming::Pass;
        };
        match (&envelope.method, envelope.id) {
            (Some(method), None) if method == "notifications/progress" => {
                self.progressed(envelope.params)
            }
            (None, Some(id)) => self.answered(id, &envelope),
            (None, None) if envelope.error.is_some() => match of {
                // An error without an id, on the stream that answers one request.
                Some((id, tap)) => {
                    tap.settle(self.answer_of(&envelope));
                    Incoming::Answered(id.clone())
                }
                None => Incoming::Pass,
            },
            (Some(method), Some(id)) if method == ELICIT => {
                self.note_question(id, envelope.params, of.map(|(_, tap)| tap));
                Incoming::Pass
            }
            _ => Incoming::Pass,
        }
    }

    /// The answer to a request of ours in a body of JSON; `None` when the body is no such answer.
    pub(super) fn answer_in(&self, body: &[u8], request: &RequestId) -> Option<AnswerBody> {
        let text = String::from_utf8_lossy(body);
        let text = replace_lone_surrogates(&text);
        let envelope = object::<Envelope>(&text).ok()?;
        let has_id = match (envelope.id, request) {
            (Some(id), NumberOrString::Number(ours)) if number(id) == Some(*ours) => true,
            (None, _) if envelope.error.is_some() => false,
            _ => return None,
        };
        let is_answer = envelope.method.is_none() && envelope.is_jsonrpc();
        is_answer.then(|| AnswerBody {
            has_id,
            answer: self.answer_of(&envelope),
        })
    }

    /// What a message says of the request that it answers. An error says that the request was not carried out only if
    /// it is an error of JSON-RPC, with a code.
    fn answer_of(&self, envelope: &Envelope) -> Result<Box<RawValue>, Failure> {
        let unreadable = || {
            Err(Failure::Lost(
                "the answer of the server is not a JSON-RPC answer".to_owned(),
            ))
        };
        if !envelope.is_jsonrpc() {
            return unreadable();
        }
        match (envelope.result, envelope.error) {
            (Some(result), None) => Ok(result.to_owned()),
            (None, Some(error)) => Err(self.error_of(error)),
            _ => unreadable(),
        }
    }

    fn error_of(&self, error: &RawValue) -> Failure {
        let Ok(WireError { code, message }) = object(error.get()) else {
            return Failure::Lost(format!(
                "the server answered with an error that has no JSON-RPC code: {}",
                self.excerpt(error.get())
            ));
        };
        let message = message.filter(|message| !message.trim().is_empty());
        let message = message.map_or_else(
            || format!("the server answered with error {code} and no words"),
            |message| self.excerpt(&message),
        );
        Failure::Refused {
            code: Some(code),
            message,
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
        let Some(tap) = locked(&self.waiting).get(&id).cloned() else {
            locked(&self.given_up).remove(&id);
            return Incoming::Pass;
        };
        tap.settle(self.answer_of(envelope));
        Incoming::Answered(RequestId::Number(id))
    }

    fn progressed(&self, params: Option<&RawValue>) -> Incoming {
        let Some(progress) = params.and_then(|params| object::<WireProgress>(params.get()).ok())
        else {
            return Incoming::Pass;
        };
        if let Some(listener) = locked(&self.progress).get(progress.token.get()) {
            let WireProgress {
                progress,
                total,
                mut message,
                ..
            } = progress;
            if let Some(message) = &mut message {
                self.scrubber.clean(message);
                self.token.load().clean(message);
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
pub(super) fn stand_in(id: RequestId) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::response(ServerResult::EmptyResult(EmptyResult {}), id)
}

/// The answer to one request in a body of JSON.
pub(super) struct AnswerBody {
    /// The id of the request stands in it. Absent, the server could not tell which request it answers.
    pub(super) has_id: bool,
    pub(super) answer: Result<Box<RawValue>, Failure>,
}

impl Envelope<'_> {
    fn is_jsonrpc(&self) -> bool {
        self.jsonrpc.as_deref() == Some("2.0")
    }
}

/// Half of a surrogate pair, which a program that cuts a text by UTF-16 units leaves over, becomes U+FFFD: neither a
/// string of ours nor Postgres can hold it.
fn replace_lone_surrogates(json: &str) -> Cow<'_, str> {
    if !json.contains("\\ud") && !json.contains("\\uD") {
        return Cow::Borrowed(json);
    }
    let mut mended = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at..];
        let len = match (unit(escape), unit(escape.get(6..).unwrap_or_default())) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                mended.push_str(&rest[..at]);
                mended.push_str("\\ufffd");
                rest = &rest[at + 6..];
                continue;
            }
            _ => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
        };
        mended.push_str(&rest[..at + len]);
        rest = &rest[at + len..];
    }
    mended.push_str(rest);
    Cow::Owned(mended)
}

/// The UTF-16 unit of an escape at the start of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// That users can be asked, by a form and by a link.
pub(super) fn can_elicit() -> ClientCapabilities {
    let elicitation = ElicitationCapability::new()
        .with_form(FormElicitationCapability::new())
        .with_url(UrlElicitationCapability::new());
    let mut capabilities = ClientCapabilities::default();
    capabilities.elicitation = Some(elicitation);
    capabilities
}

/// A tool call whose arguments are sent as they are: rmcp would read them into a map, which changes how numbers are
/// spelt.
#[derive(Serialize)]
struct RawCall<'a> {
    jsonrpc: &'a JsonRpcVersion2_0,
    id: &'a RequestId,
    method: &'a CallToolRequestMethod,
    params: RawCallParams<'a>,
}

#[derive(Serialize)]
struct RawCallParams<'a> {
    #[serde(flatten)]
    params: &'a CallToolRequestParams,
    arguments: &'a RawValue,
    #[serde(rename = "_meta")]
    meta: &'a RequestMetaObject,
}

/// The bytes of a message, with the arguments of its tap in their place.
pub(super) fn body_of(
    message: &ClientJsonRpcMessage,
    tap: Option<&Tap>,
) -> Result<String, serde_json::Error> {
    let ClientJsonRpcMessage::Request(envelope) = message else {
        return serde_json::to_string(message);
    };
    let arguments = tap.and_then(|tap| tap.arguments.as_deref());
    match (&envelope.request, arguments) {
        (ClientRequest::CallToolRequest(call), Some(arguments)) => {
            serde_json::to_string(&RawCall {
                jsonrpc: &envelope.jsonrpc,
                id: &envelope.id,
                method: &call.method,
                params: RawCallParams {
                    params: &call.params,
                    arguments,
                    meta: envelope.request.get_meta(),
                },
            })
        }
        // The older revisions say once, for all calls of a connection, that users can be asked. What comes in the
        // course of a call whose user cannot be asked is declined. The newer revision says it with each call, so
        // that the handler's own capabilities are none.
        (ClientRequest::InitializeRequest(initialize), _) => {
            let mut initialize = initialize.clone();
            initialize.params.capabilities = can_elicit();
            let request = ClientRequest::InitializeRequest(initialize);
            serde_json::to_string(&ClientJsonRpcMessage::request(request, envelope.id.clone()))
        }
        _ => serde_json::to_string(message),
    }
}

/// An id of ours: a number, or the same as text, which some servers make of it.
fn number(id: &RawValue) -> Option<i64> {
    id.get().trim_matches('"').parse().ok()
}

/// A server's own words, cut and without control characters.
pub(super) fn clipped(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_MESSAGE);
    text[..end]
        .chars()
        .map(|c| if c.is_control() && c != '\n' { ' ' } else { c })
        .collect()
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
