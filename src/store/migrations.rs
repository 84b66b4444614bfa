//! Bringing the schema up to date. A release runs beside the next one: it accepts a database with one migration that it
//! does not know, and refuses one with more.

use std::{collections::HashSet, time::Duration};

use sqlx::{ConnectOptions as _, PgPool, migrate::MigrateError};

/// Migrations of a newer release that this one can run with.
const NEWER: usize = 1;

/// Applies the embedded migrations. Without the advisory lock that Citus and YugabyteDB lack, replicas
/// that start together may collide; whoever loses finds the work done when it looks again.
pub async fn apply(pool: &PgPool) -> anyhow::Result<()> {
    let mut migrator = sqlx::migrate!();
    migrator.set_locking(false);
    refuse_newer(pool, &migrator).await?;
    migrator.set_ignore_missing(true);
    // A migration that takes a second would be a warning with its whole text.
    let options = pool.connect_options();
    let quiet = PgPool::connect_lazy_with(options.as_ref().clone().disable_statement_logging());
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

/// Refuses a database that a later release has changed too much.
async fn refuse_newer(pool: &PgPool, migrator: &sqlx::migrate::Migrator) -> anyhow::Result<()> {
    let exists: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(pool)
        .await?;
    if !exists {
        return Ok(());
    }
    let applied: Vec<i64> = sqlx::query_scalar("select version from _sqlx_migrations order by 1")
        .fetch_all(pool)
        .await?;
    let known: HashSet<i64> = migrator.iter().map(|migration| migration.version).collect();
    let unknown: Vec<i64> = applied
        .into_iter()
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
