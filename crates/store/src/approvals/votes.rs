//! Rows of votes on requests, and the evidence that is recorded afterwards.

use std::sync::Arc;

use serde_json::{Map, Value};
use sqlx::types::Json;
use uuid::Uuid;

use super::rows;
use crate::Tx;
use domain::{
    approval::{Approval, Choice, Vote},
    error::Result,
    ids::{ApiKeyId, ApprovalId, TenantId, UserId},
    principal::{Audience, GUEST_USER, Principal},
};

/// The claims that identify the session of a vote.
const SESSION_CLAIMS: [&str; 3] = ["iss", "iat", "exp"];

/// Adds a vote on a locked request, and marks the request as changed. Replaces an earlier vote of the same person: the
/// caller has checked that it does not count any more.
pub async fn add_vote(tx: &mut Tx, tenant: TenantId, vote: &Vote) -> Result<()> {
    let session: Map<String, Value> = SESSION_CLAIMS
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), vote.voter.claims.get(name)?.clone())))
        .collect();
    sqlx::query!(
        "with changed as (
           update approvals set changed_at = statement_timestamp() where tenant_id = $1 and id = $3
         )
         insert into approval_votes (tenant_id, id, approval_id, approver, choice, reason, session, key_id, at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, statement_timestamp())
         on conflict (tenant_id, approval_id, approver) do update
         set choice = excluded.choice, reason = excluded.reason, session = excluded.session,
             key_id = excluded.key_id, at = excluded.at",
        tenant.0,
        Uuid::now_v7(),
        vote.approval.0,
        vote.by().as_str(),
        vote.choice.into_str(),
        vote.reason,
        Json(session) as _,
        vote.voter.key.map(|key| key.0),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The votes on some requests, the oldest first.
pub async fn list_votes(tx: &mut Tx, ids: &[ApprovalId]) -> Result<Vec<Vote>> {
    let tenant = tx.tenant()?;
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        r#"select approval_id as "approval: ApprovalId", approver as "approver: UserId", choice as "choice: Choice", reason, at,
                  key_id as "key: ApiKeyId", session as "session: Json<Map<String, Value>>"
           from approval_votes where tenant_id = $2 and approval_id = any($1) order by at"#,
        &ids,
        tenant.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let votes = rows.into_iter().map(|row| {
        let is_guest = row.approver.as_str().starts_with(GUEST_USER);
        let voter = Principal {
            tenant,
            user: row.approver,
            claims: Arc::new(row.session.map(|session| session.0).unwrap_or_default()),
            locale: None,
            authenticated: !is_guest,
            key: row.key,
            audience: Audience::default(),
        };
        Vote {
            approval: row.approval,
            voter,
            choice: row.choice,
            reason: row.reason,
            at: row.at,
        }
    });
    Ok(votes.collect())
}

/// Adds evidence of the outcome of a call that arrived after the request was closed. `None` if the outcome is known,
/// or there is evidence already.
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

/// Records what really happened to a call of unknown outcome, once. `None` if the outcome is known or was recorded
/// before.
pub async fn record_outcome(
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
