//! Calls that their own user confirms: "really?", with the exact arguments. Nobody else is asked, and nobody else may
//! answer.

use super::*;
use crate::support::{
    client::{plain, tool_results},
    has::Has,
};
use domain::{
    account::{FrontendHeaders, KeyKind},
    principal::{Scope, Scopes},
};

/// Transfers of ten and more are confirmed by whoever makes them.
fn ask_the_user(setup: &mut Setup) {
    ask_for_consent(setup);
    setup.change_server(json!({ "toolAccess": {
        "approval": null,
        "confirm": [{ "tools": ["send_money"], "when": "double(args.amount) >= 10.0" }],
    } }));
}

/// The same in a process of its own, with one more change.
async fn confirming_alone(change: impl FnOnce(&mut Setup)) -> World {
    let world = World::with(|setup| {
        ask_the_user(setup);
        change(setup);
    })
    .await;
    world.tools_ready().await;
    world.model.on(teller);
    world
}

async fn confirming() -> World {
    let world = World::shared_with("confirmations", ask_the_user).await;
    world.tools_ready().await;
    world.model.on(teller);
    world
}

/// The message that answers a line of a conversation. What the model tells of an outcome comes later.
async fn answer_in(client: &Client, conversation: &str, line: &str) -> Value {
    let run = client.say_and_wait(conversation, line).await;
    let messages = client.messages(conversation).await;
    let mut answers = messages.into_iter().rev();
    let answer = answers.find(|message| message["run_id"] == run["id"]);
    answer.unwrap()
}

async fn said_in(client: &Client, conversation: &str, line: &str) -> String {
    plain(&answer_in(client, conversation, line).await)
}

/// The values of the choices that an answer offers.
fn choices(answer: &Value) -> Vec<&str> {
    let parts = answer["parts"].as_array().unwrap();
    let choices = parts.iter().filter_map(|part| part["choices"].as_array());
    choices
        .flatten()
        .map(|choice| choice["value"].as_str().unwrap())
        .collect()
}

fn says(text: &str, words: &str) {
    assert!(text.contains(words), "{words:?} is not in {text:?}");
}

