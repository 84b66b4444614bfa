//! Migrations while others use the database.

use std::{borrow::Cow, time::Duration};

use domain::{config::DirectAddress, replica::Start};
use serde_json::{Value, json};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
    postgres::PgConnectOptions,
};
use store::{
    Db,
    migrations::{Place, apply, embedded},
};
use tempfile::TempDir;
use tokio::{net::TcpListener, process::Child, time::Instant};

use super::{execute, execute_at, undo_releases};
use crate::support::{
    db::{TestDb, start},
    has::Has,
    program::chatelaine,
    wait::eventually,
    world::TIME_LIMIT,
};

/// The migrations of the program and one more.
fn with_one_more(sql: &str, alone: bool) -> Migrator {
    let first = if alone { "-- no-transaction\n" } else { "" };
    with_more(&[&format!("{first}{sql}")])
}

/// The migrations of the program and more files.
pub fn with_more(files: &[&str]) -> Migrator {
    let mut all: Vec<Migration> = embedded().iter().cloned().collect();
    for (version, file) in (9000..).zip(files) {
        all.push(Migration::new(
            version,
            Cow::Borrowed("one more"),
            MigrationType::Simple,
            AssertSqlSafe((*file).to_owned()).into_sql_str(),
            file.starts_with("-- no-transaction"),
        ));
    }
    Migrator::with_migrations(all)
}

pub async fn migrate(test: &TestDb, migrator: &Migrator, has_session: bool) -> anyhow::Result<()> {
    let options: PgConnectOptions = test.url.expose().parse().unwrap();
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    let place = Place {
        options: &options,
        has_session,
        is_alone: false,
    };
    let end = Instant::now() + Duration::from_secs(60);
    apply(migrator, &mut connection, &place, end, &start()).await
}

/// A transaction that holds a lock on conversations, as a long report does.
async fn hold_lock(test: &TestDb) -> PgConnection {
    let mut holder = test.as_owner().await;
    execute_at(
        &mut holder,
        "begin; lock table conversations in access share mode",
    )
    .await;
    holder
}

#[tokio::test]
async fn a_migration_waits_for_a_lock_and_lets_others_go_before_it() {
    let test = TestDb::new().await;
    let mut holder = hold_lock(&test).await;
    let one_more = with_one_more("alter table conversations add column more int", false);
    let migrating = migrate(&test, &one_more, true);
    let mut reader = test.as_owner().await;
    let reading = async {
        let waits = "select count(*) from pg_locks where not granted";
        // The migration waits, and whoever comes after it waits with it until the migration gives up for a while.
        eventually(async || {
            let waiting: i64 = sqlx::query_scalar(waits)
                .fetch_one(&mut test.as_owner().await)
                .await
                .unwrap();
            waiting > 0
        })
        .await;
        execute_at(&mut reader, "select count(*) from conversations").await;
        execute_at(&mut holder, "commit").await;
    };
    let both = Box::pin(async { tokio::join!(migrating, reading) });
    let both = tokio::time::timeout(TIME_LIMIT, both).await;
    let (migrated, ()) = both.expect("the reader waits until the holder has ended");
    migrated.unwrap();
    execute(&test, "select more from conversations").await;
}

#[tokio::test]
async fn the_error_names_who_holds_the_lock() {
    let test = TestDb::new().await;
    undo_releases(&test).await;
    let mut holder = test.as_owner().await;
    execute_at(
        &mut holder,
        "set application_name = 'a report'; begin; create table releases (id int)",
    )
    .await;
    let refused = Db::connect(&test.url, 1)
        .await
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("0002_releases.sql needs a lock that is held by process")
            && refused.contains("a report, idle in transaction, for"),
        "{refused}"
    );
    execute_at(&mut holder, "rollback").await;
    Db::connect(&test.url, 1).await.unwrap().close().await;
}

