//! What the documents of holaOS, AOS and HoloDeck promise of a run: their files as they are, real requests, and a model
//! that is scripted.

use serde_json::{Value, json};

use crate::{
    mcp_http::scripted::{Reply, Scripted, Seen, events},
    mcp_product::{connections_of, write_agent},
    support::{
        client::plain,
        model::{calls, results, text, text_of, tool_names},
        world::World,
    },
};

/// A server with these tools, which says what it was asked.
async fn server(tools: &'static [&'static str]) -> Scripted {
    Scripted::modern(move |seen: Seen| async move {
        let tool = |name: &&str| json!({ "name": name, "inputSchema": { "type": "object" } });
        let listed: Vec<Value> = tools.iter().map(tool).collect();
        (seen.method() == "tools/list").then(|| seen.result(json!({ "tools": listed })))
    })
    .await
}

fn header<'s>(seen: &'s Seen, name: &str) -> Option<&'s str> {
    seen.headers.get(name)?.to_str().ok()
}

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

#[tokio::test]
async fn an_aos_skill_calls_its_tool_with_a_bearer_token_and_without_a_model() {
    let search = server(&["web_search"]).await;
    let registry = format!(
        "schema: aos/mcp/v1\nid: web\nservers:\n  - {{ id: search, transport: http, url: \"{}\", auth_ref: SEARCH_TOKEN, tool_allowlist: [web_search] }}\n",
        search.url
    );
    let skill =
        "id: web-search\nname: web-search\nmcp_binding: { server: search, tools: [web_search] }\n";
    let world = World::with(|setup| {
        let files = [
            ("core/mcp/team/web.yaml", registry.as_str()),
            ("core/skills/web-search/skill.yaml", skill),
        ];
        write_agent(setup, "aos", &files);
        setup.env = setup.env.clone().with("SEARCH_TOKEN", "s3arch-0123456789");
    })
    .await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "aos", &[("search", "ready")]).await;
    let chat = ann.open("aos").await;
    ann.say_and_wait(&chat, "/web-search rust").await;
    let said = plain(ann.messages(&chat).await.last().unwrap());
    assert_eq!(said, r#"{"input":"rust"}"#);
    assert!(world.model.requests().is_empty());
    let called = search.requests("tools/call");
    assert_eq!(called.len(), 1);
    assert_eq!(
        header(&called[0], "authorization"),
        Some("Bearer s3arch-0123456789")
    );
}

/// A server with a prompt and a tool.
async fn with_prompt() -> Scripted {
    let answer = |seen: &Seen| -> Option<Reply> {
        Some(match seen.method() {
            "server/discover" => seen.result(json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": {}, "prompts": {} }, "ttlMs": 0, "cacheScope": "private",
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "scripted", "version": "1" } },
            })),
            "prompts/list" => seen.result(json!({ "prompts": [{ "name": "greet" }] })),
            _ => return None,
        })
    };
    Scripted::modern(move |seen: Seen| async move { answer(&seen) }).await
}

#[tokio::test]
async fn load_tools_and_load_prompts_of_holodeck_are_two_switches() {
    let hub = with_prompt().await;
    let tool = |name: &str, switch: &str| {
        format!(
            "  - {{ name: {name}, type: mcp, description: d, transport: http, url: \"{}\", {switch}: false }}\n",
            hub.url
        )
    };
    let agent = format!(
        "name: Hub\ntools:\n{}{}",
        tool("prompts", "load_tools"),
        tool("tools", "load_prompts")
    );
    let world = World::with(|setup| write_agent(setup, "hub", &[("agent.yaml", &agent)])).await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "hub", &[("prompts", "ready"), ("tools", "ready")]).await;
    let prompts = ann.get("/v1/agents/hub/prompts").await.expect(200);
    let of: Vec<_> = prompts["items"].as_array().unwrap().iter().collect();
    assert_eq!(of.len(), 1, "{prompts}");
    assert_eq!(of[0]["server"], "prompts");
    world.model.reply(text("Hello."));
    ann.ask("hub", "hello").await;
    assert_eq!(tool_names(&world.model.last_request()), ["tools__echo"]);
}

#[tokio::test]
async fn sse_read_timeout_of_holodeck_bounds_the_stream_that_answers_a_call() {
    let slow = Scripted::modern(async |seen: Seen| {
        (seen.method() == "tools/call").then(|| events(futures_util::stream::pending()))
    })
    .await;
    let agent = format!(
        "name: Slow\ntools:\n  - {{ name: slow, type: mcp, description: d, server: slow, transport: http, url: \"{}\", sse_read_timeout: 0.1 }}\n",
        slow.url
    );
    let world = World::with(|setup| write_agent(setup, "slow", &[("agent.yaml", &agent)])).await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "slow", &[("slow", "ready")]).await;
    world
        .model
        .reply(calls([("slow__echo", json!({}))]))
        .reply(text("No answer."));
    assert_eq!(ann.ask("slow", "go").await, "No answer.");
    let told = results(&world.model.last_request()).remove(0);
    assert!(told.starts_with("outcome unknown"), "{told}");
    assert_eq!(slow.requests("tools/call").len(), 1);
}
