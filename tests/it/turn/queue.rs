//! Several messages at once: one turn works on a conversation at a time, the others wait together.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{shared_world, world};
use crate::support::{
    client::{plain, roles},
    model::{Gate, said, text, text_of},
    wait::ended,
};

/// What a request shows, line by line and without the system's words: messages of one side that follow each
/// other may come as one.
fn transcript(request: &Value) -> Vec<String> {
    let texts = request["messages"].as_array().unwrap()[1..]
        .iter()
        .map(text_of);
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[tokio::test]
async fn messages_that_come_during_a_run_are_answered_together_by_the_next() {
    let world = shared_world().await;
    let gate = Gate::new();
    world
        .model
        .reply(text("First answer.").gate(2, &gate))
        .reply(text("Second answer."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let first = ann.say(&id, "one").await;
    gate.reached().await;
    let second = ann.say(&id, "two").await;
    let third = ann.say(&id, "three").await;
    assert_eq!(second, third, "they share a run");
    assert_eq!(
        ann.get(&format!("/v1/runs/{second}")).await.expect(200)["status"],
        "queued"
    );
    gate.open();
    ended(&ann, &first).await;
    assert_eq!(ended(&ann, &second).await["status"], "succeeded");
    let requests = world.model.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(
        transcript(&requests[1].body),
        ["one", "First answer.", "two", "three"]
    );
    let kept: Vec<_> = ann.messages(&id).await.iter().skip(1).map(plain).collect();
    assert_eq!(
        kept,
        ["one", "two", "three", "First answer.", "Second answer."],
        "as they came"
    );
}

#[tokio::test]
async fn a_command_is_answered_beside_a_running_turn() {
    let world = shared_world().await;
    let gate = Gate::new();
    world.model.reply(text("At last.").gate(1, &gate));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let turn = ann.say(&id, "think").await;
    gate.reached().await;
    assert_eq!(ann.say_and_wait(&id, "/tools").await["status"], "succeeded");
    assert_eq!(
        ann.get(&format!("/v1/runs/{turn}")).await.expect(200)["status"],
        "running"
    );
    gate.open();
    assert_eq!(ended(&ann, &turn).await["status"], "succeeded");
    assert_eq!(
        roles(&ann, &id).await,
        ["system", "user", "user", "system", "assistant"]
    );
}

#[tokio::test]
async fn a_waiting_run_can_be_cancelled_and_its_messages_stay() {
    let world = shared_world().await;
    let gate = Gate::new();
    world
        .model
        .reply(text("One.").gate(1, &gate))
        .reply(text("Three."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let first = ann.say(&id, "one").await;
    gate.reached().await;
    let waiting = ann.say(&id, "two").await;
    let mut events = ann.listen(&id, None).await;
    ann.post(&format!("/v1/runs/{waiting}/cancel"), json!({}))
        .await
        .expect(202);
    events.until_run_ends(&waiting).await;
    let over = ann
        .post(&format!("/v1/runs/{waiting}/cancel"), json!({}))
        .await;
    assert_eq!(over.expect(409)["code"], "run_over");
    gate.open();
    ended(&ann, &first).await;
    ann.say_and_wait(&id, "three").await;
    assert_eq!(
        transcript(&world.model.last_request()),
        ["one", "One.", "two", "three"]
    );
    assert_eq!(world.model.requests().len(), 2);
}

#[tokio::test]
async fn one_run_works_on_a_conversation_whoever_posts_where() {
    let world = world().await;
    let other = world.replica().await;
    world
        .model
        .on(|request| said(request, "m").then(|| text("ok")));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let there = ann.at(&other.url);
    let posts = (0..24).map(|at| {
        let (client, id) = (if at % 2 == 0 { &ann } else { &there }, &id);
        async move { client.say(id, &format!("m{at:02}")).await }
    });
    let runs = join_all(posts).await;
    for run in &runs {
        assert_eq!(ended(&ann, run).await["status"], "succeeded");
    }
    ann.say_and_wait(&id, "m24").await;
    // Every message stands once in the transcript, and no answer stands between a message and its own.
    let shown = transcript(&world.model.last_request());
    let mut said: Vec<_> = shown.iter().filter(|text| text.starts_with('m')).collect();
    said.sort();
    assert_eq!(
        said,
        (0..25)
            .map(|at| format!("m{at:02}"))
            .collect::<Vec<_>>()
            .iter()
            .collect::<Vec<_>>()
    );
    let distinct: std::collections::BTreeSet<_> = runs.iter().collect();
    assert_eq!(
        shown.iter().filter(|text| *text == "ok").count(),
        distinct.len(),
        "one answer for each run"
    );
    assert_eq!(world.model.requests().len(), distinct.len() + 1);
}
