//! A limit of events per minute for each key, in memory.

use std::{
    hash::Hash,
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};

pub struct RateLimit<K: Hash + Eq + Clone> {
    limiter: DefaultKeyedRateLimiter<K>,
    clock: DefaultClock,
    /// Events since keys that have used nothing lately were last forgotten.
    counted: AtomicU32,
}

/// After so many events, keys that have used nothing lately are forgotten.
const FORGET_EVERY: u32 = 4096;

impl<K: Hash + Eq + Clone> RateLimit<K> {
    /// `per_minute` events at once at most, and as many in each minute.
    pub fn per_minute(per_minute: u32) -> Self {
        let per_minute = NonZeroU32::new(per_minute).unwrap_or(NonZeroU32::MIN);
        Self {
            limiter: RateLimiter::keyed(Quota::per_minute(per_minute)),
            clock: DefaultClock::default(),
            counted: AtomicU32::new(0),
        }
    }

    /// Counts one event, or says how long to wait until one more is allowed.
    pub fn count(&self, key: &K) -> Result<(), Duration> {
        if self.counted.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.limiter.retain_recent();
            self.limiter.shrink_to_fit();
        }
        self.limiter.check_key(key).map_err(|until| {
            let wait = until.wait_time_from(self.clock.now());
            Duration::from_secs(wait.as_secs() + 1)
        })
    }
}
