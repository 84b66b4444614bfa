//! Connections: one per key, opened once however many ask, left alone for a while after a failure, closed
//! when idle.
//!
//! Invariants: connecting belongs to no caller, so that nobody who goes away ends it for the others; a
//! server that does not answer costs one connect timeout and then nothing until its pause is over; a
//! connection is closed only when nobody uses it, or on [`Pool::close`] and [`Pool::shutdown`].

mod ending;
mod slot;

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::sync::{broadcast, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ConnectionState, Key, McpError, Options,
    connect::Target,
    error::{Failure, McpErrorKind, SessionDoubt},
    interceptor::locked,
    known::Known,
    session::{Examination, Session},
    stdio::Watchdog,
    tokens::Tokens,
};
use domain::{
    clock,
    ids::{AgentId, ServerId, TenantId},
    scrub::Scrubber,
    server::{Endpoint, ServerSpec},
};
use egress::Egress;

/// Servers that are remembered although nothing is connected to them.
const REMEMBERED: usize = 4096;

pub(super) struct Pool {
    egress: Egress,
    tokens: Arc<Tokens>,
    options: Arc<Options>,
    pub(super) changes: broadcast::Sender<Key>,
    watchdog: Arc<Watchdog>,
    /// By key; more than one entry while a run still holds an older version of the pack.
    slots: Mutex<HashMap<Key, Vec<Arc<Slot>>>>,
    known: Mutex<HashMap<Address, Arc<Known>>>,
    closing: CancellationToken,
    tasks: TaskTracker,
    sweeping: AtomicBool,
    opened: Instant,
}

type Address = (TenantId, AgentId, ServerId, String);
type Outcome = Result<Arc<Session>, McpError>;
type Attempt = watch::Receiver<Option<Outcome>>;

pub(super) struct Slot {
    pub(super) target: Target,
    state: Mutex<State>,
    failures: AtomicU32,
    /// How often in a row it died soon after its start.
    deaths: AtomicU32,
    /// How often in a row a session was in doubt soon after it was opened.
    losses: AtomicU32,
    /// The server has answered a request in a session with this credential, which is a good one then.
    is_proven: AtomicBool,
    /// Microseconds of the pool's life at the last use.
    used: AtomicU64,
    /// How many are using it.
    users: AtomicUsize,
}

enum State {
    Idle,
    Connecting(Attempt),
    Ready(Arc<Session>),
    Down {
        error: McpError,
        until: Instant,
    },
    /// Taken out of the pool.
    Closed,
}

/// A slot in use, which keeps it from being evicted.
pub(super) struct InUse {
    pool: Arc<Pool>,
    pub(super) slot: Arc<Slot>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.slot.used.store(self.pool.now(), Ordering::Relaxed);
        self.slot.users.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pool {
    pub(super) fn new(egress: Egress, options: Options) -> Self {
        Self {
            tokens: Arc::new(Tokens::new(egress.clone(), options.tokens.clone())),
            egress,
            options: Arc::new(options),
            changes: broadcast::channel(256).0,
            watchdog: Arc::default(),
            slots: Mutex::default(),
            known: Mutex::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            sweeping: AtomicBool::new(false),
            opened: clock::instant(),
        }
    }

    /// The slot of a key and this version of its server.
    pub(super) fn claim(self: &Arc<Self>, key: &Key, spec: &Arc<ServerSpec>) -> InUse {
        self.start_sweeper();
        let mut slots = locked(&self.slots);
        let versions = slots.entry(key.clone()).or_default();
        let slot = match versions
            .iter()
            .find(|slot| same_connection(&slot.target.spec, spec))
        {
            Some(slot) => slot.clone(),
            None => {
                let slot = Arc::new(self.new_slot(key, spec));
                versions.push(slot.clone());
                slot
            }
        };
        slot.users.fetch_add(1, Ordering::SeqCst);
        slot.used.store(self.now(), Ordering::Relaxed);
        InUse {
            pool: self.clone(),
            slot,
        }
    }

    /// A session that can be used: the open one, or a new one, or the reason why there is none.
    pub(super) async fn session(self: &Arc<Self>, slot: &Arc<Slot>) -> Outcome {
        let mut connecting = match self.look(slot) {
            ControlFlow::Break(outcome) => return outcome,
            ControlFlow::Continue(connecting) => connecting,
        };
        match connecting.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err(McpError::new(
                McpErrorKind::Unreachable,
                "connecting was broken off",
            )),
        }
    }

