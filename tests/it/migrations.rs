//! The schema, and how a database is brought up to date.

mod command; // `chatelaine migrate`
mod locks; // what the statements of a migration lock
mod releases; // which release runs on which schema
mod roles; // each database has roles of its own
mod running; // migrations while others use the database
mod schema; // one file in place of 54
mod sharded; // the migrations of a later release, also where tables are sharded

use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::db::TestDb;

/// Gives an order to a test's database.
async fn execute(test: &TestDb, sql: &str) {
    let sql = test.name_roles(sql).await;
    execute_at(&mut test.as_owner().await, &sql).await;
}

async fn execute_at(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

/// Makes the last migration a pending one: the table of the releases.
async fn undo_releases(test: &TestDb) {
    execute(
        test,
        "drop table releases; delete from _sqlx_migrations where version = 2",
    )
    .await;
}
