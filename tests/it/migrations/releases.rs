//! A release that was replaced can be started again; one that is two releases old is refused.

use store::Db;

use super::execute;
use crate::support::db::TestDb;

async fn connect(test: &TestDb) -> Result<(), String> {
    match Db::connect(&test.url, 1).await {
        Ok(db) => {
            db.close().await;
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn a_release_runs_beside_the_next_one_and_not_beside_the_one_after_it() {
    let test = TestDb::new().await;
    // The next release has many migrations.
    execute(
        &test,
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         select version, 'newer', true, '', 0 from generate_series(9000, 9020) version",
    )
    .await;
    let release = |version: &str, oldest: &str| {
        format!(
            "set role chatelaine_system; insert into releases (version, oldest) values ('{version}', '{oldest}')"
        )
    };
    execute(&test, &release("0.10.0", env!("CARGO_PKG_VERSION"))).await;
    connect(&test).await.unwrap();
    execute(&test, &release("0.11.0", "0.10.0")).await;
    let refused = connect(&test).await.unwrap_err();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        refused,
        format!(
            "release 0.11.0 has changed the database, and beside it may run 0.10.0 and later ones; this is {version}. \
             Start one of those, or restore a backup from before the upgrade"
        )
    );
}

#[tokio::test]
async fn a_release_without_migrations_is_written_down_too() {
    let test = TestDb::new().await;
    execute(
        &test,
        "set role chatelaine_system; insert into releases (version, oldest) values ('0.1.9', '0.1.9');
         set role none; alter table releases no force row level security;
         delete from releases where version <> '0.1.9'; alter table releases force row level security",
    )
    .await;
    connect(&test).await.unwrap();
    let mut system = test.as_system().await;
    let known: Vec<String> = sqlx::query_scalar("select version from releases order by version")
        .fetch_all(&mut system)
        .await
        .unwrap();
    assert_eq!(known, ["0.1.9", env!("CARGO_PKG_VERSION")]);
}

#[tokio::test]
async fn migrations_that_were_changed_or_are_of_another_branch_are_refused() {
    let test = TestDb::new().await;
    execute(
        &test,
        "update _sqlx_migrations set checksum = '\\x00' where version = 2",
    )
    .await;
    let refused = connect(&test).await.unwrap_err();
    assert!(
        refused.starts_with("0002_releases.sql is not what was applied to this database"),
        "{refused}"
    );
    let test = TestDb::new().await;
    execute(
        &test,
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         values (0, 'other', true, '', 0)",
    )
    .await;
    let refused = connect(&test).await.unwrap_err();
    assert!(
        refused.contains("has a migration 0 that this program does not know"),
        "{refused}"
    );
}
