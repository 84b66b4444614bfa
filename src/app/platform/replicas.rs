//! The list of living replicas. Each writes its state every few seconds and removes itself when it stops.

use std::{sync::Arc, time::Duration};

use time::OffsetDateTime;

use super::health;
use crate::app::App;
use domain::{error::Result, principal::Admin, replica::Replica};

/// How often a replica writes its state.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Writes the state of this replica.
pub async fn announce(app: &Arc<App>, started_at: OffsetDateTime) -> Result<()> {
    let readiness = health::check_readiness(app).await;
    let mut tx = app.db.system().await?;
    let version = env!("CARGO_PKG_VERSION");
    store::replicas::put(&mut tx, app.replica, version, started_at, &readiness).await?;
    tx.commit().await
}

/// Takes this replica off the list.
pub async fn leave(app: &App) {
    let left = async {
        let mut tx = app.db.system().await?;
        store::replicas::delete(&mut tx, app.replica).await?;
        tx.commit().await
    };
    let left: Result<()> = left.await;
    if let Err(error) = left {
        tracing::debug!(%error, "this replica stays on the list for an hour");
    }
}

/// The replicas of the installation, for an admin of any tenant.
pub async fn list(app: &App, _: &Admin) -> Result<Vec<Replica>> {
    store::replicas::list(&mut app.db.system().await?).await
}
