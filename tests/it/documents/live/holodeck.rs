//! A HoloDeck agent.

use serde_json::json;

use super::{header, probe, said};
use crate::{
    mcp_product::write_agent,
    support::{
        many::connections_of,
        model::{calls, results, text, tool_names},
        scripted::{Reply, Scripted, Seen, events},
        servers::folder,
        world::World,
    },
};

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

/// An agent with these tools over HTTP, each a name, an address and its other fields.
fn agent(tools: &[(&str, &Scripted, &str)]) -> String {
    let mut agent = "name: Hub\ntools:\n".to_owned();
    for (name, server, more) in tools {
        agent += &format!(
            "  - {{ name: {name}, type: mcp, description: d, server: {name}, transport: http, url: \"{}\", {more} }}\n",
            server.url
        );
    }
    agent
}

#[tokio::test]
async fn timeout_bounds_a_silent_port_and_request_timeout_a_slow_call() {
    let silent = Scripted::start(|_| std::future::pending::<Reply>()).await;
    let slow = Scripted::modern(async |seen: Seen| {
        if seen.method() == "tools/call" {
            std::future::pending::<()>().await;
        }
        None
    })
    .await;
    let tools = [
        ("silent", &silent, "timeout: 0.5"),
        ("slow", &slow, "request_timeout: 1"),
    ];
    let agent = agent(&tools);
    let world = World::with(|setup| write_agent(setup, "hub", &[("agent.yaml", &agent)])).await;
    let begun = domain::clock::instant();
    let ann = world.user("ann", &[]).await;
    let views = connections_of(&ann, "hub", &[("silent", "down"), ("slow", "ready")]).await;
    let took = begun.elapsed();
    assert!(took.as_secs() < 5, "five seconds is the default: {took:?}");
    let view = views
        .iter()
        .find(|view| view["server"] == "silent")
        .unwrap();
    assert_eq!(view["cause"], "timeout", "{view}");
    world
        .model
        .reply(calls([("slow__echo", json!({}))]))
        .reply(text("No answer."));
    assert_eq!(ann.ask("hub", "go").await, "No answer.");
    let told = results(&world.model.last_request()).remove(0);
    assert!(told.starts_with("outcome unknown"), "{told}");
    assert_eq!(slow.requests("tools/call").len(), 1);
}

#[tokio::test]
async fn headers_go_with_every_request_and_a_session_ends_as_terminate_on_close_says() {
    let (ended, kept, default) = tokio::join!(
        Scripted::legacy(async |_| None),
        Scripted::legacy(async |_| None),
        Scripted::legacy(async |_| None),
    );
    let headers =
        "headers: { Authorization: \"Bearer ${HUB_TOKEN}\", X-Request-ID: holodeck-agent }";
    let tools = [
        ("ended", &ended, "terminate_on_close: true"),
        ("kept", &kept, "terminate_on_close: false"),
        ("default", &default, headers),
    ];
    let agent = agent(&tools);
    let world = World::with(|setup| {
        write_agent(setup, "hub", &[("agent.yaml", &agent)]);
        setup.env = setup.env.clone().with("HUB_TOKEN", "hub-token-0123456789");
    })
    .await;
    world.model.forbid("hub-token-0123456789");
    let ann = world.user("ann", &[]).await;
    let ready = ["ended", "kept", "default"].map(|name| (name, "ready"));
    connections_of(&ann, "hub", &ready).await;
    for (name, _) in ready {
        assert_eq!(
            said(&ann, "hub", &format!("/call {name} echo {{\"n\":1}}")).await,
            r#"{"n":1}"#
        );
    }
    world.stop().await;
    let deleted = [&ended, &kept, &default].map(|server| server.requests("DELETE").len());
    assert_eq!(deleted, [1, 0, 1]);
    for method in ["initialize", "tools/list", "tools/call", "DELETE"] {
        let seen = default.requests(method);
        assert!(!seen.is_empty(), "{method}");
        for seen in &seen {
            assert_eq!(
                header(seen, "authorization"),
                Some("Bearer hub-token-0123456789"),
                "{method}"
            );
            assert_eq!(
                header(seen, "x-request-id"),
                Some("holodeck-agent"),
                "{method}"
            );
        }
    }
}

/// What `npm install` in the folder of an agent would have left there.
#[tokio::test]
async fn a_child_of_npx_speaks_its_encoding_and_an_entry_without_a_command_runs_too() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let latin = "name: Latin\ntools:\n  - { name: latin, type: mcp, description: d, server: latin, command: npx, args: [\"-y\", probe], \
                 encoding: latin-1, env: { PYTHONIOENCODING: latin-1 } }\n";
    let legacy = "name: Legacy\ntools:\n  - { name: old, type: mcp, description: d, server: \"@modelcontextprotocol/server-everything\", config: { key: value } }\n";
    let world = World::with(|setup| {
        write_agent(setup, "latin", &[("agent.yaml", latin)]);
        write_agent(setup, "legacy", &[("agent.yaml", legacy)]);
        let installed = setup.config.packs.join("legacy/node_modules");
        symlink(folder().join("node_modules"), installed).unwrap();
        let program = setup.config.packs.join("latin/node_modules/.bin/probe");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        let (python, script) = probe();
        std::fs::write(&program, format!("#!/bin/sh\nexec {python} {script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    })
    .await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "latin", &[("latin", "ready")]).await;
    connections_of(&ann, "legacy", &[("old", "ready")]).await;
    let back = said(&ann, "latin", "/call latin echo {\"said\":\"über ñandú\"}").await;
    let back: serde_json::Value = serde_json::from_str(&back).unwrap();
    assert_eq!(back, json!({ "said": "über ñandú" }));
    let echo = "/call old echo {\"message\":\"npx\"}";
    assert_eq!(said(&ann, "legacy", echo).await, "Echo: npx");
    let environment = said(&ann, "legacy", "/call old get-env").await;
    assert!(environment.contains("\"MCP_CONFIG\""), "{environment}");
}
