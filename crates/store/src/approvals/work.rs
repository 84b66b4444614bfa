//! Which replica executes which approved request, and which requests are overdue.

use std::time::Duration;

use super::rows;
use crate::Tx;
use domain::{
    approval::{Approval, State},
    error::Result,
    ids::{ApiKeyId, ApprovalId, ReplicaId, RunId, TenantId, UserId},
    session::SessionEnd,
};

/// Requests that need work: overdue, taken back, approved and not claimed, or executing with a lease that has
/// ended. Needs the system role; reads only their tenants and ids.
pub async fn due(tx: &mut Tx, limit: i64) -> Result<Vec<(TenantId, ApprovalId, State)>> {
    let rows = sqlx::query!(
        r#"(select tenant_id as "tenant_id!: TenantId", id as "id!: ApprovalId", state as "state!: State" from approvals
            where state = 'pending' and expires_at <= statement_timestamp() order by expires_at limit $1)
           union all
           (select tenant_id, id, state from approvals
            where state in ('approved', 'executing') and lease_until < statement_timestamp()
            order by lease_until limit $1)
           union all
           (select tenant_id, id, state from approvals where state = 'approved' and lease_until is null limit $1)
           union all
           (select tenant_id, id, state from approvals where state = 'pending' and withdrawn order by id limit $1)"#,
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.tenant_id, row.id, row.state))
        .collect())
}

/// Claims an approved request for execution, if no replica has it. The state stays `approved`: nothing has
/// been sent.
pub async fn claim(
    tx: &mut Tx,
    id: ApprovalId,
    replica: ReplicaId,
    lease: Duration,
) -> Result<Option<Approval>> {
    let row = rows!(
        "update approvals a
         set lease_owner = $2, lease_until = statement_timestamp() + make_interval(secs => $3), fence = fence + 1
         where a.tenant_id = $4 and id = $1 and state = 'approved' and lapses_at > statement_timestamp()
           and (lease_until is null or lease_until < statement_timestamp())
         returning",
        "",
        id.0,
        replica.0,
        lease.as_secs_f64(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// Prolongs the lease; `false` when it was lost.
pub async fn heartbeat(tx: &mut Tx, approval: &Approval, lease: Duration) -> Result<bool> {
    let done = sqlx::query!(
        "update approvals set lease_until = statement_timestamp() + make_interval(secs => $3)
         where tenant_id = $4 and id = $1 and fence = $2 and state in ('approved', 'executing')",
        approval.id.0,
        approval.fence,
        lease.as_secs_f64(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Releases an approved request for another replica, after a pause.
pub async fn release(tx: &mut Tx, approval: &Approval, pause: Duration) -> Result<()> {
    sqlx::query!(
        "update approvals set lease_until = statement_timestamp() + make_interval(secs => $3)
         where tenant_id = $4 and id = $1 and fence = $2 and state = 'approved'",
        approval.id.0,
        approval.fence,
        pause.as_secs_f64(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Marks the requests of these runs that are not being sent yet as taken back.
pub async fn withdraw(tx: &mut Tx, runs: &[RunId], by: &UserId) -> Result<Vec<ApprovalId>> {
    let runs: Vec<_> = runs.iter().map(|run| run.0).collect();
    let ids = sqlx::query_scalar!(
        r#"update approvals set withdrawn_by = $2, changed_at = statement_timestamp()
         where tenant_id = $3 and run_id = any($1) and state in ('pending', 'approved')
           and withdrawn_by is null returning id as "id: ApprovalId""#,
        &runs,
        by.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Marks what a user has asked for, and what is not being sent yet, as taken back because they were signed out or blocked.
pub async fn withdraw_of_user(
    tx: &mut Tx,
    user: &UserId,
    by: &UserId,
    cause: SessionEnd,
) -> Result<Vec<ApprovalId>> {
    let ids = sqlx::query_scalar!(
        r#"update approvals set withdrawn_by = $2, withdrawn_cause = $4, changed_at = statement_timestamp()
         where tenant_id = $3 and requester = $1 and state in ('pending', 'approved')
           and withdrawn_by is null returning id as "id: ApprovalId""#,
        user.as_str(),
        by.as_str(),
        tx.tenant()?.0,
        cause.into_str(),
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// The same for what was asked for with an API key that was revoked.
pub async fn withdraw_of_key(tx: &mut Tx, key: ApiKeyId, by: &UserId) -> Result<Vec<ApprovalId>> {
    let ids = sqlx::query_scalar!(
        r#"update approvals set withdrawn_by = $2, withdrawn_cause = 'key_revoked', changed_at = statement_timestamp()
         where tenant_id = $3 and principal->>'key' = $1 and state in ('pending', 'approved')
           and withdrawn_by is null returning id as "id: ApprovalId""#,
        key.to_string(),
        by.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}
