//! The tokens of credentials that are sign-ins. A refresh replaces them in the row of the credential. One replica
//! refreshes for all replicas. Meanwhile it has a lease on the row and no open transaction. If it stops, another
//! replica refreshes after the lease has ended.

use std::time::Duration;

use time::OffsetDateTime;

use super::Tx;
use domain::{
    credential::CredentialRef,
    error::Result,
    ids::CredentialId,
    oauth::{Authorization, scopes_of},
};

/// Stored tokens.
pub struct StoredTokens {
    pub sealed: Vec<u8>,
    pub version: i64,
    /// The time until the next refresh. `None` if it is not known.
    pub refresh_in: Option<Duration>,
    /// Whether another replica is refreshing them.
    pub is_claimed: bool,
}

/// The right to refresh tokens, until the lease ends.
pub struct RefreshClaim {
    pub fence: i64,
    /// The version of the tokens to refresh.
    pub version: i64,
}

/// The scopes of an authorization, and the scopes that its server has asked for since.
pub struct SignInScopes {
    pub granted: Vec<String>,
    pub wanted: Vec<String>,
}

/// The tokens of an active credential.
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

/// Claims the right to refresh the tokens of this version. `None` if they were refreshed, or another replica is
/// refreshing them.
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

/// Stores the tokens of a refresh, and when they are to be refreshed again. `false` if the credential was replaced or
/// deleted, or has newer tokens. The tokens are stored even if the claim was lost meanwhile.
pub async fn put(
    tx: &mut Tx,
    of: &CredentialRef,
    claim: &RefreshClaim,
    sealed: &[u8],
    tokens: &Authorization,
    refresh_at: Option<OffsetDateTime>,
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

/// Counts a refusal that may mean the end of the authorization. Returns the number of refusals within this time.
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

/// Records that a credential that was just stored is a sign-in, with its issuer, scopes and times.
pub async fn mark_sign_in(
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

/// The scopes of a sign-in in any state. `None` for another credential.
pub async fn get_scopes(tx: &mut Tx, id: CredentialId) -> Result<Option<SignInScopes>> {
    let row = sqlx::query!(
        "select scopes, wanted_scopes from credentials where tenant_id = $1 and id = $2 and issuer is not null",
        tx.tenant()?.0,
        id.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let list = |text: Option<String>| scopes_of(&text.unwrap_or_default());
    Ok(row.map(|row| SignInScopes {
        granted: list(row.scopes),
        wanted: list(row.wanted_scopes),
    }))
}

/// Stores the scopes that a server asks for, until the user signs in again.
pub async fn put_wanted_scopes(tx: &mut Tx, id: CredentialId, wanted: &[String]) -> Result<()> {
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
