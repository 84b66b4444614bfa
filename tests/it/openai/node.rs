//! The official client for Node and the AI SDK's providers, unchanged: only the address and the key are ours.

use serde_json::{Value, json};

use crate::support::{
    model::{Gate, error, text},
    node,
    world::World,
};

#[tokio::test]
async fn the_official_client_for_node_works_unchanged() {
    let world = World::shared().await;
    world
        .model
        .reply(text("One.").usage(11, 7))
        .reply(text("Two, in pieces."))
        .reply(text("Three.").usage(5, 3))
        .reply(text("Four, in pieces."))
        .reply(text("Five."))
        .reply(text("Six."))
        .reply(error(400, "on holiday"))
        .reply(error(400, "on holiday"));
    let ann = world.user("ann", &[]).await;
    let seen = node::run(include_str!("client.mjs"), &world.url, &ann).await;
    let expected = json!({
        "models": ["bank", "office"],
        "completion": ["One.", "stop", 18],
        "streamed completion": "Two, in pieces.",
        "response": ["Three.", "completed", 8],
        "streamed response": ["Four, in pieces.", "completed"],
        "continued": { "previous": true, "text": "Five." },
        "read": "Five.",
        "deleted": ["NotFoundError", 404],
        "items": [["user", "And here?"], ["assistant", "Six."]],
        "item": "Six.",
        "new item": ["APIError", 405, "method_not_allowed"],
        "deleted item": ["APIError", 405, "method_not_allowed"],
        "no such model": ["NotFoundError", 404, "model_not_found"],
        "wrong key": ["AuthenticationError", 401, "invalid_api_key"],
        "no such response": ["BadRequestError", 400, "previous_response_not_found"],
        "failed run": ["InternalServerError", 502, "run_failed"],
        "failed stream": "failed",
    });
    assert_eq!(seen, expected);
    assert_eq!(world.model.requests().len(), 8, "no run was tried again");
}

#[tokio::test]
async fn a_retry_of_the_official_client_is_the_same_run() {
    let world = World::start().await;
    let gate = Gate::new();
    world.model.reply(text("Once.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let module = include_str!("retry.mjs");
    let asking = async { node::run(module, &world.url, &ann).await };
    let opening = async {
        // The client's time is over, and it has sent its request again.
        crate::support::wait::eventually(async || {
            let repeats: Option<i32> = sqlx::query_scalar("select max(repeats) from request_keys")
                .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
                .await
                .unwrap();
            repeats >= Some(1)
        })
        .await;
        gate.open();
    };
    let (seen, ()) = tokio::join!(asking, opening);
    assert_eq!(seen, json!("Once."));
    assert_eq!(world.model.requests().len(), 1);
}

#[tokio::test]
async fn the_providers_of_the_ai_sdk_work_unchanged() {
    let world = World::shared().await;
    for answer in [
        "One.",
        "Two, in pieces.",
        "Three.",
        "Four.",
        "Five, in pieces.",
    ] {
        world.model.reply(text(answer).usage(11, 7));
    }
    world.model.reply(error(400, "on holiday"));
    let ann = world.user("ann", &[]).await;
    let seen = node::run(include_str!("aisdk.mjs"), &world.url, &ann).await;
    let expected = json!({
        "responses": ["One.", "stop", 18],
        "responses streamed": "Two, in pieces.",
        "responses continued": "Three.",
        "compatible": ["Four.", "stop", 18],
        "compatible streamed": "Five, in pieces.",
        "failed": ["AI_APICallError", 502, false],
        "no such model": ["AI_APICallError", 404, false],
    });
    assert_eq!(seen, expected);
    let conversations = ann.get("/v1/conversations").await.expect(200);
    let items = conversations["items"].as_array().unwrap();
    // The first three are one conversation, found by references to its items; a failed one is a conversation, too.
    assert_eq!(items.len(), 4, "{items:?}");
    let asked = &world.model.requests()[2].body;
    let messages = asked["messages"].as_array().unwrap().iter();
    let said: Vec<&Value> = messages.map(|message| &message["content"]).collect();
    assert_eq!(said[1..].len(), 5, "{said:?}");
}
