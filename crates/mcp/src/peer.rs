//! The peer of one connection: sends our requests, and takes the messages of the server, whatever transport carries them.
//!
//! Invariants: [`Peer::request`] sends a request at most once, and it alone decides what is known of a request without an
//! answer: nothing of it left this machine ([`Failure::NotSent`]), or something may have. Dropping its future cancels the
//! request. Over streamable HTTP the future itself writes the request and reads the answer; the other transports have a
//! task that writes and one that reads.

mod questions;
mod server_requests;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::{runtime::Handle, sync::broadcast, time::timeout};
use tokio_util::sync::CancellationToken;

pub use self::questions::{LIVE_TIME_LIMIT, LiveQuestion};
use self::server_requests::ServerRequests;
pub(super) use self::{questions::LiveQuestions, server_requests::OpenServerRequest};
use super::{
    Key, Progress, TENANTS_AT_ONCE,
    answer::{self, Answer, number},
    error::Failure,
    http::{Http, LegacySse},
    lock,
    outbox::{Outbox, Outgoing},
    redaction::Redactor,
    request::{OpenRequest, Request},
};
use domain::{
    encoding::replace_lone_surrogates,
    ids::{ServerId, TenantId},
    jsonrpc::{self, METHOD_NOT_FOUND, Message},
    revision::Revision,
    server::Lifecycle,
};

/// The most cancelled calls that are remembered until their answers come.
const MAX_CANCELLED: usize = 1024;
/// How long closing a connection is waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// What carries the messages of a connection.
pub(super) enum Transport {
    Http(Http),
    LegacySse(LegacySse),
    /// A child process or a WebSocket.
    Outbox(Outbox),
}

/// One connection to a server.
pub(super) struct Peer {
    transport: Transport,
    pub(super) redactor: Arc<Redactor>,
    key: Key,
    server: ServerId,
    changes: broadcast::Sender<Key>,
    tenants: Mutex<CallingTenants>,
    /// The revision, once it is agreed on.
    revision: OnceLock<Revision>,
    last_id: AtomicI64,
    requests: Mutex<Requests>,
    server_requests: ServerRequests,
    /// Changes may have been missed until the next subscription is acknowledged.
    may_have_missed_changes: AtomicBool,
    /// Why the connection was closed from this side.
    close_reason: OnceLock<String>,
    is_overrun: AtomicBool,
    is_closing: AtomicBool,
    /// Cancelled when the connection has ended.
    gone: CancellationToken,
}

/// The tenants whose users have made calls over a connection.
#[derive(Default)]
enum CallingTenants {
    #[default]
    None,
    One(Option<TenantId>),
    Several,
}

impl CallingTenants {
    fn note(&mut self, tenant: Option<TenantId>) {
        *self = match self {
            Self::None => Self::One(tenant),
            Self::One(known) if *known == tenant => Self::One(tenant),
            Self::One(_) | Self::Several => Self::Several,
        };
    }
}

/// The requests of a connection.
#[derive(Default)]
struct Requests {
    /// Those that wait for an answer, by id.
    open: HashMap<i64, Arc<OpenRequest>>,
    /// The ids of cancelled calls on which the server may still be working.
    cancelled: BTreeSet<i64>,
}

/// The request that a stream answers.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) id: i64,
    pub(super) open: &'a Arc<OpenRequest>,
}

/// A connection that ends when this is dropped.
pub(super) struct Connection(pub(super) Arc<Peer>);

impl Drop for Connection {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else {
            return self.0.gone.cancel();
        };
        let peer = self.0.clone();
        runtime.spawn(async move { peer.close().await });
    }
}

impl Peer {
    pub(super) fn new(
        transport: Transport,
        redactor: Arc<Redactor>,
        key: Key,
        server: ServerId,
        changes: broadcast::Sender<Key>,
    ) -> Self {
        let scale = if key.tenant().is_none() {
            TENANTS_AT_ONCE
        } else {
            1
        };
        Self {
            transport,
            redactor,
            key,
            server,
            changes,
            tenants: Mutex::default(),
            revision: OnceLock::new(),
            last_id: AtomicI64::new(0),
            requests: Mutex::default(),
            server_requests: ServerRequests::new(scale),
            may_have_missed_changes: AtomicBool::new(false),
            close_reason: OnceLock::new(),
            is_overrun: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            gone: CancellationToken::new(),
        }
    }

    /// The revision, once it is agreed on.
    pub(super) fn revision(&self) -> Option<Revision> {
        self.revision.get().copied()
    }