#[tokio::test]
async fn replicas_that_start_together_build_an_index_once_while_others_write() {
    let test = TestDb::new().await;
    let one_more = with_one_more(
        "-- no-transaction\ncreate index concurrently jobs_more on jobs (done_at)",
        true,
    );
    // The index waits for this transaction. A replica that waits for the index must not be another one.
    let mut holder = test.as_owner().await;
    let before =
        "begin; set local role chatelaine_system; insert into jobs (name) values ('before')";
    execute_at(&mut holder, &test.name_roles(before).await).await;
    let replicas = async {
        tokio::join!(
            migrate(&test, &one_more, true),
            migrate(&test, &one_more, true),
            migrate(&test, &one_more, true)
        )
    };
    let writing = async {
        let building = "select count(*) from pg_stat_activity
                        where datname = current_database() and query like '%jobs_more%' and wait_event_type = 'Lock'";
        eventually(async || {
            let waiting: i64 = sqlx::query_scalar(building)
                .fetch_one(&mut test.as_owner().await)
                .await
                .unwrap();
            waiting > 0
        })
        .await;
        execute(
            &test,
            "set role chatelaine_system; insert into jobs (name) values ('meanwhile')",
        )
        .await;
        execute_at(&mut holder, "commit").await;
    };
    let all = Box::pin(async { tokio::join!(replicas, writing) });
    let all = tokio::time::timeout(TIME_LIMIT, all).await;
    let ((one, two, three), ()) = all.expect("a replica waits for the index that waits for it");
    one.and(two).and(three).unwrap();
    assert!(is_valid(&test).await);
}

async fn is_valid(test: &TestDb) -> bool {
    let valid = "select indisvalid from pg_index where indexrelid = 'jobs_more'::regclass";
    sqlx::query_scalar(valid)
        .fetch_one(&mut test.as_owner().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_index_that_was_not_completed_is_built_again() {
    let test = TestDb::new().await;
    execute(
        &test,
        "set role chatelaine_system; insert into jobs (name) values ('a'), ('b')",
    )
    .await;
    // It fails and leaves an invalid index.
    let mut owner = test.as_owner().await;
    execute_at(&mut owner, "alter table jobs no force row level security").await;
    let sql = "create unique index concurrently jobs_more on jobs ((1))";
    sqlx::raw_sql(sql).execute(&mut owner).await.unwrap_err();
    assert!(!is_valid(&test).await);
    let one_more = with_one_more(
        "-- no-transaction\ncreate index concurrently jobs_more on jobs (done_at)",
        true,
    );
    migrate(&test, &one_more, true).await.unwrap();
    assert!(is_valid(&test).await);
    migrate(&test, &one_more, true).await.unwrap();
}

#[tokio::test]
async fn an_index_that_was_built_before_the_process_died_is_kept() {
    let test = TestDb::new().await;
    execute(
        &test,
        "create index concurrently jobs_more on jobs (done_at)",
    )
    .await;
    let before: i64 = sqlx::query_scalar("select 'jobs_more'::regclass::oid::bigint")
        .fetch_one(&mut test.as_owner().await)
        .await
        .unwrap();
    let one_more = with_one_more(
        "-- no-transaction\ncreate index concurrently jobs_more on jobs (done_at)",
        true,
    );
    migrate(&test, &one_more, true).await.unwrap();
    let after: i64 = sqlx::query_scalar("select 'jobs_more'::regclass::oid::bigint")
        .fetch_one(&mut test.as_owner().await)
        .await
        .unwrap();
    assert_eq!(before, after);
}

#[tokio::test]
async fn replicas_that_know_only_a_pooler_build_no_index_by_themselves() {
    let test = TestDb::new().await;
    let one_more = with_one_more(
        "-- no-transaction\ncreate index concurrently jobs_more on jobs (done_at)",
        true,
    );
    let refused = migrate(&test, &one_more, false)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("run `chatelaine migrate` once"),
        "{refused}"
    );
    let in_transaction = with_one_more("alter table jobs add column more int", false);
    let (one, two) = tokio::join!(
        migrate(&test, &in_transaction, false),
        migrate(&test, &in_transaction, false)
    );
    one.and(two).unwrap();
}

#[tokio::test]
async fn health_is_answered_while_migrations_run() {
    let test = TestDb::new().await;
    undo_releases(&test).await;
    let mut holder = test.as_owner().await;
    execute_at(&mut holder, "begin; create table releases (id int)").await;
    let program = Starting::new(test.url.expose()).await;
    let get = async |path: &str| program.get(path).await;
    eventually(async || {
        get("/readyz")
            .await
            .is_some_and(|answer| answer.body["start"] == "migrating")
    })
    .await;
    let ready = get("/readyz").await.unwrap();
    assert_eq!(ready.status, 503);
    ready
        .body
        .has(json!({ "ready": false, "database": false, "start": "migrating" }));
    assert_eq!(get("/healthz").await.unwrap().status, 200);
    for path in ["/v1/me", "/", "/v1/agents/bank"] {
        let refused = get(path).await.unwrap();
        assert_eq!(
            (refused.status, refused.retry_after.as_deref()),
            (503, Some("2")),
            "{path}"
        );
    }
    execute_at(&mut holder, "rollback").await;
    eventually(async || {
        get("/readyz")
            .await
            .is_some_and(|answer| answer.status == 200)
    })
    .await;
    assert_eq!(get("/v1/me").await.unwrap().status, 401);
    assert_eq!(get("/readyz").await.unwrap().body["start"], Value::Null);
}

#[tokio::test]
async fn health_is_answered_while_the_database_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let away = format!("postgres://nobody@{address}/x?sslmode=disable");
    let program = Starting::new(&away).await;
    let get = async |path: &str| program.get(path).await;
    eventually(async || {
        get("/healthz")
            .await
            .is_some_and(|answer| answer.status == 200)
    })
    .await;
    get("/readyz")
        .await
        .unwrap()
        .body
        .has(json!({ "ready": false, "start": "connecting" }));
}

