//! A circuit breaker per tenant and endpoint. After several failures in a row no request of a tenant is sent to an
//! endpoint for a while, so that users do not wait for a dead model. After that, one request at a time probes whether
//! the endpoint is back. What fails for one tenant, with its texts and its tools, costs no other.
//!
//! Only what says nothing of the question counts. An endpoint that answers lives, also when it answers with an error. A
//! connection that cannot be made counts each time. A silence counts once for each user until the endpoint answers
//! somebody, because a single question may be the reason: one user's questions never stop those of others.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{Limits, error::Outage};
use domain::{clock, ids::UserId};

/// Circuits by tenant and endpoint. Endpoints are named by operators, and a circuit without a failure is not kept, so
/// there are few.
#[derive(Default)]
pub(super) struct Breakers(Mutex<HashMap<String, Circuit>>);

#[derive(Default)]
struct Circuit {
    failures: u32,
    /// Whose requests got no byte of an answer.
    silent_to: HashSet<Option<UserId>>,
    open_until: Option<Instant>,
    probing: bool,
}

/// The right to send one request. Its holder reports success or failure, or drops it when the request was
/// given up.
pub(super) struct Permit {
    breakers: Arc<Breakers>,
    endpoint: String,
    probe: bool,
}

impl Breakers {
    /// `Err` holds the time for which no request may be sent to the endpoint.
    pub(super) fn try_acquire(self: &Arc<Self>, endpoint: &str) -> Result<Permit, Duration> {
        let mut circuits = self.lock();
        let circuit = circuits.entry(endpoint.to_owned()).or_default();
        let mut probe = false;
        if let Some(until) = circuit.open_until {
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

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Circuit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Records that the endpoint answered, also with an error.
    pub(super) fn succeed(self) {
        self.breakers.lock().remove(&self.endpoint);
    }

    /// Records that nothing came from the endpoint for a user. Several failures in a row open the circuit.
    pub(super) fn fail(self, outage: Outage, user: Option<&UserId>, limits: Limits) {
        let mut circuits = self.breakers.lock();
        let circuit = circuits.entry(self.endpoint.clone()).or_default();
        let most = limits.breaker_failures;
        // The set is no larger than the limit.
        let counts = match outage {
            Outage::Unreachable => true,
            Outage::Silent => circuit.failures < most && circuit.silent_to.insert(user.cloned()),
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
