//! The votes on requests, and the evidence that is recorded afterwards.

use sqlx::types::Json;
use uuid::Uuid;

use super::rows;
use crate::{
    domain::{
        approval::{About, Approval, Choice, Vote},
        error::{Error, Result},
        ids::{ApprovalId, TenantId, UserId},
        principal::Principal,
    },
    store::Tx,
};

/// Records a vote on a locked row, and marks the row as changed.
pub async fn vote(tx: &mut Tx, tenant: TenantId, vote: &Vote) -> Result<()> {
    sqlx::query!(
        "with changed as (
           update approvals set changed_at = statement_timestamp() where tenant_id = $1 and id = $3
         )
         insert into approval_votes (tenant_id, id, approval_id, approver, choice, reason)
         values ($1, $2, $3, $4, $5, $6)",
        tenant.0,
        Uuid::now_v7(),
        vote.approval.0,
        vote.by.as_str(),
        vote.choice.as_str(),
        vote.reason,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// What was said about some requests, the oldest first.
pub async fn votes(tx: &mut Tx, ids: &[ApprovalId]) -> Result<Vec<Vote>> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        "select approval_id, approver, choice, reason, at from approval_votes
         where tenant_id = $2 and approval_id = any($1) order by at",
        &ids,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter()
        .map(|row| {
            let choice = Choice::parse(&row.choice)
                .ok_or_else(|| Error::Internal(anyhow::anyhow!("unknown choice")))?;
            let (approval, by) = (ApprovalId(row.approval_id), UserId(row.approver.into()));
            Ok(Vote {
                approval,
                by,
                choice,
                reason: row.reason,
                at: row.at,
            })
        })
        .collect()
}

/// Adds evidence that arrived too late.
pub async fn add_evidence(tx: &mut Tx, id: ApprovalId, evidence: &str) -> Result<Option<Approval>> {
    let row = rows!(
        "update approvals a set evidence = $2, changed_at = statement_timestamp()
         where a.tenant_id = $3 and id = $1 and state = 'outcome_unknown' and evidence is null returning",
        "",
        id.0,
        evidence,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// Records what really happened, once; `None` when the outcome is not unknown or was recorded before.
pub async fn record(
    tx: &mut Tx,
    id: ApprovalId,
    happened: bool,
    note: Option<&str>,
    by: &UserId,
) -> Result<Option<Approval>> {
    let row = rows!(
        "update approvals a
         set recorded_happened = $2, recorded_note = $3, recorded_by = $4, recorded_at = statement_timestamp(),
             changed_at = statement_timestamp()
         where a.tenant_id = $5 and id = $1 and state = 'outcome_unknown' and recorded_at is null returning",
        "",
        id.0,
        happened,
        note,
        by.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}
