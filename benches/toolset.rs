//! Deciding who sees which of 1,000 tools. There is nothing here that could do I/O: no function is `async`, and
//! none has a socket or a database.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use chatelaine::app::tools::toolset::{AgentTools, Toolset};
use domain::{
    clock::Clock,
    config::Environment,
    ids::{AgentId, ServerId},
    json::Json,
    pack::Pack,
    policy::{CallFacts, Decision, EffectiveAccess, Origin, decide},
    tool::{CacheHints, Catalog, Tool},
};
use packs::PackStore;
use serde_json::{Map, json, value::to_raw_value};

use super::table::{
    Amount::Time,
    Target::{self, AtMost, Unset},
    repeat, row,
};

const SERVERS: usize = 10;
const TOOLS_EACH: usize = 100;
const POLICIES: usize = 50;

pub fn measure() {
    let pack = Arc::new(pack());
    let catalogs: Vec<_> = pack
        .servers
        .iter()
        .map(|server| Some(Arc::new(catalog(server.id.clone()))))
        .collect();
    let naming = repeat(101, 10, || {
        AgentTools::new(pack.clone(), catalogs.clone(), Arc::default())
    });
    let usable = vec![true; pack.servers.len()];
    let all = Arc::new(AgentTools::new(pack, catalogs, Arc::default()));
    let of = |roles: &[&str]| EffectiveAccess {
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        admin: false,
        is_guest: false,
    };

    for (who, standing) in [
        ("the last of 4 roles", of(&["auditor"])),
        ("no role", of(&[])),
    ] {
        let build = repeat(201, 20, || {
            Toolset::build(all.clone(), standing.clone(), usable.clone())
        });
        let seen = Toolset::build(all.clone(), standing, usable.clone()).len();
        let figure = format!("decide on 1,000 tools and build the toolset, {who}");
        row(
            &figure,
            &AtMost(Time(Duration::from_micros(100))),
            Time(build.median()),
            &format!("{seen} tools in it"),
        );
    }
    let standing = of(&["auditor"]);
    let toolset = all.select(standing.clone(), usable.clone());
    let warm = repeat(201, 1000, || all.select(standing.clone(), usable.clone()));
    row(
        "the toolset of a known standing",
        &Unset,
        Time(warm.median()),
        "",
    );
    let found = toolset
        .iter()
        .last()
        .map(|(_, tool)| tool.name.clone())
        .expect("the role has tools");
    let found = repeat(201, 1000, || toolset.by_name(&found).is_some());
    row(
        "a tool in it, by the model's name for it",
        &Unset,
        Time(found.median()),
        "",
    );
    row(
        "name 1,000 tools",
        &Unset,
        Time(naming.median()),
        "once per pack and catalog",
    );
    decide_with_conditions(
        "decide on a call with 50 policies, each with a condition",
        &AtMost(Time(Duration::from_micros(20))),
        "",
    );
    decide_with_conditions(
        "the same with two comparisons in each condition",
        &Unset,
        " || !(args.to in vars.known)",
    );
}

/// Deciding about one call that 50 policies look into, each with a condition of its own.
fn decide_with_conditions(figure: &str, target: &Target, more: &str) {
    let mut yaml =
        "metadata: { id: many, displayName: Many, description: Rules, defaultLanguage: en }
languages: { en: {} }
llm: { provider: none }
flows: { authentication: { rolesAttribute: roles } }
vars: { known: [acme, globex, initech] }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: https://bank.example.com/mcp
      toolAccess:
        default: users
        approval:
"
        .to_owned();
    for at in 0..POLICIES {
        writeln!(
            yaml,
            "          - {{ tools: [send_money], when: \"args.amount > {}.5{more}\", approvers: [cfo] }}",
            1000 + at
        )
        .unwrap();
    }
    let pack = load(&yaml);
    let arguments =
        r#"{ "amount": 20.25, "to": "acme", "note": "for the last invoice", "currency": "EUR" }"#;
    let arguments = Json::parse(arguments).unwrap();
    let facts = CallFacts {
        arguments: &arguments,
        claims: &Map::new(),
        origin: Origin::Chat,
        now: Clock::System.now(),
        vars: &pack.vars,
        exceeded: &[],
        only_reads: false,
    };
    let who = EffectiveAccess::default();
    let decided = || {
        matches!(
            decide(&pack.servers[0], &who, "send_money", &facts),
            Decision::Allow(_)
        )
    };
    assert!(decided(), "all of them are asked");
    let times = repeat(201, 200, decided);
    row(figure, target, Time(times.median()), "");
}

/// Servers with a list of tools, rules for four roles with a pattern each, and an approval policy.
fn pack() -> Pack {
    let mut yaml =
        "metadata: { id: many, displayName: Many, description: Tools, defaultLanguage: en }
languages: { en: { systemPrompt: You have tools. } }
llm: { provider: none, model: none }
flows: { authentication: { required: true, rolesAttribute: roles } }
mcp:
  servers:
"
        .to_owned();
    for at in 0..SERVERS {
        write!(
            yaml,
            "    - name: server-{at}
      transport: streamable-http
      url: https://server-{at}.example.com/mcp
      tools: [\"get_*\", \"set_*\", \"send_*\", \"list_*\"]
      toolAccess:
        default: none
        roles:
          employee: [\"get_*\", list_thing_0, list_thing_4]
          finance: [\"get_*\", \"list_*\", \"send_*\"]
          manager: [\"*_thing_1*\"]
          auditor: [\"get_*\", \"list_*\", \"set_thing_9*\"]
        approval:
          - {{ tools: [\"send_*\"], approvers: [manager] }}
"
        )
        .unwrap();
    }
    load(&yaml)
}

fn load(yaml: &str) -> Pack {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("many")).unwrap();
    std::fs::write(folder.path().join("many/agent-pack.yaml"), yaml).unwrap();
    let library = PackStore::load(folder.path(), &Environment::default(), None).unwrap();
    Pack::clone(&library.get(&AgentId::parse("many").unwrap()).unwrap())
}

fn catalog(server: ServerId) -> Catalog {
    let tool = |at: usize| {
        let verb = ["get", "set", "send", "list"][at % 4];
        let properties = json!({ "id": { "type": "string" }, "count": { "type": "integer" } });
        Arc::new(Tool {
            name: format!("{verb}_thing_{at}"),
            title: None,
            description: "Does something with a thing.".to_owned(),
            input_schema: to_raw_value(&json!({ "type": "object", "properties": properties }))
                .unwrap(),
            output_schema: None,
            annotations: None,
            icons: None,
            meta: None,
            hash: None,
        })
    };
    Catalog {
        cache: CacheHints::default(),
        server,
        tools: (0..TOOLS_EACH).map(tool).collect(),
        prompts: Vec::new(),
        dropped: Vec::new(),
        fetched_at: Clock::System.now(),
        version: "1".to_owned(),
    }
}
