use std::{sync::Arc, time::Duration};

use domain::{
    approval::{About, ApprovalRule},
    ids::{AgentId, ApprovalId, ServerId, UserId},
    policy::Origin,
    principal::{Audience, Principal},
};
use serde_json::json;
use store::approvals::{self, NewApproval};

use super::*;
use crate::support::{bank::pair, client::tool_results, has::Has, model::call};

#[tokio::test]
async fn the_model_hears_at_once_that_its_call_waits_and_for_whom() {
    let world = shared_world().await;
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
    assert!(!words.contains("do not retry"), "for people: {words}");
    let heard = world.model.last_request().to_string();
    assert!(
        heard.contains("; do not retry. Tell the user the code"),
        "{heard}"
    );
    let note = &notes(&staff.ann, &conversation).await[0];
    note.has(json!({ "code": request["code"], "state": "pending" }));
    request.has(json!({ "state": "pending", "own": true, "decidable": false }));
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn an_approver_sees_everything_that_a_decision_needs() {
    let world = shared_world().await;
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
    seen.has(json!({
        "requester": { "user": "ann" },
        "agent": "bank",
        "server": "bank",
        "tool": "send_money",
    }));
    assert!(
        seen["server_says"]["description"]
            .as_str()
            .unwrap()
            .starts_with("Sends money")
    );
    seen.has(json!({ "server_says": { "hints": { "destructiveHint": true } }, "decidable": true }));
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
async fn a_request_and_a_tool_have_the_packs_words_in_the_readers_language() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let summary = async |client: &Client, path: &str| {
        let seen = client.get(path).await.expect(200);
        seen["summary"].as_str().map(str::to_owned)
    };
    let bob = staff.bob.clone().with_header("accept-language", "es-MX");
    let (english, spanish) = (
        Some("Send 10.00 EUR to acme".to_owned()),
        Some("Enviar 10.00 EUR a acme".to_owned()),
    );
    assert_eq!(summary(&staff.bob, &path(&request)).await, english);
    assert_eq!(summary(&bob, &path(&request)).await, spanish);
    // A queue is one answer.
    let listed = async |query: &str| {
        let all = bob
            .get(&format!("/v1/approvals?decidable=true{query}"))
            .await;
        let all = all.expect(200)["items"].as_array().unwrap().clone();
        all.into_iter()
            .find(|one| one["id"] == request["id"])
            .unwrap()
    };
    let without = listed("").await;
    assert_eq!(without["summary"].as_str().map(str::to_owned), spanish);
    assert_eq!(without["arguments"], Value::Null);
    let with = listed("&include=arguments").await;
    let alone = bob.get(&path(&request)).await.expect(200);
    for name in [
        "arguments",
        "amounts",
        "args_sha256",
        "summary",
        "summary_template",
    ] {
        assert_eq!(with[name], alone[name], "{name}");
    }
    assert_eq!(with["arguments"]["amount"], "10.00");
    bob.get("/v1/approvals?include=everything")
        .await
        .expect(400);
    let tools = staff.ann.get("/v1/agents/bank/tools").await.expect(200);
    let summary_of = |tool: &str| {
        let tools = tools["items"][0]["tools"].as_array().unwrap();
        tools.iter().find(|one| one["tool"] == tool).unwrap()["summary"].clone()
    };
    assert_eq!(summary_of("send_money"), "Send {amount} {currency} to {to}");
    assert_eq!(summary_of("get_exchange_rate"), Value::Null);
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_told_from_a_tool_that_is_not_there() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let conversation = staff.ann.open("bank").await;
    for line in [
        r#"/call bank get_exchange_rate {"from":"EUR"}"#,
        r#"/call bank send_money {"to":"acme"}"#,
        "/call bank nothing {}",
    ] {
        staff.ann.say_and_wait(&conversation, line).await;
    }
    let results = tool_results(&staff.ann, &conversation).await;
    let told: Vec<_> = results
        .iter()
        .map(|result| (&result["status"], &result["refusal"]))
        .collect();
    let (denied, unfit) = (json!("denied"), json!("unfit_arguments"));
    assert_eq!(
        told,
        [
            (&denied, &unfit),
            (&denied, &unfit),
            (&denied, &Value::Null)
        ]
    );
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
    assert!(!row.contains("31337.42"), "{row}");
    let trail: Vec<String> = sqlx::query_scalar("select a::text from audit a")
        .fetch_all(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert!(
        !trail.is_empty() && !trail.iter().any(|line| line.contains("31337.42")),
        "{trail:?}"
    );
}

#[tokio::test]
async fn the_same_call_waits_once_however_it_is_spelled() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (id, first) = asked(&staff.ann, "10.00").await;
    world.model.reply(text("").and_call(call(
        "bank__send_money",
        r#"{ "to": "acme", "currency": "\u0045UR", "amount": "10.00", "from_account": "current" }"#,
    )));
    staff.ann.say_and_wait(&id, "again").await;
    let words = tool_results(&staff.ann, &id).await[1]["text"]
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
    result["text"].says("at most 2 may");
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
    result["text"].says("at most 1 may");
}

#[tokio::test]
async fn arguments_that_could_be_understood_in_two_ways_do_not_wait() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    for (arguments, word) in [
        (
            r#"{"from_account":"current","to":"acme","amount":"1.00","amount":"9.00","currency":"EUR"}"#,
            "appears twice",
        ),
        (
            r#"{"from_account":"current","to":"acme","amount":12345678901234567890123,"currency":"EUR"}"#,
            "is not of type \"string\"",
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
    let world = shared_world().await;
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
    let policy = policy(json!({ "selfApproval": false }));
    let world = world_with(|setup| setup.change_server(policy)).await;
    let (carl, alice) = (
        world.user("carl", &["cfo"]).await,
        world.user("alice", &["finance-manager"]).await,
    );
    for (who, amount) in [(&carl, "1.00"), (&alice, "2.00")] {
        let (_, request) = asked(who, amount).await;
        assert_eq!(request["state"], "pending");
        let refused = approve(who, &request).await.expect(403);
        refused["detail"].says("nobody decides their own");
        assert_eq!(state(who, &request).await, "pending");
        let other = if amount == "1.00" { &alice } else { &carl };
        approve(other, &request).await.expect(200);
        becomes(other, &request, "succeeded").await;
    }
    assert_eq!(world.bank.executions("send_money"), 2);
}

#[tokio::test]
async fn an_admin_decides_only_with_the_role() {
    let world = shared_world().await;
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
    result["text"].says("MCP_CONFIG_ENCRYPTION_KEY");
}

#[tokio::test]
async fn an_equal_call_in_another_conversation_is_a_request_of_its_own_and_both_are_told() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (first_chat, first) = asked(&staff.ann, "10.00").await;
    let (second_chat, second) = asked(&staff.ann, "10.00").await;
    assert_ne!(first["id"], second["id"]);
    let words = tool_results(&staff.ann, &second_chat).await[0]["advice"].to_string();
    let hint = format!(
        "An equal request of the user, {}, waits in another conversation",
        first["code"].as_str().unwrap()
    );
    assert!(words.contains(&hint), "{words}");
    for (chat, request) in [(&first_chat, &first), (&second_chat, &second)] {
        approve(&staff.bob, request).await.expect(200);
        becomes(&staff.ann, request, "succeeded").await;
        let told = notes(&staff.ann, chat).await;
        assert_eq!(told.last().unwrap()["state"], "succeeded", "{told:?}");
    }
    assert_eq!(world.bank.executions("send_money"), 2);
}

#[tokio::test]
async fn asking_is_one_of_several_approvals_for_those_who_hold_the_role() {
    let world = world_with(|setup| {
        setup.change_server(policy(json!({ "minApprovals": 2, "selfApproval": true })));
    })
    .await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.carl, "10.00").await;
    assert_eq!(request["state"], "pending");
    assert_eq!(request["votes"][0]["by"], "carl");
    assert_eq!(world.bank.executions("send_money"), 0);
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.carl, &request, "succeeded").await;
    // Nobody's role is needed to ask as one of `adminUsers`, and none approves.
    let alice = world.user("alice", &[]).await;
    let (_, request) = asked(&alice, "11.00").await;
    request.has(json!({ "state": "pending", "votes": [] }));
    approve(&staff.bob, &request).await.expect(200);
    assert_eq!(state(&alice, &request).await, "pending");
    approve(&staff.carl, &request).await.expect(200);
    becomes(&alice, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 2);
}

