//! Trouble with Postgres is said to be trouble with Postgres.

use std::path::PathBuf;

use chatelaine::cli::serve::Service;
use domain::{config::DirectAddress, ids::ConversationId, message::Role, secret::Secret};
use serde_json::json;
use sqlx::AssertSqlSafe;
use store::{Db, messages::NewMessage, migrations::statements};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};
use url::Url;

use crate::support::{
    db::{TestDb, start},
    has::Has,
    model::text,
    program::{Program, chatelaine},
    wait::eventually,
    world::{TIME_LIMIT, World},
};

/// Gives orders to a test's database, one after the other.
async fn order(test: &TestDb, sql: &str) {
    let mut connection = test.as_superuser(None).await;
    for statement in statements::read(sql) {
        let statement = sqlx::raw_sql(AssertSqlSafe(statement.text));
        statement.execute(&mut connection).await.unwrap();
    }
}

fn name(test: &TestDb) -> String {
    let url = Url::parse(test.url.expose()).unwrap();
    url.path().trim_start_matches('/').to_owned()
}

#[tokio::test]
async fn a_request_that_waits_for_a_lock_is_told_to_come_back() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    ann.open("bank").await;
    let mut owner = world.db.as_owner().await;
    sqlx::raw_sql("begin; lock table conversations in access exclusive mode")
        .execute(&mut owner)
        .await
        .unwrap();
    let refused = ann.get("/v1/conversations").await;
    assert_eq!(
        refused.expect(503)["detail"],
        "the database cannot be used at the moment; try again"
    );
    assert_eq!(refused.header("retry-after"), "2");
    sqlx::raw_sql("rollback").execute(&mut owner).await.unwrap();
    ann.get("/v1/conversations").await.expect(200);
}

#[tokio::test]
async fn a_database_that_is_away_is_503_with_retry_after() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let database = name(&world.db);
    let mut elsewhere = world.db.as_superuser(Some("postgres")).await;
    let away = format!(
        "alter database {database} with allow_connections false;
         select pg_terminate_backend(pid) from pg_stat_activity where datname = '{database}'"
    );
    for sql in away.split(';') {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut elsewhere)
            .await
            .unwrap();
    }
    let refused = ann.get("/v1/conversations").await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(!refused.header("retry-after").is_empty());
    let back = format!("alter database {database} with allow_connections true");
    sqlx::raw_sql(AssertSqlSafe(back))
        .execute(&mut elsewhere)
        .await
        .unwrap();
    eventually(async || ann.get("/v1/conversations").await.status == 200).await;
}

#[tokio::test]
async fn a_database_that_became_read_only_is_not_ready_and_recovers() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let nobody = world.nobody();
    let ready = async || nobody.get("/readyz").await.status == 200;
    eventually(ready).await;
    let database = name(&world.db);
    let set = |to: &str| {
        format!(
            "alter database {database} set default_transaction_read_only = {to};
             select pg_terminate_backend(pid) from pg_stat_activity
             where datname = '{database}' and pid <> pg_backend_pid()"
        )
    };
    order(&world.db, &set("on")).await;
    eventually(async || !ready().await).await;
    let refused = ann
        .post("/v1/conversations", json!({ "agent": "bank" }))
        .await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    // Only the setting: connections that were opened meanwhile still think that they may not write.
    let back = format!(
        "set default_transaction_read_only = off; alter database {database} reset default_transaction_read_only"
    );
    order(&world.db, &back).await;
    eventually(async || {
        let written = ann
            .post("/v1/conversations", json!({ "agent": "bank" }))
            .await;
        written.status == 201
    })
    .await;
}

#[tokio::test]
async fn connections_that_postgres_closed_are_replaced_before_anybody_notices() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let close = "select pg_terminate_backend(pid) from pg_stat_activity
                 where datname = current_database() and pid <> pg_backend_pid()";
    for _ in 0..5 {
        ann.open("bank").await;
        order(&world.db, close).await;
        ann.get("/v1/conversations").await.expect(200);
    }
    // Also where there is no second place for another connection.
    let db = Db::connect(&world.db.url, 1).await.unwrap();
    let tenant = world.tenant.id;
    db.tenant(tenant).await.unwrap().commit().await.unwrap();
    order(&world.db, close).await;
    db.tenant(tenant).await.unwrap().commit().await.unwrap();
}

