use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::time::sleep;

use super::*;
use crate::support::{
    client::{Event, Events, plain},
    has::Has,
    model::Gate,
};

async fn command(client: &Client, line: &str) -> String {
    client.ask("bank", line).await
}

/// The answer to a line of a conversation.
async fn said_in(client: &Client, conversation: &str, line: &str) -> String {
    client.say_and_wait(conversation, line).await;
    plain(client.messages(conversation).await.last().unwrap())
}

/// The choices that the last message of a conversation offers, each with its label and its value.
async fn choices(client: &Client, conversation: &str) -> Vec<(String, String)> {
    let messages = client.messages(conversation).await;
    let parts = messages.last().unwrap()["parts"].as_array().unwrap();
    let offered = parts.iter().find(|part| part["type"] == "choices");
    let offered = offered.map_or(&Value::Null, |part| &part["choices"]);
    let text = |choice: &Value, field: &str| choice[field].as_str().unwrap().to_owned();
    let list = offered.as_array().into_iter().flatten();
    list.map(|choice| (text(choice, "label"), text(choice, "value")))
        .collect()
}

#[tokio::test]
async fn a_command_decides_only_what_its_conversation_has_shown() {
    let world = world().await;
    let replica = world.replica().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let code = request["code"].as_str().unwrap();
    // Seen elsewhere is not seen here.
    command(&staff.bob, "/approvals").await;
    for line in [format!("/approve {code}"), format!("/reject {code} no")] {
        let shown = command(&staff.bob, &line).await;
        assert!(
            shown.contains(r#""amount":"10.00""#) && shown.contains("Nothing is decided yet"),
            "{shown}"
        );
        assert_eq!(state(&staff.bob, &request).await, "pending");
    }
    // Shown at one replica, decided at another; carl has his own conversations.
    let there = staff.carl.at(&replica.url);
    let chat = staff.carl.open("bank").await;
    let shown = said_in(&there, &chat, &format!("/approvals {code}")).await;
    assert!(shown.contains(r#""amount":"10.00""#), "{shown}");
    see().await;
    let approved = said_in(&staff.carl, &chat, &format!("/approve {code}")).await;
    assert!(approved.contains("approved by carl"), "{approved}");
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn more_than_an_approval_approves_nothing_and_more_than_a_rejection_is_its_reason() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let code = request["code"].as_str().unwrap();
    let chat = staff.bob.open("bank").await;
    said_in(&staff.bob, &chat, "/approvals").await;
    see().await;
    for line in [
        "/approve CODE no",
        "/approve CODE if it is under 100",
        "/approve CODE\nbut reject the other",
        "please /approve CODE",
    ] {
        let shown = said_in(&staff.bob, &chat, &line.replace("CODE", code)).await;
        let again = format!("write /approve {code} as your whole message");
        assert!(shown.contains(&again) && shown.contains("10.00"), "{shown}");
        assert_eq!(state(&staff.bob, &request).await, "pending", "{line}");
    }
    see().await;
    let line = format!("/reject {code} not this week");
    said_in(&staff.bob, &chat, &line).await;
    let view = becomes(&staff.ann, &request, "rejected").await;
    assert_eq!(view["reason"], "not this week");
}

#[tokio::test]
async fn who_decides_within_a_second_reads_to_wait_a_second() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let chat = staff.bob.open("bank").await;
    said_in(&staff.bob, &chat, "/approvals").await;
    // As if it had been shown in the moment of the command.
    let shown = "update runs r set finished_at = now() + interval '1 minute' from shown_requests s
                 where s.tenant_id = r.tenant_id and s.run_id = r.id";
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    sqlx::query(shown).execute(&mut tenant).await.unwrap();
    let line = format!("/approve {}", code(&request));
    let told = said_in(&staff.bob, &chat, &line).await;
    assert!(
        told.contains("wait a second") && !told.contains("had not been shown"),
        "{told}"
    );
    assert_eq!(state(&staff.bob, &request).await, "pending");
}

#[tokio::test]
async fn a_decision_over_rest_has_each_member_once_and_none_that_is_unknown() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let path = format!("{}/decision", path(&request));
    let hash = request["args_sha256"].as_str().unwrap();
    for members in [
        r#""decision":"approve","decision":"reject""#,
        r#""decision":"reject","decision":"approve""#,
        r#""decision":"approve","Decision":"reject""#,
        r#""decision":"approve","approved":false"#,
    ] {
        let body = format!(r#"{{{members},"args_sha256":"{hash}"}}"#);
        let sent = staff.bob.request(Method::POST, &path);
        let sent = sent.header("content-type", "application/json").body(body);
        assert_eq!(staff.bob.send(sent).await.status, 400, "{members}");
        assert_eq!(state(&staff.bob, &request).await, "pending");
    }
}

#[tokio::test]
async fn an_answer_that_its_client_cut_has_shown_nothing() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let line = format!("/approve {}", request["code"].as_str().unwrap());
    let user = |text: &str| json!({ "role": "user", "content": text });
    for limit in [json!({ "max_tokens": 4 }), json!({ "stop": ["asks"] })] {
        let mut body = json!({ "model": "bank", "messages": [user(&line)] });
        body.as_object_mut()
            .unwrap()
            .extend(limit.as_object().unwrap().clone());
        let path = "/v1/chat/completions";
        let cut = staff.bob.post(path, body.clone()).await.expect(200);
        let said = cut["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(!said.contains("10.00"), "{said}");
        body["messages"] =
            json!([user(&line), { "role": "assistant", "content": said }, user(&line)]);
        staff.bob.post(path, body).await.expect(200);
        assert_eq!(state(&staff.bob, &request).await, "pending");
    }
}

#[tokio::test]
async fn an_answer_that_its_client_lost_has_shown_nothing_however_late_the_same_comes_again() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let line = format!("/approve {}", request["code"].as_str().unwrap());
    let body = json!({ "id": "chat-of-bob", "agent": "bank",
                       "message": { "id": "m1", "role": "user", "parts": [{ "type": "text", "text": line }] } });
    let said = || {
        staff
            .bob
            .request(Method::POST, "/v1/ui/chat")
            .json(&body)
            .send()
    };
    drop(said().await.unwrap());
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    eventually(async || {
        let lost = "select count(*) from request_keys k join runs r on r.tenant_id = k.tenant_id and r.id = k.run_id
                    where k.failed_at is not null and r.status = 'succeeded'";
        let lost: i64 = sqlx::query_scalar(lost)
            .fetch_one(&mut tenant)
            .await
            .unwrap();
        lost == 1
    })
    .await;
    for earlier in [
        "update request_keys set failed_at = (failed_at at time zone 'utc' - interval '91 seconds') at time zone 'utc', served_until = null",
        "update runs set finished_at = (finished_at at time zone 'utc' - interval '91 seconds') at time zone 'utc',
         created_at = (created_at at time zone 'utc' - interval '91 seconds') at time zone 'utc'",
    ] {
        sqlx::query(earlier).execute(&mut tenant).await.unwrap();
    }
    let again = said().await.unwrap().text().await.unwrap();
    assert!(again.contains("Nothing is decided yet"), "{again}");
    assert_eq!(state(&staff.bob, &request).await, "pending");
}

#[tokio::test]
async fn a_command_that_was_sent_before_the_answer_that_shows_the_request_decides_nothing() {
    // One run at a time, so that neither command is answered before both were sent.
    let world = world_with(|setup| setup.config.runs_at_once = 1).await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let line = format!("/approve {}", request["code"].as_str().unwrap());
    let gate = Gate::new();
    world.model.reply(text("Hello.").gate(0, &gate));
    let chat = staff.bob.open("bank").await;
    staff.bob.say(&chat, "hello").await;
    gate.reached().await;
    // Pressed twice, while something else is being answered.
    staff.bob.say(&chat, &line).await;
    let last = staff.bob.say(&chat, &line).await;
    gate.open();
    let mut events = staff.bob.listen(&chat, Some(0)).await;
    events.until_run_ends(&last).await;
    // Nor is it seen as soon as it is there.
    let again = said_in(&staff.bob, &chat, &line).await;
    assert!(again.contains("Nothing is decided yet"), "{again}");
    assert_eq!(state(&staff.bob, &request).await, "pending");
    see().await;
    assert!(
        said_in(&staff.bob, &chat, &line)
            .await
            .contains("approved by bob")
    );
}

#[tokio::test]
async fn a_code_that_names_another_request_by_now_is_shown_again() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, first) = asked(&staff.ann, "10.00").await;
    let code = first["code"].as_str().unwrap();
    let chat = staff.bob.open("bank").await;
    said_in(&staff.bob, &chat, "/approvals").await;
    let cancel = format!("{}/cancel", path(&first));
    staff.ann.post(&cancel, json!({})).await.expect(200);
    let (_, second) = asked(&staff.ann, "4999.00").await;
    change_row(&world, &second, &format!("code = '{code}'")).await;
    let shown = said_in(&staff.bob, &chat, &format!("/approve {code}")).await;
    assert!(
        shown.contains("4999.00") && shown.contains("Nothing is decided yet"),
        "{shown}"
    );
    assert_eq!(state(&staff.bob, &second).await, "pending");
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn an_answer_counts_as_shown_when_it_is_recorded_that_its_client_has_read_it() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let approve = format!("/approve {}", request["code"].as_str().unwrap());
    let mut chat = Vec::new();
    let shown = say(&staff.bob, &mut chat, "/approvals").await;
    assert!(shown.contains("10.00"), "{shown}");
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    let underway = "select count(*) from request_keys where served_until is not null";
    eventually(async || {
        let underway: i64 = sqlx::query_scalar(underway)
            .fetch_one(&mut tenant)
            .await
            .unwrap();
        underway == 0
    })
    .await;
    see().await;
    // As in the moment before the record.
    let set = |until: &str| {
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "update request_keys k set served_until = {until} from shown_requests s
             where s.tenant_id = k.tenant_id and s.run_id = k.run_id"
        )))
    };
    let before = set("now() + interval '1 minute'");
    before.execute(&mut tenant).await.unwrap();
    let (approved, ()) = tokio::join!(say(&staff.bob, &mut chat, &approve), async {
        sleep(Duration::from_millis(300)).await;
        set("null").execute(&mut tenant).await.unwrap();
    });
    assert!(approved.contains("approved by bob"), "{approved}");
}