    /// Sets the revision that the handshake has agreed on.
    pub(super) fn agree_on(&self, revision: Revision) {
        // A connection has one handshake that succeeds.
        let _ = self.revision.set(revision);
        if let Transport::Http(http) = &self.transport {
            http.begin_session(revision);
        }
    }

    /// Whether the server can forget the session while the connection lasts. A child process or a WebSocket cannot: there the
    /// session ends with the connection.
    pub(super) fn can_lose_session(&self) -> bool {
        match &self.transport {
            Transport::Http(http) => http.is_in_session(),
            Transport::LegacySse(_) => true,
            Transport::Outbox(_) => false,
        }
    }

    /// Starts to read what the server sends without being asked, where that needs a request.
    pub(super) fn follow_server(self: &Arc<Self>) {
        if let Transport::Http(http) = &self.transport
            && http.is_in_session()
        {
            let peer = self.clone();
            tokio::spawn(async move {
                let Transport::Http(http) = &peer.transport else {
                    return;
                };
                let _ = peer
                    .gone
                    .run_until_cancelled(http.follow_notifications(&peer))
                    .await;
            });
        }
    }

    /// Makes a request wait for its answer as if it had been sent.
    #[cfg(feature = "fuzzing")]
    pub(super) fn open_for_fuzzing(&self, id: i64, open: &Arc<OpenRequest>) {
        lock(&self.requests).open.insert(id, open.clone());
    }

    /// Sends one request and waits for its result. Dropping the future cancels the request.
    pub(super) async fn request(
        self: &Arc<Self>,
        request: &Request<'_>,
        open: &Arc<OpenRequest>,
    ) -> Answer {
        if self.gone.is_cancelled() {
            return Err(Failure::NotSent("the connection is closed".to_owned()));
        }
        if open.is_call {
            lock(&self.tenants).note(open.tenant);
        }
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut waiting = Waiting::begin(self, id, open);
        let answer = tokio::select! {
            biased;
            () = open.wait_for_answer() => None,
            answer = self.exchange(id, request, open) => Some(answer),
            () = self.gone.cancelled() => None,
        };
        // An answer that came over another stream counts before what became of this one.
        let answer = open.take_answer().or(answer);
        let answer = answer.unwrap_or_else(|| Err(self.end_failure(open)));
        waiting.finish(&answer);
        self.redactor.answer(answer)
    }

    /// Writes a request and waits for its answer. Where another task reads the answers, this waits for ever after an
    /// orderly write.
    async fn exchange(
        self: &Arc<Self>,
        id: i64,
        request: &Request<'_>,
        open: &Arc<OpenRequest>,
    ) -> Answer {
        match &self.transport {
            Transport::Http(http) => {
                // In one piece on the heap: the futures above are moved while they are small.
                return Box::pin(http.exchange(self, id, request, open)).await;
            }
            Transport::LegacySse(pair) => {
                let text = request.to_json(id, self.revision(), open);
                pair.post_request(id, request, open, text).await?;
            }
            Transport::Outbox(outbox) => {
                let text = request.to_json(id, self.revision(), open);
                let open = open.clone();
                outbox.send(Outgoing::Request { text, open }).await?;
            }
        }
        std::future::pending().await
    }

    /// What is known of a request when the connection has ended.
    fn end_failure(&self, open: &OpenRequest) -> Failure {
        if !open.give_up() {
            return Failure::NotSent(
                "the connection was closed before the request was sent".to_owned(),
            );
        }
        let reason = self.close_reason.get();
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        Failure::Lost(format!(
            "the connection was closed before the answer came{reason}"
        ))
    }

    /// Sends a notification. `params` is a JSON object.
    pub(super) async fn notify(&self, method: &'static str, params: &Value) -> Result<(), Failure> {
        let text = jsonrpc::write_notification(method, params);
        let sent = match &self.transport {
            Transport::Http(http) => http.post_message(Some(method), text).await,
            Transport::LegacySse(pair) => pair.post_message(text).await,
            Transport::Outbox(outbox) => outbox.send(Outgoing::Message(text)).await,
        };
        sent.map_err(|failure| self.redactor.failure(failure))
    }

    /// Sends the reply to a request of the server, in a task of its own.
    fn reply(self: &Arc<Self>, text: String, request: OpenServerRequest) {
        let peer = self.clone();
        tokio::spawn(async move {
            // The server that does not take the reply learns nothing more from us.
            let _ = match &peer.transport {
                Transport::Http(http) => http.post_message(None, text).await,
                Transport::LegacySse(pair) => pair.post_message(text).await,
                Transport::Outbox(outbox) => {
                    let reply = Outgoing::Reply {
                        text,
                        _request: request,
                    };
                    outbox.send(reply).await
                }
            };
        });
    }

