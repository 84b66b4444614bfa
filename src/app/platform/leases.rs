//! Leases: the owner of a piece of work prolongs the lease in its row while the work goes on.

use std::time::Duration;

use tokio::time::Instant;

use crate::app::App;
use domain::error::{Error, Result};

/// How long the work that holds a lease may go on after the process was asked to stop: a called tool may still answer.
const GRACE: Duration = Duration::from_secs(8);
/// The longest time between two prolongations.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Why a lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// Another owner has the lease, or may have it by now.
    Lost,
    /// The process stops and has waited long enough.
    Stopped,
}

/// Prolongs a lease until it ends. `prolong` returns `Conflict` when another owner has the lease. A failed write is
/// tried again while the lease lasts.
pub async fn renew_until_lost<F>(app: &App, what: &str, mut prolong: impl FnMut() -> F) -> LeaseEnd
where
    F: Future<Output = Result<()>>,
{
    let lease = app.config.run_lease;
    let (mut prolonged_at, mut stop_at) = (Instant::now(), None);
    loop {
        tokio::select! {
            () = tokio::time::sleep((lease / 3).min(HEARTBEAT_INTERVAL)) => {}
            () = app.shutdown.cancelled(), if stop_at.is_none() => {
                stop_at = Some(Instant::now() + GRACE);
            }
        }
        if stop_at.is_some_and(|end| Instant::now() >= end) {
            return LeaseEnd::Stopped;
        }
        let now = Instant::now();
        match prolong().await {
            Ok(()) => prolonged_at = now,
            Err(Error::Conflict(..)) => return LeaseEnd::Lost,
            Err(_) if prolonged_at.elapsed() >= lease => return LeaseEnd::Lost,
            Err(error) => {
                tracing::warn!(
                    what,
                    error = error.with_cause(),
                    "a lease could not be prolonged; trying again"
                );
            }
        }
    }
}
