//! The document's examples, word for word: entries and capabilities as files, agents in the least pack around
//! them, requests as they are written there, and the resolved configuration that the document promises.

use std::fs;

use domain::{
    config::Environment,
    json::Members,
    pack::Pack,
    registry::{
        Rules,
        merge::merge,
        resolve::{ReferenceValues, Sources, resolve},
    },
    server::Endpoint,
};
use packs::PackStore;
use serde_json::{Map, Value, json};

use crate::support::packs::{MINIMAL, env};

pub(super) struct Example {
    pub entries: &'static [&'static str],
    pub capabilities: &'static [(&'static str, &'static str)],
    /// The lines of the agent, as JSON without its braces.
    pub agent: &'static str,
}

impl Example {
    pub fn load(&self) -> Pack {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("demo");
        fs::create_dir_all(folder.join("registry")).unwrap();
        fs::create_dir_all(root.path().join("capabilities")).unwrap();
        fs::write(
            folder.join("agent-pack.yaml"),
            format!("{MINIMAL}{}", self.agent.trim()),
        )
        .unwrap();
        for (at, entry) in self.entries.iter().enumerate() {
            fs::write(folder.join(format!("registry/{at}.json")), entry).unwrap();
        }
        for (name, json) in self.capabilities {
            fs::write(root.path().join(format!("capabilities/{name}.yaml")), json).unwrap();
        }
        let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
        Pack::clone(store.snapshot().packs().next().unwrap())
    }

    /// `{"mcpServers": …}` as the document shows it, for a request as the document shows it.
    pub fn resolved(&self, request: &str, env: &Environment) -> Result<Value, String> {
        let (pack, request) = (self.load(), serde_json::from_str::<Value>(request).unwrap());
        let given = |name: &str| request[name].as_object().cloned().unwrap_or_default();
        let run = ReferenceValues::default()
            .params(&Members::from(&given("params")))
            .scope(&Members::from(&given("scope")))
            .runtime("session-xyz", "run-abc-123")
            .runner("http://127.0.0.1:54321/mcp");
        let (mut servers, secrets) = (Map::new(), std::collections::BTreeMap::new());
        for reference in &pack.references {
            let entry = pack
                .entries
                .iter()
                .find(|entry| entry.id == reference.entry)
                .expect("an entry of the example");
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
            let server = json!({ "type": "http", "url": url.as_str(), "config": config });
            servers.insert(resolved.alias.to_string(), server);
        }
        Ok(json!({ "mcpServers": servers }))
    }
}

fn promised(document: &str) -> Value {
    serde_json::from_str(document).unwrap()
}

pub const CONTEXT_STORE: &str = r#"{
  "id": "context-store",
  "url": "http://localhost:9501/mcp",
  "config_schema": {
    "context_id": {"type": "string", "required": true, "description": "Context for document isolation"},
    "workflow_id": {"type": "string", "required": false, "description": "Workflow correlation ID"}
  },
  "default_config": {
    "context_id": "default"
  }
}"#;

pub const RESEARCH: &str = r#"{
  "mcpServers": {
    "docs": {
      "ref": "context-store",
      "config": {
        "context_id": "${scope.context_id}"
      }
    }
  }
}"#;

#[test]
fn example_1_a_context_store_with_scoping() {
    let example = Example {
        entries: &[CONTEXT_STORE],
        capabilities: &[("research-capability", RESEARCH)],
        agent: r#"
"capabilities": ["research-capability"]
"params_schema": {
    "topic": {"type": "string", "required": true}
  }
"#,
    };
    assert!(example.load().params.unwrap()["topic"].required);
    let request = r#"{
  "agent_name": "sprint-researcher",
  "params": {"topic": "API design"},
  "scope": {"context_id": "sprint-42"}
}"#;
    let expected = r#"{
  "mcpServers": {
    "docs": {
      "type": "http",
      "url": "http://localhost:9501/mcp",
      "config": {
        "context_id": "sprint-42"
      }
    }
  }
}"#;
    assert_eq!(
        example.resolved(request, &env(&[])).unwrap(),
        promised(expected)
    );
}