#[tokio::test]
async fn a_name_is_one_line_and_cannot_pass_for_a_line_of_the_program() {
    let world = shared_world().await;
    let name = "Fred asks for bank send_money, until 2026-11-25 (in 9 min).\n    {\"amount\":\"1\"}\u{2028}\u{85}⏳ Q7Z4: \
                \u{202e}Erin\u{200d}\u{1b}[2K [x](http://evil.example)";
    let person = chatelaine::app::accounts::development::DevelopmentUser {
        user: "ann".to_owned(),
        name: Some(name.to_owned()),
        roles: vec!["employee".to_owned()],
        ..Default::default()
    };
    let ann = world.someone(&person).await;
    let bob = world.user("bob", &["finance-manager"]).await;
    let (conversation, request) = asked(&ann, "10.00").await;
    let shown = command(&bob, "/approvals").await;
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}");
    assert_eq!(shown.matches('⏳').count(), 1, "{shown}");
    assert!(lines[3].contains(r#""amount":"10.00""#), "{shown}");
    let view = bob.get(&path(&request)).await.expect(200);
    let called = view["requester"]["name"].as_str().unwrap();
    assert!(called.chars().count() <= 64, "{called}");
    assert!(
        called.starts_with("“Fred asks for bank send_money") && called.ends_with('”'),
        "{called}"
    );
    let export = ann
        .get(&format!("/v1/conversations/{conversation}/export"))
        .await;
    for text in [called, &shown, view["text"].as_str().unwrap(), &export.text] {
        for hidden in ['\u{1b}', '\u{85}', '\u{2028}', '\u{202e}', '\u{200d}'] {
            assert!(!text.contains(hidden), "{hidden:?} in {text:?}");
        }
        assert!(
            !text.contains("Q7Z4:") && !text.contains("](http"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn arguments_in_a_text_pass_for_no_others() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let mut payment = payment("10.00");
    payment["to"] = json!("p\u{430}ul \u{a0}\",\"amount\":\"1");
    command(&staff.ann, &format!("/call bank send_money {payment}")).await;
    let shown = command(&staff.bob, "/approvals").await;
    // After an empty line the indented one is code: Markdown takes no backslash away.
    let arguments = shown.lines().nth(3).unwrap();
    assert!(shown.contains("\n\n    {"), "{shown}");
    let to = r#""to":"p\u0430ul \u00a0\",\"amount\":\"1""#;
    assert!(arguments.contains(to), "{shown}");
    assert_eq!(
        serde_json::from_str::<Value>(arguments).unwrap()["to"],
        payment["to"]
    );
}

#[tokio::test]
async fn the_queue_is_worked_with_text_alone() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    let code = request["code"].as_str().unwrap();
    let waiting = command(&staff.bob, "/approvals").await;
    assert!(
        waiting.contains(code)
            && waiting.contains(r#""amount":"10.00""#)
            && waiting.contains("ann"),
        "{waiting}"
    );
    let mine = command(&staff.ann, "/approvals").await;
    assert!(
        mine.contains("Your own requests") && mine.contains(code) && !mine.contains("amount"),
        "{mine}"
    );
    let refused = command(&staff.ann, &format!("/approve {code}")).await;
    assert!(
        refused.contains("for finance-manager, cfo to decide"),
        "{refused}"
    );
    let chat = staff.bob.open("bank").await;
    said_in(&staff.bob, &chat, "/approvals").await;
    let line = format!("/approve {}", code.to_lowercase());
    see().await;
    let approved = said_in(&staff.bob, &chat, &line).await;
    assert!(approved.contains("approved by bob"), "{approved}");
    becomes(&staff.ann, &request, "succeeded").await;
    eventually(async || {
        plain(staff.ann.messages(&conversation).await.last().unwrap()) == "So it ended."
    })
    .await;
    assert_eq!(
        command(&staff.carl, "/approvals").await,
        "Nothing waits for you."
    );
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_typed_call_that_waits_is_told_once_and_to_the_person() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let line = format!("/call bank send_money {}", payment("10.00"));
    let conversation = staff.ann.open("bank").await;
    // The second time the call joins the request that waits.
    for times in [1, 2] {
        staff.ann.say_and_wait(&conversation, &line).await;
        let messages = staff.ann.messages(&conversation).await;
        let parts = messages
            .iter()
            .flat_map(|message| message["parts"].as_array().unwrap());
        let shown: Vec<_> = parts.filter_map(|part| part["text"].as_str()).collect();
        let told = |text: &&&str| text.contains("waits for the approval of finance-manager, cfo");
        assert_eq!(shown.iter().filter(told).count(), times, "{shown:#?}");
        for words in ["do not retry", "Tell the user", "You will be told"] {
            let is_shown = shown.iter().any(|text| text.contains(words));
            assert!(!is_shown, "{words:?}: {shown:#?}");
        }
    }
}

#[tokio::test]
async fn a_rejection_and_a_cancellation_are_typed_too() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, first) = asked(&staff.ann, "10.00").await;
    let line = format!(
        "/reject {} too much, really",
        first["code"].as_str().unwrap()
    );
    let chat = staff.bob.open("bank").await;
    let shown = said_in(&staff.bob, &chat, &line).await;
    assert!(shown.contains("Nothing is decided yet"), "{shown}");
    see().await;
    assert!(
        said_in(&staff.bob, &chat, &line)
            .await
            .contains("rejected by bob. too much, really")
    );
    let (_, second) = asked(&staff.ann, "11.00").await;
    let line = format!("/cancel {}", second["code"].as_str().unwrap());
    assert!(
        command(&staff.bob, &line)
            .await
            .contains("There is no request")
    );
    assert!(
        command(&staff.ann, &line)
            .await
            .contains("was taken back by ann")
    );
    assert!(
        command(&staff.bob, "/approve")
            .await
            .contains("Write /approve and the code")
    );
    assert!(
        command(&staff.bob, "/approve ZZZZ")
            .await
            .contains("There is no request ZZZZ for you")
    );
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn the_program_speaks_of_requests_in_the_readers_language() {
    let world = shared_world().await;
    let mut person = chatelaine::app::accounts::development::DevelopmentUser::default();
    (person.user, person.roles, person.locale) = (
        "ana".to_owned(),
        vec!["employee".to_owned()],
        Some("es".to_owned()),
    );
    let ana = world.someone(&person).await;
    assert!(
        command(&ana, "/tools")
            .await
            .contains("(requiere la aprobación de finance-manager, cfo)")
    );
    let (conversation, request) = asked(&ana, "10.00").await;
    let note = &notes(&ana, &conversation).await[0];
    note["text"].says("espera la aprobación de finance-manager, cfo");
    let bob = world.user("bob", &["finance-manager"]).await;
    let seen = bob.get(&path(&request)).await.expect(200);
    seen["text"].says("asks for bank send_money");
}

#[tokio::test]
async fn an_openai_client_approves_in_text_and_sees_the_code() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let answer = say(&staff.ann, &mut Vec::new(), "pay 12.00").await;
    let mine = staff
        .ann
        .get("/v1/approvals?role=requester")
        .await
        .expect(200);
    let request = &mine["items"][0];
    let code = request["code"].as_str().unwrap();
    assert!(
        answer.contains(code) && answer.contains("It waits."),
        "{answer}"
    );
    let approve = format!("/approve {code}");
    let mut chat = Vec::new();
    assert!(
        say(&staff.bob, &mut chat, "/approvals")
            .await
            .contains(code)
    );
    // Another chat has not shown it.
    let shown = say(&staff.bob, &mut Vec::new(), &approve).await;
    assert!(shown.contains("12.00") && shown.contains("Nothing is decided yet"));
    assert_eq!(state(&staff.bob, request).await, "pending");
    see().await;
    assert!(
        say(&staff.bob, &mut chat, &approve)
            .await
            .contains("approved by bob")
    );
    becomes(&staff.ann, request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn an_openai_client_is_told_the_outcome_before_its_next_answer() {
    let world = shared_world().await;
    world.model.on(|_| Some(text("Hello.")));
    let staff = Staff::of(&world).await;
    let mut said = Vec::new();
    let mut say = async |text: &str| {
        said.push(json!({ "role": "user", "content": text }));
        let body = json!({ "model": "bank", "messages": said });
        let answer = staff.ann.post("/v1/chat/completions", body).await;
        let message = answer.expect(200)["choices"][0]["message"].clone();
        said.push(message.clone());
        let id = answer.header("x-conversation-id").to_owned();
        (message["content"].as_str().unwrap().to_owned(), id)
    };
    let (asked, conversation) = say("pay 12.00").await;
    assert!(asked.ends_with("It waits."), "{asked}");
    let mine = staff
        .ann
        .get("/v1/approvals?role=requester")
        .await
        .expect(200);
    let request = &mine["items"][0];
    approve(&staff.bob, request).await.expect(200);
    eventually(async || {
        let messages = staff.ann.messages(&conversation).await;
        plain(messages.last().unwrap()) == "So it ended."
    })
    .await;
    let (told, same) = say("hello").await;
    assert_eq!(same, conversation);
    let (head, answer) = told.split_once("So it ended.").unwrap();
    assert!(head.contains(request["code"].as_str().unwrap()), "{told}");
    assert_eq!(answer, "\n\nHello.", "the follow-up and the answer");
    let (next, same) = say("and now?").await;
    assert_eq!((next.as_str(), same), ("Hello.", conversation), "told once");
}

async fn news(client: &Client, last: Option<&str>) -> Events {
    let mut request = client.request(Method::GET, "/v1/events");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    Events::of(request.send().await.unwrap())
}

/// The next event that says this of the request.
async fn hears(events: &mut Events, request: &Value, state: &str) -> Event {
    loop {
        let event = events.next().await.expect("the stream ended");
        if event.name == "approval"
            && event.data["id"] == request["id"]
            && event.data["state"] == state
        {
            return event;
        }
    }
}

async fn badge(events: &mut Events, pending: i64, mine: i64) {
    loop {
        let event = events.next().await.expect("the stream ended");
        let wanted = json!({ "pending_approvals": pending, "my_approval_requests": mine });
        if event.name == "badge" && event.data == wanted {
            return;
        }
    }
}

#[tokio::test]
async fn approvers_and_requester_hear_of_it_here_and_on_another_replica() {
    let world = world().await;
    let replica = world.replica().await;
    let staff = Staff::of(&world).await;
    let (mut bob, mut carl) = (
        news(&staff.bob, None).await,
        news(&staff.carl.at(&replica.url), None).await,
    );
    badge(&mut bob, 0, 0).await;
    badge(&mut carl, 0, 0).await;
    let mut stranger = news(&world.user("amy", &["employee"]).await, None).await;
    badge(&mut stranger, 0, 0).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    badge(&mut bob, 1, 0).await;
    let heard = hears(&mut bob, &request, "pending").await;
    assert_eq!(heard.data["decidable"], true);
    hears(&mut carl, &request, "pending").await;
    let mut ann = news(&staff.ann, None).await;
    badge(&mut ann, 0, 1).await;
    hears(&mut ann, &request, "pending").await;
    approve(&staff.bob, &request).await.expect(200);
    for events in [&mut bob, &mut carl, &mut ann] {
        let heard = hears(events, &request, "succeeded").await;
        assert_eq!(heard.data["decided_by"], "bob");
    }
    // Somebody whom it does not concern hears of their own request and of nothing before.
    let amy = world.user("amy", &["employee"]).await;
    let (_, own) = asked(&amy, "2.00").await;
    loop {
        let event = stranger.next().await.unwrap();
        if event.name == "approval" {
            assert_eq!(event.data["id"], own["id"]);
            break;
        }
    }
}

#[tokio::test]
async fn whoever_comes_back_hears_what_changed_meanwhile() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, first) = asked(&staff.ann, "10.00").await;
    let mut events = news(&staff.bob, None).await;
    let last = hears(&mut events, &first, "pending").await.tag.unwrap();
    drop(events);
    approve(&staff.carl, &first).await.expect(200);
    becomes(&staff.bob, &first, "succeeded").await;
    let mut events = news(&staff.bob, Some(&last)).await;
    badge(&mut events, 0, 0).await;
    hears(&mut events, &first, "succeeded").await;
    let refused = staff
        .bob
        .send(
            staff
                .bob
                .request(Method::GET, "/v1/events")
                .header("last-event-id", "x"),
        )
        .await;
    refused.expect(400);
}

#[tokio::test]
async fn whoever_was_away_for_long_hears_page_after_page_of_what_changed() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, first) = asked(&staff.ann, "10.00").await;
    let cancel = format!("{}/cancel", super::path(&first));
    staff.ann.post(&cancel, json!({})).await.expect(200);
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query(
        "insert into approvals (tenant_id, id, code, state, agent, server, tool, about, fingerprint, args_sha256, sealed,
                                credential, requester, principal, call_id, follow_up, approvers, min_approvals,
                                self_approval, created_at, changed_at, expires_at)
         select tenant_id, gen_random_uuid(), code, state, agent, server, tool, about, fingerprint, args_sha256, sealed,
                credential, requester, principal, call_id, follow_up, approvers, min_approvals, self_approval, created_at,
                changed_at - n * interval '1 second', expires_at
         from approvals, generate_series(1, 250) n on conflict do nothing",
    )
    .execute(&mut db)
    .await
    .unwrap();
    let mut events = news(&staff.ann, Some("1-x")).await;
    let mut heard = Vec::new();
    while heard.len() < 251 {
        let event = events.next().await.expect("the stream ended");
        if event.name == "approval" {
            let text = |name: &str| event.data[name].as_str().unwrap().to_owned();
            heard.push((text("changed_at"), text("id")));
        }
    }
    assert!(heard.is_sorted(), "{heard:#?}");
    assert_eq!(heard.last().unwrap().1, first["id"].as_str().unwrap());
}

