//! What the model is told: the pack's words, the settings, the window of history.

use chatelaine::app::accounts::development::DevelopmentUser;
use serde_json::{Value, json};

use super::{shared_world, world_with};
use crate::{
    llm::prefixes::kept,
    support::{
        bank::pair,
        client::plain,
        has::Has,
        model::{ScriptedModel, calls, said, text, text_of},
        scripted::{Scripted, reply},
        world::World,
    },
};

async fn polyglot() -> World {
    let languages = json!({
        "es": { "greetingMessage": "¡Hola, {userName}!", "systemPrompt": "Eres un banco." },
        "fr": { "greetingMessage": "Bonjour {userName} !" },
    });
    world_with(|setup| setup.change_pack(json!({ "languages": languages }))).await
}

fn person(locale: Option<&str>) -> DevelopmentUser {
    DevelopmentUser {
        user: "ann".to_owned(),
        locale: locale.map(str::to_owned),
        ..DevelopmentUser::default()
    }
}

/// The roles in a request, without the system's.
fn roles(request: &Value) -> Vec<&str> {
    request["messages"].as_array().unwrap()[1..]
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_user_is_greeted_in_their_language_and_the_model_prompted_in_it() {
    let world = polyglot().await;
    world.model.on(|_| Some(text("Hm.")));
    let expected = [
        (None, "Hello ann!", "You are a bank."),
        (Some("es"), "¡Hola, ann!", "Eres un banco."),
        (Some("ES-mx"), "¡Hola, ann!", "Eres un banco."),
        (Some("de"), "Hello ann!", "You are a bank."),
        (Some("fr-CA"), "Bonjour ann !", "You are a bank."),
    ];
    for (locale, greeting, prompt) in expected {
        let ann = world.someone(&person(locale)).await;
        let id = ann.open("bank").await;
        assert_eq!(plain(&ann.messages(&id).await[0]), greeting, "{locale:?}");
        ann.say_and_wait(&id, "hi").await;
        assert!(
            text_of(&world.model.last_request()["messages"][0]).starts_with(prompt),
            "{locale:?}"
        );
    }
}

#[tokio::test]
async fn a_name_is_put_into_the_greeting_once_and_cleaned() {
    let world = World::shared().await;
    let name = "$& {userName} \\1";
    let ann = world
        .someone(&DevelopmentUser {
            name: Some(name.to_owned()),
            ..person(None)
        })
        .await;
    let id = ann.open("bank").await;
    // A name has no braces and no backslashes.
    let messages = ann.messages(&id).await;
    assert_eq!(plain(&messages[0]), "Hello $& userName 1!");
}

#[tokio::test]
async fn the_settings_of_the_pack_reach_the_model() {
    let llm = json!({ "agentPrompt": "Be brief.", "temperature": 0.25, "maxTokens": 77 });
    let world = world_with(|setup| setup.change_pack(json!({ "llm": llm }))).await;
    world.model.reply(text("Hm."));
    world
        .user("ann", &["employee"])
        .await
        .ask("bank", "hi")
        .await;
    let request = world.model.last_request();
    let system = text_of(&request["messages"][0]);
    assert!(
        system.starts_with("You are a bank.\n\nBe brief.\n\n"),
        "{system}"
    );
    assert!(
        system.contains("bank: "),
        "the tools are listed by server: {system}"
    );
    request.has(json!({ "model": "scripted", "temperature": 0.25 }));
    let limit = request
        .get("max_tokens")
        .or(request.get("max_completion_tokens"));
    assert_eq!(limit, Some(&json!(77)));
    assert_eq!(
        world.model.requests()[0].headers["authorization"],
        "Bearer model-key-0123456789"
    );
}

#[tokio::test]
async fn greetings_commands_and_notices_are_not_shown_to_the_model() {
    let world = shared_world().await;
    world.model.reply(text("Yes."));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "/help").await;
    ann.say_and_wait(&id, &format!("/call bank get_exchange_rate {}", pair()))
        .await;
    ann.say_and_wait(&id, "Are you there?").await;
    let request = world.model.last_request();
    assert_eq!(roles(&request), ["user"]);
    assert!(!request.to_string().contains("Hello ann"));
}

