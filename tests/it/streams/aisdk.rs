//! The UI message stream of the AI SDK.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{approve, confirming, post, rest, world};
use crate::support::{
    bank::pair,
    client::Events,
    has::Has,
    model::{Gate, calls, error, text},
    node,
    wait::eventually,
    world::World,
};

const PATH: &str = "/v1/ui/chat";

fn user(text: &str) -> Value {
    json!({ "id": text, "role": "user", "parts": [{ "type": "text", "text": text }] })
}

fn answer(texts: &[&str]) -> Value {
    let parts = texts
        .iter()
        .map(|text| json!({ "type": "text", "text": text }));
    json!({ "id": "a", "role": "assistant", "parts": parts.collect::<Vec<_>>() })
}

fn chat(messages: impl Into<Value>) -> Value {
    json!({ "id": "chat-1", "agent": "bank", "messages": messages.into(), "trigger": "submit-message" })
}

fn new(text: &str) -> Value {
    json!({ "id": "chat-1", "agent": "bank", "message": user(text) })
}

fn said(chunks: &[Value]) -> String {
    chunks
        .iter()
        .filter_map(|chunk| chunk["delta"].as_str())
        .collect()
}

fn conversation(chunks: &[Value]) -> &Value {
    &chunks[0]["messageMetadata"]["conversationId"]
}

#[tokio::test]
async fn the_official_client_reads_texts_tools_approvals_and_errors() {
    // Of this year and of the one before.
    for package in ["'ai'", "'ai-6'"] {
        let module = include_str!("aisdk.mjs").replace("'ai'", package);
        reads_everything(&module).await;
    }
}

async fn reads_everything(module: &str) {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let seen = node::run(module, &world.url, &ann).await;
    let rate = json!({ "from": "EUR", "to": "USD" });
    assert_eq!(seen["hello"], json!([["step-start"], ["text", "Hello."]]));
    let tool = json!([
        "dynamic-tool",
        "bank__get_exchange_rate",
        "output-available",
        true,
        rate
    ]);
    let expected = json!([
        ["step-start"],
        tool,
        ["step-start"],
        ["text", "Done as told."]
    ]);
    assert_eq!(seen["rate"], expected);
    assert!(seen["output"].to_string().contains("1.08"), "{seen}");
    let pay = seen["pay"].as_array().unwrap();
    // The older client does not know that others decide.
    let asked = |by_others: Value| {
        json!([
            "dynamic-tool",
            "bank__send_money",
            "approval-requested",
            true,
            by_others
        ])
    };
    assert!(
        pay.contains(&asked(true.into())) || pay.contains(&asked(Value::Null)),
        "{pay:?}"
    );
    assert!(
        pay.contains(&json!(["data-approval", "pending"])),
        "{pay:?}"
    );
    seen.has(json!({ "finish": "stop", "one conversation": true, "nothing to resume": null }));
    // What people read is a sentence.
    let refused = seen["refused"].as_str().unwrap();
    assert!(
        refused.starts_with("agent \"none\" was not found"),
        "{seen}"
    );
    approve(&world).await;
    let messages = json!([user("hi"), answer(&["Hello."]), user("and?")]);
    assert!(!said(&rest(post(&ann, PATH, &chat(messages)).await).await).is_empty());
}

#[tokio::test]
async fn a_stream_has_the_chunks_and_the_header_of_the_protocol() {
    let world = World::shared().await;
    world.model.reply(text("Hello.").usage(11, 7));
    let ann = world.user("ann", &[]).await;
    let request = ann
        .request(http::Method::POST, PATH)
        .json(&chat(json!([user("hi")])));
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["x-vercel-ai-ui-message-stream"], "v1");
    let mut events = Events::of(response).rest().await;
    assert_eq!(events.pop().unwrap().text, "[DONE]");
    let mut types: Vec<_> = events
        .iter()
        .map(|e| e.data["type"].as_str().unwrap())
        .collect();
    types.dedup();
    let expected = [
        "start",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ];
    assert_eq!(types, expected);
    let end = &events.last().unwrap().data;
    assert_eq!(end["messageMetadata"]["usage"]["totalTokens"], 18);
}

#[tokio::test]
async fn what_happened_since_the_last_turn_stands_before_the_answer() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let first = rest(post(&ann, PATH, &new("pay 5.00")).await).await;
    approve(&world).await;
    eventually(async || {
        let messages = ann.messages(conversation(&first).as_str().unwrap()).await;
        messages
            .iter()
            .any(|m| m.to_string().contains("So it ended."))
    })
    .await;
    let second = rest(post(&ann, PATH, &new("thanks")).await).await;
    assert_eq!(conversation(&first), conversation(&second));
    let notes = second
        .iter()
        .filter(|chunk| chunk["type"] == "data-approval");
    let states: Vec<_> = notes.map(|chunk| &chunk["data"]["state"]).collect();
    assert_eq!(states, ["succeeded"]);
    let text = said(&second);
    let (news, answer) = (text.find("So it ended."), text.find("Hello."));
    assert!(news.is_some() && news < answer, "{text}");
}

