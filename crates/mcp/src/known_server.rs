//! The state of one server that all its connections share: what was learned about it, and the slots for its calls.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, OnceLock},
};

use tokio::sync::oneshot;

use super::{
    Caller, Lifecycle, TENANTS_AT_ONCE, lock, param_headers::MarkedParam, stdio::LineQuota,
};
use domain::ids::TenantId;

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

/// A server as it is known from earlier connections.
pub(super) struct KnownServer {
    /// The HTTP transport that worked, if it had to be found out.
    pub(super) transport_kind: Mutex<Option<TransportKind>>,
    lifecycle: Mutex<Option<Lifecycle>>,
    /// The lifecycle to try first while it is not known. Swapped after the first attempt timed out.
    first_lifecycle: Mutex<Lifecycle>,
    /// The arguments that are also sent as headers, by tool; `None` until the tools were listed.
    headers: Mutex<Option<HashMap<String, Vec<MarkedParam>>>>,
    /// Whether a ping shows that a session is known: what came of the first one. A server that does not answer it is not
    /// asked again.
    answers_pings: OnceLock<bool>,
    pub(super) call_slots: CallSlots,
    pub(super) stderr_lines: Arc<LineQuota>,
}

impl KnownServer {
    pub(super) fn new(limits: CallLimits) -> Self {
        Self {
            transport_kind: Mutex::default(),
            lifecycle: Mutex::default(),
            first_lifecycle: Mutex::new(Lifecycle::Stateless),
            headers: Mutex::default(),
            answers_pings: OnceLock::new(),
            call_slots: CallSlots::new(limits),
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

    /// Whether the server answers pings; `None` while that is not known.
    pub(super) fn answers_pings(&self) -> Option<bool> {
        self.answers_pings.get().copied()
    }

    pub(super) fn learn_pings(&self, answers: bool) {
        // The first ping has shown it.
        let _ = self.answers_pings.set(answers);
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

/// One user gets at most a quarter of what a tenant may have.
const USER_SHARE_DIVISOR: usize = 4;

/// The most simultaneous calls to one server.
#[derive(Clone, Copy)]
pub(super) struct CallLimits {
    all: usize,
    of_tenant: usize,
    of_user: usize,
}

impl CallLimits {
    /// `calls`: those of one tenant.
    pub(super) fn new(calls: usize, serves_all_tenants: bool) -> Self {
        let of_tenant = calls.max(1);
        Self {
            all: if serves_all_tenants {
                of_tenant * TENANTS_AT_ONCE
            } else {
                of_tenant
            },
            of_tenant,
            of_user: (of_tenant / USER_SHARE_DIVISOR).max(1),
        }
    }
}

/// Limits the simultaneous calls to one server: in all, for each tenant and for each user. A place that becomes free goes
/// to the tenant that has the fewest, and there to who has waited longest.
pub(super) struct CallSlots {
    limits: CallLimits,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Default)]
struct Calls {
    all: usize,
    of_tenants: HashMap<TenantId, usize>,
    of_users: HashMap<Caller, usize>,
    waiting: Vec<Waiting>,
}

struct Waiting {
    caller: Option<Caller>,
    place: oneshot::Sender<CallSlot>,
}

/// Permission for one call. Dropping it frees the slot.
pub(super) struct CallSlot {
    limits: CallLimits,
    calls: Arc<Mutex<Calls>>,
    caller: Option<Caller>,
}

impl CallSlots {
    pub(super) fn new(limits: CallLimits) -> Self {
        Self {
            limits,
            calls: Arc::default(),
        }
    }

    /// Waits for a free slot. A user or a tenant whose share is in use waits for one of their own calls to end. `None`: a
    /// request that is nobody's counts only with all.
    pub(super) async fn acquire(&self, caller: Option<&Caller>) -> CallSlot {
        let (caller, (place, granted)) = (caller.cloned(), oneshot::channel());
        lock(&self.calls).waiting.push(Waiting { caller, place });
        grant(self.limits, &self.calls);
        granted.await.expect("who waits is asked or has left")
    }
}

/// Gives the free slots to those who wait.
fn grant(limits: CallLimits, calls: &Arc<Mutex<Calls>>) {
    let mut granted = Vec::new();
    let mut locked = lock(calls);
    locked.waiting.retain(|waiting| !waiting.place.is_closed());
    while let Some(Waiting { caller, place }) = locked.take_next(limits) {
        let calls = calls.clone();
        granted.push((
            place,
            CallSlot {
                limits,
                calls,
                caller,
            },
        ));
    }
    drop(locked);
    for (place, slot) in granted {
        // Who has left meanwhile gives the slot back.
        let _ = place.send(slot);
    }
}

impl Calls {
    /// The next one who may have a slot, which is counted from here on.
    fn take_next(&mut self, limits: CallLimits) -> Option<Waiting> {
        let in_use = |caller: &Option<Caller>| {
            let caller = caller.as_ref();
            let of_tenant = caller.and_then(|caller| self.of_tenants.get(&caller.tenant));
            let of_user = caller.and_then(|caller| self.of_users.get(caller));
            (
                of_tenant.copied().unwrap_or_default(),
                of_user.copied().unwrap_or_default(),
            )
        };
        if self.all >= limits.all {
            return None;
        }
        let waiting = self.waiting.iter().enumerate();
        let (next, _) = waiting
            .map(|(at, waiting)| (at, in_use(&waiting.caller)))
            .filter(|(_, (of_tenant, of_user))| {
                *of_tenant < limits.of_tenant && *of_user < limits.of_user
            })
            .min_by_key(|(_, (of_tenant, _))| *of_tenant)?;
        let next = self.waiting.remove(next);
        self.all += 1;
        if let Some(caller) = &next.caller {
            *self.of_tenants.entry(caller.tenant).or_default() += 1;
            *self.of_users.entry(caller.clone()).or_default() += 1;
        }
        Some(next)
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        let mut locked = lock(&self.calls);
        locked.all -= 1;
        if let Some(caller) = &self.caller {
            let Calls {
                of_tenants,
                of_users,
                ..
            } = &mut *locked;
            give_back(of_tenants, &caller.tenant);
            give_back(of_users, caller);
        }
        drop(locked);
        grant(self.limits, &self.calls);
    }
}

fn give_back<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
