//! The streams of the AI SDK and of AG-UI, read by the official clients.

mod agui; // AG-UI
mod aisdk; // the AI SDK's UI message stream

use serde_json::{Value, json};

use super::support::{
    bank::payment,
    client::{Client, Event, Events},
    model::{Reply, calls, results, said, text},
    world::{Setup, World},
};

/// A model that pays or looks up a rate when it is asked to, and says in a word what it was told of it.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the scripted model may have no reply"
)]
fn teller(request: &Value) -> Option<Reply> {
    if said(request, "From the program") {
        return Some(text("So it ended."));
    }
    let asked = request["messages"].as_array().unwrap().last().unwrap();
    if asked["role"] == "user" && said(request, "pay 5.00") && results(request).is_empty() {
        return Some(calls([("bank__send_money", payment("5.00"))]));
    }
    if asked["role"] == "user" && said(request, "pay both") {
        let both = ["5.00", "6.00"].map(|amount| ("bank__send_money", payment(amount)));
        return Some(calls(both));
    }
    if asked["role"] == "user" && said(request, "rate?") {
        let pair = json!({ "from": "EUR", "to": "USD" });
        return Some(calls([("bank__get_exchange_rate", pair)]));
    }
    Some(text(if results(request).is_empty() {
        "Hello."
    } else {
        "Done as told."
    }))
}

/// Employees send money with somebody's consent.
fn with_approval(setup: &mut Setup) {
    setup.change_server(json!({ "toolAccess": {
        "roles": { "employee": ["get_exchange_rate", "get_balances", "send_money"] },
        "approval": [{ "tools": ["send_money"], "approvers": ["finance"] }],
    } }));
}

/// Employees confirm the transfers that they make.
fn with_confirmation(setup: &mut Setup) {
    setup.change_server(json!({ "toolAccess": {
        "roles": { "employee": ["get_exchange_rate", "get_balances", "send_money"] },
        "confirm": [{ "tools": ["send_money"] }],
    } }));
}

async fn confirming() -> World {
    let world = World::shared_with("confirming streams", with_confirmation).await;
    world.tools_ready().await;
    world.model.on(teller);
    world
}

async fn world() -> World {
    let world = World::shared_with("streams", with_approval).await;
    world.tools_ready().await;
    world.model.on(teller);
    world
}

/// Approves the one request that waits, and waits until its call was made and told.
async fn approve(world: &World) {
    let mona = world.user("mona", &["finance"]).await;
    let list = mona.get("/v1/approvals?decidable=true").await.expect(200);
    let request = &list["items"][0];
    let path = format!("/v1/approvals/{}", request["id"].as_str().unwrap());
    let decision = json!({ "decision": "approve", "args_sha256": request["args_sha256"] });
    mona.post(&format!("{path}/decision"), decision)
        .await
        .expect(200);
    super::support::wait::eventually(async || {
        let state = mona.get(&path).await.json()["state"].clone();
        let told = world.model.requests();
        let told = told.iter().any(|r| said(&r.body, "From the program"));
        state == "succeeded" && told
    })
    .await;
}

/// The chunks of a stream.
async fn rest(events: Events) -> Vec<Value> {
    let heard: Vec<Event> = events.rest().await;
    heard.into_iter().map(|event| event.data).collect()
}

/// Posts a body and listens.
async fn post(client: &Client, path: &str, body: &Value) -> Events {
    let request = client.request(http::Method::POST, path).json(body);
    Events::of(request.send().await.unwrap())
}
