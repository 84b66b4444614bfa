//! A connected server: sends single requests, and follows its lists.
//!
//! Invariant: a session sends each request at most once. Its callers decide whether to send it again.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::value::RawValue;
use tokio::time::timeout;

use super::{
    Lifecycle,
    error::Failure,
    handshake::ServerInfo,
    lock,
    peer::{Connection, Peer},
    request::{OpenRequest, Request},
};
use domain::{backoff, clock, revision::Revision};

/// The pauses before a subscription to list changes is opened again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// A subscription that lasted this long resets the count of failures.
const GOOD_SUBSCRIPTION: Duration = Duration::from_secs(60);
/// After this many failures in a row, the server is not asked for a subscription again on this connection.
const MAX_FAILURES: u32 = 6;

/// A connected server. The connection ends when this is dropped.
pub(super) struct Session {
    connection: Connection,
    pub(super) revision: Revision,
    pub(super) since: Instant,
    pub(super) has_prompts: bool,
    /// A request timed out, so a ping must be answered before the next request.
    unresponsive: AtomicBool,
    /// A call was answered in this session.
    has_served: AtomicBool,
    /// When the server last answered in this session; `None` after a refusal that may mean that the session is lost.
    answered_at: Mutex<Option<Instant>>,
}

impl Session {
    /// A session over a connection whose handshake is done. Follows the server's lists, where that takes a subscription.
    pub(super) fn new(connection: Connection, server: &ServerInfo) -> Self {
        let lists = Request::Listen {
            tools: server.tools_change,
            prompts: server.prompts_change,
        };
        if server.revision.lifecycle() == Lifecycle::Stateless
            && (server.tools_change || server.prompts_change)
        {
            let peer = connection.0.clone();
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = peer.wait_for_end() => {}
                    () = keep_subscribed(&peer, &lists) => {}
                }
            });
        }
        Self {
            connection,
            revision: server.revision,
            since: clock::instant(),
            has_prompts: server.has_prompts,
            unresponsive: AtomicBool::new(false),
            has_served: AtomicBool::new(false),
            answered_at: Mutex::new(Some(clock::instant())),
        }
    }

    pub(super) fn lifecycle(&self) -> Lifecycle {
        self.revision.lifecycle()
    }

    /// Why the session was closed from this side because of what the server sent; `None` when it was not.
    pub(super) fn overrun_reason(&self) -> Option<&str> {
        self.connection.0.overrun_reason()
    }

    /// Whether the transport is closed.
    pub(super) fn is_dead(&self) -> bool {
        self.connection.0.has_ended()
    }

    pub(super) fn mark_unresponsive(&self) {
        self.unresponsive.store(true, Ordering::SeqCst);
    }

    pub(super) fn mark_responsive(&self) {
        self.unresponsive.store(false, Ordering::SeqCst);
    }

    pub(super) fn mark_served(&self) {
        self.has_served.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::SeqCst)
    }

    pub(super) fn is_unresponsive(&self) -> bool {
        self.unresponsive.load(Ordering::SeqCst)
    }

    /// Sends a read-only request.
    pub(super) async fn read(&self, request: &Request<'_>) -> Result<Box<RawValue>, Failure> {
        self.request(request, &Arc::default()).await
    }

    /// Whether a read-only request may be sent again after this failure.
    pub(super) fn may_read_again(&self, failure: &Failure) -> bool {
        match failure {
            Failure::NotSent(_) => true,
            Failure::Status { .. } | Failure::WebPage(_) | Failure::Lost(_) => self.is_dead(),
            _ => false,
        }
    }

    /// Whether the server may have forgotten the session: it has refused a request in it, or has not answered for this long.
    pub(super) fn may_be_lost(&self, idle: Duration) -> bool {
        let answered_at = *lock(&self.answered_at);
        self.connection.0.can_lose_session() && answered_at.is_none_or(|at| at.elapsed() >= idle)
    }

    pub(super) fn mark_in_doubt(&self) {
        *lock(&self.answered_at) = None;
    }

    /// Sends a ping.
    pub(super) async fn ping(&self, time_limit: Duration) -> Result<(), Failure> {
        let answer = timeout(time_limit, self.read(&Request::Ping)).await;
        answer.map_or_else(
            |_| {
                Err(Failure::Silent(format!(
                    "the server gave no sign of life within {} ms",
                    time_limit.as_millis()
                )))
            },
            |answer| answer.map(|_| ()),
        )
    }

    /// Sends one request and waits for its result. Dropping the future cancels the request.
    pub(super) async fn request(
        &self,
        request: &Request<'_>,
        open: &Arc<OpenRequest>,
    ) -> Result<Box<RawValue>, Failure> {
        let answer = self.connection.0.request(request, open).await;
        if matches!(answer, Ok(_) | Err(Failure::Refused { .. })) {
            *lock(&self.answered_at) = Some(clock::instant());
        }
        answer
    }

    /// Ends the session: notifies the server and stops the child process.
    pub(super) async fn close(&self) {
        self.connection.0.close().await;
    }
}

/// Reports changes of a server's lists. Servers of revision 2026-07-28 send them only to subscriptions, which must be
/// opened again when they end.
async fn keep_subscribed(peer: &Arc<Peer>, lists: &Request<'_>) {
    let mut failures = 0;
    while failures < MAX_FAILURES {
        let opened = clock::instant();
        if failures > 0 {
            peer.expect_missed_changes();
        }
        let _ = peer.request(lists, &Arc::default()).await;
        failures = if opened.elapsed() >= GOOD_SUBSCRIPTION {
            1
        } else {
            failures + 1
        };
        let pause = backoff::delay(FIRST_PAUSE, LONGEST_PAUSE, failures, rand::random());
        tokio::time::sleep(pause).await;
    }
}
