//! The HoloDeck contract: its schema, transports and six examples.

use std::time::Duration;

use chatelaine::domain::{
    config::Environment,
    server::{Endpoint, Remote, ServerSpec},
};

use super::snippet;
use crate::packs::{child, env, errors, headers, load_files, open, tools, warnings};

fn variables() -> Environment {
    env(&[
        ("ENV_VAR", "e"),
        ("TOKEN", "t0ken"),
        ("API_TOKEN", "api"),
        ("MY_API_KEY", "mine"),
        ("DB_CONNECTION", "postgres://db"),
        ("GITHUB_TOKEN", "gh"),
        ("DATABASE_URL", "postgres://main"),
        ("CUSTOM_CONFIG", "custom"),
        ("API_KEY", "key"),
        ("CLOUD_API_KEY", "cloud"),
    ])
}

/// The one server of an `agent.yaml`, beside a `.env`.
fn server(text: &str) -> ServerSpec {
    let files = [
        ("agent.yaml", text),
        (".env", "ALLOWED_PATHS=/from-the-file\nOTHER=o\n"),
    ];
    load_files(&files, &variables()).servers.remove(0)
}

fn seconds(server: &ServerSpec) -> (u64, u64, Option<u64>) {
    let timeouts = server.timeouts;
    (
        timeouts.connect.as_secs(),
        timeouts.request.as_secs(),
        timeouts.stream_idle.map(|idle| idle.as_secs()),
    )
}

fn remote(server: &ServerSpec) -> (Remote, &str) {
    let Endpoint::Remote { transport, url, .. } = &server.endpoint else {
        panic!("not remote")
    };
    (*transport, url.as_str())
}

/// It names types in place of values, so it is no agent; every field of it is known.
#[test]
fn the_schema_names_only_fields_that_exist() {
    let text = snippet("holodeck", 1);
    let said = errors(&[("agent.yaml", &text)], &variables());
    assert_eq!(
        said,
        [
            "tools[0].transport: MCPConfigError: Invalid transport 'stdio | sse | websocket | http'. Supported transports: stdio, sse, websocket, http",
            "tools[0].command: MCPConfigError: Invalid command 'npx | uvx | docker'. Supported commands: npx, uvx, docker",
            "tools[0].url: MCPConfigError: 'url' does not go with stdio transport",
            "tools[0].headers: MCPConfigError: 'headers' does not go with stdio transport",
            "tools[0].load_tools: expected true or false",
            "tools[0].load_prompts: expected true or false",
            "tools[0].request_timeout: request_timeout must be a number",
        ]
    );
}

#[test]
fn stdio() {
    let server = server(&snippet("holodeck", 2));
    let (command, args, env) = child(&server);
    assert_eq!(
        (command, args),
        ("npx", vec!["-y", "@modelcontextprotocol/server-filesystem"])
    );
    let config = r#"{"allowed_directories":["/workspace/data"]}"#;
    assert_eq!(
        env,
        [
            ("ALLOWED_PATHS", "/workspace"),
            ("MCP_CONFIG", config),
            ("OTHER", "o")
        ]
    );
    assert_eq!(server.timeouts.request, Duration::from_secs(60));
}

#[test]
fn sse() {
    let server = server(&snippet("holodeck", 3));
    assert_eq!(
        remote(&server),
        (Remote::Sse, "https://mcp.example.com/sse")
    );
    assert_eq!(
        headers(&server),
        [
            ("Authorization", "Bearer api"),
            ("X-Custom-Header", "value")
        ]
    );
    assert_eq!(seconds(&server), (30, 60, Some(120)));
}

#[test]
fn websocket() {
    let server = server(&snippet("holodeck", 4));
    assert_eq!(
        remote(&server),
        (Remote::WebSocket, "wss://mcp.example.com/ws")
    );
    assert_eq!(server.timeouts.request, Duration::from_secs(60));
}

#[test]
fn http() {
    let server = server(&snippet("holodeck", 5));
    assert_eq!(
        remote(&server),
        (Remote::StreamableHttp, "https://mcp.example.com/stream")
    );
    assert_eq!(headers(&server), [("Authorization", "Bearer t0ken")]);
    assert_eq!(seconds(&server), (30, 60, Some(120)));
    assert!(server.terminate_on_close);
    let kept =
        snippet("holodeck", 5).replace("terminate_on_close: true", "terminate_on_close: false");
    assert!(!self::server(&kept).terminate_on_close);
}

