//! What is refused, in the shape that OpenAI clients parse, and before anything is kept.

use serde_json::{Value, json};

use super::{PATH, content, request, stream};
use crate::support::{
    has::Has,
    model::{Gate, error, text},
    world::World,
};

/// A change to a good request, and the `param`, `code` and a piece of the message that it gets.
type Case = (fn(&mut Value), &'static str, &'static str, &'static str);

const CASES: [Case; 12] = [
    (
        |body| body["model"] = json!("gpt-4o"),
        "model",
        "model_not_found",
        "model \"gpt-4o\" was not found",
    ),
    (
        |body| body["model"] = json!(7),
        "model",
        "wrong_type",
        "model must be a string",
    ),
    (
        |body| _ = body.as_object_mut().unwrap().remove("model"),
        "model",
        "missing_field",
        "model is missing",
    ),
    (
        |body| body["messages"] = json!([]),
        "messages",
        "invalid",
        "last message",
    ),
    (
        |body| body["messages"] = json!("hi"),
        "messages",
        "wrong_type",
        "must be a list",
    ),
    (
        |body| body["messages"][0]["role"] = json!("robot"),
        "messages[0].role",
        "invalid",
        "\"robot\" is not one of",
    ),
    (
        |body| body["messages"][0]["role"] = json!("assistant"),
        "messages",
        "invalid",
        "last message",
    ),
    (
        |body| body["messages"][0]["content"] = json!(" "),
        "messages[0].content",
        "invalid",
        "blank",
    ),
    (
        |body| body["messages"][0]["content"] = json!("a\0"),
        "messages[0].content",
        "invalid",
        "U+0000",
    ),
    (
        |body| body["messages"][0]["content"] = json!(3),
        "messages[0].content",
        "wrong_type",
        "text or a list",
    ),
    (
        |body| body["messages"][0]["content"] = json!([{}]),
        "messages[0].content[0].type",
        "missing_field",
        "missing",
    ),
    (
        |body| body["stream"] = json!("yes"),
        "stream",
        "wrong_type",
        "must be a boolean",
    ),
];

#[tokio::test]
async fn every_refusal_names_the_parameter_and_the_reason() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for (change, param, code, message) in CASES {
        let mut body = request(&["hi"]);
        change(&mut body);
        let answer = ann.post(PATH, body.clone()).await;
        assert_eq!(
            answer.status,
            if code == "model_not_found" { 404 } else { 400 },
            "{body}: {}",
            answer.text
        );
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "invalid_request_error", "{body}: {error}");
        assert_eq!(error["param"], param, "{body}: {error}");
        assert_eq!(error["code"], code, "{body}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(message),
            "{body}: {error}"
        );
    }
    assert!(world.model.requests().is_empty());
    assert_eq!(
        ann.get("/v1/conversations").await.expect(200)["items"],
        json!([])
    );
}

#[tokio::test]
async fn a_wrong_key_and_a_wrong_path_speak_openai_too() {
    let world = World::shared().await;
    let nobody = world.nobody();
    let refused = nobody.post(PATH, request(&["hi"])).await;
    assert_eq!(refused.expect(401)["error"]["code"], "invalid_api_key");
    let missing = world.user("ann", &[]).await.get("/v1/models/none").await;
    assert_eq!(missing.expect(404)["error"]["code"], "model_not_found");
    let wrong = nobody.get(PATH).await;
    assert_eq!(wrong.expect(405)["error"]["code"], "method_not_allowed");
}

#[tokio::test]
async fn a_path_that_is_not_there_speaks_openai() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for path in ["/v1/embeddings", "/v1/files", "/v1/chat/nothing"] {
        let missing = ann.post(path, json!({})).await.expect(404);
        assert_eq!(missing["error"]["code"], "unknown_path", "{path}");
    }
    let elsewhere = ann.post("/nothing", json!({})).await.expect(404);
    assert_eq!(elsewhere["code"], "unknown_path");
}

#[tokio::test]
async fn a_failed_run_is_an_error_that_is_not_tried_again() {
    let world = World::shared().await;
    world.model.reply(error(400, "this model is on holiday"));
    let answer = world
        .user("ann", &[])
        .await
        .post(PATH, request(&["hi"]))
        .await;
    let body = answer.expect(502);
    body["error"].has(json!({ "type": "server_error", "code": "run_failed" }));
    assert_eq!(answer.header("x-should-retry"), "false");
    assert_eq!(world.model.requests().len(), 1);
}

#[tokio::test]
async fn a_run_that_fails_in_a_stream_ends_it_with_an_error_and_no_done() {
    let world = World::shared().await;
    world.model.reply(error(400, "this model is on holiday"));
    let (chunks, done) = stream(&world.user("ann", &[]).await, request(&["hi"])).await;
    assert!(!done);
    assert_eq!(chunks.last().unwrap()["error"]["code"], "run_failed");
    assert_eq!(
        content(&chunks),
        "",
        "the reason is said once, as the error"
    );
}

#[tokio::test]
async fn a_cancelled_run_is_told() {
    let world = World::shared().await;
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let asking = {
        let ann = ann.clone();
        tokio::spawn(async move { ann.post(PATH, request(&["hi"])).await })
    };
    gate.reached().await;
    let conversations = ann.get("/v1/conversations").await.expect(200);
    let id = conversations["items"][0]["id"].as_str().unwrap();
    let run = ann.messages(id).await[0]["run_id"]
        .as_str()
        .unwrap()
        .to_owned();
    ann.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect(202);
    let answer = asking.await.unwrap();
    assert_eq!(answer.expect(409)["error"]["code"], "run_cancelled");
    assert_eq!(answer.header("x-should-retry"), "false");
}

#[tokio::test]
async fn a_stop_tells_who_waits_where_the_answer_will_be() {
    let world = World::start().await;
    let gate = Gate::new();
    world.model.reply(text("later").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let asking = tokio::spawn(async move { ann.post(PATH, request(&["hi"])).await });
    gate.reached().await;
    world.app().shutdown.cancel();
    let answer = asking.await.unwrap();
    let body = answer.expect(503);
    assert_eq!(body["error"]["code"], "stopping");
    body["error"]["message"].says(answer.header("x-conversation-id"));
    gate.open();
    world.stop().await;
}
