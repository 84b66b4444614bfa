//! The pool of connections: one for each shared key, and one for each credential and version of its server. All callers share an attempt to connect. After a
//! failure the server gets a pause, and unused connections are closed after a time.
//!
//! Invariants: connecting is a task of its own, so that a caller who leaves does not end it for the others. A server that
//! does not answer costs one connect timeout, and then nothing until its pause is over. A connection is closed only when
//! it is not in use, or by [`Pool::close`] and [`Pool::shutdown`].

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::{
    sync::{broadcast, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::{
    ConnectionState, Key, McpError, Options,
    connect::Target,
    error::{Failure, McpErrorKind},
    known_server::{CallLimits, KnownServer},
    lock,
    session::Session,
    stdio::Watchdog,
    tokens::Tokens,
};
use domain::{
    backoff, clock,
    credential::CredentialRef,
    ids::TenantId,
    scrub::Scrubber,
    server::{Endpoint, ServerSpec},
};
use egress::Egress;

/// Above this many known servers, those without connections are forgotten.
const MAX_KNOWN: usize = 4096;
/// How long [`Pool::shutdown`] may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often [`Pool::close_when_unused`] checks whether the connection is in use.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A child process that ends within this time has exited early. After the first early exits it is started again at once,
/// after later ones following a growing pause.
const EARLY_EXIT: Duration = Duration::from_secs(30);
const IMMEDIATE_RESTARTS: u32 = 2;
/// A connection that is closed for too many requests after this time starts a new count of such failures.
const OVERRUN_MEMORY: Duration = Duration::from_secs(600);
/// Sessions that are lost within this time are counted. The first ones in a row are replaced at once.
const EARLY_LOSS: Duration = Duration::from_secs(60);
const IMMEDIATE_RENEWALS: u32 = 3;
/// How long a ping may hold up a call. It also takes at most a quarter of the time that the call itself may take.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Pool {
    egress: Egress,
    tokens: Arc<Tokens>,
    options: Arc<Options>,
    pub(super) changes: broadcast::Sender<Key>,
    watchdog: Arc<Watchdog>,
    /// By key. There are several slots while runs still use an older version of the pack.
    slots: Mutex<HashMap<Key, Vec<Arc<Slot>>>>,
    known: Mutex<HashMap<Address, Arc<KnownServer>>>,
    closing: CancellationToken,
    tasks: TaskTracker,
    sweeping: AtomicBool,
    /// The start of the clock for [`Slot::used`].
    opened: Instant,
}

/// What identifies a known server. What one tenant's connections have learned is not used for those of another, nor for
/// those that serve all tenants.
#[derive(PartialEq, Eq, Hash)]
struct Address {
    tenant: Option<TenantId>,
    /// Its URL without the query, or its command with the arguments.
    place: String,
}

type Outcome = Result<Arc<Session>, McpError>;
type Attempt = watch::Receiver<Option<Outcome>>;

/// The place of one connection in the pool.
pub(super) struct Slot {
    pub(super) target: Target,
    /// [`ServerSpec::digest`]
    digest: [u8; 32],
    state: Mutex<State>,
    /// Failed attempts to connect in a row.
    failures: AtomicU32,
    /// Early exits and overruns in a row.
    early_exits: AtomicU32,
    /// Sessions in a row that may have been lost soon after they were opened.
    losses: AtomicU32,
    /// The server has answered a request with this credential, so the credential is good.
    is_credential_good: AtomicBool,
    /// When it was last used, in microseconds since the pool was created.
    used: AtomicU64,
    /// How many callers are using it.
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
    /// Removed from the pool.
    Closed,
}

/// The use of a slot. While it exists, the slot is not evicted.
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

    /// The slot for a key and this version of its server, created if there is none.
    pub(super) fn claim(self: &Arc<Self>, key: &Key, spec: &Arc<ServerSpec>) -> InUse {
        self.start_sweeper();
        let mut slots = lock(&self.slots);
        let versions = slots.entry(key.clone()).or_default();
        let is_same = |slot: &&Arc<Slot>| match key {
            Key::Shared(_) => true,
            Key::Personal(_) => {
                Arc::ptr_eq(&slot.target.spec, spec) || slot.digest == spec.digest()
            }
        };
        let slot = match versions.iter().find(is_same) {
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

    /// The open session of a slot, or a new one. The error says why there is none.
    pub(super) async fn session(self: &Arc<Self>, slot: &Arc<Slot>) -> Outcome {
        self.session_used_within(slot, Duration::MAX).await
    }

    /// The same for a call, which may change something and so must not be sent to a server that has forgotten the session: one
    /// that was idle is asked first, and a lost one is replaced.
    pub(super) async fn session_for_call(self: &Arc<Self>, slot: &Arc<Slot>) -> Outcome {
        self.session_used_within(slot, self.options.ping_after)
            .await
    }

    async fn session_used_within(self: &Arc<Self>, slot: &Arc<Slot>, idle: Duration) -> Outcome {
        let mut connecting = match self.find_or_connect(slot, idle) {
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

    /// The session or the error that is known at once, or an attempt to wait for.
    fn find_or_connect(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        idle: Duration,
    ) -> ControlFlow<Outcome, Attempt> {
        if self.closing.is_cancelled() {
            return ControlFlow::Break(Err(McpError::shutting_down()));
        }
        // A server that answers no pings is not asked, unless it has refused something.
        let idle = match slot.target.known.answers_pings() {
            Some(false) => Duration::MAX,
            _ => idle,
        };
        let mut state = lock(&slot.state);
        let questioned = match &*state {
            State::Closed => return ControlFlow::Break(Err(closed_error())),
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
            State::Ready(session) if session.is_unresponsive() || session.may_be_lost(idle) => {
                Some(session.clone())
            }
            State::Ready(session) => return ControlFlow::Break(Ok(session.clone())),
            // An attempt that panicked has dropped its sender, and is not waited for.
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
        ControlFlow::Continue(self.begin(slot, &mut state, questioned))
    }

    /// Stops using a session; requests in progress finish. A session whose transport is closed is left to
    /// [`Pool::session`], which counts early exits.
    pub(super) fn retire(slot: &Slot, session: &Arc<Session>) {
        let mut state = lock(&slot.state);
        if matches!(&*state, State::Ready(current) if Arc::ptr_eq(current, session))
            && !session.is_dead()
        {
            *state = State::Idle;
        }
    }

    /// Decides whether a failed read-only request may be sent again in a new session. `Ok`: it may. The error is the failure
    /// to report: `may_retry` is false, or the failure has nothing to do with the session.
    pub(super) fn renew(
        slot: &Slot,
        session: &Arc<Session>,
        failure: Failure,
        may_retry: bool,
    ) -> Result<(), Failure> {
        match failure {
            Failure::SessionInDoubt(doubt) => {
                Self::doubt(slot, session);
                if may_retry {
                    Ok(())
                } else {
                    Err(doubt.into_failure_of_new_session(slot.is_credential_good()))
                }
            }
            failure if may_retry && session.may_read_again(&failure) => {
                Self::retire(slot, session);
                Ok(())
            }
            failure => Err(failure),
        }
    }

    /// Stops using a session that may be lost, so that the next request begins with a handshake. After several such sessions
    /// in a short time, the session is kept until a ping says that it is lost, so that a tool that refuses every call in this
    /// way does not cost a handshake each time.
    pub(super) fn doubt(slot: &Slot, session: &Arc<Session>) {
        session.mark_in_doubt();
        let mut state = lock(&slot.state);
        if matches!(&*state, State::Ready(current) if Arc::ptr_eq(current, session))
            && !session.is_dead()
            && slot.may_renew(session)
        {
            *state = State::Idle;
        }
    }

    /// The state of the slot of a key that was used last.
    pub(super) fn state(&self, key: &Key) -> ConnectionState {
        let slots = lock(&self.slots);
        let latest = slots.get(key).and_then(|slots| {
            slots
                .iter()
                .max_by_key(|slot| slot.used.load(Ordering::Relaxed))
        });
        latest.map_or(ConnectionState::Idle, |slot| slot.connection_state())
    }

    /// Starts to connect, or to ask with a ping whether a session can still be used. All callers wait for the same outcome.
    fn begin(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        state: &mut State,
        questioned: Option<Arc<Session>>,
    ) -> Attempt {
        let (sender, outcome) = watch::channel(None);
        *state = State::Connecting(outcome.clone());
        let (pool, slot) = (self.clone(), slot.clone());
        let connect = async move {
            let connecting = Box::pin(slot.connect_or_keep(questioned, &pool.options));
            let connected = pool.closing.run_until_cancelled(connecting).await;
            let outcome = match connected {
                None => Err(McpError::shutting_down()),
                Some(connected) => pool.settle(&slot, connected),
            };
            // Fails when all callers have left.
            let _ = sender.send(Some(outcome));
        };
        // The log says for whom it was that connecting failed.
        self.tasks.spawn(connect.in_current_span());
        outcome
    }

    /// Sets the state of a slot after an attempt to connect.
    fn settle(self: &Arc<Self>, slot: &Arc<Slot>, outcome: Outcome) -> Outcome {
        let mut state = lock(&slot.state);
        if matches!(&*state, State::Closed) {
            if let Ok(session) = outcome {
                self.close_in_background(session);
            }
            return Err(closed_error());
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
                tracing::debug!(server = %slot.target.spec.id, lifecycle = ?session.lifecycle(), "connected");
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
            digest: spec.digest(),
            state: Mutex::new(State::Idle),
            failures: AtomicU32::new(0),
            early_exits: AtomicU32::new(0),
            losses: AtomicU32::new(0),
            is_credential_good: AtomicBool::new(false),
            used: AtomicU64::new(0),
            users: AtomicUsize::new(0),
        }
    }

    fn known(&self, key: &Key, spec: &ServerSpec) -> Arc<KnownServer> {
        let place = match &spec.endpoint {
            // The query may hold a user's own parameters; it is the same server for all users.
            Endpoint::Remote { url, .. } => url[..url::Position::AfterPath].to_owned(),
            Endpoint::Stdio { command, args, .. } => args
                .iter()
                .fold(command.clone(), |line, arg| line + "\0" + arg.expose()),
        };
        let tenant = key.tenant();
        let address = Address { tenant, place };
        let mut known = lock(&self.known);
        if known.len() >= MAX_KNOWN {
            known.retain(|_, known| Arc::strong_count(known) > 1);
        }
        known
            .entry(address)
            .or_insert_with(|| {
                let limits = CallLimits::new(self.options.calls_per_server, tenant.is_none());
                Arc::new(KnownServer::new(limits))
            })
            .clone()
    }

    /// Microseconds since the pool was created.
    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn personal_connections(&self) -> Vec<CredentialRef> {
        let credential = |key: &Key| match key {
            Key::Shared(_) => None,
            Key::Personal(credential) => Some(credential.clone()),
        };
        lock(&self.slots).keys().filter_map(credential).collect()
    }

    /// Closes the connections of a key, even if they are in use.
    pub(super) async fn close(&self, key: &Key) {
        let slots = lock(&self.slots).remove(key).unwrap_or_default();
        let sessions: Vec<_> = slots.iter().filter_map(|slot| slot.mark_closed()).collect();
        join_all(sessions.iter().map(|session| session.close())).await;
    }

    /// Closes the connections of a key, after all calls over them have ended.
    pub(super) async fn close_when_unused(&self, key: &Key) {
        while !self.close_unused(key) {
            let pause = tokio::time::sleep(CHECK_INTERVAL);
            if self.closing.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// Closes those connections of a key that are not in use. Whether none is left.
    fn close_unused(&self, key: &Key) -> bool {
        let mut slots = lock(&self.slots);
        for slot in slots.get(key).cloned().unwrap_or_default() {
            if slot.users.load(Ordering::SeqCst) == 0 {
                self.evict(&mut slots, &slot);
            }
        }
        !slots.contains_key(key)
    }

    /// Closes all connections. What has not ended within [`SHUTDOWN_TIMEOUT`] is killed.
    pub(super) async fn shutdown(&self) {
        self.closing.cancel();
        self.tasks.close();
        let slots = std::mem::take(&mut *lock(&self.slots));
        let sessions: Vec<_> = slots
            .values()
            .flatten()
            .filter_map(|slot| slot.mark_closed())
            .collect();
        let all = async {
            join_all(sessions.iter().map(|session| session.close())).await;
            self.tasks.wait().await;
        };
        if timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
            tracing::warn!("some MCP servers did not end in time; they are killed");
        }
    }

    /// Closes the least recently used connections until there are no more than allowed. Those in use stay.
    fn evict_surplus(&self) {
        let mut slots = lock(&self.slots);
        let mut ready: Vec<_> = slots
            .values()
            .flatten()
            .filter(|slot| slot.is_ready())
            .cloned()
            .collect();
        let Some(surplus) = ready.len().checked_sub(self.options.max_connections.max(1)) else {
            return;
        };
        ready.retain(|slot| slot.users.load(Ordering::SeqCst) == 0);
        ready.sort_by_key(|slot| slot.used.load(Ordering::Relaxed));
        for slot in ready.into_iter().take(surplus) {
            self.evict(&mut slots, &slot);
        }
    }

    /// Closes the connections that were not used for their idle time.
    fn sweep(&self) {
        let now = Duration::from_micros(self.now());
        let mut slots = lock(&self.slots);
        let idle = |slot: &&Arc<Slot>| {
            let used = Duration::from_micros(slot.used.load(Ordering::Relaxed));
            slot.users.load(Ordering::SeqCst) == 0
                && now.saturating_sub(used) >= self.idle_ttl(slot)
        };
        let idle: Vec<_> = slots.values().flatten().filter(idle).cloned().collect();
        for slot in idle {
            self.evict(&mut slots, &slot);
        }
    }

    fn idle_ttl(&self, slot: &Slot) -> Duration {
        // The others hold a user's credential, or what one tenant has entered or told.
        let default = match slot.target.key.tenant() {
            None => self.options.shared_idle_ttl,
            Some(_) => self.options.idle_ttl,
        };
        slot.target.spec.timeouts.idle.unwrap_or(default)
    }

    /// Removes a slot from the pool and closes its session.
    fn evict(&self, slots: &mut HashMap<Key, Vec<Arc<Slot>>>, slot: &Arc<Slot>) {
        if let Some(versions) = slots.get_mut(&slot.target.key) {
            versions.retain(|other| !Arc::ptr_eq(other, slot));
            if versions.is_empty() {
                slots.remove(&slot.target.key);
            }
        }
        if let Some(session) = slot.mark_closed() {
            self.close_in_background(session);
        }
    }

    fn close_in_background(&self, session: Arc<Session>) {
        self.tasks.spawn(async move { session.close().await });
    }

    /// Starts the task that closes unused connections, unless it runs already. It ends with the pool.
    fn start_sweeper(self: &Arc<Self>) {
        if self.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
        let pause =
            (self.options.idle_ttl / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let (pool, closing): (Weak<Self>, _) = (Arc::downgrade(self), self.closing.clone());
        tokio::spawn(closing.run_until_cancelled_owned(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(pool) = pool.upgrade() else { return };
                pool.sweep();
            }
        }));
    }
}

impl Slot {
    fn is_ready(&self) -> bool {
        matches!(&*lock(&self.state), State::Ready(_))
    }

    /// Marks the slot as closed; its session, if it had one.
    fn mark_closed(&self) -> Option<Arc<Session>> {
        match std::mem::replace(&mut *lock(&self.state), State::Closed) {
            State::Ready(session) => Some(session),
            _ => None,
        }
    }

    /// Counts a session that has ended. The error says why a new session may not be opened at once: the server made too many
    /// requests, or its child process exits early again and again.
    fn count_early_exit(&self, session: &Session, options: &Options) -> Option<McpError> {
        if let Some(reason) = session.overrun_reason() {
            if session.since.elapsed() >= OVERRUN_MEMORY {
                self.early_exits.store(0, Ordering::Relaxed);
            }
            let overruns = self
                .early_exits
                .fetch_add(1, Ordering::Relaxed)
                .saturating_add(1);
            return Some(McpError {
                retry_in: Some(pause(options, overruns)),
                ..McpError::new(McpErrorKind::Protocol, reason)
            });
        }
        if !matches!(self.target.spec.endpoint, Endpoint::Stdio { .. })
            || session.since.elapsed() >= EARLY_EXIT
        {
            self.early_exits.store(0, Ordering::Relaxed);
            return None;
        }
        let exits = self
            .early_exits
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let pause = pause(
            options,
            exits.checked_sub(IMMEDIATE_RESTARTS).filter(|n| *n > 0)?,
        );
        let message = format!("the server ended {exits} times in a row soon after its start");
        Some(McpError {
            retry_in: Some(pause),
            ..McpError::new(McpErrorKind::Unreachable, message)
        })
    }

    /// Records that the server answered a request with the credential of this slot.
    pub(super) fn mark_credential_good(&self) {
        self.is_credential_good.store(true, Ordering::Relaxed);
    }

    /// Whether the server has ever answered a request with the credential of this slot.
    pub(super) fn is_credential_good(&self) -> bool {
        self.is_credential_good.load(Ordering::Relaxed)
    }

    /// Counts a session that may be lost. Whether it may be replaced at once, which is allowed only
    /// [`IMMEDIATE_RENEWALS`] times in a row.
    fn may_renew(&self, session: &Session) -> bool {
        if session.since.elapsed() >= EARLY_LOSS {
            self.losses.store(0, Ordering::Relaxed);
        }
        self.losses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |losses| {
                (losses < IMMEDIATE_RENEWALS).then_some(losses + 1)
            })
            .is_ok()
    }

    /// Counts a lost session that could not be replaced at once. The error has the pause.
    fn count_loss(&self, options: &Options) -> McpError {
        let losses = self
            .losses
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let times = losses.saturating_sub(IMMEDIATE_RENEWALS).max(1);
        McpError {
            retry_in: Some(pause(options, times)),
            ..McpError::new(
                McpErrorKind::Unreachable,
                "the server loses one session after the other",
            )
        }
    }

    /// Counts a failed attempt to connect, and adds the pause to its error.
    fn count_failure(&self, error: McpError, options: &Options) -> McpError {
        let failures = self
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let pause = pause(options, failures);
        McpError {
            retry_in: Some(pause.max(error.retry_in.unwrap_or_default())),
            ..error
        }
    }

    async fn connect(&self, options: &Options) -> Outcome {
        let connected = self.target.connect().await.map(Arc::new);
        connected.map_err(|failure| self.count_failure(failure.into_server_error(), options))
    }

    /// A new session, or the one in question if the server still knows it.
    async fn connect_or_keep(
        &self,
        questioned: Option<Arc<Session>>,
        options: &Options,
    ) -> Outcome {
        let Some(session) = questioned else {
            return self.connect(options).await;
        };
        let (known, is_unresponsive) = (&self.target.known, session.is_unresponsive());
        if !is_unresponsive && known.answers_pings() == Some(false) {
            return self.replace(&session, options).await;
        }
        let time_limit = if is_unresponsive {
            self.target.spec.timeouts.connect
        } else {
            self.ping_timeout()
        };
        match session.ping(time_limit).await {
            Ok(()) => known.learn_pings(true),
            Err(failure @ Failure::Silent(_)) if is_unresponsive => {
                return Err(self.count_failure(failure.into_server_error(), options));
            }
            Err(Failure::SessionInDoubt(_)) => return self.replace(&session, options).await,
            // Revision 2026-07-28 has no ping; an error for the unknown method shows that the server is there.
            Err(
                Failure::Refused { .. }
                | Failure::Status { status: ..500, .. }
                | Failure::Silent(_),
            ) => known.learn_pings(false),
            Err(
                Failure::Busy { .. }
                | Failure::Unauthorized
                | Failure::SignInRequired(_)
                | Failure::Forbidden
                | Failure::ScopeRequired(_),
            ) => {}
            Err(_) if is_unresponsive || session.is_dead() => return self.connect(options).await,
            // The call itself shows what is wrong with the server.
            Err(_) => {}
        }
        session.mark_responsive();
        Ok(session)
    }

    /// A new session in place of one that the server has forgotten.
    async fn replace(&self, lost: &Session, options: &Options) -> Outcome {
        if lost.has_served() {
            // The server does not lose every session; it was probably restarted.
            self.losses.store(0, Ordering::Relaxed);
        } else if self.losses.load(Ordering::Relaxed) >= IMMEDIATE_RENEWALS {
            return Err(self.count_loss(options));
        }
        let session = self.connect(options).await?;
        let known = &self.target.known;
        if known.answers_pings().is_none() {
            // What a server says that refuses pings in a new session as well shows nothing.
            let answer = session.ping(self.ping_timeout()).await;
            known.learn_pings(answer.is_ok());
        }
        Ok(session)
    }

    fn ping_timeout(&self) -> Duration {
        PING_TIMEOUT.min(self.target.spec.timeouts.request / 4)
    }

    fn connection_state(&self) -> ConnectionState {
        match &*lock(&self.state) {
            State::Connecting(_) => ConnectionState::Connecting,
            State::Ready(session) if !session.is_dead() => ConnectionState::Ready {
                lifecycle: session.lifecycle(),
                since: session.since,
            },
            State::Down { error, until } => ConnectionState::Down {
                error: McpError {
                    retry_in: None,
                    ..error.clone()
                },
                retry_in: until.saturating_duration_since(clock::instant()),
            },
            State::Ready(_) | State::Idle | State::Closed => ConnectionState::Idle,
        }
    }
}

/// The pause of a server after this many failures in a row.
fn pause(options: &Options, failures: u32) -> Duration {
    let chance = rand::random();
    backoff::delay(options.first_pause, options.longest_pause, failures, chance)
}

fn closed_error() -> McpError {
    McpError::new(
        McpErrorKind::Unreachable,
        "the connection was closed; try again",
    )
}
