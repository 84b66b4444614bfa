//! The packs that come with the program.

use std::{collections::BTreeSet, path::Path};

use domain::{
    config::Environment,
    ids::AgentId,
    pack::{Pack, Provider},
    policy::{EffectiveAccess, Offer, is_offered, offer},
    server::AccessMode,
};
use packs::PackStore;

use crate::support::packs::env;

const VARIABLES: &[(&str, &str)] = &[
    ("BANK_MCP_URL", "http://127.0.0.1:9000/mcp"),
    ("CONTEXT7_API_KEY", "c7"),
    ("LLM_MODEL", ""),
    ("LLM_PROVIDER", "none"),
    ("MCP_TIME_COMMAND", "/usr/bin/python3"),
    ("BANK_TOKEN", "token"),
    ("NOTES_MCP_URL", "http://127.0.0.1:9001/mcp"),
    ("OPENAI_API_KEY", "sk"),
    ("OPENAI_BASE_URL", ""),
    ("WISE_API_TOKEN", "w"),
    ("WISE_MCP_URL", "https://wise.example.org/mcp"),
];

fn sample(id: &str, env: &Environment) -> Pack {
    let store = PackStore::load(&Path::new("packs").join(id), env, None).unwrap();
    Pack::clone(&store.get(&AgentId::parse(id).unwrap()).unwrap())
}

/// A service of the compose file has what the file and its stage of the Dockerfile give it, and nothing else. The file is
/// read by its lines: names of services stand two columns in, and their variables six.
#[test]
fn the_packs_that_compose_mounts_load_with_what_compose_gives() {
    let file = std::fs::read_to_string("docker-compose.yml").unwrap();
    let docker = std::fs::read_to_string("Dockerfile").unwrap();
    let (_, service) = file.split_once("\n  chatelaine:\n").unwrap();
    let (service, _) = service.split_once("\nconfigs:").unwrap();
    let (_, given) = service.split_once("    environment:\n").unwrap();
    let given = given.lines().map_while(|line| line.strip_prefix("      "));
    let pairs = given.map(|line| line.split_once(": ").unwrap());
    let mut given: Vec<(String, String)> = pairs
        .map(|(name, value)| (name.to_owned(), without_outside(value)))
        .collect();
    let stage = service.split("target: ").nth(1).unwrap();
    let stage = stage.split([' ', '}']).next().unwrap();
    for (at, text) in docker.split("\nFROM ").enumerate() {
        let of_stage = text
            .lines()
            .next()
            .unwrap()
            .ends_with(&format!(" AS {stage}"));
        for line in text.lines().filter(|_| at > 0 && of_stage) {
            let pair = line
                .strip_prefix("ENV ")
                .and_then(|line| line.split_once('='));
            given.extend(pair.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
    }
    let given: Vec<_> = given
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let mounted = service
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- ./"));
    let mounted: Vec<_> = mounted
        .filter_map(|line| line.strip_suffix(":ro"))
        .collect();
    assert_eq!(mounted.len(), 1);
    for line in mounted {
        let (folder, _) = line.split_once(':').unwrap();
        let report = packs::check(Path::new(folder), &env(&given), None);
        assert_eq!(
            report.to_string(),
            "1 pack: 0 errors, 0 warnings",
            "{folder}"
        );
    }
    for line in file.lines().filter(|line| line.contains("build: {")) {
        let target = line
            .split("target: ")
            .nth(1)
            .unwrap()
            .trim_end_matches(" }");
        assert!(docker.contains(&format!(" AS {target}\n")), "{target}");
    }
}

/// What compose makes of a value when nothing is set outside.
fn without_outside(value: &str) -> String {
    let mut parts = value.split("${");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (variable, rest) = part.split_once('}').unwrap();
        text.push_str(variable.split_once(":-").unwrap().1);
        text.push_str(rest);
    }
    text
}

#[test]
fn all_load_without_a_warning_when_their_variables_are_set() {
    let report = packs::check(Path::new("packs"), &env(VARIABLES), None);
    assert_eq!(report.to_string(), "4 packs: 0 errors, 0 warnings");
}

#[test]
fn each_variable_is_needed_and_named_when_it_is_not_set() {
    for (missing, _) in VARIABLES {
        let others: Vec<_> = VARIABLES
            .iter()
            .filter(|(name, _)| name != missing)
            .copied()
            .collect();
        let report = packs::check(Path::new("packs"), &env(&others), None);
        assert!(
            report
                .to_string()
                .contains(&format!("variable `{missing}` is not set")),
            "{report}"
        );
    }
}

#[test]
fn they_can_be_checked_without_any_variable() {
    let report = packs::check_allowing_unset(Path::new("packs"), &env(&[]), None);
    assert_eq!(report.to_string(), "4 packs: 0 errors, 0 warnings");
}

#[test]
fn the_bank_runs_without_a_model_and_with_one() {
    let without = sample("bank", &env(VARIABLES)).llm;
    assert_eq!(without.provider, Provider::None);
    assert_eq!((without.model.as_str(), without.base_url), ("", None));
    let env = env(VARIABLES)
        .with("LLM_PROVIDER", "openai")
        .with("LLM_MODEL", "qwen3:0.6b")
        .with("OPENAI_BASE_URL", "http://127.0.0.1:11434/v1")
        .with("OPENAI_API_KEY", "");
    let with = sample("bank", &env).llm;
    assert_eq!(
        (with.provider, with.model.as_str()),
        (Provider::Openai, "qwen3:0.6b")
    );
    assert_eq!(with.base_url.unwrap().as_str(), "http://127.0.0.1:11434/v1");
    assert!(with.api_key.is_none());
}

#[test]
fn the_bank_gives_each_role_its_tools() {
    let pack = sample("bank", &env(VARIABLES));
    let server = pack.server("bank").unwrap();
    let tools = [
        "get_exchange_rate",
        "list_currencies",
        "get_balances",
        "list_transfers",
        "list_accounts",
        "send_money",
        "create_invoice",
    ];
    let seen = |role: &str| {
        let who = EffectiveAccess {
            roles: BTreeSet::from([role.to_owned()]),
            ..EffectiveAccess::default()
        };
        tools
            .iter()
            .filter(|tool| is_offered(server, &who, tool))
            .count()
    };
    assert_eq!(
        [
            seen("guest"),
            seen("employee"),
            seen("finance"),
            seen("other")
        ],
        [2, 5, 7, 0]
    );
    let finance = EffectiveAccess {
        roles: BTreeSet::from(["finance".to_owned()]),
        ..EffectiveAccess::default()
    };
    assert!(matches!(
        offer(server, &finance, "create_invoice"),
        Offer::Approve { always: true, .. }
    ));
    assert!(matches!(
        offer(server, &finance, "send_money"),
        Offer::Approve { .. }
    ));
    assert_eq!(offer(server, &finance, "get_balances"), Offer::Call);
}

#[test]
fn the_bank_greets_in_three_languages() {
    let pack = sample("bank", &env(VARIABLES));
    for locale in ["en", "es", "fr"] {
        let texts = pack.language(Some(locale));
        assert!(
            texts
                .greeting_message
                .as_ref()
                .unwrap()
                .contains("{userName}")
        );
        assert!(texts.system_prompt.is_some());
    }
}

#[test]
fn github_is_personal() {
    let pack = sample("github", &env(VARIABLES));
    assert_eq!(pack.servers[0].access_mode, AccessMode::UserControlled);
    assert_eq!(pack.servers[0].user_config.len(), 1);
}
