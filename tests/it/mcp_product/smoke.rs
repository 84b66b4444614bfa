//! What `chatelaine smoke` and the connections say of rules that fit no tool, and of who may call what.

use serde_json::json;

use super::connections;
use crate::support::{
    many::{entry, pack},
    packs::write_pack,
    program::chatelaine,
    scripted::{Scripted, Seen},
    world::World,
};

/// A pack with this server, whose skill calls a tool that the server lacks.
fn with_skill(server: &str) -> (String, String) {
    let (id, yaml) = pack(server);
    let skills = "skills:\n  - { id: look, mcpBinding: { server: desk, tools: [lost] } }\n";
    (id, yaml + skills)
}

async fn smoke(yaml: &str) -> String {
    let packs = tempfile::tempdir().unwrap();
    write_pack(packs.path(), "many", yaml);
    let mut command = chatelaine(&["smoke", "many"]);
    command
        .env("CHATELAINE_PACKS", packs.path())
        .env("CHATELAINE_EGRESS_ALLOW", "127.0.0.1")
        .env("MODEL_URL", "http://127.0.0.1:1/v1");
    String::from_utf8(command.output().await.unwrap().stdout).unwrap()
}

#[tokio::test]
async fn names_that_fit_no_tool_are_named_wherever_the_pack_has_them() {
    let server = Scripted::modern(async |_| None).await;
    let rules = ", tools: [echo, gone, lost], toolAccess: { default: none, public: [away] }";
    let entry = format!(
        "    - {{ name: desk, transport: streamable-http, url: \"{}\"{rules} }}\n",
        server.url
    );
    let (id, yaml) = with_skill(&entry);
    let expected = [
        "`tools` names \"gone\", which the server does not have",
        "`tools` names \"lost\", which the server does not have",
        "`toolAccess.public` names \"away\", which the server does not have",
        "the skill `look` names \"lost\", which the server does not have",
    ];
    let told = smoke(&yaml).await;
    for sentence in expected {
        assert!(
            told.contains(&format!("warning: {sentence}\n")),
            "{sentence}: {told}"
        );
    }
    let world = World::with(|setup| setup.packs.push((id, yaml))).await;
    let alice = world.user("alice", &[]).await;
    let known = connections(&alice, &[("desk", "ready")]).await;
    assert_eq!(known[0]["unmatched"], json!(expected));
    let ann = world.user("ann", &[]).await;
    let known = connections(&ann, &[("desk", "ready")]).await;
    assert_eq!(
        known[0]["unmatched"],
        json!([]),
        "it is the author's to mend"
    );
}

#[tokio::test]
async fn what_is_not_checked_here_and_what_the_model_is_told_otherwise_is_said() {
    let server = Scripted::modern(async |seen: Seen| {
        let schema = json!({ "type": "object", "properties": {
            "to": { "type": "string", "pattern": "^(?!x).*$" }, "$top": { "type": "integer" } } });
        let tools = json!({ "tools": [{ "name": "mail", "inputSchema": schema }] });
        (seen.method() == "tools/list").then(|| seen.result(tools))
    })
    .await;
    let (_, yaml) = pack(&entry("desk", &server.url, ""));
    let told = smoke(&yaml.replace(
        "provider: openai, model: scripted",
        "provider: anthropic, model: claude-sonnet-5",
    ))
    .await;
    assert!(!told.contains("left out"), "{told}");
    let unchecked = "not checked here, but by the server: tool \"mail\": the pattern ^(?!x).*$";
    assert!(told.contains(unchecked), "{told}");
    let renamed = "the model is told otherwise: tool \"mail\": \"$top\" is called \"_top\"; patterns are told in words";
    assert!(told.contains(renamed), "{told}");
}

#[tokio::test]
async fn each_kind_of_user_of_the_pack_has_a_column_and_nobody_else() {
    let server = Scripted::modern(async |_| None).await;
    let (_, open) = pack(&entry("desk", &server.url, ""));
    let closed = open.replace("required: false", "required: true");
    for (yaml, columns) in [
        (&open, "(signed in)  guest  (admin)"),
        (&closed, "(signed in)  (admin)"),
    ] {
        let told = smoke(yaml).await;
        let head = told.lines().nth(1).unwrap().trim();
        let (tool, found) = head.split_once(' ').unwrap();
        assert_eq!((tool, found.trim()), ("tool", columns), "{told}");
    }
}
