//! An agent pack: one connection for everybody, roles in every form, requests for consent, typed calls.

use std::collections::BTreeSet;

use chatelaine::app::accounts::development::DevelopmentUser;
use domain::{
    account::KeyKind,
    principal::{Scope, Scopes},
    secret::Secret,
};
use serde_json::{Value, json};

use super::{header, said, server};
use crate::support::{
    bank::{self, pair, payment},
    many::{connections_of, entry, pack},
    model::{text, tool_names},
    offer,
    scripted::Scripted,
    terminal::Terminal,
    world::World,
};

#[tokio::test]
async fn everybody_shares_one_connection_and_the_first_turn_after_a_restart_has_its_tools() {
    let desk = Scripted::legacy(async |_| None).await;
    let token = ", headers: { Authorization: \"Bearer ${SHARED_TOKEN}\" }";
    let servers = entry("desk", &desk.url, token);
    let world = World::with(|setup| {
        setup.packs.push(pack(&servers));
        setup.env = setup
            .env
            .clone()
            .with("SHARED_TOKEN", "shared-token-0123456789");
    })
    .await;
    world.model.forbid("shared-token-0123456789");
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "many", &[("desk", "ready")]).await;
    for name in ["ann", "bob", "cleo"] {
        let user = world.user(name, &[]).await;
        assert_eq!(
            said(&user, "many", "/call desk echo {\"n\":1}").await,
            r#"{"n":1}"#
        );
    }
    assert_eq!(desk.requests("initialize").len(), 1);
    assert_eq!(desk.requests("tools/list").len(), 1);
    let calls = desk.requests("tools/call");
    let sessions: BTreeSet<_> = calls
        .iter()
        .map(|call| header(call, "mcp-session-id"))
        .collect();
    assert_eq!((calls.len(), sessions), (3, BTreeSet::from([Some("s1")])));
    for method in [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
    ] {
        let sent = desk.requests(method);
        let sent = sent.iter().map(|seen| header(seen, "authorization"));
        assert!(sent.clone().count() > 0, "{method}");
        assert!(
            sent.into_iter()
                .all(|sent| sent == Some("Bearer shared-token-0123456789")),
            "{method}"
        );
    }

    let world = world.stop().await.start().await;
    let ann = offer::again(&world, &ann);
    world.model.reply(text("Hello again."));
    assert_eq!(ann.ask("many", "hello").await, "Hello again.");
    assert_eq!(tool_names(&world.model.last_request()), ["desk__echo"]);
}

/// What `MCP_SERVERS_CONFIG` says is read in the running service like a pack; its forms are in `packs/overlay.rs`.
#[tokio::test]
async fn mcp_servers_config_replaces_the_servers_of_the_pack_that_it_names() {
    let (own, given) = (server(&["own"]).await, server(&["given"]).await);
    let servers = json!({ "many": [{
        "name": "desk", "transport": "streamable-http", "url": given.url,
        "headers": { "Authorization": "Bearer ${GIVEN_TOKEN}" }, "toolAccess": { "default": "public" },
    }] });
    let world = World::with(|setup| {
        setup.packs.push(pack(&entry("own", &own.url, "")));
        setup.config.mcp_servers = Some(Secret::new(servers.to_string()));
        setup.env = setup
            .env
            .clone()
            .with("GIVEN_TOKEN", "given-token-0123456789");
    })
    .await;
    let ann = world.user("ann", &["employee"]).await;
    connections_of(&ann, "many", &[("desk", "ready")]).await;
    world.model.reply(text("Hello."));
    ann.ask("many", "hello").await;
    assert_eq!(tool_names(&world.model.last_request()), ["desk__given"]);
    said(&ann, "many", "/call desk given").await;
    let called = given.requests("tools/call");
    assert_eq!(
        header(&called[0], "authorization"),
        Some("Bearer given-token-0123456789")
    );
    assert!(own.methods().is_empty(), "it takes no part");
    connections_of(&ann, "bank", &[("bank", "ready")]).await;
}