/// The fragment in a tool.
#[test]
fn variables_come_from_the_process() {
    let fragment = snippet("holodeck", 6).trim_end().replace('\n', "\n    ");
    let text = format!(
        "tools:\n  - name: a\n    description: d\n    type: mcp\n    server: s\n    command: uvx\n    args: [s]\n    {fragment}\n"
    );
    assert_eq!(
        child(&server(&text)).2,
        [("API_KEY", "mine"), ("DATABASE_URL", "postgres://db")]
    );
    assert_eq!(
        errors(&[("agent.yaml", &text)], &env(&[("DB_CONNECTION", "d")])),
        ["tools[0].env.API_KEY: ConfigError: Environment variable 'MY_API_KEY' not found"]
    );
}

#[test]
fn a_legacy_entry_runs_by_npx_and_is_deprecated() {
    let text = snippet("holodeck", 7);
    let server = server(&text);
    let config = r#"{"key":"value"}"#;
    assert_eq!(
        child(&server),
        (
            "npx",
            vec!["-y", "@modelcontextprotocol/server-memory"],
            vec![("MCP_CONFIG", config)]
        )
    );
    assert_eq!(
        warnings(&[("agent.yaml", &text)], &env(&[])),
        ["tools[0]: an entry without `command` is deprecated; npx is taken from `server`"]
    );
}

#[test]
fn example_1_files() {
    let text = snippet("holodeck", 8);
    let server = load_files(
        &[("agent.yaml", &text)],
        &variables().with("workspaceFolder", "/srv"),
    )
    .servers
    .remove(0);
    let (command, args, env) = child(&server);
    assert_eq!(
        (command, args),
        ("npx", vec!["-y", "@modelcontextprotocol/server-filesystem"])
    );
    assert_eq!(
        env,
        [(
            "MCP_CONFIG",
            r#"{"allowed_directories":["/srv/data","/srv/output"]}"#
        )]
    );
    assert!(open(&server, "read_file"));
}

/// There need be no such variable.
#[test]
fn the_workspace_folder_is_the_folder_of_the_pack() {
    let root = crate::packs::folder_of(&[("agent.yaml", &snippet("holodeck", 8))]);
    let library = chatelaine::packs::PackStore::load(root.path(), &env(&[]), None).unwrap();
    let server = library.snapshot().packs().next().unwrap().servers[0].clone();
    let (_, config) = child(&server).2[0];
    let folder = root.path().join("demo");
    assert!(
        config.contains(&format!("\"{}/data\"", folder.display())),
        "{config}"
    );
}

#[test]
fn example_2_github() {
    let server = server(&snippet("holodeck", 9));
    assert_eq!(
        child(&server).2,
        [
            ("GITHUB_TOKEN", "gh"),
            ("MCP_CONFIG", r#"{"repositories":["owner/repo"]}"#)
        ]
    );
    assert_eq!(tools(&server), None);
}

#[test]
fn example_3_postgres() {
    let server = server(&snippet("holodeck", 10));
    let args = vec!["-y", "@modelcontextprotocol/server-postgres"];
    assert_eq!(
        child(&server),
        ("npx", args, vec![("DATABASE_URL", "postgres://main")])
    );
}

#[test]
fn example_4_python() {
    let server = server(&snippet("holodeck", 11));
    assert_eq!(
        child(&server),
        (
            "uvx",
            vec!["mcp-server-fetch"],
            vec![("CUSTOM_CONFIG", "custom")]
        )
    );
}

#[test]
fn example_5_docker() {
    let server = server(&snippet("holodeck", 12));
    let args = vec!["run", "--rm", "-i", "mcp-server:latest"];
    assert_eq!(child(&server), ("docker", args, vec![("API_KEY", "key")]));
}

#[test]
fn example_6_cloud() {
    let server = server(&snippet("holodeck", 13));
    assert_eq!(
        remote(&server),
        (Remote::Sse, "https://api.example.com/mcp/sse")
    );
    assert_eq!(
        headers(&server),
        [
            ("Authorization", "Bearer cloud"),
            ("X-Request-ID", "holodeck-agent")
        ]
    );
    assert_eq!(seconds(&server), (10, 120, Some(300)));
    assert!(server.load_tools && server.load_prompts);
}
