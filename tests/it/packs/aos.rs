//! `core/mcp` and `core/skills` of AOS: statements A1 to A5, A8 and A12 to A14 of the acceptance list.

use std::time::Duration;

use domain::{
    config::Environment,
    pack::Pack,
    server::{Endpoint, Remote},
};

use crate::support::packs::{child, env, errors, headers, load_files, open, tools, warnings};

fn variables() -> Environment {
    env(&[("VAR", "v"), ("TOKEN", "t0ken")])
}

const SEARCH: &str = "id: search\ntransport: http\nurl: https://mcp.example.com\n";
const REGISTRY: &str = "schema: aos/mcp/v1\nid: main\nservers:\n  - { id: files, transport: stdio, command: files }\n  - { id: search, transport: http, url: \"https://mcp.example.com\" }\n";

fn pack(files: &[(&str, &str)]) -> Pack {
    load_files(files, &variables())
}

fn one(text: &str) -> Pack {
    pack(&[("core/mcp/a.yaml", text)])
}

/// The errors of one file below `core/mcp`, without how they begin.
fn said(text: &str) -> Vec<String> {
    let found = errors(&[("core/mcp/a.yaml", text)], &variables());
    let bare = |line: String| {
        line.split_once("Config error in core/mcp/a.yaml: ")
            .map_or(line.clone(), |(_, rest)| rest.to_owned())
    };
    found.into_iter().map(bare).collect()
}

fn ids(pack: &Pack) -> Vec<&str> {
    pack.servers
        .iter()
        .map(|server| server.id.as_str())
        .collect()
}

#[test]
fn a1_a_file_is_one_server_or_a_registry_of_several() {
    assert_eq!(ids(&one(SEARCH)), ["search"]);
    assert_eq!(ids(&one(REGISTRY)), ["files", "search"]);
}

#[test]
fn a2_files_are_found_in_folders_and_sorted() {
    let files = |id: &str| format!("id: {id}\ntransport: stdio\ncommand: x\n");
    let (a, b, c) = (files("a"), files("b"), files("c"));
    let pack = pack(&[
        ("core/mcp/z.yml", &a),
        ("core/mcp/dir/mcp.yaml", &b),
        ("core/mcp/m.yaml", &c),
        ("core/mcp/readme.md", "x"),
    ]);
    assert_eq!(ids(&pack), ["b", "c", "a"]);
    let skills = [("core/skills/s/skill.yaml", "id: s\n")];
    assert!(
        load_files(&skills, &env(&[])).servers.is_empty(),
        "no folder of servers"
    );
}

#[test]
fn a3_what_is_wrong_is_said_in_the_words_of_the_original() {
    let server =
        |fields: &str| format!("schema: aos/mcp/v1\nid: main\nservers:\n  - {{ {fields} }}\n");
    for (text, expected) in [
        ("[]", "mcp.yaml is empty or invalid"),
        (
            "id: x\nservers: [{ id: a, transport: stdio, command: x }]",
            "Unknown schema \"undefined\", expected \"aos/mcp/v1\"",
        ),
        (
            "schema: aos/mcp/v2\nid: x\nservers: [{ id: a, transport: stdio, command: x }]",
            "Unknown schema \"aos/mcp/v2\", expected \"aos/mcp/v1\"",
        ),
        (
            "schema: aos/mcp/v1\nservers: [{ id: a, transport: stdio, command: x }]",
            "Missing required field: id",
        ),
        (
            "schema: aos/mcp/v1\nid: x",
            "Missing required field: servers",
        ),
        (
            "schema: aos/mcp/v1\nid: Main\nservers: [{ id: a, transport: stdio, command: x }]",
            "Invalid ID \"Main\": must be lowercase alphanumeric with hyphens",
        ),
        (
            "schema: aos/mcp/v1\nid: x\nservers: []",
            "MCP registry must declare at least one server",
        ),
        (
            &server("transport: stdio, command: x"),
            "MCP server entry missing required field: id",
        ),
        (
            &server("id: x, transport: carrier, command: x"),
            "MCP server \"x\" has invalid transport \"carrier\" (stdio|http|sse)",
        ),
        (
            &server("id: x, command: x"),
            "MCP server \"x\" has invalid transport \"undefined\" (stdio|http|sse)",
        ),
        (
            &server("id: x, transport: stdio"),
            "MCP server \"x\" (stdio) requires \"command\"",
        ),
        (
            &server("id: x, transport: http"),
            "MCP server \"x\" (http) requires \"url\"",
        ),
        (
            &server("id: x, transport: sse"),
            "MCP server \"x\" (sse) requires \"url\"",
        ),
        (
            "transport: stdio\ncommand: x",
            "MCP server entry missing required field: id",
        ),
        (
            &format!("{SEARCH}retries: 3\n"),
            "retries: unknown field \"retries\"",
        ),
    ] {
        assert_eq!(said(text), [expected], "{text}");
    }
    assert!(said("")[0].starts_with("mcp.yaml is empty or invalid"));
    assert!(said("id: [")[0].starts_with("mcp.yaml is empty or invalid"));
    let twice = "id: a\ntransport: stdio\ncommand: x\nid: b\n";
    assert_eq!(
        said(twice),
        [
            "duplicate key \"id\"; the first one is on line 1: this file holds two servers; write core/mcp/a.yaml and core/mcp/b.yaml"
        ]
    );
    let twice = format!("{REGISTRY}  - {{ id: files, transport: stdio, command: x }}\n");
    assert_eq!(
        said(&twice),
        ["Duplicate MCP server id \"files\" (also in registry \"main\")"]
    );
    assert_eq!(
        errors(
            &[("core/mcp/a.yaml", REGISTRY), ("core/mcp/b.yaml", SEARCH)],
            &env(&[])
        ),
        [
            "id: Config error in core/mcp/b.yaml: Duplicate MCP server id \"search\" (also in registry \"main\")"
        ]
    );
}

