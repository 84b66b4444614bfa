//! The menu: what is shown to whom, what choosing does, and signing out.

use std::time::Duration;

use chatelaine::cli::serve::Service;
use domain::session::SignOut;
use http::Method;
use serde_json::{Map, Value, json};
use store::Db;

use crate::support::{
    client::Client,
    has::Has,
    model::{Gate, text},
    notes::{Notes, pack, ring},
    world::{TIME_LIMIT, World},
};

async fn menu(client: &Client, agent: &str) -> Vec<Value> {
    let menu = client
        .get(&format!("/v1/agents/{agent}/menu"))
        .await
        .expect(200);
    menu["items"].as_array().unwrap().clone()
}

async fn ids(client: &Client, agent: &str) -> Vec<String> {
    menu(client, agent)
        .await
        .iter()
        .map(|item| item["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Posts something else than a text and waits; the program's answer.
async fn post(client: &Client, chat: &str, body: Value) -> String {
    let mut events = client.listen(chat, None).await;
    let posted = client
        .post(&format!("/v1/conversations/{chat}/messages"), body)
        .await
        .expect(202);
    events
        .until_run_ends(posted["run"]["id"].as_str().unwrap())
        .await;
    client.messages(chat).await.last().unwrap()["parts"].to_string()
}

#[tokio::test]
async fn a_pack_without_a_menu_offers_what_makes_sense() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(
        menu(&ann, "notes").await,
        [
            json!({ "id": "logout", "label": "Sign out", "action": "logout", "command": "/logout" }),
            json!({ "id": "mcp-config", "label": "Connect your servers", "action": "mcp-config", "command": "/connect" }),
        ]
    );
}

const OWN: &str = r#"
metadata: { id: own, displayName: Own, description: Own, defaultLanguage: en }
languages:
  en: { strings: { BYE: "Leave" } }
  es: { strings: { BYE: "Salir", MENU_AUTHENTICATE: "Entrar" } }
llm: { provider: none }
flows:
  authentication: { required: false }
  menu:
    items:
      - { id: out, labelKey: BYE, action: logout }
      - { id: in, action: authenticate, visibleWhen: always }
      - { id: mine, label: { en: "Servers", es: "Servidores" }, action: mcp-config, badge: none }
"#;

#[tokio::test]
async fn a_caller_whose_token_names_no_language_gets_the_one_they_ask_for() {
    let world = World::with(|setup| setup.packs = vec![("own".to_owned(), OWN.to_owned())]).await;
    let ann = world.user("ann", &[]).await;
    for (wanted, label) in [("es-MX,en;q=0.5", "Salir"), ("en", "Leave"), ("*", "Leave")] {
        let request = ann.request(Method::GET, "/v1/agents/own/menu");
        let answer = ann.send(request.header("accept-language", wanted)).await;
        assert_eq!(answer.expect(200)["items"][0]["label"], label, "{wanted}");
    }
}

#[tokio::test]
async fn a_pack_says_what_is_in_its_menu_and_in_which_words() {
    let world = World::with(|setup| setup.packs = vec![("own".to_owned(), OWN.to_owned())]).await;
    let person = chatelaine::app::accounts::development::DevelopmentUser {
        user: "ann".to_owned(),
        locale: Some("es-MX".to_owned()),
        ..Default::default()
    };
    let ann = world.someone(&person).await;
    // There is no personal server to connect.
    assert_eq!(
        menu(&ann, "own").await,
        [json!({ "id": "out", "label": "Salir", "action": "logout", "command": "/logout" })]
    );
    let guest = world.guest().await;
    assert_eq!(
        menu(&guest, "own").await,
        [
            json!({ "id": "in", "label": "Sign in", "action": "authenticate", "command": "/authenticate" })
        ]
    );
    let chat = guest.open("own").await;
    assert!(
        post(&guest, &chat, json!({ "menu": "in" }))
            .await
            .contains("You are here as a guest.")
    );
    guest
        .post(
            &format!("/v1/conversations/{chat}/messages"),
            json!({ "menu": "out" }),
        )
        .await
        .expect(404);
}

#[tokio::test]
async fn an_item_that_is_chosen_does_what_its_command_does() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    let path = format!("/v1/conversations/{chat}/messages");
    ann.post(&path, json!({ "menu": "abort-config" }))
        .await
        .expect(404);
    assert!(
        post(&ann, &chat, json!({ "menu": "mcp-config" }))
            .await
            .contains("⚠️ notes – not connected")
    );
    let other = ann.open("notes").await;
    let there = ann
        .get(&format!("/v1/agents/notes/menu?conversation={other}"))
        .await
        .expect(200);
    assert_eq!(
        there["items"].as_array().unwrap().len(),
        2,
        "nothing is configured there: {there}"
    );
    assert!(
        ids(&ann, "notes")
            .await
            .contains(&"abort-config".to_owned())
    );
    assert!(
        post(&ann, &chat, json!({ "menu": "abort-config" }))
            .await
            .contains("Cancelled")
    );
    assert!(
        !ids(&ann, "notes")
            .await
            .contains(&"abort-config".to_owned())
    );
    let listed = post(&ann, &chat, json!({ "text": "/menu" })).await;
    assert!(
        listed.contains("Connect your servers – /connect"),
        "{listed}"
    );
    assert!(
        post(&ann, &chat, json!({ "text": "/menu mcp-config" }))
            .await
            .contains("⚠️ notes")
    );
    assert!(
        post(&ann, &chat, json!({ "text": "/menu nothing" }))
            .await
            .contains("Connect your servers")
    );
    for body in [json!({}), json!({ "text": "a", "menu": "logout" })] {
        ann.post(&path, body).await.expect(400);
    }
}

#[tokio::test]
async fn the_badge_counts_what_needs_attention() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    super::personal::enter(&ann, "notes", "reader-token-1")
        .await
        .expect(200);
    assert_eq!(menu(&ann, "notes").await[1]["badge"], Value::Null);
    notes.revoke("reader-token-1");
    ann.ask("notes", "/call notes whoami").await;
    assert_eq!(menu(&ann, "notes").await[1]["badge"], 1);
}

