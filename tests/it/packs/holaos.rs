//! `workspace.yaml` of holaOS as its document describes it.

use std::time::Duration;

use domain::{
    config::Environment,
    pack::Pack,
    server::{Endpoint, Remote},
};

use crate::support::packs::{
    checked, child, env, errors, headers, load_files, open, tools, warnings,
};

fn variables() -> Environment {
    env(&[("TOK", "t0ken"), ("EMPTY", "")])
}

fn pack(workspace: &str) -> Pack {
    load_files(&[("workspace.yaml", workspace)], &variables())
}

fn said(workspace: &str) -> Vec<String> {
    errors(&[("workspace.yaml", workspace)], &variables())
}

const GMAIL: &str = "gmail: { type: remote, url: \"https://gmail.example.org/mcp\" }";
const CONTEXT7: &str = "context7: { type: remote, url: \"https://mcp.context7.com/mcp\" }";

/// A registry with these servers, one a line, and this allowlist.
fn registry(servers: &[&str], allowlist: &str) -> String {
    let servers: String = servers
        .iter()
        .flat_map(|server| ["    ", server, "\n"])
        .collect();
    format!("mcp_registry:\n  allowlist: {{ {allowlist} }}\n  servers:\n{servers}")
}

/// The errors about one server, below its path.
fn about(fields: &str) -> Vec<String> {
    let said = said(&registry(&[&format!("a: {{ {fields} }}")], ""));
    said.into_iter()
        .map(|line| {
            line.trim_start_matches("mcp_registry.servers.a")
                .trim_start_matches('.')
                .to_owned()
        })
        .collect()
}

#[test]
fn h1_to_h3_a_registry_must_be_there() {
    let missing =
        "mcp_registry: workspace_mcp_registry_missing: missing object field 'mcp_registry'";
    for text in [
        "name: x",
        "mcp_registry:",
        "mcp_registry: []",
        "mcp_registry: text",
    ] {
        assert_eq!(said(text), [missing], "{text}");
    }
    for text in ["", "# nothing", "[]"] {
        assert_eq!(
            said(text)[0].trim_start_matches("mcp_registry"),
            &missing["mcp_registry".len()..],
            "{text}"
        );
    }
    let servers =
        "mcp_registry.servers: workspace_mcp_registry_missing: missing object field 'servers'";
    assert_eq!(said("mcp_registry: {}"), [servers]);
    assert!(pack("mcp_registry: { servers: {} }").servers.is_empty());
    assert_eq!(
        said("tool_registry: { a: b }\nmcp_registry: { servers: {} }"),
        [
            "tool_registry: workspace_tool_registry_unsupported: tool_registry is no longer supported; use mcp_registry"
        ]
    );
}

#[test]
fn h4_to_h8_the_fields_of_a_server_are_checked() {
    let command = "command: expected non-empty list command";
    let url = "url: remote server requires non-empty string field 'url'";
    let integer = "timeout_ms: timeout_ms must be an integer when provided";
    let positive = "timeout_ms: timeout_ms must be greater than 0";
    for (fields, expected) in [
        (
            "type: http, url: x",
            "type: workspace_mcp_server_unknown: server type must be 'local' or 'remote'",
        ),
        (
            "url: x",
            "type: workspace_mcp_server_unknown: server type must be 'local' or 'remote'",
        ),
        ("type: remote", url),
        ("type: remote, url: \"\"", url),
        ("type: remote, url: 5", url),
        ("type: local, command: npx server", command),
        ("type: local", command),
        (
            "type: local, command: []",
            "command: command list must not be empty",
        ),
        (
            "type: local, command: [npx, \" \"]",
            "command[1]: command tokens must be non-empty strings",
        ),
        (
            "type: local, command: [npx, 5]",
            "command[1]: command tokens must be non-empty strings",
        ),
        ("type: local, command: [x], timeout_ms: fast", integer),
        ("type: local, command: [x], timeout_ms: 1.5", integer),
        ("type: local, command: [x], timeout_ms: 0", positive),
        ("type: local, command: [x], timeout_ms: -5", positive),
        (
            "type: local, command: [x], environment: { PORT: 8080 }",
            "environment.PORT: mapping values must be strings",
        ),
        (
            "type: remote, url: \"https://x\", headers: { A: [b] }",
            "headers.A: mapping values must be strings",
        ),
        (
            "type: local, command: [x], enabled: \"yes\"",
            "enabled: enabled must be true or false when provided",
        ),
    ] {
        assert_eq!(about(fields), [expected], "{fields}");
    }
}

