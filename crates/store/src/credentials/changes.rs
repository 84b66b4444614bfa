//! Changes of a credential: stored, tested, deleted.

use time::OffsetDateTime;

use crate::Tx;
use domain::{
    credential::{CredentialRef, CredentialState},
    error::{Error, ErrorCode, Result},
    ids::{AgentId, CredentialId, ServerId, UserId},
};

/// Adds a credential, or replaces one as a whole, of the transaction's tenant. `replaces` is the generation that the
/// caller has seen, `None` when there was none. Anything else there now is a conflict, and what is there stays.
pub async fn put(
    tx: &mut Tx,
    credential: &CredentialRef,
    sealed: &[u8],
    replaces: Option<u64>,
) -> Result<()> {
    if replaces.is_some_and(|generation| credential.generation <= generation) {
        return Err(Error::internal(anyhow::anyhow!(
            "credential {}: its generation does not grow",
            credential.id
        )));
    }
    let (tenant, id) = (tx.tenant()?.0, credential.id.0);
    let agent = credential.agent.as_str();
    let (server, user) = (credential.server.as_str(), credential.user.as_str());
    let generation = credential.generation.cast_signed();
    let query = match replaces {
        None => sqlx::query!(
            "insert into credentials (tenant_id, id, agent, server, user_id, generation, state, sealed, verified_at)
             values ($1, $2, $3, $4, $5, $6, 'active', $7, now())
             on conflict (tenant_id, agent, server, user_id) do nothing",
            tenant,
            id,
            agent,
            server,
            user,
            generation,
            sealed,
        ),
        Some(seen) => sqlx::query!(
            "update credentials
             set generation = $6, state = 'active', reason = null, sealed = $7, updated_at = now(), verified_at = now(),
                 issuer = null, scopes = null, wanted_scopes = null, refresh_at = null, tokens_end_at = null,
                 signed_in_at = null, lease_until = null, candidate = null, candidate_generation = null,
                 candidate_refused = false
             where tenant_id = $1 and id = $2 and agent = $3 and server = $4 and user_id = $5 and generation = $8",
            tenant,
            id,
            agent,
            server,
            user,
            generation,
            sealed,
            seen.cast_signed(),
        ),
    };
    let done = query.execute(tx.conn()).await?;
    if done.rows_affected() == 1 {
        return Ok(());
    }
    Err(changed_meanwhile(credential))
}

fn changed_meanwhile(credential: &CredentialRef) -> Error {
    Error::conflict(
        ErrorCode::Conflict,
        format!(
            "the credential for {} was changed meanwhile; look at it again",
            credential.server
        ),
    )
}

