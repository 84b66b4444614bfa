//! The trail as a tenant's admin reads it, and as an operator does.

use chatelaine::{
    app::accounts::{self, NewKey},
    cli::audit::{Args, run},
};
use clap::Parser;
use domain::{
    account::KeyKind,
    clock::Clock,
    ids::AuditId,
    principal::{Scope, Scopes},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::Db;
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use super::{calls, new_key};
use crate::support::{
    bank::{pair, payment},
    client::Client,
    db::TestDb,
    has::Has,
    model::{call, text},
    world::World,
};

/// A world where ann, a guest and the operator did something, and its admin.
async fn world() -> (World, Client) {
    let world = World::start().await;
    world.tools_ready().await;
    let (ann, guest) = (world.user("ann", &["employee"]).await, world.guest().await);
    for client in [&ann, &guest] {
        let id = client.open("bank").await;
        client
            .say_and_wait(&id, &format!("/call bank get_exchange_rate {}", pair()))
            .await;
        client
            .say_and_wait(&id, &format!("/call bank send_money {}", payment("1.00")))
            .await;
    }
    accounts::create_key(
        &world.db.db,
        &Clock::System,
        world.tenant.id,
        new_key("nightly"),
    )
    .await
    .unwrap();
    calls(&world, 4).await;
    let admin = world.admin().await;
    (world, admin)
}

async fn items(admin: &Client, query: &str) -> Vec<Value> {
    let page = admin
        .get(&format!("/v1/admin/audit?{query}"))
        .await
        .expect(200);
    page["items"].as_array().unwrap().clone()
}

fn field(lines: &[Value], name: &str) -> Vec<String> {
    lines
        .iter()
        .map(|line| line[name].as_str().unwrap_or_default().to_owned())
        .collect()
}

fn written(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap()
}

#[tokio::test]
async fn every_filter_leaves_the_lines_that_pass_it() {
    let (_world, admin) = world().await;
    assert_eq!(
        field(&items(&admin, "actor=ann").await, "tool"),
        ["send_money", "get_exchange_rate"]
    );
    assert_eq!(items(&admin, "action=tool.call").await.len(), 4);
    assert_eq!(
        items(&admin, "action=tool").await.len(),
        0,
        "without a dot it is the whole name"
    );
    assert_eq!(
        field(&items(&admin, "action=key.").await, "action"),
        ["key.created"]
    );
    assert_eq!(items(&admin, "server=bank&outcome=denied").await.len(), 2);
    assert_eq!(items(&admin, "server=another").await.len(), 0);
    assert_eq!(items(&admin, "tool=send_money&actor=ann").await.len(), 1);
    let hash = hex::encode(Sha256::digest(payment("1.00").to_string()));
    assert_eq!(
        field(&items(&admin, &format!("args_sha256={hash}")).await, "tool"),
        ["send_money"; 2]
    );
    let line = &items(&admin, "actor=ann&tool=send_money").await[0];
    assert_eq!(line["args_sha256"], hash);
    assert_eq!(
        items(&admin, &format!("run={}", line["run_id"].as_str().unwrap())).await,
        std::slice::from_ref(line)
    );
    let now = Clock::System.now();
    let (past, future) = (
        written(now - Duration::hours(1)),
        written(now + Duration::hours(1)),
    );
    assert_eq!(
        items(
            &admin,
            &format!("action=tool.call&since={past}&until={future}")
        )
        .await
        .len(),
        4
    );
    assert_eq!(items(&admin, &format!("since={future}")).await.len(), 0);
    assert_eq!(items(&admin, &format!("until={past}")).await.len(), 0);
    let begun = line["at"].as_str().unwrap();
    assert!(
        items(&admin, &format!("since={begun}"))
            .await
            .contains(line),
        "`since` is from then on"
    );
    assert!(
        !items(&admin, &format!("until={begun}"))
            .await
            .contains(line),
        "`until` is before then"
    );
}

#[tokio::test]
async fn pages_lead_through_the_trail_newest_first_and_once_each() {
    let (_world, admin) = world().await;
    let whole = items(&admin, "limit=200").await;
    let ids = field(&whole, "id");
    assert!(ids.is_sorted_by(|a, b| a > b), "{ids:?}");
    let (mut walked, mut next) = (Vec::new(), String::new());
    loop {
        let page = admin
            .get(&format!("/v1/admin/audit?limit=2{next}"))
            .await
            .expect(200);
        walked.extend(page["items"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(cursor) => next = format!("&before={cursor}"),
            None => break,
        }
    }
    assert_eq!(walked, whole);
}

#[tokio::test]
async fn a_question_that_cannot_be_understood_is_refused_by_its_field() {
    let world = World::shared().await;
    let admin = world.admin().await;
    for (query, field) in [
        ("limit=201", "limit"),
        ("limit=0", "limit"),
        ("args_sha256=abc", "args_sha256"),
        ("actor=%00", "actor"),
        ("since=yesterday", "since"),
        ("run=1", "run"),
    ] {
        let answer = admin
            .get(&format!("/v1/admin/audit?{query}"))
            .await
            .expect(400);
        assert_eq!(answer["field"], field, "{query}: {answer}");
    }
    admin
        .get("/v1/admin/audit?since=9999-12-31T23:59:59Z&until=-9999-01-01T00:00:00Z")
        .await;
    assert_eq!(items(&admin, "since=9999-12-31T23:59:59Z").await.len(), 0);
}

#[tokio::test]
async fn another_tenants_admin_reads_their_own_trail_only() {
    let (world, admin) = world().await;
    let new = NewKey {
        source: domain::account::SourceSettings::default(),
        name: "root".to_owned(),
        scopes: Scopes::new([Scope::Admin]),
        speaker: KeyKind::Service(serde_json::Map::new()),
        chat: domain::account::ChatSettings::default(),
        expires_at: None,
    };
    let key = accounts::create_key(&world.db.db, &Clock::System, world.other.id, new)
        .await
        .unwrap();
    let theirs = items(&world.client(&key.secret), "limit=200").await;
    assert_eq!(field(&theirs, "action"), ["key.created", "tenant.created"]);
    let ours = items(&admin, "limit=200").await;
    assert!(theirs.iter().all(|line| !ours.contains(line)));
}

#[derive(Parser)]
struct Typed {
    #[command(flatten)]
    args: Args,
}

/// What `chatelaine audit` prints.
async fn typed(db: &Db, line: &[&str]) -> anyhow::Result<String> {
    let mut out = Vec::new();
    let typed = Typed::try_parse_from([&["audit"], line].concat())?;
    run(typed.args, db, &Clock::System, &mut out).await?;
    Ok(String::from_utf8(out).unwrap())
}

#[tokio::test]
async fn an_operator_reads_a_table_or_a_json_object_a_line() {
    let (world, _) = world().await;
    let db = &world.db.db;
    let table = typed(db, &["--tenant", "acme", "--actor", "ann", "--since", "2h"])
        .await
        .unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    let hash = hex::encode(Sha256::digest(payment("1.00").to_string()));
    let wanted = format!(
        "ann  tool.call  denied     bank/bank/send_money         {}",
        &hash[..12]
    );
    assert!(lines[0].ends_with(&wanted), "{table}");
    assert!(
        lines[1].contains("ann  tool.call  succeeded  bank/bank/get_exchange_rate"),
        "{table}"
    );
    let json = typed(
        db,
        &[
            "--tenant",
            "acme",
            "--tool",
            "send_money",
            "--json",
            "--limit",
            "1",
        ],
    )
    .await
    .unwrap();
    let line: Value = serde_json::from_str(json.trim_end()).unwrap();
    line.has(json!({ "outcome": "denied", "args_sha256": hash }));
    assert_eq!(
        typed(db, &["--tenant", "acme", "--until", "1h"])
            .await
            .unwrap(),
        ""
    );
    let own = typed(db, &["--operator"]).await.unwrap();
    assert!(own.contains("operator  tenant.created  acme ("), "{own}");
}

#[tokio::test]
async fn a_command_line_that_cannot_be_understood_is_refused_with_what_to_write() {
    let test = TestDb::new().await;
    test.tenant("acme").await;
    let refused = async |line: &[&str]| typed(&test.db, line).await.unwrap_err().to_string();
    let wrong = refused(&["--tenant", "acme", "--since", "soon"]).await;
    assert_eq!(
        wrong,
        "--since: \"soon\" is neither `30m`, `2h` or `7d` nor a time such as 2026-11-21T12:00:00Z"
    );
    assert!(
        refused(&["--tenant", "acme", "--since", "7ü"])
            .await
            .starts_with("--since")
    );
    assert!(
        refused(&["--tenant", "acme", "--args-sha256", "12"])
            .await
            .contains("64 hex digits")
    );
    assert!(
        refused(&["--tenant", "nowhere"])
            .await
            .contains("not found")
    );
    assert!(refused(&[]).await.contains("--tenant"));
}

#[tokio::test]
async fn more_lines_than_one_question_brings_are_read_on() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    sqlx::query(
        "insert into audit (tenant_id, id, at, actor, action, outcome)
         select $1, ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, now(), 'ann', 'tool.call', 'denied'
         from generate_series(1, 1203) n on conflict do nothing",
    )
    .bind(tenant.0)
    .execute(&mut test.as_tenant(tenant).await)
    .await
    .unwrap();
    let all = typed(&test.db, &["--tenant", "acme", "--limit", "5000"])
        .await
        .unwrap();
    assert_eq!(all.lines().count(), 1203);
    let some = typed(&test.db, &["--tenant", "acme", "--limit", "1001", "--json"])
        .await
        .unwrap();
    assert_eq!(some.lines().count(), 1001);
    assert!(
        some.lines().next().unwrap().contains("0000000004b3"),
        "the newest first"
    );
}

#[tokio::test]
async fn a_name_that_a_model_made_up_says_nothing_to_the_terminal() {
    let world = World::start().await;
    world.tools_ready().await;
    let guest = world.guest().await;
    world
        .model
        .reply(text("").and_call(call("a\u{1b}[2Jb\nc", "{}")))
        .reply(text("Well."));
    let id = guest.open("bank").await;
    guest.say_and_wait(&id, "hi").await;
    calls(&world, 1).await;
    let table = typed(&world.db.db, &["--tenant", "acme", "--action", "tool.call"])
        .await
        .unwrap();
    assert_eq!(table.lines().count(), 1, "{table:?}");
    assert!(
        !table.contains('\u{1b}') && table.contains("bank/a\u{fffd}[2Jb\u{fffd}c"),
        "{table:?}"
    );
}

/// `chatelaine audit | head`
#[tokio::test]
async fn whoever_reads_only_the_first_lines_is_told_of_no_error() {
    let (world, _admin) = world().await;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = crate::support::program::chatelaine(&["audit", "--tenant", "acme"]);
    command
        .env("DATABASE_URL", world.db.url.expose())
        .env("CHATELAINE_DATA", &world.config.data)
        .stdout(writer)
        .stderr(std::process::Stdio::piped());
    let done = command.spawn().unwrap().wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && said.is_empty(), "{said}");
}

