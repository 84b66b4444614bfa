use serde_json::json;

use super::*;
use crate::support::{client::plain, has::Has, terminal::Terminal};

#[tokio::test]
async fn an_approved_call_is_made_once_and_the_conversation_goes_on_by_itself() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    approve(&staff.bob, &request).await.expect(200);
    let view = becomes(&staff.carl, &request, "succeeded").await;
    view["votes"][0].has(json!({ "by": "bob", "decision": "approve" }));
    assert_eq!(view["decided_by"], "bob", "who did not act is told who did");
    let told = told(&world).await;
    assert!(
        told.contains("\"state\":\"succeeded\"") && told.contains("transfer-1"),
        "{told}"
    );
    eventually(async || {
        plain(staff.ann.messages(&conversation).await.last().unwrap()) == "So it ended."
    })
    .await;
    let notes = notes(&staff.ann, &conversation).await;
    assert_eq!(
        notes
            .iter()
            .map(|note| note["state"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["pending", "succeeded"]
    );
    let entries = world.bank.books.entries();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].arguments, payment("10.00"));
    // The model still knows in a later turn.
    staff.ann.say_and_wait(&conversation, "pay 11.00").await;
    let later = world.model.requests().iter().any(|request| {
        last_words(&request.body) == "pay 11.00"
            && request.body.to_string().contains("From the program")
    });
    assert!(later);
    let code = Some(request["code"].as_str().unwrap().to_owned());
    let trail = trail(&world).await;
    let line = |action: &str, actor: &str, outcome: &str| {
        (
            format!("approval.{action}"),
            actor.to_owned(),
            outcome.to_owned(),
            code.clone(),
        )
    };
    let expected = [
        line("requested", "ann", "pending"),
        line("approved", "bob", "approved"),
        line("executing", "ann", "executing"),
        line("executed", "ann", "succeeded"),
    ];
    assert_eq!(trail[..4], expected);
}

#[tokio::test]
async fn a_rejection_carries_its_reason_to_everybody_and_runs_nothing() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    let mut body = decision(&request, "reject");
    body["reason"] = json!("too much for one day");
    let view = staff
        .bob
        .post(&format!("{}/decision", path(&request)), body)
        .await
        .expect(200);
    view.has(json!({ "state": "rejected", "reason": "too much for one day" }));
    let told = told(&world).await;
    assert!(
        told.contains("\"state\":\"rejected\"") && told.contains("too much for one day"),
        "{told}"
    );
    let last = notes(&staff.ann, &conversation).await.pop().unwrap();
    last["text"].says("rejected by bob. too much for one day");
    let refused = approve(&staff.carl, &request).await.expect(409);
    assert_eq!(refused["code"], "already_decided");
    refused["detail"].says("was rejected by bob at 20");
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn the_same_decision_again_is_answered_the_same_and_another_one_is_a_conflict() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.bob, &request, "succeeded").await;
    assert_eq!(
        approve(&staff.bob, &request).await.expect(200)["state"],
        "succeeded"
    );
    let rejected = staff
        .bob
        .post(
            &format!("{}/decision", path(&request)),
            decision(&request, "reject"),
        )
        .await;
    assert!(
        rejected.expect(409)["detail"]
            .as_str()
            .unwrap()
            .starts_with("you approved"),
        "{}",
        rejected.text
    );
    let late = approve(&staff.carl, &request).await.expect(409);
    late["detail"].says("was approved by bob at 20");
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_decision_about_other_arguments_is_none() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let decide = format!("{}/decision", path(&request));
    let other = json!({ "decision": "approve", "args_sha256": "ab".repeat(32) });
    let refused = staff.bob.post(&decide, other).await.expect(409);
    assert_eq!(refused["code"], "arguments_changed");
    refused["detail"].says("not the arguments");
    let wrong = staff
        .bob
        .post(
            &decide,
            json!({ "decision": "approve", "args_sha256": "beef" }),
        )
        .await
        .expect(400);
    assert_eq!(wrong["field"], "args_sha256");
    staff
        .bob
        .post(&decide, json!({ "decision": "approve" }))
        .await
        .expect(400);
    assert_eq!(state(&staff.bob, &request).await, "pending");
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_decision_names_the_request_that_was_shown_and_not_a_code_alone() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    // Two requests for the very same call: the hash of the arguments does not tell them apart.
    let (_, first) = asked(&staff.ann, "10.00").await;
    let (_, second) = asked(&staff.ann, "10.00").await;
    assert_eq!(first["args_sha256"], second["args_sha256"]);
    let by_code = format!("/v1/approvals/{}/decision", first["code"].as_str().unwrap());
    let mut body = decision(&first, "approve");
    let missing = staff.bob.post(&by_code, body.clone()).await.expect(400);
    assert_eq!(missing["field"], "id", "{missing}");
    body["id"] = second["id"].clone();
    for addressed in [by_code.clone(), format!("{}/decision", path(&first))] {
        let other = staff.bob.post(&addressed, body.clone()).await.expect(409);
        assert_eq!(other["code"], "arguments_changed", "{other}");
    }
    for request in [&first, &second] {
        assert_eq!(state(&staff.bob, request).await, "pending");
    }
    body["id"] = first["id"].clone();
    staff.bob.post(&by_code, body).await.expect(200);
    becomes(&staff.ann, &first, "succeeded").await;
    assert_eq!(state(&staff.bob, &second).await, "pending");
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn whoever_it_does_not_concern_does_not_find_it() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let outsiders = [
        world.user("amy", &["employee"]).await,
        world.user("alice", &[]).await,
        world.stranger("bob").await,
        world.guest().await,
    ];
    for outsider in outsiders {
        for path in [
            path(&request),
            format!("/v1/approvals/{}", request["code"].as_str().unwrap()),
        ] {
            outsider.get(&path).await.expect(404);
            outsider
                .post(&format!("{path}/decision"), decision(&request, "approve"))
                .await
                .expect(404);
            outsider
                .post(&format!("{path}/cancel"), json!({}))
                .await
                .expect(404);
            outsider
                .post(&format!("{path}/outcome"), json!({ "happened": true }))
                .await
                .expect(404);
        }
        for role in ["approver", "requester"] {
            let list = outsider
                .get(&format!("/v1/approvals?role={role}"))
                .await
                .expect(200);
            assert_eq!(list["items"], json!([]));
        }
    }
    approve(&staff.ann, &request).await.expect(403);
    staff
        .bob
        .post(&format!("{}/cancel", path(&request)), json!({}))
        .await
        .expect(404);
    assert_eq!(state(&staff.ann, &request).await, "pending");
}

