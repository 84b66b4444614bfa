//! Runs of agents whose servers are in the registry: the document's examples 1 and 3, end to end.

use serde_json::{Value, json};

use super::{came_to, obedient, start};
use crate::{
    registry::{Watched, entry, open_localhost},
    support::{
        has::Has,
        model::{Reply, call, calls, last_user, text},
        world::World,
    },
};

const SCOPED: &str = r#"
metadata: { id: scoped, displayName: Scoped, description: Looks things up, defaultLanguage: en }
languages: { en: { systemPrompt: "You look things up." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
mcpServers:
  docs:
    ref: context-store
    config: { context_id: "${scope.context_id}" }
    toolAccess: { default: public }
"#;
const LEADING: &str = r#"
metadata: { id: leading, displayName: Leading, description: Leads, defaultLanguage: en }
languages: { en: { systemPrompt: "You lead." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
mcpServers:
  orchestrator:
    ref: orchestrator
    config: { run_id: "${runtime.run_id}" }
    toolAccess: { default: public }
"#;

/// Looks up a rate when it is told to, and does else what it is told.
fn asking(request: &Value) -> Option<Reply> {
    let last = request["messages"].as_array()?.last()?;
    let said = crate::support::model::text_of(last);
    if last["role"] == "user" && said == "delegate" {
        let start =
            format!(r#"{{"agent_name":"numbered","prompt":"rate?","params":{{"id":{NUMBER}}}}}"#);
        return Some(text("").and_call(call("orchestrator__start_agent_session", &start)));
    }
    if last["role"] == "user" && said.starts_with("rate?") {
        return Some(calls([(
            "docs__get_exchange_rate",
            json!({ "from": "EUR", "to": "USD" }),
        )]));
    }
    if last["role"] == "tool" && !last.to_string().contains("session_id") {
        return Some(text("Looked up."));
    }
    obedient(request)
}

/// More digits than a double has.
const NUMBER: &str = "12345678901234567890123";

async fn world(store: &Watched) -> World {
    let world = World::with(|setup| {
        open_localhost(setup);
        let numbered = SCOPED
            .replace("id: scoped", "id: numbered")
            .replace("scope.context_id", "params.id");
        for (id, yaml) in [
            ("scoped", SCOPED),
            ("leading", LEADING),
            ("numbered", &numbered),
        ] {
            setup.packs.push((id.to_owned(), yaml.to_owned()));
        }
    })
    .await;
    let admin = world.admin().await;
    let schema = json!({ "context_id": { "type": "string", "required": true } });
    admin
        .post(
            "/mcp-servers",
            entry("context-store", &store.url, schema, json!({})),
        )
        .await
        .expect(201);
    let schema = json!({ "run_id": { "type": "string", "required": true, "internal": true } });
    let orchestrator = entry(
        "orchestrator",
        "${runner.orchestrator_mcp_url}",
        schema,
        json!({}),
    );
    admin.post("/mcp-servers", orchestrator).await.expect(201);
    world.model.on(asking).forbid("sprint-42");
    world
}

#[tokio::test]
async fn the_server_of_a_run_is_told_its_scope_and_the_model_is_not() {
    let store = Watched::start().await;
    let world = world(&store).await;
    let ann = world.user("ann", &[]).await;
    let body = json!({ "agent_name": "scoped", "prompt": "rate?", "scope": { "context_id": "sprint-42" }, "mode": "sync" });
    let ran = ann.post("/runs", body).await;
    assert_eq!(ran.expect(200)["result"], "Looked up.");
    assert!(!ran.text.contains("sprint-42"), "{}", ran.text);
    assert_eq!(store.last("x-context-id").as_deref(), Some("sprint-42"));
}

#[tokio::test]
async fn numbers_that_a_run_is_given_keep_their_digits_for_servers_models_and_runs_below_it() {
    let store = Watched::start().await;
    let world = world(&store).await;
    let ann = world.user("ann", &[]).await;
    let run = async |body: String| {
        let request = ann.request(http::Method::POST, "/runs");
        let request = request
            .header("content-type", "application/json")
            .body(body);
        let ran = ann.send(request).await.expect(200);
        (
            ran["session_id"].as_str().unwrap().to_owned(),
            store.last("x-context-id"),
        )
    };
    let scope = format!(
        r#"{{"agent_name":"scoped","prompt":"rate?","mode":"sync","scope":{{"context_id":{NUMBER}}}}}"#
    );
    assert_eq!(run(scope).await.1.as_deref(), Some(NUMBER));
    let params = r#"{"id":98765432109876543210987,"rate":0.12345678901234567890}"#;
    let (session, told) = run(format!(
        r#"{{"agent_name":"numbered","prompt":"rate?","mode":"sync","params":{params}}}"#
    ))
    .await;
    assert_eq!(told.as_deref(), Some("98765432109876543210987"));
    let asked = last_user(&world.model.last_request());
    let shown = "{\n  \"id\": 98765432109876543210987,\n  \"rate\": 0.12345678901234567890\n}";
    assert!(asked.ends_with(shown), "{asked}");
    run(r#"{"agent_name":"leading","prompt":"delegate","mode":"sync"}"#.to_owned()).await;
    assert_eq!(store.last("x-context-id").as_deref(), Some(NUMBER));
    // A session that goes on has the parameters that it was given, as they were kept.
    let (_, told) = run(format!(
        r#"{{"type":"resume_session","session_id":"{session}","prompt":"rate?","mode":"sync"}}"#
    ))
    .await;
    assert_eq!(told.as_deref(), Some("98765432109876543210987"));
}

#[tokio::test]
async fn a_run_without_a_required_value_is_the_documents_400_and_nothing_is_created() {
    let store = Watched::start().await;
    let world = world(&store).await;
    let ann = world.user("ann", &[]).await;
    let refused = ann
        .post(
            "/runs",
            json!({ "agent_name": "scoped", "prompt": "rate?", "scope": {} }),
        )
        .await;
    let body = refused.expect(400);
    assert!(
        refused
            .text
            .contains("Missing required value: scope.context_id for config key 'context_id'"),
        "{body}"
    );
    // Its clients read `error`, everybody else `detail`.
    assert_eq!(body["error"], body["detail"]);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    let unfit = ann
        .post(
            "/runs",
            json!({ "agent_name": "scoped", "prompt": "x", "scope": [] }),
        )
        .await
        .expect(400);
    unfit.has(json!({ "error": "scope must be an object", "detail": "scope must be an object" }));
    let elsewhere = ann.get("/v1/conversations?limit=0").await.expect(400);
    assert_eq!(elsewhere["error"], json!(null));
    assert_eq!(
        ann.get("/v1/conversations").await.expect(200)["items"],
        json!([])
    );
}

#[tokio::test]
async fn a_child_has_the_scope_of_its_parent_at_a_server_of_the_registry() {
    let store = Watched::start().await;
    let world = world(&store).await;
    let ann = world.user("ann", &[]).await;
    let prompt = start("scoped", "rate?", "sync");
    let body = json!({ "agent_name": "leading", "prompt": prompt, "scope": { "context_id": "sprint-42" }, "mode": "sync" });
    let ran = ann.post("/runs", body).await.expect(200);
    assert_eq!(
        came_to(ran["result"].as_str().unwrap())["result"],
        "Looked up."
    );
    assert_eq!(store.last("x-context-id").as_deref(), Some("sprint-42"));
}
