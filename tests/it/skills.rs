//! Skills: one call of one tool, whichever way asks for it, and never a model. What the servers were asked is the
//! truth about what was called.

mod approvals; // calls that somebody has to consent to
mod chat; // typed like a command
mod forms; // commands that lack arguments
pub mod numbers; // as people write them
mod rest; // run by a program
mod values; // arguments and results
mod words; // the arguments in the words of a command

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::{
    client::Client,
    scripted::{Reply, Scripted, Seen, text},
    wait::eventually,
    world::World,
};

/// An agent with a bank, something to search with, and a server that is not there.
pub const PACK: &str = r#"
metadata: { id: bank, displayName: Bank, description: Money, defaultLanguage: en }
languages: { en: { systemPrompt: "You are a bank." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { required: false, rolesAttribute: roles, adminUsers: [alice] } }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "${BANK_URL}"
      toolAccess:
        default: none
        roles: { guest: [get_exchange_rate], employee: [get_exchange_rate, send_money], cfo: [get_exchange_rate] }
        approval: [ { tools: [send_money], approvers: [cfo], timeoutMinutes: 60 } ]
    - { name: search, transport: streamable-http, url: "${SEARCH_URL}", toolAccess: { default: public } }
    - { name: dead, transport: streamable-http, url: "http://127.0.0.1:9/mcp", toolAccess: { default: public } }
skills:
  - id: web-search
    name: Web search
    description: Searches the web
    mcpBinding: { server: search, tools: [web_search, structured] }
  - { id: structured, mcpBinding: { server: search, tools: [structured] } }
  - { id: broken, mcpBinding: { server: search, tools: [broken] } }
  - { id: slow, mcpBinding: { server: search, tools: [slow] } }
  - { id: lost, mcpBinding: { server: search, tools: [lost] } }
  - { id: nowhere, mcpBinding: { server: dead, tools: [anything] } }
  - { id: rate, name: Rate, mcpBinding: { server: bank, tools: [get_exchange_rate] } }
  - { id: pay, name: Pay, mcpBinding: { server: bank, tools: [send_money] } }
"#;

/// The fixture with these skills, and the server that is searched with.
pub struct SkillsFixture {
    pub world: World,
    pub search: Scripted,
    /// Each permit lets one call of `slow` be answered.
    pub gate: Arc<Semaphore>,
}

impl SkillsFixture {
    pub async fn new() -> Self {
        Self::with(PACK).await
    }

    pub async fn with(pack: &str) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let opens = gate.clone();
        let search = Scripted::modern(move |seen| answered(seen, opens.clone())).await;
        let (url, pack) = (search.url.to_string(), pack.to_owned());
        let world = World::with(|setup| {
            setup.env = setup.env.clone().with("SEARCH_URL", url);
            setup.packs[0].1 = pack;
        })
        .await;
        let guest = world.guest().await;
        eventually(async || {
            let states: Vec<_> = skills(&guest)
                .await
                .into_iter()
                .map(|skill| skill["state"].clone())
                .collect();
            states.iter().filter(|state| *state == "ready").count() + 1 == states.len()
        })
        .await;
        Self {
            world,
            search,
            gate,
        }
    }

    /// The arguments of every call that came to the search server.
    pub fn searched(&self) -> Vec<Value> {
        let calls = self.search.requests("tools/call");
        calls
            .iter()
            .map(|call| call.body["params"]["arguments"].clone())
            .collect()
    }
}

async fn answered(seen: Seen, gate: Arc<Semaphore>) -> Option<Reply> {
    match (seen.method(), seen.body["params"]["name"].as_str().unwrap_or_default()) {
        ("tools/list", _) => {
            let strict = json!({ "type": "object", "properties": { "input": { "type": "string" },
                "repo": { "type": "string" } }, "additionalProperties": false });
            let tool = |name: &str| json!({ "name": name, "inputSchema": strict });
            let tools = ["web_search", "structured", "broken", "slow", "lost"].map(tool);
            Some(seen.result(json!({ "tools": tools })))
        }
        ("tools/call", "web_search") => Some(seen.result(json!({ "content": [
            { "type": "text", "text": "first hit" }, { "type": "text", "text": "second hit" } ] }))),
        ("tools/call", "structured") => Some(seen.result(json!({
            "content": [{ "type": "text", "text": "in words" }], "structuredContent": { "hits": [1, 2] } }))),
        ("tools/call", "broken") => Some(seen.result(json!({
            "isError": true, "content": [{ "type": "text", "text": "the index is on fire" }] }))),
        ("tools/call", "slow") => {
            gate.acquire().await.unwrap().forget();
            Some(seen.result(text("at last")))
        }
        ("tools/call", "lost") => Some(Reply::HangUp),
        _ => None,
    }
}

pub async fn skills(client: &Client) -> Vec<Value> {
    let list = client.get("/v1/agents/bank/skills").await.expect(200);
    list["items"].as_array().unwrap().clone()
}

fn ids(skills: &[Value]) -> Vec<&str> {
    skills
        .iter()
        .map(|skill| skill["id"].as_str().unwrap())
        .collect()
}
