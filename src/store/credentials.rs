//! Rows of credentials: one per (agent, server, user), replaced as a whole and only in the generation that
//! the caller has seen.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use crate::domain::{
    credential::{Credential, CredentialState},
    error::{Error, Result},
    ids::{AgentId, CredentialId, ServerId, TenantId, UserId},
};

struct Row {
    tenant_id: Uuid,
    id: Uuid,
    agent: String,
    server: String,
    user_id: String,
    generation: i64,
    state: String,
    reason: Option<String>,
    sealed: Vec<u8>,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
    verified_at: Option<OffsetDateTime>,
}

impl TryFrom<Row> for Credential {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let broken = |why: String| Error::internal(anyhow::anyhow!("credential {}: {why}", row.id));
        Ok(Self {
            tenant: TenantId(row.tenant_id),
            id: CredentialId(row.id),
            agent: AgentId::parse(&row.agent).map_err(broken)?,
            server: ServerId::parse(&row.server).map_err(broken)?,
            user: UserId(row.user_id.into()),
            generation: row.generation.cast_unsigned(),
            state: CredentialState::parse(&row.state)
                .ok_or_else(|| broken(format!("state {:?}", row.state)))?,
            reason: row.reason,
            sealed: row.sealed,
            created_at: row.created_at,
            updated_at: row.updated_at,
            verified_at: row.verified_at,
        })
    }
}