/// Has each new conversation refused with this error.
async fn refuse_with(test: &TestDb, code: &str) {
    let refuse = format!(
        "create or replace function refuse() returns trigger language plpgsql as $$
         begin raise exception 'no' using errcode = '{code}'; end $$;
         create or replace trigger refuse before insert on conversations for each row execute function refuse()"
    );
    order(test, &refuse).await;
}

#[tokio::test]
async fn a_full_database_is_503_and_not_ready() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    refuse_with(&world.db, "53100").await;
    let refused = ann
        .post("/v1/conversations", json!({ "agent": "bank" }))
        .await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    let unready = world.nobody().get("/readyz").await.expect(503);
    assert_eq!(unready["database"], false);
}

#[tokio::test]
async fn what_is_wrong_with_the_database_is_no_fault_of_the_program() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let open = json!({ "agent": "bank" });
    // A pooler without a server, a disk that fails, and sessions that the operator's limits ended.
    for code in ["08P01", "58030", "57P04", "25P03", "25P04"] {
        refuse_with(&world.db, code).await;
        let refused = ann.post("/v1/conversations", open.clone()).await;
        assert_eq!(refused.status, 503, "{code}: {}", refused.text);
        assert_eq!(refused.header("retry-after"), "2", "{code}");
    }
    // A transaction that was in the way of another one, and was rolled back.
    for code in ["40P01", "40001"] {
        refuse_with(&world.db, code).await;
        let refused = ann.post("/v1/conversations", open.clone()).await;
        assert_eq!(refused.expect(503)["code"], "busy", "{code}");
        assert_eq!(refused.header("retry-after"), "1", "{code}");
    }
    refuse_with(&world.db, "42P01").await;
    ann.post("/v1/conversations", open).await.expect(500);
}

#[tokio::test]
async fn a_connection_that_went_silent_is_noticed_and_replaced() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let proxy = Proxy::start(&world.db.url).await;
    let db = Db::connect(&proxy.url, 2).await.unwrap();
    let replica = Service::start(world.config.clone(), &world.env, db)
        .await
        .unwrap();
    let there = ann.at(&format!("http://{}", replica.address));
    there.get("/v1/conversations").await.expect(200);
    proxy.silent.send_replace(true);
    let refused = there.get("/v1/conversations").await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    proxy.silent.send_replace(false);
    eventually(async || there.get("/v1/conversations").await.status == 200).await;
}

#[tokio::test]
async fn a_transaction_that_a_silent_connection_does_not_begin_gives_its_place_back() {
    let world = World::start().await;
    let proxy = Proxy::start(&world.db.url).await;
    let db = Db::connect(&proxy.url, 1).await.unwrap();
    let tenant = world.tenant.id;
    db.tenant(tenant).await.unwrap().commit().await.unwrap();
    proxy.silent.send_replace(true);
    let refused = tokio::time::timeout(TIME_LIMIT, db.tenant(tenant)).await;
    let refused = refused.expect("nobody waits for ever for a silent database");
    refused.err().expect("nobody answers");
    proxy.silent.send_replace(false);
    eventually(async || db.tenant(tenant).await.is_ok()).await;
}

/// With synchronous replication Postgres says that a commit succeeded when the limit cuts its wait for the standby.
#[tokio::test]
async fn the_limit_of_statements_does_not_cut_a_commit() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let tell = "
        create function tell_limit() returns trigger language plpgsql as
          'begin raise exception using errcode = case current_setting(''statement_timeout'')
           when ''0'' then ''53100'' else ''P0001'' end; end';
        create constraint trigger tell_limit after insert on conversations
          deferrable initially deferred for each row execute function tell_limit()";
    order(&world.db, tell).await;
    // The code for no limit is that of a full disk.
    ann.post("/v1/conversations", json!({ "agent": "bank" }))
        .await
        .expect(503);
}

