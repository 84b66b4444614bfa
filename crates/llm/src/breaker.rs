//! A circuit breaker for each tenant and endpoint. After several failures in a row, no request of the tenant is sent to the
//! endpoint for a while, so that users do not wait for a dead model. After that, one request at a time probes whether the
//! endpoint is back. The failures of one tenant do not affect the others.
//!
//! An answer of any kind counts as success, even an error. Each failed connection counts as a failure. A request without
//! an answer counts once for each user until the endpoint answers somebody: one user's question may be the reason, so it
//! must not stop the questions of others.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{Limits, error::Outage};
use domain::{clock, ids::UserId};

/// Circuits by tenant and endpoint. Only a failure adds a circuit and a success removes it, so there are few.
#[derive(Default)]
pub(super) struct Breakers(Mutex<HashMap<String, Circuit>>);

#[derive(Default)]
struct Circuit {
    failures: u32,
    /// The users whose requests got no byte of an answer.
    unanswered_users: HashSet<Option<UserId>>,
    open_until: Option<Instant>,
    probing: bool,
}

/// Permission to send one request. Its holder reports success or failure, or drops it when the request was cancelled.
pub(super) struct Permit {
    breakers: Arc<Breakers>,
    endpoint: String,
    probe: bool,
}

impl Breakers {
    /// Permission to send a request, or the time for which no request may be sent to the endpoint.
    pub(super) fn try_acquire(self: &Arc<Self>, endpoint: &str) -> Result<Permit, Duration> {
        let mut circuits = self.lock();
        let mut probe = false;
        if let Some(circuit) = circuits.get_mut(endpoint)
            && let Some(until) = circuit.open_until
        {
            let left = until.saturating_duration_since(clock::instant());
            if !left.is_zero() || circuit.probing {
                return Err(left.max(Duration::from_secs(1)));
            }
            circuit.probing = true;
            probe = true;
        }
        Ok(Permit {
            breakers: Arc::clone(self),
            endpoint: endpoint.to_owned(),
            probe,
        })
    }

    /// Endpoints that failed several times in a row and have not answered since.
    pub(super) fn count_open(&self) -> usize {
        let circuits = self.lock();
        circuits
            .values()
            .filter(|circuit| circuit.open_until.is_some())
            .count()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Circuit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Records that the endpoint answered, even if with an error.
    pub(super) fn succeed(self) {
        self.breakers.lock().remove(&self.endpoint);
    }

    /// Records that a user's request got no answer. Several failures in a row open the circuit.
    pub(super) fn fail(self, outage: Outage, user: Option<&UserId>, limits: Limits) {
        let mut circuits = self.breakers.lock();
        let circuit = circuits.entry(self.endpoint.clone()).or_default();
        let most = limits.breaker_failures;
        // Checking the limit first bounds the set.
        let counts = match outage {
            Outage::Unreachable => true,
            Outage::Silent => {
                circuit.failures < most && circuit.unanswered_users.insert(user.cloned())
            }
        };
        circuit.failures = circuit.failures.saturating_add(counts.into());
        if circuit.failures >= most {
            circuit.open_until = Some(clock::instant() + limits.breaker_pause);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.probe
            && let Some(circuit) = self.breakers.lock().get_mut(&self.endpoint)
        {
            circuit.probing = false;
        }
    }
}