    /// Tells the server that nobody waits for an answer any more.
    fn notify_cancelled(self: &Arc<Self>, id: i64) {
        // A handshake is not cancelled.
        let Some(revision) = self.revision() else {
            return;
        };
        // Where there are no sessions, closing the response says the same.
        if matches!(self.transport, Transport::Http(_))
            && revision.lifecycle() == Lifecycle::Stateless
        {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let peer = self.clone();
        runtime.spawn(async move {
            let reason = "nobody waits for the answer any more";
            let params = serde_json::json!({ "requestId": id, "reason": reason });
            let _ = peer.notify("notifications/cancelled", &params).await;
        });
    }

    /// Takes a message of the server. `asked` is the request that the stream of the message answers, if it answers one.
    pub(super) fn take_message(self: &Arc<Self>, text: &str, asked: Option<Asked<'_>>) {
        let text = replace_lone_surrogates(text);
        let message = Message::parse(&text).ok();
        let Some(message) = message.filter(|message| {
            message.method.is_some() || message.is_response() || message.id.is_some()
        }) else {
            tracing::debug!(server = %self.server, "the server wrote something that is no message of the protocol");
            return;
        };
        match (&message.method, message.known_id()) {
            (Some(_), _) if self.is_overrun() => {}
            (Some(method), Some(id)) => self.take_request(method, id, message.params, asked),
            (Some(method), None) => self.take_notification(method, message.params),
            (None, Some(id)) => self.take_answer(id, &message),
            (None, None) if message.error.is_some() => self.take_error_without_id(&message, asked),
            (None, None) => {}
        }
    }

    fn take_notification(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "notifications/progress" => self.report_progress(params),
            "notifications/cancelled" => self.withdraw_request(params),
            "notifications/tools/list_changed" | "notifications/prompts/list_changed" => {
                self.report_change();
            }
            "notifications/subscriptions/acknowledged"
                if self.may_have_missed_changes.swap(false, Ordering::SeqCst) =>
            {
                self.report_change();
            }
            // Log lines of the server are not shown anywhere.
            _ => {}
        }
    }

    fn report_change(&self) {
        // Fails when there is no receiver.
        let _ = self.changes.send(self.key.clone());
    }

    /// Reports a change as soon as the next subscription is acknowledged, since there was none for a while.
    pub(super) fn expect_missed_changes(&self) {
        self.may_have_missed_changes.store(true, Ordering::SeqCst);
    }

    fn report_progress(&self, params: Option<&RawValue>) {
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
        let params = params.and_then(|params| jsonrpc::object::<ProgressParams>(params.get()).ok());
        let Some(report) = params else { return };
        // The token of a request is its id.
        let open = number(report.token).and_then(|id| lock(&self.requests).open.get(&id).cloned());
        let Some(listener) = open.as_ref().and_then(|open| open.progress.as_ref()) else {
            return;
        };
        // Fails when the receiver is gone.
        let _ = listener.send(Progress {
            progress: report.progress,
            total: report.total,
            message: report
                .message
                .map(|message| self.redactor.excerpt(&message)),
        });
    }

    fn take_answer(&self, id: &RawValue, message: &Message<'_>) {
        let Some(id) = number(id) else { return };
        let mut requests = lock(&self.requests);
        match requests.open.get(&id) {
            Some(open) => open.settle(answer::read(message, &self.redactor)),
            None => {
                requests.cancelled.remove(&id);
            }
        }
    }

    /// Takes an error without an id as the answer to the request of its stream, or else to the only open request. It is not
    /// taken when the server may still be working on a cancelled call, which the error could be about.
    fn take_error_without_id(&self, message: &Message<'_>, asked: Option<Asked<'_>>) {
        let answer = answer::read(message, &self.redactor);
        if let Some(asked) = asked {
            return asked.open.settle(answer);
        }
        // Some servers answer unknown notifications with such an error.
        let is_about_notification = matches!(
            &answer,
            Err(Failure::Refused {
                code: Some(METHOD_NOT_FOUND),
                ..
            })
        );
        let requests = lock(&self.requests);
        let mut open = requests.open.values();
        if let (Some(open), None) = (open.next(), open.next())
            && open.was_sent()
            && requests.cancelled.is_empty()
            && !is_about_notification
        {
            open.settle(answer);
        }
    }

