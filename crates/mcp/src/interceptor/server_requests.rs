//! Limits the requests of a server. rmcp starts a task for each request, and each task waits until the server reads the
//! reply, so a server that writes faster than it reads would fill our memory.
//!
//! Invariant: at most [`MAX_OPEN`] requests of a connection are without a reply. The connection of a server that makes more,
//! or more than [`MAX_IN_WINDOW`] in one window, is closed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rmcp::model::{ClientJsonRpcMessage, RequestId};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Interceptor, lock, object};
use domain::clock;

/// The most requests of one connection that wait for our reply.
const MAX_OPEN: usize = 64;
/// The most requests of one connection in one window, replied to or not.
const MAX_IN_WINDOW: usize = 1000;
const WINDOW: Duration = Duration::from_secs(10);
/// How long a request counts as open after the server withdrew it, since its reply may still be on its way.
const WITHDRAWN: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct ServerRequests(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// The requests without a reply, each with the time when the server withdrew it.
    open: HashMap<RequestId, Option<Instant>>,
    window: Option<Instant>,
    in_window: usize,
}

/// A reply that is being sent. The request counts as open until this is dropped.
pub(crate) struct ReplyInProgress {
    interceptor: Arc<Interceptor>,
    id: RequestId,
}

impl Drop for ReplyInProgress {
    fn drop(&mut self) {
        let requests = &self.interceptor.server_requests;
        lock(&requests.0).open.remove(&self.id);
    }
}

impl Interceptor {
    /// Counts a request of the server. `false`: it must not reach rmcp, because its id is in use or because there are too many
    /// requests. In the second case the connection is closed.
    pub(super) fn admit_request(&self, id: &RawValue) -> bool {
        let Ok(id) = serde_json::from_str::<RequestId>(id.get()) else {
            return false;
        };
        let admitted = lock(&self.server_requests.0).admit(id);
        admitted.unwrap_or_else(|reason| {
            self.close(reason);
            self.overrun.cancel();
            false
        })
    }

    /// Records that the server withdrew a request. rmcp may then drop the reply without sending it.
    pub(super) fn note_withdrawn_request(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        struct Cancelled {
            #[serde(rename = "requestId")]
            id: RequestId,
        }
        let Some(cancelled) = params.and_then(|params| object::<Cancelled>(params.get()).ok())
        else {
            return;
        };
        if let Some(withdrawn_at) = lock(&self.server_requests.0).open.get_mut(&cancelled.id) {
            withdrawn_at.get_or_insert(clock::instant());
        }
    }

    /// Marks the beginning of a reply to a request of the server; `None` for other messages. The transport holds the value
    /// while it sends.
    pub(crate) fn begin_reply(
        self: &Arc<Self>,
        message: &ClientJsonRpcMessage,
    ) -> Option<ReplyInProgress> {
        let id = match message {
            ClientJsonRpcMessage::Response(response) => response.id.clone(),
            ClientJsonRpcMessage::Error(error) => error.id.clone()?,
            _ => return None,
        };
        // A reply to a withdrawn request counts too until it is sent.
        lock(&self.server_requests.0).open.insert(id.clone(), None);
        Some(ReplyInProgress {
            interceptor: self.clone(),
            id,
        })
    }
}

impl Counts {
    /// Counts a request. `false`: its id is in use. The error says why there are too many.
    fn admit(&mut self, id: RequestId) -> Result<bool, String> {
        let now = clock::instant();
        if self
            .window
            .is_none_or(|begun| now.duration_since(begun) >= WINDOW)
        {
            (self.window, self.in_window) = (Some(now), 0);
            self.open.retain(|_, withdrawn_at| {
                withdrawn_at.is_none_or(|when| now.duration_since(when) < WITHDRAWN)
            });
        }
        self.in_window += 1;
        if self.in_window > MAX_IN_WINDOW {
            return Err(format!(
                "the server made more than {MAX_IN_WINDOW} requests within {} s",
                WINDOW.as_secs()
            ));
        }
        if self.open.contains_key(&id) {
            return Ok(false);
        }
        if self.open.len() >= MAX_OPEN {
            return Err(format!(
                "the server made requests and did not take the answers to {MAX_OPEN} of them"
            ));
        }
        self.open.insert(id, None);
        Ok(true)
    }
}