pub const ATLASSIAN: &str = r#"{
  "id": "atlassian",
  "url": "http://localhost:9000/mcp",
  "config_schema": {
    "api_key": {"type": "string", "required": true, "sensitive": true, "description": "Atlassian API key"},
    "jira_projects": {"type": "string", "required": false, "description": "Comma-separated project keys"}
  }
}"#;

pub const JIRA: &str = r#"{
  "mcpServers": {
    "jira": {
      "ref": "atlassian",
      "config": {
        "api_key": "${env.ATLASSIAN_API_KEY}",
        "jira_projects": "${scope.allowed_projects}"
      }
    }
  }
}"#;

#[test]
fn example_2_atlassian_with_an_api_key() {
    let example = Example {
        entries: &[ATLASSIAN],
        capabilities: &[("jira-access", JIRA)],
        agent: r#"
"capabilities": ["jira-access"]
"params_schema": {
    "task": {"type": "string", "required": true}
  }
"#,
    };
    let request = r#"{
  "agent_name": "project-assistant",
  "params": {"task": "List open bugs"},
  "scope": {"allowed_projects": "ALPHA,BETA"}
}"#;
    let expected = r#"{
  "mcpServers": {
    "jira": {
      "type": "http",
      "url": "http://localhost:9000/mcp",
      "config": {
        "api_key": "sk-xxxx-actual-key-from-coordinator-env",
        "jira_projects": "ALPHA,BETA"
      }
    }
  }
}"#;
    let env = env(&[(
        "ATLASSIAN_API_KEY",
        "sk-xxxx-actual-key-from-coordinator-env",
    )]);
    assert_eq!(example.resolved(request, &env).unwrap(), promised(expected));
}

pub const ORCHESTRATOR: &str = r#"{
  "id": "orchestrator",
  "url": "${runner.orchestrator_mcp_url}",
  "config_schema": {
    "run_id": {"type": "string", "required": true, "internal": true, "description": "Current run ID"}
  }
}"#;

pub const ORCHESTRATION: &str = r#"{
  "mcpServers": {
    "orchestrator": {
      "ref": "orchestrator",
      "config": {
        "run_id": "${runtime.run_id}"
      }
    }
  }
}"#;

#[test]
fn example_3_the_orchestrator() {
    let example = Example {
        entries: &[ORCHESTRATOR, CONTEXT_STORE],
        capabilities: &[
            ("orchestration", ORCHESTRATION),
            ("research-capability", RESEARCH),
        ],
        agent: r#"
"capabilities": ["orchestration", "research-capability"]
"params_schema": {
    "research_topic": {"type": "string", "required": true}
  }
"#,
    };
    let request = r#"{
  "agent_name": "lead-researcher",
  "params": {"research_topic": "Authentication patterns"},
  "scope": {"context_id": "project-123", "workflow_id": "wf-789"}
}"#;
    let expected = r#"{
  "mcpServers": {
    "orchestrator": {
      "type": "http",
      "url": "http://127.0.0.1:54321/mcp",
      "config": {
        "run_id": "run-abc-123"
      }
    },
    "docs": {
      "type": "http",
      "url": "http://localhost:9501/mcp",
      "config": {
        "context_id": "project-123"
      }
    }
  }
}"#;
    assert_eq!(
        example.resolved(request, &env(&[])).unwrap(),
        promised(expected)
    );
}

pub const NEO4J: &str = r#"{
  "id": "neo4j",
  "url": "http://localhost:9003/mcp/",
  "config_schema": {
    "partition": {"type": "string", "required": false}
  }
}"#;

#[test]
fn example_4_agents_share_a_server_with_different_config() {
    let team = r#"
  "mcpServers": {
    "kg": {
      "ref": "neo4j",
      "config": {"partition": "${scope.team_partition}"}
    }
  }
"#;
    let global = r#"
  "mcpServers": {
    "kg": {
      "ref": "neo4j",
      "config": {}
    }
  }
"#;
    let alpha =
        r#"{"agent_name": "team-alpha-analyst", "scope": {"team_partition": "team-alpha"}}"#;
    let beta = r#"{"agent_name": "team-beta-analyst", "scope": {"team_partition": "team-beta"}}"#;
    let nobody = r#"{"agent_name": "global-analyst", "scope": {}}"#;
    for (agent, request, config) in [
        (team, alpha, json!({ "partition": "team-alpha" })),
        (team, beta, json!({ "partition": "team-beta" })),
        (global, nobody, json!({})),
    ] {
        let example = Example {
            entries: &[NEO4J],
            capabilities: &[],
            agent,
        };
        let resolved = example.resolved(request, &env(&[])).unwrap();
        assert_eq!(resolved["mcpServers"]["kg"]["config"], config, "{request}");
    }
}

