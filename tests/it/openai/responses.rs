//! OpenAI's Responses API: its shapes and events, and how a conversation goes on.

use domain::account::{ChatSettings, KeyKind, ShownCalls};
use serde_json::{Value, json};

use crate::support::{
    client::{Client, Events},
    has::Has,
    model::{Gate, call, error, said, text},
    world::World,
};

const PATH: &str = "/v1/responses";

fn ask(input: impl Into<Value>) -> Value {
    json!({ "model": "bank", "input": input.into() })
}

fn after(previous: &Value, input: &str) -> Value {
    json!({ "model": "bank", "input": input, "previous_response_id": previous["id"] })
}

/// The texts of a response's messages.
fn output(response: &Value) -> Vec<&str> {
    let items = response["output"].as_array().unwrap().iter();
    let messages = items.filter(|item| item["type"] == "message");
    messages
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect()
}

/// The events of a stream; each is named like its type, and they are numbered from 0.
async fn stream(client: &Client, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let request = client.request(http::Method::POST, PATH).json(&body);
    let events = Events::of(request.send().await.unwrap()).rest().await;
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event.data["sequence_number"], at, "{event:?}");
        assert_eq!(event.data["type"], event.name.as_str());
    }
    events.into_iter().map(|event| event.data).collect()
}

/// Whether the model was given a text last, escaped as in JSON.
fn read(world: &World, text: &str) -> bool {
    world.model.last_request()["messages"]
        .to_string()
        .contains(text)
}

fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<_> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    types.dedup();
    types
}

#[tokio::test]
async fn a_response_has_openais_shape_and_is_the_same_when_it_is_read() {
    let world = World::shared().await;
    world.model.reply(text("You have 5 euros.").usage(11, 7));
    let ann = world.user("ann", &[]).await;
    let mut body = ask("How much?");
    body["metadata"] = json!({ "topic": "money" });
    body["instructions"] = json!("Be brief.");
    let answer = ann.post(PATH, body).await;
    let response = answer.expect(200);
    let message = json!({
        "type": "message", "id": response["output"][0]["id"], "status": "completed", "role": "assistant",
        "content": [{ "type": "output_text", "text": "You have 5 euros.", "annotations": [], "logprobs": [] }],
    });
    assert_eq!(response["output"], json!([message]));
    assert_eq!(response["metadata"], json!({ "topic": "money" }));
    response.has(json!({
        "object": "response",
        "status": "completed",
        "model": "bank",
        "instructions": "Be brief.",
        "store": true,
        "usage": { "input_tokens": 11, "total_tokens": 18 },
    }));
    assert!(read(&world, "[Instructions of the client]\\nBe brief."));
    let id = response["id"].as_str().unwrap();
    let run = answer.header("x-run-id").replace('-', "");
    assert_eq!(id, format!("resp_{run}"));
    let path = format!("{PATH}/{id}");
    assert_eq!(ann.get(&path).await.expect(200), response);
    let bob = world.user("bob", &[]).await;
    assert_eq!(
        bob.get(&path).await.expect(404)["error"]["code"],
        "not_found"
    );
    let deleted = ann.delete(&path).await.expect(200);
    assert_eq!(
        deleted,
        json!({ "id": id, "object": "response", "deleted": true })
    );
    ann.get(&path).await.expect(404);
    ann.delete(&path).await.expect(404);
    let gone = ann
        .post(PATH, after(&response, "And now?"))
        .await
        .expect(400);
    gone["error"].has(json!({
        "code": "previous_response_not_found",
        "param": "previous_response_id",
    }));
}

#[tokio::test]
async fn a_stream_has_the_events_of_openai() {
    let world = World::shared().await;
    world.model.reply(text("You have 5 euros.").usage(11, 7));
    let ann = world.user("ann", &[]).await;
    let events = stream(&ann, ask("How much?")).await;
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(types(&events), expected);
    let deltas = events.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(deltas.clone().collect::<String>(), "You have 5 euros.");
    assert!(deltas.count() > 1, "it is streamed");
    let response = &events.last().unwrap()["response"];
    assert_eq!(output(response), ["You have 5 euros."]);
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(ann.get(&path).await.expect(200), *response);
    let again = ann.request(http::Method::GET, &format!("{path}?stream=true"));
    let again = Events::of(again.send().await.unwrap()).rest().await;
    assert_eq!(again.last().unwrap().data["response"], *response);
}

