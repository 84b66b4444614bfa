//! Limits of what happens at once. A request holds a permit while it is worked on, but not while its body arrives. One
//! principal may hold a share of the permits, make a number of requests a minute, and hold a number of streams open.
//! All limits are in memory and hold for one process.
//!
//! A stream, or a request that waits for a model, gives its permit back and counts as one of its user's streams
//! instead. So people who read slowly cannot keep others out. When a replica ends, the clients of all its streams come to
//! another one at the same moment; they are let in one after the other, and hold no permit that other requests need.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{ApiState, problem::Problem};
use crate::app::platform::rate_limit::RateLimit;
use domain::{
    config::Config,
    error::ErrorCode,
    ids::{TenantId, UserId},
    principal::Principal,
};

/// The limits of one process, and what is in progress.
pub(super) struct Limits {
    permits: Arc<Semaphore>,
    /// The streams that are being opened.
    openings: Arc<Semaphore>,
    /// The time since which every request was refused because no permit was free.
    full_since: Mutex<Option<Instant>>,
    permits_of_users: PerUser,
    permits_per_user: usize,
    rates: RateLimit<RateKey>,
    requests_per_minute: u32,
    streams: PerUser,
    streams_per_user: usize,
    calls: PerUser,
    large_bodies: Arc<Semaphore>,
    large_bodies_of_users: PerUser,
}

/// The number of bodies larger than ordinary ones that are read at once: of all users, and of one.
const LARGE_BODIES: usize = 12;
const LARGE_BODIES_PER_USER: usize = 6;

/// The caller whose requests a minute are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RateKey {
    User(TenantId, UserId),
    /// A caller without a credential.
    Address(Option<IpAddr>),
}

/// One principal may hold this fraction of the permits: one in eight.
const SHARE: usize = 8;
/// So many event streams are opened at once, as a fraction of the permits: one in sixteen.
const OPENINGS: usize = 16;
/// The longest time that a stream waits until it is opened.
const OPENING_WAIT: Duration = Duration::from_secs(30);
/// The routes whose streams stay open for long.
const STREAMS: [&str; 2] = ["/v1/events", "/v1/conversations/{id}/events"];
/// A replica that had no free permit for this time is not ready for more requests.
const OVERLOADED_AFTER: Duration = Duration::from_secs(5);

