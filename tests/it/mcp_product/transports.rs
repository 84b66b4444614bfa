//! Every format over every transport that it has, with published servers, from the pack to the answer.

use serde_json::json;

use super::{named, write_agent};
use crate::support::{
    many::connections_of,
    model::{calls, results, text},
    servers::{Server, everything_sse, folder, gateway},
    world::{Setup, World},
};

const NATIVE: &str = r#"
metadata: { id: native, displayName: Native, description: Servers, defaultLanguage: en }
languages: { en: { systemPrompt: Many } }
llm: { provider: none }
mcp:
  servers:
    - { name: events, transport: sse, url: "SSE", toolAccess: { default: public } }
    - { name: socket, transport: websocket, url: "SOCKET", toolAccess: { default: public } }
"#;

const HOLODECK: &str = r#"
name: holodeck
tools:
  - name: events
    description: Over events
    type: mcp
    server: everything
    transport: sse
    url: "SSE"
    headers: { Authorization: "Bearer ${TOKEN}" }
    timeout: 30
    sse_read_timeout: 120
  - name: socket
    description: Over a socket
    type: mcp
    server: everything
    transport: websocket
    url: "SOCKET"
    request_timeout: 60
"#;

fn write(setup: &mut Setup, sse: &Server, socket: &Server) {
    let filled = |text: &str| {
        text.replace("SSE", sse.url.as_str())
            .replace("SOCKET", socket.url.as_str())
    };
    let workspace = filled(
        "mcp_registry:\n  servers:\n    events: { type: remote, url: \"SSE\", timeout_ms: 30000 }\n",
    );
    write_agent(setup, "native", &[("agent-pack.yaml", &filled(NATIVE))]);
    write_agent(setup, "holodeck", &[("agent.yaml", &filled(HOLODECK))]);
    write_agent(setup, "holaos", &[("workspace.yaml", &workspace)]);
    write_agent(
        setup,
        "aos",
        &[(
            "core/mcp/events.yaml",
            &filled("id: events\ntransport: sse\nurl: SSE\n"),
        )],
    );
    setup.env = setup.env.clone().with("TOKEN", "sse-token-0123456789");
}

#[tokio::test]
async fn servers_over_events_and_over_a_socket_are_called_from_every_format_that_names_them() {
    let (sse, socket) = tokio::join!(everything_sse(), gateway());
    let world = World::with(|setup| write(setup, &sse, &socket)).await;
    let ann = world.user("ann", &[]).await;
    for (agent, servers) in [
        ("native", &["events", "socket"][..]),
        ("holodeck", &["events", "socket"]),
        ("holaos", &["events"]),
        ("aos", &["events"]),
    ] {
        connections_of(
            &ann,
            agent,
            &servers
                .iter()
                .map(|server| (*server, "ready"))
                .collect::<Vec<_>>(),
        )
        .await;
        for server in servers {
            let said = ann
                .ask(
                    agent,
                    &format!("/call {server} echo {{\"message\":\"{agent}\"}}"),
                )
                .await;
            assert_eq!(said, format!("Echo: {agent}"), "{server}");
        }
    }
    let chat = ann.open("holodeck").await;
    let mut events = ann.listen(&chat, None).await;
    let both = [
        ("events__echo", json!({"message": "one"})),
        ("socket__echo", json!({"message": "two"})),
    ];
    world.model.reply(calls(both)).reply(text("Both."));
    let run = ann.say(&chat, "say it twice").await;
    let heard = events.until_run_ends(&run).await;
    for (server, transport) in [("events", "sse"), ("socket", "websocket")] {
        let started = named(&heard, "server_started", server).unwrap();
        assert_eq!(started["transport"], transport);
    }
    assert_eq!(
        results(&world.model.last_request()),
        ["Echo: one", "Echo: two"]
    );
}

/// What `npm install` in the folder of the agent would have left there.
#[tokio::test]
async fn an_agent_yaml_starts_a_package_with_npx_and_hands_it_its_configuration() {
    let agent = "tools:\n  - name: files\n    description: d\n    type: mcp\n    server: everything\n    command: npx\n    args: [\"-y\", \"@modelcontextprotocol/server-everything\"]\n    env: { ALLOWED_PATHS: /workspace }\n    config: { list: [1, { deep: true }] }\n";
    let world = World::with(|setup| {
        write_agent(setup, "holodeck", &[("agent.yaml", agent)]);
        let installed = setup.config.packs.join("holodeck/node_modules");
        std::os::unix::fs::symlink(folder().join("node_modules"), installed).unwrap();
    })
    .await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "holodeck", &[("files", "ready")]).await;
    assert_eq!(
        ann.ask("holodeck", "/call files echo {\"message\":\"npx\"}")
            .await,
        "Echo: npx"
    );
    let environment = ann.ask("holodeck", "/call files get-env").await;
    let names = ["\"ALLOWED_PATHS\"", "\"MCP_CONFIG\"", "\"PATH\""];
    assert!(
        names.iter().all(|name| environment.contains(name)),
        "{environment}"
    );
    assert!(
        !environment.contains("DATABASE_URL"),
        "nothing of ours: {environment}"
    );
}
