//! A circuit breaker per tenant and endpoint. After several failures in a row no request of a tenant is sent to an
//! endpoint for a while, so that users do not wait for a dead model. After that, one request at a time probes whether
//! the endpoint is back. What fails for one tenant, with its texts and its tools, costs no other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::domain::clock;

/// Circuits by tenant and endpoint. Endpoints are named by operators, and a circuit without a failure is not kept, so
/// there are few.
#[derive(Default)]
pub(super) struct Breakers(Mutex<HashMap<String, Circuit>>);

#[derive(Default)]
struct Circuit {
    failures: u32,
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

    /// Records that there was no complete answer. The `limit`th failure in a row opens the circuit for
    /// `pause`.
    pub(super) fn fail(self, limit: u32, pause: Duration) {
        let mut circuits = self.breakers.lock();
        let circuit = circuits.entry(self.endpoint.clone()).or_default();
        circuit.failures = circuit.failures.saturating_add(1);
        if circuit.failures >= limit {
            circuit.open_until = Some(clock::instant() + pause);
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