    /// What is known at once, or an attempt to wait for.
    fn look(self: &Arc<Self>, slot: &Arc<Slot>) -> ControlFlow<Outcome, Attempt> {
        if self.closing.is_cancelled() {
            return ControlFlow::Break(Err(McpError::closed()));
        }
        let mut state = locked(&slot.state);
        let unresponsive = match &*state {
            State::Closed => return ControlFlow::Break(Err(closed_meanwhile())),
            State::Ready(session) if session.is_dead() => {
                match slot.count_early_exit(session, &self.options) {
                    None => None,
                    Some(error) => {
                        let until = clock::instant() + error.retry_in.unwrap_or_default();
                        *state = State::Down {
                            error: error.clone(),
                            until,
                        };
                        return ControlFlow::Break(Err(error));
                    }
                }
            }
            State::Ready(session) if session.is_unresponsive() => Some(session.clone()),
            State::Ready(session) => return ControlFlow::Break(Ok(session.clone())),
            // An attempt that panicked leaves nothing to wait for.
            State::Connecting(attempt)
                if attempt.has_changed().is_ok() || attempt.borrow().is_some() =>
            {
                return ControlFlow::Continue(attempt.clone());
            }
            State::Down { error, until } if *until > clock::instant() => {
                let retry_in = Some(until.saturating_duration_since(clock::instant()));
                return ControlFlow::Break(Err(McpError {
                    retry_in,
                    ..error.clone()
                }));
            }
            _ => None,
        };
        ControlFlow::Continue(self.begin(slot, &mut state, unresponsive))
    }

    /// A session over which nothing could be sent is used no more; who is in the middle of a request finishes. One
    /// that is dead is found to be so by the next who looks.
    pub(super) fn retire(slot: &Slot, session: &Arc<Session>) {
        let mut state = locked(&slot.state);
        if matches!(&*state, State::Ready(current) if Arc::ptr_eq(current, session))
            && !session.is_dead()
        {
            *state = State::Idle;
        }
    }

    /// Finds out with a ping whether a session is lost that a refusal leaves in doubt. Whatever comes of it, the next
    /// request begins with a new handshake.
    pub(super) async fn examine(
        &self,
        slot: &Slot,
        session: &Arc<Session>,
        doubt: &SessionDoubt,
    ) -> Examination {
        Self::doubt(slot, session);
        let time_limit = slot.target.spec.timeouts.connect;
        let examination = session.examine(doubt, time_limit).await;
        match examination {
            Examination::Alive => {}
            // It was of use: its server was restarted, and does not lose every session.
            Examination::Lost if session.has_served() => {
                slot.forget_losses();
                Self::retire(slot, session);
            }
            Examination::Lost | Examination::Unclear(_) => self.give_up(slot, session),
        }
        examination
    }

    /// Makes a new session possible for a question that changes nothing and failed; the error when it is not to be asked
    /// again (`may_ask_again`, or the failure has nothing to do with the session).
    pub(super) async fn renew(
        &self,
        slot: &Slot,
        session: &Arc<Session>,
        failure: Failure,
        may_ask_again: bool,
    ) -> Result<(), Failure> {
        match failure {
            Failure::SessionInDoubt(doubt) => {
                let is_proven = slot.is_proven();
                match self.examine(slot, session, &doubt).await {
                    Examination::Alive if is_proven => Err(doubt.of_tool()),
                    Examination::Alive => Err(doubt.own),
                    _ if may_ask_again => Ok(()),
                    _ => Err(doubt.of_new_session(is_proven)),
                }
            }
            failure if may_ask_again && session.may_read_again(&failure) => {
                Self::retire(slot, session);
                Ok(())
            }
            failure => Err(failure),
        }
    }

    /// A session whose server may have lost it is used no more. One that follows too soon on others is kept until it is
    /// known to be lost: a tool that refuses each call in this way does not cost a handshake for each.
    pub(super) fn doubt(slot: &Slot, session: &Arc<Session>) {
        let mut state = locked(&slot.state);
        if matches!(&*state, State::Ready(current) if Arc::ptr_eq(current, session))
            && !session.is_dead()
            && slot.may_renew(session)
        {
            *state = State::Idle;
        }
    }

    /// A session that was in doubt and that does not answer. If it was kept, its server is left alone for a while.
    fn give_up(&self, slot: &Slot, session: &Arc<Session>) {
        let mut state = locked(&slot.state);
        if matches!(&*state, State::Ready(current) if Arc::ptr_eq(current, session)) {
            let error = slot.count_loss(&self.options);
            let until = clock::instant() + error.retry_in.unwrap_or_default();
            *state = State::Down { error, until };
        }
    }

    pub(super) fn state(&self, key: &Key) -> ConnectionState {
        let slots = locked(&self.slots);
        let latest = slots.get(key).and_then(|slots| {
            slots
                .iter()
                .max_by_key(|slot| slot.used.load(Ordering::Relaxed))
        });
        latest.map_or(ConnectionState::Idle, |slot| slot.connection_state())
    }

