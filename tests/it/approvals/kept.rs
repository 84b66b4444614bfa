//! Calls that a tenant keeps with their arguments, to try policies with: off unless the tenant says so, sealed, its own
//! admins' alone, and gone after the days that it says.

use chatelaine::cli::policy;
use clap::Parser;
use domain::{
    ids::{AgentId, ServerId, UserId},
    policy::Origin,
    secret::Secret,
};
use http::Method;
use sqlx::AssertSqlSafe;
use store::kept_calls::NewCall;
use uuid::Uuid;

use super::*;
use crate::{
    retention::purge,
    support::{has::Has, wait::eventually},
};

const OPERATOR: &str = "operator-token-of-the-tests-0123456789";
const TRIAL: &str = "/v1/admin/agents/bank/policy-trials";

/// What is tried in place of the bank's rules.
const STRICTER: &str = "
toolAccess:
  default: none
  roles: { employee: [send_money], cfo: [send_money] }
  approval:
    - { tools: [send_money], when: double(args.amount) > 20.0, approvers: [cfo] }
  deny:
    - { tools: [send_money], when: double(args.amount) > 100.0, reason: too much }
";

/// A bank where transfers of more than fifty wait, whose tenant keeps calls for some days.
async fn keeping(days: Option<u32>) -> World {
    let world = world_with(|setup| {
        setup.config.operator_token = Some(Secret::new(OPERATOR));
        setup.change_server(policy(json!({ "when": "double(args.amount) > 50.0" })));
    })
    .await;
    set_days(&world, json!(days)).await.expect(200);
    // A replica knows the settings of a tenant by heart for a moment.
    eventually(async || {
        let known = world.app().accounts.tenant(world.tenant.id).await.unwrap();
        known.retention.call_arguments.is_some() == days.is_some()
    })
    .await;
    world
}

async fn set_days(world: &World, days: Value) -> crate::support::client::Answer {
    let operator = world.client(&Secret::new(OPERATOR));
    let change = operator.request(Method::PATCH, "/v1/admin/tenants/acme");
    let change = change.json(&json!({ "retention": { "call_arguments": days } }));
    operator.send(change).await
}

async fn pay_all(client: &Client, amounts: &[&str]) {
    for amount in amounts {
        let line = format!("/call bank send_money {}", payment(amount));
        client.ask("bank", &line).await;
    }
}

async fn count(world: &World, from: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {from}")))
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap()
}