#[test]
fn h7_a_timeout_is_in_milliseconds() {
    for (server, connect, start, request) in [
        ("type: local, command: [x]", 5_000, None, 10_000),
        (
            "type: local, command: [x], timeout_ms: 30000",
            30_000,
            Some(30_000),
            30_000,
        ),
        (
            "type: local, command: [x], timeout_ms: 250",
            250,
            Some(250),
            250,
        ),
        (
            "type: remote, url: \"https://x.example.org\"",
            10_000,
            None,
            10_000,
        ),
    ] {
        let pack = pack(&registry(&[&format!("a: {{ {server} }}")], ""));
        let timeouts = pack.servers[0].timeouts;
        let expected = (
            Duration::from_millis(connect),
            start.map(Duration::from_millis),
            Duration::from_millis(request),
        );
        assert_eq!(
            (timeouts.connect, timeouts.start, timeouts.request),
            expected,
            "{server}"
        );
    }
}

#[test]
fn h9_a_server_that_is_not_enabled_takes_no_part() {
    let off = "off: { type: remote, url: \"https://x.example.org\", enabled: false, headers: { K: \"{env:NOT_SET}\" } }";
    let on = "on: { type: remote, url: \"https://x.example.org\", enabled: true }";
    let pack = pack(&registry(&[off, on, GMAIL], ""));
    let ids: Vec<_> = pack
        .servers
        .iter()
        .map(|server| server.id.as_str())
        .collect();
    assert_eq!(ids, ["on", "gmail"]);
}

#[test]
fn h10_two_servers_with_one_id_are_invalid_yaml() {
    assert_eq!(
        said(&registry(&[GMAIL, GMAIL], "")),
        [
            "mcp_registry.servers: workspace_config_invalid_yaml: invalid YAML: duplicated mapping key \"gmail\""
        ]
    );
    assert!(
        said("mcp_registry: [")[0].starts_with(": workspace_config_invalid_yaml: invalid YAML: ")
    );
}

fn header(value: &str) -> Result<String, Vec<String>> {
    let server = format!(
        "a: {{ type: remote, url: \"https://x.example.org\", headers: {{ KEY: {value} }} }}"
    );
    let text = registry(&[&server], "");
    let found = said(&text);
    if found.is_empty() {
        Ok(headers(&pack(&text).servers[0])[0].1.to_owned())
    } else {
        Err(found)
    }
}

/// Partial references, and the table of placeholders.
#[test]
fn placeholders_resolve_or_are_refused() {
    for (value, expected) in [
        ("ctx7sk-live", "ctx7sk-live"),
        ("\"{env:TOK}\"", "t0ken"),
        ("\"  {env:TOK} \"", "t0ken"),
        ("\"{env:EMPTY}\"", ""),
        ("\"Bearer {env:TOK}\"", "Bearer t0ken"),
        ("\"{env:TOK}x\"", "t0kenx"),
        ("\"a{env:TOK}{env:TOK}\"", "at0kent0ken"),
        ("\"{ENV:TOK}\"", "{ENV:TOK}"),
        ("\"{other:TOK}\"", "{other:TOK}"),
        ("\"$5 ${} {\"", "$5 ${} {"),
    ] {
        assert_eq!(header(value).as_deref(), Ok(expected), "{value}");
    }
    let path = "mcp_registry.servers.a.headers.KEY: ";
    let invalid = "invalid MCP env placeholder '{env:…}' for 'KEY'; use '{env:ENV_VAR_NAME}' or provide a literal value";
    for value in [
        "{env:ctx7sk-...}",
        "{env:}",
        "{env: TOK}",
        "{env:1X}",
        "{env:A-B}",
        "{env:a}{env:b}",
        "{env:TOK",
        "x{env:A-B}",
    ] {
        assert_eq!(
            header(&format!("\"{value}\"")),
            Err(vec![format!("{path}{invalid}")]),
            "{value}"
        );
    }
    for value in [
        "{ENV:TOK}",
        "${TOK:-x}",
        "Bearer ${TOK:-x}",
        "{env.TOK}",
        "{env:TOK} ${A-b} x",
    ] {
        let server = format!(
            "a: {{ type: remote, url: \"https://x.example.org\", headers: {{ KEY: \"{value}\" }} }}"
        );
        let text = registry(&[&server], "");
        let told = warnings(&[("workspace.yaml", &text)], &env(&[("TOK", "t0ken")]));
        assert_eq!(told, [format!("{path}is sent as it stands")], "{value}");
    }
    let required = "environment variable 'NOT_SET' is required by MCP config for 'KEY'";
    assert_eq!(
        header("\"{env:NOT_SET}\""),
        Err(vec![format!("{path}{required}")])
    );
    assert_eq!(
        header("\"${TOK}\""),
        Err(vec![format!(
            "{path}`${{TOK}}` is not replaced in this format"
        )])
    );
}