    /// Ends a subscription because its server has ended it, which servers of the newer lifecycle may do.
    fn end_subscription(&self, id: &RawValue) {
        let is_stateless = self.revision().map(Revision::lifecycle) == Some(Lifecycle::Stateless);
        let Some(id) = number(id).filter(|_| is_stateless) else {
            return;
        };
        if let Some(open) = lock(&self.requests).open.get(&id)
            && !open.is_call
        {
            let reason = "the server has ended the request".to_owned();
            open.settle(Err(Failure::Lost(reason)));
        }
    }

    /// The call that a question belongs to: that of its stream, or else the only open one, unless the server may still be
    /// working on a cancelled call, or on something of another tenant.
    fn call_of(&self, asked: Option<Asked<'_>>) -> Option<Arc<OpenRequest>> {
        if let Some(Asked { open, .. }) = asked {
            return (open.is_call && !open.is_answered()).then(|| open.clone());
        }
        if matches!(*lock(&self.tenants), CallingTenants::Several) {
            return None;
        }
        let requests = lock(&self.requests);
        let mut calls = requests.open.values().filter(|open| open.is_call);
        match (calls.next(), calls.next()) {
            (Some(call), None) if requests.cancelled.is_empty() => Some(call.clone()),
            _ => None,
        }
    }

    /// Sets the reason why the connection is about to be closed from this side.
    pub(super) fn set_close_reason(&self, reason: String) {
        // Only the first reason is kept.
        let _ = self.close_reason.set(reason);
    }

    /// Ends the connection of a server that makes more requests than one connection may hold.
    fn end_for_overrun(&self, reason: String) {
        self.set_close_reason(reason);
        self.is_overrun.store(true, Ordering::SeqCst);
        self.gone.cancel();
    }

    fn is_overrun(&self) -> bool {
        self.is_overrun.load(Ordering::SeqCst)
    }

    /// The reason, if the connection was closed because the server makes too many requests.
    pub(super) fn overrun_reason(&self) -> Option<&str> {
        let reason = self.close_reason.get().filter(|_| self.is_overrun());
        reason.map(String::as_str)
    }

    /// Records that the transport has ended.
    pub(super) fn end(&self) {
        self.gone.cancel();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.gone.is_cancelled()
    }

    /// Waits until the transport has ended.
    pub(super) async fn wait_for_end(&self) {
        self.gone.cancelled().await;
    }

    /// Ends the connection: ends the session at the server, and stops a child process. The second time it does nothing.
    pub(super) async fn close(&self) {
        if self.is_closing.swap(true, Ordering::SeqCst) {
            return;
        }
        let closing = async {
            match &self.transport {
                Transport::Http(http) => {
                    self.gone.cancel();
                    http.end_session().await;
                }
                Transport::LegacySse(_) => {}
                // Its reader goes on, so that a child can write its last words.
                Transport::Outbox(outbox) => outbox.stop().await,
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
        self.gone.cancel();
    }
}

/// A request whose answer is awaited. Dropping it cancels the request.
struct Waiting<'a> {
    peer: &'a Arc<Peer>,
    id: i64,
    open: &'a Arc<OpenRequest>,
    is_finished: bool,
}

impl<'a> Waiting<'a> {
    fn begin(peer: &'a Arc<Peer>, id: i64, open: &'a Arc<OpenRequest>) -> Self {
        lock(&peer.requests).open.insert(id, open.clone());
        Self {
            peer,
            id,
            open,
            is_finished: false,
        }
    }

    fn finish(&mut self, answer: &Answer) {
        self.is_finished = true;
        let is_open_at_server = matches!(
            answer,
            Err(Failure::Silent(_)
                | Failure::Status { .. }
                | Failure::Redirected(_)
                | Failure::WebPage(_)
                | Failure::Lost(_))
        );
        self.forget(is_open_at_server && self.open.was_sent());
    }

    /// `may_be_running`: the server may still be working on the request.
    fn forget(&self, may_be_running: bool) {
        // Both sets change under one lock; otherwise another call could look like the only open one in between.
        let mut requests = lock(&self.peer.requests);
        requests.open.remove(&self.id);
        if may_be_running && self.open.is_call {
            requests.cancelled.insert(self.id);
            // A server that has not answered so many calls will not ask about the oldest.
            if requests.cancelled.len() > MAX_CANCELLED {
                requests.cancelled.pop_first();
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let was_sent = self.open.give_up();
        self.forget(was_sent && !self.open.is_answered());
        if was_sent && !self.peer.has_ended() {
            self.peer.notify_cancelled(self.id);
        }
    }
}
