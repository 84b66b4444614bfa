//! Which conversation a transcript belongs to: the one whose last answer it shows, and no other that begins alike.

use domain::{
    account::KeyKind,
    principal::{Scope, Scopes},
};
use http::Method;
use serde_json::{Map, Value, json};

use super::{PATH, complete, request};
use crate::support::{
    client::{Client, Events},
    model::{Gate, calls, error, last_user, results, said, text},
    world::World,
};

/// A program that speaks for many people with one key.
async fn program(world: &World) -> Client {
    let claims = Map::from_iter([("roles".to_owned(), json!(["employee"]))]);
    let speaker = KeyKind::Service(claims);
    let key = world.key("desk", Scopes::new([Scope::Chat]), speaker).await;
    world.client(&key)
}

/// What everybody's chat begins with: instructions, or examples as well.
fn beginnings() -> [Vec<Value>; 2] {
    let system = json!({ "role": "system", "content": "You are the helpdesk." });
    let example = [
        json!({ "role": "user", "content": "What is 1 + 1?" }),
        json!({ "role": "assistant", "content": "2" }),
    ];
    let with_example = [system.clone()].into_iter().chain(example).collect();
    [vec![system], with_example]
}

fn asking(beginning: &[Value], question: &str) -> Value {
    let question = json!({ "role": "user", "content": question });
    let messages: Vec<_> = beginning.iter().cloned().chain([question]).collect();
    json!({ "model": "bank", "messages": messages })
}

/// Asks; the conversation of the answer.
async fn place(client: &Client, body: Value) -> String {
    let answer = client.post(PATH, body).await;
    answer.expect(200);
    answer.header("x-conversation-id").to_owned()
}

/// Nothing of Anna's question, and no result of a tool, is in the model's request.
fn assert_alone(seen: &Value) {
    assert!(!seen.to_string().contains("Anna"), "{seen}");
    let mut messages = seen["messages"].as_array().unwrap().iter();
    assert!(messages.all(|message| message["role"] != "tool"), "{seen}");
}

#[tokio::test]
async fn a_chat_that_begins_like_a_failed_one_does_not_meet_it() {
    let world = World::shared().await;
    world.tools_ready().await;
    world.model.on(|request| {
        let failing = last_user(request).contains("Anna");
        let wants_tool = last_user(request).contains("balances") && results(request).is_empty();
        match (failing, wants_tool) {
            (true, true) => Some(calls([("bank__get_balances", json!({}))])),
            (true, false) => Some(error(400, "on holiday")),
            _ => Some(text("Hello.")),
        }
    });
    let ann = world.user("ann", &["employee"]).await;
    for client in [program(&world).await, ann] {
        for beginning in beginnings() {
            for (question, status) in [("Anna: my PIN is 1234", 502), ("Anna: my balances", 400)] {
                let failed = client.post(PATH, asking(&beginning, question)).await;
                failed.expect(status);
                let bobs = place(&client, asking(&beginning, "I am Bob")).await;
                assert_ne!(bobs, failed.header("x-conversation-id"));
                assert_alone(&world.model.last_request());
            }
        }
        let instructions = "You are the helpdesk.";
        let ask =
            |input: &str| json!({ "model": "bank", "instructions": instructions, "input": input });
        let failed = client
            .post("/v1/responses", ask("Anna: my PIN is 1234"))
            .await;
        failed.expect(502);
        client
            .post("/v1/responses", ask("I am Bob"))
            .await
            .expect(200);
        assert_alone(&world.model.last_request());
    }
}

