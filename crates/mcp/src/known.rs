//! What is remembered of a server across its connections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use super::{Era, call_slots::CallSlots, interceptor::locked, params::Param, stdio::LineQuota};

/// How messages are sent to a server with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransportKind {
    /// Streamable HTTP.
    StreamableHttp,
    /// HTTP with SSE as in revision 2024-11-05.
    LegacySse,
    WebSocket,
}

impl TransportKind {
    /// The other transport over HTTP.
    pub(super) fn other_http(self) -> Self {
        if self == Self::StreamableHttp {
            Self::LegacySse
        } else {
            Self::StreamableHttp
        }
    }
}

/// The facts of one server.
pub(super) struct Known {
    /// Which of the two ways over HTTP it understands, where that had to be found out.
    pub(super) transport_kind: Mutex<Option<TransportKind>>,
    era: Mutex<Option<Era>>,
    /// The handshake to try first while the era is not known. Swapped after that handshake timed out.
    first_handshake: Mutex<Era>,
    /// Arguments that travel as headers, by tool; absent until the tools were listed.
    headers: Mutex<Option<HashMap<String, Vec<Param>>>>,
    pub(super) call_slots: CallSlots,
    pub(super) stderr_lines: Arc<LineQuota>,
}

impl Known {
    pub(super) fn new(calls: usize) -> Self {
        Self {
            transport_kind: Mutex::default(),
            era: Mutex::default(),
            first_handshake: Mutex::new(Era::Modern),
            headers: Mutex::default(),
            call_slots: CallSlots::new(calls),
            stderr_lines: Arc::default(),
        }
    }

    /// The marked arguments of a tool; `None` when the tools were never listed here.
    pub(super) fn headers_of(&self, tool: &str) -> Option<Vec<Param>> {
        locked(&self.headers)
            .as_ref()
            .map(|known| known.get(tool).cloned().unwrap_or_default())
    }

    pub(super) fn learn_headers(&self, headers: HashMap<String, Vec<Param>>) {
        *locked(&self.headers) = Some(headers);
    }

    pub(super) fn era(&self) -> Option<Era> {
        *locked(&self.era)
    }

    pub(super) fn learn(&self, era: Option<Era>) {
        *locked(&self.era) = era;
    }

    pub(super) fn first_handshake(&self) -> Era {
        *locked(&self.first_handshake)
    }

    /// The handshake that was tried first met silence; the other one comes first next time.
    pub(super) fn swap_handshakes(&self) {
        let mut first = locked(&self.first_handshake);
        *first = first.other();
    }
}