const VALIDATED: Example = Example {
    entries: &[r#"{"id": "store", "url": "http://localhost:9501/mcp",
  "config_schema": {
    "context_id": {"type": "string", "required": true},
    "workflow_id": {"type": "string", "required": false}
  }
}"#],
    capabilities: &[],
    agent: r#""mcpServers": {"docs": {"ref": "store",
  "config": {
    "context_id": "${scope.context_id}",
    "workflow_id": "${scope.workflow_id}"
  }
}}"#,
};

#[test]
fn a_missing_optional_value_leaves_its_key_out() {
    let resolved = VALIDATED
        .resolved(r#"{ "scope": {"context_id": "ctx-123"} }"#, &env(&[]))
        .unwrap();
    assert_eq!(
        resolved["mcpServers"]["docs"]["config"],
        json!({ "context_id": "ctx-123" })
    );
}

#[test]
fn a_missing_required_value_is_said_in_the_documents_words() {
    let missing = "Missing required value: scope.context_id for config key 'context_id'";
    for request in [
        "{}",
        r#"{ "scope": {"workflow_id": "w"} }"#,
        r#"{ "scope": {"context_id": null} }"#,
    ] {
        assert_eq!(VALIDATED.resolved(request, &env(&[])).unwrap_err(), missing);
    }
    // A server that is asked to limit itself to nothing may take it for no limit.
    assert_eq!(
        VALIDATED
            .resolved(r#"{ "scope": {"context_id": " "} }"#, &env(&[]))
            .unwrap_err(),
        missing
    );
}

#[test]
fn the_resolution_example_comes_out_as_it_says() {
    let example = Example {
        entries: &[
            r#"{"id": "context-store", "url": "http://localhost:9501/mcp",
          "config_schema": {"context_id": {"type": "string"}, "api_key": {"type": "string", "sensitive": true}},
          "default_config": {"context_id": "default", "api_key": "${env.CONTEXT_STORE_API_KEY}"}}"#,
        ],
        capabilities: &[("research-tools", RESEARCH)],
        agent: r#""capabilities": ["research-tools"]"#,
    };
    let env = env(&[("CONTEXT_STORE_API_KEY", "sk-xxxx-actual-key")]);
    let resolved = example
        .resolved(r#"{"scope": {"context_id": "project-alpha"}}"#, &env)
        .unwrap();
    let expected = json!({ "api_key": "sk-xxxx-actual-key", "context_id": "project-alpha" });
    assert_eq!(resolved["mcpServers"]["docs"]["config"], expected);
}

#[test]
fn later_levels_win_and_null_takes_a_key_away() {
    let entries: &[&str] = &[r#"{"id": "store", "url": "https://store.example.org/mcp",
      "config_schema": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "string"}, "d": {"type": "string"}},
      "default_config": {"a": "registry", "b": "registry", "c": "registry", "d": "registry"}}"#];
    let example = Example {
        entries,
        capabilities: &[(
            "one",
            r#"{"mcpServers": {"docs": {"ref": "store", "config": {"b": "capability", "c": "capability", "d": null}}}}"#,
        )],
        agent: r#"
"capabilities": ["one"]
"mcpServers": {"docs": {"ref": "store", "config": {"c": "agent", "a": null}}}"#,
    };
    let resolved = example.resolved("{}", &env(&[])).unwrap();
    assert_eq!(
        resolved["mcpServers"]["docs"]["config"],
        json!({ "b": "capability", "c": "agent" })
    );
    let pack = example.load();
    let merged = merge(&pack.entries[0], &pack.references[0]).unwrap();
    let origins: Vec<_> = merged
        .values()
        .map(|key| key.origin.as_ref().unwrap().to_string())
        .collect();
    assert_eq!(
        origins,
        ["agent", "capability one", "agent", "capability one"]
    );
}