#[tokio::test]
async fn a_conversation_goes_on_after_its_last_response_and_branches_after_an_earlier_one() {
    let world = World::shared().await;
    world.model.on(|request| {
        let asked = request["messages"].as_array().unwrap().len();
        Some(text(format!("Answer {asked}.")))
    });
    let ann = world.user("ann", &[]).await;
    let one = ann.post(PATH, ask("one")).await;
    let two = ann.post(PATH, after(&one.json(), "two")).await;
    assert_eq!(two.json()["previous_response_id"], one.json()["id"]);
    assert_eq!(
        one.header("x-conversation-id"),
        two.header("x-conversation-id")
    );
    assert!(read(&world, "one"));
    let other = ann.post(PATH, after(&one.json(), "other")).await;
    other.expect(200);
    assert_ne!(
        one.header("x-conversation-id"),
        other.header("x-conversation-id")
    );
    assert!(read(&world, "one") && read(&world, "other") && !read(&world, "two"));
    let more = ann.post(PATH, after(&other.json(), "more")).await;
    assert_eq!(
        other.header("x-conversation-id"),
        more.header("x-conversation-id")
    );
    let messages = ann.messages(one.header("x-conversation-id")).await;
    assert_eq!(messages.len(), 4, "nothing was imported");
    let bob = world.user("bob", &[]).await;
    bob.post(PATH, after(&one.json(), "mine")).await.expect(400);
}

#[tokio::test]
async fn instructions_are_said_to_the_model_when_they_change() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    let with = |mut body: Value, instructions: &str| {
        body["instructions"] = json!(instructions);
        body
    };
    let one = ann
        .post(PATH, with(ask("one"), "Be brief."))
        .await
        .expect(200);
    let two = with(after(&one, "two"), "Be brief.");
    let two = ann.post(PATH, two).await.expect(200);
    let times = |text: &str| world.model.last_request().to_string().matches(text).count();
    assert_eq!(times("Be brief."), 1);
    let three = with(after(&two, "three"), "Be kind.");
    ann.post(PATH, three).await.expect(200);
    assert_eq!((times("Be brief."), times("Be kind.")), (1, 1));
}

#[tokio::test]
async fn a_client_that_sends_the_items_again_continues_its_conversation() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    let user =
        |text: &str| json!({ "role": "user", "content": [{ "type": "input_text", "text": text }] });
    let system = json!({ "role": "developer", "content": "Be brief." });
    let first = ann.post(PATH, ask(json!([system, user("one")]))).await;
    let item = first.expect(200)["output"][0].clone();
    let whole = json!([system, user("one"), item, user("two")]);
    let second = ann.post(PATH, ask(whole)).await;
    let reference =
        json!({ "type": "item_reference", "id": second.expect(200)["output"][0]["id"] });
    let third = json!([system, user("one"), user("two"), reference, user("three")]);
    let third = ann.post(PATH, ask(third)).await;
    third.expect(200);
    let id = first.header("x-conversation-id");
    assert_eq!(
        (id, id),
        (
            second.header("x-conversation-id"),
            third.header("x-conversation-id")
        )
    );
    // The instructions, three questions and three answers.
    assert_eq!(ann.messages(id).await.len(), 7);
    let unknown = json!({ "type": "item_reference", "id": format!("msg_{}_0", "0".repeat(32)) });
    let refused = ann.post(PATH, ask(json!([unknown, user("four")]))).await;
    assert_eq!(refused.expect(400)["error"]["param"], "input");
}

#[tokio::test]
async fn an_answer_that_reaches_its_limit_is_incomplete() {
    let world = World::shared().await;
    world
        .model
        .on(|_| Some(text("You have 5 euros and a cent.")));
    let ann = world.user("ann", &[]).await;
    let mut body = ask("How much?");
    body["max_output_tokens"] = json!(2);
    let response = ann.post(PATH, body.clone()).await.expect(200);
    response.has(json!({
        "status": "incomplete",
        "incomplete_details": { "reason": "max_output_tokens" },
    }));
    assert_eq!(output(&response), ["You have"]);
    assert_eq!(response["output"][0]["status"], "incomplete");
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    let read = ann.get(&path).await.expect(200);
    assert_eq!(read["output"], response["output"]);
    assert_eq!(read["status"], response["status"]);
    let events = stream(&ann, body.clone()).await;
    assert_eq!(*types(&events).last().unwrap(), "response.incomplete");
    body["max_output_tokens"] = json!(100);
    body["stop"] = json!([" euros"]);
    let response = ann.post(PATH, body).await.expect(200);
    assert_eq!(output(&response), ["You have 5"]);
    assert_eq!(response["status"], "completed");
}

