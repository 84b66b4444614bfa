//! Credentials that are sign-ins: their tokens, which are replaced in place with each refresh. One replica refreshes for
//! all of them. While it asks, it has a lease on the row and no open transaction; when it dies, another replica asks
//! after the lease has ended.

use std::time::Duration;

use time::OffsetDateTime;

use super::Tx;
use domain::{
    credential::CredentialRef,
    error::Result,
    ids::CredentialId,
    oauth::{Authorization, scopes_of},
};

/// Tokens as they are kept.
pub struct StoredTokens {
    pub sealed: Vec<u8>,
    pub version: i64,
    /// Until they are to be refreshed; `None` when nobody knows.
    pub refresh_in: Option<Duration>,
    /// Another replica is refreshing them.
    pub is_claimed: bool,
}

/// The right to refresh tokens, until the lease ends.
pub struct RefreshClaim {
    pub fence: i64,
    /// Of the tokens to refresh.
    pub version: i64,
}

/// Which scopes an authorization has, and which its server asked for since.
pub struct Scopes {
    pub granted: Vec<String>,
    pub wanted: Vec<String>,
}

/// The tokens of a credential that is in force.
pub async fn get(tx: &mut Tx, of: &CredentialRef) -> Result<Option<StoredTokens>> {
    let row = sqlx::query!(
        r#"select sealed, token_version,
                  extract(epoch from refresh_at - statement_timestamp())::float8 as refresh_in,
                  coalesce(lease_until > statement_timestamp(), false) as "is_claimed!"
           from credentials
           where tenant_id = $1 and id = $2 and generation = $3 and state = 'active' and issuer is not null"#,
        tx.tenant()?.0,
        of.id.0,
        of.generation.cast_signed(),
    )
    .fetch_optional(tx.conn())
    .await?;
    let left = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
    Ok(row.map(|row| StoredTokens {
        sealed: row.sealed,
        version: row.token_version,
        refresh_in: row.refresh_in.map(left),
        is_claimed: row.is_claimed,
    }))
}

/// Claims the right to refresh the tokens of this version; `None` when they were refreshed, or another replica is about
/// to.
pub async fn claim(
    tx: &mut Tx,
    of: &CredentialRef,
    version: i64,
    lease: Duration,
) -> Result<Option<RefreshClaim>> {
    let fence = sqlx::query_scalar!(
        "update credentials
         set fence = fence + 1, lease_until = statement_timestamp() + make_interval(secs => $5)
         where tenant_id = $1 and id = $2 and generation = $3 and token_version = $4 and state = 'active'
           and (lease_until is null or lease_until < statement_timestamp())
         returning fence",
        tx.tenant()?.0,
        of.id.0,
        of.generation.cast_signed(),
        version,
        lease.as_secs_f64(),
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(fence.map(|fence| RefreshClaim { fence, version }))
}

/// Keeps the tokens of a refresh, and says when they are to be refreshed again; `false` when the credential was replaced
/// or removed, or newer tokens are there. A claim that was lost meanwhile is no reason to lose tokens, too.
pub async fn put(
    tx: &mut Tx,
    of: &CredentialRef,
    claim: &RefreshClaim,
    sealed: &[u8],
    (tokens, refresh_at): (&Authorization, Option<OffsetDateTime>),
) -> Result<bool> {
    let done = sqlx::query!(
        "update credentials
         set sealed = $5, scopes = $6, refresh_at = $7, tokens_end_at = $8, token_version = token_version + 1,
             lease_until = null, updated_at = now(), doubtful_refusals = 0, doubtful_since = null
         where tenant_id = $1 and id = $2 and generation = $3 and token_version = $4",
        tx.tenant()?.0,
        of.id.0,
        of.generation.cast_signed(),
        claim.version,
        sealed,
        tokens.scopes.join(" "),
        refresh_at,
        tokens.expires_at,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Releases the claim for the next replica.
pub async fn release(tx: &mut Tx, of: &CredentialRef, claim: &RefreshClaim) -> Result<()> {
    sqlx::query!(
        "update credentials set lease_until = null where tenant_id = $1 and id = $2 and fence = $3",
        tx.tenant()?.0,
        of.id.0,
        claim.fence,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Counts a refusal that may mean the end of the authorization: how many there were in this time, with this one.
pub async fn count_doubtful(tx: &mut Tx, of: &CredentialRef, within: Duration) -> Result<i32> {
    let now = tx.now().await?;
    let count = sqlx::query_scalar!(
        "update credentials
         set doubtful_refusals = case when doubtful_since > $4 then doubtful_refusals + 1 else 1 end,
             doubtful_since = case when doubtful_since > $4 then doubtful_since else $5 end
         where tenant_id = $1 and id = $2 and generation = $3 returning doubtful_refusals",
        tx.tenant()?.0,
        of.id.0,
        of.generation.cast_signed(),
        now - within,
        now,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(count.unwrap_or(0))
}

/// Notes that a credential which was just stored is a sign-in.
pub async fn describe(
    tx: &mut Tx,
    of: &CredentialRef,
    tokens: &Authorization,
    refresh_at: Option<OffsetDateTime>,
) -> Result<()> {
    sqlx::query!(
        "update credentials
         set issuer = $4, scopes = $5, refresh_at = $6, tokens_end_at = $7, signed_in_at = statement_timestamp(),
             doubtful_refusals = 0, doubtful_since = null
         where tenant_id = $1 and id = $2 and generation = $3",
        tx.tenant()?.0,
        of.id.0,
        of.generation.cast_signed(),
        tokens.service.issuer,
        tokens.scopes.join(" "),
        refresh_at,
        tokens.expires_at,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The scopes of a sign-in, whatever its state; `None` for another credential.
pub async fn scopes(tx: &mut Tx, id: CredentialId) -> Result<Option<Scopes>> {
    let row = sqlx::query!(
        "select scopes, wanted_scopes from credentials where tenant_id = $1 and id = $2 and issuer is not null",
        tx.tenant()?.0,
        id.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let list = |text: Option<String>| scopes_of(&text.unwrap_or_default());
    Ok(row.map(|row| Scopes {
        granted: list(row.scopes),
        wanted: list(row.wanted_scopes),
    }))
}

/// Keeps what a server asks for until the user signs in again.
pub async fn want_scopes(tx: &mut Tx, id: CredentialId, wanted: &[String]) -> Result<()> {
    sqlx::query!(
        "update credentials set wanted_scopes = $3 where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id.0,
        wanted.join(" "),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
