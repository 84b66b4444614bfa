//! Rows of credentials: one per (agent, server, user), replaced as a whole and only in the generation that the
//! caller has seen. What is sealed leaves here only by [`sealed`], and by `super::sealed` to be sealed anew.

use time::OffsetDateTime;

use super::Tx;
use crate::domain::{
    credential::{CredentialMeta, CredentialRef, CredentialState},
    error::{Error, Result},
    ids::{AgentId, CredentialId, ServerId, UserId},
};

struct Row {
    agent: AgentId,
    user_id: UserId,
    id: CredentialId,
    server: String,
    generation: i64,
    state: CredentialState,
    notified: bool,
    updated_at: OffsetDateTime,
}

impl From<Row> for (AgentId, UserId, CredentialMeta) {
    fn from(row: Row) -> Self {
        let meta = CredentialMeta {
            id: row.id,
            server: row.server,
            generation: row.generation.cast_unsigned(),
            state: row.state,
            notified: row.notified,
            updated_at: row.updated_at,
        };
        (row.agent, row.user_id, meta)
    }
}

/// A user's credentials at an agent, by server.
pub async fn of_user(tx: &mut Tx, agent: &AgentId, user: &UserId) -> Result<Vec<CredentialMeta>> {
    let rows = of_users(tx, &[(agent.clone(), user.clone())]).await?;
    Ok(rows.into_iter().map(|(_, _, meta)| meta).collect())
}

/// The credentials of many users at once: pairs of agent and user, in one query, by server.
pub async fn of_users(
    tx: &mut Tx,
    whose: &[(AgentId, UserId)],
) -> Result<Vec<(AgentId, UserId, CredentialMeta)>> {
    let agents: Vec<_> = whose.iter().map(|(agent, _)| agent.to_string()).collect();
    let users: Vec<_> = whose.iter().map(|(_, user)| user.to_string()).collect();
    let rows = sqlx::query_as!(
        Row,
        r#"select agent as "agent: _", user_id as "user_id: _", id as "id: _", server, generation, state as "state: _",
                  told_generation = generation as "notified!", updated_at
           from credentials
           where tenant_id = $3 and (agent, user_id) in (select * from unnest($1::text[], $2::text[]))
           order by server"#,
        &agents,
        &users,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// The ids of a user's credentials at every agent.
pub async fn ids_of_user(tx: &mut Tx, user: &UserId) -> Result<Vec<CredentialId>> {
    let ids = sqlx::query_scalar!(
        r#"select id as "id: CredentialId" from credentials where tenant_id = $2 and user_id = $1"#,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Which of these credentials are still there, with generation and whether they are active.
pub async fn known(tx: &mut Tx, ids: &[CredentialId]) -> Result<Vec<(CredentialId, u64, bool)>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        r#"select id as "id: CredentialId", generation, state = 'active' as "active!" from credentials
           where tenant_id = $2 and id = any($1)"#,
        &ids,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let known = |id, generation: i64, active| (id, generation.cast_unsigned(), active);
    Ok(rows
        .into_iter()
        .map(|row| known(row.id, row.generation, row.active))
        .collect())
}

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
             set generation = $6, state = 'active', reason = null, sealed = $7, updated_at = now(), verified_at = now()
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
    Err(Error::Conflict(format!(
        "the credential for {} was changed meanwhile; look at it again",
        credential.server
    )))
}

/// What a credential holds, if this generation of it is still there.
pub async fn sealed(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<Option<Vec<u8>>> {
    let sealed = sqlx::query_scalar!(
        "select sealed from credentials where tenant_id = $3 and id = $1 and generation = $2",
        id.0,
        generation.cast_signed(),
        tx.tenant()?.0,
    );
    Ok(sealed.fetch_optional(tx.conn()).await?)
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
        state.as_str(),
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

/// Removes what a user has: all of it, or what is for one server of an agent. What was removed comes back, so that
/// connections made with it can be closed.
pub async fn delete(
    tx: &mut Tx,
    user: &UserId,
    only: Option<(&AgentId, &ServerId)>,
) -> Result<Vec<CredentialRef>> {
    let tenant = tx.tenant()?;
    let rows = sqlx::query!(
        r#"delete from credentials
           where tenant_id = $4 and user_id = $1
             and ($2::text is null or agent = $2) and ($3::text is null or server = $3)
           returning agent as "agent: AgentId", server as "server: ServerId", id as "id: CredentialId", generation"#,
        user.as_str(),
        only.map(|(agent, _)| agent.as_str()),
        only.map(|(_, server)| server.as_str()),
        tenant.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let removed = rows.into_iter().map(|row| CredentialRef {
        tenant,
        user: user.clone(),
        agent: row.agent,
        server: row.server,
        id: row.id,
        generation: row.generation.cast_unsigned(),
    });
    Ok(removed.collect())
}
