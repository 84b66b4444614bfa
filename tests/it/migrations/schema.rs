//! `0001_schema.sql` stands for the 54 migrations before it. What they made is kept here as text.

use store::{Db, roles::Roles};

use super::execute;
use crate::support::db::TestDb;

const SCHEMA: &str = include_str!("../../../migrations/0001_schema.sql");
/// Lists the catalog, one object a line.
const CATALOG: &str = include_str!("catalog.sql");
/// What [`CATALOG`] says of a database that migrations 0001 to 0092 made, whose last constraint was then validated.
const OLD_CATALOG: &str = include_str!("catalog_of_0092.txt");
/// The version and the checksum of each of them, one a line.
const OLD_MIGRATIONS: &str = include_str!("migrations_up_to_0092.txt");

#[tokio::test]
async fn the_schema_has_the_catalog_of_the_migrations_that_it_replaces() {
    let test = at_version_1().await;
    let made = catalog(&test).await;
    let was: Vec<&str> = OLD_CATALOG.lines().collect();
    let lacks: Vec<_> = was
        .iter()
        .filter(|line| !made.contains(&(**line).to_owned()))
        .collect();
    let new: Vec<_> = made
        .iter()
        .filter(|line| !was.contains(&&***line))
        .collect();
    assert!(
        lacks.is_empty() && new.is_empty(),
        "lacks {lacks:#?}, has {new:#?}"
    );
    assert_eq!(made.len(), was.len());
}

#[tokio::test]
async fn a_database_at_the_last_old_migration_is_taken_over_with_its_rows() {
    let test = at_old_migrations(OLD_MIGRATIONS).await;
    // What the old chain had left.
    execute(
        &test,
        "alter table approvals drop constraint approvals_withdrawn_cause_check;
         alter table approvals add constraint approvals_withdrawn_cause_check
           check (withdrawn_cause in ('signed_out', 'key_revoked', 'blocked')) not valid;",
    )
    .await;
    let tenant = test.tenant("acme").await;
    // Replicas that start together find it once.
    let (one, other) = tokio::join!(Db::connect(&test.url, 1), Db::connect(&test.url, 1));
    one.unwrap().close().await;
    other.unwrap().close().await;
    let mut owner = test.as_owner().await;
    let first: (i64, String) = sqlx::query_as(
        "select version, description from _sqlx_migrations order by version limit 1",
    )
    .fetch_one(&mut owner)
    .await
    .unwrap();
    assert_eq!(first, (1, "schema".to_owned()));
    let old: i64 =
        sqlx::query_scalar("select count(*) from _sqlx_migrations where description = 'old'")
            .fetch_one(&mut owner)
            .await
            .unwrap();
    assert_eq!(old, 0);
    let kept: uuid::Uuid = sqlx::query_scalar("select id from tenants")
        .fetch_one(&mut test.as_system().await)
        .await
        .unwrap();
    assert_eq!(kept, tenant.0);
    let new = TestDb::new().await;
    assert_eq!(catalog(&test).await, catalog(&new).await);
}

#[tokio::test]
async fn a_database_in_the_middle_of_the_old_migrations_is_refused() {
    let some: Vec<&str> = OLD_MIGRATIONS
        .lines()
        .filter(|line| !line.starts_with("92 "))
        .collect();
    let test = at_old_migrations(&some.join("\n")).await;
    let refused = Db::connect(&test.url, 1)
        .await
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("stands in the middle of its migrations (53 of them, the last one is 90); start the program of"),
        "{refused}"
    );
}

/// A database with the first migration only, and no list of migrations.
async fn at_version_1() -> TestDb {
    let test = TestDb::new().await;
    test.db.close().await;
    execute(
        &test,
        "drop schema public cascade; create schema public; grant usage on schema public to public",
    )
    .await;
    execute(&test, SCHEMA).await;
    test
}

/// A database as these old migrations left it.
async fn at_old_migrations(migrations: &str) -> TestDb {
    let test = at_version_1().await;
    execute(
        &test,
        "create table _sqlx_migrations (version bigint primary key, description text not null,
           installed_on timestamptz not null default now(), success boolean not null, checksum bytea not null,
           execution_time bigint not null)",
    )
    .await;
    for (version, checksum) in migrations.lines().map(|line| line.split_once(' ').unwrap()) {
        execute(
            &test,
            &format!(
                "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
                 values ({version}, 'old', true, '\\x{checksum}', 0)"
            ),
        )
        .await;
    }
    test
}

/// With the names of roles that files of migrations have.
pub async fn catalog(test: &TestDb) -> Vec<String> {
    let lines: Vec<String> = sqlx::query_scalar(CATALOG)
        .fetch_all(&mut test.as_owner().await)
        .await
        .unwrap();
    let own = test.roles().await.names().into_iter();
    let names: Vec<_> = own.zip(Roles::default().names()).collect();
    let rename = |line: String| {
        let replace = |line: String, (own, name): &(String, String)| line.replace(own, name);
        names.iter().fold(line, replace)
    };
    let mut lines: Vec<String> = lines.into_iter().map(rename).collect();
    lines.sort_unstable();
    lines
}
