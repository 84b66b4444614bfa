//! No value that came from the environment is ever told, whatever is wrong with it or around it.

use std::fs;

use domain::{config::Environment, secret::Secret};
use packs::PackStore;
use serde_json::{Value, json};

use crate::support::packs::{checked, env};

/// A pack that uses every field.
fn everything() -> Value {
    json!({
        "metadata": { "id": "demo", "displayName": "Demo", "description": "d", "tags": ["a"], "defaultLanguage": "en" },
        "languages": { "en": { "greetingMessage": "hi", "systemPrompt": "you", "strings": { "K": "v" } } },
        "llm": {
            "provider": "openai", "model": "m", "baseUrl": "https://m.example.org", "apiKey": "k", "agentPrompt": "p",
            "temperature": 0.5, "maxTokens": 10, "maxSteps": 3
        },
        "memory": { "window": 10 },
        "flows": {
            "welcome": { "enabled": true, "templateKey": "K" },
            "authentication": {
                "required": true, "userIdAttribute": "email", "rolesAttribute": "roles", "defaultRole": "user",
                "adminUsers": ["a@example.org"]
            }
        },
        "mcp": { "servers": servers() },
        "skills": [{ "id": "find", "name": "Find", "description": "f", "mcpBinding": { "server": "http", "tools": ["a"] } }]
    })
}

fn servers() -> Value {
    let access = json!({
        "default": "none", "roles": { "user": ["a", "b"], "boss": ["c"] },
        "approval": [
            { "tools": ["a"], "approvers": ["boss"], "timeoutMinutes": 5, "minApprovals": 1, "selfApproval": false },
            { "tools": ["b"], "approvers": ["boss"] }
        ]
    });
    json!([
        {
            "name": "http", "transport": "streamable-http", "url": "https://a.example.org/mcp",
            "headers": { "Authorization": "Bearer x" }, "accessMode": "admin-controlled", "toolAccess": access,
            "tools": ["a", "b", "c"], "required": false, "loadTools": true, "loadPrompts": false,
            "terminateOnClose": false, "timeouts": { "connectSeconds": 1, "requestSeconds": 2, "streamIdleSeconds": 3 }
        },
        {
            "name": "child", "transport": "stdio", "command": "c", "args": ["-x"], "env": { "E": "e" },
            "envFile": "child.env", "cwd": ".", "encoding": "latin1", "config": { "k": ["v", { "w": "x" }] }, "toolAccess": { "default": "admin", "public": ["a"] }
        },
        {
            "name": "mine", "transport": "streamable-http", "url": "https://b.example.org/mcp",
            "accessMode": "user-controlled", "toolAccess": { "default": "public" },
            "userConfig": { "fields": [
                { "name": "token", "type": "secret", "label": { "en": "T" }, "required": true, "headerName": "X-T",
                  "headerTemplate": "{base64(token:region)}" },
                { "name": "region", "type": "select", "label": "R", "queryName": "r",
                  "options": ["eu", { "value": "us", "label": "US" }] }
            ] }
        }
    ])
}

/// The JSON pointers of all values below the root.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut each = |key: &str, value: &Value| {
        let pointer = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        found.push(pointer.clone());
        pointers(value, &pointer, found);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| each(key, value)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, value)| each(&index.to_string(), value)),
        _ => {}
    }
}

/// Values that fit somewhere and break elsewhere: a word, an address, a line break, braces, a number.
const CANARIES: [&str; 5] = [
    "canary",
    "https://canary:canary@example.org/canary",
    "canary\r\nX-Injected: canary\0",
    "{canary} ${TOKEN} canary",
    "7777777",
];

fn assert_silent(told: &str, canary: &str, pointer: &str) {
    assert!(
        !told.contains("canary") && !told.contains("7777777"),
        "{pointer} with {canary:?} is told:\n{told}"
    );
}

#[test]
fn the_pack_with_every_field_loads() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("demo")).unwrap();
    fs::write(root.path().join("demo/child.env"), "A=b\n").unwrap();
    fs::write(
        root.path().join("demo/agent-pack.yaml"),
        everything().to_string(),
    )
    .unwrap();
    let report = packs::check(root.path(), &env(&[]), None);
    assert_eq!(report.to_string(), "1 pack: 0 errors, 0 warnings");
}

