//! What becomes of a configured value on its way to the server: its type, its header, and who fills it in.

use domain::registry::{
    Rules,
    resolve::{ReferenceValues, Sources, resolve},
};
use serde_json::json;

use super::document::{Example, ORCHESTRATOR};
use crate::support::packs::env;

const TYPED: &[&str] = &[r#"{"id": "typed", "url": "https://typed.example.org/mcp",
  "config_schema": {"word": {"type": "string"}, "tree": {"type": "json"}}}"#];

#[test]
fn types_are_checked_when_a_run_knows_the_values() {
    let example = Example {
        entries: &[
            r#"{"id": "typed", "url": "https://typed.example.org/mcp", "config_schema": {
          "flag": {"type": "boolean"}, "count": {"type": "number"}, "filter": {"type": "json"}, "word": {"type": "string"}}}"#,
        ],
        capabilities: &[],
        agent: r#""mcpServers": {"t": {"ref": "typed", "config": {
          "flag": "${scope.flag}", "count": "${scope.count}", "filter": {"tag": ["${scope.tag}", 1]}, "word": "x-${scope.word}"}}}"#,
    };
    let scope = r#"{"scope": {"flag": true, "count": 2.5, "tag": "é\"", "word": "w"}}"#;
    let resolved = example.resolved(scope, &env(&[])).unwrap();
    let config = &resolved["mcpServers"]["t"]["config"];
    assert_eq!(
        *config,
        json!({"count": "2.5", "filter": "{\"tag\":[\"\\u00e9\\\"\",1]}", "flag": "true", "word": "x-w"})
    );
    for (scope, key, reason) in [
        (
            r#"{"scope": {"flag": "yes"}}"#,
            "flag",
            "must be true or false",
        ),
        (
            r#"{"scope": {"count": "many"}}"#,
            "count",
            "must be a number",
        ),
        (
            r#"{"scope": {"word": "a\r\nX-Admin: 1"}}"#,
            "word",
            "line break",
        ),
        (
            r#"{"scope": {"word": "é"}}"#,
            "word",
            "character that a header cannot carry",
        ),
    ] {
        let refused = example.resolved(scope, &env(&[])).unwrap_err();
        assert!(
            refused.contains(&format!("'{key}'")) && refused.contains(reason),
            "{refused}"
        );
    }
}

#[test]
fn what_no_header_carries_is_refused_whoever_says_it_and_json_is_written_anew() {
    let refused = |agent: &'static str, scope: &str| {
        let example = Example {
            entries: TYPED,
            capabilities: &[],
            agent,
        };
        example.resolved(scope, &env(&[]))
    };
    let literal = r#""mcpServers": {"t": {"ref": "typed", "config": {"word": "a\nb"}}}"#;
    assert!(
        refused(literal, "{}")
            .unwrap_err()
            .contains("holds a line break")
    );
    let scoped = r#""mcpServers": {"t": {"ref": "typed", "config": {"word": "${scope.w}"}}}"#;
    let long = json!({ "scope": { "w": "x".repeat(8193) } }).to_string();
    assert!(
        refused(scoped, &long)
            .unwrap_err()
            .contains("'word' of MCP server 't': its value is longer than 8192")
    );
    assert!(refused(scoped, &long.replacen('x', "", 1)).is_ok());
    let tree = r#""mcpServers": {"t": {"ref": "typed", "config": {"tree": "{\n \"a\": 1\n}"}}}"#;
    assert_eq!(
        refused(tree, "{}").unwrap()["mcpServers"]["t"]["config"]["tree"],
        "{\"a\":1}"
    );
}

#[test]
fn internal_keys_are_filled_by_the_program() {
    let example = Example {
        entries: &[ORCHESTRATOR],
        capabilities: &[],
        agent: r#""mcpServers": {"orchestrator": {"ref": "orchestrator"}}"#,
    };
    let resolved = example.resolved("{}", &env(&[])).unwrap();
    assert_eq!(
        resolved["mcpServers"]["orchestrator"]["config"],
        json!({ "run_id": "run-abc-123" })
    );
    let spoofed = Example {
        agent: r#""mcpServers": {"o": {"ref": "orchestrator", "config": {"run_id": "run-of-another"}}}"#,
        ..example
    };
    let refused = spoofed.resolved("{}", &env(&[])).unwrap_err();
    assert!(
        refused.contains("is internal: the program fills it in"),
        "{refused}"
    );
}

#[test]
fn a_key_becomes_the_header_that_the_documents_servers_read() {
    let example = Example {
        entries: &[r#"{"id": "heads", "url": "https://heads.example.org/mcp",
          "config_schema": {"context_id": {"type": "string"}, "x-jira-projects": {"type": "string"},
                            "token": {"type": "string", "header": "Authorization"}},
          "default_config": {"context_id": "c", "x-jira-projects": "A,B", "token": "Bearer ${env.T}"}}"#],
        capabilities: &[],
        agent: r#""mcpServers": {"h": {"ref": "heads"}}"#,
    };
    let (pack, env, run) = (
        example.load(),
        env(&[("T", "t")]),
        ReferenceValues::default(),
    );
    let secrets = std::collections::BTreeMap::new();
    let sources = Sources {
        env: &env,
        rules: Rules::Operator,
        of_admins: Rules::Operator,
        secrets: &secrets,
        run: &run,
    };
    let resolved = resolve(&pack.entries[0], &pack.references[0], sources).unwrap();
    let headers = crate::support::packs::headers(&resolved.spec);
    assert_eq!(
        headers,
        [
            ("X-Context-Id", "c"),
            ("Authorization", "Bearer t"),
            ("x-jira-projects", "A,B")
        ]
    );
    assert!(
        !format!("{:?}", resolved.spec).contains("Bearer t"),
        "a spec prints no secret"
    );
}
