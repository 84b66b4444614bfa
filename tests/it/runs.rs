//! Runs that programs and agents start: what they are given, what they may, what is told of their end.
//!
//! The scripted model does what it is told: `do <tool> <arguments>` makes a call of the orchestrator and then says
//! what came of it, anything else is answered in words. So a prompt may hold the prompt of a child, and so on.

mod callbacks; // the session that started one is told
mod canary; // what only servers may know
mod deleting; // a session and all that is below it
mod document; // the registry document's examples, end to end
mod fairness; // places and queues shared by users and tenants
mod limits; // how deep, how many, how much in a day
mod orchestrator; // the seven tools
mod registry; // servers that know the scope
mod replicas; // more than one process
mod scope; // what no model sees
mod starting; // POST /runs
pub mod stopping; // a run and all that it has set going

use serde_json::{Value, json};

use super::support::{
    client::{Client, plain},
    model::{Reply, calls, text, text_of},
    world::{Setup, World},
};

/// An agent that starts others, and one that works.
const LEAD: &str = r#"
metadata: { id: lead, displayName: Lead, description: Leads, defaultLanguage: en }
languages: { en: { systemPrompt: "You lead." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { rolesAttribute: roles } }
mcp:
  servers:
    - name: orchestrator
      transport: streamable-http
      url: ${runner.orchestrator_mcp_url}
      toolAccess: { default: public }
"#;
const WORKER: &str = r#"
metadata: { id: worker, displayName: Worker, description: Works, defaultLanguage: en }
languages: { en: { systemPrompt: "You work." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
paramsSchema:
  topic: { type: string, description: What it is about }
  count: { type: number }
  urgent: { type: boolean }
  more: { type: json }
"#;
const RESEARCHER: &str = r#"
metadata: { id: sprint-researcher, displayName: Researcher, description: Looks things up, defaultLanguage: en }
languages: { en: { systemPrompt: "You look things up." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
paramsSchema: { topic: { type: string, required: true } }
"#;

fn add_packs(setup: &mut Setup) {
    for (id, yaml) in [
        ("lead", LEAD),
        ("worker", WORKER),
        ("sprint-researcher", RESEARCHER),
    ] {
        setup.packs.push((id.to_owned(), yaml.to_owned()));
    }
}

async fn world() -> World {
    world_with(|_| {}).await
}

/// The same in a process that other tests share.
async fn shared_world() -> World {
    let world = World::shared_with("runs", add_packs).await;
    world.model.on(obedient);
    world
}

async fn world_with(change: impl FnOnce(&mut Setup)) -> World {
    let world = World::with(|setup| {
        add_packs(setup);
        change(setup);
    })
    .await;
    world.model.on(obedient);
    world
}

/// Does what the last message says.
fn obedient(request: &Value) -> Option<Reply> {
    let last = request["messages"].as_array().unwrap().last().unwrap();
    let said = text_of(last);
    if last["role"] == "assistant" {
        return None;
    }
    if last["role"] == "tool" {
        return Some(text(format!("It came to: {said}")));
    }
    if said.contains("<agent-callback") {
        return Some(text(format!(
            "I heard of {} that ended.",
            said.matches("<agent-callback").count()
        )));
    }
    match said
        .strip_prefix("do ")
        .and_then(|order| order.split_once(' '))
    {
        Some((tool, arguments)) => {
            let arguments: Value = serde_json::from_str(arguments).expect("the order holds JSON");
            Some(calls([(&*format!("orchestrator__{tool}"), arguments)]))
        }
        None => Some(text(format!("Done: {said}"))),
    }
}

/// An order for the scripted model.
fn order(tool: &str, arguments: &Value) -> String {
    format!("do {tool} {arguments}")
}

/// An order to start an agent and wait for it.
fn start(agent: &str, prompt: &str, mode: &str) -> String {
    order(
        "start_agent_session",
        &json!({ "agent_name": agent, "prompt": prompt, "mode": mode }),
    )
}

/// Runs an agent to its end; what it said.
async fn run(client: &Client, agent: &str, prompt: &str) -> String {
    let ran = run_with(client, json!({ "agent_name": agent, "prompt": prompt })).await;
    ran["result"]
        .as_str()
        .unwrap_or_else(|| panic!("{ran}"))
        .to_owned()
}

async fn run_with(client: &Client, mut body: Value) -> Value {
    body["mode"] = json!("sync");
    client.post("/runs", body).await.expect(200)
}

/// What a tool of the orchestrator answered, out of what the model then said.
fn came_to(said: &str) -> Value {
    let json = said
        .strip_prefix("It came to: ")
        .unwrap_or_else(|| panic!("{said}"));
    serde_json::from_str(json).unwrap_or_else(|_| panic!("{said}"))
}

/// What is said in a session, by everybody.
async fn said_in(client: &Client, session: &str) -> Vec<String> {
    client.messages(session).await.iter().map(plain).collect()
}
