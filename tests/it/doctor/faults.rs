//! Faults, each planted in a healthy installation.

use serde_json::json;
use sqlx::AssertSqlSafe;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, UnixStream},
};
use url::Url;

use super::{KEY, MODEL_KEY, Said, Site, codes, pack};
use crate::support::{
    db::TestDb,
    origin::{Origin, ok},
    packs::write_pack,
    pooler::Pooler,
    program::chatelaine,
};

/// A release that this one does not run beside has changed the database.
const LATER_RELEASE: &str =
    "set role chatelaine_system; insert into releases (version, oldest) values ('9.0.0', '9.0.0')";

/// Finds exactly this fault after a change of the variables.
async fn finds(code: &str, variables: &[(&'static str, &str)]) {
    let mut site = Site::new().await;
    for (name, value) in variables {
        site.set(name, *value);
    }
    let found = site.findings().await;
    assert_eq!(codes(&found), [code], "{variables:?}: {found:?}");
}

/// The same after SQL of the owner of the database.
async fn finds_after(code: &str, sql: &str) {
    let site = Site::new().await;
    execute(&site.db, sql).await;
    let found = site.findings().await;
    assert_eq!(codes(&found), [code], "{sql}: {found:?}");
}

async fn execute(db: &TestDb, sql: &str) {
    let database = Url::parse(db.url.expose()).unwrap();
    let sql = sql.replace("HERE", database.path().trim_start_matches('/'));
    let sql = db.name_roles(&sql).await;
    let mut owner = db.as_owner().await;
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut owner)
        .await
        .unwrap();
}

#[tokio::test]
async fn settings_that_are_wrong_or_contradict_each_other_are_found() {
    finds("settings.value", &[("CHATELAINE_RUN_DEPTH", "deep")]).await;
    finds("settings.value", &[("CHATELAINE_EGRESS_ALLOW", "a/b")]).await;
    finds(
        "settings.value",
        &[("CHATELAINE_LOG", "chatelaine=loudest")],
    )
    .await;
    finds("settings.value", &[("MCP_CONFIG_ENCRYPTION_KEY", "abcdef")]).await;
    let other = format!("k1:{}", "ab".repeat(32));
    finds("settings.value", &[("MCP_CONFIG_ENCRYPTION_KEYS", &other)]).await;
    finds("settings.unknown", &[("MCP_CONFIG_ENCRYPTION_KEI", KEY)]).await;
    let pair = [
        ("CHATELAINE_OPEN_RUNS_PER_USER", "9"),
        ("CHATELAINE_OPEN_RUNS_PER_TENANT", "8"),
    ];
    finds("settings.conflict", &pair).await;
    let low = [("CHATELAINE_RUNS_AT_ONCE", "4")];
    let mut site = Site::new().await;
    site.set(low[0].0, low[0].1);
    assert!(
        site.codes().await.is_empty(),
        "a default above it is meant by nobody"
    );
}

#[tokio::test]
async fn a_database_that_cannot_be_opened_is_found() {
    finds("settings.value", &[("DATABASE_URL", "")]).await;
    finds("database.address", &[("DATABASE_URL", "nonsense")]).await;
    let nobody = "postgres://chatelaine:pass-0123456789@127.0.0.1:1/chatelaine?sslmode=disable";
    finds("database.unreachable", &[("DATABASE_URL", nobody)]).await;
    let mut site = Site::new().await;
    let stranger = site.db.url.expose().replace("//chatelaine@", "//stranger@");
    site.set("DATABASE_URL", stranger);
    assert_eq!(site.codes().await, ["database.refused"]);
    site.unset("DATABASE_URL");
    assert_eq!(site.codes().await, ["database.private"]);
    assert!(!site.packs.path().join(".chatelaine").exists());
}

/// Linux alone has a folder without any room.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_private_postgres_without_room_or_programs_is_found() {
    let mut site = Site::new().await;
    site.unset("DATABASE_URL").set("CHATELAINE_DATA", "/proc");
    assert_eq!(site.codes().await, ["database.private", "limits.disk"]);
    let data = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(data.path().join("postgres/data")).unwrap();
    std::fs::write(data.path().join("postgres/data/PG_VERSION"), "7").unwrap();
    site.set("CHATELAINE_DATA", data.path().display().to_string());
    let found = site.codes().await;
    let program = ["database.program", "database.private"].map(ToOwned::to_owned);
    assert!(found.starts_with(&program), "{found:?}");
}

