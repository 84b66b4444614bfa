//! Our own Postgres: it keeps its data, is shared, and never outlives who started it.

mod binaries; // which version is started
mod server_folder; // where its data can lie

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use chatelaine::cli::private_postgres::PrivatePostgres;
use domain::{clock, config::Environment, secret::Secret};
use sqlx::{Connection, PgConnection};
use store::Db;
use tempfile::TempDir;

#[tokio::test]
async fn a_second_start_finds_the_data_of_the_first() {
    let folder = folder();
    let first = start(&folder).await;
    run(
        first.url(),
        "create table kept (word text); insert into kept values ('here')",
    )
    .await;
    first.stop().await.unwrap();

    let second = start(&folder).await;
    let mut connection = PgConnection::connect(second.url().expose()).await.unwrap();
    let word: String = sqlx::query_scalar("select word from kept")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(word, "here");
    second.stop().await.unwrap();
}

#[tokio::test]
async fn the_schema_applies_although_our_role_is_no_superuser() {
    let folder = folder();
    let server = start(&folder).await;
    Db::connect(server.url(), 2).await.unwrap().close().await;
    let mut connection = PgConnection::connect(server.url().expose()).await.unwrap();
    let superuser: String = sqlx::query_scalar("show is_superuser")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(superuser, "off");
    let durable: Vec<String> = sqlx::query_scalar(
        "select setting from pg_settings where name in ('fsync', 'full_page_writes')",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(durable, ["on", "on"], "a demo's data is worth keeping");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_process_joins_the_running_server() {
    let folder = folder();
    let first = start(&folder).await;
    let second = start(&folder).await;
    assert!(!first.is_joined() && second.is_joined());
    assert_eq!(first.url(), second.url());
    second.stop().await.unwrap();
    run(first.url(), "select 1").await;
    first.stop().await.unwrap();
}

#[tokio::test]
async fn dropping_it_stops_the_server() {
    let folder = folder();
    let server = start(&folder).await;
    let pid = server_pid(&folder);
    drop(server);
    gone(pid).await;
}

/// This test is both processes: started anew by itself with a folder to hold, it holds one until it is killed.
#[tokio::test]
async fn a_parent_killed_with_9_takes_its_server_along() {
    const HOLD: &str = "CHATELAINE_TEST_HOLD";
    const NAME: &str = "private_postgres::a_parent_killed_with_9_takes_its_server_along";
    if let Some(folder) = Environment::from_process().get(HOLD) {
        let _server = PrivatePostgres::start(Path::new(folder), &Environment::from_process())
            .await
            .unwrap();
        std::io::stderr().write_all(b"holding\n").unwrap();
        std::future::pending::<()>().await;
    }
    let folder = folder();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(HOLD, folder.path().join("postgres"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_line(&mut parent, "holding");
    let pid = server_pid(&folder);
    parent.kill().unwrap();
    parent.wait().unwrap();
    gone(pid).await;

    start(&folder).await.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_whose_starter_has_ended_is_replaced() {
    let folder = folder();
    let first = start(&folder).await;
    let pid = server_pid(&folder);
    // The script is the server's parent; killed, it can stop nothing any more.
    kill_9(parent_of(pid));
    drop(first);
    assert!(alive(pid), "nobody is left to stop it");

    let second = start(&folder).await;
    assert!(!second.is_joined());
    assert!(!alive(pid));
    run(second.url(), "select 1").await;
    second.stop().await.unwrap();
}

#[tokio::test]
async fn a_stale_pid_file_that_names_another_program_harms_nobody() {
    let folder = folder();
    start(&folder).await.stop().await.unwrap();
    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let stale = format!(
        "{}\n/somewhere\n1700000000\n5432\n/nowhere\n\n\nready   \n",
        bystander.id()
    );
    fs::write(folder.path().join("postgres/data/postmaster.pid"), stale).unwrap();

    let server = start(&folder).await;
    assert!(!server.is_joined());
    assert_eq!(bystander.try_wait().unwrap(), None, "the bystander lives");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    server.stop().await.unwrap();
}

/// Root's server runs as a user who cannot enter such a folder; everybody else's simply uses it.
#[tokio::test]
async fn a_folder_closed_to_others_works_and_keeps_its_data() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let first = start(&folder).await;
    let home = socket_of(first.url()).parent().unwrap().to_owned();
    run(first.url(), "create table kept (word text)").await;
    first.stop().await.unwrap();

    let second = start(&folder).await;
    run(second.url(), "insert into kept values ('here')").await;
    second.stop().await.unwrap();
    fs::remove_dir_all(home).unwrap();
}

#[tokio::test]
async fn a_folder_too_deep_for_a_socket_works_all_the_same() {
    let folder = folder();
    let deep = folder
        .path()
        .join("very".repeat(20))
        .join("deep")
        .join("down".repeat(10))
        .join("postgres");
    let server = PrivatePostgres::start(&deep, &Environment::from_process())
        .await
        .unwrap();
    run(server.url(), "select 1").await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_killed_initdb_does_not_spoil_the_folder() {
    let folder = folder();
    let half = folder.path().join("postgres/data.new");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("PG_VERSION"), "1").unwrap();
    start(&folder).await.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let folder = folder();
    start(&folder).await.stop().await.unwrap();
    let settings = folder.path().join("postgres/data/postgresql.auto.conf");
    fs::write(settings, "max_wal_senders = nonsense\n").unwrap();
    let error = PrivatePostgres::start(
        &folder.path().join("postgres"),
        &Environment::from_process(),
    )
    .await
    .unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("did not start") && text.contains("max_wal_senders"),
        "{text}"
    );
}

#[tokio::test]
async fn data_of_a_version_that_is_not_installed_is_left_alone() {
    let folder = folder();
    start(&folder).await.stop().await.unwrap();
    fs::write(folder.path().join("postgres/data/PG_VERSION"), "9\n").unwrap();
    let error = PrivatePostgres::start(
        &folder.path().join("postgres"),
        &Environment::from_process(),
    )
    .await
    .unwrap_err();
    assert!(error.to_string().contains("made by Postgres 9"), "{error}");
}

#[tokio::test]
async fn a_throwaway_leaves_nothing() {
    let server = PrivatePostgres::throwaway(&Environment::from_process())
        .await
        .unwrap();
    let socket = socket_of(server.url());
    let folder = socket.parent().unwrap().to_owned();
    assert!(folder.join("data").exists());
    server.stop().await.unwrap();
    assert!(!folder.exists());
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    // Root's server runs as another user, who must pass through.
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    folder
}

async fn start(folder: &TempDir) -> PrivatePostgres {
    PrivatePostgres::start(
        &folder.path().join("postgres"),
        &Environment::from_process(),
    )
    .await
    .unwrap()
}

async fn run(url: &Secret, sql: &'static str) {
    let mut connection = PgConnection::connect(url.expose()).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

fn socket_of(url: &Secret) -> PathBuf {
    let url = url::Url::parse(url.expose()).unwrap();
    let host = url
        .query_pairs()
        .find(|(name, _)| name == "host")
        .unwrap()
        .1;
    PathBuf::from(host.into_owned())
}

fn server_pid(folder: &TempDir) -> u32 {
    let text = fs::read_to_string(folder.path().join("postgres/data/postmaster.pid")).unwrap();
    text.lines().next().unwrap().parse().unwrap()
}

fn ps(pid: u32, column: &str) -> String {
    let output = Command::new("ps")
        .args(["-o", column, "-p", &pid.to_string()])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Running, and not a dead child that nobody has waited for yet.
fn alive(pid: u32) -> bool {
    let state = ps(pid, "state=");
    !state.is_empty() && !state.starts_with('Z')
}

fn parent_of(pid: u32) -> u32 {
    ps(pid, "ppid=").parse().unwrap()
}

fn kill_9(pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-s", "KILL", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

async fn gone(pid: u32) {
    let deadline = clock::instant() + Duration::from_secs(20);
    while alive(pid) {
        assert!(clock::instant() < deadline, "server {pid} still runs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn wait_for_line(child: &mut Child, wanted: &str) {
    let stderr = BufReader::new(child.stderr.take().unwrap());
    for line in stderr.lines() {
        if line.unwrap() == wanted {
            return;
        }
    }
    panic!("it ended without saying {wanted:?}");
}
