//! What is deleted when it is old: by kind, by tenant, by one replica at a time, and from the command line.

use chatelaine::cli::purge;
use clap::Parser;
use domain::{clock::Clock, ids::TenantId, secret::Secret};
use http::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection};
use uuid::Uuid;

use crate::support::{
    bank::cfo_approves,
    client::Client,
    db::TestDb,
    has::Has,
    model::text,
    wait::eventually,
    world::{Setup, World},
};

const OPERATOR: &str = "operator-token-of-the-tests-0123456789";

const TRANSFER: &str = r#"/call bank send_money {"from_account":"current","to":"acme","amount":"5.00","currency":"EUR"}"#;

async fn world(change: impl FnOnce(&mut Setup)) -> World {
    let world = World::with(|setup| {
        setup.config.operator_token = Some(Secret::new(OPERATOR));
        setup.change_server(cfo_approves());
        change(setup);
    })
    .await;
    world.tools_ready().await;
    world.model.on(|_| Some(text("Hello.")));
    world
}

#[derive(Parser)]
struct Typed {
    #[command(flatten)]
    purge: purge::Args,
}

/// What `chatelaine purge` prints.
pub async fn purge(world: &World, arguments: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    // The replica may be at it.
    eventually(async || {
        let typed = Typed::try_parse_from([&["purge"], arguments].concat()).unwrap();
        let days = world.config.retention();
        match purge::run(typed.purge, &world.db.db, &days, &mut out).await {
            Ok(()) => true,
            Err(error) if error.to_string().contains("a replica is purging") => false,
            Err(error) => panic!("{error:#}"),
        }
    })
    .await;
    let text = String::from_utf8(out).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Gives orders to a tenant's rows.
async fn order(test: &TestDb, tenant: TenantId, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(&mut test.as_tenant(tenant).await)
        .await
        .unwrap();
}

async fn count(test: &TestDb, tenant: TenantId, from: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {from}")))
        .fetch_one(&mut test.as_tenant(tenant).await)
        .await
        .unwrap()
}

/// An id as it was made so many days ago.
fn old_id(days: i64) -> Uuid {
    let at = Clock::System.now() - time::Duration::days(days);
    let millis = u64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap();
    let mut random = [0; 10];
    random.copy_from_slice(&Uuid::now_v7().as_bytes()[6..]);
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

/// Makes a conversation as old as if all of it had happened so many days ago.
async fn age(world: &World, tenant: TenantId, conversation: &str, days: i64) -> String {
    let id = old_id(days);
    let at = format!("now() - interval '{days} days'");
    let mut sql = format!(
        "insert into conversations (tenant_id, id, agent, user_id, title, last_seq, last_event, last_run, created_at, updated_at)
         select tenant_id, '{id}', agent, user_id, title, last_seq, last_event, last_run, {at}, {at}
         from conversations where id = '{conversation}';
         update runs set finished_at = {at} where conversation_id = '{conversation}' and finished_at is not null;"
    );
    for table in ["runs", "messages", "events", "approvals", "request_keys"] {
        sql += &format!(
            "update {table} set conversation_id = '{id}' where conversation_id = '{conversation}';"
        );
    }
    sql += &format!("delete from conversations where id = '{conversation}'");
    order(&world.db, tenant, &sql).await;
    id.to_string()
}

/// A conversation with an answer, so many days old.
async fn talk(world: &World, tenant: TenantId, client: &Client, days: i64) -> String {
    let id = client.open("bank").await;
    client.say_and_wait(&id, "hi").await;
    age(world, tenant, &id, days).await
}

async fn is_there(client: &Client, conversation: &str) -> bool {
    let answer = client
        .get(&format!("/v1/conversations/{conversation}"))
        .await;
    assert!([200, 404].contains(&answer.status), "{}", answer.text);
    answer.status == 200
}

async fn retention(world: &World, tenant: &str, days: Value) -> crate::support::client::Answer {
    let operator = world.client(&Secret::new(OPERATOR));
    let path = format!("/v1/admin/tenants/{tenant}");
    let request = operator.request(Method::PATCH, &path);
    operator
        .send(request.json(&json!({ "retention": days })))
        .await
}

#[tokio::test]
async fn conversations_go_when_they_are_old_and_nothing_of_them_is_open() {
    let world = world(|setup| setup.config.keep_conversations = Some(30)).await;
    let (acme, globex) = (world.tenant.id, world.other.id);
    let (ann, eve) = (
        world.user("ann", &["employee"]).await,
        world.stranger("eve").await,
    );
    let guest = world.guest().await;
    let (old, young) = (
        talk(&world, acme, &ann, 31).await,
        talk(&world, acme, &ann, 29).await,
    );
    let waits = ann.open("bank").await;
    ann.say_and_wait(&waits, TRANSFER).await;
    let waits = age(&world, acme, &waits, 31).await;
    let (of_guest, young_of_guest) = (
        talk(&world, acme, &guest, 8).await,
        talk(&world, acme, &guest, 6).await,
    );
    retention(&world, "globex", json!({ "conversations": "unlimited" }))
        .await
        .expect(200);
    let of_globex = talk(&world, globex, &eve, 1000).await;
    let said = purge(&world, &["--dry-run"]).await;
    let expected = [
        "acme: 1 conversations older than 30 days would be purged",
        "acme: 1 guest conversations older than 7 days would be purged",
    ];
    assert_eq!(said, expected);
    assert!(is_there(&ann, &old).await, "a dry run deletes nothing");
    let done = purge(&world, &[]).await;
    let expected: Vec<_> = expected
        .iter()
        .map(|line| line.replace("would be purged", "purged"))
        .collect();
    assert_eq!(done, expected);
    for (client, conversation, stays) in [
        (&ann, &old, false),
        (&ann, &young, true),
        (&ann, &waits, true),
        (&guest, &of_guest, false),
        (&guest, &young_of_guest, true),
        (&eve, &of_globex, true),
    ] {
        assert_eq!(
            is_there(client, conversation).await,
            stays,
            "{conversation}"
        );
    }
    for table in ["messages", "runs", "events"] {
        let left = format!("{table} where conversation_id in ('{old}', '{of_guest}')");
        assert_eq!(count(&world.db, acme, &left).await, 0, "{table}");
    }
    // What waited is decided; the next purge takes its conversation, too.
    let mine = ann.get("/v1/approvals?role=requester").await.expect(200);
    let request = format!(
        "/v1/approvals/{}/cancel",
        mine["items"][0]["id"].as_str().unwrap()
    );
    ann.post(&request, json!({})).await;
    let at = format!(
        "update conversations set updated_at = now() - interval '31 days' where id = '{waits}'"
    );
    eventually(async || {
        order(&world.db, acme, &at).await;
        purge(&world, &["--tenant", "acme"]).await;
        !is_there(&ann, &waits).await
    })
    .await;
    assert_eq!(
        purge(&world, &[]).await,
        ["nothing is older than it is to be kept"]
    );
}

#[tokio::test]
async fn a_session_stays_as_long_as_the_one_that_it_started_is_used() {
    let world = world(|setup| setup.config.keep_conversations = Some(30)).await;
    let (acme, ann) = (world.tenant.id, world.user("ann", &[]).await);
    let parent = talk(&world, acme, &ann, 60).await;
    let child = talk(&world, acme, &ann, 50).await;
    let link = format!("update conversations set parent_session = '{parent}' where id = '{child}'");
    order(&world.db, acme, &link).await;
    let used = |days: i64| {
        format!(
            "update conversations set updated_at = now() - interval '{days} days' where id = '{child}'"
        )
    };
    order(&world.db, acme, &used(1)).await;
    assert_eq!(
        purge(&world, &[]).await,
        ["nothing is older than it is to be kept"]
    );
    order(&world.db, acme, &used(31)).await;
    assert_eq!(
        purge(&world, &[]).await,
        ["acme: 2 conversations older than 30 days purged"]
    );
    assert!(!is_there(&ann, &parent).await);
}

#[tokio::test]
async fn a_run_goes_and_its_messages_stay() {
    let world = world(|setup| setup.config.keep_runs = Some(10)).await;
    let (acme, ann) = (world.tenant.id, world.user("ann", &[]).await);
    let id = ann.open("bank").await;
    let run = ann.say_and_wait(&id, "hi").await;
    let (before, run) = (
        ann.messages(&id).await,
        run["id"].as_str().unwrap().to_owned(),
    );
    let old = old_id(11);
    let sql = format!(
        "insert into runs (tenant_id, id, conversation_id, ordinal, agent, user_id, principal, kind, status, created_at, finished_at)
         select tenant_id, '{old}', conversation_id, ordinal, agent, user_id, principal, kind, status,
                now() - interval '11 days', now() - interval '11 days' from runs where id = '{run}';
         update messages set run_id = '{old}' where run_id = '{run}';
         delete from runs where id = '{run}'"
    );
    order(&world.db, acme, &sql).await;
    ann.get(&format!("/v1/runs/{old}")).await.expect(200);
    assert_eq!(
        purge(&world, &[]).await,
        ["acme: 1 runs older than 10 days purged"]
    );
    ann.get(&format!("/v1/runs/{old}")).await.expect(404);
    let texts = |messages: &[Value]| -> Vec<Value> {
        messages
            .iter()
            .map(|message| message["parts"].clone())
            .collect()
    };
    let after = ann.messages(&id).await;
    assert_eq!(texts(&after), texts(&before));
    assert!(after.iter().all(|message| message["run_id"] != json!(old)));
    // The conversation goes on.
    ann.say_and_wait(&id, "hi again").await;
}

#[tokio::test]
async fn the_arguments_of_a_closed_approval_are_erased_and_the_request_stays() {
    let world = world(|setup| setup.config.keep_approval_arguments = Some(5)).await;
    let acme = world.tenant.id;
    let (ann, carl) = (
        world.user("ann", &["employee"]).await,
        world.user("carl", &["cfo"]).await,
    );
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, TRANSFER).await;
    ann.say_and_wait(&id, &TRANSFER.replace("5.00", "6.00"))
        .await;
    let mine = ann.get("/v1/approvals?role=requester").await.expect(200);
    let path = |at: usize| {
        format!(
            "/v1/approvals/{}",
            mine["items"][at]["id"].as_str().unwrap()
        )
    };
    let rejected = json!({ "decision": "reject", "args_sha256": mine["items"][0]["args_sha256"] });
    carl.post(&format!("{}/decision", path(0)), rejected)
        .await
        .expect(200);
    order(
        &world.db,
        acme,
        "update approvals set changed_at = now() - interval '6 days'",
    )
    .await;
    assert_eq!(
        purge(&world, &[]).await,
        ["acme: 1 closed approvals' arguments older than 5 days purged"]
    );
    let closed = ann.get(&path(0)).await.expect(200);
    closed.has(json!({
        "state": "rejected",
        "args_sha256": mine["items"][0]["args_sha256"],
        "requester": { "user": "ann" },
    }));
    assert_eq!(closed.get("arguments"), None);
    let open = carl.get(&path(1)).await.expect(200);
    assert_eq!(
        open["arguments"]["amount"], "5.00",
        "one that waits keeps all"
    );
    // Keys are rotated past it.
    let sealed = "select max(length(sealed)) from approvals where state = 'rejected'";
    let left: i32 = sqlx::query_scalar(sealed)
        .fetch_one(&mut world.db.as_tenant(acme).await)
        .await
        .unwrap();
    assert_eq!(left, 7);
}

/// Lines of the trail that are so many days old.
async fn lines(world: &World, tenant: TenantId, days: i64, many: usize) {
    for _ in 0..many {
        let id = old_id(days);
        let sql = format!(
            "insert into audit (tenant_id, id, at, actor, action, outcome)
             values ('{tenant}', '{id}', now() - interval '{days} days', 'ann', 'test.old', 'unknown');
             insert into audit_outcomes (tenant_id, id, outcome) values ('{tenant}', '{id}', 'succeeded')"
        );
        order(&world.db, tenant, &sql).await;
    }
}

const OLD: &str = "audit where action = 'test.old'";

#[tokio::test]
async fn lines_of_the_trail_go_when_the_operator_says_so_and_the_trail_tells_it() {
    let world = world(|_| {}).await;
    let (acme, globex) = (world.tenant.id, world.other.id);
    for tenant in [acme, globex] {
        lines(&world, tenant, 100, 3).await;
        lines(&world, tenant, 80, 2).await;
    }
    assert_eq!(
        purge(&world, &[]).await,
        ["nothing is older than it is to be kept"]
    );
    retention(&world, "acme", json!({ "audit": 90 }))
        .await
        .expect(200);
    assert_eq!(
        purge(&world, &["--dry-run"]).await,
        ["acme: 3 audit lines older than 90 days would be purged"]
    );
    assert_eq!(
        purge(&world, &[]).await,
        ["acme: 3 audit lines older than 90 days purged"]
    );
    assert_eq!(count(&world.db, acme, OLD).await, 2);
    assert_eq!(count(&world.db, acme, "audit_outcomes").await, 2);
    assert_eq!(count(&world.db, globex, OLD).await, 5);
    let told = "select action || ': ' || detail from audit
                where action in ('audit.retention_changed', 'retention.purged') order by id";
    let told: Vec<String> = sqlx::query_scalar(told)
        .fetch_all(&mut world.db.as_tenant(acme).await)
        .await
        .unwrap();
    assert_eq!(
        told,
        [
            "audit.retention_changed: kept 90 days",
            "retention.purged: 3 audit lines older than 90 days"
        ]
    );
}

#[tokio::test]
async fn the_role_that_deletes_old_lines_can_delete_no_other() {
    let world = world(|_| {}).await;
    let (acme, globex) = (world.tenant.id, world.other.id);
    for tenant in [acme, globex] {
        lines(&world, tenant, 100, 1).await;
        lines(&world, tenant, 80, 1).await;
    }
    let mut role = world.db.as_role("chatelaine_retention", Some(acme)).await;
    let mut delete = async || {
        let deleted = sqlx::query("delete from audit").execute(&mut role).await;
        deleted.unwrap().rows_affected()
    };
    assert_eq!(delete().await, 0, "nobody has said how long lines are kept");
    let days = format!("update tenants set audit_days = 90 where id = '{acme}'");
    sqlx::raw_sql(AssertSqlSafe(days))
        .execute(&mut world.db.as_system().await)
        .await
        .unwrap();
    assert_eq!(delete().await, 1);
    assert_eq!(delete().await, 0);
    assert_eq!(count(&world.db, acme, OLD).await, 1);
    assert_eq!(count(&world.db, globex, OLD).await, 2);
    for sql in [
        "update audit set actor = 'me'",
        "select actor from audit",
        "update tenants set audit_days = 1",
        "delete from audit_outcomes",
        "select 1 from messages",
    ] {
        let refused = sqlx::query(sql).execute(&mut role).await.unwrap_err();
        assert!(
            refused.to_string().contains("permission denied"),
            "{sql}: {refused}"
        );
    }
    // It writes the line that says what it has deleted, and no other.
    for (tenant, action, is_refused) in [
        (acme, "retention.purged", false),
        (acme, "tool.call", true),
        (globex, "retention.purged", true),
    ] {
        let line = sqlx::query(
            "insert into audit (tenant_id, id, at, actor, action, outcome)
             values ($1, gen_random_uuid(), now(), 'operator', $2, 'succeeded')",
        );
        let written = line.bind(tenant.0).bind(action).execute(&mut role).await;
        let refused = written.is_err_and(|error| error.to_string().contains("row-level security"));
        assert_eq!(refused, is_refused, "{action} of {tenant}");
    }
}

#[tokio::test]
async fn replicas_purge_by_themselves_one_at_a_time() {
    let world = world(|setup| setup.config.keep_conversations = Some(30)).await;
    let acme = world.tenant.id;
    let ann = world.user("ann", &[]).await;
    for _ in 0..3 {
        talk(&world, acme, &ann, 40).await;
    }
    // The first start has looked already; the next look is due in an hour.
    let done = "update jobs set done_at = now() - interval '1 hour' where done_at is not null";
    eventually(async || {
        let system = &mut world.db.as_system().await;
        let due = sqlx::query(done).execute(system).await.unwrap();
        due.rows_affected() == 1
    })
    .await;
    let (one, two) = tokio::join!(world.replica(), world.replica());
    eventually(async || count(&world.db, acme, "conversations").await == 0).await;
    let purged =
        "audit where action = 'retention.purged' and detail = '3 conversations older than 30 days'";
    assert_eq!(count(&world.db, acme, purged).await, 1);
    drop((one, two));
}

#[tokio::test]
async fn days_are_checked_shown_and_reset() {
    let world = world(|setup| setup.config.keep_runs = Some(60)).await;
    for wrong in [json!(0), json!(40_000), json!("never"), json!(-1)] {
        let refused = retention(&world, "acme", json!({ "audit": wrong })).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
    let answer = retention(&world, "acme", json!({ "audit": 365, "runs": "unlimited" })).await;
    let shown = answer.expect(200);
    assert_eq!(
        shown["retention"],
        json!({ "audit": 365, "runs": "unlimited" })
    );
    assert_eq!(
        shown["retention_in_force"],
        json!({ "guest_conversations": 7, "approval_arguments": 90, "audit": 365 })
    );
    let answer = retention(&world, "acme", json!({ "runs": null })).await;
    assert_eq!(answer.expect(200)["retention_in_force"]["runs"], 60);
}

#[tokio::test]
async fn an_attachment_that_no_message_names_goes_after_an_hour() {
    let world = world(|_| {}).await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let send = async |name: &str| {
        let path = format!("/v1/conversations/{id}/attachments?name={name}");
        let request = ann.request(http::Method::POST, &path).body("words");
        let made = ann.send(request).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    };
    let (named, old, new) = (
        send("named.txt").await,
        send("old.txt").await,
        send("new.txt").await,
    );
    let said = json!({ "text": "read it", "attachments": [named] });
    let mut events = ann.listen(&id, None).await;
    let path = format!("/v1/conversations/{id}/messages");
    let posted = ann.post(&path, said).await.expect(202);
    events
        .until_run_ends(posted["run"]["id"].as_str().unwrap())
        .await;
    for attachment in [&named, &old] {
        let sql = format!(
            "update attachments set id = '{}' where id = '{attachment}'",
            old_id(1)
        );
        order(&world.db, world.tenant.id, &sql).await;
    }
    purge(&world, &[]).await;
    let mut kept: Vec<String> = sqlx::query_scalar("select name from attachments")
        .fetch_all(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    kept.sort();
    assert_eq!(kept, ["named.txt", "new.txt"], "{new}");
}

#[tokio::test]
async fn sums_of_limits_that_are_over_are_deleted() {
    let world = world(|_| {}).await;
    let mut acme = world.db.as_tenant(world.tenant.id).await;
    for (sum, looked_at, over_at) in [
        ("over", "2 hours", "now() - interval '1 hour'"),
        ("counts", "2 hours", "now() + interval '1 hour'"),
        ("counts, of the release before", "365 days", "null"),
        ("over, of the release before", "367 days", "null"),
    ] {
        let at = format!("now() - interval '{looked_at}'");
        // Together: the replica purges, too.
        let mut tx = acme.begin().await.unwrap();
        for sql in [
            format!(
                "insert into limit_sums (tenant_id, id, looked_at, over_at)
                 values ($1, sha256(convert_to($2, 'utf8')), {at}, {over_at})"
            ),
            format!(
                "insert into limit_uses (tenant_id, id, sum_id, at, amount)
                 values ($1, gen_random_uuid(), sha256(convert_to($2, 'utf8')), {at}, 1)"
            ),
        ] {
            let added = sqlx::query(AssertSqlSafe(sql)).bind(world.tenant.id.0);
            added.bind(sum).execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
    }
    purge(&world, &[]).await;
    assert_eq!(count(&world.db, world.tenant.id, "limit_sums").await, 2);
    assert_eq!(count(&world.db, world.tenant.id, "limit_uses").await, 2);
}
