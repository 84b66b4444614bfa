//! The state of one server that all its connections share: what was learned about it, and the slots for its calls.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Lifecycle, lock, param_headers::MarkedParam, stdio::LineQuota};
use domain::ids::UserId;

/// The transports to a server with a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransportKind {
    StreamableHttp,
    /// HTTP with SSE as in revision 2024-11-05.
    LegacySse,
    WebSocket,
}

impl TransportKind {
    /// The other one of the two HTTP transports.
    pub(super) fn other_http(self) -> Self {
        if self == Self::StreamableHttp {
            Self::LegacySse
        } else {
            Self::StreamableHttp
        }
    }
}

/// A server of one agent and tenant, as it is known from earlier connections.
pub(super) struct KnownServer {
    /// The HTTP transport that worked, if it had to be found out.
    pub(super) transport_kind: Mutex<Option<TransportKind>>,
    lifecycle: Mutex<Option<Lifecycle>>,
    /// The lifecycle to try first while it is not known. Swapped after the first attempt timed out.
    first_lifecycle: Mutex<Lifecycle>,
    /// The arguments that are also sent as headers, by tool; `None` until the tools were listed.
    headers: Mutex<Option<HashMap<String, Vec<MarkedParam>>>>,
    pub(super) call_slots: CallSlots,
    pub(super) stderr_lines: Arc<LineQuota>,
}

impl KnownServer {
    pub(super) fn new(calls: usize) -> Self {
        Self {
            transport_kind: Mutex::default(),
            lifecycle: Mutex::default(),
            first_lifecycle: Mutex::new(Lifecycle::Stateless),
            headers: Mutex::default(),
            call_slots: CallSlots::new(calls),
            stderr_lines: Arc::default(),
        }
    }

    /// The arguments of a tool that are also sent as headers; `None` when this process has not listed the tools.
    pub(super) fn headers_of(&self, tool: &str) -> Option<Vec<MarkedParam>> {
        lock(&self.headers)
            .as_ref()
            .map(|known| known.get(tool).cloned().unwrap_or_default())
    }

    pub(super) fn learn_headers(&self, headers: HashMap<String, Vec<MarkedParam>>) {
        *lock(&self.headers) = Some(headers);
    }

    pub(super) fn lifecycle(&self) -> Option<Lifecycle> {
        *lock(&self.lifecycle)
    }

    /// Remembers the lifecycle, or forgets it (`None`).
    pub(super) fn learn_lifecycle(&self, lifecycle: Option<Lifecycle>) {
        *lock(&self.lifecycle) = lifecycle;
    }

    pub(super) fn first_lifecycle(&self) -> Lifecycle {
        *lock(&self.first_lifecycle)
    }

    /// Tries the other lifecycle first next time, since the server did not answer the first attempt.
    pub(super) fn swap_lifecycles(&self) {
        let mut first = lock(&self.first_lifecycle);
        *first = first.other();
    }
}

/// One user gets at most a quarter of the slots of a server.
const USER_SHARE_DIVISOR: usize = 4;

/// Limits the simultaneous calls to one server, in all and for each user.
pub(super) struct CallSlots {
    all: Arc<Semaphore>,
    /// The slots of one user.
    share: usize,
    /// The slots of the users that have calls in progress or waiting.
    users: Mutex<HashMap<UserId, Weak<Semaphore>>>,
}

/// Permission for one call. Dropping it frees the slot.
pub(super) struct CallSlot {
    _all: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

impl CallSlots {
    pub(super) fn new(calls: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(calls.max(1))),
            share: (calls / USER_SHARE_DIVISOR).max(1),
            users: Mutex::default(),
        }
    }

    /// Waits for a free slot. A user whose share is in use waits for one of their own calls to end.
    pub(super) async fn acquire(&self, user: Option<&UserId>) -> CallSlot {
        const NEVER_CLOSED: &str = "the semaphore is never closed";
        let own = match user {
            Some(user) => Some(
                self.user_slots(user)
                    .acquire_owned()
                    .await
                    .expect(NEVER_CLOSED),
            ),
            None => None,
        };
        let all = self.all.clone().acquire_owned().await.expect(NEVER_CLOSED);
        CallSlot {
            _all: all,
            _own: own,
        }
    }

    fn user_slots(&self, user: &UserId) -> Arc<Semaphore> {
        let mut users = lock(&self.users);
        if let Some(known) = users.get(user).and_then(Weak::upgrade) {
            return known;
        }
        users.retain(|_, slots| slots.strong_count() > 0);
        let own = Arc::new(Semaphore::new(self.share));
        users.insert(user.clone(), Arc::downgrade(&own));
        own
    }
}
