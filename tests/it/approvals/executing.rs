use std::time::Duration;

use serde_json::json;

use super::*;
use crate::support::{
    bank::{BankProcess, start_slow_bank},
    has::Has,
};

#[tokio::test]
async fn what_changed_since_it_was_asked_for_cannot_be_approved_and_does_not_run() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let reasons = [
        (
            json!({ "toolAccess": { "roles": { "employee": ["get_exchange_rate"] } } }),
            "may not use the tool any more",
        ),
        (
            policy(json!({ "minApprovals": 2 })),
            "who has to approve it has changed",
        ),
        (
            json!({ "name": "shore" }),
            "does not have the server any more",
        ),
    ];
    let path = world.config.packs.join("bank/agent-pack.yaml");
    let before = std::fs::read_to_string(path).unwrap();
    for (at, (change, reason)) in reasons.into_iter().enumerate() {
        let (_, early) = asked(&staff.ann, &format!("{}.00", at + 1)).await;
        let (_, late) = asked(&staff.ann, &format!("{}.50", at + 1)).await;
        world.change_server(change);
        world.app().packs.reload();
        let refused = approve(&staff.bob, &early).await;
        refused.expect(409)["detail"].says(reason);
        // As if it had been approved before the change and not begun yet.
        change_row(&world, &late, APPROVED).await;
        for request in [early, late] {
            let view = becomes(&staff.ann, &request, "revoked").await;
            view["reason"].says(reason);
            assert!(!view["text"].as_str().unwrap().contains('–'), "{view:#}");
        }
        world.write_pack("bank", &before);
        world.app().packs.reload();
        world.tools_ready().await;
    }
    assert!(told(&world).await.contains("\"state\":\"revoked\""));
    assert_eq!(world.bank.executions("send_money"), 0);
}

/// The row of a request that everybody needed has approved, and nobody executes.
pub(super) const APPROVED: &str =
    "state = 'approved', decided_by = 'bob', decided_at = statement_timestamp(),
     lapses_at = statement_timestamp() + interval '1 minute'";

#[tokio::test]
async fn a_tool_that_its_server_describes_differently_does_not_run() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    for approved in [false, true] {
        let (_, request) = asked(&staff.ann, if approved { "1.00" } else { "2.00" }).await;
        change_row(
            &world,
            &request,
            "fingerprint = decode(repeat('ab', 32), 'hex')",
        )
        .await;
        if approved {
            change_row(&world, &request, APPROVED).await;
        } else {
            approve(&staff.bob, &request).await.expect(409);
        }
        let view = becomes(&staff.ann, &request, "revoked").await;
        view["reason"].says("describes the tool differently");
    }
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn arguments_that_were_exchanged_in_the_database_do_not_run() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, small) = asked(&staff.ann, "1.00").await;
    let (_, large) = asked(&staff.ann, "900.00").await;
    let sealed: String =
        sqlx::query_scalar("select sealed::text from approvals where id = $1::uuid")
            .bind(large["id"].as_str().unwrap())
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    change_row(&world, &small, &format!("sealed = '{sealed}'")).await;
    let refused = approve(&staff.bob, &small).await.expect(409);
    assert_eq!(refused["code"], "arguments_unreadable");
    assert_eq!(state(&staff.bob, &small).await, "pending");
    // Exchanged after it was approved, they are not sent either.
    change_row(
        &world,
        &small,
        "state = 'approved', decided_by = 'bob', decided_at = now(), lapses_at = now() + interval '5 minutes'",
    )
    .await;
    becomes(&staff.bob, &small, "revoked").await;
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_tool_that_fails_is_told_as_failed_and_not_tried_again() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "999999.00").await;
    approve(&staff.bob, &request).await.expect(200);
    let view = becomes(&staff.ann, &request, "failed").await;
    assert_eq!(
        view["reason"],
        "bank: “account current does not hold 999999.00 EUR”"
    );
    let told = told(&world).await;
    assert!(
        told.contains("\"state\":\"failed\"") && told.contains("does not hold"),
        "{told}"
    );
    assert_eq!(
        world.bank.executions("send_money"),
        1,
        "it was executed and refused"
    );
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_makes_it_lapse() {
    let bank = BankProcess::start(&["--listen", "127.0.0.1:0"]);
    let world = world_with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", bank.url.clone());
        setup.config.approval_window = Duration::from_secs(1);
    })
    .await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "1.00").await;
    drop(bank);
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "lapsed").await;
    assert!(told(&world).await.contains("\"state\":\"lapsed\""));
}