impl Limits {
    pub fn new(config: &Config) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(
                config.max_requests.min(Semaphore::MAX_PERMITS),
            )),
            openings: Arc::new(Semaphore::new(
                (config.max_requests / OPENINGS).clamp(1, Semaphore::MAX_PERMITS),
            )),
            full_since: Mutex::default(),
            permits_of_users: PerUser::default(),
            permits_per_user: (config.max_requests / SHARE).max(1),
            rates: RateLimit::per_minute(config.requests_per_minute),
            requests_per_minute: config.requests_per_minute,
            streams: PerUser::default(),
            streams_per_user: config.sse_per_user,
            calls: PerUser::default(),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
            large_bodies_of_users: PerUser::default(),
        }
    }

    /// Counts one request of a principal. Returns how many more are allowed now.
    pub fn count(&self, principal: &Principal) -> Result<u32, Problem> {
        self.take(&RateKey::User(principal.tenant, principal.user.clone()))
    }

    /// Counts one request of a caller without a credential.
    pub fn count_address(&self, address: Option<IpAddr>) -> Result<u32, Problem> {
        self.take(&RateKey::Address(address))
    }

    fn take(&self, who: &RateKey) -> Result<u32, Problem> {
        self.rates.count(who).map_err(|wait| {
            let detail = "too many requests in a minute; wait as long as Retry-After says";
            Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                ErrorCode::RateLimited,
                detail,
            )
            .retry_after(wait)
        })
    }

    /// Counts one more open stream of a user, until the returned value is dropped.
    pub fn open_stream(&self, principal: &Principal) -> Result<Stream, Problem> {
        let counted = self.streams.add(principal, self.streams_per_user);
        let counted = counted.map_err(|open| {
            let detail = format!(
                "{open} streams are open for this user, and no more are allowed; close one"
            );
            let problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                ErrorCode::TooManyStreams,
                detail,
            );
            problem.retry_after(Duration::from_secs(5))
        })?;
        metrics::gauge!("chatelaine_streams_open").increment(1.0);
        Ok(Stream { _counted: counted })
    }

    /// Counts one more call of a user that waits for a server, until the returned value is dropped. Such a call holds
    /// no permit.
    pub fn begin_call(&self, principal: &Principal) -> Result<WaitingCall, Problem> {
        let counted = self.calls.add(principal, self.permits_per_user);
        let counted = counted.map_err(|open| {
            let detail =
                format!("{open} calls of this user wait for their servers; wait for one to end");
            let problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                ErrorCode::TooManyAtOnce,
                detail,
            );
            problem.retry_after(Duration::from_secs(1))
        })?;
        Ok(WaitingCall { _counted: counted })
    }

    /// Whether no request got a permit for some seconds.
    pub fn is_overloaded(&self) -> bool {
        let full_since = *lock(&self.full_since);
        self.permits.available_permits() == 0
            && full_since.is_some_and(|since| since.elapsed() >= OVERLOADED_AFTER)
    }

    fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let mut full_since = lock(&self.full_since);
        if let Ok(permit) = permit {
            *full_since = None;
            return Ok(permit);
        }
        full_since.get_or_insert_with(Instant::now);
        Err(overloaded())
    }

    /// Waits for the turn of a stream to be opened.
    async fn acquire_opening(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let opening = Arc::clone(&self.openings).acquire_owned();
        let opening = tokio::time::timeout(OPENING_WAIT, opening).await;
        let opening = opening.map_err(|_| overloaded())?;
        Ok(opening.expect("the semaphore is never closed"))
    }

    fn acquire_share(&self, principal: &Principal) -> Result<UserSlot, Problem> {
        let share = self.permits_of_users.add(principal, self.permits_per_user);
        share.map_err(|open| {
            let detail = format!(
                "{open} requests of this user are being answered; wait for one of them to end"
            );
            let problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                ErrorCode::TooManyAtOnce,
                detail,
            );
            problem.retry_after(Duration::from_secs(1))
        })
    }
}

fn overloaded() -> Problem {
    let detail = "too many requests are being answered; try again";
    let problem = Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Overloaded,
        detail,
    );
    problem.retry_after(Duration::from_secs(1))
}

/// Counts for each user how many of one kind are in progress.
#[derive(Clone, Default)]
struct PerUser(Arc<Mutex<HashMap<(TenantId, UserId), usize>>>);

impl PerUser {
    /// Adds one. The error is the count, when it is at the maximum.
    fn add(&self, principal: &Principal, most: usize) -> Result<UserSlot, usize> {
        let user = (principal.tenant, principal.user.clone());
        let mut users = lock(&self.0);
        let count = users.entry(user.clone()).or_default();
        if *count >= most {
            return Err(*count);
        }
        *count += 1;
        drop(users);
        Ok(UserSlot {
            user,
            users: self.clone(),
        })
    }
}

/// One item in the count of a user. It is counted until it is dropped.
struct UserSlot {
    user: (TenantId, UserId),
    users: PerUser,
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        let mut users = lock(&self.users.0);
        if let Some(count) = users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.user);
            }
        }
    }
}

/// One call of a user that waits for a server.
pub(super) struct WaitingCall {
    _counted: UserSlot,
}

/// One open stream of a user.
pub(super) struct Stream {
    _counted: UserSlot,
}

impl Drop for Stream {
    fn drop(&mut self) {
        metrics::gauge!("chatelaine_streams_open").decrement(1.0);
    }
}

/// The permission to work on a request. Handlers that wait for long give it back earlier.
#[derive(Clone)]
pub(super) struct RequestPermit {
    limits: Arc<Limits>,
    state: Arc<Mutex<PermitState>>,
}