#[tokio::test]
async fn a_call_has_an_unknown_outcome_until_its_outcome_is_recorded() {
    let world = World::shared().await;
    let admin = world.admin().await;
    let ids: Vec<AuditId> = std::iter::repeat_with(AuditId::new).take(3).collect();
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    for id in &ids {
        sqlx::query(
            "insert into audit (tenant_id, id, at, actor, action, outcome)
             values ($1, $2, now(), 'open', 'tool.call', 'outcome_unknown')",
        )
        .bind(world.tenant.id.0)
        .bind(id.0)
        .execute(&mut tenant)
        .await
        .unwrap();
    }
    let of = async |outcome: &str| {
        let lines = items(&admin, &format!("actor=open&outcome={outcome}")).await;
        field(&lines, "id")
    };
    let newest_first = |ids: &[AuditId]| {
        let ids = ids.iter().rev().map(|id| id.0.to_string());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(of("outcome_unknown").await, newest_first(&ids));
    let (ended, tenant) = (
        [(ids[0], "failed"), (ids[2], "outcome_unknown")],
        world.tenant.id,
    );
    let recorded = world.in_process(move |_, db| async move {
        let mut tx = db.tenant(tenant).await.unwrap();
        store::audit::record_outcomes(&mut tx, &ended)
            .await
            .unwrap();
        // What is known already does not change.
        let again = [(ended[0].0, "succeeded")];
        store::audit::record_outcomes(&mut tx, &again)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    });
    recorded.await;
    assert_eq!(of("outcome_unknown").await, newest_first(&ids[1..]));
    assert_eq!(of("failed").await, newest_first(&ids[..1]));
    assert_eq!(of("succeeded").await, Vec::<String>::new());
}