#[tokio::test]
async fn an_answer_that_was_cut_at_a_space_is_incomplete_when_read_again() {
    let world = World::shared().await;
    let gate = Gate::new();
    let answers = gate.clone();
    world
        .model
        .on(move |_| Some(text("You have 5 euros.").gate(3, &answers)));
    let ann = world.user("ann", &[]).await;
    for (field, limit, status) in [
        ("max_output_tokens", json!(2), "incomplete"),
        ("stop", json!([" "]), "completed"),
    ] {
        let mut body = ask("How much?");
        body[field] = limit;
        let response = ann.post(PATH, body).await.expect(200);
        assert_eq!(response["status"], status);
        let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
        let read = ann.get(&path).await.expect(200);
        assert_eq!(read["output"], response["output"]);
        assert_eq!(read["status"], status);
    }
}

#[tokio::test]
async fn calls_are_items_when_the_key_says_so() {
    let world = World::shared().await;
    world.tools_ready().await;
    let rate = json!({ "from": "EUR", "to": "USD" });
    let script = || {
        let call = call("bank__get_exchange_rate", rate.to_string());
        world
            .model
            .reply(text("Let me look.").and_call(call))
            .reply(text("It is high."));
    };
    let settings = ChatSettings {
        tool_calls: ShownCalls::Details,
        ..Default::default()
    };
    let claims = serde_json::from_value(json!({ "roles": ["employee"] })).unwrap();
    let key = world
        .chat_key("items", settings, KeyKind::Service(claims))
        .await;
    let program = world.client(&key);
    script();
    let response = program.post(PATH, ask("rate?")).await.expect(200);
    assert_eq!(output(&response), ["Let me look.", "It is high."]);
    let call = &response["output"][1];
    call.has(json!({
        "type": "mcp_call",
        "server_label": "bank",
        "name": "get_exchange_rate",
        "status": "completed",
    }));
    assert_eq!(
        serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap(),
        rate
    );
    call["output"].says("1.08");
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(program.get(&path).await.expect(200), response);
    script();
    let events = stream(&program, ask("rate?")).await;
    let seen = types(&events);
    for name in ["in_progress", "completed"] {
        assert!(
            seen.contains(&format!("response.mcp_call.{name}").as_str()),
            "{seen:?}"
        );
    }
    // The others see one text, as in chat completions.
    script();
    let ann = world.user("ann", &["employee"]).await;
    let plain = ann.post(PATH, ask("rate?")).await.expect(200);
    assert_eq!(output(&plain), ["Let me look.\n\nIt is high."]);
}