#[tokio::test]
async fn its_requester_takes_it_back_and_nobody_can_approve_it_then() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    let cancel = format!("{}/cancel", path(&request));
    for _ in 0..2 {
        assert_eq!(
            staff.ann.post(&cancel, json!({})).await.expect(200)["state"],
            "cancelled"
        );
    }
    let refused = approve(&staff.bob, &request).await.expect(409);
    refused["detail"].says("was taken back by ann");
    assert!(told(&world).await.contains("\"state\":\"cancelled\""));
    assert_eq!(
        notes(&staff.ann, &conversation).await.len(),
        2,
        "it is told once"
    );
    assert_eq!(world.bank.executions("send_money"), 0);
    let (_, again) = asked(&staff.ann, "10.00").await;
    assert_ne!(again["id"], request["id"], "a new request may be made");
}

#[tokio::test]
async fn from_its_expiry_on_nobody_can_approve_it_and_everybody_is_told() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    change_row(&world, &request, "expires_at = statement_timestamp()").await;
    let refused = approve(&staff.bob, &request).await.expect(409);
    refused["detail"].says("expired at 20");
    let view = becomes(&staff.bob, &request, "expired").await;
    assert_eq!(view["decidable"], false);
    approve(&staff.carl, &request).await.expect(409);
    staff
        .ann
        .post(&format!("{}/cancel", path(&request)), json!({}))
        .await
        .expect(409);
    assert!(told(&world).await.contains("\"state\":\"expired\""));
    assert_eq!(notes(&staff.ann, &conversation).await.len(), 2);
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_decision_that_waited_for_the_row_past_its_expiry_is_too_late() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    change_row(
        &world,
        &request,
        "expires_at = statement_timestamp() + interval '700 ms'",
    )
    .await;
    let mut holder = world.db.as_tenant(world.tenant.id).await;
    let lock = format!(
        "begin; select id from approvals where tenant_id = '{}' for update",
        world.tenant.id
    );
    let lock = sqlx::raw_sql(sqlx::AssertSqlSafe(lock));
    lock.execute(&mut holder).await.unwrap();
    let hold = async {
        sqlx::raw_sql("select pg_sleep(1); commit")
            .execute(&mut holder)
            .await
            .unwrap();
    };
    let (decided, ()) = tokio::join!(approve(&staff.bob, &request), hold);
    decided.expect(409);
    becomes(&staff.bob, &request, "expired").await;
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn two_people_must_agree_where_the_policy_wants_two() {
    let policy = policy(json!({ "minApprovals": 2 }));
    let world = world_with(|setup| setup.change_server(policy)).await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    for _ in 0..2 {
        let view = approve(&staff.bob, &request).await.expect(200);
        assert_eq!(view["state"], "pending");
        assert_eq!(view["votes"].as_array().unwrap().len(), 1);
    }
    assert_eq!(world.bank.executions("send_money"), 0);
    approve(&staff.carl, &request).await.expect(200);
    let view = becomes(&staff.carl, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
    // Everybody reads who they were.
    view["text"].says("was approved by bob and carl and carried out");
    let told_of = &notes(&staff.ann, &conversation).await[1];
    told_of["text"].says("was approved by bob and carl and carried out");
    assert_eq!(told_of["approved_by"], json!(["bob", "carl"]));
    assert!(
        told(&world)
            .await
            .contains(r#""approved_by":["bob","carl"]"#)
    );
}

#[tokio::test]
async fn before_the_first_vote_everybody_reads_how_many_it_needs_and_the_last_voter_that_it_will_be_sent()
 {
    let policy = policy(json!({ "minApprovals": 2 }));
    let world = world_with(|setup| setup.change_server(policy)).await;
    let staff = Staff::of(&world).await;
    let bea = someone(&world, "bea", "cfo", "es").await;
    let receiver = crate::webhooks::Receiver::start().await;
    crate::webhooks::hook(
        &world.admin().await,
        &receiver.url(),
        &["approval.requested"],
    )
    .await;
    let chat = staff.bob.open("bank").await;
    let mut events = staff.bob.listen(&chat, None).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    let none_yet = "needs 2 approvals, 0 so far";
    request["text"].says(none_yet);
    request.has(json!({ "min_approvals": 2, "approvals": 0 }));
    let note = &notes(&staff.ann, &conversation).await[0];
    note["text"].says(none_yet);
    note.has(json!({ "min_approvals": 2, "approvals": 0 }));
    let result = &crate::support::client::tool_results(&staff.ann, &conversation).await[0];
    result["text"].says(none_yet);
    let notice = loop {
        let event = events.next().await.expect("a notice");
        if event.name == "notice" {
            break event.data;
        }
    };
    notice["text"].says(none_yet);
    let hook: Value = serde_json::from_str(&receiver.heard(1).await[0].body).unwrap();
    hook["data"].has(json!({ "min_approvals": 2, "approvals": 0 }));
    let listed = staff.bob.ask("bank", "/approvals").await;
    assert!(listed.contains(none_yet), "{listed}");
    // An OpenAI client reads it at the head of its answer, and in the answer that asks.
    let mut carls = Vec::new();
    world.model.reply(crate::support::model::text("Hello."));
    let head = say(&staff.carl, &mut carls, "hello").await;
    assert!(head.contains(none_yet), "{head}");
    let own = say(&staff.ann, &mut Vec::new(), "pay 11.00").await;
    assert!(own.contains(none_yet), "{own}");

    approve(&staff.bob, &request).await.expect(200);
    let of = async |client: &Client| client.get(&path(&request)).await.expect(200);
    of(&staff.carl).await["text"].says("1 so far, and your approval is the last: it will be sent");
    of(&bea).await["text"].says("1 hasta ahora, y tu aprobación es la última: se enviará");
    for other in [&staff.ann, &staff.bob] {
        let view = of(other).await;
        view["text"].says("needs 2 approvals, 1 so far.");
        assert_eq!(view["approvals"], 1);
    }
}

#[tokio::test]
async fn every_protocol_says_in_the_language_of_its_reader_how_many_people_a_call_needs() {
    let policy = policy(json!({ "minApprovals": 2 }));
    let world = world_with(|setup| {
        setup.change_server(policy);
        setup.change_pack(json!({
            "skills": [{ "id": "pay", "mcpBinding": { "server": "bank", "tools": ["send_money"] } }],
        }));
    })
    .await;
    let eva = someone(&world, "eva", "employee", "es").await;
    let line = |amount: &str| format!("/call bank send_money {}", payment(amount));
    let user = |line: &str| json!({ "id": "1", "role": "user", "content": line });
    let ui =
        json!({ "id": "1", "role": "user", "parts": [{ "type": "text", "text": line("3.00") }] });
    let skill =
        json!({ "messageId": "m", "role": "ROLE_USER", "parts": [{ "data": payment("5.00") }] });
    let send = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage",
                       "params": { "message": skill, "metadata": { "skillId": "pay" } } });
    let none_yet = "Necesita 2 aprobaciones, 0 hasta ahora.";
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "model": "bank", "messages": [user(&line("1.00"))] }),
        ),
        (
            "/v1/responses",
            json!({ "model": "bank", "input": line("2.00") }),
        ),
        (
            "/v1/ui/chat",
            json!({ "id": "ui", "agent": "bank", "messages": [ui] }),
        ),
        (
            "/v1/agui/bank",
            json!({ "threadId": "t", "runId": "r", "messages": [user(&line("4.00"))] }),
        ),
        ("/a2a/bank", send),
        (
            "/v1/agents/bank/skills/pay",
            json!({ "arguments": payment("6.00") }),
        ),
    ] {
        let told = eva.post(path, body).await.text;
        assert!(told.contains(none_yet), "{path}: {told}");
        // There a result is data for a program, beside the text for the person.
        let is_text = ["/v1/chat/completions", "/v1/responses"].contains(&path);
        assert!(!is_text || !told.contains("not executed"), "{path}: {told}");
    }
    let id = eva.open("bank").await;
    eva.say_and_wait(&id, &line("7.00")).await;
    let told = json!(eva.messages(&id).await).to_string();
    assert!(told.contains(none_yet), "chat: {told}");
    let mut script = Terminal::piped(&world.url, &eva);
    script.enters(&line("8.00"));
    let told = script.ends().await;
    assert!(told.contains(none_yet), "terminal: {told}");
    assert!(!told.contains("not executed"), "terminal: {told}");
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn one_rejection_ends_it_even_after_an_approval() {
    let policy = policy(json!({ "minApprovals": 2 }));
    let world = world_with(|setup| setup.change_server(policy)).await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    approve(&staff.bob, &request).await.expect(200);
    staff
        .carl
        .post(
            &format!("{}/decision", path(&request)),
            decision(&request, "reject"),
        )
        .await
        .expect(200);
    assert_eq!(state(&staff.bob, &request).await, "rejected");
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn many_decisions_at_two_replicas_make_one_execution() {
    let world = world().await;
    let replica = world.replica().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let deciders = [&staff.bob, &staff.carl]
        .map(|who| [who.clone(), who.at(&replica.url)])
        .concat();
    let answers =
        futures_util::future::join_all(deciders.iter().map(|who| approve(who, &request))).await;
    let won = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(
        won >= 1
            && answers
                .iter()
                .all(|answer| matches!(answer.status, 200 | 409)),
        "{answers:?}"
    );
    becomes(&staff.ann, &request, "succeeded").await;
    told(&world).await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn lists_come_in_pages_and_by_state() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let mut ids = Vec::new();
    for amount in ["1.00", "2.00", "3.00"] {
        ids.push(
            asked(&staff.ann, amount).await.1["id"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    staff
        .ann
        .post(&format!("/v1/approvals/{}/cancel", ids[1]), json!({}))
        .await
        .expect(200);
    let of = async |query: &str| {
        let page = staff
            .bob
            .get(&format!("/v1/approvals?{query}"))
            .await
            .expect(200);
        let items = page["items"].as_array().unwrap().iter();
        (
            items
                .map(|item| item["id"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>(),
            page["next"].clone(),
        )
    };
    let (first, next) = of("limit=2").await;
    assert_eq!(first, [ids[2].clone(), ids[1].clone()]);
    assert_eq!(
        of(&format!("limit=2&before={}", next.as_str().unwrap())).await,
        (vec![ids[0].clone()], Value::Null)
    );
    assert_eq!(of("state=cancelled").await.0, [ids[1].clone()]);
    assert_eq!(
        of("decidable=true").await.0,
        [ids[2].clone(), ids[0].clone()]
    );
    let (first_oldest, next) = of("order=oldest&limit=2").await;
    assert_eq!(first_oldest, ids[..2]);
    assert_eq!(
        of(&format!(
            "order=oldest&limit=2&cursor={}",
            next.as_str().unwrap()
        ))
        .await,
        (vec![ids[2].clone()], Value::Null)
    );
    assert_eq!(
        of("order=oldest&decidable=true").await.0,
        [ids[0].clone(), ids[2].clone()]
    );
    let own = staff
        .ann
        .get("/v1/approvals?role=requester&order=oldest&limit=1")
        .await;
    assert_eq!(own.expect(200)["items"][0]["id"], ids[0].as_str());
    assert_eq!(
        of("requester=ann&tool=send_money&limit=1").await.0,
        first[..1]
    );
    for none in ["requester=bob", "tool=get_balances"] {
        assert_eq!(of(none).await.0, Vec::<String>::new(), "{none}");
    }
    for wrong in ["state=gone", "tool=%20", "requester=%00", "order=random"] {
        let asked = format!("/v1/approvals?{wrong}");
        staff.bob.get(&asked).await.expect(400);
    }
}

#[tokio::test]
async fn a_request_whose_arguments_are_damaged_says_so_is_not_approved_and_can_be_rejected() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let flip = "sealed = set_byte(sealed, 90, get_byte(sealed, 90) # 1)";
    change_row(&world, &request, flip).await;
    let seen = staff.bob.get(&path(&request)).await.expect(200);
    assert!(seen.get("arguments").is_none(), "{seen}");
    seen["obstacle"]
        .says("can be rejected, but not approved: what is stored of its arguments is damaged");
    let refused = approve(&staff.bob, &request).await.expect(409);
    assert_eq!(refused["code"], "arguments_unreadable");
    assert_eq!(state(&staff.bob, &request).await, "pending");
    // In a chat: no button that approves, and the command says why not.
    let chat = staff.bob.open("bank").await;
    staff.bob.say_and_wait(&chat, "/approvals").await;
    let shown = staff.bob.messages(&chat).await.pop().unwrap().to_string();
    assert!(shown.contains("but not approved"), "{shown}");
    let button = format!("/approve {}", code(&request));
    assert!(!shown.contains(&format!("\"{button}\"")), "{shown}");
    for _ in 0..2 {
        staff.bob.say_and_wait(&chat, &button).await;
    }
    let said = plain(staff.bob.messages(&chat).await.last().unwrap());
    assert!(said.contains("but not approved"), "{said}");
    assert_eq!(state(&staff.bob, &request).await, "pending");
    // Restored, it is what it was.
    change_row(&world, &request, flip).await;
    let seen = staff.bob.get(&path(&request)).await.expect(200);
    assert!(seen.get("obstacle").is_none() && seen.get("arguments").is_some());
    change_row(&world, &request, flip).await;
    let view = staff
        .bob
        .post(
            &format!("{}/decision", path(&request)),
            decision(&request, "reject"),
        )
        .await
        .expect(200);
    assert_eq!(view["state"], "rejected");
    let (_, request) = asked(&staff.ann, "11.00").await;
    change_row(&world, &request, flip).await;
    let reject = format!("/reject {}", code(&request));
    staff.bob.say_and_wait(&chat, &reject).await;
    let said = json!(staff.bob.messages(&chat).await).to_string();
    assert_eq!(state(&staff.ann, &request).await, "rejected", "{said}");
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn what_waits_is_measured_by_the_part_of_its_time_that_is_left() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    asked(&staff.ann, "10.00").await;
    let measured = async || {
        let text = world.nobody().get("/metrics").await.text;
        let value = |name: &str| {
            let mut lines = text.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.unwrap().parse::<f64>().unwrap()
        };
        (
            value("chatelaine_approvals_expiring"),
            value("chatelaine_approvals_time_used_ratio"),
        )
    };
    // Of an hour nothing is used yet.
    let (expiring, used) = measured().await;
    assert!((expiring, used < 0.5) == (0.0, true), "{expiring} {used}");
    // As if it had been asked for 48 minutes ago: its id begins with the milliseconds of its making.
    let earlier = "
        update approvals
        set id = (lpad(to_hex((extract(epoch from now() - interval '48 minutes') * 1000)::bigint), 12, '0')
                  || substr(replace(id::text, '-', ''), 13))::uuid,
            expires_at = now() + interval '12 minutes'";
    sqlx::raw_sql(earlier)
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    let (expiring, used) = measured().await;
    assert!((expiring, used > 0.75) == (1.0, true), "{expiring} {used}");
}
