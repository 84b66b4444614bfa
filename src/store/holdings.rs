//! Rows of credentials as their users' connections need them: who has one, in which generation, in which
//! state. What is sealed leaves here only by [`sealed`].

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use crate::domain::{
    connection::Held,
    credential::CredentialState,
    error::{Error, Result},
    ids::{AgentId, CredentialId, ServerId, UserId},
};

struct Row {
    id: Uuid,
    server: String,
    generation: i64,
    state: String,
    told: bool,
    updated_at: OffsetDateTime,
}

impl TryFrom<Row> for Held {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let broken = || Error::Internal(anyhow::anyhow!("unknown state of a credential"));
        Ok(Self {
            id: CredentialId(row.id),
            server: row.server,
            generation: row.generation.cast_unsigned(),
            state: CredentialState::parse(&row.state).ok_or_else(broken)?,
            told: row.told,
            updated_at: row.updated_at,
        })
    }
}

/// A user's credentials at an agent, by server.
pub async fn of_user(tx: &mut Tx, agent: &AgentId, user: &UserId) -> Result<Vec<Held>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select id, server, generation, state, told_generation = generation as "told!", updated_at from credentials
         where tenant_id = $3 and agent = $1 and user_id = $2 order by server"#,
        agent.as_str(),
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// The ids of a user's credentials at every agent.
pub async fn ids_of_user(tx: &mut Tx, user: &UserId) -> Result<Vec<CredentialId>> {
    let ids = sqlx::query_scalar!(
        "select id from credentials where tenant_id = $2 and user_id = $1",
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(ids.into_iter().map(CredentialId).collect())
}

/// Removes all that a user has; what it was for, so that connections made with it can be closed.
pub async fn delete_all(
    tx: &mut Tx,
    user: &UserId,
) -> Result<Vec<(AgentId, ServerId, CredentialId, u64)>> {
    let rows = sqlx::query!(
        "delete from credentials where tenant_id = $2 and user_id = $1
         returning agent, server, id, generation",
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let broken = |why: String| Error::Internal(anyhow::anyhow!(why));
    rows.into_iter()
        .map(|row| {
            let agent = AgentId::parse(&row.agent).map_err(broken)?;
            let server = ServerId::parse(&row.server).map_err(broken)?;
            Ok((
                agent,
                server,
                CredentialId(row.id),
                row.generation.cast_unsigned(),
            ))
        })
        .collect()
}

/// The credentials of many users at once: pairs of agent and user, in one query.
pub async fn of_users(
    tx: &mut Tx,
    whose: &[(AgentId, UserId)],
) -> Result<Vec<(AgentId, UserId, Held)>> {
    let agents: Vec<_> = whose
        .iter()
        .map(|(agent, _)| agent.as_str().to_owned())
        .collect();
    let users: Vec<_> = whose
        .iter()
        .map(|(_, user)| user.as_str().to_owned())
        .collect();
    let rows = sqlx::query!(
        r#"select agent, user_id, id, server, generation, state, told_generation = generation as "told!", updated_at
         from credentials
         where tenant_id = $3 and (agent, user_id) in (select * from unnest($1::text[], $2::text[]))
         order by server"#,
        &agents,
        &users,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter()
        .map(|row| {
            let agent = AgentId::parse(&row.agent)
                .map_err(|reason| Error::Internal(anyhow::anyhow!(reason)))?;
            let user = UserId(row.user_id.into());
            let (id, server, generation, state) = (row.id, row.server, row.generation, row.state);
            let row = Row {
                id,
                server,
                generation,
                state,
                told: row.told,
                updated_at: row.updated_at,
            };
            Ok((agent, user, row.try_into()?))
        })
        .collect()
}

/// Which of these credentials are still there, with generation and state.
pub async fn known(tx: &mut Tx, ids: &[CredentialId]) -> Result<Vec<(CredentialId, u64, bool)>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        r#"select id, generation, state = 'active' as "active!" from credentials
           where tenant_id = $2 and id = any($1)"#,
        &ids,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            (
                CredentialId(row.id),
                row.generation.cast_unsigned(),
                row.active,
            )
        })
        .collect())
}

/// What a credential holds, if this generation of it is still there.
pub async fn sealed(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<Option<Vec<u8>>> {
    let sealed = sqlx::query_scalar!(
        "select sealed from credentials where tenant_id = $3 and id = $1 and generation = $2",
        id.0,
        generation.cast_signed(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(sealed)
}

/// Marks an active credential as one that needs attention. `false` when it is another one by now, or marked.
pub async fn mark(
    tx: &mut Tx,
    id: CredentialId,
    generation: u64,
    state: CredentialState,
    reason: &str,
) -> Result<bool> {
    let done = sqlx::query!(
        "update credentials set state = $3, reason = $4, updated_at = now()
         where tenant_id = $5 and id = $1 and generation = $2 and state = 'active'",
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

/// The server accepts it (again).
pub async fn verified(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<()> {
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

/// Claims the telling: the servers whose credentials need attention and whose user was not told yet.
pub async fn take_untold(tx: &mut Tx, agent: &AgentId, user: &UserId) -> Result<Vec<String>> {
    let servers = sqlx::query_scalar!(
        "update credentials set told_generation = generation
         where tenant_id = $3 and agent = $1 and user_id = $2 and state <> 'active'
           and told_generation <> generation returning server",
        agent.as_str(),
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(servers)
}
