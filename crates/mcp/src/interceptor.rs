//! The interceptor between rmcp and the transports. rmcp manages sessions, lifecycles and request ids. The arguments and
//! results of our requests bypass it as raw JSON, so that a large result is scanned once and copied once, unknown content
//! types are no error, and numbers keep their digits.
//!
//! Invariant: for a request with a [`PendingRequest`], rmcp gets an empty result, and the server's answer is in the pending
//! request. The pending request is marked as sent before its first byte leaves this machine.

mod elicitations;
mod server_requests;

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
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
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(super) use self::elicitations::LiveQuestions;
pub use self::elicitations::{LIVE_TIME_LIMIT, LiveQuestion};
use self::{elicitations::UnansweredQuestion, server_requests::ServerRequests};
use super::{Progress, ProgressSender, error::Failure};
use domain::{
    encoding::replace_lone_surrogates,
    hidden::{one_line, remove_hidden},
    ids::ServerId,
    scrub::Scrubber,
};

/// The most cancelled calls that are remembered until their answers come.
const MAX_CANCELLED: usize = 1024;
/// The most bytes of a server's error message that are kept.
const MAX_MESSAGE: usize = 1024;
/// The JSON-RPC error code for an unknown method.
const METHOD_NOT_FOUND: i64 = -32601;
/// The request with which a server asks the user a question.
pub(super) const ELICIT: &str = "elicitation/create";

/// What is in progress on one connection: our requests, and those of the server.
#[derive(Default)]
pub(super) struct Interceptor {
    /// Our requests that wait for an answer, by id.
    waiting: Mutex<HashMap<i64, Arc<PendingRequest>>>,
    /// By progress token.
    progress: Mutex<HashMap<String, ProgressSender>>,
    /// The server's questions, by the id of their request.
    questions: Mutex<HashMap<RequestId, UnansweredQuestion>>,
    /// The ids of cancelled calls on which the server may still be working.
    cancelled: Mutex<BTreeSet<i64>>,
    server_requests: ServerRequests,
    /// Why the connection was closed from this side.
    closed: OnceLock<String>,
    /// Cancelled when the server makes more requests than one connection may hold.
    overrun: CancellationToken,
    /// The name of the server, for log lines.
    server: String,
    /// Removes the credentials of this connection from texts of the server.
    scrubber: Scrubber,
    /// Removes the access token that was sent last from texts of the server.
    token: ArcSwap<Scrubber>,
}

/// A request of ours: the parts that bypass rmcp, and its answer.
#[derive(Default)]
pub(super) struct PendingRequest {
    /// The arguments of a call, which are sent as they are.
    arguments: Option<Box<RawValue>>,
    /// The `Mcp-Param-*` headers.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    progress: Option<ProgressSender>,
    /// Goes into `_meta`, so that a server can recognise a repeated call.
    pub(super) idempotency_key: Option<String>,
    /// The user of this call can be asked; the request says so to the server.
    pub(super) can_ask_user: bool,
    /// Takes the questions that the server asks during this call.
    pub(super) live_questions: Option<Arc<LiveQuestions>>,
    /// The questions of the server during this call that were declined without asking the user.
    declined: Mutex<Vec<String>>,
    /// The progress token that rmcp gave the request, as JSON.
    token: OnceLock<String>,
    was_sent: AtomicBool,
    sent: Notify,
    answer: Mutex<Option<Result<Box<RawValue>, Failure>>>,
}

impl PendingRequest {
    /// A call, whose arguments are sent as they are.
    pub(super) fn for_call(
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

    /// Records that the first byte is about to leave this machine.
    pub(super) fn mark_sent(&self) {
        self.was_sent.store(true, Ordering::SeqCst);
        self.sent.notify_waiters();
    }

    pub(super) fn was_sent(&self) -> bool {
        self.was_sent.load(Ordering::SeqCst)
    }

    /// Waits until the request leaves this machine.
    pub(super) async fn wait_until_sent(&self) {
        let sent = self.sent.notified();
        if !self.was_sent() {
            sent.await;
        }
    }

    pub(super) fn take_declined(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.declined))
    }

    /// Sets the answer, unless there is one already.
    pub(super) fn settle(&self, answer: Result<Box<RawValue>, Failure>) {
        lock(&self.answer).get_or_insert(answer);
    }

    pub(super) fn take_answer(&self) -> Option<Result<Box<RawValue>, Failure>> {
        lock(&self.answer).take()
    }
}

