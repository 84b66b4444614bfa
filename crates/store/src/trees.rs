//! Rows of trees of runs: which run started which, the values of each run, the sessions below a session, and the
//! session that is notified when a run ends.
//!
//! A writer that adds to a tree locks the conversation that it writes to, and then the root of the tree. A writer
//! that closes a tree locks nothing else.

use sqlx::types::Json;
use time::OffsetDateTime;

use super::Tx;
use domain::{
    error::{Error, ErrorCode, Result},
    ids::{AgentId, ConversationId, RunId, TenantId, UserId},
    json::Members,
    message::Part,
    principal::Principal,
    run::{RunStatus, TreePosition},
};

/// The size of a tree, for a run that starts another one.
pub struct TreeSize {
    pub all: i64,
    /// The runs that the given run started.
    pub children: i64,
    /// Whether the given run is to stop.
    pub stopping: bool,
}

/// Counts the runs of a tree, and those that `parent` started. Locks the tree until the end of the transaction.
pub async fn count(tx: &mut Tx, root: RunId, parent: RunId) -> Result<TreeSize> {
    lock(tx, root).await?;
    let row = sqlx::query_as!(
        TreeSize,
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

/// Locks the tree of a run until the end of the transaction, so that no run is added to it.
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

/// All runs below a run, also those that have ended: the runs that it started, the runs that these started, and the
/// turns that were notified of them.
pub async fn list_descendants(tx: &mut Tx, run: RunId) -> Result<Vec<RunId>> {
    let ids = sqlx::query_scalar!(
        r#"with recursive below as (
             select tenant_id, id from runs where tenant_id = $2 and parent_run = $1
             union
             select r.tenant_id, r.id from runs r
             join below b on r.tenant_id = b.tenant_id and r.parent_run = b.id
             where r.tenant_id = $2
           )
           select id as "id!: RunId" from below"#,
        run.0,
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Asks runs to stop, and cancels their callbacks, because the sessions to notify stop as well. Returns the runs that
/// are open.
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
        r#"update runs set cancel_requested = true
           where tenant_id = $2 and id = any($1) and status in ('queued', 'running') returning id as "id: RunId""#,
        &runs,
        tx.tenant()?.0,
    );
    Ok(open.fetch_all(tx.conn()).await?)
}

/// The position of a run in its tree. A run without a position becomes a root.
pub async fn ensure_position(tx: &mut Tx, run: RunId) -> Result<Option<TreePosition>> {
    sqlx::query!(
        "update runs set root_run = id where tenant_id = $2 and id = $1 and root_run is null",
        run.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    let position = sqlx::query_as!(
        TreePosition,
        r#"select root_run as "root!: _", parent_run as "parent: _", depth from runs where tenant_id = $2 and id = $1"#,
        run.0,
        tx.tenant()?.0,
    );
    Ok(position.fetch_optional(tx.conn()).await?)
}

/// Adds a run to the tree of another run. `false` if the other run has no tree, or the run has one already.
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

/// Deletes the scope of a tree that has ended: no run of it is open, no callback is due, and no call of it waits for
/// approval. `run` is any of its runs. Returns whether the scope was deleted.
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

/// The sessions that runs of a session started, and the sessions below these.
pub async fn list_sessions_below(
    tx: &mut Tx,
    user: &UserId,
    session: ConversationId,
) -> Result<Vec<ConversationId>> {
    let ids = sqlx::query_scalar!(
        r#"with recursive below as (
             select c.tenant_id, c.id from conversations c
             join conversations p on p.tenant_id = c.tenant_id and p.id = c.parent_session
             where c.tenant_id = $3 and p.id = $1 and p.user_id = $2
             union
             select c.tenant_id, c.id from conversations c
             join below b on c.tenant_id = b.tenant_id and c.parent_session = b.id
             where c.tenant_id = $3
           )
           select id as "id!: ConversationId" from below"#,
        session.0,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Like [`list_sessions_below`], but locks all of them and the session itself: until the end of the transaction no
/// session is added below it, and every write in them has ended.
pub async fn lock_sessions_below(
    tx: &mut Tx,
    user: &UserId,
    session: ConversationId,
) -> Result<Vec<ConversationId>> {
    let mut below = Vec::new();
    loop {
        let ids: Vec<_> = below
            .iter()
            .chain([&session])
            .map(|id: &ConversationId| id.0)
            .collect();
        sqlx::query!(
            "select 1 as one from conversations where tenant_id = $2 and id = any($1)
             order by id for update",
            &ids,
            tx.tenant()?.0,
        )
        .fetch_all(tx.conn())
        .await?;
        let now = list_sessions_below(tx, user, session).await?;
        if now.len() == below.len() {
            return Ok(below);
        }
        below = now;
    }
}

/// The runs of sessions, each with whether it is open.
pub async fn list_runs(tx: &mut Tx, sessions: &[ConversationId]) -> Result<Vec<(RunId, bool)>> {
    let sessions: Vec<_> = sessions.iter().map(|session| session.0).collect();
    let rows = sqlx::query!(
        r#"select id as "id: RunId", status in ('queued', 'running') as "open!" from runs
           where tenant_id = $2 and conversation_id = any($1)"#,
        &sessions,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.open)).collect())
}

/// A session that a run started, and its state.
#[derive(Clone, Debug)]
pub struct Child {
    pub session: ConversationId,
    pub agent: AgentId,
    /// Its newest turn.
    pub run: RunId,
    pub status: RunStatus,
    pub error: Option<String>,
    pub created_at: OffsetDateTime,
}

/// The sessions that a session has started, the oldest first.
pub async fn list_children(
    tx: &mut Tx,
    user: &UserId,
    session: ConversationId,
) -> Result<Vec<Child>> {
    let children = sqlx::query_as!(
        Child,
        r#"select c.id as "session: _", c.agent as "agent: _", r.id as "run!: _", r.status as "status!: _", r.error,
                  c.created_at
           from conversations c
           join lateral (
             select id, status, error from runs
             where tenant_id = $3 and conversation_id = c.id and kind = 'turn'
             order by ordinal desc limit 1
           ) r on true
           where c.tenant_id = $3 and c.parent_session = $1 and c.user_id = $2 order by c.id"#,
        session.0,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(children.fetch_all(tx.conn()).await?)
}

/// Sets the parent of a session. `Conflict` if the parent was deleted.
pub async fn set_parent(
    tx: &mut Tx,
    session: ConversationId,
    parent: ConversationId,
) -> Result<()> {
    let done = sqlx::query!(
        "update conversations set parent_session = $2 where tenant_id = $3 and id = $1",
        session.0,
        parent.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await;
    if let Err(sqlx::Error::Database(error)) = &done
        && error.is_foreign_key_violation()
    {
        return Err(Error::conflict(
            ErrorCode::RunOver,
            "not started: the session that wants it was deleted",
        ));
    }
    done?;
    Ok(())
}

/// The values of a new run.
pub struct TreeValues<'a> {
    pub position: TreePosition,
    pub params: &'a Members,
    /// The sealed scope, if the run is a root.
    pub scope: Option<&'a [u8]>,
    pub callback: Option<ConversationId>,
}

/// Sets the position and the values of a run, unless it has a position already.
pub async fn insert_values(tx: &mut Tx, run: RunId, given: &TreeValues<'_>) -> Result<()> {
    let params = given.params.to_string();
    sqlx::query!(
        "update runs
         set root_run = $2, parent_run = $3, depth = $4, params = $5::text::json, scope = $6, callback_session = $7
         where tenant_id = $8 and id = $1 and root_run is null",
        run.0,
        given.position.root.0,
        given.position.parent.map(|parent| parent.0),
        given.position.depth,
        params,
        given.scope,
        given.callback.map(|session| session.0),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The values of a run: its own parameters, and the sealed scope of its tree with the root that the scope was
/// sealed for.
pub struct StoredValues {
    pub params: Members,
    pub scope: Option<(RunId, Vec<u8>)>,
}

/// The values of a run. `None` if the run or the root of its tree was deleted; then the run must not go on, because a
/// server that receives fewer values may allow more.
pub async fn get_values(tx: &mut Tx, run: RunId) -> Result<Option<StoredValues>> {
    let row = sqlx::query!(
        r#"select r.params as "params: Json<Members>", root.id as "root?: RunId", root.scope as "scope?"
           from runs r left join runs root on root.tenant_id = r.tenant_id and root.id = r.root_run
           where r.tenant_id = $2 and r.id = $1 and (r.root_run is null or root.id is not null)"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| StoredValues {
        params: row.params.map(|params| params.0).unwrap_or_default(),
        scope: row.root.zip(row.scope),
    }))
}

/// The newest parameters of a session that are not empty.
pub async fn find_params(tx: &mut Tx, session: ConversationId) -> Result<Members> {
    let params = sqlx::query_scalar!(
        r#"select params as "params!: Json<Members>" from runs
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
pub async fn get_caller(tx: &mut Tx, run: RunId) -> Result<Option<(ConversationId, Principal)>> {
    let row = sqlx::query!(
        r#"select conversation_id as "conversation_id: ConversationId", principal as "principal: Json<Principal>"
           from runs where tenant_id = $2 and id = $1"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.conversation_id, row.principal.0)))
}

/// A run that has ended and whose callback is not made yet.
pub struct DueCallback {
    pub run: RunId,
    pub session: ConversationId,
    pub agent: AgentId,
    pub principal: Principal,
    pub status: RunStatus,
    pub error: Option<String>,
    pub position: TreePosition,
    pub callback: ConversationId,
}

/// The user and the session to notify of a run that has ended. `None` if there is no callback to make.
pub async fn find_callback_session(
    tx: &mut Tx,
    run: RunId,
) -> Result<Option<(UserId, ConversationId)>> {
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

/// Claims the callback of a run for this transaction. `None` if another transaction has claimed it.
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
        position: TreePosition {
            root: row.root_run.unwrap_or(run),
            parent: row.parent_run,
            depth: row.depth,
        },
        callback: row.callback,
    }))
}

/// Makes no callback of any run of the tenant that still awaits one: in a database that was restored to an earlier time it
/// may have been made.
pub async fn drop_callbacks(tx: &mut Tx) -> Result<()> {
    sqlx::query!(
        "update runs set called_back_at = now() where tenant_id = $1 and awaits_callback",
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The ended runs whose callback is not made yet, and the roots of ended trees that still have their scope. Needs the
/// system role; reads only tenants and ids.
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

/// The last message of the assistant in a run.
pub async fn find_last_answer(tx: &mut Tx, run: RunId) -> Result<Option<Vec<Part>>> {
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