#[tokio::test]
async fn the_user_alone_is_asked_with_the_exact_arguments() {
    let world = confirming().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    request.has(json!({ "kind": "confirmation", "state": "pending", "own": true, "decidable": true, "approvers": [] }));
    let note = &notes(&staff.ann, &conversation).await[0];
    note.has(json!({ "kind": "confirmation", "arguments": payment("10.00") }));
    note["text"].says(&format!("/confirm {}", code(&request)));
    note["text"].says(r#""amount":"10.00""#);
    let heard = world.model.last_request().to_string();
    assert!(
        heard.contains("waiting for the user to confirm it"),
        "{heard}"
    );
    assert!(heard.contains("only the user can"), "{heard}");
    let decision_path = format!("{}/decision", path(&request));
    let others = [
        world.user("bob", &["finance-manager", "cfo"]).await,
        // One of `adminUsers`, and one who may manage the tenant.
        world.user("alice", &["employee"]).await,
        world.admin().await,
        world.stranger_with("ann", &["employee"]).await,
    ];
    for other in &others {
        let waiting = other.get("/v1/approvals").await.expect(200);
        assert_eq!(waiting["items"], json!([]));
        assert_eq!(other.get(&path(&request)).await.status, 404);
        for choice in ["approve", "reject"] {
            let decided = other.post(&decision_path, decision(&request, choice)).await;
            assert_eq!(decided.status, 404);
        }
        for line in ["/confirm", "/approve", "/decline", "/reject"] {
            let line = format!("{line} {}", code(&request));
            says(&other.ask("bank", &line).await, "There is no request");
        }
    }
    let other_hash = json!({ "decision": "approve", "args_sha256": "ab".repeat(32) });
    staff.ann.post(&decision_path, other_hash).await.expect(409);
    // As at every other door, a yes with words beside it is none.
    let mut wordy = decision(&request, "approve");
    wordy["reason"] = json!("no, wait");
    let refused = staff.ann.post(&decision_path, wordy).await.expect(400);
    refused["detail"].says("nothing is decided");
    assert_eq!(state(&staff.ann, &request).await, "pending");
    assert_eq!(world.bank.executions("send_money"), 0);

    approve(&staff.ann, &request).await.expect(200);
    let done = becomes(&staff.ann, &request, "succeeded").await;
    done["text"].says("was confirmed and carried out");
    // The same again changes nothing, and something else comes too late.
    approve(&staff.ann, &request).await.expect(200);
    let late = staff
        .ann
        .post(&decision_path, decision(&request, "reject"))
        .await;
    late.expect(409)["detail"].says("you confirmed");
    assert!(told(&world).await.contains("\"state\":\"succeeded\""));
    assert_eq!(world.bank.executions("send_money"), 1);
    let lines = trail(&world).await;
    let detail = format!("confirmation {}", code(&request));
    assert!(
        lines
            .iter()
            .all(|(_, actor, _, said)| actor == "ann" && *said == Some(detail.clone())),
        "{lines:?}"
    );
    let actions: Vec<_> = lines.iter().map(|(action, ..)| action.as_str()).collect();
    assert_eq!(
        actions,
        [
            "approval.requested",
            "approval.approved",
            "approval.executing",
            "approval.executed"
        ]
    );
}

#[tokio::test]
async fn what_is_declined_or_not_confirmed_in_time_is_not_made() {
    let world = confirming().await;
    let staff = Staff::of(&world).await;
    // A call for which the rule does not hold asks nobody.
    staff.ann.ask("bank", "pay 9.99").await;
    assert_eq!(world.bank.executions("send_money"), 1);
    let (_, declined) = asked(&staff.ann, "10.00").await;
    let path_of = |request: &Value| format!("{}/decision", path(request));
    staff
        .ann
        .post(&path_of(&declined), decision(&declined, "reject"))
        .await
        .expect(200);
    let view = becomes(&staff.ann, &declined, "rejected").await;
    view["text"].says("was declined");
    assert!(told(&world).await.contains("\"state\":\"rejected\""));
    let (_, late) = asked(&staff.ann, "11.00").await;
    change_row(&world, &late, "expires_at = now() - interval '1 second'").await;
    approve(&staff.ann, &late).await.expect(409)["detail"].says("expired");
    becomes(&staff.ann, &late, "expired").await;
    // Who may not make the call any more has nothing to confirm.
    let (_, lost) = asked(&staff.ann, "12.00").await;
    world.user("ann", &[]).await.get("/v1/me").await.expect(200);
    becomes(&staff.ann, &lost, "revoked").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_command_confirms_once_and_in_the_conversation_that_asks() {
    let world = confirming().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    let confirm = format!("/confirm {}", code(&request));
    // What the model writes is no command of its user's.
    world.model.reply(text(&confirm));
    staff.ann.say_and_wait(&conversation, "and now?").await;
    assert_eq!(state(&staff.ann, &request).await, "pending");
    see().await;
    for line in [&confirm, &format!("/approve {}", code(&request))] {
        let elsewhere = staff.ann.ask("bank", line).await;
        says(&elsewhere, "asked in another conversation");
    }
    let other = staff.ann.open("bank").await;
    let line = format!("/approvals {}", code(&request));
    let shown = answer_in(&staff.ann, &other, &line).await;
    says(&plain(&shown), r#""amount":"10.00""#);
    assert_eq!(choices(&shown), [format!("/cancel {}", code(&request))]);
    says(
        &said_in(&staff.ann, &conversation, "/confirm").await,
        "and the code of a request",
    );
    assert_eq!(state(&staff.ann, &request).await, "pending");
    let listed = answer_in(&staff.ann, &conversation, "/approvals").await;
    for part in ["Your own requests", r#""amount":"10.00""#] {
        says(&plain(&listed), part);
    }
    let decline = format!("/decline {}", code(&request));
    assert_eq!(choices(&listed), [&confirm, &decline]);
    see().await;
    // The answer tells what the server said.
    let done = said_in(&staff.ann, &conversation, &confirm).await;
    says(&done, "transfer-1");
    assert_eq!(state(&staff.ann, &request).await, "succeeded");
    said_in(&staff.ann, &conversation, &confirm).await;
    let declined = said_in(
        &staff.ann,
        &conversation,
        &format!("/decline {}", code(&request)),
    )
    .await;
    says(&declined, "was confirmed and carried out");
    assert_eq!(world.bank.executions("send_money"), 1);

    let (conversation, request) = asked(&staff.ann, "10.00").await;
    see().await;
    let line = format!("/reject {} not this week", code(&request));
    says(
        &said_in(&staff.ann, &conversation, &line).await,
        "was declined",
    );
    let view = becomes(&staff.ann, &request, "rejected").await;
    assert_eq!(view["reason"], "not this week");
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn what_is_more_than_a_decision_decides_nothing_and_shows_the_request_again() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    let (conversation, request) = asked(&ann, "10.00").await;
    let code = code(&request);
    see().await;
    let read_again = |answer: &Value, line: &str| {
        let said = plain(answer);
        says(&said, "Nothing is decided: a decision is one line");
        says(&said, r#""amount":"10.00""#);
        let (confirm, decline) = (format!("/confirm {code}"), format!("/decline {code}"));
        assert_eq!(choices(answer), [&confirm, &decline], "{line}");
    };
    for line in [
        "/confirm CODE no wait",
        "/confirm CODE only if it is 5 EUR",
        "/confirm CODE /decline CODE",
        "/confirm CODE\nplease",
        "/confirm CODE CODE",
        "/confirm CODE\u{200b}",
        "/decline CODE no, keep it",
        "/cancel CODE of course not",
        "/reject CODE /confirm CODE",
        "yes, /confirm CODE",
        "do not\n/confirm CODE",
    ] {
        let line = line.replace("CODE", code);
        read_again(&answer_in(&ann, &conversation, &line).await, &line);
        assert_eq!(state(&ann, &request).await, "pending", "{line}");
    }
    see().await;
    let line = format!(" /confirm  {} \n", code.to_lowercase());
    says(&said_in(&ann, &conversation, &line).await, "transfer-1");
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn two_parts_of_a_message_are_no_decision_in_any_protocol() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    let mut chat = Vec::new();
    say(&ann, &mut chat, "pay 10.00").await;
    let mine = ann.get("/v1/approvals?role=requester").await.expect(200);
    let request = &mine["items"][0];
    see().await;
    let asked = chat.clone();
    for parts in [
        [format!("/confirm {}", code(request)), "hello".to_owned()],
        ["/confirm".to_owned(), code(request).to_owned()],
        [format!("/reject {}", code(request)), "hello".to_owned()],
    ] {
        let of = |kind: &str| {
            let part = |text: &String| json!({ "type": kind, "text": text });
            parts.iter().map(part).collect::<Vec<_>>()
        };
        let mut messages = asked.clone();
        messages.push(json!({ "role": "user", "content": of("text") }));
        let body = json!({ "model": "bank", "messages": messages });
        let answer = ann.post("/v1/chat/completions", body).await.expect(200);
        answer["choices"][0]["message"]["content"].says("Nothing is decided");
        let mut messages = asked.clone();
        messages.push(json!({ "role": "user", "content": of("input_text") }));
        let body = json!({ "model": "bank", "input": messages });
        let answer = ann.post("/v1/responses", body).await.expect(200);
        assert!(
            answer.to_string().contains("Nothing is decided"),
            "{answer}"
        );
        assert_eq!(state(&ann, request).await, "pending");
    }
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_command_that_comes_before_its_user_can_have_seen_the_question_confirms_nothing() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    let (conversation, request) = asked(&ann, "10.00").await;
    let forget = "delete from shown_requests";
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    sqlx::query(forget).execute(&mut tenant).await.unwrap();
    let confirm = format!("/confirm {}", code(&request));
    let shown = said_in(&ann, &conversation, &confirm).await;
    says(&shown, "Nothing is decided yet");
    says(&shown, r#""amount":"10.00""#);
    assert_eq!(state(&ann, &request).await, "pending");
    // The model asks for the same again: the user is asked again, about the same request.
    ann.say_and_wait(&conversation, "pay 10.00").await;
    let asked = notes(&ann, &conversation).await;
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0]["id"], asked[1]["id"]);
    see().await;
    says(&said_in(&ann, &conversation, &confirm).await, "transfer-1");
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn an_openai_client_confirms_by_a_message_and_a_repetition_calls_nothing() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    let mut chat = Vec::new();
    let question = say(&ann, &mut chat, "pay 10.00").await;
    let mine = ann.get("/v1/approvals?role=requester").await.expect(200);
    let request = &mine["items"][0];
    says(&question, &format!("/confirm {}", code(request)));
    says(&question, r#""amount":"10.00""#);
    see().await;
    let said = say(&ann, &mut chat, &format!("/confirm {}", code(request))).await;
    says(&said, "was confirmed and carried out");
    says(&said, "bank send_money:");
    chat.pop();
    let again = json!({ "model": "bank", "messages": chat });
    for _ in 0..2 {
        ann.post("/v1/chat/completions", again.clone())
            .await
            .expect(200);
    }
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn what_one_replica_asks_is_confirmed_at_another_and_outlives_the_one_that_confirmed_it() {
    let world = confirming_alone(|_| {}).await;
    let replica = world.replica().await;
    let ann = world.user("ann", &["employee"]).await;
    let (_, request) = asked(&ann, "10.00").await;
    approve(&ann.at(&replica.url), &request).await.expect(200);
    becomes(&ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
    // As if the process had died between the confirmation and the call.
    let (_, request) = asked(&ann, "11.00").await;
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    let vote = "insert into approval_votes (tenant_id, id, approval_id, approver, choice)
                select tenant_id, gen_random_uuid(), id, 'ann', 'approve' from approvals where state = 'pending'
                on conflict do nothing";
    sqlx::query(vote).execute(&mut tenant).await.unwrap();
    let confirmed = "state = 'approved', decided_by = 'ann', lapses_at = statement_timestamp() + interval '1 hour'";
    change_row(&world, &request, confirmed).await;
    becomes(&ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 2);
    // A vote of somebody else is none.
    let (_, request) = asked(&ann, "12.00").await;
    sqlx::query(sqlx::AssertSqlSafe(vote.replace("'ann'", "'bob'")))
        .execute(&mut tenant)
        .await
        .unwrap();
    change_row(&world, &request, confirmed).await;
    becomes(&ann, &request, "revoked").await;
    assert_eq!(world.bank.executions("send_money"), 2);
}

/// Confirms a request as a process does that dies before the call, with the key of a frontend that speaks for ann.
async fn confirm_by_key(world: &World, request: &Value, key: &str) {
    let vote = "insert into approval_votes (tenant_id, id, approval_id, approver, choice, key_id)
                select tenant_id, gen_random_uuid(), id, 'ann', 'approve', $1::uuid from approvals
                where state = 'pending' on conflict do nothing";
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    let insert = sqlx::query(vote).bind(key);
    insert.execute(&mut tenant).await.unwrap();
    let confirmed = "state = 'approved', decided_by = 'ann', lapses_at = statement_timestamp() + interval '1 hour'";
    change_row(world, request, confirmed).await;
}

#[tokio::test]
async fn a_confirmation_counts_as_long_as_the_key_that_gave_it() {
    let world = confirming_alone(|_| {}).await;
    let (ann, admin) = (world.user("ann", &["employee"]).await, world.admin().await);
    let speaker = KeyKind::Frontend(FrontendHeaders::open_webui());
    world
        .key("webui", Scopes::new([Scope::Chat]), speaker)
        .await;
    let keys = admin.get("/v1/admin/keys").await.expect(200);
    let key = keys["items"][0]["id"].as_str().unwrap();
    let (_, request) = asked(&ann, "10.00").await;
    confirm_by_key(&world, &request, key).await;
    becomes(&ann, &request, "succeeded").await;
    let (_, request) = asked(&ann, "11.00").await;
    let revoked = admin.delete(&format!("/v1/admin/keys/{key}")).await;
    assert_eq!(revoked.status, 204);
    confirm_by_key(&world, &request, key).await;
    let view = becomes(&ann, &request, "revoked").await;
    view["reason"].says("may still do so");
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn who_needs_others_confirms_nothing_and_who_approves_alone_confirms() {
    let world = world_with(|setup| {
        setup.change_server(json!({ "toolAccess": {
            "approval": [{ "tools": ["send_money"], "approvers": ["cfo"] }],
            "confirm": [{ "tools": ["send_money"] }],
        } }));
    })
    .await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    request.has(json!({ "kind": "approval", "approvers": ["cfo"], "decidable": false }));
    assert_eq!(approve(&staff.ann, &request).await.status, 403);
    let code = code(&request);
    says(
        &staff.carl.ask("bank", &format!("/confirm {code}")).await,
        "is for cfo to decide",
    );
    approve(&staff.carl, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    let (_, own) = asked(&staff.carl, "11.00").await;
    own.has(json!({ "kind": "confirmation", "decidable": true }));
    approve(&staff.carl, &own).await.expect(200);
    becomes(&staff.carl, &own, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 2);
    let tools = staff.carl.get("/v1/agents/bank/tools").await.expect(200);
    let tools = tools["items"][0]["tools"].as_array().unwrap();
    let send = tools
        .iter()
        .find(|tool| tool["tool"] == "send_money")
        .unwrap();
    send.has(json!({ "needs_confirmation": true }));
    // A rule that needs others by now is not satisfied by a confirmation.
    let (_, own) = asked(&staff.carl, "12.00").await;
    world.change_server(policy(json!({ "approvers": ["finance-manager"] })));
    world.app().packs.reload();
    let refused = approve(&staff.carl, &own).await;
    refused.expect(409)["detail"].says("who has to approve it has changed");
    assert_eq!(world.bank.executions("send_money"), 2);
}

#[tokio::test]
async fn a_guest_confirms_too_and_webhooks_hear_of_no_confirmation() {
    let world = confirming_alone(|setup| {
        setup.change_server(json!({ "toolAccess": { "roles": { "guest": ["send_money"] } } }));
    })
    .await;
    let hook = json!({ "url": "https://hooks.example.org/x", "events": ["*"] });
    world
        .admin()
        .await
        .post("/v1/admin/webhooks", hook)
        .await
        .expect(201);
    let guest = world.guest().await;
    let (_, request) = asked(&guest, "10.00").await;
    approve(&guest, &request).await.expect(200);
    becomes(&guest, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
    let told: i64 =
        sqlx::query_scalar("select count(*) from webhook_deliveries where event like 'approval.%'")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    assert_eq!(told, 0);
}

#[tokio::test]
async fn what_users_are_asked_takes_no_place_of_the_tenant_and_is_no_approval_that_waits() {
    let world = confirming_alone(|setup| {
        setup.config.approvals_per_tenant = 1;
        setup.config.approvals_per_user = 2;
    })
    .await;
    let ann = world.user("ann", &["employee"]).await;
    for amount in ["10.00", "11.00"] {
        asked(&ann, amount)
            .await
            .1
            .has(json!({ "state": "pending" }));
    }
    let (conversation, _) = asked(&ann, "12.00").await;
    let result = &tool_results(&ann, &conversation).await[0];
    result["text"].says("at most 2 may");
    let mut tx = world.db.db.system().await.unwrap();
    let backlog = store::statistics::get_backlog(&mut tx).await.unwrap();
    assert_eq!((backlog.approvals, backlog.expiring_approvals), (0, 0));
}

/// Many people may speak with the key of a program, which a frontend of its own holds.
#[tokio::test]
async fn a_conversation_under_the_key_of_a_program_shows_and_decides_nothing_of_another() {
    let world = confirming().await;
    let claims = json!({ "roles": ["employee"] });
    let speaker = KeyKind::Service(claims.as_object().unwrap().clone());
    let key = world.key("desk", Scopes::new([Scope::Chat]), speaker).await;
    let desk = world.client(&key);
    let (conversation, request) = asked(&desk, "10.00").await;
    let code = code(&request);
    let other = desk.open("bank").await;
    for line in ["/approvals", "/confirm", "/decline", "/cancel"] {
        let line = format!("{line} {code}");
        says(&said_in(&desk, &other, &line).await, "There is no request");
    }
    let listed = said_in(&desk, &other, "/approvals").await;
    assert!(!listed.contains(code), "{listed}");
    says(&said_in(&desk, &conversation, "/approvals").await, code);
    assert_eq!(state(&desk, &request).await, "pending");
    see().await;
    let cancelled = said_in(&desk, &conversation, &format!("/cancel {code}")).await;
    says(&cancelled, "taken back");
}
