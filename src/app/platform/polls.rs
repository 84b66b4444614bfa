//! Repeated work: polls for changes that no hint has announced, and the removal of old rows.

use std::{sync::Arc, time::Duration};

use tokio::time::{Interval, MissedTickBehavior, interval_at};

use crate::app::App;
use domain::error::Result;

/// How often a process polls for changes that no hint has announced.
pub const POLL: Duration = Duration::from_secs(1);
/// How often a process looks for tables that have grown.
pub const STATISTICS_INTERVAL: Duration = Duration::from_secs(5);

/// Ticks at once and then after each `period`, at the same moments as the other polls of the process: so they look at the
/// database together ([`store::Db::look`]). A tick that comes too late is left out.
pub fn ticks(app: &App, period: Duration) -> Interval {
    let mut ticks = interval_at(app.started_at, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Runs `work` at once and then after each `period`, until the process stops. When it fails, the log says `name`, and
/// the next round tries again.
pub async fn every(
    app: Arc<App>,
    period: Duration,
    name: &'static str,
    mut work: impl AsyncFnMut(&Arc<App>) -> Result<()>,
) {
    let mut ticks = ticks(&app, period);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.shutdown.cancelled() => return,
        }
        if let Err(error) = work(&app).await {
            let error = error.with_cause();
            tracing::warn!(error, "cannot {name}; trying again");
        }
    }
}