#[tokio::test]
async fn a_role_that_is_too_strong_or_too_weak_is_found() {
    let mut site = Site::new().await;
    let superuser = site.db.url.expose().replace("//chatelaine@", "//postgres@");
    site.set("DATABASE_URL", superuser);
    assert_eq!(site.codes().await, ["database.role"]);
    for off in ["disable", "no force"] {
        finds_after(
            "database.role",
            &format!("alter table runs {off} row level security"),
        )
        .await;
    }
    let site = Site::new().await;
    // The login takes another role, as `options` of the address may say.
    let sql = "create role weak_HERE; grant weak_HERE to chatelaine; grant usage on schema public to weak_HERE; \
               grant select on _sqlx_migrations to weak_HERE";
    execute(&site.db, sql).await;
    let name = Url::parse(site.db.url.expose())
        .unwrap()
        .path()
        .trim_start_matches('/')
        .to_owned();
    let mut weak = site;
    let url = format!("{}&options[role]=weak_{name}", weak.db.url.expose());
    weak.set("DATABASE_URL", url);
    let found = weak.codes().await;
    execute(&weak.db, "drop owned by weak_HERE; drop role weak_HERE").await;
    assert!(
        found.iter().all(|code| code == "database.rights") && !found.is_empty(),
        "{found:?}"
    );
    finds_after(
        "database.grant",
        "revoke select on messages from chatelaine_tenant",
    )
    .await;
    finds_after("database.grant", "revoke insert on messages from chatelaine_tenant; revoke all on keks from chatelaine_system").await;
}

#[tokio::test]
async fn a_database_in_the_wrong_state_is_found() {
    finds_after(
        "database.read_only",
        "alter database HERE set default_transaction_read_only = on",
    )
    .await;
    finds_after(
        "schema.older",
        "delete from _sqlx_migrations where version = (select max(version) from _sqlx_migrations)",
    )
    .await;
    let newer = "insert into _sqlx_migrations (version, description, installed_on, success, checksum, execution_time) \
                 values (100000, 'new', now(), true, '', 0)";
    finds_after("schema.newer", newer).await;
    finds_after("schema.unknown", LATER_RELEASE).await;
    finds(
        "database.connections",
        &[("CHATELAINE_DATABASE_CONNECTIONS", "100000")],
    )
    .await;
    finds_after(
        "clock.database",
        "create function public.clock_timestamp() returns timestamptz language sql \
         as 'select pg_catalog.clock_timestamp() + interval ''1 hour'''; \
         alter database HERE set search_path = public, pg_catalog",
    )
    .await;
}

#[tokio::test]
async fn an_old_postgres_is_found() {
    let mut site = Site::new().await;
    let url = old_postgres(&site.db).await;
    site.set("DATABASE_URL", url);
    assert_eq!(site.codes().await, ["database.version"]);
}

/// The Postgres of a test, which says at the start of each connection that it is of version 12.
async fn old_postgres(db: &TestDb) -> String {
    let mut url = Url::parse(db.url.expose()).unwrap();
    let host = url
        .query_pairs()
        .find(|(name, _)| name == "host")
        .unwrap()
        .1;
    let socket = format!("{host}/.s.PGSQL.5432");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    url.set_query(Some("sslmode=disable"));
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(listener.local_addr().unwrap().port()))
        .unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = UnixStream::connect(&socket).await.unwrap();
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
                let mut piece = vec![0; 1 << 16];
                while let Ok(length @ 1..) = from_server.read(&mut piece).await {
                    const NAME: &[u8] = b"server_version\0";
                    let piece = &mut piece[..length];
                    let at = piece.windows(NAME.len()).position(|part| part == NAME);
                    if let Some(at) = at {
                        piece[at + NAME.len()..][..2].copy_from_slice(b"12");
                    }
                    if to_client.write_all(piece).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    url.into()
}

