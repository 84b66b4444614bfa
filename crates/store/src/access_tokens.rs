//! Rows of access tokens. One replica requests a token for all replicas. Meanwhile it has a lease on the row and no
//! open transaction. If it stops, another replica requests the token after the lease has ended.

use std::time::Duration;

use uuid::Uuid;

use super::Tx;
use domain::{error::Result, ids::TenantId};

/// A stored token.
pub struct StoredToken {
    pub id: Uuid,
    pub version: i64,
    pub sealed: Vec<u8>,
    /// The time for which it can still be used.
    pub good_for: Duration,
}

/// The right to request a token, until the lease ends.
pub struct TokenClaim {
    pub id: Uuid,
    pub fence: i64,
    /// The version of the token before.
    pub version: i64,
}

/// The token for a request. `None` if there is none, or it can be used no more.
pub async fn get(tx: &mut Tx, request: &[u8]) -> Result<Option<StoredToken>> {
    let row = sqlx::query!(
        r#"select id, version, sealed as "sealed!",
                  extract(epoch from good_until - statement_timestamp())::float8 as "good_for!"
           from access_tokens where tenant_id = $2 and request = $1 and sealed is not null
             and good_until > statement_timestamp()"#,
        request,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| StoredToken {
        id: row.id,
        version: row.version,
        sealed: row.sealed,
        good_for: Duration::try_from_secs_f64(row.good_for).unwrap_or_default(),
    }))
}

/// Claims the right to request a token. `None` if another replica is requesting it, or there is a good token with
/// another version than `useless`. `excluded.lease_until` is the time now plus the lease: Citus allows no clock
/// function in an `on conflict` clause.
pub async fn claim(
    tx: &mut Tx,
    tenant: TenantId,
    request: &[u8],
    useless: Option<i64>,
    lease: Duration,
) -> Result<Option<TokenClaim>> {
    let row = sqlx::query_as!(
        TokenClaim,
        "insert into access_tokens as t (tenant_id, id, request, fence, lease_until)
         values ($1, $2, $3, 1, statement_timestamp() + make_interval(secs => $5))
         on conflict (tenant_id, request) do update
         set fence = t.fence + 1, lease_until = excluded.lease_until
         where (t.lease_until is null or excluded.lease_until - t.lease_until > make_interval(secs => $5))
           and (t.sealed is null or excluded.lease_until - t.good_until >= make_interval(secs => $5)
                or t.version = $4)
         returning id, fence, version",
        tenant.0,
        Uuid::now_v7(),
        request,
        useless,
        lease.as_secs_f64(),
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row)
}

/// Stores a token that was requested with a claim. `false` if another replica has claimed the token meanwhile.
/// Deletes tokens that have been unusable for a day.
pub async fn put(
    tx: &mut Tx,
    claim: &TokenClaim,
    sealed: &[u8],
    good_for: Duration,
) -> Result<bool> {
    let done = sqlx::query!(
        "update access_tokens
         set sealed = $3, version = version + 1, lease_until = null,
             good_until = statement_timestamp() + make_interval(secs => $4)
         where tenant_id = $5 and id = $1 and fence = $2",
        claim.id,
        claim.fence,
        sealed,
        good_for.as_secs_f64(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "delete from access_tokens
         where tenant_id = $1 and good_until < now() - interval '1 day' and lease_until is null",
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Releases the claim for the next replica.
pub async fn release(tx: &mut Tx, claim: &TokenClaim) -> Result<()> {
    sqlx::query!(
        "update access_tokens set lease_until = null where tenant_id = $3 and id = $1 and fence = $2",
        claim.id,
        claim.fence,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
