//! The agent pack document: its fragments stand in the least pack around them.

use std::collections::BTreeSet;

use domain::{
    config::Environment,
    pack::Pack,
    policy::{Decision, EffectiveAccess},
    server::{AccessMode, ServerSpec},
};

use super::snippet;
use crate::support::packs::{MINIMAL, decide_plain, env, headers, load_with, write_pack};

fn variables() -> Environment {
    env(&[
        ("WISE_MCP_URL", "https://wise.example.org/mcp"),
        ("WISE_API_TOKEN", "w1se"),
        ("TOKEN", "t0ken"),
    ])
}

/// A snippet that starts with `mcp:`.
fn pack(snippet: &str) -> Pack {
    load_with(&format!("{MINIMAL}{snippet}"), &variables()).unwrap()
}

/// A snippet that starts with `toolAccess:`.
fn access(snippet: &str) -> ServerSpec {
    let snippet = snippet.trim().replace('\n', "\n      ");
    let server = "mcp:\n  servers:\n    - name: wise\n      transport: streamable-http\n      url: ${WISE_MCP_URL}\n";
    pack(&format!("{server}      {snippet}\n"))
        .servers
        .remove(0)
}

fn decision(server: &ServerSpec, roles: &[&str], admin: bool, tool: &str) -> &'static str {
    let roles: BTreeSet<_> = roles.iter().map(|role| (*role).to_owned()).collect();
    let who = EffectiveAccess {
        roles,
        admin,
        ..EffectiveAccess::default()
    };
    match decide_plain(server, &who, tool) {
        Decision::Allow(allowed) if allowed.is_self_approved() => "self-approved",
        Decision::Allow(_) => "allowed",
        Decision::Approve(_) => "approval",
        Decision::Deny(_) | Decision::Refuse(_) => "denied",
    }
}

/// It shows alternatives side by side, so it is no pack; every field of it is known.
#[test]
fn the_agent_pack_anatomy_names_only_fields_that_exist() {
    let root = tempfile::tempdir().unwrap();
    write_pack(
        root.path(),
        "demo",
        &format!("{MINIMAL}{}", snippet("agent-pack", 1)),
    );
    let report = packs::check(root.path(), &variables(), None);
    let told: Vec<_> = report
        .problems
        .iter()
        .map(|problem| format!("{}: {}", problem.path, problem.message))
        .collect();
    insta::assert_snapshot!(told.join("\n"), @r#"
    mcp.servers[0].name: "<unique-name>" is not a valid server id: use 1 to 64 letters, digits, `_` or `-`, starting with a letter or digit
    mcp.servers[0].url: "<server URL>" is not an address
    mcp.servers[0].userConfig: `userConfig` is for personal servers
    mcp.servers[0].userConfig.fields[0]: expected a map, found text
    mcp.servers[0].toolAccess.default: counts as `none` beside `roles`
    mcp.servers[0].toolAccess.public: does not go with `roles`
    mcp.servers[0].toolAccess.roles.employee: nobody can hold the role "employee"
    mcp.servers[0].toolAccess.approval[0].approvers: nobody can hold the role "finance-manager"
    "#);
}

#[test]
fn the_agent_pack_anatomy_loads_when_the_alternatives_are_chosen() {
    let shared = snippet("agent-pack", 1)
        .replace("<unique-name>", "one")
        .replace("<server URL>", "https://one.example.org/mcp")
        .replace(
            "      userConfig: # only with user-controlled\n        fields: [...]\n",
            "",
        )
        .replace(
            "        public: [...] # legacy: tools available to all\n",
            "",
        );
    let server = pack(&shared).servers.remove(0);
    assert_eq!(headers(&server), [("Authorization", "Bearer t0ken")]);
    assert_eq!(
        server.tool_access.unwrap().approval[0].approvers,
        ["finance-manager"]
    );
}

#[test]
fn the_shared_wise_server_loads() {
    let pack = pack(&snippet("agent-pack", 2));
    let server = &pack.servers[0];
    assert_eq!(server.access_mode, AccessMode::AdminControlled);
    assert_eq!(headers(server), [("Authorization", "Bearer w1se")]);
    assert_eq!(
        decision(server, &["guest"], false, "get_exchange_rate"),
        "allowed"
    );
    assert_eq!(decision(server, &["guest"], false, "send_money"), "denied");
    assert_eq!(
        decision(server, &["employee", "finance"], false, "send_money"),
        "allowed"
    );
}

#[test]
fn the_personal_github_server_loads() {
    let pack = pack(&snippet("agent-pack", 3));
    let server = &pack.servers[0];
    assert_eq!(server.access_mode, AccessMode::UserControlled);
    let token = &server.user_config[0];
    assert_eq!(
        token.label["es"],
        "Por favor, ingresa tu Token de Acceso Personal de GitHub:"
    );
    let header = token.header.as_ref().unwrap();
    assert_eq!(
        (header.name.as_str(), header.template.as_str()),
        ("Authorization", "Bearer {value}")
    );
    assert_eq!(
        decision(server, &[], false, "list_pull_requests"),
        "allowed"
    );
    assert_eq!(decision(server, &[], false, "delete_repository"), "denied");
    assert_eq!(decision(server, &[], true, "delete_repository"), "allowed");
}

#[test]
fn the_legacy_access_model_loads() {
    let server = access(&snippet("agent-pack", 4));
    assert_eq!(decision(&server, &[], false, "tool_name_two"), "allowed");
    assert_eq!(decision(&server, &[], false, "tool_name_three"), "denied");
    assert_eq!(decision(&server, &[], true, "tool_name_three"), "allowed");
}

#[test]
fn the_role_based_access_model_loads() {
    let server = access(&snippet("agent-pack", 5));
    assert_eq!(
        decision(&server, &["finance"], false, "send_money"),
        "approval"
    );
    assert_eq!(
        decision(&server, &["finance", "cfo"], false, "send_money"),
        "self-approved"
    );
    assert_eq!(
        decision(&server, &["finance", "cfo"], false, "create_invoice"),
        "approval"
    );
    assert_eq!(decision(&server, &["cfo"], false, "send_money"), "denied");
    assert_eq!(
        decision(&server, &["employee"], false, "unlisted"),
        "denied"
    );
    assert_eq!(server.tool_access.unwrap().approval[1].timeout_minutes, 120);
}

/// `flows.authentication` as the document names its fields.
#[test]
fn roles_and_admins_come_from_the_authentication_flow() {
    let flow = "flows:\n  authentication:\n    rolesAttribute: roles\n    adminUsers: [alice@example.org]\n";
    let authentication = load_with(&format!("{MINIMAL}{flow}"), &variables())
        .unwrap()
        .flows
        .authentication;
    assert_eq!(authentication.roles_attribute.as_deref(), Some("roles"));
    assert_eq!(authentication.admin_users, ["alice@example.org"]);
}
