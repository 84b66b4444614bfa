//! Leaves an endpoint alone for a while after it failed several times in a row, so that a dead model costs
//! its users no waiting. One request at a time then finds out whether it is back.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::domain::clock;

/// Circuits by endpoint. Endpoints are named by operators, so there are few.
#[derive(Default)]
pub(super) struct Breakers(Mutex<HashMap<String, Circuit>>);

#[derive(Default)]
struct Circuit {
    failures: u32,
    open_until: Option<Instant>,
    probing: bool,
}

/// The right to send one request; says how it went, or nothing when it was given up.
pub(super) struct Permit {
    breakers: Arc<Breakers>,
    endpoint: String,
    probe: bool,
}

impl Breakers {
    /// `Err` says how long the endpoint is still left alone.
    pub(super) fn admit(self: &Arc<Self>, endpoint: &str) -> Result<Permit, Duration> {
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
    /// The endpoint answered, whatever it said.
    pub(super) fn succeed(self) {
        if let Some(circuit) = self.breakers.lock().get_mut(&self.endpoint) {
            *circuit = Circuit::default();
        }
    }

    /// It did not answer, or not to the end. The `limit`th time in a row opens the circuit for `pause`.
    pub(super) fn fail(self, limit: u32, pause: Duration) {
        if let Some(circuit) = self.breakers.lock().get_mut(&self.endpoint) {
            circuit.failures = circuit.failures.saturating_add(1);
            if circuit.failures >= limit {
                circuit.open_until = Some(clock::instant() + pause);
            }
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
