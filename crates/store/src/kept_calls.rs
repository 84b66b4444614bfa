//! Calls with their arguments, of tenants that keep them to try policies with. The arguments are sealed.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{AgentId, ApiKeyId, ServerId, UserId},
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
    /// The key of a guest or a program, who have no row among the users.
    pub own_key: Option<ApiKeyId>,
    pub agent: &'a AgentId,
    pub server: &'a ServerId,
    pub tool: &'a str,
    pub origin: Origin,
    pub sealed: &'a [u8],
}

/// Keeps a call, if the tenant keeps calls and its user was not deleted meanwhile. A deletion of the user waits for this
/// transaction, and then deletes the call: it changes the row of the user, or of the key of a guest or a program, first.
pub async fn put(tx: &mut Tx, call: &NewCall<'_>) -> Result<()> {
    let tenant = tx.tenant()?.0;
    if !has_user(tx, call).await? {
        return Ok(());
    }
    sqlx::query!(
        "insert into kept_calls (tenant_id, id, user_id, agent, server, tool, origin, sealed)
         select id, $2, $3, $4, $5, $6, $7, $8 from tenants where id = $1 and retention ? 'call_arguments'
         on conflict (tenant_id, id) do nothing",
        tenant,
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

/// Whether the user of a call, or the key of a guest or a program, is still there. It stays so until the end of the
/// transaction.
async fn has_user(tx: &mut Tx, call: &NewCall<'_>) -> Result<bool> {
    let tenant = tx.tenant()?.0;
    let person = sqlx::query_scalar!(
        "select user_id from users where tenant_id = $1 and user_id = $2 for key share",
        tenant,
        call.user.as_str(),
    );
    if person.fetch_optional(tx.conn()).await?.is_some() {
        return Ok(true);
    }
    let key = sqlx::query_scalar!(
        "select id from api_keys where tenant_id = $1 and id = $2 and revoked_at is null for share",
        tenant,
        call.own_key.map(|key| key.0),
    );
    Ok(key.fetch_optional(tx.conn()).await?.is_some())
}

/// Which calls are read. Absent: of every agent, of every user.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    pub agent: Option<&'a AgentId>,
    pub user: Option<&'a UserId>,
    pub since: OffsetDateTime,
    /// Only those after this one.
    pub after: Option<Uuid>,
    /// Only those before this one.
    pub before: Option<Uuid>,
    pub limit: i64,
}

/// Kept calls, the oldest first.
pub async fn list(tx: &mut Tx, which: Selection<'_>) -> Result<Vec<KeptCall>> {
    let calls = sqlx::query_as!(
        KeptCall,
        r#"select id, at, user_id as "user", agent as "agent: _", server as "server: _", tool, origin as "origin: _", sealed
           from kept_calls
           where tenant_id = $1 and ($2::text is null or agent = $2) and ($3::text is null or user_id = $3)
             and at >= $4 and ($5::uuid is null or id > $5) and ($6::uuid is null or id < $6)
           order by id limit $7"#,
        tx.tenant()?.0,
        which.agent.map(AgentId::as_str),
        which.user.map(UserId::as_str),
        which.since,
        which.after,
        which.before,
        which.limit,
    );
    Ok(calls.fetch_all(tx.conn()).await?)
}

/// The last call of an agent that is older than the `most` calls before this one. `None` when there are no more than
/// these since `since`.
pub async fn find_older(
    tx: &mut Tx,
    agent: &AgentId,
    before: Uuid,
    since: OffsetDateTime,
    most: i64,
) -> Result<Option<Uuid>> {
    let found = sqlx::query_scalar!(
        "select id from kept_calls where tenant_id = $1 and agent = $2 and id < $3 and at >= $4
         order by id desc offset $5 limit 1",
        tx.tenant()?.0,
        agent.as_str(),
        before,
        since,
        most,
    );
    Ok(found.fetch_optional(tx.conn()).await?)
}