/// The request that a stream or a body answers.
pub(super) struct AskedRequest {
    pub(super) id: RequestId,
    pub(super) pending: Arc<PendingRequest>,
}

/// What to do with a message from the server.
pub(super) enum Incoming {
    /// Pass the message to rmcp.
    Pass,
    /// Pass an empty response to rmcp, since the message answered this pending request.
    Answered(RequestId),
    /// Pass nothing to rmcp.
    Taken,
}

/// Parses a JSON object. `serde_json` alone would also accept an array for a struct.
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

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Removes the credentials of this connection from an answer.
    pub(super) fn scrub_answer(
        &self,
        answer: Result<Box<RawValue>, Failure>,
    ) -> Result<Box<RawValue>, Failure> {
        match answer {
            Ok(raw) => Ok(self.token.load().json(self.scrubber.json(raw))),
            Err(failure) => Err(self.scrub_token(failure.scrub(&self.scrubber))),
        }
    }

    /// Removes the access token from a failure.
    pub(super) fn scrub_token(&self, failure: Failure) -> Failure {
        failure.scrub(&self.token.load())
    }

    /// Sets the scrubber for the access token that is about to be sent.
    pub(super) fn set_token_scrubber(&self, scrubber: Arc<Scrubber>) {
        self.token.store(scrubber);
    }

    /// Registers the pending request of a message that is about to be sent; `None` when the message has none.
    pub(super) fn register_outgoing(
        &self,
        message: &ClientJsonRpcMessage,
    ) -> Option<Arc<PendingRequest>> {
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
        lock(&self.waiting).insert(id, pending.clone());
        if let Some(progress) = &pending.progress
            && let Some(token) = request.request.get_meta().get_progress_token()
            && let Ok(token) = serde_json::to_string(&token)
        {
            lock(&self.progress).insert(token.clone(), progress.clone());
            // A pending request is sent once, so no token was set before.
            let _ = pending.token.set(token);
        }
        Some(pending)
    }

    /// Sets the reason why the connection is about to be closed from this side.
    pub(super) fn close(&self, reason: String) {
        // Only the first reason is kept.
        let _ = self.closed.set(reason);
    }

    pub(super) fn close_reason(&self) -> Option<&str> {
        self.closed.get().map(String::as_str)
    }

    /// The reason, if the connection is closed because the server makes too many requests.
    pub(super) fn overrun_reason(&self) -> Option<&str> {
        self.close_reason().filter(|_| self.overrun.is_cancelled())
    }

    /// Waits until the server makes more requests than one connection may hold.
    pub(super) async fn wait_for_overrun(&self) {
        self.overrun.cancelled().await;
    }

    /// Whether a request of ours waits for its answer.
    pub(super) fn has_requests(&self) -> bool {
        !lock(&self.waiting).is_empty()
    }

    /// Removes a request that was answered or is not awaited any more.
    pub(super) fn forget(&self, id: &RequestId, pending: &PendingRequest) {
        if let NumberOrString::Number(id) = id {
            // Both sets change under one lock; otherwise another call could look like the only open one in between.
            let mut waiting = lock(&self.waiting);
            waiting.remove(id);
            if pending.may_be_running() {
                let mut cancelled = lock(&self.cancelled);
                cancelled.insert(*id);
                // A server that has not answered so many calls will not ask about the oldest.
                if cancelled.len() > MAX_CANCELLED {
                    cancelled.pop_first();
                }
            }
        }
        if let Some(token) = pending.token.get() {
            lock(&self.progress).remove(token);
        }
    }

    /// Reads a message of stdio or a WebSocket; the message for rmcp, if it is one.
    pub(super) fn read_message(&self, text: &str) -> Option<ServerJsonRpcMessage> {
        let incoming = match self.intercept(text, None) {
            Incoming::Pass => self.intercept_error_without_id(text),
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

    /// Takes an error without an id as the answer to the only waiting request. It is not taken when the server may still be
    /// working on a cancelled call, which the error could be about.
    fn intercept_error_without_id(&self, text: &str) -> Incoming {
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
        // Some servers answer unknown notifications with such an error.
        if matches!(
            &answer,
            Err(Failure::Refused {
                code: Some(METHOD_NOT_FOUND),
                ..
            })
        ) {
            return Incoming::Pass;
        }
        let waiting = lock(&self.waiting);
        let mut requests = waiting.iter();
        let (Some((id, pending)), None) = (requests.next(), requests.next()) else {
            return Incoming::Pass;
        };
        if !pending.was_sent() || !lock(&self.cancelled).is_empty() {
            return Incoming::Pass;
        }
        pending.settle(answer);
        Incoming::Answered(RequestId::Number(*id))
    }

    /// Decides what happens to a message, and takes the answers to our requests. `asked` is the request that the stream of
    /// the message answers, if it answers one.
    pub(super) fn intercept(&self, text: &str, asked: Option<&AskedRequest>) -> Incoming {
        let text = replace_lone_surrogates(text);
        let Ok(envelope) = object::<Envelope>(&text) else {
            return Incoming::Pass;
        };
        match (&envelope.method, envelope.id) {
            (Some(_), _) if self.overrun.is_cancelled() => Incoming::Taken,
            (Some(_), Some(id)) if !self.admit_request(id) => Incoming::Taken,
            (Some(method), None) if method == "notifications/progress" => {
                self.report_progress(envelope.params)
            }
            (Some(method), None) if method == "notifications/cancelled" => {
                self.note_withdrawn_request(envelope.params);
                Incoming::Pass
            }
            // Log lines of the server are not shown anywhere.
            (Some(method), None) if method == "notifications/message" => Incoming::Taken,
            (None, Some(id)) => self.settle_by_id(id, &envelope),
            (None, None) if envelope.error.is_some() => match asked {
                // An error without an id is about the request that the stream answers.
                Some(AskedRequest { id, pending }) => {
                    pending.settle(self.answer_of(&envelope));
                    Incoming::Answered(id.clone())
                }
                None => Incoming::Pass,
            },
            (Some(method), Some(id)) if method == ELICIT => {
                self.note_question(id, envelope.params, asked.map(|asked| &asked.pending));
                Incoming::Pass
            }
            _ => Incoming::Pass,
        }
    }

    /// The beginning of a text of the server in one line, without the credentials of this connection.
    pub(super) fn excerpt(&self, text: &str) -> String {
        let mut text = text.to_owned();
        self.scrubber.clean(&mut text);
        self.token.load().clean(&mut text);
        clip(&text)
    }

    fn settle_by_id(&self, id: &RawValue, envelope: &Envelope) -> Incoming {
        let Some(id) = number(id) else {
            return Incoming::Pass;
        };
        let Some(pending) = lock(&self.waiting).get(&id).cloned() else {
            lock(&self.cancelled).remove(&id);
            return Incoming::Pass;
        };
        pending.settle(self.answer_of(envelope));
        Incoming::Answered(RequestId::Number(id))
    }

    fn report_progress(&self, params: Option<&RawValue>) -> Incoming {
        let Some(progress) = params.and_then(|params| object::<ProgressParams>(params.get()).ok())
        else {
            return Incoming::Pass;
        };
        if let Some(listener) = lock(&self.progress).get(progress.token.get()) {
            let ProgressParams {
                progress,
                total,
                mut message,
                ..
            } = progress;
            if let Some(message) = &mut message {
                *message = self.excerpt(message);
            }
            // Fails when the receiver is gone.
            let _ = listener.send(Progress {
                progress,
                total,
                message,
            });
        }
        Incoming::Taken
    }
}

/// The response for rmcp in place of an answer that was taken.
pub(super) fn empty_response(id: RequestId) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::response(ServerResult::EmptyResult(EmptyResult {}), id)
}

