//! The registry document: entries, references and requests, as they stand there. How each of its rules comes
//! out in detail is in `registry/document.rs`.

use std::{collections::BTreeMap, fs};

use domain::{
    config::Environment,
    json::Members,
    pack::Pack,
    registry::{
        Rules,
        resolve::{ReferenceValues, Sources, resolve},
    },
    server::Endpoint,
};
use packs::PackStore;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::snippet;
use crate::support::packs::{MINIMAL, env};

/// The JSON of a snippet, below the line of a request or answer if there is one.
fn body(text: &str) -> Value {
    let start = text.find('{').unwrap();
    serde_json::from_str(&text[start..]).unwrap()
}

/// The snippets that show several things, each below a comment.
fn parts(text: &str) -> Vec<Value> {
    let mut parts: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with("//") {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
        }
    }
    parts
        .iter()
        .map(|part| serde_json::from_str(part).unwrap())
        .collect()
}

struct Written {
    entries: Vec<Value>,
    capabilities: Vec<(&'static str, String)>,
    agent: Value,
}

impl Written {
    fn files(&self) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("demo");
        fs::create_dir_all(folder.join("registry")).unwrap();
        fs::create_dir_all(root.path().join("capabilities")).unwrap();
        let fields = self.agent.as_object().unwrap().iter();
        let agent: Vec<_> = fields
            .map(|(key, value)| {
                format!(
                    "\"{key}\": {value}
"
                )
            })
            .collect();
        let agent = agent.concat();
        fs::write(folder.join("agent-pack.yaml"), format!("{MINIMAL}{agent}")).unwrap();
        for (at, entry) in self.entries.iter().enumerate() {
            fs::write(
                folder.join(format!("registry/{at}.json")),
                entry.to_string(),
            )
            .unwrap();
        }
        for (name, text) in &self.capabilities {
            fs::write(root.path().join(format!("capabilities/{name}.yaml")), text).unwrap();
        }
        root
    }

    fn load(&self) -> Pack {
        let root = self.files();
        let library = PackStore::load(root.path(), &env(&[]), None).unwrap();
        Pack::clone(library.snapshot().packs().next().unwrap())
    }

    /// Alias → type, address and configuration, for a request.
    fn resolved(&self, request: &Value, env: &Environment) -> Result<Value, String> {
        let pack = self.load();
        let given = |name: &str| request[name].as_object().cloned().unwrap_or_default();
        let run = ReferenceValues::default()
            .params(&Members::from(&given("params")))
            .scope(&Members::from(&given("scope")))
            .runtime("session-xyz", "run-abc-123")
            .runner("http://127.0.0.1:54321/mcp");
        let (mut servers, secrets) = (Map::new(), BTreeMap::new());
        for reference in &pack.references {
            let entry = pack
                .entries
                .iter()
                .find(|entry| entry.id == reference.entry)
                .expect("an entry of the snippets");
            let sources = Sources {
                env,
                rules: Rules::Operator,
                of_admins: Rules::Operator,
                secrets: &secrets,
                run: &run,
            };
            let resolved = resolve(entry, reference, sources).map_err(|error| error.to_string())?;
            let Endpoint::Remote { url, .. } = &resolved.spec.endpoint else {
                panic!("not over HTTP")
            };
            let config: Map<String, Value> = resolved
                .config
                .iter()
                .map(|key| (key.key.clone(), key.value.expose().into()))
                .collect();
            servers.insert(
                resolved.alias.to_string(),
                json!({ "type": "http", "url": url.as_str(), "config": config }),
            );
        }
        Ok(Value::Object(servers))
    }
}

fn entry_of(entry: Value) -> Result<Pack, String> {
    let written = Written {
        entries: vec![entry],
        capabilities: Vec::new(),
        agent: json!({}),
    };
    let report = packs::check(written.files().path(), &env(&[]), None);
    if report.is_ok() {
        Ok(written.load())
    } else {
        Err(report.to_string())
    }
}

#[test]
fn run_scope_and_parameters_reach_the_configuration_they_are_named_in() {
    let written = Written {
        entries: vec![body(&snippet("registry", 6))],
        capabilities: Vec::new(),
        agent: body(&snippet("registry", 7)),
    };
    for request in [
        body(&snippet("registry", 1)),
        body(&snippet("registry", 10)),
    ] {
        let resolved = written.resolved(&request, &env(&[])).unwrap();
        assert_eq!(
            resolved["context-store"]["config"],
            json!({ "context_id": "ctx-123" })
        );
    }
}

#[test]
fn the_validation_example() {
    let mut entry = json!({ "id": "store", "url": "http://localhost:9501/mcp" });
    entry
        .as_object_mut()
        .unwrap()
        .extend(body(&snippet("registry", 2)).as_object().unwrap().clone());
    let mut reference = json!({ "ref": "store" });
    reference
        .as_object_mut()
        .unwrap()
        .extend(body(&snippet("registry", 3)).as_object().unwrap().clone());
    let agent = json!({ "mcpServers": { "docs": reference } });
    let written = Written {
        entries: vec![entry],
        capabilities: Vec::new(),
        agent,
    };
    let resolved = written
        .resolved(&body(&snippet("registry", 4)), &env(&[]))
        .unwrap();
    assert_eq!(
        resolved["docs"]["config"],
        json!({ "context_id": "ctx-123" })
    );
    let refused = written.resolved(&json!({}), &env(&[])).unwrap_err();
    assert_eq!(json!({ "error": refused }), body(&snippet("registry", 5)));
}

