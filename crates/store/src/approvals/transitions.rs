//! The transitions of requests, each with the old state as its guard, and the leases of the replicas that execute
//! approved calls.

use std::time::Duration;

use super::rows;
use crate::Tx;
use domain::{
    approval::{Approval, State},
    error::{Error, Result},
    ids::{ApiKeyId, ApprovalId, ReplicaId, RunId, TenantId, UserId},
    session::SessionEnd,
};

/// A condition of a transition, beside the state of the row.
#[derive(Clone, Copy, Debug)]
pub enum TransitionGuard {
    /// The caller has locked the row and checked it.
    Locked,
    /// The request has expired.
    Overdue,
    /// The time to begin the call has passed, and no replica has claimed the call.
    Stale,
    /// The replica that executes the call has not renewed its lease in time.
    Lost,
    /// The worker with this fence makes the transition.
    Held(i64),
}

impl TransitionGuard {
    /// The word for it in the statement, and the fence.
    fn columns(self) -> (&'static str, i64) {
        match self {
            Self::Locked => ("locked", 0),
            Self::Overdue => ("overdue", 0),
            Self::Stale => ("stale", 0),
            Self::Lost => ("lost", 0),
            Self::Held(fence) => ("held", fence),
        }
    }
}

/// A transition and its values.
pub struct Transition<'a> {
    pub from: State,
    pub to: State,
    pub when: TransitionGuard,
    pub reason: Option<&'a str>,
    /// The person who makes the transition, with their name.
    pub by: Option<(&'a UserId, &'a str)>,
    /// The time within which an approved call must begin.
    pub window: Duration,
}

/// Makes a transition. `None` if the row is not in the state `from`, or the condition is not met. A withdrawn request
/// is never executed.
pub async fn change(
    tx: &mut Tx,
    id: ApprovalId,
    change: &Transition<'_>,
) -> Result<Option<Approval>> {
    let Transition {
        from,
        to,
        when,
        reason,
        by,
        window,
    } = change;
    if !from.can_become(*to) {
        return Err(Error::Internal(anyhow::anyhow!(
            "an approval never becomes {to:?} when it is {from:?}"
        )));
    }
    let (when, fence) = when.columns();
    let row = rows!(
        "update approvals a
         set state = $3, reason = coalesce($4, reason), decided_by = coalesce($5, decided_by),
             by_name = coalesce($10, by_name),
             decided_at = case when $3 in ('approved', 'rejected', 'cancelled') then clock.at else decided_at end,
             lapses_at = case when $3 = 'approved' then clock.at + make_interval(secs => $8) else lapses_at end,
             lease_until = case when $3 = 'executing' then lease_until end,
             lease_owner = case when $3 = 'executing' then lease_owner end,
             finished_at = case when $3 not in ('approved', 'executing') then clock.at end,
             changed_at = clock.at
         from (select statement_timestamp() as at) clock
         where a.tenant_id = $9 and id = $1 and state = $2
           and ($3 <> 'executing' or not withdrawn)
           and case
                 when $6 = 'overdue' then expires_at <= clock.at
                 when $6 = 'stale' then lapses_at <= clock.at and (lease_until is null or lease_until < clock.at)
                 when $6 = 'lost' then lease_until < clock.at
                 when $6 = 'held' then fence = $7
                 else true
               end
         returning",
        "",
        id.0,
        from.into_str(),
        to.into_str(),
        *reason,
        by.map(|(user, _)| user.as_str()),
        when,
        fence,
        window.as_secs_f64(),
        tx.tenant()?.0,
        by.map(|(_, name)| name),
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// The requests that need work: overdue or withdrawn ones, and approved ones without a live lease. Needs the system
/// role; reads only tenants, ids and states.
pub async fn list_due(tx: &mut Tx, limit: i64) -> Result<Vec<(TenantId, ApprovalId, State)>> {
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

/// Claims an approved request for execution. `None` if another replica has claimed it. The state stays `approved`,
/// because nothing has been sent yet.
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

/// Prolongs the lease. `false` if it was lost.
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

/// Withdraws the requests of these runs whose call is not sent yet.
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

/// Withdraws the requests of a user whose call is not sent yet, because the user was signed out or blocked.
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

/// Withdraws all requests whose call is not sent yet, because the database was restored to an earlier time.
pub async fn withdraw_restored(tx: &mut Tx, by: &UserId) -> Result<Vec<ApprovalId>> {
    let ids = sqlx::query_scalar!(
        r#"update approvals set withdrawn_by = $1, withdrawn_cause = 'restored', changed_at = statement_timestamp()
         where tenant_id = $2 and state in ('pending', 'approved')
           and withdrawn_by is null returning id as "id: ApprovalId""#,
        by.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Withdraws the requests made with a revoked API key whose call is not sent yet.
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
