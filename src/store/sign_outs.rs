//! Rows of sign-outs: one per user who ever signed out.

use uuid::Uuid;

use super::Tx;
use crate::domain::{
    error::Result,
    ids::{TenantId, UserId},
    session::SignOut,
};

/// Ends a user's tokens. What was ended before stays so.
pub async fn put(tx: &mut Tx, tenant: TenantId, user: &UserId, sign_out: SignOut) -> Result<()> {
    sqlx::query!(
        "insert into sign_outs (tenant_id, id, user_id, issued_until, expires_until) values ($1, $2, $3, $4, $5)
         on conflict (tenant_id, user_id) do update
         set issued_until = greatest(sign_outs.issued_until, excluded.issued_until),
             expires_until = greatest(sign_outs.expires_until, excluded.expires_until)",
        tenant.0,
        Uuid::now_v7(),
        user.as_str(),
        sign_out.issued_until,
        sign_out.expires_until,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

pub async fn get(tx: &mut Tx, user: &UserId) -> Result<Option<SignOut>> {
    let row = sqlx::query_as!(
        SignOut,
        "select issued_until, expires_until from sign_outs where tenant_id = $2 and user_id = $1",
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row)
}
