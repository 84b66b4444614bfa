//! How much at once. Requests hold a place while they are worked on; one principal may make so many a
//! minute and hold so many streams. All of it is in memory and per process.
//!
//! A stream or a wait for a model gives its place back and counts as one of its user's streams instead,
//! so that people who read slowly cannot lock out those who ask briefly.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Door, problem::Problem};
use crate::domain::{
    config::Config,
    ids::{TenantId, UserId},
    principal::Principal,
};

pub(super) struct Limits {
    places: Arc<Semaphore>,
    rates: DefaultKeyedRateLimiter<Who>,
    clock: DefaultClock,
    /// Requests since buckets that are full again were last forgotten.
    counted: AtomicU32,
    streams: Arc<Mutex<HashMap<(TenantId, UserId), usize>>>,
    streams_per_user: usize,
}

/// Whose bucket a request is taken from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    User(TenantId, UserId),
    /// Somebody who has not said who they are.
    Address(Option<IpAddr>),
}

/// After so many requests, buckets that are full again are forgotten.
const FORGET_EVERY: u32 = 4096;

impl Limits {
    pub fn new(config: &Config) -> Self {
        let per_minute = NonZeroU32::new(config.requests_per_minute).unwrap_or(NonZeroU32::MIN);
        Self {
            places: Arc::new(Semaphore::new(
                config.max_requests.min(Semaphore::MAX_PERMITS),
            )),
            rates: RateLimiter::keyed(Quota::per_minute(per_minute)),
            clock: DefaultClock::default(),
            counted: AtomicU32::new(0),
            streams: Arc::default(),
            streams_per_user: config.sse_per_user,
        }
    }

    /// Counts one request of a principal.
    pub fn count(&self, principal: &Principal) -> Result<(), Problem> {
        self.take(&Who::User(principal.tenant, principal.user.clone()))
    }

    /// Counts one request of somebody unknown.
    pub fn count_unknown(&self, address: Option<IpAddr>) -> Result<(), Problem> {
        self.take(&Who::Address(address))
    }

    fn take(&self, who: &Who) -> Result<(), Problem> {
        if self.counted.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.rates.retain_recent();
            self.rates.shrink_to_fit();
        }
        self.rates.check_key(who).map_err(|until| {
            let wait = until.wait_time_from(self.clock.now());
            let detail = "too many requests in a minute; wait as long as Retry-After says";
            let wait = Duration::from_secs(wait.as_secs() + 1);
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail).retry_after(wait)
        })
    }

    /// Counts one more open stream of a user until the answer is dropped.
    pub fn open_stream(&self, principal: &Principal) -> Result<Stream, Problem> {
        let key = (principal.tenant, principal.user.clone());
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let open = streams.entry(key.clone()).or_default();
        if *open >= self.streams_per_user {
            let detail = format!(
                "{open} streams are open for this user, and no more are allowed; close one"
            );
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", detail);
            return Err(problem.retry_after(Duration::from_secs(5)));
        }
        *open += 1;
        metrics::gauge!("chatelaine_streams_open").increment(1.0);
        Ok(Stream {
            key,
            streams: Arc::clone(&self.streams),
        })
    }
}

/// One open stream of a user.
pub(super) struct Stream {
    key: (TenantId, UserId),
    streams: Arc<Mutex<HashMap<(TenantId, UserId), usize>>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        metrics::gauge!("chatelaine_streams_open").decrement(1.0);
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = streams.get_mut(&self.key) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.key);
            }
        }
    }
}

/// A request's place among those answered at once.
#[derive(Clone)]
pub(super) struct Place(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Place {
    /// Lets another request in, although this one is not answered yet.
    pub fn leave(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Middleware: a place, or 503 at once.
pub(super) async fn admit(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let Ok(permit) = Arc::clone(&door.limits.places).try_acquire_owned() else {
        let detail = "too many requests are being answered; try again";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail);
        return problem.retry_after(Duration::from_secs(1)).into_response();
    };
    let place = Place(Arc::new(Mutex::new(Some(permit))));
    request.extensions_mut().insert(place.clone());
    let response = next.run(request).await;
    place.leave();
    response
}
