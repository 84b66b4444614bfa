//! Rows of credentials: one for each agent, server and user. A credential is replaced as a whole, and only in the
//! generation that the caller has seen. Its sealed values are read only by [`get_sealed`], and by `super::sealed` to be
//! sealed again.

use time::OffsetDateTime;

use super::Tx;
use domain::{
    credential::{CredentialMeta, CredentialRef, CredentialState},
    error::{Error, ErrorCode, Result},
    ids::{AgentId, CredentialId, ServerId, TenantId, UserId},
};

/// The largest number of sign-ins that one transaction deletes.
const BATCH: i64 = 200;

struct Row {
    tenant_id: TenantId,
    agent: AgentId,
    user_id: UserId,
    id: CredentialId,
    server: String,
    generation: i64,
    state: CredentialState,
    candidate: Option<i64>,
    last_generation: i64,
    is_proven: bool,
    candidate_refused: bool,
    notified: bool,
    updated_at: OffsetDateTime,
}

impl From<Row> for CredentialMeta {
    fn from(row: Row) -> Self {
        Self {
            id: row.id,
            server: row.server,
            generation: row.generation.cast_unsigned(),
            state: row.state,
            candidate: row.candidate.map(i64::cast_unsigned),
            last_generation: row.last_generation.cast_unsigned(),
            is_proven: row.is_proven,
            candidate_refused: row.candidate_refused,
            notified: row.notified,
            updated_at: row.updated_at,
        }
    }
}

/// A query for credentials without their sealed values: the SQL after the table, and its values.
macro_rules! rows {
    ($after:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            Row,
            r#"select c.tenant_id as "tenant_id: _", c.agent as "agent: _", c.user_id as "user_id: _", c.id as "id: _",
                      c.server, c.generation, c.state as "state: _", c.told_generation = c.generation as "notified!",
                      case when c.candidate_generation > c.generation then c.candidate_generation end as candidate,
                      greatest(c.generation, c.last_generation) as "last_generation!",
                      c.verified_at is not null as "is_proven!", c.candidate_refused, c.updated_at
               from credentials c "#
                + $after
                + " order by c.server"
            $(, $value)*
        )
    };
}