/// A world whose bank lingers over its answers, with a second replica.
async fn slow(
    delay: Duration,
) -> (
    World,
    crate::support::replica::Replica,
    crate::support::bank::Bank,
) {
    let bank = start_slow_bank(None, delay).await;
    let world = world_with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", bank.url.clone());
        setup.config.run_lease = Duration::from_secs(2);
    })
    .await;
    let replica = world.replica().await;
    (world, replica, bank)
}

#[tokio::test]
async fn a_killed_executor_leaves_an_unknown_outcome_that_is_never_run_again() {
    let (world, doomed, bank) = slow(Duration::from_secs(5)).await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "8.00").await;
    approve(&staff.bob.at(&doomed.url), &request)
        .await
        .expect(200);
    eventually(async || bank.executions("send_money") == 1).await;
    doomed.kill();
    let lines: i64 = sqlx::query_scalar("select count(*) from audit where action = 'tool.call'")
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(lines, 1, "the trail has the call that was under way");
    becomes(&staff.bob, &request, "outcome_unknown").await;
    let words = told(&world).await;
    assert!(words.contains("check before trying again"), "{words}");
    let last = notes(&staff.ann, &conversation).await.pop().unwrap();
    last["text"].says("Check before trying again");
    approve(&staff.carl, &request).await.expect(409);

    let outcome = format!("{}/outcome", path(&request));
    staff
        .ann
        .post(&outcome, json!({ "happened": true }))
        .await
        .expect(403);
    let found = json!({ "happened": true, "note": "transfer-1 is in the ledger" });
    for _ in 0..2 {
        let view = staff.carl.post(&outcome, found.clone()).await.expect(200);
        view.has(json!({ "state": "outcome_unknown", "recorded": { "by": "carl" } }));
    }
    staff
        .bob
        .post(&outcome, json!({ "happened": false }))
        .await
        .expect(409);
    eventually(async || notes(&staff.ann, &conversation).await.len() == 3).await;
    let last = notes(&staff.ann, &conversation).await.pop().unwrap();
    last["text"].says("carl found out that bank send_money was carried out");
    assert_eq!(bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_late_answer_of_an_executor_that_lost_its_lease_is_only_evidence() {
    let (world, _replica, bank) = slow(Duration::from_secs(2)).await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "8.00").await;
    approve(&staff.bob, &request).await.expect(200);
    eventually(async || bank.executions("send_money") == 1).await;
    // As if its process had stood still for a while.
    change_row(
        &world,
        &request,
        "lease_until = statement_timestamp() - interval '1 s', fence = fence + 1",
    )
    .await;
    becomes(&staff.bob, &request, "outcome_unknown").await;
    let mut view = Value::Null;
    eventually(async || {
        view = staff.bob.get(&path(&request)).await.expect(200);
        view["evidence"].is_string()
    })
    .await;
    view["evidence"].says("succeeded");
    assert_eq!(view["state"], "outcome_unknown");
    assert_eq!(notes(&staff.ann, &conversation).await.len(), 2);
    assert_eq!(bank.executions("send_money"), 1);
}

/// The vote that belongs to a row which was approved behind the program's back.
pub(super) async fn vote_of_bob(connection: &mut sqlx::PgConnection) {
    sqlx::query(
        "insert into approval_votes (tenant_id, id, approval_id, approver, choice)
         select tenant_id, gen_random_uuid(), id, 'bob', 'approve' from approvals on conflict do nothing",
    )
    .execute(connection)
    .await
    .unwrap();
}