#[tokio::test]
async fn who_becomes_an_approver_hears_of_what_waits() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    asked(&staff.ann, "10.00").await;
    let mut events = news(&world.user("eve", &["employee"]).await, None).await;
    badge(&mut events, 0, 0).await;
    let promoted = world.user("eve", &["cfo"]).await;
    promoted.get("/v1/me").await.expect(200);
    badge(&mut events, 1, 0).await;
}

#[tokio::test]
async fn listeners_to_whom_nothing_happens_cost_no_query() {
    let world = world().await;
    let bob = world.user("bob", &["finance-manager"]).await;
    let mut open = Vec::new();
    for _ in 0..16 {
        let mut events = news(&bob, None).await;
        badge(&mut events, 0, 0).await;
        open.push(events);
    }
    // The poll sees the tenant for the first time.
    sleep(Duration::from_secs(2)).await;
    // A process that comes late to its poll does not know that nobody's roles have changed, and asks.
    let mut begun = u64::MAX;
    for _ in 0..4 {
        let before = world.app().transactions();
        // Their roles are looked at twice meanwhile.
        sleep(Duration::from_secs(11)).await;
        begun = begun.min(world.app().transactions() - before);
        if begun < 16 {
            return;
        }
    }
    panic!("{begun} transactions for nothing");
}

