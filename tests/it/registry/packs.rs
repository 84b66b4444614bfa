//! What a pack may write of servers that it takes from the registry.

use std::fs;

use packs::{PackStore, check};

use super::document::Example;
use crate::support::packs::{MINIMAL, env};

/// What is said of a pack with these lines, its capabilities and registry files.
fn said(lines: &str, files: &[(&str, &str)]) -> String {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files
        .iter()
        .copied()
        .chain([("demo/agent-pack.yaml", format!("{MINIMAL}{lines}").as_str())])
    {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    check(root.path(), &env(&[("TOKEN", "t0ken")]), None).to_string()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn mistakes_are_named_with_file_line_and_remedy() {
    let capability = |text| [("capabilities/one.yaml", text)];
    for (lines, files, expected) in [
        (
            "mcpServers: { d: { config: {} } }",
            &[][..],
            "mcpServers.d.ref: missing; name an entry of the registry",
        ),
        (
            "mcpServers: { d: { ref: ../x } }",
            &[],
            "is not the id of an MCP server",
        ),
        (
            "mcpServers: { d: { ref: aa, url: \"https://x.org\" } }",
            &[],
            "a server is not written out here; define it in the registry",
        ),
        (
            "mcpServers: { d: { ref: aa, command: npx } }",
            &[],
            "a server is not written out here",
        ),
        (
            "mcpServers: { d: { ref: aa, config: { k: \"${TOKEN}\" } } }",
            &[],
            "write `${env.TOKEN}`",
        ),
        (
            "mcpServers: { d: { ref: aa, config: { k: \"${vault.x}\" } } }",
            &[],
            "there is no source \"vault\"",
        ),
        (
            "mcpServers: { d: { ref: aa, config: { k: \"${user.x}\" } } }",
            &[],
            "cannot be used here",
        ),
        (
            "mcpServers: { d: { ref: aa, access: public } }",
            &[],
            "unknown field \"access\"; valid fields:",
        ),
        (
            "mcpServers: { \"a b\": { ref: aa } }",
            &[],
            "is not a valid server id",
        ),
        (
            "mcpServers: { d: { ref: aa } }",
            &[],
            "there is no `toolAccess` for d, so every user of the tenant may call its tools; guests may not",
        ),
        (
            "mcpServers: { d: { ref: aa } }\nmcp: { servers: [{ name: D, transport: streamable-http, url: \"https://x.org\" }] }",
            &[],
            "there is a server d under `mcp.servers`",
        ),
        (
            "capabilities: [absent]",
            &[],
            "the capability absent cannot be read",
        ),
        (
            "capabilities: [../demo/agent-pack]",
            &[],
            "is not the name of a capability",
        ),
        (
            "capabilities: [one]",
            &capability("mcpServers: { d: { ref: aa, config: { k: \"${params.x}\" } } }"),
            "one.yaml:1:42: error: mcpServers.d.config.k: `${params.x}` cannot be used here",
        ),
        (
            "capabilities: [one]",
            &capability("servers: {}"),
            "unknown field \"servers\"",
        ),
        (
            "capabilities: [one]\nmcpServers: { d: { ref: bb } }",
            &capability("mcpServers: { d: { ref: aa } }"),
            "d refers to aa elsewhere",
        ),
        (
            "",
            &[("demo/registry/a.json", "{\"id\": \"aa\"}")],
            "a.json: error: missing field `url`",
        ),
        (
            "",
            &[(
                "demo/registry/a.json",
                "{\"id\": \"aa\", \"url\": \"https://x.org\", \"default_config\": {\"k\": 1}}",
            )],
            "default_config.k: is not a key of `config_schema`",
        ),
        (
            "",
            &[(
                "demo/registry/a.json",
                "{\"id\": \"aa\", \"url\": \"ws://x.org\"}",
            )],
            "url: has another scheme",
        ),
    ] {
        let said = said(lines, files);
        assert!(said.contains(expected), "{lines} {files:?}\n{said}");
    }
}

#[test]
fn a_literal_in_a_configuration_is_not_quoted_back() {
    let lines = "mcpServers: { d: { ref: aa, config: { key: sk-0123456789 }, nonsense: 1 } }";
    let said = said(lines, &[]);
    assert!(
        said.contains("unknown field \"nonsense\"") && !said.contains("sk-0123456789"),
        "{said}"
    );
}

#[test]
fn a_capability_brings_its_prompt_and_is_watched() {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let pack = "metadata: { id: demo }\nlanguages: { en: {} }\nllm: { provider: none, agentPrompt: Mine. }\n";
    write(
        "demo/agent-pack.yaml",
        &format!("{pack}capabilities: [research]\n"),
    );
    write(
        "capabilities/research.yaml",
        "prompt: \"Look in the documents.\"\n",
    );
    let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
    let prompt = || {
        store
            .snapshot()
            .packs()
            .next()
            .unwrap()
            .llm
            .agent_prompt
            .clone()
            .unwrap()
    };
    assert_eq!(prompt(), "Mine.\n\nLook in the documents.");
    write("capabilities/research.yaml", "prompt: \"Look twice.\"\n");
    assert_eq!(store.reload().changed.len(), 1);
    assert_eq!(prompt(), "Mine.\n\nLook twice.");
}

#[test]
fn the_agent_says_last_who_may_use_a_server() {
    let example = Example {
        entries: &[],
        capabilities: &[(
            "one",
            r#"{"mcpServers": {"d": {"ref": "aa", "tools": ["a*"], "toolAccess": {"default": "public"}, "required": true}}}"#,
        )],
        agent: r#"
"capabilities": ["one"]
"mcpServers": {"D": {"ref": "aa", "toolAccess": {"default": "none"}}}"#,
    };
    let pack = example.load();
    let [reference] = &pack.references[..] else {
        panic!("{:?}", pack.references)
    };
    assert_eq!((reference.alias.as_str(), reference.levels.len()), ("d", 2));
    assert_eq!(reference.tools.as_ref().unwrap()[0].0, "a*");
    assert!(reference.required);
    let access = reference.tool_access.as_ref().unwrap();
    assert_eq!(access.default, domain::policy::DefaultAccess::None);
}

#[test]
fn check_knows_the_servers_that_capabilities_bring_and_who_may_use_them() {
    let capability = r#"{"mcpServers": {"docs": {"ref": "context-store", "toolAccess": {"default": "public"}},
      "jira": {"ref": "atlassian", "tools": ["get_*"], "toolAccess": {"roles": {"staff": ["get_*"]}}}}}"#;
    let root = tempfile::tempdir().unwrap();
    let agent = "flows: { authentication: { rolesAttribute: roles } }\ncapabilities: [one]\nmcpServers: { docs: { ref: context-store, config: { k: v } } }";
    for (name, text) in [
        ("demo/agent-pack.yaml", &*format!("{MINIMAL}{agent}")),
        ("capabilities/one.yaml", capability),
    ] {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let report = check(root.path(), &env(&[("TOKEN", "t0ken")]), None);
    let understood = report.understood[0].to_string();
    assert!(
        understood.contains("\n  docs  registry context-store: all tools; everyone"),
        "{understood}"
    );
    assert!(
        understood.contains("\n  jira  registry atlassian: get_*; by role\n  roles: staff"),
        "{understood}"
    );
}
