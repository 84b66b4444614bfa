//! A holaOS workspace.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::sync::Semaphore;

use super::{header, listed, probe, said, server, variables};
use crate::{
    mcp_product::write_agent,
    support::{
        many::connections_of,
        model::{calls, results, text, text_of, tool_names},
        scripted::{Scripted, Seen},
        wait::ended,
        world::World,
    },
};

#[tokio::test]
async fn a_holaos_workspace_narrows_one_server_leaves_the_other_and_reaches_no_third() {
    let docs = server(&["lookup", "search", "purge"]).await;
    let notes = server(&["read", "write"]).await;
    let off = server(&["never"]).await;
    let workspace = format!(
        r#"
mcp_registry:
  allowlist:
    tool_ids: [docs.lookup, docs.search]
  servers:
    docs:
      type: remote
      url: "{}"
      headers: {{ X-Docs-Key: "{{env:DOCS_KEY}}", X-Literal: as-it-stands }}
      timeout_ms: 30000
    notes: {{ type: remote, url: "{}" }}
    off: {{ type: remote, enabled: false, url: "{}" }}
"#,
        docs.url, notes.url, off.url
    );
    let world = World::with(|setup| {
        write_agent(setup, "hola", &[("workspace.yaml", &workspace)]);
        setup.env = setup.env.clone().with("DOCS_KEY", "docs-key-0123456789");
    })
    .await;
    world.model.forbid("docs-key-0123456789");
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "hola", &[("docs", "ready"), ("notes", "ready")]).await;
    world
        .model
        .reply(calls([
            ("docs__purge", json!({})),
            ("docs__lookup", json!({ "q": 1 })),
        ]))
        .reply(text("Looked up."));
    assert_eq!(ann.ask("hola", "look it up").await, "Looked up.");

    let first = &world.model.requests()[0].body;
    let mut names = tool_names(first);
    names.sort();
    assert_eq!(
        names,
        [
            "docs__lookup",
            "docs__search",
            "notes__read",
            "notes__write"
        ]
    );
    let system = text_of(&first["messages"][0]);
    assert!(
        system.contains("docs: lookup, search") && system.contains("notes: read, write"),
        "{system}"
    );
    let told = results(&world.model.last_request());
    assert_eq!(
        told[0],
        "not executed: Tool \"purge\" is not allowlisted for MCP server \"docs\""
    );
    let called = docs.requests("tools/call");
    assert_eq!(called.len(), 1);
    assert_eq!(
        header(&called[0], "x-docs-key"),
        Some("docs-key-0123456789")
    );
    assert_eq!(header(&called[0], "x-literal"), Some("as-it-stands"));
    assert!(off.methods().is_empty(), "it takes no part");
}

/// Two servers of their own kinds beside each other: a call of each is made in one run.
#[tokio::test]
async fn a_local_server_has_its_variables_and_no_more_time_than_its_timeout() {
    let docs = server(&["lookup", "purge"]).await;
    let (python, script) = probe();
    let workspace = format!(
        r#"
mcp_registry:
  allowlist: {{ tool_ids: [docs.lookup] }}
  servers:
    docs: {{ type: remote, url: "{}" }}
    probe:
      type: local
      command: ["{python}", "{script}"]
      environment: {{ PROBE_KEY: "{{env:HOLA_KEY}}", PROBE_PLAIN: as-it-stands }}
    silent: {{ type: local, command: ["{python}", "{script}", stubborn], timeout_ms: 700 }}
"#,
        docs.url
    );
    let world = World::with(|setup| {
        write_agent(setup, "hola", &[("workspace.yaml", &workspace)]);
        setup.env = setup.env.clone().with("HOLA_KEY", "hola-key-0123456789");
    })
    .await;
    world.model.forbid("hola-key-0123456789");
    let begun = domain::clock::instant();
    let ann = world.user("ann", &[]).await;
    let states = [("docs", "ready"), ("probe", "ready"), ("silent", "down")];
    let views = connections_of(&ann, "hola", &states).await;
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "a child has a minute by default"
    );
    let silent = views
        .iter()
        .find(|view| view["server"] == "silent")
        .unwrap();
    assert_eq!(silent["cause"], "timeout", "{silent}");
    world
        .model
        .reply(calls([
            ("probe__environment", json!({})),
            ("docs__lookup", json!({ "q": 1 })),
        ]))
        .reply(text("Both."));
    assert_eq!(ann.ask("hola", "look it up").await, "Both.");
    let told = results(&world.model.last_request());
    assert_eq!(
        variables(&told[0]),
        ["HOME", "PATH", "PROBE_KEY", "PROBE_PLAIN"]
    );
    assert_eq!(told[1], r#"{"q":1}"#);
}

#[tokio::test]
async fn an_edit_counts_from_the_next_run_and_a_call_under_way_ends_normally() {
    let (answers, opens) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let waits = opens.clone();
    let docs = Scripted::modern(move |seen: Seen| {
        let (answers, waits) = (answers.clone(), waits.clone());
        async move {
            if seen.method() == "tools/call" {
                answers.add_permits(1);
                waits.acquire().await.unwrap().forget();
            }
            listed(&seen, &["lookup"])
        }
    })
    .await;
    let workspace = |enabled: bool| {
        let url = &docs.url;
        format!(
            "mcp_registry: {{ servers: {{ docs: {{ type: remote, enabled: {enabled}, url: \"{url}\" }} }} }}\n"
        )
    };
    let world = World::with(|setup| {
        write_agent(setup, "hola", &[("workspace.yaml", &workspace(true))]);
    })
    .await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "hola", &[("docs", "ready")]).await;
    world
        .model
        .reply(calls([("docs__lookup", json!({ "q": 1 }))]))
        .reply(text("Looked up."))
        .reply(text("I have no tool for that."));
    let chat = ann.open("hola").await;
    let run = ann.say(&chat, "look it up").await;
    docs.until("tools/call", 1).await;
    let file = world.config.packs.join("hola/workspace.yaml");
    std::fs::write(file, workspace(false)).unwrap();
    world.app().packs.reload();
    opens.add_permits(1);
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    let read = results(&world.model.last_request());
    assert!(read[0].starts_with(r#"{"q":1}"#), "{read:?}");
    ann.say_and_wait(&chat, "and again").await;
    assert_eq!(tool_names(&world.model.last_request()), [""; 0]);
    let refused = said(&ann, "hola", "/call docs lookup").await;
    assert_eq!(
        refused,
        "not executed: MCP server \"docs\" is not available"
    );
    assert_eq!(docs.requests("tools/call").len(), 1);
}

/// The workspace that the product makes for a new agent names agents, and no server.
#[tokio::test]
async fn a_workspace_without_servers_is_an_agent_that_answers() {
    let workspace = "agents: { main: { model: x } }\nmcp_registry: { allowlist: { tool_ids: [] }, servers: {} }\n";
    let world =
        World::with(|setup| write_agent(setup, "hola", &[("workspace.yaml", workspace)])).await;
    world.model.reply(text("Hello."));
    assert_eq!(
        world.user("ann", &[]).await.ask("hola", "hello").await,
        "Hello."
    );
    let told = text_of(&world.model.last_request()["messages"][0]);
    assert!(told.contains("You have no tools"), "{told}");
}
