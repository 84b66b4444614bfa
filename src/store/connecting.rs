//! Opening connections, and looking after those of the pool: one that has gone silent, or that cannot be written any
//! more since its server became a standby, is closed and not used again.

use std::time::Duration;

use sqlx::{
    Connection, PgConnection, PgPool, Row,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::time::Instant;

use super::limits::is_away;
use crate::domain::secret::Secret;

/// A connection that was idle for no longer than this is taken without asking whether it still works.
const TRUSTED: Duration = Duration::from_secs(1);
/// How long a connection of the pool may take to say that it still works.
const PROBE: Duration = Duration::from_secs(3);
/// How long to wait for a connection of the pool.
const ACQUIRE: Duration = Duration::from_secs(10);
/// Between two attempts to reach a database that is not there yet.
const PAUSE: Duration = Duration::from_millis(500);

/// Opens the pool. Waits for as long as `wait` while the database is not there; another error is not waited out.
pub async fn open(url: &Secret, connections: u32, wait: Duration) -> anyhow::Result<PgPool> {
    let options: PgConnectOptions = url.expose().parse()?;
    let options = options.application_name("chatelaine");
    let end = Instant::now() + wait;
    let mut first = true;
    loop {
        let opened = pool(connections).connect_with(options.clone()).await;
        match opened {
            Err(error) if is_away(&error) && Instant::now() < end => {
                if std::mem::take(&mut first) {
                    tracing::warn!(%error, "waiting for the database");
                }
                tokio::time::sleep(PAUSE).await;
            }
            opened => return Ok(opened?),
        }
    }
}

fn pool(connections: u32) -> PgPoolOptions {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE)
        // A connection that was just used is there; asking each time would be a round trip per transaction.
        .test_before_acquire(false)
        .before_acquire(|connection, about| {
            Box::pin(async move {
                if about.idle_for > TRUSTED {
                    probe(connection.ping()).await?;
                }
                Ok(true)
            })
        })
        .after_release(|connection, _| Box::pin(probe(is_reusable(connection))))
}

/// Whether a connection that comes back can be used again: what is written with it is kept, and it is in no transaction
/// that was given up while it began. Outside of one, `now()` is the time of the statement.
async fn is_reusable(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let asked =
        "select current_setting('transaction_read_only') = 'off' and now() = statement_timestamp()";
    let row = sqlx::raw_sql(asked).fetch_one(connection).await?;
    row.try_get(0)
}

/// Whether what is written with a connection is kept.
pub async fn is_writable(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let row = sqlx::raw_sql("show transaction_read_only")
        .fetch_one(connection)
        .await?;
    Ok(row.try_get::<String, _>(0)? == "off")
}

async fn probe<T>(asked: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    tokio::time::timeout(PROBE, asked)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}