#[tokio::test]
async fn what_was_approved_where_nobody_executes_it_is_taken_up_by_another() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "8.00").await;
    // As if the replica that decided had died before it began.
    staff.bob.get("/v1/me").await.expect(200);
    vote_of_bob(&mut world.db.as_tenant(world.tenant.id).await).await;
    let approved = "state = 'approved', decided_by = 'bob', lapses_at = statement_timestamp() + interval '1 hour'";
    change_row(&world, &request, approved).await;
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_deleted_conversation_has_nobody_to_tell_and_fails_nothing() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "8.00").await;
    staff
        .ann
        .delete(&format!("/v1/conversations/{conversation}"))
        .await
        .expect(204);
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn an_outcome_that_comes_during_a_turn_is_told_in_the_next_one() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "8.00").await;
    let gate = crate::support::model::Gate::new();
    world.model.reply(text("Hello to you.").gate(1, &gate));
    let run = staff.ann.say(&conversation, "hello").await;
    gate.reached().await;
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    gate.open();
    crate::support::wait::ended(&staff.ann, &run).await;
    assert!(told(&world).await.contains("\"state\":\"succeeded\""));
    let spoken: Vec<_> = world
        .model
        .requests()
        .iter()
        .map(|request| last_words(&request.body))
        .collect();
    let outcomes = spoken
        .iter()
        .filter(|words| words.contains("From the program"))
        .count();
    assert_eq!(outcomes, 1, "{spoken:?}");
}

#[tokio::test]
async fn a_restart_between_decision_and_execution_loses_nothing() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "8.00").await;
    staff.bob.get("/v1/me").await.expect(200);
    let mut stopped = world.stop().await;
    stopped.db.db = store::Db::connect(&stopped.db.url, 2).await.unwrap();
    vote_of_bob(&mut stopped.db.as_tenant(stopped.tenant.id).await).await;
    sqlx::query("update approvals set state = 'approved', decided_by = 'bob', lapses_at = now() + interval '1 hour'")
        .execute(&mut stopped.db.as_tenant(stopped.tenant.id).await)
        .await
        .unwrap();
    let world = stopped.start().await;
    let ann = world.user("ann", &["employee"]).await;
    becomes(&ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_call_whose_run_is_cancelled_before_it_is_sent_is_not_sent() {
    let bank = BankProcess::start(&["--listen", "127.0.0.1:0"]);
    let world = world_with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", bank.url.clone());
    })
    .await;
    let staff = Staff::of(&world).await;
    let conversation = staff.ann.open("bank").await;
    let run = staff.ann.say(&conversation, "pay 8.00").await;
    crate::support::wait::ended(&staff.ann, &run).await;
    let mine = staff.ann.get("/v1/approvals?role=requester").await;
    let request = mine.expect(200)["items"][0].clone();
    // The server does not list its tools while it stands still, so the approved call waits before it is sent.
    let bank_id = bank.child.id().to_string();
    signal("STOP", &bank_id);
    approve(&staff.bob, &request).await.expect(200);
    eventually(async || {
        let claimed: bool = sqlx::query_scalar("select lease_owner is not null from approvals")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
        claimed
    })
    .await;
    let cancelled = staff
        .ann
        .post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await;
    cancelled.expect(202);
    signal("CONT", &bank_id);
    let view = becomes(&staff.ann, &request, "revoked").await;
    view["reason"].says("was stopped");
    let executing: i64 =
        sqlx::query_scalar("select count(*) from audit where action = 'approval.executing'")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    assert_eq!(executing, 0);
}

