//! Rows of runs that belong together: which run started which, the values of each run, and the session that
//! is told when a run ends. A writer that adds to a tree locks the conversation that it writes to and then
//! the root of the tree; a writer that closes a tree locks nothing else.

mod sessions;

use serde_json::{Map, Value};
use sqlx::types::Json;

pub use self::sessions::{
    Child, children, lock_sessions_below, runs_of, sessions_below, set_parent,
};
use super::Tx;
use crate::domain::{
    error::{Error, Result},
    ids::{AgentId, ConversationId, RunId, TenantId, UserId},
    message::Part,
    principal::Principal,
    run::{Branch, RunStatus},
};

/// What a new run is given.
pub struct TreeValues<'a> {
    pub branch: Branch,
    pub params: &'a Map<String, Value>,
    /// Sealed; of a root.
    pub scope: Option<&'a [u8]>,
    pub callback: Option<ConversationId>,
}

/// Gives a run its place and its values, unless it has a place already.
pub async fn insert_values(tx: &mut Tx, run: RunId, given: &TreeValues<'_>) -> Result<()> {
    let params = serde_json::to_string(given.params).map_err(Error::internal)?;
    sqlx::query!(
        "update runs
         set root_run = $2, parent_run = $3, depth = $4, params = $5::text::json, scope = $6, callback_session = $7
         where tenant_id = $8 and id = $1 and root_run is null",
        run.0,
        given.branch.root.0,
        given.branch.parent.map(|parent| parent.0),
        given.branch.depth,
        params,
        given.scope,
        given.callback.map(|session| session.0),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The size of a tree, for a run that starts one more.
pub struct Count {
    pub all: i64,
    /// Those that the run started.
    pub children: i64,
    /// Somebody has asked the run to stop.
    pub stopping: bool,
}

/// How many there are in a tree, and how many of them a run started. Locks the tree until the end of the transaction.
pub async fn count(tx: &mut Tx, root: RunId, parent: RunId) -> Result<Count> {
    lock(tx, root).await?;
    let row = sqlx::query_as!(
        Count,
        r#"select count(*) as "all!", count(*) filter (where parent_run = $2) as "children!",
                  coalesce(bool_or(cancel_requested) filter (where id = $2), true) as "stopping!"
           from runs where tenant_id = $3 and root_run = $1"#,
        root.0,
        parent.0,
        tx.tenant()?.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(row)
}

/// Locks the tree of a run until the end of the transaction: nothing is added to it.
pub async fn lock(tx: &mut Tx, run: RunId) -> Result<()> {
    sqlx::query!(
        "select 1 as one from runs
         where tenant_id = $2
           and id = (select coalesce(root_run, id) from runs where tenant_id = $2 and id = $1)
         for update",
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(())
}

/// The runs below one, whatever became of them: those that it started, those that these started, and the turns that
/// were told of them.
pub async fn descendants(tx: &mut Tx, run: RunId) -> Result<Vec<RunId>> {
    let ids = sqlx::query_scalar!(
        r#"with recursive below as (
             select tenant_id, id from runs where tenant_id = $2 and parent_run = $1
             union
             select r.tenant_id, r.id from runs r
             join below b on r.tenant_id = b.tenant_id and r.parent_run = b.id
             where r.tenant_id = $2
           )
           select id as "id!" from below"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(ids.into_iter().map(RunId).collect())
}

/// Asks runs to stop, and cancels their callbacks, since the sessions to be told are stopped as well. Returns
/// the runs that are open.
pub async fn stop(tx: &mut Tx, runs: &[RunId]) -> Result<Vec<RunId>> {
    let runs: Vec<_> = runs.iter().map(|run| run.0).collect();
    sqlx::query!(
        "update runs set called_back_at = now()
         where tenant_id = $2 and id = any($1) and awaits_callback",
        &runs,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    let open = sqlx::query_scalar!(
        "update runs set cancel_requested = true
         where tenant_id = $2 and id = any($1) and status in ('queued', 'running') returning id",
        &runs,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(open.into_iter().map(RunId).collect())
}

/// Where a run stands. One that nobody gave a place becomes a root.
pub async fn branch_of(tx: &mut Tx, run: RunId) -> Result<Option<Branch>> {
    sqlx::query!(
        "update runs set root_run = id where tenant_id = $2 and id = $1 and root_run is null",
        run.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    let row = sqlx::query!(
        r#"select root_run as "root!", parent_run, depth from runs where tenant_id = $2 and id = $1"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| Branch {
        root: RunId(row.root),
        parent: row.parent_run.map(RunId),
        depth: row.depth,
    }))
}

/// Makes a run go on with the tree of another one, if that has a tree and the run has none; whether it does.
pub async fn join_tree(tx: &mut Tx, run: RunId, other: RunId) -> Result<bool> {
    let done = sqlx::query!(
        "update runs r set root_run = o.root_run, parent_run = o.id, depth = o.depth, params = o.params
         from runs o
         where r.tenant_id = $3 and r.id = $1 and r.root_run is null
           and o.tenant_id = $3 and o.id = $2 and o.root_run is not null",
        run.0,
        other.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The values of a run: its own parameters, and the sealed scope of its tree with the root that the scope was
/// sealed for.
pub struct StoredValues {
    pub params: Map<String, Value>,
    pub scope: Option<(RunId, Vec<u8>)>,
}

/// `None` when the run or the root of its tree is gone. Without its scope a run must not go on: a server that
/// receives fewer values may allow more.
pub async fn values(tx: &mut Tx, run: RunId) -> Result<Option<StoredValues>> {
    let row = sqlx::query!(
        r#"select r.params as "params: Json<Map<String, Value>>", root.id as "root?", root.scope as "scope?"
           from runs r left join runs root on root.tenant_id = r.tenant_id and root.id = r.root_run
           where r.tenant_id = $2 and r.id = $1 and (r.root_run is null or root.id is not null)"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| StoredValues {
        params: row.params.map(|params| params.0).unwrap_or_default(),
        scope: row.root.map(RunId).zip(row.scope),
    }))
}

/// The parameters that a session was given last.
pub async fn params_of(tx: &mut Tx, session: ConversationId) -> Result<Map<String, Value>> {
    let params = sqlx::query_scalar!(
        r#"select params as "params!: Json<Map<String, Value>>" from runs
           where tenant_id = $2 and conversation_id = $1 and params is not null and params::text <> '{}'
           order by ordinal desc limit 1"#,
        session.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(params.map(|params| params.0).unwrap_or_default())
}

/// The conversation and the principal of a run that calls a tool of the orchestrator.
pub async fn caller(tx: &mut Tx, run: RunId) -> Result<Option<(ConversationId, Principal)>> {
    let row = sqlx::query!(
        r#"select conversation_id, principal as "principal: Json<Principal>"
           from runs where tenant_id = $2 and id = $1"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (ConversationId(row.conversation_id), row.principal.0)))
}

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
        r#"select user_id, callback_session as "session!" from runs
           where tenant_id = $2 and id = $1 and awaits_callback and status not in ('queued', 'running')"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (UserId(row.user_id.into()), ConversationId(row.session))))
}

/// Claims the callback for this transaction; `None` when another one did.
pub async fn take_callback(tx: &mut Tx, run: RunId) -> Result<Option<DueCallback>> {
    let row = sqlx::query!(
        r#"update runs set called_back_at = now()
           where tenant_id = $2 and id = $1 and awaits_callback and status not in ('queued', 'running')
           returning conversation_id, agent, principal as "principal: Json<Principal>", status, error,
                     root_run, parent_run, depth, callback_session as "callback!""#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let Some(row) = row else { return Ok(None) };
    let broken = || Error::Internal(anyhow::anyhow!("run {run} cannot be read"));
    Ok(Some(DueCallback {
        run,
        session: ConversationId(row.conversation_id),
        agent: AgentId::parse(&row.agent).map_err(|_| broken())?,
        principal: row.principal.0,
        status: RunStatus::parse(&row.status).ok_or_else(broken)?,
        error: row.error,
        branch: Branch {
            root: row.root_run.map_or(run, RunId),
            parent: row.parent_run.map(RunId),
            depth: row.depth,
        },
        callback: ConversationId(row.callback),
    }))
}

/// Deletes the scope of a tree that is over: no run of it is open, no callback is left, and no call of it
/// waits for consent. `run` is any of its runs.
pub async fn close(tx: &mut Tx, run: RunId) -> Result<bool> {
    let root = sqlx::query_scalar!(
        "select id from runs
         where tenant_id = $2 and id = (select root_run from runs where tenant_id = $2 and id = $1)
           and has_scope
         for update",
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let Some(root) = root else { return Ok(false) };
    let done = sqlx::query!(
        "update runs set scope = null
         where tenant_id = $2 and id = $1
           and not exists (select 1 from runs where tenant_id = $2 and root_run = $1
                           and (status in ('queued', 'running') or awaits_callback))
           and not exists (select 1 from approvals a
                           join runs r on r.tenant_id = a.tenant_id and r.id = a.run_id
                           where a.tenant_id = $2 and r.root_run = $1
                             and a.state in ('pending', 'approved', 'executing'))",
        root,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Runs that have ended and whose callback is not made, and roots of trees without an open run that still
/// have their scope. Needs the system role; reads only their tenants and ids.
pub async fn list_unsettled(tx: &mut Tx, limit: i64) -> Result<Vec<(TenantId, RunId)>> {
    let rows = sqlx::query!(
        "select r.tenant_id, r.id from runs r
         where r.awaits_callback and r.status not in ('queued', 'running')
            or r.has_scope and not exists (
                 select 1 from runs o where o.tenant_id = r.tenant_id and o.root_run = r.id
                 and (o.status in ('queued', 'running') or o.awaits_callback))
         order by r.created_at limit $1",
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (TenantId(row.tenant_id), RunId(row.id)))
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