#[test]
fn variables_of_a_child_are_resolved_and_its_command_is_not() {
    let server = "a: { type: local, command: [npx, \"-y\", \"pkg@${X}\"], environment: { KEY: \"{env:TOK}\", PLAIN: \"v\" } }";
    let pack = pack(&registry(&[server], ""));
    assert_eq!(
        child(&pack.servers[0]),
        (
            "npx",
            vec!["-y", "pkg@${X}"],
            vec![("KEY", "t0ken"), ("PLAIN", "v")]
        )
    );
    let Endpoint::Stdio { cwd, .. } = &pack.servers[0].endpoint else {
        panic!("not a child")
    };
    assert!(cwd.as_ref().unwrap().ends_with("demo"), "{cwd:?}");
}

#[test]
fn a_program_of_the_workspace_is_found_in_its_folder() {
    let pack = pack(&registry(
        &["a: { type: local, command: [./bin/server] }"],
        "",
    ));
    let (command, ..) = child(&pack.servers[0]);
    assert!(
        command.starts_with('/') && command.ends_with("/demo/./bin/server"),
        "{command}"
    );
}

#[test]
fn an_address_that_ends_with_sse_is_of_that_transport() {
    for (url, expected) in [
        ("https://x.example.org/mcp/sse", Remote::Sse),
        ("https://x.example.org/sse?a=b", Remote::Sse),
        ("https://x.example.org/sse/mcp", Remote::StreamableHttp),
    ] {
        let pack = pack(&registry(
            &[&format!("a: {{ type: remote, url: \"{url}\" }}")],
            "",
        ));
        let Endpoint::Remote { transport, .. } = pack.servers[0].endpoint else {
            panic!("not remote")
        };
        assert_eq!(transport, expected, "{url}");
    }
}

/// Who is named is narrowed, others stay open, and nobody is told that there is nothing.
#[test]
fn an_allowlist_narrows_the_servers_that_it_names() {
    for list in ["", "tool_ids:", "tool_ids: []"] {
        let pack = pack(&registry(&[GMAIL, CONTEXT7], list));
        assert_eq!(
            pack.servers.iter().map(tools).collect::<Vec<_>>(),
            [None, None],
            "{list}"
        );
        assert!(pack.servers.iter().all(|server| open(server, "anything")));
        assert!(pack.language(None).system_prompt.is_none());
    }
    let pack = pack(&registry(
        &[GMAIL, CONTEXT7],
        "tool_ids: [gmail.gmail_search]",
    ));
    assert_eq!(
        pack.servers.iter().map(tools).collect::<Vec<_>>(),
        [Some(vec!["gmail_search"]), None]
    );
    assert!(open(&pack.servers[0], "gmail_search") && !open(&pack.servers[0], "gmail_send"));
    assert!(open(&pack.servers[1], "anything"));
}

