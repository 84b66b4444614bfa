//! The registry of servers: how a value of a level reaches the server of a run.

use http::Method;
use serde_json::{Value, json};

use crate::{
    registry::{Watched, entry, open_localhost},
    support::{
        client::Client,
        model::{calls, text},
        world::{Setup, World},
    },
};

/// A reader whose capability and agent say something of the entry's configuration, too.
const READER: &str = r#"
metadata: { id: reader, displayName: Reader, description: Reads, defaultLanguage: en }
languages: { en: { systemPrompt: "You read." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
paramsSchema: { topic: { type: string } }
capabilities: [research]
mcpServers:
  docs: { ref: context-store, config: { zone: agent, tier: null, topic: "${params.topic}" } }
"#;

const RESEARCH: &str = r#"{"mcpServers": {"docs": {"ref": "context-store", "config": {
  "context_id": "${scope.context_id}", "zone": "capability", "tier": "capability"
}}}}"#;

fn write_reader(setup: &mut Setup) {
    open_localhost(setup);
    let folder = setup.config.packs.join("capabilities");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("research.yaml"), RESEARCH).unwrap();
    setup.packs.push(("reader".to_owned(), READER.to_owned()));
}

/// An entry with a key of each type, and what the registry says of each.
fn context_store(url: &str) -> Value {
    let schema = json!({
        "context_id": { "type": "string", "required": true },
        "zone": { "type": "string" }, "tier": { "type": "string" }, "topic": { "type": "string" },
        "limit": { "type": "number" }, "deep": { "type": "boolean" }, "flags": { "type": "json" },
        "api_key": { "type": "string", "sensitive": true },
    });
    let defaults = json!({
        "context_id": "default", "zone": "registry", "tier": "registry", "limit": 5, "deep": true,
        "flags": { "a": [1, 2] }, "api_key": "${env.GRANTED}",
    });
    entry("context-store", url, schema, defaults)
}

async fn run(client: &Client, mut body: Value) -> Value {
    (body["prompt"], body["mode"]) = (json!("rate?"), json!("sync"));
    client.post("/runs", body).await.expect(200)
}

#[tokio::test]
async fn the_last_level_wins_and_each_run_brings_its_own_values() {
    let store = Watched::start().await;
    let world = World::with(write_reader).await;
    let admin = world.admin().await;
    let created = admin.post("/mcp-servers", context_store(&store.url));
    created.await.expect(201);
    for _ in 0..2 {
        let pair = json!({ "from": "EUR", "to": "USD" });
        let call = calls([("docs__get_exchange_rate", pair)]);
        world.model.reply(call).reply(text("Looked up."));
    }
    for secret in ["sprint-42", "sprint-43", "granted-1"] {
        world.model.forbid(secret);
    }
    let ann = world.user("ann", &[]).await;
    let scope = json!({ "context_id": "sprint-42" });
    let body = json!({ "agent_name": "reader", "params": { "topic": "rates" }, "scope": scope });
    let ran = run(&ann, body).await;
    assert_eq!(ran["result"], "Looked up.");
    let told = |name: &str| store.last(name);
    for (header, value) in [
        ("x-context-id", "sprint-42"), // the scope, named by the capability
        ("x-zone", "agent"),           // the agent, over the capability, over the registry
        ("x-topic", "rates"),          // a parameter, named by the agent
        ("x-api-key", "granted-1"),    // a variable, named by the registry
        ("x-limit", "5"),
        ("x-deep", "true"),
        ("x-flags", r#"{"a":[1,2]}"#),
    ] {
        assert_eq!(told(header).as_deref(), Some(value), "{header}");
    }
    assert_eq!(store.all("x-tier"), [""; 0], "the agent has taken it away");

    // The scope is no part of the session.
    let resumed = json!({ "type": "resume_session", "session_id": ran["session_id"] });
    let mut without = resumed.clone();
    without["prompt"] = "rate?".into();
    let refused = ann.post("/runs", without).await.expect(400);
    let missing = "Missing required value: scope.context_id for config key 'context_id'";
    assert_eq!(refused["error"], missing);
    let mut other = resumed;
    (other["scope"], other["params"]) = (
        json!({ "context_id": "sprint-43" }),
        json!({ "topic": "more" }),
    );
    assert_eq!(run(&ann, other).await["result"], "Looked up.");
    assert_eq!(told("x-context-id").as_deref(), Some("sprint-43"));
    assert_eq!(told("x-topic").as_deref(), Some("more"));
    assert_eq!(store.executions(), 2);
}

#[tokio::test]
async fn what_a_reader_of_an_entry_gets_may_be_written_back() {
    let world = World::with(write_reader).await;
    let admin = world.admin().await;
    let mut written = context_store("https://store.example.org/mcp");
    written["default_config"]["api_key"] = "sk-literal-0123456789".into();
    admin.post("/mcp-servers", written).await.expect(201);
    let read = async || admin.get("/mcp-servers/context-store").await.expect(200);
    let first = read().await;
    assert!(
        first["updated_at"].is_string() && !first.to_string().contains("sk-literal"),
        "{first}"
    );
    let put = admin.request(Method::PUT, "/mcp-servers/context-store");
    admin.send(put.json(&first)).await.expect(200);
    let mut second = read().await;
    second["updated_at"] = first["updated_at"].clone();
    assert_eq!(second, first);
}