/// The beginning of a server's text without hidden characters, with its line ends.
pub(super) fn clip_lines(text: &str) -> String {
    remove_hidden(&text[..text.floor_char_boundary(MAX_MESSAGE)])
}

/// The beginning of a server's text without hidden characters, in one line.
pub(super) fn clip(text: &str) -> String {
    one_line(&text[..text.floor_char_boundary(MAX_MESSAGE)], MAX_MESSAGE)
}

/// Locks a mutex, even if a thread panicked while it held the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A JSON-RPC message.
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
struct ErrorObject<'a> {
    code: i64,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
}

impl Interceptor {
    /// Reads a JSON body as the answer to a request of ours; `None` when the body is no answer to it.
    pub(super) fn answer_in(
        &self,
        body: &[u8],
        request: &RequestId,
    ) -> Option<Result<Box<RawValue>, Failure>> {
        let text = String::from_utf8_lossy(body);
        let text = replace_lone_surrogates(&text);
        let envelope = object::<Envelope>(&text).ok()?;
        let is_ours = match (envelope.id, request) {
            (Some(id), NumberOrString::Number(ours)) => number(id) == Some(*ours),
            // An error without an id: the server could not read the id.
            (None, _) => envelope.error.is_some(),
            _ => false,
        };
        let is_answer = is_ours && envelope.method.is_none() && envelope.is_jsonrpc();
        is_answer.then(|| self.answer_of(&envelope))
    }

