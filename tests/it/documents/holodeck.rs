//! The HoloDeck contract: its schema, transports and six examples.

use std::time::Duration;

use domain::{
    config::Environment,
    pack::{Llm, Provider},
    server::{Endpoint, Remote, ServerSpec},
};

use super::snippet;
use crate::support::packs::{
    checked, child, env, errors, headers, load_files, open, tools, warnings,
};

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
    let root = crate::support::packs::folder_of(&[("agent.yaml", &snippet("holodeck", 8))]);
    let library = packs::PackStore::load(root.path(), &env(&[]), None).unwrap();
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

/// The shape of what the product ships today: no `server`, sections and tools of its own kinds.
const SHIPPED: &str = r#"
name: front_desk
description: Answers and remembers
author: somebody
model:
  provider: azure_openai
  name: gpt-4o
  temperature: 0.3
  max_tokens: 4096
  endpoint: ${AZURE_OPENAI_ENDPOINT}
  api_key: ${AZURE_OPENAI_API_KEY}
  api_version: "2024-10-21"
instructions: { file: instructions/system-prompt.md }
response_format: { type: object, properties: { answer: { type: string } } }
embedding_provider: { provider: ollama, name: nomic-embed-text, endpoint: "${NOT_SET}" }
claude: { permission_mode: manual, allowed_tools: [mcp__memory__read_graph], web_search: true }
tools:
  - { name: handbook, type: vectorstore, description: Looks up, source: data/handbook.md, database: chromadb, top_k: 5 }
  - { name: sections, type: hierarchical_document, description: Looks up, source: data/law.md }
  - { name: add, type: function, description: Adds, file: tools/add.py, function: add }
  - { name: summary, type: prompt, description: Sums up, template: "{{text}}", parameters: { text: { type: string } } }
  - name: memory
    type: mcp
    description: Remembers
    command: npx
    args: ["-y", "@modelcontextprotocol/server-memory"]
    request_timeout: 30
    is_retrieval: true
  - { name: _hub, type: mcp, description: The hub, transport: http, url: "https://hub.example.org/mcp" }
evaluations: { model: { provider: azure_openai, name: judge }, metrics: [{ type: rag, metric_type: faithfulness }] }
test_cases: [{ input: "Hello?", expected_tools: [handbook] }]
execution: { llm_timeout: 60 }
observability: { enabled: true, exporters: { otlp: { endpoint: "http://localhost:4317" } } }
deployment: { registry: { url: ghcr.io } }
"#;

const PROMPT: (&str, &str) = ("instructions/system-prompt.md", "You help.");

fn azure() -> Environment {
    env(&[
        ("AZURE_OPENAI_ENDPOINT", "https://front.openai.azure.com/"),
        ("AZURE_OPENAI_API_KEY", "azure-key-0123456789"),
    ])
}

#[test]
fn an_agent_of_the_shipped_product_loads_and_what_is_foreign_is_named() {
    let files = [("agent.yaml", SHIPPED), PROMPT];
    let pack = load_files(&files, &azure());
    let ids: Vec<_> = pack
        .servers
        .iter()
        .map(|server| server.id.as_str())
        .collect();
    assert_eq!(ids, ["memory", "hub"]);
    assert_eq!(
        child(&pack.servers[0]),
        (
            "npx",
            vec!["-y", "@modelcontextprotocol/server-memory"],
            vec![]
        )
    );
    assert!(open(&pack.servers[0], "create_entities"));
    let system = pack.language(None).system_prompt.as_deref();
    assert_eq!(system, Some("You help."));
    let no_server = "there is no `server`, so the server is called by its `name`";
    let none = |path: &str, name: &str| format!("{path}: {name} has no effect here");
    assert_eq!(
        warnings(&files, &azure()),
        [
            none("author", "`author`"),
            none("model.api_version", "`api_version`"),
            none("response_format", "`response_format`"),
            none("embedding_provider", "`embedding_provider`"),
            none("claude", "`claude`"),
            "claude.allowed_tools: `claude.allowed_tools` limits nothing here: every user may call every tool that is listed".to_owned(),
            none("tools[0]", "the tool \"handbook\" of type \"vectorstore\""),
            none("tools[1]", "the tool \"sections\" of type \"hierarchical_document\""),
            none("tools[2]", "the tool \"add\" of type \"function\""),
            none("tools[3]", "the tool \"summary\" of type \"prompt\""),
            format!("tools[4]: {no_server}"),
            none("tools[4].is_retrieval", "`is_retrieval`"),
            format!("tools[5]: {no_server}"),
            none("evaluations", "`evaluations`"),
            none("test_cases", "`test_cases`"),
            none("execution", "`execution`"),
            none("observability", "`observability`"),
            none("deployment", "`deployment`"),
        ]
    );
}