#[test]
fn entries_are_taken_as_they_stand() {
    let store = entry_of(body(&snippet("registry", 6))).unwrap();
    let schema = &store.entries[0].definition.config_schema;
    assert_eq!(
        (
            store.entries[0].id.as_str(),
            store.entries[0].definition.name.as_str()
        ),
        ("context-store", "Context Store")
    );
    assert!(
        schema["context_id"].required
            && schema["api_key"].sensitive
            && !schema["workflow_id"].required
    );
    let orchestrator = entry_of(body(&snippet("registry", 8))).unwrap();
    assert!(orchestrator.entries[0].definition.config_schema["run_id"].internal);
    let atlassian = entry_of(body(&snippet("registry", 9))).unwrap();
    assert_eq!(atlassian.entries[0].defaults.len(), 1);
}

#[test]
fn the_payload_holds_what_was_resolved() {
    let mut entry = body(&snippet("registry", 6));
    entry["default_config"]["api_key"] = json!("${env.CONTEXT_STORE_API_KEY}");
    let agent = body(&snippet("registry", 7));
    let written = Written {
        entries: vec![entry],
        capabilities: Vec::new(),
        agent,
    };
    let env = env(&[("CONTEXT_STORE_API_KEY", "sk-xxxx-actual-key")]);
    let resolved = written
        .resolved(&body(&snippet("registry", 10)), &env)
        .unwrap();
    assert_eq!(
        resolved,
        body(&snippet("registry", 11))["resolved_mcp_servers"]
    );
}

/// `promised` is the configuration that the example ends with.
fn example(written: &Written, request: &str, env: &Environment, promised: &str) {
    let resolved = written.resolved(&body(request), env).unwrap();
    assert_eq!(json!({ "mcpServers": resolved }), body(promised));
}

#[test]
fn example_1_a_context_store_with_scoping() {
    let written = Written {
        entries: vec![body(&snippet("registry", 12))],
        capabilities: vec![("research-capability", snippet("registry", 13))],
        agent: body(&snippet("registry", 14)),
    };
    assert!(written.load().params.unwrap()["topic"].required);
    example(
        &written,
        &snippet("registry", 15),
        &env(&[]),
        &snippet("registry", 16),
    );
}

#[test]
fn example_2_atlassian_with_an_api_key() {
    let written = Written {
        entries: vec![body(&snippet("registry", 17))],
        capabilities: vec![("jira-access", snippet("registry", 18))],
        agent: body(&snippet("registry", 19)),
    };
    assert!(written.load().params.unwrap()["task"].required);
    let env = env(&[(
        "ATLASSIAN_API_KEY",
        "sk-xxxx-actual-key-from-coordinator-env",
    )]);
    example(
        &written,
        &snippet("registry", 20),
        &env,
        &snippet("registry", 21),
    );
}

#[test]
fn example_3_the_orchestrator() {
    let written = Written {
        entries: vec![
            body(&snippet("registry", 22)),
            body(&snippet("registry", 12)),
        ],
        capabilities: vec![
            ("orchestration", snippet("registry", 23)),
            ("research-capability", snippet("registry", 13)),
        ],
        agent: body(&snippet("registry", 24)),
    };
    example(
        &written,
        &snippet("registry", 25),
        &env(&[]),
        &snippet("registry", 26),
    );
}

#[test]
fn example_4_agents_share_a_server_with_different_configuration() {
    let entry = body(&snippet("registry", 27));
    let agents = parts(&snippet("registry", 28));
    let requests = parts(&snippet("registry", 29));
    let promised = [
        json!({ "partition": "team-alpha" }),
        json!({ "partition": "team-beta" }),
        json!({}),
    ];
    assert_eq!((agents.len(), requests.len()), (3, 3));
    for ((agent, request), config) in agents.into_iter().zip(requests).zip(promised) {
        let written = Written {
            entries: vec![entry.clone()],
            capabilities: Vec::new(),
            agent,
        };
        assert_eq!(
            written.resolved(&request, &env(&[])).unwrap()["kg"]["config"],
            config,
            "{request}"
        );
    }
}

/// What the document calls future work.
#[test]
fn tokens_got_by_the_program() {
    let mut entry = body(&snippet("registry", 30));
    entry["url"] = json!("https://api.example.com/mcp");
    let auth = entry_of(entry).unwrap().entries[0].auth.clone().unwrap();
    assert_eq!(auth.scope.as_deref(), Some("api:read api:write"));
}

#[test]
fn secrets_by_their_names() {
    let mut entry = body(&snippet("registry", 31));
    entry["id"] = json!("atlassian");
    entry["url"] = json!("https://api.example.com/mcp");
    entry["config_schema"] = json!({ "api_key": { "type": "string", "sensitive": true } });
    assert!(
        entry_of(entry).unwrap().entries[0]
            .defaults
            .contains_key("api_key")
    );
}

#[test]
fn what_a_runs_scope_should_have() {
    let mut entry = body(&snippet("registry", 32));
    entry["id"] = json!("store");
    entry["url"] = json!("https://api.example.com/mcp");
    let entry = entry_of(entry).unwrap().entries[0].clone();
    let schema = entry.definition.scope_schema.iter();
    let told: Vec<_> = schema
        .map(|(key, said)| (key.as_str(), said.description.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("context_id", "Context for document scoping"),
            ("workflow_id", "Workflow correlation")
        ]
    );
}
