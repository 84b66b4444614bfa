//! A message answered: the model, its tools, the gate, and everything that may go wrong on the way.

mod audit; // who called what
mod calls; // the tools of a step
mod endings; // how a run ends when it does not end well
mod first_turn; // servers that are slow to connect
mod hostile; // what Postgres, models and listeners must not trip over
mod listening; // events, slow listeners, other replicas
mod models; // models of other providers, and other models
mod plans; // what a turn reads of large tables
mod prompt; // what the model is told
mod queue; // several messages and runs
mod reload; // packs that change
mod servers; // servers that come, go and change

use std::time::Duration;

use serde_json::{Value, json};

use super::support::{
    client::Client,
    world::{Setup, World},
};

/// Puts `new` in the place of `old` in the pack of the bank.
fn change(setup: &mut Setup, old: &str, new: &str) {
    let (_, yaml) = setup.packs.iter_mut().find(|(id, _)| id == "bank").unwrap();
    assert!(yaml.contains(old), "{old:?} is not in {yaml}");
    *yaml = yaml.replace(old, new);
}

/// A world whose bank is known already.
async fn world() -> World {
    world_with(|_| {}).await
}

/// The same in a process that other tests share.
async fn shared_world() -> World {
    let world = World::shared().await;
    world.tools_ready().await;
    world
}

async fn world_with(change: impl FnOnce(&mut Setup)) -> World {
    let world = World::with(change).await;
    world.tools_ready().await;
    world
}

/// Waits until it holds; looks again and again.
pub async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let until = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(super::support::world::TIME_LIMIT, until)
        .await
        .expect("it did not happen in time");
}

/// The arguments of a rate that every bank knows.
pub fn pair() -> Value {
    json!({ "from": "EUR", "to": "USD" })
}

pub fn payment(amount: &str) -> Value {
    json!({ "from_account": "current", "to": "acme", "amount": amount, "currency": "EUR" })
}

/// The results of tools in a conversation, in the order in which they came.
pub async fn tool_results(client: &Client, conversation: &str) -> Vec<Value> {
    let messages = client.messages(conversation).await;
    let parts = messages
        .iter()
        .flat_map(|message| message["parts"].as_array().unwrap());
    parts
        .filter(|part| part["type"] == "tool_result")
        .cloned()
        .collect()
}

/// The roles of its messages.
pub async fn roles(client: &Client, conversation: &str) -> Vec<String> {
    let messages = client.messages(conversation).await;
    messages
        .iter()
        .map(|message| message["role"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits until a run has ended; the run.
pub async fn ended(client: &Client, run: &str) -> Value {
    let mut seen = Value::Null;
    eventually(async || {
        seen = client.get(&format!("/v1/runs/{run}")).await.expect(200);
        matches!(
            seen["status"].as_str(),
            Some("succeeded" | "failed" | "cancelled")
        )
    })
    .await;
    seen
}