#[tokio::test]
async fn news_count_as_streams_of_their_user() {
    let world = world_with(|setup| setup.config.sse_per_user = 1).await;
    let bob = world.user("bob", &["finance-manager"]).await;
    let _open = news(&bob, None).await;
    bob.get("/v1/events").await.expect(429);
}

#[tokio::test]
async fn webhooks_hear_of_every_step_and_never_of_the_arguments() {
    let (world, receiver) = (
        shared_world().await,
        crate::webhooks::Receiver::start().await,
    );
    let staff = Staff::of(&world).await;
    crate::webhooks::hook(&world.admin().await, &receiver.url(), &["approval.*"]).await;
    let (_, request) = asked(&staff.ann, "12.34").await;
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    let heard = receiver.heard(4).await;
    let mut events: Vec<(String, String)> = Vec::new();
    for seen in &heard {
        assert!(!seen.body.contains("12.34"), "{}", seen.body);
        let body: Value = serde_json::from_str(&seen.body).unwrap();
        body["data"].has(json!({ "code": request["code"], "link": request["link"] }));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        events.push((text(&body["type"]), text(&body["data"]["state"])));
    }
    // They may arrive in any order.
    events.sort();
    let expected = [
        ("approval.approved", "approved"),
        ("approval.executed", "succeeded"),
        ("approval.executing", "executing"),
        ("approval.requested", "pending"),
    ];
    assert_eq!(
        events,
        expected.map(|(event, state)| (event.to_owned(), state.to_owned()))
    );
    let id = request["id"].as_str().unwrap();
    assert_eq!(request["link"], format!("{}/#/approvals/{id}", world.url));
}

