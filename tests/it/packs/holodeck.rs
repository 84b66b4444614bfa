//! `agent.yaml` of HoloDeck: statements D1 to D10 of the acceptance list.

use std::{fs, time::Duration};

use domain::{
    config::Environment,
    pack::{Pack, Provider},
    server::{Endpoint, ServerSpec},
};

use crate::support::packs::{checked, child, env, errors, folder_of, load_files, tools, warnings};

fn variables() -> Environment {
    env(&[
        ("VAR", "v"),
        ("URL", "https://x.example.org"),
        ("QUOTE", "a\"b"),
    ])
}

/// An agent with one tool, from the lines below its `type`.
fn agent(lines: &str) -> String {
    let lines = lines.trim().replace('\n', "\n    ");
    format!("tools:\n  - type: mcp\n    {lines}\n")
}

const CHILD: &str = "name: a\ndescription: d\nserver: s\ncommand: uvx\nargs: [s]\n";
const HTTP: &str =
    "name: a\ndescription: d\nserver: s\ntransport: http\nurl: https://x.example.org/mcp\n";

fn server(lines: &str) -> ServerSpec {
    load_files(&[("agent.yaml", &agent(lines))], &variables())
        .servers
        .remove(0)
}

fn said(lines: &str) -> Vec<String> {
    let found = errors(&[("agent.yaml", &agent(lines))], &variables());
    found
        .into_iter()
        .map(|line| {
            line.trim_start_matches("tools[0]")
                .trim_start_matches('.')
                .to_owned()
        })
        .collect()
}

fn without(lines: &str, field: &str) -> String {
    lines
        .split_inclusive('\n')
        .filter(|line| !line.starts_with(field))
        .collect()
}

#[test]
fn d1_to_d4_the_sentences_of_the_contract() {
    let identifier = "server: ValidationError: 'server' must be a non-empty identifier";
    let commands = |word: &str| {
        format!(
            "command: MCPConfigError: Invalid command '{word}'. Supported commands: npx, uvx, docker"
        )
    };
    let required =
        |kind: &str| format!("url: MCPConfigError: 'url' is required for {kind} transport");
    let https =
        "url: MCPConfigError: 'url' must use https:// (or http:// for localhost)".to_owned();
    let with = |lines: &str, from: &str, to: &str| lines.replace(from, to);
    let remote = |kind: &str, url: &str| {
        HTTP.replace("http\n", &format!("{kind}\n"))
            .replace("https://x.example.org/mcp", url)
    };
    let cases = [
        (
            without(CHILD, "name"),
            "name: ValidationError: 'name' is required".to_owned(),
        ),
        (
            without(CHILD, "description"),
            "description: ValidationError: 'description' is required".to_owned(),
        ),
        (with(CHILD, "server: s", "server:"), identifier.to_owned()),
        (
            without(&without(CHILD, "server"), "command"),
            identifier.to_owned(),
        ),
        (
            with(CHILD, "server: s", "server: \" \""),
            identifier.to_owned(),
        ),
        (
            without(CHILD, "command"),
            "command: MCPConfigError: 'command' is required for stdio transport".to_owned(),
        ),
        (with(CHILD, "uvx", "bash"), commands("bash")),
        (with(CHILD, "uvx", "NPX"), commands("NPX")),
        (with(CHILD, "uvx", "node"), commands("node")),
        (with(CHILD, "uvx", "/usr/bin/npx"), commands("/usr/bin/npx")),
        (with(CHILD, "uvx", "5"), commands("5")),
        (with(CHILD, "uvx", "[npx]"), commands("a list")),
        (without(&remote("sse", "x"), "url"), required("sse")),
        (
            without(&remote("websocket", "x"), "url"),
            required("websocket"),
        ),
        (without(HTTP, "url"), required("http")),
        (remote("http", "http://x.example.org"), https.clone()),
        (
            remote("sse", "http://localhost.example.org/sse"),
            https.clone(),
        ),
        (remote("http", "ftp://x.example.org"), https.clone()),
        (remote("http", "nowhere"), https),
        (
            remote("websocket", "https://x.example.org"),
            "url: MCPConfigError: 'url' must use wss:// or ws://".to_owned(),
        ),
    ];
    for (lines, expected) in cases {
        assert_eq!(said(&lines)[0], expected, "{lines}");
    }
    for url in [
        "http://localhost:9000/mcp",
        "http://127.0.0.1/mcp",
        "http://[::1]:1/mcp",
        "https://x.example.org",
    ] {
        assert_eq!(said(&remote("http", url)), [""; 0], "{url}");
    }
    assert_eq!(said(&remote("websocket", "ws://x.example.org")), [""; 0]);
}

