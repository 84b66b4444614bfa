use serde_json::json;

use super::*;
use crate::{
    support::model::call,
    turn::{pair, tool_results},
};

#[tokio::test]
async fn the_model_hears_at_once_that_its_call_waits_and_for_whom() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    let code = request["code"].as_str().unwrap();
    let result = &tool_results(&staff.ann, &conversation).await[0];
    assert_eq!(result["status"], "awaiting_approval");
    let words = result["text"].as_str().unwrap();
    assert!(
        words.contains(&format!(
            "waiting for approval {code} by finance-manager or cfo until 20"
        )),
        "{words}"
    );
    assert!(words.contains("do not retry"), "{words}");
    let note = &notes(&staff.ann, &conversation).await[0];
    assert_eq!(
        (&note["code"], &note["state"]),
        (&request["code"], &json!("pending"))
    );
    assert_eq!(
        (&request["state"], &request["own"], &request["decidable"]),
        (&json!("pending"), &json!(true), &json!(false))
    );
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn an_approver_sees_everything_that_a_decision_needs() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let seen = staff
        .bob
        .get(&format!(
            "/v1/approvals/{}",
            request["code"].as_str().unwrap()
        ))
        .await
        .expect(200);
    assert_eq!(seen["arguments"], payment("10.00"));
    assert_eq!(seen["requester"]["user"], "ann");
    assert_eq!(
        (&seen["agent"], &seen["server"], &seen["tool"]),
        (&json!("bank"), &json!("bank"), &json!("send_money"))
    );
    assert!(
        seen["server_says"]["description"]
            .as_str()
            .unwrap()
            .starts_with("Sends money")
    );
    assert_eq!(seen["server_says"]["hints"]["destructiveHint"], true);
    assert_eq!(seen["decidable"], true);
    assert_eq!(
        seen.get("conversation_id"),
        None,
        "where it was asked is the requester's own"
    );
    let spelling = r#"{"amount":"10.00","currency":"EUR","from_account":"current","to":"acme"}"#;
    let hash = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(spelling));
    assert_eq!(seen["args_sha256"], hash.as_str());
    let list = staff
        .bob
        .get("/v1/approvals?decidable=true")
        .await
        .expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0].get("arguments"), None);
}

#[tokio::test]
async fn arguments_lie_sealed_and_are_in_no_other_column() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    asked(&staff.ann, "31337.42").await;
    let row: String = sqlx::query_scalar("select a::text from approvals a")
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert!(!row.contains("31337"), "{row}");
    let trail: Vec<String> = sqlx::query_scalar("select a::text from audit a")
        .fetch_all(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert!(
        !trail.is_empty() && !trail.iter().any(|line| line.contains("31337")),
        "{trail:?}"
    );
}

