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
