//! Database look-ups for credentials that are not cached. A stranger can invent credentials, so each
//! address may cause only a limited number of look-ups a minute, and only a few run at once. Credentials
//! that were good before are not counted.

use std::{net::IpAddr, time::Duration};

use moka::future::Cache;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::app::platform::rate_limit::RateLimit;
use domain::error::{Error, ErrorCode, Result};

/// The most look-ups that one address may cause per minute.
const PER_MINUTE: u32 = 600;
/// The most look-ups at once: a fraction of the connections to the database.
const MAX_PARALLEL_LOOKUPS: usize = 4;
/// How long a look-up waits for others to end.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// How long a credential counts as good.
const GOOD: Duration = Duration::from_secs(60 * 60);
/// How long a key counts as unknown. Keys are random, so nobody has tried a key before it was made.
const UNKNOWN: Duration = Duration::from_secs(30);

pub(super) struct LookupLimiter {
    /// SHA-256 of the keys, and of the names of the issuers, that were good.
    good: Cache<[u8; 32], ()>,
    unknown: Cache<[u8; 32], ()>,
    rates: RateLimit<Option<IpAddr>>,
    permits: Semaphore,
}

impl LookupLimiter {
    pub fn new() -> Self {
        let cache = |life| Cache::builder().max_capacity(20_000).time_to_live(life);
        Self {
            good: cache(GOOD).build(),
            unknown: cache(UNKNOWN).build(),
            rates: RateLimit::per_minute(PER_MINUTE),
            permits: Semaphore::new(MAX_PARALLEL_LOOKUPS),
        }
    }

    /// Waits until a look-up may begin. Keep the permit until the look-up has ended.
    pub async fn begin(
        &self,
        digest: [u8; 32],
        address: Option<IpAddr>,
    ) -> Result<Option<SemaphorePermit<'_>>> {
        if self.good.contains_key(&digest) {
            return Ok(None);
        }
        self.rates.count(&address).map_err(|retry_after| Error::Limited {
            code: ErrorCode::RateLimited,
            reason: "too many unknown credentials came from this address; wait as long as Retry-After says".to_owned(),
            retry_after,
        })?;
        let permit = tokio::time::timeout(MAX_WAIT, self.permits.acquire()).await;
        let permit = permit.map_err(|_| Error::Busy {
            reason: "too many credentials are being checked; try again".to_owned(),
            retry_after: MAX_WAIT,
        })?;
        // Another request may have shown in the meantime that the credential is good.
        Ok(permit.ok().filter(|_| !self.good.contains_key(&digest)))
    }

    pub async fn note_good(&self, digest: [u8; 32]) {
        self.good.insert(digest, ()).await;
    }

    pub async fn note_unknown(&self, digest: [u8; 32]) {
        self.unknown.insert(digest, ()).await;
    }

    pub fn is_unknown(&self, digest: &[u8; 32]) -> bool {
        self.unknown.contains_key(digest)
    }
}
