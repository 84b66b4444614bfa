//! Rows of runs that belong together: which run started which, the values of each run, and the session that
//! is told when a run ends. A writer that adds to a tree locks the conversation that it writes to and then
//! the root of the tree; a writer that closes a tree locks nothing else.

mod callbacks;
mod sessions;
mod values;

pub use self::{
    callbacks::{DueCallback, awaiting, last_answer, list_unsettled, take_callback},
    sessions::{Child, children, lock_sessions_below, runs_of, sessions_below, set_parent},
    values::{StoredValues, TreeValues, caller, insert_values, params_of, values},
};
use super::Tx;
use domain::{error::Result, ids::RunId, run::Branch};

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
           select id as "id!: RunId" from below"#,
        run.0,
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
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
        r#"update runs set cancel_requested = true
           where tenant_id = $2 and id = any($1) and status in ('queued', 'running') returning id as "id: RunId""#,
        &runs,
        tx.tenant()?.0,
    );
    Ok(open.fetch_all(tx.conn()).await?)
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
    let branch = sqlx::query_as!(
        Branch,
        r#"select root_run as "root!: _", parent_run as "parent: _", depth from runs where tenant_id = $2 and id = $1"#,
        run.0,
        tx.tenant()?.0,
    );
    Ok(branch.fetch_optional(tx.conn()).await?)
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