/// What a user has for a server of an agent.
pub async fn get(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    user: &UserId,
) -> Result<Option<Credential>> {
    let row = sqlx::query_as!(
        Row,
        "
        select tenant_id, id, agent, server, user_id, generation, state, reason, sealed, created_at, updated_at, verified_at
        from credentials
        where tenant_id = $4 and agent = $1 and server = $2 and user_id = $3
        ",
        agent.as_str(),
        server.as_str(),
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// What a user has, of one agent or of all, by agent and server.
pub async fn list(tx: &mut Tx, user: &UserId, agent: Option<&AgentId>) -> Result<Vec<Credential>> {
    let rows = sqlx::query_as!(
        Row,
        "
        select tenant_id, id, agent, server, user_id, generation, state, reason, sealed, created_at, updated_at, verified_at
        from credentials
        where tenant_id = $3 and user_id = $1 and ($2::text is null or agent = $2)
        order by agent, server
        ",
        user.as_str(),
        agent.map(AgentId::as_str),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// Adds a credential, or replaces one as a whole. `replaces` is the generation that the caller has seen, `None`
/// when there was none. Anything else there now is a conflict, and what is there stays.
pub async fn put(tx: &mut Tx, credential: &Credential, replaces: Option<u64>) -> Result<()> {
    let done = match replaces {
        None => insert(tx, credential).await?,
        Some(generation) => replace(tx, credential, generation).await?,
    };
    if done {
        return Ok(());
    }
    Err(Error::Conflict(format!(
        "the credential for {} was changed meanwhile; look at it again",
        credential.server
    )))
}

async fn insert(tx: &mut Tx, credential: &Credential) -> Result<bool> {
    let added = sqlx::query!(
        "
        insert into credentials
          (tenant_id, id, agent, server, user_id, generation, state, reason, sealed, created_at, updated_at, verified_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
        on conflict (tenant_id, agent, server, user_id) do nothing
        ",
        credential.tenant.0,
        credential.id.0,
        credential.agent.as_str(),
        credential.server.as_str(),
        credential.user.as_str(),
        credential.generation.cast_signed(),
        credential.state.as_str(),
        credential.reason,
        credential.sealed,
        credential.created_at,
        credential.updated_at,
        credential.verified_at,
    )
    .execute(tx.conn())
    .await?;
    Ok(added.rows_affected() == 1)
}

async fn replace(tx: &mut Tx, credential: &Credential, generation: u64) -> Result<bool> {
    if credential.generation <= generation {
        return Err(Error::internal(anyhow::anyhow!(
            "credential {}: its generation does not grow",
            credential.id
        )));
    }
    let replaced = sqlx::query!(
        "
        update credentials
        set generation = $4, state = $5, reason = $6, sealed = $7, updated_at = $8, verified_at = $9
        where tenant_id = $1 and id = $2 and generation = $3
          and agent = $10 and server = $11 and user_id = $12
        ",
        credential.tenant.0,
        credential.id.0,
        generation.cast_signed(),
        credential.generation.cast_signed(),
        credential.state.as_str(),
        credential.reason,
        credential.sealed,
        credential.updated_at,
        credential.verified_at,
        credential.agent.as_str(),
        credential.server.as_str(),
        credential.user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    Ok(replaced.rows_affected() == 1)
}

/// Changes the state of one generation of a credential; `false` when that is not the one in force.
/// `verified_at` is left as it is unless given.
pub async fn set_state(
    tx: &mut Tx,
    id: CredentialId,
    generation: u64,
    state: CredentialState,
    reason: Option<&str>,
    verified_at: Option<OffsetDateTime>,
) -> Result<bool> {
    let changed = sqlx::query!(
        "
        update credentials set state = $3, reason = $4, verified_at = coalesce($5, verified_at)
        where tenant_id = $6 and id = $1 and generation = $2
        ",
        id.0,
        generation.cast_signed(),
        state.as_str(),
        reason,
        verified_at,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(changed.rows_affected() == 1)
}

/// Removes what a user has for a server; its id and generation, so that connections made with it can be closed.
pub async fn delete(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    user: &UserId,
) -> Result<Option<(CredentialId, u64)>> {
    let deleted = sqlx::query!(
        "delete from credentials where tenant_id = $4 and agent = $1 and server = $2 and user_id = $3
         returning id, generation",
        agent.as_str(),
        server.as_str(),
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(deleted.map(|row| (CredentialId(row.id), row.generation.cast_unsigned())))
}

/// Some of a tenant's records that are not sealed with this version of its key, in the order of their ids,
/// those after `after` only.
pub async fn not_sealed_with(
    tx: &mut Tx,
    tenant: TenantId,
    version: u32,
    after: Option<CredentialId>,
    limit: i64,
) -> Result<Vec<Credential>> {
    let rows = sqlx::query_as!(
        Row,
        "
        select tenant_id, id, agent, server, user_id, generation, state, reason, sealed, created_at, updated_at, verified_at
        from credentials
        where tenant_id = $1 and tenant_key_version <> $2 and ($3::uuid is null or id > $3)
        order by id
        limit $4
        ",
        tenant.0,
        version.cast_signed(),
        after.map(|id| id.0),
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// Puts the same plaintexts, sealed anew, in the place of what was read; `resealed` goes with `read`, one by one.
/// A record that was replaced or sealed by somebody else meanwhile is left alone. One that was quarantined
/// is active again, since it could be opened. Answers how many were changed.
pub async fn reseal(
    tx: &mut Tx,
    tenant: TenantId,
    read: &[Credential],
    resealed: &[Vec<u8>],
) -> Result<u64> {
    let ids: Vec<Uuid> = read.iter().map(|credential| credential.id.0).collect();
    let before: Vec<Vec<u8>> = read
        .iter()
        .map(|credential| credential.sealed.clone())
        .collect();
    let changed = sqlx::query!(
        "
        update credentials c
        set sealed = n.resealed,
          state = case when c.state = 'quarantined' then 'active' else c.state end,
          reason = case when c.state = 'quarantined' then null else c.reason end
        from unnest($2::uuid[], $3::bytea[], $4::bytea[]) n (id, before, resealed)
        where c.tenant_id = $1 and c.id = n.id and c.sealed = n.before
        ",
        tenant.0,
        &ids,
        &before,
        resealed,
    )
    .execute(tx.conn())
    .await?;
    Ok(changed.rows_affected())
}