/// Something that accepts and closes, as a proxy does whose database is away.
async fn closing_proxy() -> Secret {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    Secret::new(format!("postgres://nobody@{address}/x"))
}

#[tokio::test]
async fn a_database_behind_a_proxy_that_closes_is_away() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let proxy = Proxy::start(&world.db.url).await;
    let db = Db::connect(&proxy.url, 2).await.unwrap();
    let replica = Service::start(world.config.clone(), &world.env, db)
        .await
        .unwrap();
    let there = ann.at(&format!("http://{}", replica.address));
    there.get("/v1/conversations").await.expect(200);
    proxy.closed.send_replace(true);
    eventually(async || {
        let refused = there.get("/v1/conversations").await;
        assert!([200, 503].contains(&refused.status), "{}", refused.text);
        refused.status == 503 && !refused.header("retry-after").is_empty()
    })
    .await;
    proxy.closed.send_replace(false);
    eventually(async || there.get("/v1/conversations").await.status == 200).await;
}

#[tokio::test]
async fn readiness_says_why_to_a_probe_that_waits_for_a_second_while_the_database_refuses_or_is_silent()
 {
    let world = World::start().await;
    let proxy = Proxy::start(&world.db.url).await;
    let db = Db::connect(&proxy.url, 2).await.unwrap();
    let replica = Service::start(world.config.clone(), &world.env, db)
        .await
        .unwrap();
    let probe = crate::support::client::plain_http()
        .timeout(std::time::Duration::from_millis(1500))
        .build()
        .unwrap();
    let url = format!("http://{}/readyz", replica.address);
    let ready = async || {
        let answer = probe.get(&url).send().await.expect("it answers in time");
        let said: serde_json::Value = answer.json().await.unwrap();
        said["database"] == true
    };
    eventually(ready).await;
    for trouble in [&proxy.closed, &proxy.silent] {
        trouble.send_replace(true);
        eventually(async || !ready().await).await;
        trouble.send_replace(false);
        eventually(ready).await;
    }
}

#[tokio::test]
async fn a_start_waits_for_a_database_behind_a_proxy_that_closes() {
    let away = closing_proxy().await;
    let wait = std::time::Duration::from_secs(1);
    let refused = Db::connect_within(wait, &away, &DirectAddress::Same, 1, &start())
        .await
        .map(drop)
        .unwrap_err();
    let error = refused.downcast_ref::<sqlx::Error>().unwrap();
    assert!(
        matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_start_goes_on_when_its_database_goes_away_in_the_middle() {
    let test = TestDb::new().await;
    let proxy = Proxy::start(&test.url).await;
    // The first connection is cut at its first statement.
    proxy.cut.send_replace(1);
    let wait = std::time::Duration::from_secs(60);
    let direct = DirectAddress::Same;
    let db = Db::connect_within(wait, &proxy.url, &direct, 2, &start()).await;
    db.unwrap().close().await;
    assert_eq!(*proxy.cut.borrow(), 0, "it was cut");
}

/// What stands between a replica and its database. Connections that were open when it went silent stay silent.
struct Proxy {
    url: Secret,
    silent: watch::Sender<bool>,
    /// Closes what is open, and what comes, after accepting it.
    closed: watch::Sender<bool>,
    /// How many of the connections to come are closed when they were opened.
    cut: watch::Sender<usize>,
}

impl Proxy {
    async fn start(database: &Secret) -> Self {
        let mut url = Url::parse(database.expose()).unwrap();
        let host = url
            .query_pairs()
            .find(|(name, _)| name == "host")
            .unwrap()
            .1;
        let socket = PathBuf::from(&*host).join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // A new connection first asks for TLS, so that it finds a proxy that closes in another way than an old one.
        url.set_query(Some("sslmode=prefer"));
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(port)).unwrap();
        let (silent, _) = watch::channel(false);
        let (closed, _) = watch::channel(false);
        let (cut, _) = watch::channel(0);
        let (state, closing, cuts) = (silent.clone(), closed.clone(), cut.clone());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (socket, mut state) = (socket.clone(), state.subscribe());
                let mut closing = closing.subscribe();
                let is_cut = cuts.send_if_modified(|left| {
                    let is_cut = *left > 0;
                    *left -= usize::from(is_cut);
                    is_cut
                });
                tokio::spawn(async move {
                    if *closing.borrow() {
                        return;
                    }
                    let _ = state.wait_for(|silent| !silent).await.map(drop);
                    let mut server = UnixStream::connect(socket).await.unwrap();
                    if is_cut {
                        return open_and_close(client, server).await;
                    }
                    let silent = async { drop(state.wait_for(|silent| *silent).await) };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                        _ = closing.wait_for(|closed| *closed) => return,
                        () = silent => {}
                    }
                    // Neither end hears anything any more.
                    std::future::pending::<()>().await;
                });
            }
        });
        Self {
            url: Secret::new(url.as_str()),
            silent,
            closed,
            cut,
        }
    }
}