    /// The answer in a message. Only an error with a JSON-RPC code means that the request was refused; everything else that
    /// is no result is a lost answer.
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
        let Ok(ErrorObject { code, message }) = object(error.get()) else {
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
}

impl Envelope<'_> {
    fn is_jsonrpc(&self) -> bool {
        self.jsonrpc.as_deref() == Some("2.0")
    }
}

/// A request id of ours: a number, which some servers send back as a string.
fn number(id: &RawValue) -> Option<i64> {
    id.get().trim_matches('"').parse().ok()
}

/// The capabilities of a client whose users can be asked, with forms and with links.
pub(super) fn elicitation_capabilities() -> ClientCapabilities {
    let elicitation = ElicitationCapability::new()
        .with_form(FormElicitationCapability::new())
        .with_url(UrlElicitationCapability::new());
    let mut capabilities = ClientCapabilities::default();
    capabilities.elicitation = Some(elicitation);
    capabilities
}

/// A tool call with its arguments as raw JSON. rmcp would parse them into a map, which changes the digits of numbers.
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

/// The JSON text of a message to the server, with the arguments of a call exactly as they were given.
pub(super) fn body_of(
    message: &ClientJsonRpcMessage,
    pending: Option<&PendingRequest>,
) -> Result<String, serde_json::Error> {
    let ClientJsonRpcMessage::Request(envelope) = message else {
        return serde_json::to_string(message);
    };
    let arguments = pending.and_then(|pending| pending.arguments.as_deref());
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
        // Older revisions declare once for the whole connection that users can be asked; a question during a call whose
        // user cannot be asked is declined. Revision 2026-07-28 declares it with each call, so the handler itself has no
        // capabilities.
        (ClientRequest::InitializeRequest(initialize), _) => {
            let mut initialize = initialize.clone();
            initialize.params.capabilities = elicitation_capabilities();
            let request = ClientRequest::InitializeRequest(initialize);
            serde_json::to_string(&ClientJsonRpcMessage::request(request, envelope.id.clone()))
        }
        _ => serde_json::to_string(message),
    }
}