#[test]
fn a_value_in_any_field_is_never_part_of_a_problem() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("demo");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("child.env"), "A=b\n").unwrap();
    let mut found = Vec::new();
    pointers(&everything(), "", &mut found);
    assert!(found.len() > 80);
    let mut broken = 0;
    for pointer in &found {
        for canary in CANARIES {
            let env = env(&[("CANARY", canary), ("TOKEN", "t")]);
            let mut pack = everything();
            *pack.pointer_mut(pointer).unwrap() = Value::from("${CANARY}");
            fs::write(folder.join("agent-pack.yaml"), pack.to_string()).unwrap();
            broken += usize::from(!look(root.path(), &env, None, canary, pointer));
        }
    }
    assert!(broken > 200, "only {broken} of the packs were broken");
}

/// Checks and loads; answers whether the packs are good.
fn look(
    root: &std::path::Path,
    env: &Environment,
    servers: Option<&Secret>,
    canary: &str,
    pointer: &str,
) -> bool {
    let report = packs::check(root, env, servers);
    assert_silent(&report.to_string(), canary, pointer);
    assert_silent(&serde_json::to_string(&report).unwrap(), canary, pointer);
    match PackStore::load(root, env, servers) {
        Ok(_) => assert!(report.is_ok(), "{pointer}"),
        Err(error) => assert_silent(&format!("{error} {error:?}"), canary, pointer),
    }
    report.is_ok()
}

#[test]
fn servers_from_the_environment_are_never_quoted() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("demo");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("child.env"), "A=b\n").unwrap();
    let mut pack = everything();
    pack.as_object_mut().unwrap().remove("mcp");
    fs::write(folder.join("agent-pack.yaml"), pack.to_string()).unwrap();
    let mut found = Vec::new();
    pointers(&servers(), "", &mut found);
    for pointer in &found {
        for canary in CANARIES {
            let env = env(&[("CANARY", canary), ("TOKEN", "t")]);
            let mut servers = servers();
            *servers.pointer_mut(pointer).unwrap() = Value::from("${CANARY}");
            look(
                root.path(),
                &env,
                Some(&Secret::new(servers.to_string())),
                canary,
                pointer,
            );
        }
    }
}

/// The same for other formats, and for what `explain` and `import` write.
#[test]
fn a_value_is_never_told_whatever_the_format() {
    let workspace = "mcp_registry: { servers: { a: { type: remote, url: \"https://a.example.org\", headers: { K: \"x {env:CANARY}\" } }, b: { type: local, command: [x], environment: { K: \"{env:CANARY}\" } } } }\n";
    let agent = "name: \"${CANARY}\"\ndescription: \"${CANARY}\"\nmodel: { provider: openai, name: \"${CANARY}\", endpoint: \"${CANARY}\", api_key: \"${CANARY}\" }\ninstructions: \"${CANARY}\"\ntools:\n  - { type: mcp, name: \"${CANARY}\", description: \"${CANARY}\", server: s, command: uvx, args: [\"${CANARY}\"], env: { K: \"${CANARY}\" }, envFile: \"${CANARY}\", encoding: \"${CANARY}\", config: { k: \"${CANARY}\" } }\n  - { type: mcp, name: b, description: d, server: s, transport: sse, url: \"${CANARY}\", headers: { K: \"${CANARY}\" } }\n";
    let aos = "schema: aos/mcp/v1\nid: main\nservers:\n  - { id: a, transport: stdio, command: x, env: { K: \"${CANARY}\" } }\n  - { id: b, transport: http, url: \"https://b.example.org\", auth_ref: CANARY }\n";
    for file in [
        ("workspace.yaml", workspace),
        ("agent.yaml", agent),
        ("core/mcp/a.yaml", aos),
    ] {
        for canary in CANARIES {
            let root = crate::support::packs::folder_of(&[file]);
            let env = env(&[("CANARY", canary), ("TOKEN", "t")]);
            look(root.path(), &env, None, canary, file.0);
            for told in [
                packs::explain(root.path(), &env, None).unwrap_or_else(|error| error.to_string()),
                packs::import(root.path(), &env)
                    .map_or_else(|error| error.to_string(), |imported| imported.text),
            ] {
                assert_silent(&told, canary, file.0);
            }
        }
    }
}

#[test]
fn headers_arguments_variables_and_keys_cannot_be_printed() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("demo");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("child.env"), "A=canary\n").unwrap();
    let mut pack = everything();
    for pointer in [
        "/llm/apiKey",
        "/mcp/servers/0/headers/Authorization",
        "/mcp/servers/1/args/0",
        "/mcp/servers/1/env/E",
    ] {
        *pack.pointer_mut(pointer).unwrap() = Value::from("${CANARY}");
    }
    fs::write(folder.join("agent-pack.yaml"), pack.to_string()).unwrap();
    let store = PackStore::load(root.path(), &env(&[("CANARY", "canary")]), None).unwrap();
    for pack in store.snapshot().packs() {
        assert!(!format!("{pack:?}").contains("canary"));
    }
}

