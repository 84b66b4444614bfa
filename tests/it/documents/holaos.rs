//! The holaOS document: one server, with and without an allowlist.

use std::time::Duration;

use domain::{config::Environment, pack::Pack};

use super::snippet;
use crate::support::packs::{checked, env, errors, headers, load_files, open, tools, warnings};

fn key() -> Environment {
    env(&[("CONTEXT7_API_KEY", "ctx7sk-live")])
}

fn pack(workspace: &str) -> Pack {
    load_files(&[("workspace.yaml", workspace)], &key())
}

#[test]
fn an_explicit_allowlist_names_the_tools() {
    let pack = pack(&snippet("holaos", 1));
    let server = &pack.servers[0];
    assert_eq!(
        (pack.id().as_str(), server.id.as_str()),
        ("demo", "context7")
    );
    assert_eq!(
        server.url().unwrap().as_str(),
        "https://mcp.context7.com/mcp"
    );
    assert_eq!(headers(server), [("CONTEXT7_API_KEY", "ctx7sk-live")]);
    assert_eq!(server.timeouts.request, Duration::from_secs(30));
    assert_eq!(tools(server), Some(vec!["lookup", "search"]));
    assert!(open(server, "lookup") && !open(server, "purge"));
}

/// The fragment in the server of the first snippet.
#[test]
fn a_literal_key_in_placeholder_syntax_is_refused() {
    let wrong = snippet("holaos", 2).trim_end().replace('\n', "\n      ");
    let right = "headers:\n        CONTEXT7_API_KEY: \"{env:CONTEXT7_API_KEY}\"";
    let workspace = snippet("holaos", 1).replace(right, &wrong);
    assert!(workspace.contains("{env:ctx7sk-...}"), "{workspace}");
    let files = [("workspace.yaml", workspace.as_str())];
    assert_eq!(
        errors(&files, &key()),
        [
            "mcp_registry.servers.context7.headers.CONTEXT7_API_KEY: invalid MCP env placeholder '{env:…}' for 'CONTEXT7_API_KEY'; use '{env:ENV_VAR_NAME}' or provide a literal value"
        ]
    );
    assert!(
        !checked(&files, &key()).to_string().contains("ctx7sk-"),
        "what stands there may be a key"
    );
}

#[test]
fn without_an_allowlist_every_discovered_tool_is_there() {
    let pack = pack(&snippet("holaos", 3));
    assert_eq!(tools(&pack.servers[0]), None);
    assert!(open(&pack.servers[0], "purge"));
}

#[test]
fn an_empty_allowlist_has_the_same_meaning() {
    let text = snippet("holaos", 4);
    assert_eq!(tools(&pack(&text).servers[0]), None);
    let said = warnings(&[("workspace.yaml", &text)], &env(&[]));
    assert_eq!(
        said,
        ["mcp_registry.allowlist.tool_ids: an empty list allows every tool"]
    );
}