#[tokio::test]
async fn the_same_call_waits_once_however_it_is_spelled() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, first) = asked(&staff.ann, "10.00").await;
    world.model.reply(text("").and_call(call(
        "bank__send_money",
        r#"{ "to": "acme", "currency": "\u0045UR", "amount": "10.00", "from_account": "current" }"#,
    )));
    let id = staff.ann.open("bank").await;
    staff.ann.say_and_wait(&id, "again").await;
    let words = tool_results(&staff.ann, &id).await[0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        words.contains(&format!(
            "still waiting for approval {}",
            first["code"].as_str().unwrap()
        )),
        "{words}"
    );
    let (_, other) = asked(&world.user("amy", &["employee"]).await, "10.00").await;
    assert_ne!(
        other["id"], first["id"],
        "somebody else's call is another one"
    );
    let mine = staff
        .ann
        .get("/v1/approvals?role=requester")
        .await
        .expect(200);
    assert_eq!(mine["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn only_so_many_calls_of_one_user_may_wait() {
    let world = world_with(|setup| setup.config.approvals_per_user = 2).await;
    let staff = Staff::of(&world).await;
    for amount in ["1.00", "2.00"] {
        asked(&staff.ann, amount).await;
    }
    let (conversation, _) = asked(&staff.ann, "3.00").await;
    let result = &tool_results(&staff.ann, &conversation).await[0];
    assert_eq!(result["status"], "denied");
    assert!(
        result["text"].as_str().unwrap().contains("at most 2 may"),
        "{result}"
    );
    asked(&world.user("amy", &["employee"]).await, "3.00").await;
    let open = staff
        .bob
        .get("/v1/approvals?decidable=true")
        .await
        .expect(200);
    assert_eq!(open["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn only_so_many_calls_of_a_tenant_may_wait() {
    let world = world_with(|setup| setup.config.approvals_per_tenant = 1).await;
    let staff = Staff::of(&world).await;
    asked(&staff.ann, "1.00").await;
    let (conversation, _) = asked(&world.user("amy", &["employee"]).await, "1.00").await;
    let result = &tool_results(&world.user("amy", &["employee"]).await, &conversation).await[0];
    assert!(
        result["text"].as_str().unwrap().contains("at most 1 may"),
        "{result}"
    );
}

#[tokio::test]
async fn arguments_that_could_be_understood_in_two_ways_do_not_wait() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    for (arguments, word) in [
        (
            r#"{"from_account":"current","to":"acme","amount":"1.00","amount":"9.00","currency":"EUR"}"#,
            "appears twice",
        ),
        (
            r#"{"from_account":"current","to":"acme","amount":9007199254740993,"currency":"EUR"}"#,
            "9007199254740993",
        ),
        (
            r#"{"from_account":"current","to":"acme","amount":1e999,"currency":"EUR"}"#,
            "not valid JSON",
        ),
        (
            r#"{"from_account":"current","to":"\ud800","amount":"1.00","currency":"EUR"}"#,
            "not valid JSON",
        ),
    ] {
        world
            .model
            .reply(text("").and_call(call("bank__send_money", arguments)));
        let id = staff.ann.open("bank").await;
        staff.ann.say_and_wait(&id, "now").await;
        let result = &tool_results(&staff.ann, &id).await[0];
        assert_eq!(result["status"], "denied");
        assert!(
            result["text"].as_str().unwrap().contains(word),
            "{arguments}: {result}"
        );
    }
    let mine = staff
        .ann
        .get("/v1/approvals?role=requester")
        .await
        .expect(200);
    assert_eq!(mine["items"], json!([]));
}

#[tokio::test]
async fn a_call_that_needs_nobody_is_made_although_its_text_is_odd() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    world.model.reply(text("").and_call(call(
        "bank__get_exchange_rate",
        r#"{"from":"GBP","from":"EUR","to":"USD"}"#,
    )));
    let id = staff.ann.open("bank").await;
    staff.ann.say_and_wait(&id, "rate").await;
    assert_eq!(
        tool_results(&staff.ann, &id).await[0]["status"],
        "succeeded",
        "{}",
        pair()
    );
}

#[tokio::test]
async fn who_holds_an_approver_role_is_executed_at_once_and_recorded_as_self_approved() {
    let world = world().await;
    let carl = world.user("carl", &["cfo"]).await;
    let id = carl.open("bank").await;
    carl.say_and_wait(&id, "pay 5.00").await;
    assert_eq!(world.bank.executions("send_money"), 1);
    let mut details: Vec<Option<String>> = Vec::new();
    eventually(async || {
        details = sqlx::query_scalar("select detail from audit where action = 'tool.call'")
            .fetch_all(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
        !details.is_empty()
    })
    .await;
    assert_eq!(details, [Some("self-approved".to_owned())]);
}

#[tokio::test]
async fn nobody_decides_their_own_where_the_policy_says_so_admins_included() {
    let world =
        world_with(|setup| policy(setup, "timeoutMinutes: 60", "selfApproval: false")).await;
    let (carl, alice) = (
        world.user("carl", &["cfo"]).await,
        world.user("alice", &["finance-manager"]).await,
    );
    for (who, amount) in [(&carl, "1.00"), (&alice, "2.00")] {
        let (_, request) = asked(who, amount).await;
        assert_eq!(request["state"], "pending");
        let refused = approve(who, &request).await.expect(403);
        assert!(
            refused["detail"]
                .as_str()
                .unwrap()
                .contains("nobody decides their own"),
            "{refused}"
        );
        assert_eq!(state(who, &request).await, "pending");
        let other = if amount == "1.00" { &alice } else { &carl };
        approve(other, &request).await.expect(200);
        becomes(other, &request, "succeeded").await;
    }
    assert_eq!(world.bank.executions("send_money"), 2);
}

#[tokio::test]
async fn an_admin_decides_only_with_the_role() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "1.00").await;
    approve(&world.user("alice", &[]).await, &request)
        .await
        .expect(404);
    approve(&world.user("alice", &["cfo"]).await, &request)
        .await
        .expect(200);
}

#[tokio::test]
async fn without_a_key_nothing_can_wait() {
    let world = world_with(|setup| setup.config.ring = None).await;
    let staff = Staff::of(&world).await;
    let id = staff.ann.open("bank").await;
    staff.ann.say_and_wait(&id, "pay 1.00").await;
    let result = &tool_results(&staff.ann, &id).await[0];
    assert!(
        result["text"]
            .as_str()
            .unwrap()
            .contains("MCP_CONFIG_ENCRYPTION_KEY"),
        "{result}"
    );
}
