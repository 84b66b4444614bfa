//! Executes one migration.

use std::{sync::Mutex, time::Duration};

use anyhow::Context as _;
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, migrate::Migration, postgres::PgConnectOptions,
};
use tokio::time::Instant;

use super::{
    super::{roles::Roles, shards},
    Place, is_applied, read_applied, statements,
};
use domain::{backoff::spread, error::database::code};

/// The longest wait for a lock: so long may those wait who come after the migration.
const LOCK_TIMEOUT: &str = "2s";
/// The pause before the next attempt to get a lock. Those who had to wait can work meanwhile.
const PAUSE: Duration = Duration::from_secs(2);
/// How often it is asked who holds the lock that the migration waits for.
const LOOK: Duration = Duration::from_millis(500);
/// How often a migration is tried again that another process executed at the same moment. This happens only behind a
/// pooler without a direct address, where processes cannot exclude each other.
const COLLISIONS: u32 = 5;

/// Who holds a lock that a migration waits for. Other sessions' statements are not named: they may hold secrets.
const HOLDERS: &str = "
  select string_agg(format('process %s (%s)', pid, coalesce(nullif(concat_ws(', ', usename, nullif(application_name, ''),
           state, 'for ' || extract(epoch from now() - xact_start)::int || ' s'), ''), 'of another role')), ', ')
  from pg_stat_activity where pid = any(pg_blocking_pids($1))";

/// Makes the list of applied migrations, which has the form of sqlx's.
pub async fn create_list(connection: &mut PgConnection) -> sqlx::Result<()> {
    let sql = "do $$ begin
      create table if not exists _sqlx_migrations (
        version bigint primary key, description text not null, installed_on timestamptz not null default now(),
        success boolean not null, checksum bytea not null, execution_time bigint not null);
    exception when unique_violation or duplicate_table then null; end $$";
    sqlx::raw_sql(sql).execute(connection).await?;
    Ok(())
}

/// What is executed as a whole.
pub enum Step<'a> {
    /// A file, which names the roles of the database.
    File(&'a Migration, &'a Roles),
    /// Statements for one transaction that may be executed again.
    Sql(String),
}

/// Executes a step, and tries again until `end` while somebody else holds a lock that it needs.
pub async fn run(
    connection: &mut PgConnection,
    place: &Place<'_>,
    file: &str,
    step: &Step<'_>,
    end: Instant,
) -> anyhow::Result<()> {
    if let Step::File(migration, _) = step {
        anyhow::ensure!(
            !migration.no_tx || place.has_session || place.is_alone,
            "{file} cannot be applied by several processes at once through a pooler; run `chatelaine migrate` once, or \
             name Postgres itself in CHATELAINE_LISTEN_DATABASE_URL"
        );
    }
    tracing::info!(file, "migrating");
    let holders = Mutex::new(None);
    let mut collisions = 0;
    loop {
        let pid = sqlx::query_scalar("select pg_backend_pid()");
        let pid: i32 = pid.fetch_one(&mut *connection).await?;
        let done = tokio::select! {
            done = execute(connection, place, step) => done,
            never = watch(place.options, pid, file, &holders) => match never {},
        };
        let Err(error) = done else { return Ok(()) };
        if let Step::File(migration, _) = step
            && is_applied(&read_applied(connection).await?, migration)
        {
            return Ok(());
        }
        let failed = error.chain().find_map(|it| it.downcast_ref());
        match failed.and_then(code).as_deref() {
            // A lock that was not got in time, and a deadlock.
            Some("55P03" | "40P01") => {
                let held_by = holders.lock().ok().and_then(|mut holders| holders.take());
                let held_by =
                    held_by.unwrap_or_else(|| "somebody who was gone when asked".to_owned());
                anyhow::ensure!(
                    Instant::now() < end,
                    "{file} needs a lock that is held by {held_by}; end that session, or start again later. Nothing of \
                     it was applied"
                );
                tracing::warn!(
                    file,
                    held_by,
                    "a migration waits for a lock, and tries again"
                );
                tokio::time::sleep(spread(PAUSE, rand::random())).await;
            }
            // What the migration makes was made by another process a moment ago.
            Some("23505" | "42P07" | "42710" | "42701") if collisions < COLLISIONS => {
                collisions += 1;
                tokio::time::sleep(Duration::from_millis(200) * collisions).await;
            }
            Some("42P07") => {
                return Err(said(error)).context(format!(
                    "{file} cannot be applied: the database has tables that are not the service's; give it a database of its \
                     own"
                ));
            }
            _ => return Err(said(error)).context(format!("{file} cannot be applied")),
        }
    }
}