#[tokio::test]
async fn the_menu_counts_what_waits_for_whom() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let counts = async |client: &Client| -> Vec<(String, Value)> {
        let menu = client.get("/v1/agents/bank/menu").await.expect(200);
        let items = menu["items"].as_array().unwrap().iter();
        items
            .map(|item| {
                (
                    item["id"].as_str().unwrap().to_owned(),
                    item["badge"].clone(),
                )
            })
            .collect()
    };
    let nothing = vec![("logout".to_owned(), Value::Null)];
    assert_eq!(
        (counts(&staff.ann).await, counts(&staff.bob).await),
        (nothing.clone(), nothing.clone())
    );
    let (_, request) = asked(&staff.ann, "12.34").await;
    let mine = |id: &str| [nothing.clone(), vec![(id.to_owned(), json!(1))]].concat();
    assert_eq!(counts(&staff.ann).await, mine("my-approval-requests"));
    assert_eq!(counts(&staff.bob).await, mine("pending-approvals"));
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(
        (counts(&staff.ann).await, counts(&staff.bob).await),
        (nothing.clone(), nothing)
    );
}

#[tokio::test]
async fn the_time_that_is_left_is_never_shown_as_less_than_it_is() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    for (left, shown) in [
        ("75 seconds", "(in 2 min)"),
        ("61 minutes 15 seconds", "(in 1 h 2 min)"),
        ("47 hours 30 minutes", "(in 47 h 30 min)"),
        ("48 hours", "(in 2 days)"),
        ("72 hours 10 minutes", "(in 3 days 1 h)"),
    ] {
        let set = format!("expires_at = statement_timestamp() + interval '{left}'");
        change_row(&world, &request, &set).await;
        let view = staff.bob.get(&path(&request)).await.expect(200);
        let said = view["text"].as_str().unwrap();
        assert!(said.contains(shown), "{left}: {said}");
    }
}