#[tokio::test]
async fn a_chat_goes_on_and_an_edited_one_is_a_conversation_of_its_own() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    let ask = async |body: Value| rest(post(&ann, PATH, &body).await).await;
    let first = ask(chat(json!([user("one")]))).await;
    let second = ask(chat(json!([user("one"), answer(&["Fine."]), user("two")]))).await;
    assert_eq!(conversation(&first), conversation(&second));
    let again = ask(chat(json!([user("one")]))).await;
    assert_ne!(conversation(&first), conversation(&again));
    // Only what is new goes on where the chat is now.
    let third = ask(new("three")).await;
    assert_eq!(conversation(&again), conversation(&third));
    let bob = world.user("bob", &[]).await;
    let other = rest(post(&bob, PATH, &new("mine")).await).await;
    assert_ne!(conversation(&third), conversation(&other));
    let messages = ann.messages(conversation(&third).as_str().unwrap()).await;
    assert_eq!(messages.len(), 4);
}

#[tokio::test]
async fn a_client_that_comes_back_gets_the_answer_from_its_beginning() {
    let world = World::start().await;
    let gate = Gate::new();
    world
        .model
        .reply(text("You have 5 euros and a cent.").gate(2, &gate))
        .reply(text("More."));
    let ann = world.user("ann", &[]).await;
    let mut events = post(&ann, PATH, &chat(json!([user("How much?")]))).await;
    while events.next().await.unwrap().data["type"] != "text-delta" {}
    drop(events);
    let other = world.replica().await;
    let resumed = ann.request(http::Method::GET, &format!("{PATH}/chat-1/stream"));
    let mut resumed = Events::of(resumed.send().await.unwrap());
    let mut heard = String::new();
    while heard.is_empty() {
        let chunk = resumed.next().await.unwrap().data;
        heard.push_str(chunk["delta"].as_str().unwrap_or_default());
    }
    assert!(heard.starts_with("You"), "{heard}");
    gate.open();
    heard.push_str(&said(&rest(resumed).await));
    assert_eq!(heard, "You have 5 euros and a cent.");
    drop(other);
    let none = ann.get(&format!("{PATH}/chat-1/stream")).await;
    assert_eq!(none.status, 204);
    let messages = json!([user("How much?"), answer(&[&heard]), user("more")]);
    let next = rest(post(&ann, PATH, &chat(messages)).await).await;
    let messages = ann.messages(conversation(&next).as_str().unwrap()).await;
    assert_eq!(messages.len(), 4, "the chat goes on in its conversation");
}

#[tokio::test]
async fn the_official_client_comes_back_to_its_answer() {
    let world = World::start().await;
    let gate = Gate::new();
    world
        .model
        .reply(text("You have 5 euros and a cent.").gate(2, &gate));
    let ann = world.user("ann", &[]).await;
    let reading = async { node::run(include_str!("resume.mjs"), &world.url, &ann).await };
    let opening = async {
        eventually(async || {
            let repeats: Option<i32> = sqlx::query_scalar("select max(repeats) from client_chats")
                .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
                .await
                .unwrap();
            repeats == Some(1)
        })
        .await;
        gate.open();
    };
    let (seen, ()) = tokio::join!(reading, opening);
    assert_eq!(seen, json!("You have 5 euros and a cent."));
}

#[tokio::test]
async fn the_run_of_a_client_that_stays_away_is_stopped() {
    let world = World::with(|setup| setup.config.retry_grace = Duration::from_millis(1)).await;
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let mut events = post(&ann, PATH, &chat(json!([user("hi")]))).await;
    let run = events.next().await.unwrap().data["messageMetadata"]["runId"].clone();
    gate.reached().await;
    drop(events);
    let path = format!("/v1/runs/{}", run.as_str().unwrap());
    eventually(async || ann.get(&path).await.json()["status"] == "cancelled").await;
    gate.open();
}

#[tokio::test]
async fn a_run_that_fails_or_is_cancelled_is_told() {
    let world = World::shared().await;
    world.model.reply(error(400, "on holiday"));
    let ann = world.user("ann", &[]).await;
    let failed = rest(post(&ann, PATH, &chat(json!([user("hi")]))).await).await;
    let told = failed
        .iter()
        .find(|chunk| chunk["type"] == "error")
        .unwrap();
    assert!(!told["errorText"].as_str().unwrap().is_empty());
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let mut events = post(&ann, PATH, &new("and now?")).await;
    let run = events.next().await.unwrap().data["messageMetadata"]["runId"].clone();
    gate.reached().await;
    let path = format!("/v1/runs/{}/cancel", run.as_str().unwrap());
    ann.post(&path, json!({})).await.expect(202);
    let rest = rest(events).await;
    assert!(
        rest.iter().any(|chunk| chunk["type"] == "abort"),
        "{rest:?}"
    );
    gate.open();
}

