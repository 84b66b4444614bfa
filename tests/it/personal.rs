//! Personal servers: every user brings their own token.

pub mod canary;
mod chat;
mod demo;
mod judged; // what a test of a credential proves
mod link;
mod proxy;
mod rest;
mod rules;
mod sharing;
mod smoke;
mod visibility;

use serde_json::{Value, json};

use crate::support::client::{Answer, Client};

/// Enters a token at the server `notes` of an agent.
pub async fn enter(client: &Client, agent: &str, token: &str) -> Answer {
    let path = format!("/v1/agents/{agent}/connections/notes");
    let request = client
        .request(http::Method::PUT, &path)
        .json(&json!({ "fields": { "token": token } }));
    client.send(request).await
}

/// The names of a user's tools at an agent.
async fn tools(client: &Client, agent: &str) -> Vec<String> {
    let listed = client
        .get(&format!("/v1/agents/{agent}/tools"))
        .await
        .expect(200);
    let servers = listed["items"].as_array().unwrap().iter();
    let tools = servers.flat_map(|server| server["tools"].as_array().unwrap());
    tools
        .map(|tool| tool["tool"].as_str().unwrap().to_owned())
        .collect()
}

/// How a user's connection is.
async fn connection(client: &Client, agent: &str) -> Value {
    client
        .get(&format!("/v1/agents/{agent}/connections/notes"))
        .await
        .expect(200)
}
