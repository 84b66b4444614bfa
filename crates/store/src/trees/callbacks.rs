//! Callbacks that are due when a tree of runs has ended.

use sqlx::types::Json;

use crate::Tx;
use domain::{
    error::Result,
    ids::{AgentId, ConversationId, RunId, TenantId, UserId},
    message::Part,
    principal::Principal,
    run::{Branch, RunStatus},
};

/// A run that has ended and whose callback has not been made.
pub struct DueCallback {
    pub run: RunId,
    pub session: ConversationId,
    pub agent: AgentId,
    pub principal: Principal,
    pub status: RunStatus,
    pub error: Option<String>,
    pub branch: Branch,
    pub callback: ConversationId,
}

/// The session that waits to be told of a run, when the run has ended.
pub async fn awaiting(tx: &mut Tx, run: RunId) -> Result<Option<(UserId, ConversationId)>> {
    let row = sqlx::query!(
        r#"select user_id as "user: UserId", callback_session as "session!: ConversationId" from runs
           where tenant_id = $2 and id = $1 and awaits_callback and status not in ('queued', 'running')"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.user, row.session)))
}

/// Claims the callback for this transaction; `None` when another one did.
pub async fn take_callback(tx: &mut Tx, run: RunId) -> Result<Option<DueCallback>> {
    let row = sqlx::query!(
        r#"update runs set called_back_at = now()
           where tenant_id = $2 and id = $1 and awaits_callback and status not in ('queued', 'running')
           returning conversation_id as "session: ConversationId", agent as "agent: AgentId",
                     principal as "principal: Json<Principal>", status as "status: RunStatus", error,
                     root_run as "root_run: RunId", parent_run as "parent_run: RunId", depth,
                     callback_session as "callback!: ConversationId""#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| DueCallback {
        run,
        session: row.session,
        agent: row.agent,
        principal: row.principal.0,
        status: row.status,
        error: row.error,
        branch: Branch {
            root: row.root_run.unwrap_or(run),
            parent: row.parent_run,
            depth: row.depth,
        },
        callback: row.callback,
    }))
}

/// Runs that have ended and whose callback is not made, and roots of trees without an open run that still
/// have their scope. Needs the system role; reads only their tenants and ids.
pub async fn list_unsettled(tx: &mut Tx, limit: i64) -> Result<Vec<(TenantId, RunId)>> {
    let rows = sqlx::query!(
        r#"select r.tenant_id as "tenant_id: TenantId", r.id as "id: RunId" from runs r
         where r.awaits_callback and r.status not in ('queued', 'running')
            or r.has_scope and not exists (
                 select 1 from runs o where o.tenant_id = r.tenant_id and o.root_run = r.id
                 and (o.status in ('queued', 'running') or o.awaits_callback))
         order by r.created_at limit $1"#,
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.tenant_id, row.id))
        .collect())
}

/// What the assistant said last in a run.
pub async fn last_answer(tx: &mut Tx, run: RunId) -> Result<Option<Vec<Part>>> {
    let parts = sqlx::query_scalar!(
        r#"select parts as "parts: Json<Vec<Part>>" from messages
           where tenant_id = $2 and run_id = $1 and role = 'assistant' and for_model
           order by seq desc limit 1"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(parts.map(|parts| parts.0))
}