#[tokio::test]
async fn a_run_that_fails_after_a_call_ends_with_an_error_that_says_what_happened() {
    let world = World::shared().await;
    world.tools_ready().await;
    world
        .model
        .reply(calls([("bank__get_exchange_rate", pair())]))
        .reply(error(400, "on holiday"))
        .reply(text("It was looked up."));
    let ann = world.user("ann", &["employee"]).await;
    let chunks = rest(post(&ann, PATH, &chat(json!([user("rate?")]))).await).await;
    let told = chunks.iter().find(|chunk| chunk["type"] == "error");
    told.unwrap()["errorText"].says("bank.get_exchange_rate");
    let shown = said(&chunks);
    assert!(shown.contains("bank.get_exchange_rate"), "{shown}");
    let messages = json!([user("rate?"), answer(&[&shown]), user("so?")]);
    let next = rest(post(&ann, PATH, &chat(messages)).await).await;
    assert_eq!(conversation(&next), conversation(&chunks));
}

/// A change to a good request, and the field of its refusal.
type Case = (fn(&mut Value), &'static str);

const CASES: [Case; 8] = [
    (|body| body["id"] = json!(" "), "id"),
    (|body| body["id"] = json!(7), "id"),
    (
        |body| _ = body.as_object_mut().unwrap().remove("agent"),
        "agent",
    ),
    (|body| body["messages"] = json!([]), "messages"),
    (|body| body["message"] = user("hi"), "body"),
    (
        |body| body["messages"][0]["role"] = json!("robot"),
        "messages[0].role",
    ),
    (
        |body| body["messages"][0]["parts"] = json!([{ "type": "text" }]),
        "messages[0].parts[0][0].text",
    ),
    (
        |body| body["messages"][0]["role"] = json!("assistant"),
        "messages",
    ),
];

#[tokio::test]
async fn every_refusal_names_the_field() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for (change, field) in CASES {
        let mut body = chat(json!([user("hi")]));
        change(&mut body);
        let request = ann.request(Method::POST, PATH).json(&body);
        let request = request.header("accept", "application/json");
        let refused = ann.send(request).await.expect(400);
        assert_eq!(refused["field"], field, "{body}");
    }
    let mut file = chat(json!([user("hi")]));
    file["messages"][0]["parts"] = json!([
        { "type": "text", "text": "Look:" },
        { "type": "file", "mediaType": "image/png", "url": format!("data:image/png;base64,{}", "A".repeat(4000)) },
    ]);
    world.model.reply(text("Nice."));
    rest(post(&ann, PATH, &file).await).await;
    let asked = world.model.last_request();
    assert!(
        crate::support::model::said(&asked, "Look:\n[image: image/png, 3 kB; not shown to you]"),
        "{asked}"
    );
}

#[tokio::test]
async fn the_official_client_confirms_and_declines_calls() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    let seen = node::run(include_str!("confirm.mjs"), &world.url, &ann).await;
    for (chat, state, word) in [
        ("yes", "output-available", "confirmed"),
        ("no", "output-denied", "declined"),
    ] {
        let seen = &seen[chat];
        assert_eq!(seen["asked"], json!(["approval-requested", null]), "{seen}");
        seen["reason"].says(r#""amount":"5.00""#);
        assert_eq!(seen["tools"], json!([state]), "{seen}");
        seen["text"].says(word);
        seen["text"].says("So it ended.");
        assert_eq!(
            seen["messages"], 2,
            "the answer goes on in the same message: {seen}"
        );
        seen["next"].says("Hello");
    }
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn two_answers_that_contradict_each_other_decide_nothing() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    rest(post(&ann, PATH, &chat(json!([user("pay 5.00")]))).await).await;
    let mine = ann.get("/v1/approvals?role=requester").await.expect(200);
    let request = &mine["items"][0];
    let id = format!(
        "{}.{}",
        request["id"].as_str().unwrap(),
        request["args_sha256"].as_str().unwrap()
    );
    let part = |approval: &str| {
        format!(
            r#"{{"type":"tool-bank__send_money","toolCallId":"call","state":"approval-responded","input":{{}},
                 "approval":{{"id":"{id}",{approval}}}}}"#
        )
    };
    let (yes, no) = (r#""approved":true"#, r#""approved":false"#);
    let parts = [
        format!("{},{}", part(yes), part(no)),
        format!("{},{}", part(no), part(yes)),
        part(&format!("{yes},{no}")),
        part(&format!("{no},{yes}")),
        part(&format!(r#"{yes},"Approved":false"#)),
        part(&format!(r#"{yes},"reason":"no, wait""#)),
    ];
    for parts in parts {
        let answered = json!({ "id": "2", "role": "assistant", "parts": ["PARTS"] });
        let body = chat(json!([user("pay 5.00"), answered])).to_string();
        let body = body.replace(r#""PARTS""#, &parts);
        let sent = ann.request(Method::POST, PATH);
        let sent = sent.header("content-type", "application/json").body(body);
        let refused = ann.send(sent).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.text.contains(&id), "{}", refused.text);
        let path = format!("/v1/approvals/{}", request["id"].as_str().unwrap());
        assert_eq!(ann.get(&path).await.expect(200)["state"], "pending");
    }
    assert_eq!(world.bank.executions("send_money"), 0);
}
