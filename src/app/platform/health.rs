//! Whether this replica can do its work.

use std::{sync::Arc, time::Duration};

use crate::app::App;
use domain::{clock, replica::Readiness};

/// How often the clock of this machine is compared with the database's.
const COMPARISON: Duration = Duration::from_secs(10);
/// A correction that changes by more than this causes a warning.
const MAX_DIFFERENCE: Duration = Duration::from_secs(5);

/// Says whether this replica is ready: asks the database, and counts the servers. Answers within a second, since whoever
/// asks waits hardly longer.
pub async fn check_readiness(app: &App) -> Readiness {
    let database = app.db.is_writable().await;
    let (keys, started) = (app.keys.is_complete(), app.started.is_cancelled());
    let accepting = !app.draining.is_cancelled() && !app.shutdown.is_cancelled();
    let (servers_ready, servers_down) = app.connections.count();
    let unreadable_tenants = app.keys.unreadable_tenants();
    let personal_connections = app.mcp.personal_connections().len();
    Readiness {
        ready: database && keys && started && accepting,
        database,
        keys,
        started,
        accepting,
        servers_ready,
        servers_down,
        personal_connections,
        unreadable_tenants,
        start: None,
    }
}

/// Uses the database's time while the clock of this machine is wrong. Otherwise this process would refuse valid
/// tokens, accept expired ones, and misjudge when the sign-ins of users end.
pub async fn follow_clock(app: Arc<App>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(COMPARISON) => {}
            () = app.shutdown.cancelled() => return,
        }
        compare_clocks(&app).await;
    }
}

/// Compares this machine's clock with the database's once, and corrects it.
pub async fn compare_clocks(app: &App) {
    let Ok(mut tx) = app.db.system().await else {
        return;
    };
    let before = clock::machine_time();
    let Ok(there) = tx.now().await else { return };
    let Some(by) = clock::correction(before, there, clock::machine_time()) else {
        return;
    };
    if (by - clock::correct(by)).unsigned_abs() > MAX_DIFFERENCE {
        tracing::warn!(
            seconds = by.whole_seconds(),
            "the clock of this machine is behind the database's by so much (ahead, if negative); the database's time is \
             used until the clock is right"
        );
    }
}