#[tokio::test]
async fn a_response_in_the_background_is_read_later_or_cancelled() {
    let world = World::shared().await;
    let gate = Gate::new();
    world.model.reply(text("At last.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let mut body = ask("hi");
    body["background"] = json!(true);
    let begun = ann.post(PATH, body.clone()).await.expect(200);
    begun.has(json!({ "status": "in_progress", "output": [] }));
    gate.reached().await;
    let early = ann.post(PATH, after(&begun, "more")).await;
    assert_eq!(early.expect(409)["error"]["code"], "conversation_busy");
    let path = format!("{PATH}/{}", begun["id"].as_str().unwrap());
    assert_eq!(ann.get(&path).await.expect(200)["status"], "in_progress");
    gate.open();
    crate::support::wait::eventually(async || ann.get(&path).await.json()["status"] == "completed")
        .await;
    assert_eq!(output(&ann.get(&path).await.expect(200)), ["At last."]);
    let over = ann.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!(over.expect(409)["error"]["code"], "run_over");
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let begun = ann.post(PATH, body).await.expect(200);
    gate.reached().await;
    let path = format!("{PATH}/{}", begun["id"].as_str().unwrap());
    let cancelled = ann
        .post(&format!("{path}/cancel"), json!({}))
        .await
        .expect(200);
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(ann.get(&path).await.expect(200)["status"], "cancelled");
    gate.open();
}

#[tokio::test]
async fn a_response_that_is_not_stored_is_not_there() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    let mut body = ask("hi");
    body["store"] = json!(false);
    let response = ann.post(PATH, body.clone()).await.expect(200);
    assert_eq!(response["store"], false);
    ann.get(&format!("{PATH}/{}", response["id"].as_str().unwrap()))
        .await
        .expect(404);
    ann.post(PATH, after(&response, "more")).await.expect(400);
    body["background"] = json!(true);
    let refused = ann.post(PATH, body).await.expect(400);
    assert_eq!(refused["error"]["param"], "background");
}

#[tokio::test]
async fn a_run_that_fails_is_an_error_or_a_failed_response() {
    let world = World::shared().await;
    world
        .model
        .reply(error(400, "on holiday"))
        .reply(error(400, "on holiday"));
    let ann = world.user("ann", &[]).await;
    let answer = ann.post(PATH, ask("hi")).await;
    assert_eq!(answer.expect(502)["error"]["code"], "run_failed");
    assert_eq!(answer.header("x-should-retry"), "false");
    let run = answer.header("x-request-id");
    assert!(!run.is_empty());
    let events = stream(&ann, ask("hi")).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    let response = &last["response"];
    response.has(json!({ "status": "failed", "error": { "code": "server_error" } }));
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(ann.get(&path).await.expect(200)["status"], "failed");
}

#[tokio::test]
async fn two_requests_with_one_key_are_one_response() {
    let world = World::shared().await;
    world.model.reply(text("Once."));
    let ann = world
        .user("ann", &[])
        .await
        .with_header("idempotency-key", "k-1");
    let one = ann.post(PATH, ask("hi")).await.expect(200);
    let two = ann.post(PATH, ask("hi")).await.expect(200);
    assert_eq!(one["id"], two["id"]);
    assert_eq!(one["output"], two["output"]);
    let other = ann.post(PATH, ask("other")).await.expect(422);
    assert_eq!(other["error"]["code"], "idempotency_key_reused");
    assert_eq!(world.model.requests().len(), 1);
}

#[tokio::test]
async fn what_has_no_meaning_here_is_ignored_and_named() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let data = format!("data:image/png;base64,{}", "A".repeat(4000));
    let mut body = ask(json!([
        { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c", "output": "42" },
        { "type": "reasoning", "id": "rs_1", "summary": [] },
        { "role": "user", "content": [{ "type": "input_text", "text": "Look:" },
                                      { "type": "input_image", "image_url": data }] },
    ]));
    body["tools"] = json!([{ "type": "function", "name": "f", "parameters": {} }]);
    body["temperature"] = json!(0.1);
    body["a_field_of_tomorrow"] = json!({});
    let ann = world.user("ann", &[]).await;
    let answer = ann.post(PATH, body.clone()).await;
    answer.expect(200);
    assert_eq!(answer.header("x-ignored-parameters"), "tools");
    let asked = world.model.last_request();
    assert!(
        said(&asked, "Look:\n[image: image/png, 3 kB; not shown to you]") && read(&world, "42")
    );
    body["tool_choice"] = json!({ "type": "function", "name": "f" });
    let refused = ann.post(PATH, body).await.expect(400);
    assert_eq!(refused["error"]["param"], "tool_choice");
}

/// A change to a good request, and the `param` of its refusal.
type Case = (fn(&mut Value), &'static str);

const CASES: [Case; 9] = [
    (|body| body["model"] = json!(7), "model"),
    (|body| body["model"] = json!("gpt-4o"), "model"),
    (|body| body["input"] = json!(7), "input"),
    (|body| body["input"] = json!(" "), "input"),
    (|body| body["input"] = json!([]), "input"),
    (|body| body["input"] = json!([{}]), "input[0].type"),
    (
        |body| body["input"] = json!([{ "role": "robot", "content": "hi" }]),
        "input[0].role",
    ),
    (
        |body| body["previous_response_id"] = json!("nonsense"),
        "previous_response_id",
    ),
    (
        |body| body["metadata"] = json!({ "a": "b".repeat(513) }),
        "metadata",
    ),
];

#[tokio::test]
async fn every_refusal_names_the_parameter() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for (change, param) in CASES {
        let mut body = ask("hi");
        change(&mut body);
        let answer = ann.post(PATH, body.clone()).await;
        let status = if body["model"] == "gpt-4o" { 404 } else { 400 };
        assert_eq!(answer.expect(status)["error"]["param"], param, "{body}");
    }
    assert!(world.model.requests().is_empty());
    assert_eq!(
        ann.get("/v1/conversations").await.expect(200)["items"],
        json!([])
    );
}

#[tokio::test]
async fn a_request_beside_the_chat_is_one_plain_call() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Money").usage(3, 1)));
    let ann = world
        .user("ann", &[])
        .await
        .with_header("x-openwebui-task", "title_generation");
    let response = ann.post(PATH, ask("hi")).await.expect(200);
    assert_eq!(output(&response), ["Money"]);
    assert_eq!(response["store"], false);
    assert_eq!(
        *types(&stream(&ann, ask("hi")).await).last().unwrap(),
        "response.completed"
    );
    assert_eq!(
        ann.get("/v1/conversations").await.expect(200)["items"],
        json!([])
    );
}