#[tokio::test]
async fn a_misspelt_name_in_a_policy_closes_the_tool_that_it_was_meant_to_guard() {
    let policy = policy(json!({ "tools": ["send_mony"], "timeoutMinutes": 60 }));
    let world = world_with(|setup| setup.change_server(policy)).await;
    let (ann, alice) = (
        world.user("ann", &["employee"]).await,
        world.user("alice", &[]).await,
    );
    for client in [&ann, &alice] {
        let chat = client.open("bank").await;
        let line = format!("/call bank send_money {}", payment("1.00"));
        client.say_and_wait(&chat, &line).await;
    }
    assert_eq!(world.bank.executions("send_money"), 0);
    let explained = alice
        .get("/v1/agents/bank/tools?explain=true")
        .await
        .expect(200);
    let bank = &explained["items"][0];
    let denied = bank["denied"].as_array().unwrap();
    assert!(
        denied
            .iter()
            .any(|tool| tool["tool"] == "send_money" && tool["reason"] == "approval_name_misspelt"),
        "{bank:#}"
    );
    let said = bank["unmatched"][0].as_str().unwrap();
    assert!(
        said.contains("names \"send_mony\"") && said.contains("send_money is closed"),
        "{said}"
    );
}

#[tokio::test]
async fn a_policy_of_a_server_from_the_registry_can_be_decided() {
    let world = World::with(|setup| REGISTRY_PACK.clone_into(&mut setup.packs[0].1)).await;
    world.model.on(teller);
    let entry =
        json!({ "id": "money", "name": "Money", "description": "A bank", "url": world.bank.url });
    world
        .admin()
        .await
        .post("/mcp-servers", entry)
        .await
        .expect(201);
    let staff = Staff::of(&world).await;
    eventually(async || {
        let tools = staff.ann.get("/v1/agents/bank/tools").await.expect(200);
        tools.to_string().contains("bank__send_money")
    })
    .await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let seen = staff.bob.get(&path(&request)).await.expect(200);
    assert_eq!(seen["decidable"], true);
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

/// The same bank, from the tenant's registry.
const REGISTRY_PACK: &str = r#"
metadata: { id: bank, displayName: Bank, description: Money, defaultLanguage: en }
languages: { en: { systemPrompt: "You are a bank." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { required: false, rolesAttribute: roles } }
mcpServers:
  bank:
    ref: money
    toolAccess:
      default: none
      roles: { employee: [send_money] }
      approval: [{ tools: [send_money], approvers: [finance-manager] }]
"#;

/// Who types a code late must not decide about something else.
#[tokio::test]
async fn the_code_of_a_closed_request_is_not_given_again_for_a_day() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let sealed: Vec<u8> = sqlx::query_scalar("select sealed from approvals")
        .fetch_one(&mut db)
        .await
        .unwrap();
    let insert = async || {
        let mut tx = world.db.db.tenant(world.tenant.id).await.unwrap();
        let principal = Principal {
            tenant: world.tenant.id,
            user: UserId("amy".into()),
            claims: Arc::default(),
            locale: None,
            authenticated: true,
            key: None,
            audience: Audience::default(),
        };
        let new = NewApproval {
            id: ApprovalId::new(),
            principal: &principal,
            requester_name: "amy",
            agent: &AgentId::parse("bank").unwrap(),
            server: &ServerId::parse("bank").unwrap(),
            tool: "send_money",
            about: &About::default(),
            fingerprint: [0; 32],
            args_sha256: [1; 32],
            sealed: &sealed,
            credential: "",
            run: None,
            conversation: None,
            call_id: "c",
            origin: Origin::Chat,
            follow_up: false,
            rule: &ApprovalRule {
                approvers: vec!["cfo".to_owned()],
                min_approvals: 1,
                self_approval: true,
            },
            trace: None,
            timeout: Duration::from_secs(60),
        };
        let code = request["code"].as_str().unwrap();
        let made = approvals::insert(&mut tx, &new, code).await.unwrap();
        made.is_some()
    };
    assert!(!insert().await, "it is open");
    let cancel = format!("{}/cancel", path(&request));
    staff.ann.post(&cancel, json!({})).await.expect(200);
    assert!(!insert().await, "it was closed a moment ago");
    change_row(&world, &request, "changed_at = now() - interval '25 hours'").await;
    assert!(insert().await);
}