#[tokio::test]
async fn a_chat_that_begins_like_a_stopped_one_does_not_meet_it() {
    let world = World::shared().await;
    let gate = Gate::new();
    let held = gate.clone();
    world.model.on(move |request| {
        let is_annas = last_user(request).contains("Anna");
        is_annas.then(|| text("Half an answer").gate(2, &held))
    });
    world.model.on(|_| Some(text("Hello.")));
    let desk = program(&world).await;
    let [beginning, _] = beginnings();
    let mut body = asking(&beginning, "Anna: how much?");
    body["stream"] = json!(true);
    let asked = desk.request(Method::POST, PATH).json(&body).send().await;
    let asked = asked.unwrap();
    let annas = asked.headers()["x-conversation-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let mut events = Events::of(asked);
    gate.reached().await;
    events.next().await.unwrap();
    drop(events);
    world.model.wait_for_hangups(1).await;
    let bobs = place(&desk, asking(&beginning, "I am Bob")).await;
    assert_ne!(bobs, annas);
    assert_alone(&world.model.last_request());
    gate.open();
}

#[tokio::test]
async fn a_question_after_a_failed_one_is_asked_without_it() {
    let world = World::shared().await;
    world.model.on(|request| {
        let failing = said(request, "two");
        Some(if failing {
            error(400, "on holiday")
        } else {
            text("First.")
        })
    });
    let ann = world.user("ann", &[]).await;
    let first = place(&ann, request(&["one"])).await;
    ann.post(PATH, request(&["one", "First.", "two"]))
        .await
        .expect(502);
    let third = place(&ann, request(&["one", "First.", "three"])).await;
    assert_ne!(first, third);
    let seen = world.model.last_request();
    assert!(
        said(&seen, "three") && !seen.to_string().contains("two"),
        "{seen}"
    );
    // The same chat named by the frontend.
    let fay = world
        .frontend("fay")
        .await
        .with_header("x-openwebui-chat-id", "chat-1");
    fay.post(PATH, request(&["two"])).await.expect(502);
    place(&fay, request(&["hello"])).await;
    let seen = world.model.last_request();
    assert!(!seen.to_string().contains("two"), "{seen}");
}

#[tokio::test]
async fn where_two_conversations_fit_a_new_one_is_begun() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Hello.")));
    let desk = program(&world).await;
    let (one, two) = (
        place(&desk, request(&["hi"])).await,
        place(&desk, request(&["hi"])).await,
    );
    let three = place(&desk, request(&["hi", "Hello.", "and now?"])).await;
    assert!(![one, two].contains(&three));
    let seen = world.model.last_request();
    assert_eq!(seen["messages"].as_array().unwrap().len(), 4, "{seen}");
    // What follows is a chat like no other.
    let four = request(&["hi", "Hello.", "and now?", "Hello.", "so?"]);
    assert_eq!(place(&desk, four).await, three);
}

#[tokio::test]
async fn a_key_that_names_nobody_is_not_shown_results_that_its_transcript_lacks() {
    let world = World::shared().await;
    world.tools_ready().await;
    world.model.on(|request| {
        let wants_tool = said(request, "balances");
        Some(if wants_tool {
            calls([("bank__get_balances", json!({}))])
        } else {
            text("You have money.")
        })
    });
    let roles = |request: &Value| -> Vec<Value> {
        let messages = request["messages"].as_array().unwrap().iter();
        messages.map(|message| message["role"].clone()).collect()
    };
    let more = || request(&["my balances", "You have money.", "how much exactly?"]);
    let desk = program(&world).await;
    let first = place(&desk, request(&["my balances"])).await;
    assert_ne!(place(&desk, more()).await, first);
    let seen = roles(&world.model.last_request());
    assert_eq!(seen, ["system", "user", "assistant", "user"]);
    // A person's own results are there.
    let ann = world.user("ann", &["employee"]).await;
    let first = place(&ann, request(&["my balances"])).await;
    assert_eq!(place(&ann, more()).await, first);
    let seen = roles(&world.model.last_request());
    assert!(seen.contains(&json!("tool")), "{seen:?}");
    // And where nothing is hidden the chat goes on.
    assert_eq!(complete(&desk, &["hi"]).await, "You have money.");
    let plain = place(&desk, request(&["hi", "You have money.", "thanks"])).await;
    let again = ["hi", "You have money.", "thanks", "You have money.", "bye"];
    assert_eq!(place(&desk, request(&again)).await, plain);
}

#[tokio::test]
async fn what_was_said_elsewhere_in_a_conversation_is_not_shown_to_its_client() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("First.")));
    let ann = world.user("ann", &[]).await;
    let first = place(&ann, request(&["one"])).await;
    ann.say_and_wait(&first, "said in the web client").await;
    let second = place(&ann, request(&["one", "First.", "two"])).await;
    assert_ne!(first, second);
    let seen = world.model.last_request();
    assert!(!seen.to_string().contains("web client"), "{seen}");
}