    /// Connects, or asks a session that ran out of time once for an answer to a ping. Whoever asks meanwhile
    /// waits for the same outcome.
    fn begin(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        state: &mut State,
        unresponsive: Option<Arc<Session>>,
    ) -> Attempt {
        let (tell, outcome) = watch::channel(None);
        *state = State::Connecting(outcome.clone());
        let (pool, slot) = (self.clone(), slot.clone());
        self.tasks.spawn(async move {
            let reaching = Box::pin(slot.target.connect_or_probe(unresponsive));
            let reached = pool.closing.run_until_cancelled(reaching).await;
            let outcome = match reached {
                None => Err(McpError::closed()),
                Some(reached) => pool.settle(&slot, reached),
            };
            // Nobody may be waiting any more.
            let _ = tell.send(Some(outcome));
        });
        outcome
    }

    /// Writes down how connecting went.
    fn settle(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        reached: Result<Arc<Session>, Failure>,
    ) -> Outcome {
        let outcome =
            reached.map_err(|failure| slot.count_failure(failure.of_server(), &self.options));
        let mut state = locked(&slot.state);
        if matches!(&*state, State::Closed) {
            if let Ok(session) = outcome {
                self.close_in_background(session);
            }
            return Err(closed_meanwhile());
        }
        *state = match &outcome {
            Ok(session) => State::Ready(session.clone()),
            Err(error) => {
                let pause = error.retry_in.unwrap_or_default();
                State::Down {
                    error: error.clone(),
                    until: clock::instant() + pause,
                }
            }
        };
        drop(state);
        match &outcome {
            Ok(session) => {
                slot.failures.store(0, Ordering::Relaxed);
                tracing::debug!(server = %slot.target.spec.id, era = ?session.era, "connected");
                self.evict_surplus();
            }
            Err(error) => tracing::warn!(server = %slot.target.spec.id, "not connected: {error}"),
        }
        outcome
    }

    fn new_slot(&self, key: &Key, spec: &Arc<ServerSpec>) -> Slot {
        let target = Target {
            egress: if spec.of_tenant {
                self.egress.for_tenants()
            } else {
                self.egress.clone()
            },
            tokens: self.tokens.clone(),
            options: self.options.clone(),
            key: key.clone(),
            spec: spec.clone(),
            known: self.known(key, spec),
            changes: self.changes.clone(),
            watchdog: self.watchdog.clone(),
            scrubber: Scrubber::of(spec),
        };
        Slot {
            target,
            state: Mutex::new(State::Idle),
            failures: AtomicU32::new(0),
            deaths: AtomicU32::new(0),
            losses: AtomicU32::new(0),
            is_proven: AtomicBool::new(false),
            used: AtomicU64::new(0),
            users: AtomicUsize::new(0),
        }
    }

    fn known(&self, key: &Key, spec: &ServerSpec) -> Arc<Known> {
        let place = match &spec.endpoint {
            // A user's own parameters may stand in the query; the server is the same one.
            Endpoint::Remote { url, .. } => url[..url::Position::AfterPath].to_owned(),
            Endpoint::Stdio { command, .. } => command.clone(),
        };
        let address = (key.tenant, key.agent.clone(), key.server.clone(), place);
        let mut known = locked(&self.known);
        if known.len() >= REMEMBERED {
            known.retain(|_, known| Arc::strong_count(known) > 1);
        }
        known
            .entry(address)
            .or_insert_with(|| Arc::new(Known::new(self.options.calls_per_server)))
            .clone()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

impl Target {
    /// A new session, or the unresponsive one if it is alive.
    async fn connect_or_probe(
        &self,
        unresponsive: Option<Arc<Session>>,
    ) -> Result<Arc<Session>, Failure> {
        if let Some(session) = unresponsive {
            match session.probe(self.spec.timeouts.connect).await {
                Ok(()) => return Ok(session),
                Err(failure @ Failure::Silent(_)) => return Err(failure),
                // Somebody is there; this session is not.
                Err(_) => {}
            }
        }
        self.connect().await.map(Arc::new)
    }
}

/// Whether a connection made for one version of a server serves the other.
fn same_connection(a: &Arc<ServerSpec>, b: &Arc<ServerSpec>) -> bool {
    Arc::ptr_eq(a, b) || has_same_endpoint(a, b)
}

fn has_same_endpoint(a: &ServerSpec, b: &ServerSpec) -> bool {
    let settings = |spec: &ServerSpec| (spec.timeouts, spec.terminate_on_close);
    a.endpoint == b.endpoint && settings(a) == settings(b) && a.auth == b.auth
}

fn closed_meanwhile() -> McpError {
    McpError::new(
        McpErrorKind::Unreachable,
        "the connection was closed; try again",
    )
}