/// A user's credentials at an agent, by server.
pub async fn list_of_user(
    tx: &mut Tx,
    agent: &AgentId,
    user: &UserId,
) -> Result<Vec<CredentialMeta>> {
    let rows = rows!(
        "where c.tenant_id = $1 and c.agent = $2 and c.user_id = $3",
        tx.tenant()?.0,
        agent.as_str(),
        user.as_str(),
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// A user of an agent of a tenant.
pub type AgentUser = (TenantId, AgentId, UserId);

/// The credentials of many users of any tenants in one query, by server. Needs the system role.
pub async fn list_of_users<'a>(
    tx: &mut Tx,
    agent_users: impl Iterator<Item = &'a AgentUser>,
) -> Result<Vec<(AgentUser, CredentialMeta)>> {
    let (mut tenants, mut agents, mut users) = (Vec::new(), Vec::new(), Vec::new());
    for (tenant, agent, user) in agent_users {
        tenants.push(tenant.0);
        agents.push(agent.to_string());
        users.push(user.to_string());
    }
    let rows = rows!(
        "join unnest($1::uuid[], $2::text[], $3::text[]) wanted (tenant_id, agent, user_id)
           on c.tenant_id = wanted.tenant_id and c.agent = wanted.agent and c.user_id = wanted.user_id",
        &tenants,
        &agents,
        &users,
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    let agent_user = |row: &Row| (row.tenant_id, row.agent.clone(), row.user_id.clone());
    Ok(rows
        .into_iter()
        .map(|row| (agent_user(&row), row.into()))
        .collect())
}

/// The ids of a user's credentials at all agents.
pub async fn list_ids_of_user(tx: &mut Tx, user: &UserId) -> Result<Vec<CredentialId>> {
    let ids = sqlx::query_scalar!(
        r#"select id as "id: CredentialId" from credentials where tenant_id = $2 and user_id = $1"#,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// The active ones of these credentials, of any tenants, with their generations: a candidate is a second generation.
/// Needs the system role.
pub async fn list_active(
    tx: &mut Tx,
    ids: &[(TenantId, CredentialId)],
) -> Result<Vec<(TenantId, CredentialId, u64)>> {
    let (tenants, ids): (Vec<_>, Vec<_>) = ids.iter().map(|(tenant, id)| (tenant.0, id.0)).unzip();
    let rows = sqlx::query!(
        r#"select c.tenant_id as "tenant_id: TenantId", c.id as "id: CredentialId", c.generation, c.candidate_generation
           from unnest($1::uuid[], $2::uuid[]) wanted (tenant_id, id)
           join credentials c on c.tenant_id = wanted.tenant_id and c.id = wanted.id
           where c.state = 'active'"#,
        &tenants,
        &ids,
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows
        .into_iter()
        .flat_map(|row| {
            let generations = [Some(row.generation), row.candidate_generation];
            let of = move |generation: i64| (row.tenant_id, row.id, generation.cast_unsigned());
            generations.into_iter().flatten().map(of)
        })
        .collect())
}

/// The sealed values of this generation of a credential, or of its candidate. `None` if it has neither.
pub async fn get_sealed(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<Option<Vec<u8>>> {
    let sealed = sqlx::query_scalar!(
        r#"select coalesce(case when generation = $2 then sealed else candidate end, '') as "sealed!" from credentials
           where tenant_id = $3 and id = $1 and (generation = $2 or candidate_generation = $2)"#,
        id.0,
        generation.cast_signed(),
        tx.tenant()?.0,
    );
    Ok(sealed.fetch_optional(tx.conn()).await?)
}

/// Adds a credential of the transaction's tenant, or replaces one as a whole. `replaces` is the generation that the
/// caller has seen, or `None` if there was no credential. `Conflict` if there is another generation now, which then
/// stays.
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

/// Records that it is not known yet whether the server accepts a credential that was just stored.
pub async fn mark_unverified(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<()> {
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

/// Stores a candidate beside the active credential, in place of an earlier candidate, until [`promote`] or
/// [`drop_candidate`]. `beside` is the generation that the caller has seen. `Conflict` if there is another one now.
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

/// Makes a candidate the credential, in place of the one before. `false` if it is not the candidate any more.
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

/// Deletes a candidate that the server refused, and marks that its user must be notified. `false` if it is not the
/// candidate any more.
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

/// Marks a credential that needs attention: an active one as rejected, any one as quarantined, also when it is its
/// candidate that cannot be opened. `false` if it has another generation by now, or is marked already.
pub async fn mark(
    tx: &mut Tx,
    id: CredentialId,
    generation: u64,
    state: CredentialState,
    reason: &str,
) -> Result<bool> {
    let done = sqlx::query!(
        "update credentials set state = $3, reason = $4, updated_at = now()
         where tenant_id = $5 and id = $1
           and (generation = $2 and state = 'active'
             or $2 in (generation, candidate_generation) and $3 = 'quarantined' and state <> 'quarantined')",
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

/// The quarantined credentials of the tenant in the generation that calls would be made with, with their sealed values.
pub async fn list_quarantined(tx: &mut Tx) -> Result<Vec<(CredentialRef, Vec<u8>)>> {
    let tenant = tx.tenant()?;
    let rows = sqlx::query!(
        r#"select agent as "agent: AgentId", server as "server: ServerId", user_id as "user: UserId", id as "id: CredentialId",
                  coalesce(candidate_generation, generation) as "generation!", coalesce(candidate, sealed) as "sealed!"
           from credentials where tenant_id = $1 and state = 'quarantined' order by id"#,
        tenant.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let quarantined = rows.into_iter().map(|row| {
        let credential = CredentialRef {
            tenant,
            user: row.user,
            agent: row.agent,
            server: row.server,
            id: row.id,
            generation: row.generation.cast_unsigned(),
        };
        (credential, row.sealed)
    });
    Ok(quarantined.collect())
}

/// Makes a quarantined credential active again, if it still has the sealed values that were opened. What its user was told
/// of it is over.
pub async fn reactivate(tx: &mut Tx, credential: &CredentialRef, sealed: &[u8]) -> Result<bool> {
    let done = sqlx::query!(
        "update credentials set state = 'active', reason = null, told_generation = 0, updated_at = now()
         where tenant_id = $1 and id = $2 and state = 'quarantined' and coalesce(candidate, sealed) = $3",
        tx.tenant()?.0,
        credential.id.0,
        sealed,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Records that the server accepts a credential.
pub async fn mark_verified(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<()> {
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

/// Claims the notices for a user: the servers whose credentials need attention and of which the user was not notified
/// yet, each with what is wrong.
pub async fn take_unnotified(
    tx: &mut Tx,
    agent: &AgentId,
    user: &UserId,
) -> Result<Vec<(String, CredentialState)>> {
    let rows = sqlx::query!(
        r#"update credentials set told_generation = generation
           where tenant_id = $3 and agent = $1 and user_id = $2 and state <> 'active'
             and told_generation <> generation returning server, state as "state: CredentialState""#,
        agent.as_str(),
        user.as_str(),
        tx.tenant()?.0,
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.server, row.state))
        .collect())
}

/// Claims the notices for a user about refused candidates. Returns their servers.
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

/// A deleted credential.
pub struct DeletedCredential {
    pub credential: CredentialRef,
    /// The sealed tokens of a sign-in, so that they can be revoked.
    pub tokens: Option<Vec<u8>>,
}

/// Deletes the credentials of a user: all of them, or the one for a server of an agent. Returns them, so that
/// connections made with them can be closed.
pub async fn delete(
    tx: &mut Tx,
    user: &UserId,
    only: Option<(&AgentId, &ServerId)>,
) -> Result<Vec<DeletedCredential>> {
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
    let deleted = rows.into_iter().map(|row| DeletedCredential {
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
    Ok(deleted.collect())
}

/// Deletes at most 200 sign-ins at servers that were made until a time: of one user, or of all users. Returns them.
pub async fn delete_sign_ins(
    tx: &mut Tx,
    user: Option<&UserId>,
    until: OffsetDateTime,
) -> Result<Vec<DeletedCredential>> {
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
    let deleted = rows.into_iter().map(|row| DeletedCredential {
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
    Ok(deleted.collect())
}
