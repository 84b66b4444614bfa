//! Rows of tickets for event streams. A row has only the hash of its ticket.

use std::time::Duration;

use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{error::Result, principal::Principal};

/// Adds a ticket, and deletes the expired ones of the tenant. Returns when the ticket expires.
pub async fn insert(
    tx: &mut Tx,
    hash: &[u8; 32],
    principal: &Principal,
    life: Duration,
) -> Result<OffsetDateTime> {
    let expires_at = sqlx::query_scalar!(
        "with over as (
           delete from stream_tickets where tenant_id = $1 and expires_at < statement_timestamp()
         )
         insert into stream_tickets (tenant_id, id, hash, principal, expires_at)
         values ($1, $2, $3, $4, statement_timestamp() + make_interval(secs => $5)) returning expires_at",
        tx.tenant()?.0,
        Uuid::now_v7(),
        hash,
        Json(principal) as _,
        life.as_secs_f64(),
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(expires_at)
}

/// Uses a ticket, which works once. Returns who asked for it. `None` if it is unknown, used or expired.
pub async fn take(tx: &mut Tx, hash: &[u8; 32]) -> Result<Option<Principal>> {
    let principal = sqlx::query_scalar!(
        r#"delete from stream_tickets
           where tenant_id = $1 and hash = $2 and expires_at > statement_timestamp()
           returning principal as "principal: Json<Principal>""#,
        tx.tenant()?.0,
        hash,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(principal.map(|principal| principal.0))
}