#[tokio::test]
async fn a_pooler_where_a_session_is_needed_is_found_and_nowhere_else() {
    let mut site = Site::new().await;
    let pooler = Pooler::start(&site.db.url);
    site.set("DATABASE_URL", pooler.url.expose());
    assert_eq!(site.codes().await, ["database.pooler"]);
    let direct = site.db.url.expose().to_owned();
    site.set("CHATELAINE_LISTEN_DATABASE_URL", direct.clone());
    assert!(site.codes().await.is_empty());
    site.set("CHATELAINE_LISTEN_DATABASE_URL", "off");
    assert!(site.codes().await.is_empty());
    site.set("DATABASE_URL", direct)
        .set("CHATELAINE_LISTEN_DATABASE_URL", pooler.url.expose());
    assert_eq!(site.codes().await, ["database.pooler"]);
    let other = TestDb::new().await;
    site.set("CHATELAINE_LISTEN_DATABASE_URL", other.url.expose());
    assert_eq!(site.codes().await, ["database.elsewhere"]);
    assert_eq!(
        pooler.misuse(),
        [""; 0],
        "the doctor leaves nothing in a session"
    );
}

#[tokio::test]
async fn keys_that_do_not_fit_are_found() {
    let mut site = Site::new().await;
    let (keys, id) = site.register(&format!("k1:{}", "ab".repeat(32))).await;
    chatelaine::app::platform::keys::replica_keys::leave(&keys, id).await;
    let found = site.findings().await;
    assert_eq!(codes(&found), ["keys.wrong"]);
    let message = found[0]["message"].as_str().unwrap();
    assert!(site.refusal().await.contains(message), "{message}");
    site.unset("MCP_CONFIG_ENCRYPTION_KEY")
        .set("MCP_CONFIG_ENCRYPTION_KEYS", format!("k2:{KEY}"));
    assert_eq!(site.codes().await, ["keys.lacking"]);

    let mut site = Site::new().await;
    let (_keys, _id) = site.register(&format!("k1:{KEY}")).await;
    let two = format!("k2:{},k1:{KEY}", "cd".repeat(32));
    site.set("MCP_CONFIG_ENCRYPTION_KEYS", two.clone());
    assert_eq!(site.codes().await, ["keys.replicas"]);
    let (_keys, _id) = site.register(&two).await;
    site.unset("MCP_CONFIG_ENCRYPTION_KEYS");
    assert_eq!(
        site.codes().await,
        ["keys.replicas"],
        "another replica has one more"
    );

    let mut site = Site::new().await;
    let mut personal = pack();
    personal["mcp"]["servers"][0]["accessMode"] = json!("user-controlled");
    personal["mcp"]["servers"][0]["userConfig"] = json!({ "fields": [
        { "name": "token", "type": "secret", "label": { "en": "Token" }, "headerName": "Authorization" } ] });
    site.write(&personal);
    assert!(site.codes().await.is_empty());
    site.unset("MCP_CONFIG_ENCRYPTION_KEY");
    assert_eq!(site.codes().await, ["keys.missing"]);
}

#[tokio::test]
async fn packs_that_do_not_load_and_variables_that_are_not_set_are_found() {
    let site = Site::new().await;
    let mut wrong = pack();
    wrong["llm"]["provider"] = json!("oracle");
    site.write(&wrong);
    let found = site.findings().await;
    assert_eq!(codes(&found), ["packs.broken"]);
    let mut doubtful = pack();
    doubtful["mcp"]["servers"][0]["tools"] = json!(["ask", "ask"]);
    site.write(&doubtful);
    assert_eq!(site.codes().await, ["packs.doubtful"]);
    // What lets a replica start and makes `check` fail is one of them.
    let mut faulty = pack();
    faulty["mcp"]["servers"][0]["toolAccess"]["deny"] =
        json!([{ "tools": ["ask"], "when": "1", "reason": "no" }]);
    site.write(&faulty);
    assert_eq!(site.codes().await, ["packs.doubtful"]);
    let mut check = site.command(&["check", site.packs.path().to_str().unwrap()]);
    let check = check.output().await.unwrap();
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    let mut site = Site::new().await;
    site.unset("MODEL_URL");
    assert_eq!(site.codes().await, ["packs.variable"]);
    site.set("MODEL_URL", site.origin.url("/v1"));
    site.set("CHATELAINE_PACKS", "/nowhere");
    assert_eq!(site.codes().await, ["packs.broken"]);
}