#[test]
fn a4_arguments_go_to_the_process_as_they_are() {
    let pack = one(
        "id: x\ntransport: stdio\ncommand: x\nargs: [\"; rm -rf\", \"$HOME ${VAR}\"]\nenv: { A: \"${VAR}-${VAR}\", B: plain }\n",
    );
    let expected = (
        "x",
        vec!["; rm -rf", "$HOME ${VAR}"],
        vec![("A", "v-v"), ("B", "plain")],
    );
    assert_eq!(child(&pack.servers[0]), expected);
}

/// The document's `args: ["--root", "."]` are the project.
#[test]
fn a4_a_child_is_in_the_folder_of_the_project() {
    let pack = one("id: x\ntransport: stdio\ncommand: x\nargs: [\"--root\", \".\"]\n");
    let Endpoint::Stdio { cwd, .. } = &pack.servers[0].endpoint else {
        panic!("not a child")
    };
    assert!(
        cwd.as_ref().is_some_and(|cwd| cwd.ends_with("demo/.")),
        "{cwd:?}"
    );
}

#[test]
fn a4_a_variable_that_is_not_set_or_not_one_is_refused() {
    let with = |value: &str| {
        said(&format!(
            "id: x\ntransport: stdio\ncommand: x\nenv: {{ A: \"{value}\" }}\n"
        ))
    };
    assert_eq!(
        with("${NOT_SET}"),
        ["environment variable \"NOT_SET\" is not set"]
    );
    assert_eq!(
        with("{env:VAR}"),
        ["env.A: `{env:VAR}` is not replaced in this format"]
    );
    assert_eq!(
        with("${env.VAR}"),
        ["env.A: `${env.VAR}` does not name a variable"]
    );
    assert_eq!(with("${VAR"), ["env.A: `${` is never closed"]);
}

#[test]
fn a5_auth_ref_names_a_variable() {
    let pack = one(&format!("{SEARCH}auth_ref: TOKEN\n"));
    assert_eq!(
        headers(&pack.servers[0]),
        [("Authorization", "Bearer t0ken")]
    );
    assert_eq!(
        said(&format!("{SEARCH}auth_ref: NOT_SET\n")),
        ["environment variable \"NOT_SET\" of \"auth_ref\" is not set"]
    );
    let secret = [(
        "core/mcp/a.yaml",
        &*format!("{SEARCH}auth_ref: sk-secret-1\n"),
    )];
    let report = crate::support::packs::checked(&secret, &env(&[])).to_string();
    assert!(
        report.contains("\"auth_ref\" is the name of a variable, not the secret"),
        "{report}"
    );
    assert!(!report.contains("sk-secret-1"), "{report}");
}

