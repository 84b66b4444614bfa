//! Rows of sign-outs: one for each user who ever signed out.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{AgentId, ApiKeyId, ServerId, TenantId, UserId},
    session::SignOut,
};

/// Ends the tokens of a user. Tokens that were ended before stay ended.
pub async fn put(tx: &mut Tx, tenant: TenantId, user: &UserId, sign_out: SignOut) -> Result<()> {
    sqlx::query!(
        "insert into sign_outs (tenant_id, id, user_id, issued_until, expires_until, others_at, changed_at)
         values ($1, $2, $3, $4, $5, $6, statement_timestamp())
         on conflict (tenant_id, user_id) do update
         set issued_until = greatest(sign_outs.issued_until, excluded.issued_until),
             expires_until = greatest(sign_outs.expires_until, excluded.expires_until),
             others_at = greatest(sign_outs.others_at, excluded.others_at),
             changed_at = excluded.changed_at",
        tenant.0,
        Uuid::now_v7(),
        user.as_str(),
        sign_out.issued_until,
        sign_out.expires_until,
        sign_out.others_at,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

pub async fn get(tx: &mut Tx, user: &UserId) -> Result<Option<SignOut>> {
    let row = sqlx::query_as!(
        SignOut,
        r#"select issued_until, expires_until, others_at, blocked_at is not null as "is_blocked!"
           from sign_outs where tenant_id = $2 and user_id = $1"#,
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row)
}

/// Blocks a user whose sessions were ended in this transaction. For a user who is blocked already, the first block
/// stays.
pub async fn block(tx: &mut Tx, user: &UserId, by: &UserId) -> Result<()> {
    sqlx::query!(
        "update sign_outs
         set blocked_by = $3, blocked_at = statement_timestamp()
         where tenant_id = $1 and user_id = $2 and blocked_at is null",
        tx.tenant()?.0,
        user.as_str(),
        by.as_str(),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Ends the block of a user. `false` if the user is not blocked.
pub async fn unblock(tx: &mut Tx, user: &UserId) -> Result<bool> {
    let done = sqlx::query!(
        "update sign_outs set blocked_at = null, blocked_by = null, changed_at = statement_timestamp()
         where tenant_id = $1 and user_id = $2 and blocked_at is not null",
        tx.tenant()?.0,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() > 0)
}

/// A recent change that every replica must know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecentChange {
    /// A user signed out, was signed out, was blocked or was unblocked.
    Session(UserId),
    /// A key was revoked.
    Key(ApiKeyId),
    /// New claims of a user were written.
    Claims(UserId),
    /// What is known of the tools of a server changed.
    Tools(AgentId, ServerId),
}

/// The changes within the last ten seconds by the database's clock, each with its time. Needs the system role.
pub async fn list_recent(tx: &mut Tx) -> Result<Vec<(TenantId, RecentChange, OffsetDateTime)>> {
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant!: TenantId", user_id as "user: UserId", null::uuid as "key: ApiKeyId", changed_at as "at!", false as "is_claims!",
                  null::text as "agent: AgentId", null::text as "server: ServerId"
           from sign_outs where changed_at > statement_timestamp() - interval '10 seconds'
           union all
           select tenant_id, null, id, revoked_at, false, null, null from api_keys
           where revoked_at > statement_timestamp() - interval '10 seconds'
             and revoked_at < coalesce(expires_at, 'infinity')
           union all
           select tenant_id, user_id, null, changed_at, true, null, null from users
           where changed_at > statement_timestamp() - interval '10 seconds'
           union all
           select tenant_id, null, null, changed_at, false, agent, server from pinned_servers
           where changed_at > statement_timestamp() - interval '10 seconds'"#,
    )
    .fetch_all(tx.conn())
    .await?;
    let recent = rows.into_iter().filter_map(|row| {
        if let (Some(agent), Some(server)) = (row.agent, row.server) {
            return Some((row.tenant, RecentChange::Tools(agent, server), row.at));
        }
        let what = match (row.user, row.key) {
            (Some(user), _) if row.is_claims => RecentChange::Claims(user),
            (Some(user), _) => RecentChange::Session(user),
            (None, key) => RecentChange::Key(key?),
        };
        Some((row.tenant, what, row.at))
    });
    Ok(recent.collect())
}