#[tokio::test]
async fn an_answer_goes_to_the_prompt_it_is_for_or_nowhere() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    world.model.forbid("reader-token-1");
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    let path = format!("/v1/conversations/{chat}/messages");
    let answer = |field: &str, value: &str| json!({ "answer": { "field": field, "value": value } });
    let refused = ann.post(&path, answer("token", "reader-token-1")).await;
    assert_eq!(refused.expect(409)["code"], "question_closed");
    post(&ann, &chat, json!({ "text": "/connect notes" })).await;
    ann.post(&path, answer("other", "reader-token-1"))
        .await
        .expect(409);
    // Even what looks like a command is the value here.
    assert!(
        post(&ann, &chat, answer("token", "/help"))
            .await
            .contains("⚠️ notes is not connected")
    );
    post(&ann, &chat, json!({ "text": "/connect notes" })).await;
    assert!(
        post(&ann, &chat, answer("token", "reader-token-1"))
            .await
            .contains("✅")
    );
    let messages = serde_json::to_string(&ann.messages(&chat).await).unwrap();
    assert!(!messages.contains("reader-token-1"));
}

#[tokio::test]
async fn signing_out_ends_the_token_what_runs_and_the_connections_everywhere() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let never = Gate::new();
    let silent = never.clone();
    world.model.on(move |_| Some(text("…").gate(0, &silent)));
    let ann = world.user("ann", &[]).await;
    let bob = world.user("bob", &[]).await;
    let db = Db::connect(&world.db.url, 8).await.unwrap();
    let second = Service::start(world.config.clone(), &world.env, db)
        .await
        .unwrap();
    world.app().started.cancelled().await;
    second.app.started.cancelled().await;
    let there = ann.at(&format!("http://{}", second.address));
    super::personal::enter(&ann, "notes", "reader-token-1")
        .await
        .expect(200);
    assert_eq!(there.ask("notes", "/call notes whoami").await, "reader1");
    assert_eq!(
        there.get("/readyz").await.expect(200)["personal_connections"],
        1
    );
    let working = ann.open("notes").await;
    ann.say(&working, "think for long").await;
    let listening = ann.listen(&working, None).await;
    let chat = ann.open("notes").await;
    let mut events = ann.listen(&chat, None).await;
    let run = ann.say(&chat, "/logout").await;
    let heard = events.until_run_ends(&run).await;
    assert!(
        heard
            .iter()
            .any(|event| event.text.contains("You are signed out")),
        "{heard:?}"
    );
    // The run that was at work has ended, and the listener is sent away.
    let rest = tokio::time::timeout(TIME_LIMIT, listening.rest())
        .await
        .expect("the stream ends");
    assert!(
        rest.iter().any(|event| event.text.contains("cancelled")),
        "{rest:?}"
    );
    let refused = ann.get("/v1/me").await;
    refused.expect(401)["detail"].says("sign in again");
    let gone = async {
        while there.get("/v1/me").await.status != 401 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for replica in [&ann, &there] {
            while replica.get("/readyz").await.expect(200)["personal_connections"] != 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(TIME_LIMIT, gone)
        .await
        .expect("it ends on the other replica, too");
    bob.get("/v1/me").await.expect(200);
    second.stop().await.unwrap();
}

#[tokio::test]
async fn whoever_speaks_by_a_key_is_told_to_sign_out_there_too() {
    let world = World::with(|setup| {
        setup.config.ring = ring();
        setup.env = setup
            .env
            .clone()
            .with("NOTES_URL", "http://127.0.0.1:9/mcp");
        setup.packs = vec![pack("notes", "shared")];
    })
    .await;
    world.model.on(|_| Some(text("Hello.")));
    let ann = world.frontend("ann").await;
    assert!(
        ann.ask("notes", "/logout")
            .await
            .contains("Sign out in the app")
    );
    ann.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn a_guest_who_signs_out_has_no_key_any_more() {
    let world = World::shared().await;
    let guest = world.guest().await;
    let chat = guest.open("bank").await;
    let mut events = guest.listen(&chat, None).await;
    let run = guest.say(&chat, "/logout").await;
    let heard = events.until_run_ends(&run).await;
    let told = |event: &crate::support::client::Event| event.text.contains("You are signed out");
    assert!(heard.iter().any(told), "{heard:?}");
    crate::support::wait::eventually(async || guest.get("/v1/me").await.status == 401).await;
}

#[test]
fn a_sign_out_ends_the_tokens_of_before_and_no_later_one() {
    let claims = |text: &str| -> Map<String, Value> { serde_json::from_str(text).unwrap() };
    let sign_out = SignOut::from_claims(&claims(r#"{ "iat": 100, "exp": 900 }"#), 200).unwrap();
    for (token, over) in [
        (r#"{ "iat": 100, "exp": 900 }"#, true),
        (r#"{ "iat": 200, "exp": 5000 }"#, true),
        (r#"{ "iat": 201, "exp": 1000 }"#, false),
        (r#"{ "iat": 199.5, "exp": 1000 }"#, true),
        (r#"{ "exp": 900 }"#, true),
        (r#"{ "exp": 901 }"#, false),
    ] {
        assert_eq!(sign_out.ends(&claims(token)), over, "{token}");
    }
    // Its issuer's clock is ahead.
    let ahead = SignOut::from_claims(&claims(r#"{ "iat": 205, "exp": 900 }"#), 200).unwrap();
    assert!(ahead.ends(&claims(r#"{ "iat": 205, "exp": 900 }"#)));
    assert_eq!(SignOut::from_claims(&claims("{}"), 200), None);
}

/// A menu under the names of published packs, and a call that waits.
const QUEUE: &str = r#"
metadata: { id: queue, displayName: Queue, description: Money, defaultLanguage: en }
languages:
  en: { strings: { ROOT_TITLE: "The till", PENDING_APPROVALS: "Decide" } }
  es: { strings: { ROOT_TITLE: "La caja", MY_APPROVAL_REQUESTS: "Lo mío" } }
llm: { provider: none }
flows:
  authentication: { rolesAttribute: roles }
  menu:
    items:
      - { id: mine, labelKey: MY_APPROVAL_REQUESTS, action: my-approval-requests, visibleWhen: hasApprovalRequests, badge: approvalRequestCount }
      - { id: theirs, labelKey: PENDING_APPROVALS, action: pending-approvals, visibleWhen: hasPendingApprovals, badge: pendingApprovalCount }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "${BANK_URL}"
      toolAccess:
        roles: { employee: [send_money] }
        approval: [{ tools: [send_money], approvers: [boss] }]
"#;

#[tokio::test]
async fn a_menu_of_a_published_pack_counts_in_front_of_its_labels() {
    let world =
        World::with(|setup| setup.packs = vec![("queue".to_owned(), QUEUE.to_owned())]).await;
    let person = chatelaine::app::accounts::development::DevelopmentUser {
        user: "ann".to_owned(),
        roles: vec!["employee".to_owned()],
        locale: Some("es".to_owned()),
        ..Default::default()
    };
    let (ann, bob) = (
        world.someone(&person).await,
        world.user("bob", &["boss"]).await,
    );
    assert_eq!(menu(&bob, "queue").await, Vec::<Value>::new());
    let line = r#"/call bank send_money {"from_account":"current","to":"acme","amount":"1.00","currency":"EUR"}"#;
    ann.ask("queue", line).await;
    let of_ann = ann.get("/v1/agents/queue/menu").await.expect(200);
    of_ann.has(json!({ "own": true, "title": "La caja" }));
    let item = json!({ "id": "mine", "label": "Lo mío", "action": "my-approval-requests", "badge": 1, "command": "/approvals" });
    assert_eq!(of_ann["items"], json!([item]));
    let item = json!({ "id": "theirs", "label": "Decide", "action": "pending-approvals", "badge": 1, "command": "/approvals" });
    assert_eq!(menu(&bob, "queue").await, [item]);
    let chat = bob.open("queue").await;
    let listed = post(&bob, &chat, json!({ "text": "/menu" })).await;
    assert!(
        listed.contains("The till") && listed.contains("(1) Decide – /approvals"),
        "{listed}"
    );
    // What the pack has no word for is said in the user's language.
    let of_bob = post(&bob, &chat, json!({ "menu": "theirs" })).await;
    assert!(of_bob.contains("/approve CODE"), "{of_bob}");
}