#[tokio::test]
async fn servers_that_cannot_be_reached_are_found() {
    finds("egress.refused", &[("SERVER_URL", "https://10.0.0.1/mcp")]).await;
    finds(
        "egress.unresolved",
        &[("SERVER_URL", "https://nowhere.invalid/mcp")],
    )
    .await;
    finds(
        "egress.unreachable",
        &[("SERVER_URL", "http://127.0.0.1:1/mcp")],
    )
    .await;
    let mut site = Site::new().await;
    let plain = site
        .origin
        .url("/mcp")
        .to_string()
        .replace("http:", "https:");
    site.set("SERVER_URL", plain);
    assert_eq!(site.codes().await, ["egress.tls"]);
    for command in ["/nowhere/program", "unheard-of", "uvx-is-not-here"] {
        let site = Site::new().await;
        let mut child = pack();
        child["mcp"]["servers"][0] = json!({ "name": "desk", "transport": "stdio", "command": command,
            "toolAccess": { "default": "all" } });
        site.write(&child);
        assert_eq!(site.codes().await, ["servers.command"], "{command}");
    }
}

#[tokio::test]
async fn models_that_do_not_answer_refuse_the_key_or_are_unknown_are_found() {
    finds(
        "model.unreachable",
        &[("MODEL_URL", "http://127.0.0.1:1/v1")],
    )
    .await;
    let refusing = Origin::start(|_| {
        let body = json!({ "error": { "message": format!("no such key: {MODEL_KEY}") } });
        let mut answer = ok(body.to_string());
        *answer.status_mut() = axum::http::StatusCode::UNAUTHORIZED;
        answer
    })
    .await;
    finds("model.key", &[("MODEL_URL", refusing.url("/v1").as_str())]).await;
    let other = Origin::start(|_| ok(json!({ "data": [{ "id": "another" }] }).to_string())).await;
    finds("model.unknown", &[("MODEL_URL", other.url("/v1").as_str())]).await;
    let late = Origin::start(|_| {
        let mut answer = ok("{}");
        let date = axum::http::HeaderValue::from_static("Thu, 01 Jan 2015 00:00:00 GMT");
        answer.headers_mut().insert("date", date);
        answer
    })
    .await;
    finds("clock.http", &[("MODEL_URL", late.url("/v1").as_str())]).await;
}

#[tokio::test]
async fn issuers_that_cannot_be_used_are_found() {
    let provider = |issuer: &str| {
        json!([{ "name": "Login", "issuer": issuer, "client_id": "web" }]).to_string()
    };
    finds(
        "issuer.unreachable",
        &[("CHATELAINE_SIGN_IN", &provider("http://127.0.0.1:1"))],
    )
    .await;
    let other = Origin::start(|_| {
        ok(json!({ "issuer": "https://other.example", "authorization_endpoint": "https://other.example/a",
            "token_endpoint": "https://other.example/t", "jwks_uri": "https://other.example/j",
            "response_types_supported": ["code"] })
        .to_string())
    })
    .await;
    let issuer = other.url("").to_string();
    finds(
        "issuer.wrong",
        &[(
            "CHATELAINE_SIGN_IN",
            &provider(issuer.trim_end_matches('/')),
        )],
    )
    .await;

    let site = Site::new().await;
    let tenant = site.db.tenant("acme").await;
    let trust = async |column: &str, value: &str, audience: &str| {
        let sql = format!(
            "insert into issuers (tenant_id, id, issuer, audience, algorithm, {column}) \
             values ('{tenant}', gen_random_uuid(), 'https://{column}.example', '{audience}', 'RS256', '{value}')"
        );
        let mut connection = site.db.as_tenant(tenant).await;
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .unwrap();
    };
    // Its clients' tokens count at this endpoint alone.
    trust("public_key", "PEM", "https://chat.example/mcp/bank").await;
    let found = site.findings().await;
    assert_eq!(codes(&found), ["issuer.endpoint"]);
    let message = found[0]["message"].as_str().unwrap();
    assert!(message.contains("https://public_key.example"), "{message}");
    trust("secret_env", "ISSUER_SECRET", "chat").await;
    assert_eq!(site.codes().await, ["issuer.secret", "issuer.endpoint"]);
    trust("jwks_url", "https://nowhere.invalid/keys", "chat").await;
    assert_eq!(
        site.codes().await,
        ["issuer.unreachable", "issuer.secret", "issuer.endpoint"]
    );
}

