//! Agents called by other agents: cards, messages, tasks, in both versions of the protocol.

mod cards; // what an agent says of itself
mod legacy; // version 0.3
mod messages; // a skill, a turn, and what is refused
mod python; // the official client
mod tasks; // looked at, waited for, stopped; and whose they are

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{client::Client, has::Has};

/// One JSON-RPC request to an agent; the whole response.
async fn rpc(client: &Client, agent: &str, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": "r1", "method": method, "params": params });
    let answer = client.post(&format!("/a2a{agent}"), body).await.expect(200);
    answer.has(json!({ "jsonrpc": "2.0", "id": "r1" }));
    answer
}

async fn code(client: &Client, agent: &str, method: &str, params: Value) -> i64 {
    let answer = rpc(client, agent, method, params).await;
    answer["error"]["code"]
        .as_i64()
        .unwrap_or_else(|| panic!("{answer}"))
}

/// A message of these parts for a skill.
fn message(skill: &str, parts: impl Into<Value>) -> Value {
    let id = Uuid::new_v4();
    json!({ "message": { "messageId": id, "role": "ROLE_USER", "parts": parts.into() }, "metadata": { "skillId": skill } })
}

fn words(text: &str) -> Value {
    json!([{ "text": text }])
}

/// Sends a message for a skill of the bank; its task.
async fn task(client: &Client, params: Value) -> Value {
    let answer = rpc(client, "/bank", "SendMessage", params).await;
    assert!(answer["result"]["task"].is_object(), "{answer}");
    answer["result"]["task"].clone()
}

async fn get(client: &Client, task: &Value) -> Value {
    rpc(client, "/bank", "GetTask", json!({ "id": task["id"] })).await["result"].clone()
}
