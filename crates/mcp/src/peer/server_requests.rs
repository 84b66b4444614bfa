//! The requests of a server, and their limits: each has a task until its reply is taken, so a server that writes faster
//! than it reads would fill our memory.
//!
//! Invariant: at most [`MAX_OPEN`] requests of a connection are without a reply. The connection of a server that makes more,
//! or more than [`MAX_IN_WINDOW`] in one window, is closed. A connection that serves all tenants may have some times as many.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::{Asked, Peer};
use crate::{lock, redaction::clip, request::ELICIT};
use domain::{
    clock,
    jsonrpc::{self, METHOD_NOT_FOUND},
};

/// The most requests of one connection that wait for our reply.
const MAX_OPEN: usize = 64;
/// The most requests of one connection in one window, replied to or not.
const MAX_IN_WINDOW: usize = 1000;
const WINDOW: Duration = Duration::from_secs(10);
/// The most bytes of the id of a request.
const MAX_ID: usize = 1024;

pub(super) struct ServerRequests(Mutex<Counts>);

impl ServerRequests {
    pub(super) fn new(scale: usize) -> Self {
        Self(Mutex::new(Counts {
            max_open: MAX_OPEN * scale,
            max_in_window: MAX_IN_WINDOW * scale,
            open: HashMap::new(),
            window: None,
            in_window: 0,
        }))
    }
}

struct Counts {
    max_open: usize,
    max_in_window: usize,
    /// The requests without a reply, by the JSON of their id. The token is cancelled when the server withdraws one.
    open: HashMap<String, CancellationToken>,
    window: Option<Instant>,
    in_window: usize,
}

/// A request of the server. It counts as open until this is dropped.
pub(crate) struct OpenServerRequest {
    peer: Arc<Peer>,
    id: Box<RawValue>,
    withdrawn: CancellationToken,
}

impl Drop for OpenServerRequest {
    fn drop(&mut self) {
        let requests = &self.peer.server_requests;
        lock(&requests.0).open.remove(self.id.get());
    }
}

impl Peer {
    /// Takes a request of the server, and replies to it. `asked` is the request whose stream brought it.
    pub(super) fn take_request(
        self: &Arc<Self>,
        method: &str,
        id: &RawValue,
        params: Option<&RawValue>,
        asked: Option<Asked<'_>>,
    ) {
        let Some(request) = self.admit_request(id) else {
            return;
        };
        match method {
            "ping" => self.reply(jsonrpc::write_result(id, "{}"), request),
            ELICIT => {
                let question = self.read_question(params, asked);
                let peer = self.clone();
                tokio::spawn(async move {
                    let answer = tokio::select! {
                        answer = question.answer() => answer,
                        // The server waits for no reply then.
                        () = request.withdrawn.cancelled() => return,
                        () = peer.wait_for_end() => return,
                    };
                    peer.reply(jsonrpc::write_result(&request.id, answer), request);
                });
            }
            // Neither roots nor samples are offered.
            _ => {
                let error = jsonrpc::write_error(Some(id), METHOD_NOT_FOUND, &clip(method), None);
                self.reply(error, request);
            }
        }
    }

    /// Counts a request of the server; `None` when its id is in use or is none, or when there are too many requests. In the
    /// last case the connection ends.
    fn admit_request(self: &Arc<Self>, id: &RawValue) -> Option<OpenServerRequest> {
        if !jsonrpc::is_id(id) || id.get().len() > MAX_ID {
            return None;
        }
        let withdrawn = CancellationToken::new();
        let admitted = lock(&self.server_requests.0).admit(id.get(), &withdrawn);
        match admitted {
            Ok(true) => Some(OpenServerRequest {
                peer: self.clone(),
                id: id.to_owned(),
                withdrawn,
            }),
            Ok(false) => None,
            Err(reason) => {
                self.end_for_overrun(reason);
                None
            }
        }
    }

    /// Takes back a question that the server has withdrawn, or ends a subscription that it has ended.
    pub(super) fn withdraw_request(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        struct Cancelled<'a> {
            #[serde(borrow, rename = "requestId")]
            id: &'a RawValue,
        }
        let cancelled = params.and_then(|params| jsonrpc::object::<Cancelled>(params.get()).ok());
        let Some(Cancelled { id }) = cancelled else {
            return;
        };
        if let Some(withdrawn) = lock(&self.server_requests.0).open.get(id.get()) {
            withdrawn.cancel();
        }
        self.end_subscription(id);
    }
}

impl Counts {
    /// Counts a request. `false`: its id is in use. The error says why there are too many.
    fn admit(&mut self, id: &str, withdrawn: &CancellationToken) -> Result<bool, String> {
        let now = clock::instant();
        if self
            .window
            .is_none_or(|begun| now.duration_since(begun) >= WINDOW)
        {
            (self.window, self.in_window) = (Some(now), 0);
        }
        self.in_window += 1;
        if self.in_window > self.max_in_window {
            return Err(format!(
                "the server made more than {} requests within {} s",
                self.max_in_window,
                WINDOW.as_secs()
            ));
        }
        if self.open.contains_key(id) {
            return Ok(false);
        }
        if self.open.len() >= self.max_open {
            return Err(format!(
                "the server made requests and did not take the answers to {} of them",
                self.max_open
            ));
        }
        self.open.insert(id.to_owned(), withdrawn.clone());
        Ok(true)
    }
}
