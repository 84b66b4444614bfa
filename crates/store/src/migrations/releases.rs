//! Which release may run on which schema. A release writes into the database that it has brought it up to date, and the
//! oldest release that may run beside it. So a release that was replaced can be started again, and one that is two
//! releases old is refused, however many migrations lie between them.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, Transaction};

use super::{Roles, roles};

/// This release.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The oldest release that may run on the schema of this one: the one before it. There is none before 0.2.0.
const OLDEST: &str = "0.2.0";
pub const BESIDE: &str = "a newer release has changed the database; this one runs beside it";

/// Whether the database has a line of this release.
#[derive(PartialEq)]
pub enum Known {
    Yes,
    No,
}

/// Refuses a database whose newest release does not run beside this one.
pub async fn check(connection: &mut PgConnection, roles: &Roles) -> anyhow::Result<Known> {
    let exists: bool = sqlx::query_scalar("select to_regclass('releases') is not null")
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(Known::No);
    }
    let mut tx = begin(connection, roles).await?;
    let rows: Vec<(String, String)> = sqlx::query_as("select version, oldest from releases")
        .fetch_all(&mut *tx)
        .await?;
    tx.commit().await?;
    let newest = rows.iter().max_by_key(|(version, _)| parse(version));
    if let Some((version, oldest)) = newest.filter(|(version, _)| parse(version) > parse(VERSION)) {
        anyhow::ensure!(
            parse(oldest) <= parse(VERSION),
            "release {version} has changed the database, and beside it may run {oldest} and later ones; this is \
             {VERSION}. Start one of those, or restore a backup from before the upgrade"
        );
        tracing::warn!(version, "{BESIDE}");
    }
    Ok(if rows.iter().any(|(version, _)| version == VERSION) {
        Known::Yes
    } else {
        Known::No
    })
}

/// Writes that this release has brought the database up to date.
pub async fn record(connection: &mut PgConnection, roles: &Roles) -> sqlx::Result<()> {
    let mut tx = begin(connection, roles).await?;
    sqlx::query("insert into releases (version, oldest) values ($1, $2) on conflict do nothing")
        .bind(VERSION)
        .bind(OLDEST)
        .execute(&mut *tx)
        .await?;
    tx.commit().await
}

/// A transaction of the program itself.
async fn begin<'a>(
    connection: &'a mut PgConnection,
    roles: &Roles,
) -> sqlx::Result<Transaction<'a, Postgres>> {
    let mut tx = connection.begin().await?;
    let take_role = format!("set local role {}", roles.name(roles::SYSTEM));
    sqlx::raw_sql(AssertSqlSafe(take_role))
        .execute(&mut *tx)
        .await?;
    Ok(tx)
}

/// The numbers of a version, to compare it with another one.
fn parse(version: &str) -> Vec<u64> {
    let numbers = version.split(['.', '-', '+']);
    numbers.map_while(|number| number.parse().ok()).collect()
}