#[test]
fn h15_to_h17_the_ids_of_tools_are_checked() {
    let off = "off: { type: remote, url: \"https://x.example.org\", enabled: false }";
    let at = "mcp_registry.allowlist.tool_ids";
    for (ids, expected) in [
        (
            "[a]",
            "[0]: workspace_mcp_tool_id_invalid: tool id 'a' must match strict 'server.tool' format",
        ),
        (
            "[a.b.c]",
            "[0]: workspace_mcp_tool_id_invalid: tool id 'a.b.c' must match strict 'server.tool' format",
        ),
        (
            "[gmail.x, \"gmail.*\"]",
            "[1]: workspace_mcp_tool_id_invalid: tool id 'gmail.*' must match strict 'server.tool' format",
        ),
        ("[gmail.x, gmail.x]", "[1]: duplicate MCP tool id 'gmail.x'"),
        ("gmail.x", ": expected list field 'tool_ids'"),
        (
            "[z.b]",
            "[0]: workspace_mcp_server_unknown: unknown MCP server 'z' for tool 'z.b'",
        ),
        (
            "[off.b]",
            "[0]: MCP server 'off' is disabled for tool 'off.b'",
        ),
    ] {
        let expected = format!("{at}{expected}");
        assert_eq!(
            said(&registry(&[GMAIL, off], &format!("tool_ids: {ids}"))),
            [expected],
            "{ids}"
        );
    }
    let report = checked(
        &[("workspace.yaml", &registry(&[GMAIL], "tool_ids: [z.b]"))],
        &env(&[]),
    )
    .to_string();
    assert!(
        report.contains("; add server config under mcp_registry.servers"),
        "{report}"
    );
}

#[test]
fn a_server_with_a_dot_is_taken_and_cannot_be_named() {
    let dotted = "my.server: { type: remote, url: \"https://x.example.org\" }";
    let workspace = registry(&[dotted], "");
    assert_eq!(pack(&workspace).servers[0].id.as_str(), "my_server");
    assert_eq!(
        warnings(&[("workspace.yaml", &workspace)], &env(&[])).len(),
        1
    );
    let report = checked(
        &[(
            "workspace.yaml",
            &registry(&[dotted], "tool_ids: [my.server.x]"),
        )],
        &env(&[]),
    )
    .to_string();
    assert!(
        report.contains("the id of the server my.server has a dot, so it cannot be named"),
        "{report}"
    );
}

#[test]
fn h25_the_workspaces_own_code_is_not_run_and_its_ids_are_kept() {
    let catalog = "  catalog:\n    workspace.read: { module_path: tools, symbol: read }\n";
    let own = "workspace: { type: local, command: [ignored] }";
    let text = registry(&[own, GMAIL], "tool_ids: [workspace.read]") + catalog;
    let ids: Vec<_> = pack(&text)
        .servers
        .iter()
        .map(|server| server.id.to_string())
        .collect();
    assert_eq!(ids, ["gmail"]);
    assert_eq!(
        warnings(&[("workspace.yaml", &text)], &env(&[])),
        [
            "mcp_registry.catalog[\"workspace.read\"]: the tool workspace.read (read in tools) is code of the workspace, which this program does not run"
        ]
    );
    let missing = registry(&[own], "tool_ids: [workspace.write]") + catalog;
    assert_eq!(
        said(&missing),
        [
            "mcp_registry.allowlist.tool_ids[0]: workspace_mcp_catalog_missing: no catalog entry for tool 'workspace.write'"
        ]
    );
    assert_eq!(
        said(&registry(
            &["workspace: { type: remote, url: \"https://x\" }"],
            ""
        )),
        ["mcp_registry.servers.workspace.type: workspace MCP server must be local"]
    );
}

#[test]
fn h26_when_an_app_was_started_is_no_matter() {
    let app =
        "a: { type: remote, url: \"https://x.example.org\", started_at: 2026-01-01T00:00:00Z }";
    assert_eq!(
        checked(&[("workspace.yaml", &registry(&[app], ""))], &env(&[])).problems,
        []
    );
}

#[test]
fn what_has_no_effect_is_said() {
    let odd = "a: { type: remote, url: \"https://x.example.org\", enabeld: false, command: [x], environment: { A: b } }";
    let found = warnings(
        &[(
            "workspace.yaml",
            &format!("name: x\n{}", registry(&[odd], "")),
        )],
        &env(&[]),
    );
    assert_eq!(
        found,
        [
            "name: `name` has no effect here",
            "mcp_registry.servers.a.enabeld: `enabeld` has no effect here",
            "mcp_registry.servers.a.command: `command` has no effect on a remote server",
            "mcp_registry.servers.a.environment: `environment` has no effect on a remote server",
        ]
    );
}
