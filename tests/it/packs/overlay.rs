//! `MCP_SERVERS_CONFIG` replaces the servers of packs.

use std::path::Path;

use domain::{ids::AgentId, secret::Secret, server::Endpoint};
use packs::PackStore;
use tempfile::TempDir;

use crate::support::packs::{MINIMAL, env, headers, write_pack};

/// Two packs, `a` with a server whose variable is not set, and `b` without servers.
fn two_packs() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let own = "mcp: { servers: [{ name: own, transport: streamable-http, url: \"${NOT_SET}\", toolAccess: {} }] }\n";
    write_pack(root.path(), "a", &(MINIMAL.replace("demo", "a") + own));
    write_pack(root.path(), "b", &MINIMAL.replace("demo", "b"));
    root
}

fn load(root: &Path, json: &str) -> PackStore {
    PackStore::load(root, &env(&[("TOKEN", "t0ken")]), Some(&Secret::new(json))).unwrap()
}

fn told(root: &Path, json: &str) -> String {
    let report = packs::check(root, &env(&[("TOKEN", "t0ken")]), Some(&Secret::new(json)));
    assert!(!report.is_ok());
    report
        .to_string()
        .replace(&root.display().to_string(), "packs")
}

fn servers(store: &PackStore, id: &str) -> Vec<String> {
    store
        .get(&AgentId::parse(id).unwrap())
        .unwrap()
        .servers
        .iter()
        .map(|server| server.id.to_string())
        .collect()
}

const DOCS: &str = r#"{"name":"docs","transport":"streamable-http","url":"https://docs.example.org/mcp",
    "headers":{"Authorization":"Bearer ${TOKEN}"},"toolAccess":{"default":"public"}}"#;

#[test]
fn an_array_replaces_the_servers_of_every_pack() {
    let root = two_packs();
    let store = load(root.path(), &format!("[{DOCS}]"));
    assert_eq!(servers(&store, "a"), ["docs"]);
    assert_eq!(servers(&store, "b"), ["docs"]);
    let pack = store.get(&AgentId::parse("b").unwrap()).unwrap();
    assert_eq!(
        headers(&pack.servers[0]),
        [("Authorization", "Bearer t0ken")]
    );
}

#[test]
fn an_object_replaces_the_servers_of_the_packs_it_names() {
    let root = two_packs();
    let store = load(root.path(), &format!("{{\"a\":[{DOCS}]}}"));
    assert_eq!(servers(&store, "a"), ["docs"]);
    assert_eq!(servers(&store, "b"), Vec::<String>::new());
}

#[test]
fn an_empty_array_takes_all_servers_away() {
    let root = two_packs();
    assert_eq!(servers(&load(root.path(), "[]"), "a"), Vec::<String>::new());
}

#[test]
fn relative_paths_start_in_the_folder_of_each_pack() {
    let root = two_packs();
    std::fs::create_dir(root.path().join("a/work")).unwrap();
    let json =
        r#"{"a":[{"name":"x","transport":"stdio","command":"x","cwd":"work","toolAccess":{}}]}"#;
    let pack = load(root.path(), json)
        .get(&AgentId::parse("a").unwrap())
        .unwrap();
    let Endpoint::Stdio { cwd, .. } = &pack.servers[0].endpoint else {
        panic!("not stdio")
    };
    assert_eq!(cwd.as_deref(), Some(root.path().join("a/work").as_path()));
}

#[test]
fn a_changed_configuration_is_another_version_of_the_pack() {
    let root = two_packs();
    let id = AgentId::parse("a").unwrap();
    let version = |json: &str| load(root.path(), json).get(&id).unwrap().version.clone();
    assert_ne!(version("[]"), version(&format!("[{DOCS}]")));
    assert_eq!(version("[]"), version("[]"));
}