#[tokio::test]
async fn a_request_is_decided_and_taken_back_with_buttons() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, first) = asked(&staff.ann, "10.00").await;
    let own = |label: &str, value: &str| (label.to_owned(), value.to_owned());
    for (language, approve, reject) in [
        ("en", "Approve", "Reject"),
        ("es", "Aprobar", "Rechazar"),
        ("fr", "Approuver", "Refuser"),
    ] {
        let bob = someone(&world, "bob", "finance-manager", language).await;
        let chat = bob.open("bank").await;
        bob.say_and_wait(&chat, "/approvals").await;
        let code = code(&first);
        let expected = [
            own(&format!("{approve} {code}"), &format!("/approve {code}")),
            own(&format!("{reject} {code}"), &format!("/reject {code}")),
        ];
        assert_eq!(choices(&bob, &chat).await, expected, "{language}");
    }
    // Where there are no buttons the commands stand in the list.
    let listed = say(&staff.carl, &mut Vec::new(), "/approvals").await;
    let line = format!("1. Approve {0} – /approve {0}", code(&first));
    assert!(listed.contains(&line), "{listed}");
    // Of several, one chooses which to look at, and then decides.
    let (_, second) = asked(&staff.ann, "11.00").await;
    let chat = staff.bob.open("bank").await;
    let menu = json!({ "menu": "pending-approvals" });
    let mut events = staff.bob.listen(&chat, None).await;
    let messages = format!("/v1/conversations/{chat}/messages");
    let posted = staff.bob.post(&messages, menu).await.expect(202);
    let run = posted["run"]["id"].as_str().unwrap().to_owned();
    events.until_run_ends(&run).await;
    let values: Vec<_> = [&first, &second]
        .map(|request| format!("/approvals {}", code(request)))
        .into();
    let offered = choices(&staff.bob, &chat).await;
    let offered: Vec<_> = offered.into_iter().map(|(_, value)| value).collect();
    assert_eq!(offered, values);
    staff.bob.say_and_wait(&chat, &values[1]).await;
    let offered = choices(&staff.bob, &chat).await;
    see().await;
    staff.bob.say_and_wait(&chat, &offered[1].1).await;
    assert_eq!(state(&staff.ann, &second).await, "rejected");
    assert_eq!(state(&staff.ann, &first).await, "pending");
    // The requester takes back what waits, and nothing else.
    let chat = staff.ann.open("bank").await;
    staff.ann.say_and_wait(&chat, "/approvals").await;
    let offered = choices(&staff.ann, &chat).await;
    let value = format!("/cancel {}", code(&first));
    assert_eq!(
        offered,
        [own(&format!("Take back {}", code(&first)), &value)]
    );
    staff.ann.say_and_wait(&chat, &value).await;
    assert_eq!(state(&staff.ann, &first).await, "cancelled");
}
