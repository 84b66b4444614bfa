//! Rows of sign-ins that have begun: users who were sent to sign in at a server. A row works once, and expires.

use std::time::Duration;

use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{AgentId, ConversationId, ServerId, TenantId, UserId},
};

/// A user who was sent to sign in.
pub struct SignIn {
    pub id: Uuid,
    pub user: UserId,
    pub locale: Option<String>,
    pub agent: AgentId,
    pub server: ServerId,
    /// The conversation in which it began.
    pub conversation: Option<ConversationId>,
    /// The flow in which the user enters the code of the page.
    pub flow: Option<Uuid>,
    /// SHA-256 of the cookie of the browser that began it.
    pub browser_hash: Vec<u8>,
    /// The client that was registered for it.
    pub client: Option<Uuid>,
    /// The pending sign-in, sealed.
    pub sealed: Vec<u8>,
}

/// Adds a sign-in that expires after `life`.
pub async fn begin(tx: &mut Tx, sign_in: &SignIn, state_hash: &[u8], life: Duration) -> Result<()> {
    sqlx::query!(
        "insert into oauth_sign_ins (tenant_id, id, state_hash, browser_hash, user_id, locale, agent, server,
                                     conversation_id, flow_id, sealed, expires_at, client_id)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, now() + make_interval(secs => $12), $13)",
        tx.tenant()?.0,
        sign_in.id,
        state_hash,
        sign_in.browser_hash,
        sign_in.user.as_str(),
        sign_in.locale,
        sign_in.agent.as_str(),
        sign_in.server.as_str(),
        sign_in.conversation.map(|id| id.0),
        sign_in.flow,
        sign_in.sealed,
        life.as_secs_f64(),
        sign_in.client,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The tenant and id of the sign-in with a state. Needs the system role.
pub async fn find_by_state(tx: &mut Tx, state_hash: &[u8]) -> Result<Option<(TenantId, Uuid)>> {
    let row = sqlx::query!(
        r#"select tenant_id as "tenant_id: TenantId", id from oauth_sign_ins where state_hash = $1"#,
        state_hash
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.tenant_id, row.id)))
}

/// Uses a sign-in. `None` if it was used before or has expired.
pub async fn take(tx: &mut Tx, id: Uuid) -> Result<Option<SignIn>> {
    let taken = sqlx::query_as!(
        SignIn,
        r#"update oauth_sign_ins set used_at = now()
           where tenant_id = $1 and id = $2 and used_at is null and expires_at > now()
           returning id, user_id as "user: _", locale, agent as "agent: _", server as "server: _",
                     conversation_id as "conversation: _", flow_id as flow, client_id as client,
                     coalesce(browser_hash, '') as "browser_hash!", sealed"#,
        tx.tenant()?.0,
        id,
    );
    Ok(taken.fetch_optional(tx.conn()).await?)
}

/// Whether a sign-in that cannot be taken was used. If not, it has expired.
pub async fn is_used(tx: &mut Tx, id: Uuid) -> Result<bool> {
    let used = sqlx::query_scalar!(
        r#"select used_at is not null as "used!" from oauth_sign_ins where tenant_id = $1 and id = $2"#,
        tx.tenant()?.0,
        id,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(used.unwrap_or(false))
}

/// Whether the sign-in of a flow still exists. It cannot be deleted before the transaction ends.
pub async fn is_in_force(tx: &mut Tx, conversation: ConversationId, flow: Uuid) -> Result<bool> {
    let found = sqlx::query_scalar!(
        "select id from oauth_sign_ins where tenant_id = $1 and conversation_id = $2 and flow_id = $3 for key share",
        tx.tenant()?.0,
        conversation.0,
        flow,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(found.is_some())
}

/// Deletes the sign-ins of a user, or of all users: all of them, or those at one server of an agent.
pub async fn end(
    tx: &mut Tx,
    user: Option<&UserId>,
    only: Option<(&AgentId, &ServerId)>,
) -> Result<()> {
    sqlx::query!(
        "delete from oauth_sign_ins
         where tenant_id = $1 and ($2::text is null or user_id = $2)
           and ($3::text is null or agent = $3) and ($4::text is null or server = $4)",
        tx.tenant()?.0,
        user.map(UserId::as_str),
        only.map(|(agent, _)| agent.as_str()),
        only.map(|(_, server)| server.as_str()),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The tenants with sign-ins that expired at least this long ago. Needs the system role.
pub async fn list_tenants_with_old(tx: &mut Tx, age: Duration) -> Result<Vec<TenantId>> {
    let ids = sqlx::query_scalar!(
        r#"select distinct tenant_id as "id: TenantId" from oauth_sign_ins
           where expires_at < now() - make_interval(secs => $1)"#,
        age.as_secs_f64(),
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Deletes the tenant's sign-ins that expired at least this long ago.
pub async fn delete_old(tx: &mut Tx, age: Duration) -> Result<()> {
    sqlx::query!(
        "delete from oauth_sign_ins where tenant_id = $2 and expires_at < now() - make_interval(secs => $1)",
        age.as_secs_f64(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
