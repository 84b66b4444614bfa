//! What is known of the work that waits and of the pool, for the metrics; and what Postgres knows of the sizes of tables.
//! It plans by that, and a connection keeps its plans. Postgres itself looks
//! for tables that have grown once a minute: a new installation would work for so long with plans for empty tables.

use sqlx::{AssertSqlSafe, Executor as _};

use super::{Db, Tx, limits, limits::in_time};
use domain::error::Result;

/// The connections of the pool.
pub struct PoolLoad {
    pub idle: usize,
    pub in_use: usize,
    /// Who waits for a place in the pool. Whoever opens a connection has one.
    pub waiting: usize,
    /// Whether every place is taken.
    pub is_full: bool,
    /// How often a connection was lost or accepted no writes.
    pub troubles: u64,
}

/// The work of all tenants that waits. Ages are in seconds.
pub struct Backlog {
    pub runs: i32,
    pub oldest_run: f64,
    /// Requests that wait for the approval of others. What users do not answer about their own calls is nobody's work.
    pub approvals: i32,
    pub oldest_approval: f64,
    /// The largest part of its time, of 0 to 1, that one of them has waited.
    pub approvals_time_used: f64,
    /// Of these, those with less than a quarter of their time left.
    pub expiring_approvals: i32,
    pub deliveries: i32,
    pub oldest_delivery: f64,
    /// Changed and new tools that wait until somebody accepts them.
    pub changed_tools: i32,
    /// How long ago old rows were purged last; 0 before the first time.
    pub purge_age: f64,
}

/// Counts the work that waits. Needs the system role.
pub async fn get_backlog(tx: &mut Tx) -> Result<Backlog> {
    let backlog = sqlx::query_as!(
        Backlog,
        r#"with queued as (
             select count(*)::int as number, min(created_at) as oldest from runs where status = 'queued'
           ), pending as (
             select count(*)::int as number, min(made) as oldest,
                    max((now - made) / greatest(ends - made, 1)) as used,
                    (count(*) filter (where ends - now < (ends - made) / 4))::int as expiring
             from (
               -- The id begins with the milliseconds of its making; the system role may not read the column.
               select ('x0000' || translate(left(id::text, 13), '-', ''))::bit(64)::bigint / 1000.0 as made,
                      extract(epoch from expires_at) as ends, extract(epoch from statement_timestamp()) as now
               from approvals
               where state = 'pending' and expires_at > statement_timestamp() and cardinality(approvers) > 0
             ) waiting
           ), undelivered as (
             select count(*)::int as number, min(created_at) as oldest from webhook_deliveries
             where next_attempt_at is not null
           ), changed as (
             select (select count(*) from pinned_tools where accepted_at is null and standing <> 'recorded')
                    + (select count(*) from pinned_tools_of_all where accepted_at is null and standing <> 'recorded') as number
           )
           select queued.number as "runs!",
                  coalesce(extract(epoch from statement_timestamp() - queued.oldest), 0)::float8 as "oldest_run!",
                  pending.number as "approvals!",
                  coalesce(greatest(extract(epoch from statement_timestamp()) - pending.oldest, 0), 0)::float8
                    as "oldest_approval!",
                  coalesce(pending.used, 0)::float8 as "approvals_time_used!",
                  pending.expiring as "expiring_approvals!",
                  undelivered.number as "deliveries!",
                  coalesce(extract(epoch from statement_timestamp() - undelivered.oldest), 0)::float8
                    as "oldest_delivery!",
                  changed.number::int as "changed_tools!",
                  coalesce((select extract(epoch from statement_timestamp() - done_at) from jobs where name = 'retention'), 0)::float8
                    as "purge_age!"
           from queued, pending, undelivered, changed"#
    );
    Ok(backlog.fetch_one(tx.conn()).await?)
}

impl Db {
    /// How much the pool has to do.
    pub fn load(&self) -> PoolLoad {
        let status = self.pool.status();
        let in_use = status.size.saturating_sub(status.available);
        let is_full = in_use >= status.max_size;
        PoolLoad {
            idle: status.available,
            in_use,
            // The pool counts connections that are being opened, too.
            waiting: if is_full { status.waiting } else { 0 },
            is_full,
            troubles: self.health.troubles(),
        }
    }

    /// Analyses each table that has doubled since it was analysed last. A replica leaves
    /// out what another is analysing. Where the program does not own its tables, Postgres leaves them as they are.
    pub async fn analyze_grown(&self) -> Result<()> {
        let mut connection = in_time(self.pool.get()).await?;
        let grown = sqlx::query_scalar!(
            r#"select quote_ident(s.schemaname) || '.' || quote_ident(s.relname) as "name!"
               from pg_stat_user_tables s join pg_class c on c.oid = s.relid
               where s.schemaname = current_schema() and s.n_mod_since_analyze > 200 + greatest(c.reltuples, 0)"#
        )
        .fetch_all(&mut *connection)
        .await?;
        if !grown.is_empty() {
            // The SQL is safe: the names are quoted, and come from the catalog.
            let sql = format!(
                "begin; {}; analyze (skip_locked) {}; commit",
                limits(),
                grown.join(", ")
            );
            connection
                .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
                .await?;
        }
        connection.give_back();
        Ok(())
    }
}
