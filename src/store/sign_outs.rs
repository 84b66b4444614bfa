//! Rows of sign-outs: one per user who ever signed out.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use crate::domain::{
    error::Result,
    ids::{ApiKeyId, TenantId, UserId},
    session::SignOut,
};

/// Ends a user's tokens. What was ended before stays so.
pub async fn put(tx: &mut Tx, tenant: TenantId, user: &UserId, sign_out: SignOut) -> Result<()> {
    sqlx::query!(
        "insert into sign_outs (tenant_id, id, user_id, issued_until, expires_until, changed_at)
         values ($1, $2, $3, $4, $5, statement_timestamp())
         on conflict (tenant_id, user_id) do update
         set issued_until = greatest(sign_outs.issued_until, excluded.issued_until),
             expires_until = greatest(sign_outs.expires_until, excluded.expires_until),
             changed_at = excluded.changed_at",
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

/// What ended a moment ago.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    User(UserId),
    Key(ApiKeyId),
}

/// Whose sessions ended within the last ten seconds, by the database's clock, and when. Needs the system role.
pub async fn recent(tx: &mut Tx) -> Result<Vec<(TenantId, Ended, OffsetDateTime)>> {
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!", user_id, null::uuid as key, changed_at as "at!" from sign_outs
           where changed_at > statement_timestamp() - interval '10 seconds'
           union all
           select tenant_id, null, id, revoked_at from api_keys
           where revoked_at > statement_timestamp() - interval '10 seconds'
             and revoked_at < coalesce(expires_at, 'infinity')"#,
    )
    .fetch_all(tx.conn())
    .await?;
    let ended = rows.into_iter().filter_map(|row| {
        let user = row.user_id.map(|user| Ended::User(UserId(user.into())));
        let key = row.key.map(|key| Ended::Key(ApiKeyId(key)));
        Some((TenantId(row.tenant_id), user.or(key)?, row.at))
    });
    Ok(ended.collect())
}
