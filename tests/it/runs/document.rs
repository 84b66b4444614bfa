//! The registry document's examples 2 to 4 end to end: its entries, capabilities and requests as they are written there
//! (but for the ports), against servers that remember what they were sent.

use serde_json::{Value, json};

use super::{came_to, obedient, order, said_in};
use crate::{
    registry::{
        Watched,
        document::{ATLASSIAN, CONTEXT_STORE, JIRA, NEO4J, ORCHESTRATION, ORCHESTRATOR, RESEARCH},
        open_localhost,
    },
    support::{
        client::Client,
        has::Has,
        model::{Reply, calls, text, text_of, tool_names},
        wait::{ended, eventually},
        world::{Setup, World},
    },
};

/// An agent of the document: its lines, and who may use what it has.
fn agent(setup: &mut Setup, id: &str, lines: &str) {
    let head = format!(
        r#"
metadata: {{ id: {id}, displayName: {id}, description: {id}, defaultLanguage: en }}
languages: {{ en: {{ systemPrompt: "You are {id}." }} }}
llm: {{ provider: openai, model: scripted, baseUrl: "${{MODEL_URL}}", apiKey: model-key-0123456789 }}
"#
    );
    setup
        .packs
        .push((id.to_owned(), format!("{head}{}\n", lines.trim())));
}

fn capability(setup: &Setup, name: &str, document: &str) {
    let folder = setup.config.packs.join("capabilities");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{name}.yaml")), document).unwrap();
}

/// An entry of the document at the address of a server that is there.
async fn define(world: &World, entry: &str, server: Option<&Watched>) {
    let mut entry: Value = serde_json::from_str(entry).unwrap();
    if let Some(server) = server {
        entry["url"] = server.url.clone().into();
    }
    world
        .admin()
        .await
        .post("/mcp-servers", entry)
        .await
        .expect(201);
}

/// Asks its server for a rate, whatever it is asked; started by another it does the same. Else it obeys.
fn looks_up(request: &Value) -> Option<Reply> {
    let last = request["messages"].as_array()?.last()?.clone();
    let offered = request["tools"].as_array().into_iter().flatten();
    let mut names = offered.map(|tool| tool["function"]["name"].as_str().unwrap().to_owned());
    let tool = names.find(|name| name.ends_with("__get_exchange_rate"));
    let said = text_of(&last);
    let orders = said.starts_with("do ") || said.contains("<agent-callback");
    // Behind an order stand the parameters of the run.
    if let Some((order, _)) = said.split_once('\n').filter(|_| said.starts_with("do ")) {
        let (tool, arguments) = order[3..].split_once(' ').unwrap();
        return Some(calls([(
            &*format!("orchestrator__{tool}"),
            serde_json::from_str(arguments).unwrap(),
        )]));
    }
    match (tool, last["role"].as_str()) {
        (Some(tool), Some("user")) if !orders => {
            Some(calls([(&*tool, json!({ "from": "EUR", "to": "USD" }))]))
        }
        (_, Some("tool")) if !last.to_string().contains("session_id") => Some(text("Looked up.")),
        _ => obedient(request),
    }
}

/// The servers that a run with this request would have.
async fn servers_of(client: &Client, request: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(request).unwrap();
    let checked = client.post("/v1/runs/check", body).await.expect(200);
    assert_eq!(checked["not_connected"], json!([]));
    serde_json::from_value(checked["servers"].clone()).unwrap()
}

async fn run(client: &Client, request: &str) -> Value {
    let mut body: Value = serde_json::from_str(request).unwrap();
    body["mode"] = "sync".into();
    client.post("/runs", body).await.expect(200)
}

#[tokio::test]
async fn example_1_the_model_has_the_tools_and_a_guest_of_the_agent_has_none() {
    let store = Watched::start().await;
    let world = World::with(|setup| {
        open_localhost(setup);
        capability(setup, "research-capability", RESEARCH);
        let lines = r#"
"capabilities": ["research-capability"]
"params_schema": {
    "topic": {"type": "string", "required": true}
  }
flows: { authentication: { required: false } }"#;
        agent(setup, "sprint-researcher", lines);
    })
    .await;
    define(&world, CONTEXT_STORE, Some(&store)).await;
    world.model.on(looks_up).forbid("sprint-42");
    let request = r#"{
  "agent_name": "sprint-researcher",
  "params": {"topic": "API design"},
  "scope": {"context_id": "sprint-42"}
}"#;
    let ann = world.user("ann", &[]).await;
    assert_eq!(servers_of(&ann, request).await, ["docs"]);
    assert_eq!(run(&ann, request).await["result"], "Looked up.");
    assert_eq!(store.last("x-context-id").as_deref(), Some("sprint-42"));
    let tools = tool_names(&world.model.requests()[0].body);
    assert!(
        tools.contains(&"docs__get_exchange_rate".to_owned()),
        "{tools:?}"
    );

    run(&world.guest().await, request).await;
    let of_guest = tool_names(&world.model.last_request());
    assert_eq!(of_guest, [""; 0]);
    assert_eq!(store.executions(), 1);
}

