//! Brings the schema up to date, while other replicas serve.
//!
//! - One replica migrates. It holds a lock of its session; the others ask for it again and again, and hold neither a
//!   transaction nor a snapshot meanwhile, because an index that is built concurrently waits for those.
//! - A migration waits two seconds for a lock at most, then lets those go on whom it kept waiting, and tries again.
//! - A file that begins with `-- no-transaction` has one statement that builds or drops an index concurrently. An invalid
//!   index that a broken attempt has left is dropped and built again.
//! - A database gets roles of its own before anything else ([`super::roles`]).
//! - Where tables are sharded, a file is executed by [`super::shards::migrate`].
//! - The table `releases` says which release may run on which schema.

mod old_chain;
mod plan;
mod releases;
mod run;
pub mod statements;

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use sqlx::{
    PgConnection,
    migrate::{Migration, Migrator},
    postgres::PgConnectOptions,
};
use tokio::{sync::watch, time::Instant};

pub use self::plan::{PlannedMigration, TableSize, plan};
pub(crate) use self::run::{Step, run};
use super::roles::{self, Roles};
use domain::{
    backoff::spread,
    finding::{Code, Finding},
    replica::Start,
};

/// The key of the lock of the process that migrates. Nothing else of the program takes locks of this kind.
const LOCK: i64 = 0x6368_6174_656c;
/// How often a process asks whether another one has ended its migrations.
const POLL: Duration = Duration::from_millis(500);
/// A process that migrates is at work all the time, but for short pauses. After so many seconds without a statement it hangs.
const HUNG_SECS: f64 = 10.0;

/// The process that holds the lock, if it has done nothing for some seconds. What a session of another role does is not
/// visible to everybody: it does not count as hung.
const HUNG_HOLDER: &str = "
  select format('process %s (%s)', pid, concat_ws(', ', usename, nullif(application_name, ''), state,
                'for ' || extract(epoch from clock_timestamp() - state_change)::int || ' s'))
  from pg_locks join pg_stat_activity using (pid)
  where locktype = 'advisory' and granted and classid = ($1 >> 32)::oid and objid = ($1 & 4294967295)::oid and objsubid = 1
    and database = (select oid from pg_database where datname = current_database())
    and state <> 'active' and state_change < clock_timestamp() - make_interval(secs => $2)";

/// The two addresses of the database are of two databases.
pub const ELSEWHERE: &str = "CHATELAINE_LISTEN_DATABASE_URL must name the database that DATABASE_URL names, and it names another";

/// Where migrations are executed.
pub struct Place<'a> {
    pub options: &'a PgConnectOptions,
    /// Whether a connection is one session of Postgres, with no pooler in between.
    pub has_session: bool,
    /// Whether the operator sees to it that no other process migrates.
    pub is_alone: bool,
}

/// The migrations of this program.
pub fn embedded() -> Migrator {
    sqlx::migrate!("../../migrations")
}

/// The names of the tables that the migrations make.
pub fn table_names() -> Vec<String> {
    let mut names = Vec::new();
    for migration in embedded().iter() {
        let lines = migration.sql.as_str().lines();
        let made = lines.filter_map(|line| line.strip_prefix("create table "));
        let name = |rest: &str| rest.split([' ', '(']).next().map(str::to_owned);
        names.extend(made.filter_map(name));
    }
    names
}