#[test]
fn http_and_sse_are_remote_and_wait_for_thirty_seconds() {
    for (word, expected) in [("http", Remote::StreamableHttp), ("sse", Remote::Sse)] {
        let pack = one(&SEARCH.replace("http\n", &format!("{word}\n")));
        let Endpoint::Remote { transport, .. } = pack.servers[0].endpoint else {
            panic!("not remote")
        };
        assert_eq!(
            (transport, pack.servers[0].timeouts.request),
            (expected, Duration::from_secs(30))
        );
    }
}

#[test]
fn a8_a_skill_is_bound_to_a_tool_of_a_server() {
    let skill = "id: find\nname: Find\ndescription: Finds things\nmcp_binding: { server: search, tools: [web_search, other] }\n";
    let pack = pack(&[
        ("core/mcp/a.yaml", SEARCH),
        ("core/skills/find/skill.yaml", skill),
    ]);
    let skill = &pack.skills[0];
    let texts = (
        skill.id.as_str(),
        skill.name(&pack, None),
        skill.description(&pack, None),
    );
    assert_eq!(texts, ("find", "Find", "Finds things"));
    assert_eq!(
        (skill.server.as_str(), &*skill.tools.join(" ")),
        ("search", "web_search other")
    );
}

#[test]
fn a_skill_that_could_not_run_is_refused_and_one_without_a_tool_is_not_offered() {
    let allowed = format!("{SEARCH}tool_allowlist: [web_search]\n");
    let skill = |text: &str| {
        let files = [
            ("core/mcp/a.yaml", &*allowed),
            ("core/skills/find/skill.yaml", text),
        ];
        (errors(&files, &env(&[])), warnings(&files, &env(&[])))
    };
    for (text, expected) in [
        (
            "id: find\nmcp_binding: { server: none, tools: [x] }\n",
            "mcp_binding.server: there is no server \"none\"",
        ),
        (
            "id: find\nmcp_binding: { server: search, tools: [x] }\n",
            "mcp_binding.tools[0]: Tool \"x\" is not allowlisted for MCP server \"search\"",
        ),
        (
            "id: find\nmcp_binding: { server: search, tools: [] }\n",
            "mcp_binding.tools: the list is empty",
        ),
        (
            "name: x\n",
            "id: Config error in core/skills/find/skill.yaml: Missing required field: id",
        ),
    ] {
        let found = skill(text).0;
        assert_eq!(
            found
                .iter()
                .map(|line| line.trim_start_matches(": "))
                .collect::<Vec<_>>(),
            [expected.trim_start_matches("id: ")],
            "{text}"
        );
    }
    let (wrong, odd) = skill("id: find\nsteps: []\n");
    assert!(
        wrong.is_empty() && odd[0].contains("a skill without `mcp_binding` is not offered"),
        "{odd:?}"
    );
}

#[test]
fn a12_to_a14_an_allowlist_is_exact_and_empty_means_all() {
    let with = |list: &str| {
        one(&format!("{SEARCH}tool_allowlist: {list}\n"))
            .servers
            .remove(0)
    };
    let narrowed = with("[web_search]");
    assert_eq!(tools(&narrowed), Some(vec!["web_search"]));
    assert!(open(&narrowed, "web_search") && !open(&narrowed, "web_search_2"));
    let all = with("[]");
    assert!(tools(&all).is_none() && open(&all, "anything"));
    let empty = format!("{SEARCH}tool_allowlist: []\n");
    assert_eq!(
        warnings(&[("core/mcp/a.yaml", &empty)], &env(&[])),
        ["tool_allowlist: an empty list allows every tool"]
    );
    assert_eq!(
        said(&format!("{SEARCH}tool_allowlist: [\"web_*\"]\n")),
        ["\"web_*\" is not the name of one tool"]
    );
    assert!(one(SEARCH).server("another").is_none());
}

#[test]
fn a_link_back_into_the_project_is_followed_once() {
    let root = crate::support::packs::folder_of(&[(
        "core/mcp/a.yaml",
        "id: a\ntransport: http\nurl: https://a.example.org\n",
    )]);
    let folder = root.path().join("demo/core/mcp");
    std::os::unix::fs::symlink("..", folder.join("up")).unwrap();
    std::os::unix::fs::symlink(".", folder.join("here")).unwrap();
    let report = packs::check(root.path(), &crate::support::packs::env(&[]), None);
    assert_eq!(report.to_string(), "1 pack: 0 errors, 0 warnings");
}