#[tokio::test]
async fn example_2_atlassian_is_told_its_key_and_projects_and_the_model_is_not() {
    let jira = Watched::start().await;
    let world = World::with(|setup| {
        open_localhost(setup);
        capability(setup, "jira-access", JIRA);
        let lines = r#"
"capabilities": ["jira-access"]
"params_schema": {
    "task": {"type": "string", "required": true}
  }
"#;
        agent(setup, "project-assistant", lines);
    })
    .await;
    define(&world, ATLASSIAN, Some(&jira)).await;
    world
        .model
        .on(looks_up)
        .forbid("ALPHA")
        .forbid("sk-atlassian");
    let request = r#"{
  "agent_name": "project-assistant",
  "params": {"task": "List open bugs"},
  "scope": {"allowed_projects": "ALPHA,BETA"}
}"#;
    let ann = world.user("ann", &[]).await;
    assert_eq!(servers_of(&ann, request).await, ["jira"]);
    let ran = run(&ann, request).await;
    assert_eq!(ran["result"], "Looked up.");
    assert!(
        world.model.requests()[0]
            .body
            .to_string()
            .contains("List open bugs")
    );
    let told = ["x-api-key", "x-jira-projects"].map(|name| jira.last(name).unwrap());
    assert_eq!(told, ["sk-atlassian-0123456789", "ALPHA,BETA"]);
    assert_eq!(jira.executions(), 1);
    // Optional, and not given: left out, with everything that was sent for this run.
    let none = r#"{"agent_name": "project-assistant", "params": {"task": "List open bugs"}}"#;
    run(&world.user("ann", &[]).await, none).await;
    assert_eq!(
        (jira.all("x-jira-projects").len(), jira.executions()),
        (1, 2)
    );
}

