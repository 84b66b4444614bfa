//! Looking up in the database what a credential names, when it was not seen before. Anybody can invent credentials, so
//! an address may cause only so many look-ups a minute, and only a few are made at once; credentials that were good
//! before are not counted.

use std::{net::IpAddr, time::Duration};

use moka::future::Cache;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    app::platform::rate_limit::RateLimit,
    domain::error::{Error, Result},
};

/// Look-ups that one address may cause in a minute.
const PER_MINUTE: u32 = 600;
/// Look-ups at once; a fraction of the connections to the database.
const AT_ONCE: usize = 4;
/// How long a look-up waits for others to end.
const TURN: Duration = Duration::from_secs(3);
/// So long a credential is known to have been good.
const GOOD: Duration = Duration::from_secs(60 * 60);
/// So long a key is known to be unknown. Keys are random: one that is made later was not tried before.
const UNKNOWN: Duration = Duration::from_secs(30);

pub(super) struct LookUps {
    /// SHA-256 of the keys, and of the names of the issuers, that were good.
    good: Cache<[u8; 32], ()>,
    unknown: Cache<[u8; 32], ()>,
    rates: RateLimit<Option<IpAddr>>,
    turns: Semaphore,
}

impl LookUps {
    pub fn new() -> Self {
        let cache = |life| Cache::builder().max_capacity(20_000).time_to_live(life);
        Self {
            good: cache(GOOD).build(),
            unknown: cache(UNKNOWN).build(),
            rates: RateLimit::per_minute(PER_MINUTE),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// Lets a look-up begin; while it is made, the permit is kept.
    pub async fn begin(
        &self,
        digest: [u8; 32],
        address: Option<IpAddr>,
    ) -> Result<Option<SemaphorePermit<'_>>> {
        if self.good.contains_key(&digest) {
            return Ok(None);
        }
        self.rates.count(&address).map_err(|retry_after| Error::Limited {
            reason: "too many unknown credentials came from this address; wait as long as Retry-After says".to_owned(),
            retry_after,
        })?;
        let turn = tokio::time::timeout(TURN, self.turns.acquire()).await;
        let turn = turn.map_err(|_| Error::Busy {
            reason: "too many credentials are being checked; try again".to_owned(),
            retry_after: TURN,
        })?;
        Ok(turn.ok())
    }

    pub async fn was_good(&self, digest: [u8; 32]) {
        self.good.insert(digest, ()).await;
    }

    pub async fn was_unknown(&self, digest: [u8; 32]) {
        self.unknown.insert(digest, ()).await;
    }

    pub fn is_unknown(&self, digest: &[u8; 32]) -> bool {
        self.unknown.contains_key(digest)
    }
}
