//! More than one process: a child that runs on another one, and one that dies.

use std::time::Duration;

use serde_json::{Value, json};

use super::{came_to, run_with, said_in, start};
use crate::support::{
    has::Has,
    model::{Gate, text, text_of},
    wait::{ended, eventually},
    world::World,
};

/// Runs are taken over after a second.
async fn short_leases() -> World {
    World::with(|setup| {
        super::add_packs(setup);
        setup.config.run_lease = Duration::from_secs(1);
        setup.config.requests_per_minute = 100_000;
    })
    .await
}

fn last(request: &Value) -> String {
    text_of(request["messages"].as_array().unwrap().last().unwrap())
}

#[tokio::test]
async fn a_session_of_another_replica_is_told() {
    let world = World::with(super::add_packs).await;
    let gate = Gate::new();
    let held = gate.clone();
    world
        .model
        .on(move |request| (last(request) == "slowly").then(|| text("There.").gate(0, &held)));
    world.model.on(super::obedient);
    let other = world.replica().await;
    let here = world.user("ann", &[]).await;
    let there = here.at(&other.url);
    let prompt = start("worker", "slowly", "async_callback");
    let lead = run_with(&there, json!({ "agent_name": "lead", "prompt": prompt })).await;
    let session = lead["session_id"].as_str().unwrap();
    gate.reached().await;
    gate.open();
    eventually(async || {
        said_in(&here, session).await.last().unwrap() == "I heard of 1 that ended."
    })
    .await;
    let child = came_to(lead["result"].as_str().unwrap())["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let body = json!({ "type": "resume_session", "session_id": child, "prompt": "more" });
    assert_eq!(run_with(&here, body).await["result"], "Done: more");
}

#[tokio::test]
async fn a_child_whose_replica_dies_is_taken_over_with_its_scope_and_calls_back_once() {
    let world = short_leases().await;
    let gate = Gate::new();
    let held = gate.clone();
    let first = std::sync::atomic::AtomicBool::new(true);
    world.model.on(move |request| {
        let first =
            last(request) == "slowly" && first.swap(false, std::sync::atomic::Ordering::SeqCst);
        first.then(|| text("never heard").gate(1, &held))
    });
    world.model.on(super::obedient);
    let doomed = world.replica().await;
    let here = world.user("ann", &[]).await;
    let there = here.at(&doomed.url);
    let body = json!({
        "agent_name": "lead", "prompt": start("worker", "slowly", "async_callback"), "scope": { "k": "canary-77" },
    });
    let lead = run_with(&there, body).await;
    gate.reached().await;
    doomed.kill();
    let session = lead["session_id"].as_str().unwrap();
    let child = came_to(lead["result"].as_str().unwrap())["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let run = here.messages(&child).await[0]["run_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(ended(&here, &run).await["result"], "Done: slowly");
    eventually(async || {
        said_in(&here, session).await.last().unwrap() == "I heard of 1 that ended."
    })
    .await;
    let held = async || {
        let mut db = world.db.as_tenant(world.tenant.id).await;
        let held: i64 =
            sqlx::query_scalar("select count(*) from runs where has_scope or awaits_callback")
                .fetch_one(&mut db)
                .await
                .unwrap();
        held
    };
    eventually(async || held().await == 0).await;
    let told = here
        .messages(session)
        .await
        .iter()
        .filter(|message| message["parts"][0]["type"] == "agent_callback")
        .count();
    assert_eq!(told, 1);
}

#[tokio::test]
async fn a_parent_whose_replica_dies_while_it_waits_hears_that_it_does_not_know_and_can_look() {
    let world = short_leases().await;
    let gate = Gate::new();
    let held = gate.clone();
    world
        .model
        .on(move |request| (last(request) == "slowly").then(|| text("There.").gate(0, &held)));
    world.model.on(super::obedient);
    let doomed = world.replica().await;
    let here = world.user("ann", &[]).await;
    let there = here.at(&doomed.url);
    let body = json!({ "agent_name": "lead", "prompt": start("worker", "slowly", "sync") });
    let lead = there.post("/runs", body).await.expect(202);
    gate.reached().await;
    doomed.kill();
    gate.open();
    let parent = ended(&here, lead["run_id"].as_str().unwrap()).await;
    parent["result"].says("outcome unknown");
    let session = lead["session_id"].as_str().unwrap();
    let ask = super::order("list_agent_sessions", &json!({}));
    let body = json!({ "type": "resume_session", "session_id": session, "prompt": ask });
    eventually(async || {
        let listed = came_to(
            run_with(&here, body.clone()).await["result"]
                .as_str()
                .unwrap(),
        );
        listed["sessions"].as_array().unwrap().len() == 1
            && listed["sessions"][0]["status"] == "finished"
    })
    .await;
}

#[tokio::test]
async fn what_a_process_did_not_tell_before_it_ended_is_told_by_the_clock() {
    let world = super::world().await;
    let ann = world.user("ann", &[]).await;
    let session = ann.open("worker").await;
    let ran = run_with(&ann, json!({ "agent_name": "worker", "prompt": "dig" })).await;
    // As if the process had ended between the end of the run and the telling.
    sqlx::query("update runs set callback_session = $1::uuid where id = $2::uuid")
        .bind(&session)
        .bind(ran["run_id"].as_str().unwrap())
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    eventually(async || {
        said_in(&ann, &session)
            .await
            .last()
            .is_some_and(|said| said.starts_with("I heard"))
    })
    .await;
}