#[tokio::test]
async fn addresses_that_lead_nowhere_or_elsewhere_are_found() {
    finds("url.unset", &[("CHATELAINE_LISTEN", "0.0.0.0:0")]).await;
    finds(
        "url.insecure",
        &[("CHATELAINE_PUBLIC_URL", "http://chat.invalid")],
    )
    .await;
    let site = Site::new().await;
    let elsewhere = site.origin.url("").to_string();
    finds("url.elsewhere", &[("CHATELAINE_PUBLIC_URL", &elsewhere)]).await;
    let service = Origin::start(|_| ok("ok")).await;
    let variables = [
        ("CHATELAINE_LISTEN", service.address.to_string()),
        ("CHATELAINE_PUBLIC_URL", "https://127.0.0.1:1".to_owned()),
    ];
    finds(
        "url.unreachable",
        &variables
            .each_ref()
            .map(|(name, value)| (*name, value.as_str())),
    )
    .await;
    let mut site = Site::new().await;
    let taken = site.origin.address.to_string();
    site.set("CHATELAINE_LISTEN", taken);
    let found = site.findings().await;
    assert_eq!(codes(&found), ["listen.taken"]);
    let message = found[0]["message"].as_str().unwrap();
    assert!(site.refusal().await.contains(message), "{message}");
}

#[tokio::test]
async fn what_serve_refuses_is_said_in_its_words() {
    let refused = async |site: &Site, code: &str| {
        let found = site.findings().await;
        assert_eq!(codes(&found), [code], "{found:?}");
        let message = found[0]["message"].as_str().unwrap();
        let refusal = site.refusal().await;
        assert!(refusal.contains(message), "{refusal}: {message}");
    };
    let mut site = Site::new().await;
    site.set("CHATELAINE_RUN_DEPTH", "deep");
    refused(&site, "settings.value").await;
    site.unset("CHATELAINE_RUN_DEPTH");
    let url = site.variables["DATABASE_URL"].clone();
    site.set("DATABASE_URL", "");
    refused(&site, "settings.value").await;
    site.set("DATABASE_URL", url.replace("//chatelaine@", "//stranger@"));
    refused(&site, "database.refused").await;
    site.set("DATABASE_URL", url);
    let mut broken = pack();
    broken["mcp"]["servers"][0]["accessMode"] = json!("user-controlled");
    broken["mcp"]["servers"][0]["userConfig"] = json!({ "fields": [
        { "name": "token", "type": "secret", "label": { "en": "Token" }, "headerName": "Authorization" } ] });
    site.write(&broken);
    let key = site.variables.remove("MCP_CONFIG_ENCRYPTION_KEY").unwrap();
    refused(&site, "keys.missing").await;
    site.set("MCP_CONFIG_ENCRYPTION_KEY", key).write(&pack());
    execute(&site.db, LATER_RELEASE).await;
    refused(&site, "schema.unknown").await;
}