/// What Postgres said, once and without the line of its own source.
fn said(error: anyhow::Error) -> anyhow::Error {
    let failed: Option<&sqlx::Error> = error.chain().find_map(|cause| cause.downcast_ref());
    match failed.and_then(sqlx::Error::as_database_error) {
        Some(said) => anyhow::anyhow!("{}", said.message()),
        None => error,
    }
}

async fn execute(
    connection: &mut PgConnection,
    place: &Place<'_>,
    step: &Step<'_>,
) -> anyhow::Result<()> {
    let sql = match step {
        Step::File(migration, _) if migration.no_tx => {
            return Ok(build_index(connection, place, migration).await?);
        }
        Step::File(migration, roles) => roles.name_in(migration.sql.as_str()),
        Step::Sql(sql) => sql.clone(),
    };
    let mut tx = connection.begin().await?;
    if shards::is_sharded(&mut tx).await? {
        shards::migrate(&mut tx, &sql, LOCK_TIMEOUT).await?;
    } else {
        let limits =
            format!("set local lock_timeout = '{LOCK_TIMEOUT}'; set local statement_timeout = 0");
        sqlx::raw_sql(AssertSqlSafe(limits))
            .execute(&mut *tx)
            .await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
    }
    if let Step::File(migration, _) = step {
        record(&mut tx, migration).await?;
    }
    Ok(tx.commit().await?)
}

/// Executes a statement outside of a transaction. If it builds an index, an invalid one of an attempt that broke off is
/// dropped before, and one that is complete is kept.
async fn build_index(
    connection: &mut PgConnection,
    place: &Place<'_>,
    migration: &Migration,
) -> sqlx::Result<()> {
    if place.has_session {
        // The statement waits for transactions, as long as they last. Nobody waits for it meanwhile.
        let limits = "set lock_timeout = 0; set statement_timeout = 0";
        sqlx::raw_sql(limits).execute(&mut *connection).await?;
    }
    let statements = statements::read(migration.sql.as_str());
    let index = statements.first();
    let index = index.and_then(|it| statements::index_built_concurrently(&it.text));
    let mut is_built = false;
    if let Some(index) = index {
        let valid =
            "select indisvalid from pg_index where indexrelid = to_regclass(quote_ident($1))";
        let valid: Option<bool> = sqlx::query_scalar(valid)
            .bind(&index)
            .fetch_optional(&mut *connection)
            .await?;
        is_built = valid == Some(true);
        if valid == Some(false) {
            tracing::warn!(index, "an index that was not completed is built again");
            let drop = format!(r#"drop index concurrently if exists "{index}""#);
            sqlx::raw_sql(AssertSqlSafe(drop))
                .execute(&mut *connection)
                .await?;
        }
    }
    if !is_built {
        sqlx::raw_sql(migration.sql.clone())
            .execute(&mut *connection)
            .await?;
    }
    record(connection, migration).await
}

async fn record(connection: &mut PgConnection, migration: &Migration) -> sqlx::Result<()> {
    let sql =
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
               values ($1, $2, true, $3, 0)";
    sqlx::query(sql)
        .bind(migration.version)
        .bind(&*migration.description)
        .bind(&*migration.checksum)
        .execute(connection)
        .await?;
    Ok(())
}

/// Notes who holds the lock that the process `pid` of Postgres waits for, until the caller has enough.
async fn watch(
    options: &PgConnectOptions,
    pid: i32,
    file: &str,
    holders: &Mutex<Option<String>>,
) -> std::convert::Infallible {
    tokio::time::sleep(LOOK).await;
    // Without a second connection the migration goes on, and its error names nobody.
    let Ok(mut connection) = PgConnection::connect_with(options).await else {
        return std::future::pending().await;
    };
    let mut last = None;
    loop {
        let asked = sqlx::query_scalar(HOLDERS).bind(pid);
        let found: Option<String> = match asked.fetch_one(&mut connection).await {
            Ok(found) => found,
            Err(_) => return std::future::pending().await,
        };
        if let Some(found) = found {
            if last.as_ref() != Some(&found) {
                tracing::info!(file, waits_for = found, "a migration waits");
            }
            last = Some(found.clone());
            if let Ok(mut holders) = holders.lock() {
                *holders = Some(found);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