#[derive(Default)]
struct PermitState {
    permit: Option<OwnedSemaphorePermit>,
    /// The principal of the request, once it is known.
    principal: Option<Principal>,
    share: Option<UserSlot>,
    /// Requests that the principal may still send now.
    left: Option<u32>,
    large_body: Option<LargeBody>,
}

/// One of the large bodies that are held at once.
struct LargeBody {
    _share: Option<UserSlot>,
    _permit: OwnedSemaphorePermit,
}

impl RequestPermit {
    fn new(limits: &Arc<Limits>, permit: OwnedSemaphorePermit) -> Self {
        let state = PermitState {
            permit: Some(permit),
            ..PermitState::default()
        };
        Self {
            limits: Arc::clone(limits),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Counts the permit as one of the principal's share.
    pub fn count_for(&self, principal: &Principal) -> Result<(), Problem> {
        let mut state = lock(&self.state);
        state.principal = Some(principal.clone());
        state.share = Some(self.limits.acquire_share(principal)?);
        Ok(())
    }

    /// Sets how many requests the caller may still send now.
    pub fn set_left(&self, left: u32) {
        lock(&self.state).left = Some(left);
    }

    /// Writes the headers of `draft-ietf-httpapi-ratelimit-headers`.
    fn write_rate(&self, headers: &mut HeaderMap) {
        let most = self.limits.requests_per_minute;
        let Some(left) = lock(&self.state).left else {
            return;
        };
        // The seconds after which one more request is allowed.
        let next = 60_u32.div_ceil(most);
        for (name, value) in [
            ("ratelimit-policy", format!("\"requests\";q={most};w=60")),
            ("ratelimit", format!("\"requests\";r={left};t={next}")),
        ] {
            let value = HeaderValue::from_str(&value).expect("numbers are a header value");
            headers.insert(name, value);
        }
    }

    /// Whether the principal of this request is known.
    pub fn is_principal_known(&self) -> bool {
        lock(&self.state).principal.is_some()
    }

    /// Waits until one more large body may be held, and holds it until [`RequestPermit::release`].
    pub async fn hold_large_body(&self) -> Result<(), Problem> {
        let share = lock(&self.state).principal.as_ref().map(|principal| {
            let users = &self.limits.large_bodies_of_users;
            users.add(principal, LARGE_BODIES_PER_USER)
        });
        let share = share.transpose().map_err(|open| {
            let detail = format!("{open} large requests of this user arrive already; wait for one");
            let problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                ErrorCode::TooManyAtOnce,
                detail,
            );
            problem.retry_after(Duration::from_secs(1))
        })?;
        let permit = Arc::clone(&self.limits.large_bodies).acquire_owned();
        let permit = permit.await.expect("the semaphore is never closed");
        lock(&self.state).large_body = Some(LargeBody {
            _share: share,
            _permit: permit,
        });
        Ok(())
    }

    /// Gives the permit back before the request is answered, and lets another request in.
    pub fn release(&self) {
        let mut state = lock(&self.state);
        (state.permit, state.share, state.large_body) = (None, None, None);
    }

    /// Takes a permit again after [`RequestPermit::release`].
    pub fn reacquire(&self) -> Result<(), Problem> {
        let mut state = lock(&self.state);
        state.permit = Some(self.limits.acquire_permit()?);
        if let Some(principal) = &state.principal {
            state.share = Some(self.limits.acquire_share(principal)?);
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Middleware that gives a request its permit, or refuses it with 503 at once. A stream waits for its turn.
pub(super) async fn admit(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let is_stream = route.is_some_and(|route| STREAMS.contains(&route.as_str()));
    let taken = if is_stream {
        state.limits.acquire_opening().await
    } else {
        state.limits.acquire_permit()
    };
    let permit = match taken {
        Ok(permit) => RequestPermit::new(&state.limits, permit),
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(permit.clone());
    let mut response = next.run(request).await;
    permit.write_rate(response.headers_mut());
    permit.release();
    response
}
