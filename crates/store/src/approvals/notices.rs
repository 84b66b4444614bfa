//! Rows that say what an approver has been told at the head of an answer: each thing once.
//!
//! The caller holds the lock of a conversation, and a writer that locks an approval locks it before any conversation. So a
//! row that another writer holds is skipped here, never waited for: the next answer tells of it.

use super::rows;
use crate::Tx;
use domain::{
    approval::{Approval, Approver},
    error::Result,
    ids::{ApprovalId, UserId},
};
use uuid::Uuid;

/// Outcomes that are claimed at once.
const MOST_OUTCOMES: i64 = 100;

/// Records that a user is told of requests that wait. Returns those of which they had not been told.
pub async fn claim_waiting(
    tx: &mut Tx,
    user: &UserId,
    waiting: &[ApprovalId],
) -> Result<Vec<ApprovalId>> {
    let requests: Vec<Uuid> = waiting.iter().map(|id| id.0).collect();
    let ids: Vec<Uuid> = waiting.iter().map(|_| Uuid::now_v7()).collect();
    let claimed = sqlx::query_scalar!(
        r#"insert into approval_notices as n (tenant_id, id, user_id, approval_id)
           select a.tenant_id, w.id, $2, a.id
           from approvals a join unnest($3::uuid[], $4::uuid[]) w (approval_id, id) on w.approval_id = a.id
           where a.tenant_id = $1
           order by a.id for key share of a skip locked
           on conflict do nothing
           returning n.approval_id as "id!: ApprovalId""#,
        tx.tenant()?.0,
        user.as_str(),
        &requests,
        &ids,
    );
    Ok(claimed.fetch_all(tx.conn()).await?)
}

/// Records that an approver is told how calls of other people ended that they approved, and returns those of which they
/// had not been told.
pub async fn claim_outcomes(tx: &mut Tx, approver: &Approver) -> Result<Vec<Approval>> {
    let (agents, roles) = approver.columns();
    let claimed = rows!(
        "with untold as (
           select v.id from approval_votes v
           join approvals a on a.tenant_id = $1 and a.id = v.approval_id and a.finished_at is not null
                and a.requester <> $2
           where v.tenant_id = $1 and v.approver = $2 and v.choice = 'approve' and v.outcome_told_at is null
             and exists (select from unnest($3::text[], $4::text[]) held (agent, role)
                         where held.agent = a.agent and held.role = any(a.approvers))
           order by v.id limit $5 for update of v skip locked
         ), told as (
           update approval_votes set outcome_told_at = statement_timestamp()
           where tenant_id = $1 and id in (select id from untold)
           returning approval_id
         )
         select",
        "from approvals a
         where a.tenant_id = $1 and a.id in (select approval_id from told)
         order by a.finished_at, a.id",
        tx.tenant()?.0,
        approver.user().as_str(),
        &agents,
        &roles,
        MOST_OUTCOMES,
    )
    .fetch_all(tx.conn())
    .await?;
    claimed.into_iter().map(TryInto::try_into).collect()
}