#[tokio::test]
async fn example_4_three_agents_share_a_server_and_see_their_own_part_of_it() {
    let graph = Watched::start().await;
    let world = World::with(|setup| {
        open_localhost(setup);
        for (id, config) in [
            (
                "team-alpha-analyst",
                r#"{"partition": "${scope.team_partition}"}"#,
            ),
            (
                "team-beta-analyst",
                r#"{"partition": "${scope.team_partition}"}"#,
            ),
            ("global-analyst", "{}"),
        ] {
            let kg = format!(r#"{{"ref": "neo4j", "config": {config}}}"#);
            agent(setup, id, &format!(r#""mcpServers": {{"kg": {kg}}}"#));
        }
    })
    .await;
    define(&world, NEO4J, Some(&graph)).await;
    world
        .model
        .on(looks_up)
        .forbid("team-alpha\"")
        .forbid("partition");
    let ann = world.user("ann", &[]).await;
    crate::support::wait::eventually(async || {
        ann.get("/v1/agents/global-analyst/tools")
            .await
            .text
            .contains("get_exchange_rate")
    })
    .await;
    // The document's requests, and a prompt: without one there is nothing to do.
    for (request, parts) in [
        (
            r#"{"agent_name": "team-alpha-analyst", "scope": {"team_partition": "team-alpha"}}"#,
            &["team-alpha"][..],
        ),
        (
            r#"{"agent_name": "team-beta-analyst", "scope": {"team_partition": "team-beta"}}"#,
            &["team-alpha", "team-beta"],
        ),
        (
            r#"{"agent_name": "global-analyst", "scope": {}}"#,
            &["team-alpha", "team-beta"],
        ),
    ] {
        ann.post("/runs", serde_json::from_str(request).unwrap())
            .await
            .expect(400);
        let asked = request.replacen('{', r#"{"prompt": "map", "#, 1);
        assert_eq!(servers_of(&ann, &asked).await, ["kg"], "{request}");
        assert_eq!(run(&ann, &asked).await["result"], "Looked up.", "{request}");
        assert_eq!(graph.all("x-partition"), parts);
    }
    assert_eq!(graph.executions(), 3);
    assert_eq!(
        graph.last("x-partition").as_deref(),
        Some("team-beta"),
        "the third was sent without"
    );
}

/// Example 3: an agent that starts others, and one that looks things up.
async fn researchers(store: &Watched) -> World {
    let world = World::with(|setup| {
        open_localhost(setup);
        capability(setup, "orchestration", ORCHESTRATION);
        capability(setup, "research-capability", RESEARCH);
        let lead = r#"
"capabilities": ["orchestration", "research-capability"]
"params_schema": {
    "research_topic": {"type": "string", "required": true}
  }"#;
        agent(setup, "lead-researcher", lead);
        let detail = r#""capabilities": ["orchestration", "research-capability"]"#;
        agent(setup, "detail-researcher", detail);
    })
    .await;
    define(&world, CONTEXT_STORE, Some(store)).await;
    define(&world, ORCHESTRATOR, None).await;
    world
        .model
        .on(looks_up)
        .forbid("project-123")
        .forbid("wf-789");
    world
}

/// The document's request with an order for its model.
fn request(prompt: &str) -> Value {
    let mut request: Value = serde_json::from_str(
        r#"{
  "agent_name": "lead-researcher",
  "params": {"research_topic": "Authentication patterns"},
  "scope": {"context_id": "project-123", "workflow_id": "wf-789"}
}"#,
    )
    .unwrap();
    // The scripted model obeys what stands first; what the document wants it to know comes with it.
    request["prompt"] = prompt.into();
    request
}

#[tokio::test]
async fn example_3_a_child_has_the_scope_in_every_mode_and_so_has_its_own_child() {
    let store = Watched::start().await;
    let world = researchers(&store).await;
    world.model.on(|_| None);
    let ann = world.user("ann", &[]).await;
    let checked = servers_of(&ann, &request("x").to_string()).await;
    assert_eq!(checked, ["orchestrator", "docs"]);
    let start = |mode: &str, prompt: &str| {
        order(
            "start_agent",
            &json!({ "name": "detail-researcher", "prompt": prompt, "mode": mode }),
        )
    };
    let deep = start("sync", "Research OAuth2");
    let orders = [
        ("sync", "Research OAuth2"),
        ("async_poll", "Research OAuth2"),
        ("async_callback", "x"),
        ("sync", &deep),
    ];
    for (before, (mode, prompt)) in orders.into_iter().enumerate() {
        let begun = ann
            .post("/runs", request(&start(mode, prompt)))
            .await
            .expect(202);
        let lead = ended(&ann, begun["run_id"].as_str().unwrap()).await;
        let said = lead["result"]
            .as_str()
            .unwrap_or_else(|| panic!("{lead}"))
            .to_owned();
        let child = came_to(&said);
        assert_eq!(
            child["status"],
            if mode == "sync" {
                "finished"
            } else {
                "pending"
            },
            "{said}"
        );
        eventually(async || store.executions() == before + 1).await;
        if mode == "async_callback" {
            let session = begun["session_id"].as_str().unwrap();
            eventually(async || {
                said_in(&ann, session).await.last().unwrap() == "I heard of 1 that ended."
            })
            .await;
        }
    }
    assert_eq!(store.all("x-context-id"), ["project-123"]);
    assert_eq!(store.all("x-workflow-id"), [""; 0], "nothing maps it");
}

#[tokio::test]
async fn a_reference_to_nothing_is_refused_before_anything_is_created() {
    let world = World::with(|setup| {
        open_localhost(setup);
        agent(
            setup,
            "lost",
            r#""mcpServers": {"d": {"ref": "zz", "toolAccess": {"default": "public"}}}"#,
        );
    })
    .await;
    let ann = world.user("ann", &[]).await;
    let refused = ann
        .post("/runs", json!({ "agent_name": "lost", "prompt": "x" }))
        .await
        .expect(400);
    let sentence = "Failed to resolve MCP server 'd' (ref: zz): Not found in registry";
    refused["detail"].says(sentence);
    assert_eq!(refused["field"], "mcpServers.d.ref");
    assert_eq!(
        ann.get("/v1/conversations").await.expect(200)["items"],
        json!([])
    );
}

#[tokio::test]
async fn a_value_may_be_a_part_of_a_header() {
    let server = Watched::start().await;
    let world = World::with(|setup| {
        open_localhost(setup);
        let config = r#"{"token": "Bearer ${scope.t}", "run": "${runtime.run_id}"}"#;
        let tool = r#""toolAccess": {"default": "public"}"#;
        agent(
            setup,
            "bearer",
            &format!(r#""mcpServers": {{"d": {{"ref": "guarded", "config": {config}, {tool}}}}}"#),
        );
    })
    .await;
    let entry = r#"{"id": "guarded", "url": "", "config_schema": {
        "token": {"type": "string", "required": true, "header": "Authorization"}, "run": {"type": "string"}}}"#;
    define(&world, entry, Some(&server)).await;
    world.model.on(looks_up);
    let ann = world.user("ann", &[]).await;
    let ran = run(
        &ann,
        r#"{"agent_name": "bearer", "prompt": "x", "scope": {"t": "T-0123456789"}}"#,
    )
    .await;
    assert_eq!(
        server.last("authorization").as_deref(),
        Some("Bearer T-0123456789")
    );
    assert_eq!(server.last("x-run").as_deref(), ran["run_id"].as_str());
}
