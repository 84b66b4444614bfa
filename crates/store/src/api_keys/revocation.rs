//! The ends of keys: revoked, replaced, or expired.

use time::OffsetDateTime;

use crate::Tx;
use domain::{
    error::Result,
    ids::{ApiKeyId, TenantId},
};

/// Revokes one key, unless it is a guest's; `false` when it is revoked already, or there is none.
pub async fn revoke_one(
    tx: &mut Tx,
    tenant: TenantId,
    id: ApiKeyId,
    now: OffsetDateTime,
) -> Result<bool> {
    let done = sqlx::query!(
        "
        update api_keys
        set revoked_at = $3
        where tenant_id = $1 and id = $2 and kind <> 'guest' and revoked_at is null
        ",
        tenant.0,
        id.0,
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Revokes a guest's key.
pub async fn revoke_guest(
    tx: &mut Tx,
    tenant: TenantId,
    id: ApiKeyId,
    now: OffsetDateTime,
) -> Result<()> {
    sqlx::query!(
        "
        update api_keys
        set revoked_at = $3
        where tenant_id = $1 and id = $2 and kind = 'guest' and revoked_at is null
        ",
        tenant.0,
        id.0,
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Frees the slots of a name's expired keys: they count as revoked from their expiry on.
pub async fn retire(tx: &mut Tx, tenant: TenantId, name: &str, now: OffsetDateTime) -> Result<()> {
    sqlx::query!(
        "
        update api_keys
        set revoked_at = expires_at
        where tenant_id = $1 and name = $2 and revoked_at is null and expires_at <= $3
        ",
        tenant.0,
        name,
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Lets a key expire at a time, or earlier when it would anyway.
pub async fn expire(tx: &mut Tx, tenant: TenantId, id: ApiKeyId, at: OffsetDateTime) -> Result<()> {
    sqlx::query!(
        "update api_keys set expires_at = least(expires_at, $3) where tenant_id = $1 and id = $2",
        tenant.0,
        id.0,
        at,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Revokes the keys with this name or prefix that are not revoked yet; says how many.
pub async fn revoke(
    tx: &mut Tx,
    tenant: TenantId,
    name_or_prefix: &str,
    now: OffsetDateTime,
) -> Result<u64> {
    let revoked = sqlx::query!(
        "
        update api_keys
        set revoked_at = $3
        where tenant_id = $1 and (name = $2 or prefix = $2) and revoked_at is null
        ",
        tenant.0,
        name_or_prefix,
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(revoked.rows_affected())
}

/// Forgets guests that expired and says how many are left.
pub async fn prune_guests(tx: &mut Tx, tenant: TenantId, now: OffsetDateTime) -> Result<i64> {
    sqlx::query!(
        "delete from api_keys where tenant_id = $1 and kind = 'guest' and expires_at <= $2",
        tenant.0,
        now,
    )
    .execute(tx.conn())
    .await?;
    let left = sqlx::query_scalar!(
        r#"select count(*) as "count!" from api_keys where tenant_id = $1 and kind = 'guest'"#,
        tenant.0,
    );
    Ok(left.fetch_one(tx.conn()).await?)
}