#[tokio::test]
async fn a_claim_names_roles_as_a_text_a_list_or_a_list_in_a_text() {
    let world = World::start().await;
    world.tools_ready().await;
    for (at, (claim, is_finance)) in [
        (json!("finance"), true),
        (json!("employee,finance"), true),
        (json!(" employee , finance "), true),
        (json!("[\"employee\", \"finance\"]"), true),
        (json!(["employee", "finance"]), true),
        (json!([1, "finance"]), true),
        (json!("employee"), false),
        (json!("Finance"), false),
        (json!("[\"finance\""), false),
        (json!(""), false),
        (json!([]), false),
        (json!({ "finance": true }), false),
        (json!(null), false),
    ]
    .into_iter()
    .enumerate()
    {
        let claims = json!({ "roles": claim }).as_object().unwrap().clone();
        let scopes = Scopes::new([Scope::Chat]);
        let key = world
            .key(&format!("robot{at}"), scopes, KeyKind::Service(claims))
            .await;
        let tools = world.client(&key).get("/v1/agents/bank/tools").await;
        tools.expect(200);
        assert_eq!(
            tools.text.contains("send_money"),
            is_finance,
            "{claim}: {}",
            tools.text
        );
    }
}

#[tokio::test]
async fn a_request_says_how_long_it_waits_as_its_policy_does() {
    let access = |minutes: u32| {
        format!(
            "{{ default: none, roles: {{ employee: [send_money] }}, approval: [{{ tools: [send_money], approvers: [cfo], timeoutMinutes: {minutes} }}] }}"
        )
    };
    let agents = [("hour", 60, "(in 1 h)"), ("minute", 1, "(in 1 min)")];
    let world = World::with(|setup| {
        let packs = agents.map(|(id, minutes, _)| bank::pack(id, &access(minutes)));
        setup.packs.extend(packs);
    })
    .await;
    let ann = world.user("ann", &["employee"]).await;
    for (agent, _, left) in agents {
        connections_of(&ann, agent, &[("bank", "ready")]).await;
        let line = format!("/call bank send_money {}", payment("1.00"));
        let chat = ann.open(agent).await;
        ann.say_and_wait(&chat, &line).await;
        let messages = Value::from(ann.messages(&chat).await).to_string();
        assert!(messages.contains(left), "{left}: {messages}");
    }
}

/// The texts of everything that the program and the tools have said in a conversation.
fn texts(messages: &[Value]) -> Vec<&str> {
    let said = messages.iter().filter(|message| message["role"] != "user");
    let parts = said.flat_map(|message| message["parts"].as_array().unwrap());
    parts.filter_map(|part| part["text"].as_str()).collect()
}

#[tokio::test]
async fn a_typed_call_has_its_result_once_in_the_history_and_at_the_terminal() {
    let world = World::start().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let line = format!("/call bank get_exchange_rate {}", pair());
    let chat = ann.open("bank").await;
    ann.say_and_wait(&chat, &line).await;
    let messages = ann.messages(&chat).await;
    let rates = texts(&messages);
    let rates: Vec<_> = rates
        .into_iter()
        .filter(|text| text.contains("1.085"))
        .collect();
    assert_eq!(rates.len(), 1, "{messages:#?}");
    for arguments in [&[][..], &["--conversation", &chat]] {
        let mut script = Terminal::piped_with(&world.url, &ann, arguments);
        if arguments.is_empty() {
            script.enters(&line);
        }
        let shown = script.ends().await;
        assert_eq!(shown.matches("1.085").count(), 1, "{shown}");
        assert!(
            shown.contains("‹ > {"),
            "a server's words are quoted: {shown}"
        );
    }
}

#[tokio::test]
async fn a_skill_that_waits_for_consent_says_so_once_in_the_language_of_its_user() {
    let world = World::with(|setup| {
        let access = "{ default: none, roles: { employee: [send_money] }, approval: [{ tools: [send_money], approvers: [cfo] }] }";
        let (id, yaml) = bank::pack("till", access);
        let skill = "skills: [{ id: pay, mcpBinding: { server: bank, tools: [send_money] } }]\n";
        setup.packs.push((id, yaml + skill));
    })
    .await;
    let ana = DevelopmentUser {
        user: "ana".to_owned(),
        roles: vec!["employee".to_owned()],
        locale: Some("es-MX".to_owned()),
        ..DevelopmentUser::default()
    };
    let ana = world.someone(&ana).await;
    connections_of(&ana, "till", &[("bank", "ready")]).await;
    let chat = ana.open("till").await;
    ana.say_and_wait(&chat, &format!("/pay {}", payment("1.00")))
        .await;
    let messages = ana.messages(&chat).await;
    let shown = messages
        .iter()
        .filter(|message| message["role"] == "system");
    let shown: Vec<_> = shown.cloned().collect();
    let shown = texts(&shown);
    assert_eq!(shown.len(), 1, "{messages:#?}");
    assert!(
        shown[0].contains("espera la aprobación de cfo"),
        "{shown:?}"
    );
}