/// Passes on what opens a connection (a request for TLS, the start, and their answers), and closes at what comes next.
async fn open_and_close(mut client: TcpStream, mut server: UnixStream) {
    let mut bytes = [0; 4096];
    for _ in 0..2 {
        let read = client.read(&mut bytes).await.unwrap();
        server.write_all(&bytes[..read]).await.unwrap();
        let read = server.read(&mut bytes).await.unwrap();
        client.write_all(&bytes[..read]).await.unwrap();
    }
    let _ = client.read(&mut bytes).await;
}

#[tokio::test]
async fn a_start_waits_for_its_database() {
    let test = TestDb::new().await;
    let database = name(&test);
    let later = format!("{database}_later");
    let mut url = Url::parse(test.url.expose()).unwrap();
    url.set_path(&later);
    let missing = Db::connect(&Secret::new(url.as_str()), 1).await;
    assert!(
        missing.is_err(),
        "a database that does not exist is not waited for"
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let away = Secret::new(format!("postgres://nobody@{address}/x?sslmode=disable"));
    let wait = std::time::Duration::from_secs(60);
    let (direct, start) = (DirectAddress::Same, start());
    let waiting = Db::connect_within(wait, &away, &direct, 1, &start);
    tokio::select! {
        _ = waiting => panic!("it gave up"),
        // Whoever listens now was waited for.
        () = async {
            let listener = loop {
                if let Ok(listener) = TcpListener::bind(address).await {
                    break listener;
                }
                tokio::task::yield_now().await;
            };
            listener.accept().await.unwrap();
        } => {}
    }
}

#[tokio::test]
async fn a_draining_process_answers_and_says_that_it_is_not_ready() {
    let mut world = World::start().await;
    world.env = world.env.with("CHATELAINE_DRAIN_SECONDS", "600");
    let stopped = world.stop().await;
    let program = Program::serve(
        &stopped,
        &"5e".repeat(32),
        &["MODEL_URL", "BANK_URL", "CHATELAINE_DRAIN_SECONDS"],
    )
    .await;
    #[expect(
        clippy::disallowed_methods,
        reason = "a test asks the program as anybody would"
    )]
    let get = async |path: &str| {
        reqwest::get(format!("{}{path}", program.url))
            .await
            .unwrap()
    };
    eventually(async || get("/readyz").await.status() == 200).await;
    program.terminate();
    eventually(async || get("/readyz").await.status() == 503).await;
    let said: serde_json::Value = get("/readyz").await.json().await.unwrap();
    said.has(json!({ "accepting": false, "database": true }));
    assert_eq!(get("/openapi.json").await.status(), 200);
    // A second signal ends the drain.
    program.stop().await;
}

