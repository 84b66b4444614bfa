//! Rows of jobs that only one replica does at a time. Every function needs the system role.

use std::time::Duration;

use super::Tx;
use domain::{error::Result, ids::ReplicaId};

/// Claims a job if no replica has claimed it and it was last done at least `period` ago. `false` if it is not due.
pub async fn claim(
    tx: &mut Tx,
    name: &str,
    owner: ReplicaId,
    lease: Duration,
    period: Duration,
) -> Result<bool> {
    let claimed = sqlx::query!(
        "insert into jobs (name, lease_owner, lease_until)
         values ($1, $2, statement_timestamp() + make_interval(secs => $3))
         on conflict (name) do update
         set lease_owner = excluded.lease_owner, lease_until = excluded.lease_until
         where (jobs.lease_until is null or jobs.lease_until < statement_timestamp())
           and (jobs.done_at is null or jobs.done_at <= statement_timestamp() - make_interval(secs => $4))",
        name,
        owner.0,
        lease.as_secs_f64(),
        period.as_secs_f64(),
    )
    .execute(tx.conn())
    .await?;
    Ok(claimed.rows_affected() == 1)
}

/// Prolongs the lease. `false` if it was lost.
pub async fn prolong(tx: &mut Tx, name: &str, owner: ReplicaId, lease: Duration) -> Result<bool> {
    let held = sqlx::query!(
        "update jobs set lease_until = statement_timestamp() + make_interval(secs => $3)
         where name = $1 and lease_owner = $2 and lease_until >= statement_timestamp()",
        name,
        owner.0,
        lease.as_secs_f64(),
    )
    .execute(tx.conn())
    .await?;
    Ok(held.rows_affected() == 1)
}

/// Ends the lease of a job that is done. It is due again after its period.
pub async fn finish(tx: &mut Tx, name: &str, owner: ReplicaId) -> Result<()> {
    sqlx::query!(
        "update jobs set lease_owner = null, lease_until = null, done_at = statement_timestamp()
         where name = $1 and lease_owner = $2",
        name,
        owner.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Ends the lease of a job that is not done. It is due at once.
pub async fn release(tx: &mut Tx, name: &str, owner: ReplicaId) -> Result<()> {
    sqlx::query!(
        "update jobs set lease_owner = null, lease_until = null where name = $1 and lease_owner = $2",
        name,
        owner.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