#[tokio::test]
async fn a_low_limit_of_open_files_is_found() {
    let site = Site::new().await;
    let program = chatelaine(&[]);
    let program = program.as_std().get_program().to_str().unwrap().to_owned();
    let mut limited = tokio::process::Command::new("sh");
    limited
        .args([
            "-c",
            &format!("ulimit -n 64 && exec {program} doctor --json"),
        ])
        .env_clear()
        .envs(&site.variables)
        .env("PATH", "/usr/bin:/bin");
    assert_eq!(
        codes(&Said::by(&mut limited).await.findings()),
        ["limits.files"]
    );
}

#[tokio::test]
async fn no_secret_is_said_whatever_is_wrong() {
    let mut site = Site::new().await;
    let echoing = Origin::start(|_| {
        let body = json!({ "error": { "message": format!("your key {MODEL_KEY} is bad") } });
        let mut answer = ok(body.to_string());
        *answer.status_mut() = axum::http::StatusCode::UNAUTHORIZED;
        answer
    })
    .await;
    let secrets = [
        MODEL_KEY,
        "pass-0123456789",
        "5e5e5e5e5e",
        "hush-0123456789",
        "q-0123456789",
    ];
    site.set("MODEL_URL", echoing.url("/v1"))
        .set("MCP_CONFIG_ENCRYPTION_KEY", KEY[2..].to_owned())
        .set("CHATELAINE_OPERATOR_TOKEN", "hush-0123456789")
        .set("SERVER_URL", "https://10.0.0.1/mcp?key=q-0123456789");
    let mut broken = pack();
    broken["llm"]["temprature"] = json!(MODEL_KEY);
    write_pack(site.packs.path(), "other", &broken.to_string());
    let urls = [
        "postgres://chatelaine:pass-0123456789@127.0.0.1:1/chatelaine",
        "postgres://chatelaine:pass-0123456789@127.0.0.1:x/chatelaine",
        "pass-0123456789",
    ];
    for url in urls {
        site.set("DATABASE_URL", url);
        for pack in [&broken, &pack()] {
            site.write(pack);
            std::fs::remove_dir_all(site.packs.path().join("other")).ok();
            for arguments in [&[][..], &["--json"]] {
                let said = site.doctor(arguments).await.text;
                assert!(said.contains("settings.value"), "{said}");
                for secret in secrets {
                    assert!(!said.contains(secret), "{secret}: {said}");
                }
            }
        }
    }
}

/// Answers every request with these bytes.
async fn answering(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = client.read(&mut request).await;
                let _ = client.write_all(bytes).await;
                let _ = client.shutdown().await;
            });
        }
    });
    url
}

#[tokio::test]
async fn a_proxy_that_passes_health_on_in_pieces_or_compressed_is_no_fault_and_broken_tls_is_one() {
    let mut site = Site::new().await;
    let pieces =
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n";
    let compressed =
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x08";
    for answer in [&pieces[..], compressed] {
        site.set("CHATELAINE_PUBLIC_URL", answering(answer).await);
        assert!(site.codes().await.is_empty());
    }
    let longer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nok!\r\n0\r\n\r\n";
    site.set("CHATELAINE_PUBLIC_URL", answering(longer).await);
    assert_eq!(site.codes().await, ["url.elsewhere"]);
    let untrusted = site.origin.url("").to_string().replace("http:", "https:");
    site.set("CHATELAINE_PUBLIC_URL", untrusted);
    assert_eq!(site.codes().await, ["url.tls"]);
}

#[tokio::test]
async fn a_database_without_a_free_connection_is_found_as_that() {
    let site = Site::new().await;
    execute(&site.db, "alter database HERE connection limit 0").await;
    let found = site.findings().await;
    assert_eq!(codes(&found), ["database.connections"], "{found:?}");
    assert_eq!(found[0]["severity"], "error");
    let message = found[0]["message"].as_str().unwrap();
    assert!(message.contains("too many connections"), "{message}");
}