/// The decisions of a trial, by the rules in force and by those that are tried.
fn decisions(result: &Value) -> Vec<(String, String, String)> {
    let calls = result["calls"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    calls
        .map(|call| {
            let (now, tried) = (&call["in_force"]["decision"], &call["tried"]["decision"]);
            (word(&call["arguments"]["amount"]), word(now), word(tried))
        })
        .collect()
}

fn three(amount: &str, now: &str, tried: &str) -> (String, String, String) {
    (amount.to_owned(), now.to_owned(), tried.to_owned())
}

#[tokio::test]
async fn nothing_is_kept_unless_the_tenant_wants_it() {
    let world = keeping(None).await;
    let (ann, admin) = (world.user("ann", &["employee"]).await, world.admin().await);
    pay_all(&ann, &["5.00"]).await;
    assert_eq!(count(&world, "kept_calls").await, 0);
    let result = admin.post(TRIAL, json!({ "days": 30 })).await.expect(200);
    assert_eq!(
        result,
        json!({ "examples": [], "calls": [], "limits_are_partial": false })
    );
    for days in [json!(0), json!(367), json!("unlimited")] {
        set_days(&world, days).await.expect(400)["detail"].says("from 1 to 366");
    }
}

#[tokio::test]
async fn kept_calls_show_what_other_rules_would_do_with_them() {
    let world = keeping(Some(30)).await;
    let (ann, admin) = (world.user("ann", &["employee"]).await, world.admin().await);
    pay_all(&ann, &["5.00", "21.00", "60.00", "700.00"]).await;
    // Nothing of them can be read in the database.
    assert_eq!(count(&world, "kept_calls").await, 4);
    let readable = "kept_calls t where strpos(t::text, '700.00') > 0 or position('700.00'::bytea in sealed) > 0";
    assert_eq!(count(&world, readable).await, 0);
    let result = admin
        .post(
            TRIAL,
            json!({ "server": "bank", "policy": STRICTER, "days": 30 }),
        )
        .await
        .expect(200);
    assert_eq!(result["kept_days"], 30);
    assert_eq!(
        decisions(&result),
        [
            three("5.00", "allow", "allow"),
            three("21.00", "allow", "approve"),
            three("60.00", "approve", "approve"),
            three("700.00", "approve", "refuse"),
        ]
    );
    result["calls"][3].has(json!({
        "user": "ann", "server": "bank", "tool": "send_money",
        "tried": { "reason": "too much", "rule": "deny[0] when double(args.amount) > 100.0" },
    }));
    result["calls"][1]["tried"].has(json!({ "approvers": ["cfo"], "votes": 1 }));
    // By the rules in force alone, page by page.
    let mut cursor = Value::Null;
    let mut seen = Vec::new();
    loop {
        let page = json!({ "days": 30, "limit": 3, "cursor": cursor });
        let page = admin.post(TRIAL, page).await.expect(200);
        seen.extend(decisions(&page).into_iter().map(|(amount, ..)| amount));
        cursor = page["next"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(seen, ["5.00", "21.00", "60.00", "700.00"]);
    // Whoever reads them is in the trail.
    let read = "audit where action = 'policy.tried' and detail = 'bank: the calls of 30 days'";
    assert_eq!(count(&world, read).await, 3);
}

#[tokio::test]
async fn limits_add_up_the_calls_of_earlier_pages() {
    let world = keeping(Some(30)).await;
    let (ann, admin) = (world.user("ann", &["employee"]).await, world.admin().await);
    pay_all(&ann, &["10.10", "10.10", "10.10", "0.01"]).await;
    let limits = "
toolAccess:
  default: users
  limits: [{ tools: [send_money], sum: args.amount, per: user, over: 24h, most: 30.30, then: deny, reason: enough }]
";
    let mut found = Vec::new();
    let mut cursor = Value::Null;
    for _ in 0..5 {
        let trial =
            json!({ "server": "bank", "policy": limits, "days": 30, "limit": 1, "cursor": cursor });
        let page = admin.post(TRIAL, trial).await.expect(200);
        found.extend(decisions(&page).into_iter().map(|(.., tried)| tried));
        cursor = page["next"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(found, ["allow", "allow", "allow", "refuse"]);
}

#[tokio::test]
async fn examples_are_tried_and_what_is_wrong_with_a_trial_is_said() {
    let world = keeping(None).await;
    let admin = world.admin().await;
    let examples = "server: bank\nexamples:\n  - { tool: send_money, roles: [employee], args: { amount: '21' }, expect: allow }\n";
    let trial = json!({ "server": "bank", "policy": STRICTER, "examples": examples });
    let result = admin.post(TRIAL, trial).await.expect(200);
    result["examples"][0]
        .has(json!({ "line": 3, "is_expected": false, "outcome": { "decision": "approve" } }));
    for (trial, problem) in [
        (json!({ "policy": STRICTER }), "must name the server"),
        (
            json!({ "policy": STRICTER, "server": "other" }),
            "has no server",
        ),
        (
            json!({ "policy": "toolAccess: { default: everybody }", "server": "bank" }),
            "everybody",
        ),
        (
            json!({ "policy": "toolAccess: { approval: [{ tools: [x], when: 'amount > 1', approvers: [a] }] }", "server": "bank" }),
            "there is no variable `amount`",
        ),
        (
            json!({ "policy": "x".repeat(70_000), "server": "bank" }),
            "are the most",
        ),
        (json!({ "examples": "examples: 1" }), "expected a list"),
        (
            json!({ "examples": "agent: office\nserver: bank\nexamples: [{ tool: x, expect: allow }]" }),
            "another agent",
        ),
        (json!({ "days": 0 }), "from 1 to 366"),
        (json!({ "days": 1, "limit": 501 }), "from 1 to 500"),
    ] {
        admin.post(TRIAL, trial).await.expect(400)["detail"].says(problem);
    }
}

#[tokio::test]
async fn kept_calls_are_their_tenants_alone_and_go_when_they_are_old() {
    let world = keeping(Some(30)).await;
    let ann = world.user("ann", &["employee"]).await;
    let eve = world.stranger("eve").await;
    pay_all(&ann, &["5.00", "6.00"]).await;
    pay_all(&eve, &["7.00"]).await;
    assert_eq!(count(&world, "kept_calls").await, 2);
    let strange: i64 = sqlx::query_scalar("select count(*) from kept_calls")
        .fetch_one(&mut world.db.as_tenant(world.other.id).await)
        .await
        .unwrap();
    assert_eq!(strange, 0, "the other tenant keeps nothing");
    // Her copy has them.
    let copy = ann.get("/v1/me/export").await.expect(200);
    copy["kept_calls"][1].has(json!({ "tool": "send_money", "arguments": { "amount": "6.00" } }));
    let age = "update kept_calls set at = now() - interval '31 days'
               where id = (select id from kept_calls order by id limit 1)";
    sqlx::query(age)
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    let purged = purge(&world, &["--tenant", "acme"]).await;
    assert_eq!(purged, ["acme: 1 kept calls older than 30 days purged"]);
    assert_eq!(count(&world, "kept_calls").await, 1);
    // Whoever keeps none any more keeps none of those from before.
    set_days(&world, Value::Null).await.expect(200);
    pay_all(&ann, &["8.00"]).await;
    assert_eq!(
        purge(&world, &["--tenant", "acme"]).await,
        ["acme: 1 kept calls older than 0 days purged"]
    );
    assert_eq!(count(&world, "kept_calls").await, 0);
}

#[derive(Parser)]
enum Typed {
    #[command(subcommand)]
    Policy(policy::Command),
}

#[tokio::test]
async fn the_command_says_which_kept_calls_would_have_waited() {
    let world = keeping(Some(30)).await;
    let ann = world.user("ann", &["employee"]).await;
    pay_all(&ann, &["5.00", "60.00"]).await;
    let typed = ["", "policy", "test", "--calls", "30d", "--tenant", "acme"];
    let Typed::Policy(policy::Command::Test(args)) = Typed::try_parse_from(typed).unwrap() else {
        panic!("a test of a policy")
    };
    let mut said = Vec::new();
    policy::test_calls(
        &args,
        &world.app().packs.snapshot(),
        &world.db.db,
        &world.config,
        &mut said,
    )
    .await
    .unwrap();
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains(" ann bank bank send_money {"), "{said}");
    assert!(
        said.contains("\n  it waits for finance-manager, cfo (1 vote), by approval[0] when double(args.amount) > 50.0\n"),
        "{said}"
    );
    assert!(
        said.ends_with("2 calls: 1 made, 1 waiting, 0 refused\n"),
        "{said}"
    );
}

/// Until a statement that begins so waits for a lock.
async fn waits_for_a_lock(world: &World, begin: &str) {
    eventually(async || world.db.awaited_locks(begin).await > 0).await;
}

#[tokio::test]
async fn a_call_of_somebody_who_is_deleted_meanwhile_is_not_kept() {
    let world = keeping(Some(30)).await;
    let ann = world.user("ann", &["employee"]).await;
    pay_all(&ann, &["5.00"]).await;
    let sealed: Vec<u8> = sqlx::query_scalar("select sealed from kept_calls")
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    let user = UserId("ann".into());
    let (agent, server) = (
        AgentId::parse("bank").unwrap(),
        ServerId::parse("bank").unwrap(),
    );
    let put = async || {
        let mut tx = world.db.db.tenant(world.tenant.id).await.unwrap();
        let call = NewCall {
            id: Uuid::now_v7(),
            user: &user,
            own_key: None,
            agent: &agent,
            server: &server,
            tool: "send_money",
            origin: Origin::Chat,
            sealed: &sealed,
        };
        store::kept_calls::put(&mut tx, &call).await.unwrap();
        tx
    };
    // The deletion waits for a call that is being kept, and deletes it, too.
    let tx = put().await;
    let deleting = tokio::spawn({
        let ann = ann.clone();
        async move { ann.delete("/v1/me/data").await.status }
    });
    waits_for_a_lock(&world, "delete").await;
    tx.commit().await.unwrap();
    assert_eq!(deleting.await.unwrap(), 204);
    assert_eq!(count(&world, "kept_calls").await, 0);
    put().await.commit().await.unwrap();
    assert_eq!(count(&world, "kept_calls").await, 0);
}

#[tokio::test]
async fn a_tool_that_waits_is_held_by_any_rules_and_a_tenant_tries_once_at_a_time() {
    let world = keeping(Some(30)).await;
    let (ann, admin) = (world.user("ann", &["employee"]).await, world.admin().await);
    pay_all(&ann, &["5.00"]).await;
    let waits = "insert into pinned_tools (tenant_id, id, agent, server, tool, hash, definition)
                 values ($1, gen_random_uuid(), 'bank', 'bank', 'send_money', repeat('ab', 32), '{}')";
    sqlx::query(waits)
        .bind(world.tenant.id.0)
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    let mut holder = world.db.as_owner().await;
    let lock = "begin; lock table kept_calls in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
    let first = tokio::spawn({
        let admin = admin.clone();
        async move { admin.post(TRIAL, json!({ "days": 30 })).await }
    });
    // Not what purges old calls, which waits for the lock, too.
    waits_for_a_lock(&world, "select").await;
    let second = admin.post(TRIAL, json!({ "days": 30 })).await;
    second.expect(503)["detail"].says("another trial");
    sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
    let result = first.await.unwrap().expect(200);
    assert_eq!(decisions(&result), [three("5.00", "held", "held")]);
    admin.post(TRIAL, json!({ "days": 30 })).await.expect(200);
}
