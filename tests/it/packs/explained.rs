//! `explain`, and what `check` says that it understood.

use std::path::Path;

use chatelaine::{domain::secret::Secret, packs};

use super::{MINIMAL, checked, env, folder_of};

const AOS: [(&str, &str); 3] = [
    (
        "core/mcp/search.yaml",
        "id: search\ntransport: http\nurl: https://mcp.example.com\nauth_ref: SEARCH_TOKEN\ntool_allowlist: [\"web_search\"]\n",
    ),
    (
        "core/mcp/files.yaml",
        "id: files\ndescription: Files of the project\ntransport: stdio\ncommand: npx\nargs: [-y, files-server, hunter2]\nenv: { KEY: hunter2, PATHS: \"${PATHS}\" }\n",
    ),
    ("core/skills/web-search/skill.yaml", "id: web-search\nmcp_binding: { server: search, tools: [web_search] }\n"),
];

fn explained(files: &[(&str, &str)], variables: &[(&str, &str)], servers: Option<&Secret>) -> String {
    let root = folder_of(files);
    let text = packs::explain(&root.path().join("demo"), &env(variables), servers).unwrap();
    text.replace(&root.path().display().to_string(), "packs")
}

#[test]
fn a_pack_is_printed_with_where_each_value_comes_from() {
    let text = explained(&AOS, &[("SEARCH_TOKEN", "s3cret-value")], None);
    assert!(!text.contains("hunter2") && !text.contains("s3cret-value"), "{text}");
    insta::assert_snapshot!(text, @"");
}

#[test]
fn a_native_pack_is_printed_with_its_defaults() {
    let text = format!(
        "{MINIMAL}mcp:\n  servers:\n    - {{ name: docs, transport: streamable-http, url: \"https://docs.example.org/mcp?key=hunter2\", headers: {{ A: \"Bearer ${{T}}\", B: \"hunter2-${{T}}\" }}, toolAccess: {{ default: public }} }}\n"
    );
    let text = explained(&[("agent-pack.yaml", &text)], &[("T", "t0ken")], None);
    assert!(!text.contains("hunter2") && !text.contains("t0ken"), "{text}");
    insta::assert_snapshot!(text, @"");
}

#[test]
fn servers_from_the_environment_are_named_as_such() {
    let servers = Secret::new(
        r#"[{"name":"b","transport":"stdio","command":"x","env":{"K":"hunter2"},"toolAccess":{"default":"public"}}]"#,
    );
    let text = explained(&AOS[..2], &[], Some(&servers));
    assert!(text.contains("name: b # MCP_SERVERS_CONFIG:1") && !text.contains("hunter2"), "{text}");
}

#[test]
fn a_broken_pack_is_not_explained_but_reported() {
    let root = folder_of(&[("agent.yaml", "tools: [{ type: mcp }]")]);
    let error = packs::explain(root.path(), &env(&[]), None).unwrap_err().to_string();
    assert!(error.contains("ValidationError: 'server' must be a non-empty identifier"), "{error}");
}

#[test]
fn check_names_the_format_and_what_it_understood() {
    let access = "authentication: { rolesAttribute: roles }\ntoolAccess: { files: { roles: { staff: [read] }, approval: [{ tools: [read], approvers: [boss] }] } }\n";
    let files = [AOS[0], AOS[1], AOS[2], ("access.yaml", access)];
    let report = checked(&files, &env(&[("SEARCH_TOKEN", "s"), ("PATHS", "p")]));
    insta::assert_snapshot!(report.understood[0], @"");
}

#[test]
fn check_understands_the_packs_that_come_with_the_program() {
    let report = packs::check_allowing_unset(Path::new("packs"), &env(&[]), None);
    let told: Vec<_> = report.understood.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(told.join("\n"), @"");
}
