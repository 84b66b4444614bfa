//! Rows of credentials: one per (agent, server, user), replaced as a whole and only in the generation that the
//! caller has seen. What is sealed leaves here only by [`sealed`], and by `super::sealed` to be sealed anew.

mod changes;

use time::OffsetDateTime;

pub use self::changes::{
    Removed, delete, delete_sign_ins, doubt, drop_candidate, mark, promote, put, put_candidate,
    take_refused_candidates, take_unnotified, verify,
};
use super::Tx;
use domain::{
    credential::{CredentialMeta, CredentialState},
    error::Result,
    ids::{AgentId, CredentialId, TenantId, UserId},
};

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

/// A query for credentials without their content: what follows the columns, and its values.
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
pub async fn of_user(tx: &mut Tx, agent: &AgentId, user: &UserId) -> Result<Vec<CredentialMeta>> {
    let rows = rows!(
        "where c.tenant_id = $1 and c.agent = $2 and c.user_id = $3",
        tx.tenant()?.0,
        agent.as_str(),
        user.as_str(),
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// Who has credentials at which agent of which tenant.
pub type Whose = (TenantId, AgentId, UserId);

/// The credentials of many users of any tenants, in one query; by server. Needs the system role.
pub async fn of_users<'a>(
    tx: &mut Tx,
    whose: impl Iterator<Item = &'a Whose>,
) -> Result<Vec<(Whose, CredentialMeta)>> {
    let (mut tenants, mut agents, mut users) = (Vec::new(), Vec::new(), Vec::new());
    for (tenant, agent, user) in whose {
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
    let whose = |row: &Row| (row.tenant_id, row.agent.clone(), row.user_id.clone());
    Ok(rows
        .into_iter()
        .map(|row| (whose(&row), row.into()))
        .collect())
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

/// Which of these credentials, of any tenants, are in force, in which generations: there may be a candidate beside the
/// one before. Needs the system role.
pub async fn in_force(
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

/// What a credential holds, or its candidate, if this generation of it is still there.
pub async fn sealed(tx: &mut Tx, id: CredentialId, generation: u64) -> Result<Option<Vec<u8>>> {
    let sealed = sqlx::query_scalar!(
        r#"select coalesce(case when generation = $2 then sealed else candidate end, '') as "sealed!" from credentials
           where tenant_id = $3 and id = $1 and (generation = $2 or candidate_generation = $2)"#,
        id.0,
        generation.cast_signed(),
        tx.tenant()?.0,
    );
    Ok(sealed.fetch_optional(tx.conn()).await?)
}