/// A literal where a secret stands is not told either, however its author broke the pack around it: by a key that is
/// there twice, a slip in a field's name, a list in place of a map, or no valid YAML at all.
#[test]
fn a_literal_secret_is_never_quoted_however_the_pack_is_broken() {
    let native =
        |lines: &str| format!("metadata: {{ id: demo }}\nlanguages: {{ en: {{}} }}\n{lines}\n");
    let server = |lines: &str| {
        native(&format!(
            "llm: {{ provider: none }}\nmcp:\n  servers:\n    - name: a\n      {lines}\n"
        ))
    };
    let broken = [
        server("headers: { Authorization: Bearer a, Authorization: Bearer hunter2 }"),
        server("headers: \"Authorization: Bearer hunter2\""),
        server("headers: [\"Authorization: Bearer hunter2\"]"),
        server("header: { Authorization: \"Bearer hunter2\" }"),
        server("env: [\"TOKEN=hunter2\"]"),
        server("environ: { TOKEN: hunter2 }"),
        server("args: \"--token hunter2\""),
        server("transport: stdio\n      command: npx --token hunter2"),
        server("transport: sse\n      url: ftp://a.example.org/mcp?key=hunter2"),
        server("transport: sse\n      url: \"https://me:hunter2@a b/mcp\""),
        server("transport: sse\n      url: https://a.example.org\n      headers: { K: \"${hunter2-x}\" }")
            .replace("hunter2-x", "x-hunter2"),
        native("llm: { provider: openai, model: m, api_key: hunter2 }"),
        native("llm: { provider: openai, model: m, apiKey: [hunter2] }"),
        native("llm: { provider: openai, model: m, apiKey: { value: hunter2 } }"),
        native("llm: { provider: openai, apiKey: a }\nllm: { provider: openai, apiKey: hunter2 }"),
        native("llm: { provider: none }\npat: hunter2"),
        native("llm: { provider: none }\nx: { <<: { apiKey: hunter2 } }"),
        native("llm: { \"apiKey\":\"hunter2\" ]"),
        native("llm:\n  - hunter2 : : x"),
        native("llm:\n  apiKey: >-\n    hunter2\n   hunter2 ["),
    ];
    let of = |file: &'static str, text: &str| (file, text.to_owned());
    let holaos = "mcp_registry: { servers: { a: { type: remote, url: \"https://a.example.org\", ";
    let holodeck = "name: n\ndescription: d\ntools:\n  - { type: mcp, name: a, server: s, description: d, command: npx, ";
    let aos = "id: a\ntransport: stdio\n";
    let others = [
        of(
            "workspace.yaml",
            &format!("{holaos}headers: {{ K: a, K: hunter2 }} }} }} }}"),
        ),
        of(
            "workspace.yaml",
            &format!("{holaos}headers: [\"K=hunter2\"] }} }} }}"),
        ),
        of(
            "workspace.yaml",
            &format!("{holaos}headers: {{ K: [hunter2] }} }} }} }}"),
        ),
        of(
            "workspace.yaml",
            "mcp_registry: { servers: { a: { type: local, command: \"npx --key hunter2\" } } }",
        ),
        of(
            "workspace.yaml",
            "mcp_registry: { servers: { a: { type: local, command: [npx, 5, hunter2] } } }",
        ),
        of(
            "agent.yaml",
            &format!("{holodeck}env: {{ A: 5, B: [hunter2] }} }}"),
        ),
        of(
            "agent.yaml",
            "name: n\ndescription: d\nmodel: { provider: moon, name: m, api_key: hunter2 }\ntools: []",
        ),
        of(
            "core/mcp/a.yaml",
            &format!("{aos}command: npx\nenviron: {{ K: hunter2 }}"),
        ),
        of(
            "core/mcp/a.yaml",
            &format!("{aos}command: npx\nenv: {{ K: hunter2, L: 5 }}"),
        ),
    ];
    let native = broken.into_iter().map(|text| ("agent-pack.yaml", text));
    for (file, text) in native.chain(others) {
        let report = checked(&[(file, &text)], &env(&[]));
        assert!(
            report.problems.iter().any(|problem| problem.at.is_some()) && !report.is_ok(),
            "{text}\n{report}"
        );
        assert!(!report.to_string().contains("hunter2"), "{text}\n{report}");
        assert!(
            !serde_json::to_string(&report).unwrap().contains("hunter2"),
            "{text}\n{report}"
        );
    }
}