#[test]
fn what_neither_knows_is_an_error_with_a_suggestion() {
    for (text, error, hint) in [
        (
            "evaluation: {}\n",
            "evaluation: unknown field \"evaluation\"",
            "did you mean \"evaluations\"?",
        ),
        (
            "tools: [{ type: mpc, name: a }]\n",
            "tools[0]: ValidationError: 'type' \"mpc\" is not a type of tool",
            "did you mean \"mcp\"?",
        ),
        (
            "model: { provider: azure-openai, name: m }\n",
            "model.provider: the provider \"azure-openai\" is not known here",
            "did you mean \"azure_openai\"?",
        ),
        (
            "model: { provider: ollama, name: m, endpiont: x }\n",
            "model.endpiont: unknown field \"endpiont\"",
            "did you mean \"endpoint\"?",
        ),
        (
            "model: { provider: azure_openai, name: m }\n",
            "model.endpoint: endpoint is required for azure_openai provider",
            "",
        ),
    ] {
        assert_eq!(errors(&[("agent.yaml", text)], &env(&[])), [error]);
        let report = checked(&[("agent.yaml", text)], &env(&[])).to_string();
        assert!(report.contains(hint), "{report}");
    }
}

/// The model of an agent with this `model`.
fn llm(model: &str, variables: &[(&str, &str)]) -> Llm {
    let text = format!("model: {{ {model} }}\n");
    load_files(&[("agent.yaml", &text)], &env(variables)).llm
}

#[test]
fn each_provider_of_the_product_has_its_endpoint_and_its_key() {
    let of = |llm: Llm| {
        let key = llm.api_key.map(|key| key.expose().to_owned());
        let url = llm.base_url.map(|url| url.to_string());
        (llm.provider, llm.model, url, key)
    };
    let text = |text: &str| Some(text.to_owned());
    let at = |provider, model: &str, url, key| (provider, model.to_owned(), url, key);
    let resource = ("AZURE_OPENAI_ENDPOINT", "https://r.openai.azure.com/");
    let v1 = text("https://r.openai.azure.com/openai/v1");
    assert_eq!(
        of(llm(
            "provider: azure_openai, name: gpt-4o",
            &[resource, ("AZURE_OPENAI_API_KEY", "az")]
        )),
        at(Provider::Openai, "gpt-4o", v1.clone(), text("az"))
    );
    assert_eq!(
        of(llm(
            "provider: azure_openai, name: gpt-4o, deployment_name: mine, endpoint: \"https://r.openai.azure.com\", api_key: k",
            &[]
        )),
        at(Provider::Openai, "mine", v1, text("k"))
    );
    let gateway = "https://gateway.example.org/azure/v1";
    assert_eq!(
        of(llm(
            &format!("provider: azure_openai, name: m, endpoint: \"{gateway}\", api_key: k"),
            &[]
        )),
        at(Provider::Openai, "m", text(gateway), text("k")),
        "an address with a path is taken as it is"
    );
    assert_eq!(
        of(llm(
            "provider: anthropic, name: claude-sonnet-4-6, auth_provider: api_key",
            &[("ANTHROPIC_API_KEY", "ak")]
        )),
        at(Provider::Anthropic, "claude-sonnet-4-6", None, text("ak"))
    );
    assert_eq!(
        of(llm(
            "provider: ollama, name: \"llama3.1:8b\", endpoint: \"http://localhost:11434\", top_p: 0.9",
            &[]
        )),
        at(
            Provider::Ollama,
            "llama3.1:8b",
            text("http://localhost:11434/"),
            None
        )
    );
    assert_eq!(
        of(llm(
            "provider: google, name: g",
            &[("GEMINI_API_KEY", "gk")]
        )),
        at(Provider::Gemini, "g", None, text("gk"))
    );
    assert_eq!(
        of(llm(
            "provider: openai, name: gpt-4o-mini",
            &[
                ("OPENAI_API_KEY", "ok"),
                ("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
            ]
        )),
        at(
            Provider::Openai,
            "gpt-4o-mini",
            text("http://127.0.0.1:9/v1"),
            text("ok")
        )
    );
}