/// Applies migrations. Waits for another process that does so, as long as that is at work. For a process that hangs, and for
/// a lock that somebody holds on a table, it waits until `end`; the error names the holder.
pub async fn apply(
    migrator: &Migrator,
    connection: &mut PgConnection,
    place: &Place<'_>,
    end: Instant,
    start: &watch::Sender<Start>,
) -> anyhow::Result<()> {
    let mut is_first = true;
    loop {
        let applied = read_applied(connection).await?;
        refuse_changed(&applied, migrator)?;
        if is_current(&applied, migrator)
            && let Some(found) = roles::read(connection).await?
            && roles::are_ready(connection, &found).await?
            && releases::check(connection, &found).await? == releases::Known::Yes
        {
            return Ok(());
        }
        start.send_replace(Start::Migrating);
        if !place.has_session || try_lock(connection).await? {
            break;
        }
        if std::mem::take(&mut is_first) {
            tracing::info!("another process brings the schema up to date; waiting for it");
        }
        if Instant::now() >= end
            && let Some(holder) = find_hung(connection).await?
        {
            anyhow::bail!(
                "another process was to bring the schema up to date, and hangs: {holder}; stop it, or end its session with \
                 pg_terminate_backend, and start again"
            );
        }
        tokio::time::sleep(spread(POLL, rand::random())).await;
    }
    // Everything is read again: another process may have had the lock until now.
    let mut applied = read_applied(connection).await?;
    let schema = migrator.iter().next();
    let schema = schema.expect("the schema is the first migration");
    if old_chain::take_over(connection, &applied, schema).await? {
        applied = read_applied(connection).await?;
    }
    // Before anything else: the roles of a database that was copied for another login cannot be taken.
    let roles = roles::prepare(connection, place, end).await?;
    releases::check(connection, &roles).await?;
    run::create_list(connection).await?;
    for migration in pending(&applied, migrator) {
        let step = Step::File(migration, &roles);
        run(connection, place, &file_name(migration), &step, end).await?;
    }
    releases::record(connection, &roles).await?;
    if place.has_session {
        sqlx::query("select pg_advisory_unlock($1)")
            .bind(LOCK)
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// What a database has of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    Empty,
    /// Some migrations are to be applied.
    Older,
    Current,
}

/// What [`apply`] would find, without changing anything.
pub async fn examine(connection: &mut PgConnection) -> anyhow::Result<(Schema, Option<Finding>)> {
    let (migrator, applied) = (embedded(), read_applied(connection).await?);
    if applied.is_empty() {
        return Ok((Schema::Empty, None));
    }
    let roles = roles::read(connection).await?.unwrap_or_default();
    let refused = match refuse_changed(&applied, &migrator) {
        Ok(()) => releases::check(connection, &roles).await.err(),
        Err(error) => Some(error),
    };
    if let Some(error) = refused {
        let finding = Finding::new(Code::SchemaUnknown, error.to_string(), "");
        return Ok((Schema::Current, Some(finding)));
    }
    if !is_current(&applied, &migrator) {
        let pending: Vec<_> = pending(&applied, &migrator).map(file_name).collect();
        let finding = Finding::new(
            Code::SchemaOlder,
            format!(
                "the database lacks migrations of this release ({}), or one did not end",
                pending.join(", ")
            ),
            "the next start applies them",
        );
        return Ok((Schema::Older, Some(finding)));
    }
    let newer = applied.len() > migrator.iter().count();
    let finding = newer.then(|| {
        Finding::new(
            Code::SchemaNewer,
            releases::BESIDE,
            "start that release soon",
        )
    });
    Ok((Schema::Current, finding))
}

/// Refuses a database without the migrations that [`apply`] has applied at the direct address.
pub async fn require_applied(connection: &mut PgConnection) -> anyhow::Result<()> {
    let applied = read_applied(connection).await?;
    anyhow::ensure!(is_current(&applied, &embedded()), ELSEWHERE);
    Ok(())
}

/// The name of the file of a migration.
fn file_name(migration: &Migration) -> String {
    let (version, words) = (migration.version, migration.description.replace(' ', "_"));
    format!("{version:04}_{words}.sql")
}

/// The versions of the applied migrations, and the checksum of each that succeeded.
type Applied = BTreeMap<i64, Option<Vec<u8>>>;

async fn read_applied(connection: &mut PgConnection) -> anyhow::Result<Applied> {
    let exists: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(Applied::new());
    }
    let rows =
        sqlx::query_as("select version, case when success then checksum end from _sqlx_migrations");
    Ok(rows.fetch_all(connection).await?.into_iter().collect())
}

async fn try_lock(connection: &mut PgConnection) -> anyhow::Result<bool> {
    let locked = sqlx::query_scalar("select pg_try_advisory_lock($1)").bind(LOCK);
    locked
        .fetch_one(connection)
        .await
        .context("cannot ask whether another process migrates")
}

async fn find_hung(connection: &mut PgConnection) -> anyhow::Result<Option<String>> {
    let hung = sqlx::query_scalar(HUNG_HOLDER).bind(LOCK).bind(HUNG_SECS);
    Ok(hung.fetch_optional(connection).await?)
}

fn is_applied(applied: &Applied, migration: &Migration) -> bool {
    let checksum = applied.get(&migration.version).and_then(Option::as_deref);
    checksum == Some(&*migration.checksum)
}

/// Whether all migrations are applied.
fn is_current(applied: &Applied, migrator: &Migrator) -> bool {
    applied.values().all(Option::is_some)
        && migrator
            .iter()
            .all(|migration| is_applied(applied, migration))
}

fn pending<'a>(
    applied: &'a Applied,
    migrator: &'a Migrator,
) -> impl Iterator<Item = &'a Migration> {
    let is_pending = |migration: &&Migration| !is_applied(applied, migration);
    migrator.iter().filter(is_pending)
}

/// Refuses a database with migrations that are not those of this program.
fn refuse_changed(applied: &Applied, migrator: &Migrator) -> anyhow::Result<()> {
    if old_chain::is_of_old_chain(applied) {
        return Ok(());
    }
    let newest = migrator.iter().map(|migration| migration.version).max();
    let newest = newest.unwrap_or_default();
    for (version, checksum) in applied {
        let known = migrator.iter().find(|it| it.version == *version);
        match (known, checksum) {
            (Some(known), Some(checksum)) if *known.checksum != **checksum => anyhow::bail!(
                "{} is not what was applied to this database; start the program that applied it",
                file_name(known)
            ),
            (None, _) if *version < newest => anyhow::bail!(
                "the database has a migration {version} that this program does not know, although it knows later ones; \
                 start the program that made it"
            ),
            _ => {}
        }
    }
    Ok(())
}
