//! Requests of the server that have no answer yet. rmcp starts a task for each of them, and each task waits until the
//! server takes its answer, so a server that asks faster than it reads would fill our memory.
//!
//! Invariant: a connection holds at most [`MOST_OPEN`] of them. A server that opens more, or makes them without a
//! pause, loses its connection.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rmcp::model::{ClientJsonRpcMessage, RequestId};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Interceptor, locked, object};
use domain::clock;

/// Requests of one connection that wait for an answer of ours.
const MOST_OPEN: usize = 64;
/// Requests of one connection in one window, answered or not.
const MOST_IN_WINDOW: usize = 1000;
const WINDOW: Duration = Duration::from_secs(10);
/// How long the answer to a request that the server took back may still be on its way.
const TAKEN_BACK: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct ServerRequests(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// When the server took a request back, if it did.
    open: HashMap<RequestId, Option<Instant>>,
    window: Option<Instant>,
    in_window: usize,
}

/// An answer of ours on its way. The request is open until this is dropped.
pub(crate) struct Answering {
    interceptor: Arc<Interceptor>,
    id: RequestId,
}

impl Drop for Answering {
    fn drop(&mut self) {
        let requests = &self.interceptor.server_requests;
        locked(&requests.0).open.remove(&self.id);
    }
}

impl Interceptor {
    /// Counts a request of the server; `false` when it must not reach rmcp, because its id is in use or because there
    /// are too many, which also ends the connection.
    pub(super) fn admit_request(&self, id: &RawValue) -> bool {
        let Ok(id) = serde_json::from_str::<RequestId>(id.get()) else {
            return false;
        };
        let admitted = locked(&self.server_requests.0).admit(id);
        admitted.unwrap_or_else(|reason| {
            self.close(reason);
            self.overrun.cancel();
            false
        })
    }

    /// Notes that the server does not want an answer any more. rmcp may drop it without sending it.
    pub(super) fn take_request_back(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        struct Cancelled {
            #[serde(rename = "requestId")]
            id: RequestId,
        }
        let Some(cancelled) = params.and_then(|params| object::<Cancelled>(params.get()).ok())
        else {
            return;
        };
        if let Some(taken_back) = locked(&self.server_requests.0).open.get_mut(&cancelled.id) {
            taken_back.get_or_insert(clock::instant());
        }
    }

    /// What a transport holds while it sends an answer to a request of the server.
    pub(crate) fn answering(self: &Arc<Self>, message: &ClientJsonRpcMessage) -> Option<Answering> {
        let id = match message {
            ClientJsonRpcMessage::Response(response) => response.id.clone(),
            ClientJsonRpcMessage::Error(error) => error.id.clone()?,
            _ => return None,
        };
        // An answer that was taken back and is sent all the same counts until it is sent.
        locked(&self.server_requests.0)
            .open
            .insert(id.clone(), None);
        Some(Answering {
            interceptor: self.clone(),
            id,
        })
    }
}

impl Counts {
    /// Whether the request is new; an error says why there are too many.
    fn admit(&mut self, id: RequestId) -> Result<bool, String> {
        let now = clock::instant();
        if self
            .window
            .is_none_or(|begun| now.duration_since(begun) >= WINDOW)
        {
            (self.window, self.in_window) = (Some(now), 0);
            self.open.retain(|_, taken_back| {
                taken_back.is_none_or(|when| now.duration_since(when) < TAKEN_BACK)
            });
        }
        self.in_window += 1;
        if self.in_window > MOST_IN_WINDOW {
            return Err(format!(
                "the server made more than {MOST_IN_WINDOW} requests within {} s",
                WINDOW.as_secs()
            ));
        }
        if self.open.contains_key(&id) {
            return Ok(false);
        }
        if self.open.len() >= MOST_OPEN {
            return Err(format!(
                "the server made requests and did not take the answers to {MOST_OPEN} of them"
            ));
        }
        self.open.insert(id, None);
        Ok(true)
    }
}
