//! No user, no tenant and no guest takes what all need: places are shared, waiting runs are started in turn, and open runs
//! are counted.

use serde_json::{Value, json};

use crate::support::{
    client::Client,
    model::{Gate, last_user, text},
    wait::eventually,
    world::{Setup, World},
};

/// A world whose model waits at the gate when it is told to go slowly.
async fn gated(change: impl FnOnce(&mut Setup)) -> (World, Gate) {
    let world = World::with(change).await;
    let gate = Gate::new();
    let held = gate.clone();
    world.model.on(move |request| {
        last_user(request)
            .starts_with("slowly")
            .then(|| text("At last.").gate(0, &held))
    });
    world.model.on(|_| Some(text("At once.")));
    (world, gate)
}

/// Says something in a new conversation; the conversation and the run.
async fn begin(client: &Client, words: &str) -> (String, String) {
    let conversation = client.open("bank").await;
    let run = client.say(&conversation, words).await;
    (conversation, run)
}

async fn status(client: &Client, run: &str) -> Value {
    client.get(&format!("/v1/runs/{run}")).await.expect(200)["status"].clone()
}

#[tokio::test]
async fn a_user_with_many_runs_leaves_places_for_others() {
    let (world, gate) = gated(|setup| {
        setup.config.runs_at_once = 3;
        setup.config.runs_per_user_at_once = 2;
    })
    .await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(begin(&ann, "slowly").await.1);
    }
    gate.reached().await;
    assert_eq!(bob.ask("bank", "hi").await, "At once.");
    assert_eq!(status(&ann, &runs[3]).await, "queued");
    gate.open();
    eventually(async || status(&ann, &runs[3]).await == "succeeded").await;
}

#[tokio::test]
async fn a_tenant_with_many_users_leaves_places_for_others() {
    let (world, gate) = gated(|setup| {
        setup.config.runs_at_once = 2;
        setup.config.runs_per_tenant_at_once = 1;
    })
    .await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    begin(&ann, "slowly").await;
    gate.reached().await;
    let (_, waiting) = begin(&bob, "hi").await;
    let other = world.stranger("zoe").await;
    assert_eq!(other.ask("bank", "hi").await, "At once.");
    assert_eq!(status(&bob, &waiting).await, "queued");
    gate.open();
}

#[tokio::test]
async fn the_guests_of_a_tenant_share_the_places_of_one_user() {
    let (world, gate) = gated(|setup| {
        setup.config.runs_at_once = 2;
        setup.config.runs_per_user_at_once = 1;
    })
    .await;
    let (one, two, ann) = (
        world.guest().await,
        world.guest().await,
        world.user("ann", &[]).await,
    );
    begin(&one, "slowly").await;
    gate.reached().await;
    let (_, waiting) = begin(&two, "hi").await;
    assert_eq!(ann.ask("bank", "hi").await, "At once.");
    assert_eq!(status(&two, &waiting).await, "queued");
    gate.open();
}

#[tokio::test]
async fn waiting_runs_are_started_user_by_user_in_turn() {
    let (world, gate) = gated(|setup| setup.config.runs_at_once = 1).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    begin(&ann, "slowly").await;
    gate.reached().await;
    for words in ["ann 1", "ann 2", "ann 3"] {
        begin(&ann, words).await;
    }
    let (_, last) = begin(&bob, "bob 1").await;
    gate.open();
    eventually(async || status(&bob, &last).await == "succeeded").await;
    let asked = || -> Vec<String> {
        let requests = world.model.requests();
        requests
            .iter()
            .map(|request| last_user(&request.body))
            .filter(|words| !words.starts_with("slowly"))
            .collect()
    };
    eventually(async || asked().len() == 4).await;
    let at = asked().iter().position(|words| words == "bob 1").unwrap();
    assert!(at < 2, "{:?}", asked());
}

#[tokio::test]
async fn one_more_open_run_than_allowed_is_refused_and_nothing_of_it_is_kept() {
    let (world, gate) = gated(|setup| {
        setup.config.open_runs_per_user = 1;
        setup.config.open_runs_per_guest = 1;
    })
    .await;
    for client in [world.user("ann", &[]).await, world.guest().await] {
        begin(&client, "slowly").await;
        let conversation = client.open("bank").await;
        let path = format!("/v1/conversations/{conversation}/messages");
        let refused = client.post(&path, json!({ "text": "hi" })).await;
        assert_eq!(
            refused.expect(429)["detail"],
            "you have 1 runs open already; wait until one has ended, or cancel one"
        );
        assert_eq!(refused.header("retry-after"), "5");
        let kept = client.messages(&conversation).await;
        assert!(
            kept.iter().all(|message| message["role"] != "user"),
            "{kept:?}"
        );
    }
    gate.open();
}

#[tokio::test]
async fn the_open_runs_of_a_tenant_are_bounded_and_its_guests_have_a_quarter() {
    let (world, gate) = gated(|setup| setup.config.open_runs_per_tenant = 4).await;
    let refused = async |client: &Client| {
        let conversation = client.open("bank").await;
        let path = format!("/v1/conversations/{conversation}/messages");
        let answer = client.post(&path, json!({ "text": "hi" })).await;
        answer.expect(429)["detail"].as_str().unwrap().to_owned()
    };
    begin(&world.guest().await, "slowly").await;
    assert_eq!(
        refused(&world.guest().await).await,
        "the guests of this tenant have 1 runs open already; wait until one has ended, or cancel one"
    );
    for user in ["ann", "bob", "carl"] {
        begin(&world.user(user, &[]).await, "slowly").await;
    }
    assert_eq!(
        refused(&world.user("dora", &[]).await).await,
        "this tenant has 4 runs open already; wait until one has ended, or cancel one"
    );
    gate.open();
}