#[tokio::test]
async fn a_call_whose_approver_is_gone_before_it_is_sent_is_not_sent() {
    let bank = BankProcess::start(&["--listen", "127.0.0.1:0"]);
    let world = world_with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", bank.url.clone());
    })
    .await;
    let (staff, admin) = (Staff::of(&world).await, world.admin().await);
    let (_, request) = asked(&staff.ann, "8.00").await;
    // The server does not list its tools while it stands still, so the approved call waits before it is sent.
    let bank_id = bank.child.id().to_string();
    signal("STOP", &bank_id);
    approve(&staff.bob, &request).await.expect(200);
    let block = admin.post("/v1/admin/users/bob/block", Value::Null).await;
    assert_eq!(block.status, 204);
    signal("CONT", &bank_id);
    let view = becomes(&staff.ann, &request, "revoked").await;
    view["reason"].says("not enough of those who approved it");
    let executing: i64 =
        sqlx::query_scalar("select count(*) from audit where action = 'approval.executing'")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    assert_eq!(executing, 0);
}

fn signal(name: &str, process: &str) {
    let sent = std::process::Command::new("kill")
        .args([&format!("-{name}"), process])
        .status();
    assert!(sent.unwrap().success());
}

/// A call of the doomed replica's, stopped where it would become a request; the lock that stops it.
async fn stopped_at_the_request(
    world: &World,
    doomed: &crate::support::replica::Replica,
    ann: &Client,
) -> (String, String, sqlx::PgConnection) {
    let mut lock = world.db.as_owner().await;
    sqlx::raw_sql("begin; lock table approvals in exclusive mode")
        .execute(&mut lock)
        .await
        .unwrap();
    let conversation = ann.open("bank").await;
    let run = ann.at(&doomed.url).say(&conversation, "pay 8.00").await;
    eventually(async || {
        let messages = ann.messages(&conversation).await;
        let mut parts = messages
            .iter()
            .flat_map(|message| message["parts"].as_array().unwrap());
        parts.any(|part| part["type"] == "tool_call")
    })
    .await;
    (conversation, run, lock)
}

async fn rollback(connection: &mut sqlx::PgConnection) {
    sqlx::raw_sql("rollback").execute(connection).await.unwrap();
}

#[tokio::test]
async fn a_call_that_did_not_become_a_request_before_a_kill_was_never_sent() {
    let (world, doomed, bank) = slow(Duration::ZERO).await;
    let staff = Staff::of(&world).await;
    let (conversation, run, mut lock) = stopped_at_the_request(&world, &doomed, &staff.ann).await;
    doomed.kill();
    rollback(&mut lock).await;
    crate::support::wait::ended(&staff.ann, &run).await;
    let result = &crate::support::client::tool_results(&staff.ann, &conversation).await[0];
    let words = result["text"].as_str().unwrap();
    assert!(
        result["status"] == "failed" && words.contains("nothing was sent"),
        "{result:#}"
    );
    assert_eq!(bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_call_that_became_a_request_before_a_kill_says_what_the_request_knows() {
    let (world, doomed, bank) = slow(Duration::ZERO).await;
    let staff = Staff::of(&world).await;
    let (conversation, run, mut lock) = stopped_at_the_request(&world, &doomed, &staff.ann).await;
    // The result of the call cannot be kept from here on, and the request can.
    let mut held = world.db.as_tenant(world.tenant.id).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "begin; select 1 from runs where tenant_id = '{}' and id = '{run}' for no key update",
        world.tenant.id
    )))
    .execute(&mut held)
    .await
    .unwrap();
    rollback(&mut lock).await;
    let mut request = Value::Null;
    eventually(async || {
        let mine = staff
            .ann
            .get("/v1/approvals?role=requester")
            .await
            .expect(200);
        request = mine["items"][0].clone();
        request.is_object()
    })
    .await;
    doomed.kill();
    rollback(&mut held).await;
    crate::support::wait::ended(&staff.ann, &run).await;
    let result = &crate::support::client::tool_results(&staff.ann, &conversation).await[0];
    let words = result["text"].as_str().unwrap();
    let code = request["code"].as_str().unwrap();
    assert!(
        result["status"] == "awaiting_approval"
            && words.contains(&format!("waiting for approval {code}")),
        "{result:#}"
    );
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(bank.executions("send_money"), 1);
}
