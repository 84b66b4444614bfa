//! What the documents promise of a run: their files as they are, real servers and requests, and a model that is scripted.

mod agent_pack;
mod aos;
mod holaos;
mod holodeck;
mod registry;

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    client::{Client, plain},
    scripted::{Scripted, Seen},
    servers,
};

/// A server with these tools, which says what it was asked.
async fn server(tools: &'static [&'static str]) -> Scripted {
    Scripted::modern(move |seen: Seen| async move { listed(&seen, tools) }).await
}

/// The answer to a request for the tools, when it is one.
fn listed(seen: &Seen, tools: &[&str]) -> Option<crate::support::scripted::Reply> {
    let tool = |name: &&str| json!({ "name": name, "inputSchema": { "type": "object" } });
    let tools: Vec<Value> = tools.iter().map(tool).collect();
    (seen.method() == "tools/list").then(|| seen.result(json!({ "tools": tools })))
}

fn header<'s>(seen: &'s Seen, name: &str) -> Option<&'s str> {
    seen.headers.get(name)?.to_str().ok()
}

/// Says a line in a new conversation; the last words of the answer.
async fn said(client: &Client, agent: &str, line: &str) -> String {
    let chat = client.open(agent).await;
    client.say_and_wait(&chat, line).await;
    plain(client.messages(&chat).await.last().unwrap())
}

/// The Python and the script of a child that does as it is told.
fn probe() -> (String, String) {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    (
        text(&servers::venv("python")),
        text(&servers::folder().join("probe.py")),
    )
}

/// The names of the variables that the probe has, from the answer of its tool.
fn variables(answer: &str) -> Vec<String> {
    let answer: Value = serde_json::from_str(answer).unwrap_or_else(|_| panic!("{answer}"));
    // LC_CTYPE is Python's own doing.
    let names = answer.as_object().unwrap().keys().cloned();
    names.filter(|name| name != "LC_CTYPE").collect()
}
