//! A limit of events per minute for each key, in memory.

use std::{
    hash::Hash,
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::StateInformationMiddleware,
    state::keyed::DefaultKeyedStateStore,
};

type Limiter<K> =
    RateLimiter<K, DefaultKeyedStateStore<K>, DefaultClock, StateInformationMiddleware>;

pub struct RateLimit<K: Hash + Eq + Clone> {
    limiter: Limiter<K>,
    clock: DefaultClock,
    /// The number of events since idle keys were last forgotten.
    counted: AtomicU32,
}

/// Idle keys are forgotten after this many events.
const FORGET_EVERY: u32 = 4096;

impl<K: Hash + Eq + Clone> RateLimit<K> {
    /// Allows `per_minute` events per minute, which may also come at once.
    pub fn per_minute(per_minute: u32) -> Self {
        let per_minute = NonZeroU32::new(per_minute).unwrap_or(NonZeroU32::MIN);
        Self {
            limiter: RateLimiter::keyed(Quota::per_minute(per_minute))
                .with_middleware::<StateInformationMiddleware>(),
            clock: DefaultClock::default(),
            counted: AtomicU32::new(0),
        }
    }

    /// Counts one event. Returns how many more are allowed now, or how long to wait for the next one.
    pub fn count(&self, key: &K) -> Result<u32, Duration> {
        if self.counted.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.limiter.retain_recent();
            self.limiter.shrink_to_fit();
        }
        let allowed = self.limiter.check_key(key);
        allowed
            .map(|left| left.remaining_burst_capacity())
            .map_err(|until| {
                let wait = until.wait_time_from(self.clock.now());
                Duration::from_secs(wait.as_secs() + 1)
            })
    }
}