#[test]
fn a_report_names_file_and_line_around_the_sentence() {
    let report = checked(
        &[("agent.yaml", &agent(&CHILD.replace("uvx", "bash")))],
        &env(&[]),
    );
    insta::assert_snapshot!(report, @r"
    packs/demo/agent.yaml:6:14: error: tools[0].command: MCPConfigError: Invalid command 'bash'. Supported commands: npx, uvx, docker
      6 |     command: bash
        |              ^
    1 pack: 1 error, 0 warnings
    ");
}

#[test]
fn d5_variables_are_replaced_in_every_text_and_must_be_set() {
    let server = server(
        "name: a\ndescription: d\nserver: s\ncommand: uvx\nargs: [\"x-${VAR}\"]\nenv: { A: \"Bearer ${VAR}\" }\n",
    );
    assert_eq!(
        child(&server),
        ("uvx", vec!["x-v"], vec![("A", "Bearer v")])
    );
    let not_found = "ConfigError: Environment variable 'NOT_SET' not found";
    for (lines, path) in [
        (format!("{CHILD}env: {{ A: \"${{NOT_SET}}\" }}"), "env.A"),
        (
            format!("{HTTP}headers: {{ A: \"Bearer ${{NOT_SET}}\" }}"),
            "headers.A",
        ),
        (HTTP.replace("https://x.example.org", "${NOT_SET}"), "url"),
        (
            format!("{CHILD}config: {{ a: [{{ b: \"${{NOT_SET}}\" }}] }}"),
            "config.a[0].b",
        ),
    ] {
        assert_eq!(said(&lines), [format!("{path}: {not_found}")], "{lines}");
    }
    assert_eq!(
        said(&format!("{CHILD}env: {{ A: \"{{env:VAR}}\" }}")),
        ["env.A: `{env:VAR}` is not replaced in this format"]
    );
    assert_eq!(
        self::server(&HTTP.replace("https://x.example.org", "${URL}"))
            .url()
            .unwrap()
            .path(),
        "/mcp"
    );
}

#[test]
fn d6_an_env_file_stays_in_the_folder_and_env_wins() {
    let with = |file: &str| agent(&format!("{CHILD}env: {{ A: own }}\nenvFile: {file}\n"));
    let pack = load_files(
        &[
            ("agent.yaml", &with("vars/x.env")),
            ("vars/x.env", "A=file\nB=file\n"),
        ],
        &env(&[("B", "process")]),
    );
    assert_eq!(child(&pack.servers[0]).2, [("A", "own"), ("B", "file")]);
    assert!(
        errors(&[("agent.yaml", &with("../x.env"))], &env(&[]))[0]
            .contains("leads out of the folder of the pack")
    );
    let spelled = with("x.env").replace("envFile", "env_file");
    assert_eq!(
        child(&load_files(&[("agent.yaml", &spelled), ("x.env", "C=1\n")], &env(&[])).servers[0])
            .2
            .len(),
        2
    );
}

#[test]
fn a_child_is_in_the_folder_of_its_agent() {
    let Endpoint::Stdio { cwd, .. } = server(CHILD).endpoint else {
        panic!("not a child")
    };
    assert!(
        cwd.as_ref().is_some_and(|cwd| cwd.ends_with("demo/.")),
        "{cwd:?}"
    );
}

#[test]
fn d7_timeouts_are_seconds_and_have_a_default() {
    let waits = |lines: &str| {
        let timeouts = server(lines).timeouts;
        (
            timeouts.connect.as_secs_f64(),
            timeouts.request.as_secs_f64(),
            timeouts.stream_idle,
        )
    };
    assert_eq!(waits(CHILD), (5.0, 60.0, None));
    let given = format!("{HTTP}timeout: 2.5\nsse_read_timeout: 300\nrequest_timeout: 7\n");
    assert_eq!(waits(&given), (2.5, 7.0, Some(Duration::from_secs(300))));
    for wrong in ["0", "-1"] {
        let found = said(&format!("{CHILD}request_timeout: {wrong}\n"));
        assert_eq!(found, ["request_timeout: request_timeout must be positive"]);
    }
    assert_eq!(
        said(&format!("{CHILD}request_timeout: 1.5\n")),
        ["request_timeout: request_timeout must be an integer"]
    );
    let latin = server(&format!("{CHILD}encoding: latin-1\n"));
    let Endpoint::Stdio { encoding, .. } = latin.endpoint else {
        panic!("not a child")
    };
    assert_eq!(encoding.as_deref(), Some("latin-1"));
    assert!(!server(&format!("{HTTP}terminate_on_close: false\n")).terminate_on_close);
}

#[test]
fn d8_config_reaches_the_server_as_json_with_its_structure() {
    let lines = format!(
        "{CHILD}config: {{ list: [1, true, \"${{QUOTE}}\"], nested: {{ a: {{ b: ~ }} }}, text: \"5\" }}\n"
    );
    let expected = r#"{"list":[1,true,"a\"b"],"nested":{"a":{"b":null}},"text":"5"}"#;
    assert_eq!(child(&server(&lines)).2, [("MCP_CONFIG", expected)]);
    let narrowed = server(&format!(
        "{CHILD}config: {{ allowed_tools: [read, list] }}\n"
    ));
    assert_eq!(tools(&narrowed), Some(vec!["read", "list"]));
    let http = agent(&format!("{HTTP}config: {{ a: b }}\n"));
    assert_eq!(
        warnings(&[("agent.yaml", &http)], &env(&[])),
        ["tools[0].config: `config` has no effect on http"]
    );
}

#[test]
fn d9_tools_and_prompts_are_discovered_unless_not_wanted() {
    let loads = |lines: &str| (server(lines).load_tools, server(lines).load_prompts);
    assert_eq!(loads(CHILD), (true, true));
    assert_eq!(loads(&format!("{CHILD}load_tools: false\n")), (false, true));
    assert_eq!(
        loads(&format!("{CHILD}load_prompts: false\n")),
        (true, false)
    );
}

#[test]
fn d10_only_the_name_of_a_package_is_taken_for_a_command() {
    let legacy = "name: a\nserver: \"@scope/name@1.2\"\nconfig: { a: b }\n";
    assert_eq!(child(&server(legacy)).1, ["-y", "@scope/name@1.2"]);
    let required = "command: MCPConfigError: 'command' is required for stdio transport";
    for label in ["plain", "@scope", "@scope/a b", "@/x", "./local"] {
        let lines = legacy.replace("@scope/name@1.2", label) + "description: d\n";
        assert_eq!(said(&lines), [required], "{label}");
    }
    assert_eq!(
        said(&format!("{legacy}transport: stdio\ndescription: d\n")),
        [required]
    );
}

fn whole(text: &str) -> Pack {
    let keys = env(&[
        ("OPENAI_API_KEY", "sk"),
        ("ANTHROPIC_API_KEY", "ak"),
        ("WHO", "Ada"),
    ]);
    load_files(
        &[
            ("agent.yaml", text),
            ("prompts/system.md", "Be ${brief}.\nAlways.\n"),
        ],
        &keys,
    )
}

#[test]
fn the_agent_has_a_name_a_model_and_instructions() {
    let pack = whole(
        "name: Research\ndescription: Finds things for ${WHO}\nmodel: { provider: anthropic, name: m, temperature: 0.5, max_tokens: 100 }\ninstructions: { inline: \"Help ${WHO}\" }\n",
    );
    assert_eq!(
        (pack.id().as_str(), pack.metadata.display_name.as_str()),
        ("demo", "Research")
    );
    assert_eq!(pack.metadata.description, "Finds things for Ada");
    assert_eq!(
        pack.language(Some("fr")).system_prompt.as_deref(),
        Some("Help Ada")
    );
    let llm = pack.llm;
    assert_eq!(
        (
            llm.provider,
            llm.model.as_str(),
            llm.temperature,
            llm.max_tokens
        ),
        (Provider::Anthropic, "m", Some(0.5), Some(100))
    );
    assert_eq!(llm.api_key.unwrap().expose(), "ak");
    let filed = whole("instructions: { file: prompts/system.md }\n");
    assert_eq!(
        filed.language(None).system_prompt.as_deref(),
        Some("Be ${brief}.\nAlways.\n")
    );
    assert!(
        errors(
            &[("agent.yaml", "instructions: { file: ../x }\n")],
            &env(&[])
        )[0]
        .contains("leads out of the folder")
    );
    assert!(
        errors(
            &[("agent.yaml", "model: { provider: antropic, name: m }\n")],
            &env(&[])
        )[0]
        .contains("is not known here")
    );
}

#[test]
fn what_has_no_effect_is_said() {
    let text = "evaluations: []\ntools: [{ type: vectorstore, name: v }]\n";
    assert_eq!(
        warnings(&[("agent.yaml", text)], &env(&[])),
        [
            "evaluations: `evaluations` has no effect here",
            "tools[0]: the tool \"v\" of type \"vectorstore\" has no effect here"
        ]
    );
    let own = "is_retrieval: true\ndefer_loading: false\nregistry_name: io.github.a/b\n";
    assert_eq!(
        warnings(
            &[("agent.yaml", &agent(&format!("{CHILD}{own}")))],
            &env(&[])
        ),
        ["is_retrieval", "defer_loading", "registry_name"]
            .map(|name| format!("tools[0].{name}: `{name}` has no effect here"))
    );
    assert_eq!(
        said(&format!("{CHILD}load_tool: false\n")),
        ["load_tool: unknown field \"load_tool\""]
    );
}

/// The file of the instructions is part of the pack.
#[test]
fn changed_instructions_are_a_new_version() {
    let root = folder_of(&[
        ("agent.yaml", "instructions: { file: p.md }\n"),
        ("p.md", "old"),
    ]);
    let store = packs::PackStore::load(root.path(), &env(&[]), None).unwrap();
    let before = store.snapshot().packs().next().unwrap().version.clone();
    fs::write(root.path().join("demo/p.md"), "new").unwrap();
    assert_eq!(store.reload().changed.len(), 1);
    let after = store.snapshot().packs().next().unwrap().clone();
    assert_ne!(before, after.version);
    assert_eq!(after.language(None).system_prompt.as_deref(), Some("new"));
}

#[test]
fn d6_an_env_file_of_another_editor_is_read_like_any() {
    let agent = agent(&format!("{CHILD}envFile: x.env\n"));
    let file = (
        "x.env",
        "\u{feff}A=1\r\nexport B=\"two words\"\r\n# no\r\nC='a $X'\r\n",
    );
    let pack = load_files(&[("agent.yaml", &agent), file], &variables());
    assert_eq!(
        child(&pack.servers[0]).2,
        [("A", "1"), ("B", "two words"), ("C", "a $X")]
    );
}
