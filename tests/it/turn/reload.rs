//! Packs that change while people talk: the next run takes the new one, a broken one changes nothing.

use std::{sync::Arc, time::Duration};

use chatelaine::app::tools::toolset;
use domain::{
    ids::{AgentId, UserId},
    principal::{Audience, Principal},
};
use serde_json::json;

use super::{world, world_with};
use crate::support::{
    bank::{pair, payment, start_bank, start_slow_bank},
    client::tool_results,
    has::Has,
    model::{Gate, calls, results, text, text_of, tool_names},
    wait::{ended, eventually},
};

#[tokio::test]
async fn a_changed_pack_is_for_the_next_run() {
    let world = world().await;
    let gate = Gate::new();
    world
        .model
        .reply(calls([("bank__get_exchange_rate", pair())]).gate(1, &gate));
    world.model.reply(text("Old.")).reply(text("New."));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let run = ann.say(&id, "rate?").await;
    gate.reached().await;
    world.change_pack(json!({ "languages": { "en": { "systemPrompt": "You are a museum." } } }));
    world.change_server(json!({ "toolAccess": { "roles": { "employee": ["get_balances"] } } }));
    world.app().packs.reload();
    gate.open();
    ended(&ann, &run).await;
    let request = world.model.last_request();
    assert!(text_of(&request["messages"][0]).starts_with("You are a bank."));
    assert_eq!(
        tool_names(&request).len(),
        2,
        "the run keeps what it began with"
    );
    let told = &results(&request)[0];
    assert!(told.contains("there is no tool"), "but no rights: {told}");
    ann.say_and_wait(&id, "and now?").await;
    let request = world.model.last_request();
    assert!(text_of(&request["messages"][0]).starts_with("You are a museum."));
    assert_eq!(tool_names(&request), ["bank__get_balances"]);
}

#[tokio::test]
async fn a_broken_new_version_leaves_the_last_good_one_in_force() {
    let world = world().await;
    world.model.reply(text("Still here."));
    world.change_pack(json!({ "metadata": null, "metadatta": {} }));
    world.app().packs.reload();
    let ann = world.user("ann", &["employee"]).await;
    assert_eq!(ann.ask("bank", "hi").await, "Still here.");
    assert_eq!(tool_names(&world.model.last_request()).len(), 2);
}

#[tokio::test]
async fn a_pack_that_goes_lets_its_running_answer_end_and_its_conversations_be_read() {
    let world = world().await;
    let gate = Gate::new();
    world.model.reply(text("The last words.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let run = ann.say(&id, "hi").await;
    gate.reached().await;
    let waiting = ann.say(&id, "and?").await;
    std::fs::remove_dir_all(world.config.packs.join("bank")).unwrap();
    world.app().packs.reload();
    gate.open();
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    let failed = ended(&ann, &waiting).await;
    failed["error"].says("agent \"bank\" was not found");
    let messages = ann.messages(&id).await;
    assert_eq!(messages.len(), 5, "greeting, two questions, answer, notice");
    let path = format!("/v1/conversations/{id}/messages");
    ann.post(&path, json!({ "text": "hello?" }))
        .await
        .expect(404);
}

#[tokio::test]
async fn a_server_that_moves_does_not_cut_off_the_call_under_way() {
    let (slow, next) = (
        start_slow_bank(None, Duration::from_secs(3)).await,
        start_bank(None).await,
    );
    let url = slow.url.clone();
    let world = world_with(|setup| setup.change_server(json!({ "url": url }))).await;
    world
        .model
        .reply(calls([("bank__send_money", payment("4.00"))]))
        .reply(text("Sent."));
    world
        .model
        .reply(calls([("bank__get_exchange_rate", pair())]))
        .reply(text("Known."));
    let fin = world.user("fin", &["finance"]).await;
    let id = fin.open("bank").await;
    let run = fin.say(&id, "pay").await;
    eventually(async || slow.executions("send_money") == 1).await;
    world.change_server(json!({ "url": next.url }));
    world.app().packs.reload();
    assert_eq!(ended(&fin, &run).await["status"], "succeeded");
    assert_eq!(tool_results(&fin, &id).await[0]["status"], "succeeded");
    fin.say_and_wait(&id, "rate?").await;
    assert_eq!(
        (
            next.executions("get_exchange_rate"),
            slow.executions("get_exchange_rate")
        ),
        (1, 0)
    );
}

/// The connection of a server that nobody uses any more ends after two seconds, so the call takes longer.
#[tokio::test]
async fn a_server_that_is_switched_off_stays_with_the_run_at_work() {
    let (slow, other) = (
        start_slow_bank(None, Duration::from_secs(4)).await,
        start_bank(None).await,
    );
    let url = other.url.clone();
    let world = world_with(|setup| {
        setup.change_server(json!({ "url": slow.url }));
        setup.add_server(json!({
            "name": "other", "transport": "streamable-http", "url": url,
            "toolAccess": { "default": "public" },
        }));
    })
    .await;
    world.tools_ready().await;
    world
        .model
        .reply(calls([("bank__send_money", payment("4.00"))]))
        .reply(calls([("other__get_exchange_rate", pair())]))
        .reply(text("Known."))
        .reply(text("No more."));
    let fin = world.user("fin", &["finance"]).await;
    let id = fin.open("bank").await;
    let run = fin.say(&id, "pay").await;
    eventually(async || slow.executions("send_money") == 1).await;
    world.remove_server("other");
    world.app().packs.reload();
    assert_eq!(ended(&fin, &run).await["status"], "succeeded");
    let offered: Vec<_> = world
        .model
        .requests()
        .iter()
        .map(|it| tool_names(&it.body).len())
        .collect();
    assert_eq!(offered[0], offered[1]);
    assert_eq!(offered[0], offered[2]);
    assert_eq!(other.executions("get_exchange_rate"), 1);
    fin.say_and_wait(&id, "and now?").await;
    assert!(tool_names(&world.model.last_request()).len() < offered[0]);
}

#[tokio::test]
async fn an_old_version_is_not_kept_in_memory() {
    let world = world().await;
    let agent = AgentId::parse("bank").unwrap();
    let user = UserId("ann".into());
    let who = Principal {
        tenant: world.tenant.id,
        user,
        claims: Arc::default(),
        locale: None,
        authenticated: true,
        key: None,
        audience: Audience::default(),
    };
    let toolset = async || {
        let pack = world.app().packs.get(&agent).unwrap();
        toolset::select(world.app(), &who, &pack)
            .await
            .unwrap()
            .len()
    };
    toolset().await;
    let old = Arc::downgrade(&world.app().packs.get(&agent).unwrap());
    let catalog = || {
        let pack = world.app().packs.get(&agent).unwrap();
        let bank = pack.server("bank").unwrap();
        let connections = &world.app().connections;
        connections.catalog(world.tenant.id, &agent, bank)
    };
    let catalog = Arc::downgrade(&catalog().unwrap());
    std::fs::remove_dir_all(world.config.packs.join("office")).unwrap();
    world.change_server(json!({ "timeouts": { "connectSeconds": 4, "requestSeconds": 60 } }));
    world.app().packs.reload();
    // The cache lets go of what was replaced a little later, as it is used.
    eventually(async || {
        toolset().await;
        old.upgrade().is_none()
    })
    .await;
    assert!(
        catalog.upgrade().is_some(),
        "its tools serve until the changed server has answered"
    );
}
