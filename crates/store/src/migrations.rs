//! Brings the schema up to date. A release can run beside the next one: it accepts a database with one migration that
//! it does not know, and refuses a database with more.

mod old_chain;

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use sqlx::{
    ConnectOptions as _, PgConnection,
    migrate::{MigrateError, Migration, Migrator},
    postgres::PgConnectOptions,
};

use super::pool::single;

/// The largest number of unknown migrations that this release accepts.
const NEWER: usize = 1;

/// Applies the embedded migrations. There is no advisory lock, because Citus and YugabyteDB have none. So replicas that
/// start together may collide; one of them then tries again and finds the migration applied.
pub async fn apply(
    connection: &mut PgConnection,
    options: &PgConnectOptions,
) -> anyhow::Result<()> {
    let mut migrator = migrator();
    migrator.set_locking(false);
    let mut applied = read_applied(connection).await?;
    let schema = migrator.iter().next();
    let schema = schema.expect("the schema is the first migration");
    if old_chain::take_over(connection, &applied, schema).await? {
        applied = read_applied(connection).await?;
    }
    refuse_newer(&applied, &migrator)?;
    if is_current(&applied, &migrator) {
        return Ok(());
    }
    migrator.set_ignore_missing(true);
    // Otherwise a migration that takes a second would be logged as a warning with its whole text.
    let quiet = single(options.clone().disable_statement_logging());
    let mut tries = 0;
    let done = loop {
        match migrator.run(&quiet).await {
            Ok(()) => break Ok(()),
            Err(MigrateError::Execute(_) | MigrateError::ExecuteMigration(..)) if tries < 5 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(200 * tries)).await;
            }
            Err(error) => break Err(error.into()),
        }
    };
    quiet.close().await;
    done
}

/// Refuses a database without the migrations that [`apply`] has applied at the direct address.
pub async fn require_applied(connection: &mut PgConnection) -> anyhow::Result<()> {
    let applied = read_applied(connection).await?;
    anyhow::ensure!(
        is_current(&applied, &migrator()),
        "CHATELAINE_LISTEN_DATABASE_URL must name the database that DATABASE_URL names, and it names another"
    );
    Ok(())
}

fn migrator() -> Migrator {
    sqlx::migrate!("../../migrations")
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

/// Whether all migrations are applied. Then no further connection is needed.
fn is_current(applied: &Applied, migrator: &Migrator) -> bool {
    let is_applied = |migration: &Migration| {
        let checksum = applied.get(&migration.version).and_then(Option::as_deref);
        checksum == Some(&*migration.checksum)
    };
    applied.values().all(Option::is_some) && migrator.iter().all(is_applied)
}

/// Refuses a database that a later release has changed too much.
fn refuse_newer(applied: &Applied, migrator: &Migrator) -> anyhow::Result<()> {
    let known: HashSet<i64> = migrator.iter().map(|migration| migration.version).collect();
    let unknown: Vec<i64> = applied
        .keys()
        .copied()
        .filter(|version| !known.contains(version))
        .collect();
    let newest = known.iter().max().copied().unwrap_or_default();
    if unknown.len() > NEWER || unknown.iter().any(|version| *version < newest) {
        anyhow::bail!(
            "the database has migrations that this release does not know ({unknown:?}; this release knows those up to \
             {newest}); start the release that made them, or the one before it"
        );
    }
    if let [version] = unknown[..] {
        tracing::warn!(
            version,
            "a newer release has changed the database; this one runs beside it"
        );
    }
    Ok(())
}