#[tokio::test]
async fn a_word_of_a_later_release_in_a_column_is_an_error_and_stops_nothing() {
    let world = World::start().await;
    world.model.reply(text("Hello."));
    let ann = world.user("ann", &[]).await;
    ann.ask("bank", "hi").await;
    let runs = ann.get("/v1/runs").await.expect(200);
    let run = format!("/v1/runs/{}", runs["items"][0]["id"].as_str().unwrap());
    ann.get(&run).await.expect(200);
    order(
        &world.db,
        "alter table runs drop constraint runs_status_check",
    )
    .await;
    sqlx::query("update runs set status = 'resting'")
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    for path in [&*run, "/v1/runs"] {
        let problem = ann.get(path).await.expect(500);
        assert_eq!(problem["code"], "internal", "{problem}");
    }
    ann.get("/v1/conversations").await.expect(200);
}

#[tokio::test]
async fn an_empty_address_is_no_wish_for_a_private_database() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["serve"][..], &["tenant", "list"]] {
        let mut command = chatelaine(arguments);
        command
            .env("DATABASE_URL", "")
            .env("CHATELAINE_DATA", folder.path());
        let output = command.output().await.unwrap();
        assert!(!output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("DATABASE_URL is empty"), "{said}");
    }
}

#[tokio::test]
async fn a_database_without_citus_is_not_distributed() {
    let test = TestDb::new().await;
    test.db.close().await;
    for arguments in [&["distribute", "--apply"][..], &["distribute", "--dry-run"]] {
        let mut command = chatelaine(arguments);
        command.env("DATABASE_URL", test.url.expose());
        let output = command.output().await.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success()
                && said.contains("nothing was moved: the database has no Citus"),
            "{said}"
        );
    }
    let mut command = chatelaine(&["distribute"]);
    assert!(!command.output().await.unwrap().status.success());
}

#[tokio::test]
async fn no_policy_has_a_query_which_citus_would_refuse() {
    let test = TestDb::new().await;
    let policies: Vec<String> = sqlx::query_scalar(
        r"select polname || ' on ' || polrelid::regclass from pg_policy
          where coalesce(pg_get_expr(polqual, polrelid), '') || coalesce(pg_get_expr(polwithcheck, polrelid), '')
                ~* '\mselect\M'",
    )
    .fetch_all(&mut test.as_owner().await)
    .await
    .unwrap();
    assert_eq!(policies, [""; 0]);
}

#[tokio::test]
async fn looks_that_are_taken_together_share_a_transaction_and_fail_alone() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let look = async || {
        let db = test.db.clone();
        let looked = test.db.look(move |tx| {
            Box::pin(async move {
                let tenants = store::tenants::list(tx).await?.len();
                Ok((tenants, db.load().in_use))
            })
        });
        looked.await.unwrap()
    };
    let refused = test.db.look(move |tx| {
        Box::pin(async move {
            let parts = [];
            let nothing = NewMessage {
                run: None,
                run_ordinal: 0,
                role: Role::User,
                parts: &parts,
                for_model: true,
            };
            store::messages::append(tx, tenant, ConversationId::new(), nothing).await
        })
    });
    let (first, refused, others) = tokio::join!(look(), refused, async {
        futures_util::future::join_all((0..10).map(|_| look())).await
    });
    assert!(refused.is_err(), "the program itself writes no message");
    for found in others.into_iter().chain([first]) {
        assert_eq!(found, (1, 1), "one tenant, over one connection");
    }
}

#[tokio::test]
async fn a_look_at_access_waits_for_no_other_look() {
    let test = TestDb::new().await;
    let (seen, slow) = tokio::sync::oneshot::channel::<()>();
    // It has its transaction, and reads until the other one has read.
    let slow = test.db.look(move |tx| {
        Box::pin(async move {
            slow.await.unwrap();
            store::tenants::list(tx).await
        })
    });
    let fast = async {
        let looks = (0..3).map(|_| {
            test.db
                .look_at_access(|tx| Box::pin(store::tenants::list(tx)))
        });
        let looks = futures_util::future::join_all(looks).await;
        seen.send(()).unwrap();
        looks.into_iter().collect::<Result<Vec<_>, _>>()
    };
    let (slow, fast) = tokio::time::timeout(TIME_LIMIT, async { tokio::join!(slow, fast) })
        .await
        .expect("the look at access does not wait");
    assert_eq!((slow.unwrap().len(), fast.unwrap().len()), (0, 3));
}