#[tokio::test]
async fn health_is_answered_and_a_stop_heard_until_the_others_know_of_the_replica() {
    let test = TestDb::new().await;
    let mut holder = test.as_owner().await;
    execute_at(&mut holder, "begin; lock table replicas").await;
    let mut program = Starting::new(test.url.expose()).await;
    eventually(async || test.awaited_locks("").await > 0).await;
    let ready = program.get("/readyz").await.unwrap();
    assert_eq!(ready.status, 503);
    ready
        .body
        .has(json!({ "ready": false, "start": "connecting" }));
    let id = i32::try_from(program.process.id().unwrap()).unwrap();
    let id = nix::unistd::Pid::from_raw(id);
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
    eventually(async || program.process.try_wait().unwrap().is_some()).await;
}

#[tokio::test]
async fn what_a_start_does_is_told() {
    let test = TestDb::new().await;
    undo_releases(&test).await;
    let start = start();
    let direct = DirectAddress::Same;
    let db = Db::connect_within(Duration::ZERO, &test.url, &direct, 1, &start).await;
    db.unwrap().close().await;
    assert_eq!(*start.borrow(), Start::Migrating);
}

/// The program at a free port, with an agent without tools. Killed with this value.
struct Starting {
    url: String,
    process: Child,
    _folder: TempDir,
}

impl Starting {
    async fn new(database: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let folder = tempfile::tempdir().unwrap();
        let pack = folder.path().join("packs/office");
        std::fs::create_dir_all(&pack).unwrap();
        std::fs::write(pack.join("agent-pack.yaml"), PACK).unwrap();
        let mut command = chatelaine(&["serve"]);
        command
            .env("CHATELAINE_LISTEN", &address)
            .env("CHATELAINE_PACKS", folder.path().join("packs"))
            .env("CHATELAINE_DATA", folder.path())
            .env("DATABASE_URL", database);
        Self {
            url: format!("http://{address}"),
            process: command.spawn().unwrap(),
            _folder: folder,
        }
    }

    /// `None` while nobody listens.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test asks the program as anybody would"
    )]
    async fn get(&self, path: &str) -> Option<Answer> {
        let answer = reqwest::get(format!("{}{path}", self.url)).await.ok()?;
        let retry_after = answer.headers().get("retry-after");
        let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
        Some(Answer {
            status: answer.status().as_u16(),
            retry_after,
            body: answer.json().await.unwrap_or_default(),
        })
    }
}

const PACK: &str = r#"
metadata: { id: office, displayName: Office, description: Papers, defaultLanguage: en }
languages: { en: { systemPrompt: "You are an office." } }
llm: { provider: openai, model: scripted, baseUrl: "http://127.0.0.1:9/v1", apiKey: model-key-0123456789 }
flows: { authentication: { required: true } }
"#;

struct Answer {
    status: u16,
    retry_after: Option<String>,
    body: Value,
}

#[tokio::test]
async fn a_process_that_migrates_and_hangs_is_not_waited_for_for_ever() {
    let test = TestDb::new().await;
    // It has the lock of whoever migrates, and does nothing.
    let mut holder = test.as_owner().await;
    execute_at(
        &mut holder,
        "set application_name = 'a frozen replica'; select pg_advisory_lock(x'63686174656c'::bigint)",
    )
    .await;
    let options: PgConnectOptions = test.url.expose().parse().unwrap();
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    let place = Place {
        options: &options,
        has_session: true,
        is_alone: false,
    };
    let one_more = with_one_more("create table more (id int)", false);
    let refused = apply(&one_more, &mut connection, &place, Instant::now(), &start()).await;
    let refused = refused.unwrap_err().to_string();
    for part in ["hangs: process", "a frozen replica, idle"] {
        assert!(refused.contains(part), "{refused}");
    }
}
