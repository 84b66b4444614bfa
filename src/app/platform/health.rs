//! Whether this replica can do its work.

use std::{sync::Arc, time::Duration};

use crate::{app::App, domain::replica::Readiness};

/// How often the clock of this machine is compared with the database's.
const COMPARISON: Duration = Duration::from_secs(600);
/// Clocks that differ by more are worth a warning.
const MAX_DIFFERENCE: Duration = Duration::from_secs(5);

/// Asks the database and counts the servers.
pub async fn readiness(app: &App) -> Readiness {
    let database = app.db.is_writable().await;
    let (keys, started) = (app.keys.fit(), app.started.is_cancelled());
    let accepting = !app.draining.is_cancelled() && !app.shutdown.is_cancelled();
    let (servers_ready, servers_down) = app.connections.count();
    let personal_connections = app.mcp.personal_keys().len();
    Readiness {
        ready: database && keys && started && accepting,
        database,
        keys,
        started,
        accepting,
        servers_ready,
        servers_down,
        personal_connections,
    }
}

/// Warns while the clock of this machine is wrong. Decisions about sign-outs and expiries go by the database's clock, but
/// tokens are checked by this one.
pub async fn compare_clocks(app: Arc<App>) {
    loop {
        if let Some(difference) = difference(&app).await
            && difference.unsigned_abs() > MAX_DIFFERENCE
        {
            tracing::warn!(
                seconds = difference.whole_seconds(),
                "the clock of this machine is ahead of the database's by so much (behind, if negative); set it right, or \
                 tokens are refused that are good, and accepted that are not"
            );
        }
        tokio::select! {
            () = tokio::time::sleep(COMPARISON) => {}
            () = app.shutdown.cancelled() => return,
        }
    }
}

async fn difference(app: &App) -> Option<time::Duration> {
    let mut tx = app.db.system().await.ok()?;
    let there = tx.now().await.ok()?;
    Some(app.clock.now() - there)
}
