//! Calls with their arguments, of tenants that keep them to try policies with. The arguments are sealed.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{AgentId, ServerId, UserId},
    policy::Origin,
};

/// One call.
pub struct KeptCall {
    /// Later calls have greater ids.
    pub id: Uuid,
    pub at: OffsetDateTime,
    pub user: String,
    pub agent: AgentId,
    pub server: ServerId,
    pub tool: String,
    pub origin: Origin,
    pub sealed: Vec<u8>,
}

/// A call that is to be kept.
pub struct NewCall<'a> {
    pub id: Uuid,
    pub user: &'a UserId,
    pub agent: &'a AgentId,
    pub server: &'a ServerId,
    pub tool: &'a str,
    pub origin: Origin,
    pub sealed: &'a [u8],
}

/// Keeps a call, if the tenant keeps calls.
pub async fn put(tx: &mut Tx, call: &NewCall<'_>) -> Result<()> {
    sqlx::query!(
        "insert into kept_calls (tenant_id, id, user_id, agent, server, tool, origin, sealed)
         select id, $2, $3, $4, $5, $6, $7, $8 from tenants where id = $1 and retention ? 'call_arguments'",
        tx.tenant()?.0,
        call.id,
        call.user.as_str(),
        call.agent.as_str(),
        call.server.as_str(),
        call.tool,
        call.origin as Origin,
        call.sealed,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Which calls are read. Absent: of every agent, of every user.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    pub agent: Option<&'a AgentId>,
    pub user: Option<&'a UserId>,
    pub since: OffsetDateTime,
    /// Only those after this one.
    pub after: Option<Uuid>,
    pub limit: i64,
}

/// Kept calls, the oldest first.
pub async fn list(tx: &mut Tx, which: Selection<'_>) -> Result<Vec<KeptCall>> {
    let calls = sqlx::query_as!(
        KeptCall,
        r#"select id, at, user_id as "user", agent as "agent: _", server as "server: _", tool, origin as "origin: _", sealed
           from kept_calls
           where tenant_id = $1 and ($2::text is null or agent = $2) and ($3::text is null or user_id = $3)
             and at >= $4 and ($5::uuid is null or id > $5)
           order by id limit $6"#,
        tx.tenant()?.0,
        which.agent.map(AgentId::as_str),
        which.user.map(UserId::as_str),
        which.since,
        which.after,
        which.limit,
    );
    Ok(calls.fetch_all(tx.conn()).await?)
}

/// Calls of an agent before this one, the newest first: at most `limit`, none before `since`.
pub async fn list_before(
    tx: &mut Tx,
    agent: &AgentId,
    before: Uuid,
    since: OffsetDateTime,
    limit: i64,
) -> Result<Vec<KeptCall>> {
    let calls = sqlx::query_as!(
        KeptCall,
        r#"select id, at, user_id as "user", agent as "agent: _", server as "server: _", tool, origin as "origin: _", sealed
           from kept_calls where tenant_id = $1 and agent = $2 and id < $3 and at >= $4
           order by id desc limit $5"#,
        tx.tenant()?.0,
        agent.as_str(),
        before,
        since,
        limit,
    );
    Ok(calls.fetch_all(tx.conn()).await?)
}
