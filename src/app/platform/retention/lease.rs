//! The lease of the job that purges, so that one process does it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{JOB, LEASE};
use crate::{
    domain::{error::Result, ids::ReplicaId},
    store::{self, Db},
};

/// The right to purge, until another one has it.
pub(super) struct Lease<'a> {
    pub(super) db: &'a Db,
    owner: ReplicaId,
    pub(super) stop: &'a CancellationToken,
}

impl<'a> Lease<'a> {
    pub(super) async fn claim(
        db: &'a Db,
        owner: ReplicaId,
        stop: &'a CancellationToken,
        period: Duration,
    ) -> Result<Option<Self>> {
        let mut tx = db.system().await?;
        let claimed = store::jobs::claim(&mut tx, JOB, owner, LEASE, period).await?;
        tx.commit().await?;
        Ok(claimed.then_some(Self { db, owner, stop }))
    }

    /// Whether another batch may begin.
    pub(super) async fn prolong(&self) -> Result<bool> {
        if self.stop.is_cancelled() {
            return Ok(false);
        }
        let mut tx = self.db.system().await?;
        let held = store::jobs::prolong(&mut tx, JOB, self.owner, LEASE).await?;
        tx.commit().await?;
        Ok(held)
    }

    pub(super) async fn release(self, done: bool) -> Result<()> {
        let mut tx = self.db.system().await?;
        if done {
            store::jobs::finish(&mut tx, JOB, self.owner).await?;
        } else {
            store::jobs::release(&mut tx, JOB, self.owner).await?;
        }
        tx.commit().await
    }
}