#[tokio::test]
async fn tables_of_others_in_the_same_database_are_no_fault() {
    let site = Site::new().await;
    let mut other = site.db.as_superuser(None).await;
    sqlx::raw_sql("create table payroll (id int)")
        .execute(&mut other)
        .await
        .unwrap();
    assert!(site.codes().await.is_empty());
    // One of ours that another role owns is one, and its remedy gives away nothing else.
    let keep = "create role keeper_HERE; grant keeper_HERE to chatelaine; \
                grant create on schema public to keeper_HERE; alter table messages owner to keeper_HERE; \
                revoke keeper_HERE from chatelaine";
    execute(&site.db, keep).await;
    let found = site.findings().await;
    let back = "grant keeper_HERE to chatelaine; alter table messages owner to chatelaine; \
                drop owned by keeper_HERE; drop role keeper_HERE";
    execute(&site.db, back).await;
    assert_eq!(codes(&found), ["database.rights"], "{found:?}");
    let remedy = found[0]["remedy"].as_str().unwrap();
    assert_eq!(
        remedy,
        "give it each of them: `alter table messages owner to chatelaine`"
    );
}

/// A replica whose pack `desk` has these rules since then, and whose settings these are.
fn replica(rules: &str, since: &str, days: u32) -> String {
    format!(
        "insert into replicas (id, version, started_at, readiness, policies, policies_sha256, policies_since, settings)
         values (gen_random_uuid(), '0.2.0', now(), '{{}}', '{{\"desk\": {{\"rules\": \"{rules}\"}}}}', 'x',
                 now() - interval '{since}', '{{\"CHATELAINE_KEEP_*_DAYS\": \"{days}\"}}');"
    )
}

#[tokio::test]
async fn replicas_with_other_settings_are_found_and_those_with_other_rules_when_no_update_takes_so_long()
 {
    let pair = |one: String, other: String| format!("set role chatelaine_system; {one} {other}");
    let (strict, lax) = (
        replica("strict", "1 hour", 30),
        replica("lax", "6 minutes", 30),
    );
    finds_after("replicas.packs", &pair(strict.clone(), lax)).await;
    let other_days = replica("strict", "1 hour", 31);
    finds_after("replicas.settings", &pair(strict.clone(), other_days)).await;
    let site = Site::new().await;
    let new = replica("lax", "4 minutes", 30);
    execute(&site.db, &pair(strict, new)).await;
    assert!(site.codes().await.is_empty());
}

#[tokio::test]
async fn an_empty_database_with_a_table_of_another_program_is_found_and_the_start_says_the_same_once()
 {
    let mut site = Site::new().await;
    let name = Url::parse(site.db.url.expose()).unwrap();
    let name = format!("{}_foreign", name.path().trim_start_matches('/'));
    let mut superuser = site.db.as_superuser(Some("postgres")).await;
    let make = format!("create database {name} owner chatelaine");
    sqlx::raw_sql(AssertSqlSafe(make))
        .execute(&mut superuser)
        .await
        .unwrap();
    let mut other = site.db.as_superuser(Some(&name)).await;
    sqlx::raw_sql("create table users (id int); create table payroll (id int)")
        .execute(&mut other)
        .await
        .unwrap();
    let mut url = Url::parse(site.db.url.expose()).unwrap();
    url.set_path(&name);
    site.set("DATABASE_URL", url.to_string());
    let found = site.findings().await;
    assert_eq!(codes(&found), ["database.foreign"], "{found:?}");
    let message = found[0]["message"].as_str().unwrap();
    assert!(message.contains("(users)"), "{message}");
    let refusal = site.refusal().await;
    let said = "relation \"users\" already exists";
    assert_eq!(refusal.matches(said).count(), 1, "{refusal}");
    assert!(refusal.contains("a database of its own"), "{refusal}");
    assert!(!refusal.contains("at line"), "{refusal}");
    sqlx::raw_sql(AssertSqlSafe(format!("drop database {name} with (force)")))
        .execute(&mut superuser)
        .await
        .unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_list_of_deletions_that_cannot_be_written_is_found_and_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for list in ["/nowhere/list", "/proc/list", folder] {
        finds("files.unwritable", &[("CHATELAINE_DELETIONS_FILE", list)]).await;
    }
    let mut site = Site::new().await;
    let list = format!("{folder}/list");
    site.set("CHATELAINE_DELETIONS_FILE", &*list);
    assert!(site.codes().await.is_empty());
    assert!(!std::path::Path::new(&list).exists(), "it changes nothing");
    for list in ["/nowhere/list", "/dev/full"] {
        site.set("CHATELAINE_DELETIONS_FILE", list);
        let refusal = site.refusal().await;
        let said = format!("CHATELAINE_DELETIONS_FILE: cannot write to {list}");
        assert!(refusal.contains(&said), "{refusal}");
    }
}