#[tokio::test]
async fn a_small_window_never_parts_a_call_from_its_result() {
    for window in 1..=6 {
        let memory = json!({ "memory": { "window": window } });
        let world = world_with(|setup| setup.change_pack(memory)).await;
        world.model.on(|request| {
            said(request, "rate").then(|| calls([("bank__get_exchange_rate", pair())]))
        });
        world.model.on(|_| Some(text("Well.")));
        let ann = world.user("ann", &["employee"]).await;
        let id = ann.open("bank").await;
        for turn in ["rate 1", "plain 2", "rate 3", "rate 4", "plain 5"] {
            ann.say_and_wait(&id, turn).await;
            let request = world.model.last_request();
            let roles = roles(&request);
            assert_eq!(roles[0], "user", "{window} {turn}: {roles:?}");
            // The window, or all of the current run.
            assert!(roles.len() <= window.max(3), "{window} {turn}: {roles:?}");
        }
        // What is left over of the window holds whole exchanges: 1 + (user, assistant) …
        let shown = roles(&world.model.last_request()).len();
        assert_eq!(shown, if window < 5 { 1 } else { 5 }, "window {window}");
    }
}

#[tokio::test]
async fn a_run_longer_than_the_window_still_shows_its_question() {
    let memory = json!({ "memory": { "window": 2 } });
    let world = world_with(|setup| setup.change_pack(memory)).await;
    for _ in 0..6 {
        world.model.reply(calls([
            ("bank__get_exchange_rate", pair()),
            ("bank__get_balances", json!({})),
        ]));
    }
    world.model.reply(text("Done."));
    world
        .user("ann", &["employee"])
        .await
        .ask("bank", "the question")
        .await;
    let request = world.model.last_request();
    assert_eq!(text_of(&request["messages"][1]), "the question");
    assert_eq!(roles(&request).len(), 1 + 6 * 3);
}

/// Every request so far, as it came.
fn texts(model: &ScriptedModel) -> Vec<String> {
    let requests = model.requests();
    requests
        .iter()
        .map(|request| request.body.to_string())
        .collect()
}

#[tokio::test]
async fn a_run_of_ten_steps_is_paid_for_once() {
    let world = shared_world().await;
    for _ in 0..9 {
        world
            .model
            .reply(calls([("bank__get_exchange_rate", pair())]));
    }
    world.model.reply(text("Done."));
    let ann = world.user("ann", &["employee"]).await;
    ann.ask("bank", "nine rates, one after the other").await;
    let requests = texts(&world.model);
    assert_eq!(requests.len(), 10);
    let share = kept(&requests);
    assert!(share >= 80, "{share}");
}

/// Which servers are away is told with the question, and in the same words in each step.
#[tokio::test]
async fn what_is_so_at_the_moment_is_no_part_of_the_beginning() {
    let down = Scripted::start(|_| async { reply(http::StatusCode::FORBIDDEN, &[], "") }).await;
    let desk = json!({ "name": "desk", "transport": "streamable-http", "url": down.url,
        "toolAccess": { "default": "public" } });
    let world = world_with(|setup| setup.add_server(desk)).await;
    for _ in 0..4 {
        world
            .model
            .reply(calls([("bank__get_exchange_rate", pair())]));
    }
    world.model.reply(text("Done."));
    let ann = world.user("ann", &["employee"]).await;
    ann.ask("bank", "rates").await;
    let note = "[Note of the service: These servers belong to you";
    for request in world.model.requests() {
        let messages = request.body["messages"].as_array().unwrap();
        let noted: Vec<bool> = messages
            .iter()
            .map(|message| text_of(message).contains(note))
            .collect();
        assert!(
            noted[1] && noted.iter().filter(|noted| **noted).count() == 1,
            "{noted:?}"
        );
    }
    let share = kept(&texts(&world.model));
    assert!(share >= 70, "{share}");
}

#[tokio::test]
async fn a_long_conversation_is_cut_in_large_steps() {
    let memory = json!({ "memory": { "window": 16 } });
    let world = world_with(|setup| setup.change_pack(memory)).await;
    world.model.on(|_| Some(text("Well.")));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    for turn in 0..24 {
        ann.say_and_wait(&id, &format!("turn {turn}")).await;
    }
    let firsts: Vec<String> = world
        .model
        .requests()
        .iter()
        .map(|request| text_of(&request.body["messages"][1]))
        .collect();
    let shown = world.model.last_request()["messages"]
        .as_array()
        .unwrap()
        .len()
        - 1;
    assert!((9..=16).contains(&shown), "{shown}");
    // Each turn is two messages, and four are left out at once.
    let changes = firsts.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((5..=9).contains(&changes), "{changes}: {firsts:?}");
}