/// Notes that nobody knows yet whether the server accepts a credential that was just stored.
pub async fn doubt(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<()> {
    sqlx::query!(
        "update credentials set verified_at = null where tenant_id = $1 and id = $2 and generation = $3",
        tx.tenant()?.0,
        id.0,
        generation.cast_signed(),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Keeps a credential beside the one that is there, in place of another candidate, until [`promote`] or
/// [`drop_candidate`]. `beside` is the generation that the caller has seen; anything else there now is a conflict.
pub async fn put_candidate(
    tx: &mut Tx,
    credential: &CredentialRef,
    sealed: &[u8],
    beside: u64,
) -> Result<()> {
    let generation = credential.generation.cast_signed();
    let done = sqlx::query!(
        "update credentials
         set candidate = $4, candidate_generation = $3, last_generation = $3, candidate_refused = false,
             updated_at = now()
         where tenant_id = $1 and id = $2 and generation = $5 and state = 'active'
           and $3 > greatest(generation, last_generation)",
        tx.tenant()?.0,
        credential.id.0,
        generation,
        sealed,
        beside.cast_signed(),
    )
    .execute(tx.conn())
    .await?;
    if done.rows_affected() == 1 {
        return Ok(());
    }
    Err(changed_meanwhile(credential))
}

/// Puts a candidate in force in place of what was there. `false` when it is none by now.
pub async fn promote(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<bool> {
    let done = sqlx::query!(
        "update credentials
         set generation = candidate_generation, sealed = candidate, state = 'active', reason = null,
             updated_at = now(), verified_at = now(), issuer = null, scopes = null, wanted_scopes = null,
             refresh_at = null, tokens_end_at = null, signed_in_at = null, lease_until = null, candidate = null,
             candidate_generation = null, candidate_refused = false
         where tenant_id = $1 and id = $2 and candidate_generation = $3 and candidate_generation > generation
           and candidate is not null",
        tx.tenant()?.0,
        id.0,
        generation.cast_signed(),
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Takes a candidate back that the server refused; its user is to be told. `false` when it is none by now.
pub async fn drop_candidate(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<bool> {
    let done = sqlx::query!(
        "update credentials
         set candidate = null, candidate_generation = null, candidate_refused = true, updated_at = now()
         where tenant_id = $1 and id = $2 and candidate_generation = $3 and candidate_generation > generation",
        tx.tenant()?.0,
        id.0,
        generation.cast_signed(),
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Marks a credential as one that needs attention: an active one as rejected, any as quarantined. `false` when it is
/// another generation by now, or marked.
pub async fn mark(
    tx: &mut Tx,
    id: CredentialId,
    generation: u64,
    state: CredentialState,
    reason: &str,
) -> Result<bool> {
    let done = sqlx::query!(
        "update credentials set state = $3, reason = $4, updated_at = now()
         where tenant_id = $5 and id = $1 and generation = $2
           and (state = 'active' or $3 = 'quarantined' and state <> 'quarantined')",
        id.0,
        generation.cast_signed(),
        state.into_str(),
        reason,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Notes that the server accepts it (again).
pub async fn verify(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<()> {
    sqlx::query!(
        "update credentials
         set verified_at = now(), updated_at = now(), told_generation = 0, reason = null,
             state = case when state = 'rejected' then 'active' else state end
         where tenant_id = $3 and id = $1 and generation = $2",
        id.0,
        generation.cast_signed(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Claims the notices: the servers whose credentials need attention and whose user was not told yet.
pub async fn take_unnotified(tx: &mut Tx, agent: &AgentId, user: &UserId) -> Result<Vec<String>> {
    let servers = sqlx::query_scalar!(
        "update credentials set told_generation = generation
         where tenant_id = $3 and agent = $1 and user_id = $2 and state <> 'active'
           and told_generation <> generation returning server",
        agent.as_str(),
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(servers.fetch_all(tx.conn()).await?)
}

/// Claims the notices of candidates that were refused: the servers of which the user was not told yet.
pub async fn take_refused_candidates(
    tx: &mut Tx,
    agent: &AgentId,
    user: &UserId,
) -> Result<Vec<String>> {
    let servers = sqlx::query_scalar!(
        "update credentials set candidate_refused = false
         where tenant_id = $3 and agent = $1 and user_id = $2 and candidate_refused returning server",
        agent.as_str(),
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(servers.fetch_all(tx.conn()).await?)
}

/// How many sign-ins are removed in one transaction.
const BATCH: i64 = 200;

/// A credential that was removed.
pub struct Removed {
    pub credential: CredentialRef,
    /// Of a sign-in: its tokens, sealed, so that they can be revoked.
    pub tokens: Option<Vec<u8>>,
}

/// Removes what a user has: all of it, or what is for one server of an agent. What was removed comes back, so that
/// connections made with it can be closed.
pub async fn delete(
    tx: &mut Tx,
    user: &UserId,
    only: Option<(&AgentId, &ServerId)>,
) -> Result<Vec<Removed>> {
    let tenant = tx.tenant()?;
    let rows = sqlx::query!(
        r#"delete from credentials
           where tenant_id = $4 and user_id = $1
             and ($2::text is null or agent = $2) and ($3::text is null or server = $3)
           returning agent as "agent: AgentId", server as "server: ServerId", id as "id: CredentialId", generation,
                     case when issuer is not null then sealed end as tokens"#,
        user.as_str(),
        only.map(|(agent, _)| agent.as_str()),
        only.map(|(_, server)| server.as_str()),
        tenant.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let removed = rows.into_iter().map(|row| Removed {
        credential: CredentialRef {
            tenant,
            user: user.clone(),
            agent: row.agent,
            server: row.server,
            id: row.id,
            generation: row.generation.cast_unsigned(),
        },
        tokens: row.tokens,
    });
    Ok(removed.collect())
}

/// Removes the sign-ins at servers that were made until then: those of a user, or some of everybody's.
pub async fn delete_sign_ins(
    tx: &mut Tx,
    user: Option<&UserId>,
    until: OffsetDateTime,
) -> Result<Vec<Removed>> {
    let tenant = tx.tenant()?;
    let rows = sqlx::query!(
        r#"delete from credentials
           where tenant_id = $1 and id in (
             select id from credentials
             where tenant_id = $1 and issuer is not null and ($2::text is null or user_id = $2)
               and (signed_in_at is null or signed_in_at <= $3)
             limit $4
           )
           returning agent as "agent: AgentId", server as "server: ServerId", user_id as "user: UserId",
                     id as "id: CredentialId", generation, sealed"#,
        tenant.0,
        user.map(UserId::as_str),
        until,
        BATCH,
    )
    .fetch_all(tx.conn())
    .await?;
    let removed = rows.into_iter().map(|row| Removed {
        credential: CredentialRef {
            tenant,
            user: row.user,
            agent: row.agent,
            server: row.server,
            id: row.id,
            generation: row.generation.cast_unsigned(),
        },
        tokens: Some(row.sealed),
    });
    Ok(removed.collect())
}