/// JSON is read as the YAML it is; these are the corners where the two might part.
#[test]
fn json_may_be_laid_out_in_any_way() {
    let root = two_packs();
    let token = "x".repeat(3000);
    let json = format!(
        "[\n{{\n\"name\":\"docs\",\n\t\"transport\":\t\"streamable-http\",\"url\":\"https:\\/\\/docs.example.org\",\n\t\t\"headers\":{{\"X-Long\":\"{token}\",\"X-Escaped\":\"\\u0061\\\"\\\\\"}}\n\t,\"toolAccess\":{{}}}}\n]\n"
    );
    let pack = load(root.path(), &json)
        .get(&AgentId::parse("a").unwrap())
        .unwrap();
    assert_eq!(
        headers(&pack.servers[0]),
        [("X-Long", token.as_str()), ("X-Escaped", "a\"\\")]
    );
}

#[test]
fn bad_json_refuses_the_start_and_is_not_quoted() {
    let root = two_packs();
    insta::assert_snapshot!(told(root.path(), "[{\"name\": \"s3cret\""), @r"
    MCP_SERVERS_CONFIG: error: is not JSON (line 1 column 18); write an array of servers, or an object of such arrays by pack id
    2 packs: 1 error, 0 warnings
    ");
    insta::assert_snapshot!(told(root.path(), "[{name: docs}]"), @r"
    MCP_SERVERS_CONFIG: error: is not JSON (line 1 column 3); write an array of servers, or an object of such arrays by pack id
    2 packs: 1 error, 0 warnings
    ");
    insta::assert_snapshot!(told(root.path(), "\"docs\""), @r#"
    MCP_SERVERS_CONFIG:1:1: error: expected an array of servers, or an object of such arrays; write `[…]` or `{"<pack id>": […]}`
    2 packs: 1 error, 0 warnings
    "#);
    insta::assert_snapshot!(told(root.path(), "{\"a\": {}}"), @r#"
    MCP_SERVERS_CONFIG:1:1: error: expected an array of servers, or an object of such arrays; write `[…]` or `{"<pack id>": […]}`
    2 packs: 1 error, 0 warnings
    "#);
}

#[test]
fn an_id_that_names_no_pack_is_an_error() {
    let root = two_packs();
    insta::assert_snapshot!(told(root.path(), &format!("{{\"a\":[{DOCS}],\"c\":[]}}")), @r#"
    MCP_SERVERS_CONFIG:2:87: error: c: there is no pack "c"; the packs are a, b
    2 packs: 1 error, 0 warnings
    "#);
}

#[test]
fn the_same_rules_hold_and_are_said_once_for_all_packs() {
    let root = two_packs();
    let json = r#"[{"name":"docs","transport":"sse","headers":{"Host":"x","X":"${NOT_SET}"},"toolAcess":{}},
        {"name":"a","name":"b","transport":"stdio","command":"x","toolAccess":{"default":"all"}}]"#;
    insta::assert_snapshot!(told(root.path(), json), @r#"
    MCP_SERVERS_CONFIG:1:2: error: [0].url: missing; write `url: https://…`
    MCP_SERVERS_CONFIG:1:2: warning: [0]: there is no `toolAccess`, so nobody but `adminUsers` may call its tools; `toolAccess: { default: public }` opens them to everyone
    MCP_SERVERS_CONFIG:1:53: error: [0].headers.Host: the header Host is set by the program itself; remove it
    MCP_SERVERS_CONFIG:1:61: error: [0].headers.X: the environment variable `NOT_SET` is not set; set it, or write `$${` for a literal `${`
    MCP_SERVERS_CONFIG:1:75: error: [0].toolAcess: unknown field "toolAcess"; did you mean "toolAccess"? valid fields: name, transport, accessMode, url, headers, command, args, env, envFile, cwd, encoding, config, auth, userConfig, tools, toolAccess, pin, summaries, required, instances, connect, timeouts, loadTools, loadPrompts, terminateOnClose, catalog
    MCP_SERVERS_CONFIG:2:21: error: [1]: duplicate key "name"; the first one is on line 2; remove one of them
    2 packs: 5 errors, 1 warning
    "#);
}