#[tokio::test]
async fn a_collector_that_does_not_answer_or_refuses_is_found() {
    const VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    finds("traces.unreachable", &[(VARIABLE, "http://127.0.0.1:1")]).await;
    let refusing = answering(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").await;
    finds("traces.unreachable", &[(VARIABLE, &refusing)]).await;
    let mut site = Site::new().await;
    let collector = site.origin.url("").to_string();
    site.set(VARIABLE, collector);
    assert!(site.codes().await.is_empty());
}

#[tokio::test]
async fn a_tenants_key_that_cannot_be_read_is_found_with_the_name_of_the_tenant() {
    let site = Site::new().await;
    let (keys, _id) = site.register(&format!("k1:{KEY}")).await;
    let tenant = site.db.tenant("acme").await;
    let webhook = domain::ids::WebhookId::new();
    let context = chatelaine::app::platform::keys::contexts::of_webhook(tenant, webhook);
    let secret = domain::secret::Secret::new("hush");
    keys.seal(tenant, &context, &secret).await.unwrap();
    assert!(site.codes().await.is_empty());
    sqlx::query(
        "update tenant_keys set wrapped = set_byte(wrapped, 90, get_byte(wrapped, 90) # 1)",
    )
    .execute(&mut site.db.as_tenant(tenant).await)
    .await
    .unwrap();
    let found = site.findings().await;
    assert_eq!(codes(&found), ["keys.tenant"], "{found:?}");
    assert!(found[0]["message"].as_str().unwrap().contains("(acme)"));
}

/// A row that says of the database what it is.
const SAME_DATA: &str = "
    truncate data_identity;
    insert into data_identity (system_id, database_oid, table_oid, timeline, position)
    select (select system_identifier from pg_control_system()),
           (select oid::bigint from pg_database where datname = current_database()),
           'tenants'::regclass::oid::bigint, (select timeline_id from pg_control_checkpoint()), 0";
/// What else it may say, and why the database is another one then.
const OTHER_DATA: [(&str, &str); 7] = [
    ("system_id = system_id + 1", "in another cluster"),
    ("database_oid = database_oid + 1", "in another database"),
    ("table_oid = table_oid + 1", "its tables were made anew"),
    ("timeline = timeline + 1", "on an earlier timeline"),
    ("timeline = timeline - 1", "on a later timeline"),
    ("position = position + 1000000000000", "its log went back"),
    ("is_behind = true", "what a replica has seen"),
];

#[tokio::test]
async fn a_database_that_is_not_the_one_with_which_replicas_worked_is_found() {
    let mut site = Site::new().await;
    let data = tempfile::tempdir().unwrap();
    site.set("CHATELAINE_DATA", data.path().display().to_string());
    let mut superuser = site.db.as_superuser(None).await;
    for (change, why) in OTHER_DATA {
        let same = sqlx::raw_sql(SAME_DATA).execute(&mut superuser);
        same.await.unwrap();
        assert_eq!(site.codes().await, [""; 0]);
        let sql = AssertSqlSafe(format!("update data_identity set {change}"));
        let changed = sqlx::raw_sql(sql).execute(&mut superuser);
        changed.await.unwrap();
        let found = site.findings().await;
        assert_eq!(codes(&found), ["database.restored"], "{change}: {found:?}");
        let message = found[0]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
        let refused = site.refusal().await;
        assert!(refused.contains(message), "{change}: {refused}");
    }
}
