//! `POST /runs`: what it takes, what it refuses, how its end is known.

use serde_json::{Value, json};

use super::{add_packs, run_with, shared_world};
use crate::support::{
    client::Client,
    has::Has,
    model::{Gate, last_user, text},
    wait::{ended, eventually},
    world::World,
};

async fn refused(client: &Client, body: Value, status: u16) -> String {
    let conversations = client.get("/v1/conversations?limit=100").await.expect(200);
    let answer = client.post("/runs", body).await.expect(status);
    let after = client.get("/v1/conversations?limit=100").await.expect(200);
    assert_eq!(
        conversations["items"], after["items"],
        "what is refused creates nothing"
    );
    answer["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_documents_request_is_run_and_its_params_are_read_by_the_model() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let ran = run_with(
        &ann,
        json!({ "agent_name": "sprint-researcher", "params": {"topic": "API design"}, "scope": {"context_id": "sprint-42"} }),
    )
    .await;
    ran.has(json!({ "status": "succeeded", "agent_name": "sprint-researcher" }));
    assert_eq!(
        last_user(&world.model.last_request()),
        "Parameters:\n{\n  \"topic\": \"API design\"\n}"
    );
    assert!(!world.model.last_request().to_string().contains("sprint-42"));
}

#[tokio::test]
async fn a_run_that_nobody_waits_for_is_asked_for() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let started = ann
        .post(
            "/v1/runs",
            json!({ "agent_name": "worker", "prompt": "dig" }),
        )
        .await
        .expect(202);
    assert_eq!(started["status"], "pending");
    let run = started["run_id"].as_str().unwrap();
    let run = ended(&ann, run).await;
    run.has(json!({ "result": "Done: dig", "session_id": started["session_id"] }));
    let plain = ann
        .get(&format!("/runs/{}", started["run_id"].as_str().unwrap()))
        .await
        .expect(200);
    assert_eq!(plain, run, "both paths say the same");
}

#[tokio::test]
async fn a_session_is_gone_on_with_and_remembers() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let first = run_with(&ann, json!({ "agent_name": "worker", "prompt": "one" })).await;
    let second = run_with(
        &ann,
        json!({ "type": "resume_session", "session_id": first["session_id"], "prompt": "two" }),
    )
    .await;
    second.has(json!({ "session_id": first["session_id"], "result": "Done: two" }));
    let messages = world.model.last_request()["messages"].to_string();
    assert!(messages.contains("Done: one"), "{messages}");
}

#[tokio::test]
async fn a_prompt_is_never_a_command() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(
        run_with(&ann, json!({ "agent_name": "worker", "prompt": "/help" })).await["result"],
        "Done: /help"
    );
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_with_a_sentence_and_creates_nothing() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let params = |params: Value| json!({ "agent_name": "worker", "prompt": "x", "params": params });
    for (body, sentence) in [
        (
            json!({ "agent_name": "sprint-researcher", "prompt": "x" }),
            "Missing required value: params.topic",
        ),
        (
            params(json!({ "topic": 1 })),
            "Invalid value: params.topic must be a string",
        ),
        (
            params(json!({ "count": "3" })),
            "Invalid value: params.count must be a number",
        ),
        (
            params(json!({ "urgent": "yes" })),
            "Invalid value: params.urgent must be true or false",
        ),
        (
            params(json!({ "topik": "x" })),
            "Unknown value: params.topik. The agent takes: count, more, topic, urgent",
        ),
        (params(json!([])), "params must be an object"),
        (
            json!({ "agent_name": "worker", "prompt": "x", "scope": "canary" }),
            "scope must be an object",
        ),
        (
            json!({ "agent_name": "worker", "prompt": "x", "mode": "later" }),
            "Invalid mode: later. Must be one of: sync, async_poll, async_callback",
        ),
        (
            json!({ "agent_name": "worker", "prompt": "x", "mode": "async_callback" }),
            "async_callback mode requires X-Agent-Session-Id header",
        ),
        (
            json!({ "agent_name": "worker", "prompt": "x", "type": "stop" }),
            "Invalid type: stop. Must be one of: start_session, resume_session",
        ),
        (
            json!({ "agent_name": "worker", "prompt": "x", "session_id": "s" }),
            "session_id is for `\"type\": \"resume_session\"`; leave it out to start a new session",
        ),
        (
            json!({ "agent_name": "worker" }),
            "prompt is empty; say what the agent is to do",
        ),
        (json!({ "prompt": "x" }), "agent_name is missing"),
        (
            json!({ "agent_name": "worker", "prompt": "x".repeat(100_001) }),
            "Parameters too large: 100003 characters (max 100000)",
        ),
    ] {
        assert_eq!(refused(&ann, body, 400).await, sentence);
    }
    assert_eq!(world.model.requests().len(), 0);
}

#[tokio::test]
async fn a_strangers_session_is_not_found_and_neither_is_nonsense() {
    let world = shared_world().await;
    let (ann, bob, stranger) = (
        world.user("ann", &[]).await,
        world.user("bob", &[]).await,
        world.stranger("ann").await,
    );
    let ran = run_with(&ann, json!({ "agent_name": "worker", "prompt": "mine" })).await;
    let session = ran["session_id"].as_str().unwrap();
    for (who, id) in [(&bob, session), (&stranger, session), (&ann, "nonsense")] {
        let body = json!({ "type": "resume_session", "session_id": id, "prompt": "x" });
        assert_eq!(
            refused(who, body, 404).await,
            format!("Session not found: {id}")
        );
    }
    let bob = bob.with_header("x-agent-session-id", session);
    let body = json!({ "agent_name": "worker", "prompt": "x", "mode": "async_callback" });
    assert_eq!(
        refused(&bob, body, 404).await,
        format!("Session not found: {session}")
    );
}

#[tokio::test]
async fn a_session_that_waits_already_takes_no_other_run() {
    let world = World::with(add_packs).await;
    let ann = world.user("ann", &[]).await;
    let gate = Gate::new();
    world
        .model
        .reply(text("One.").gate(0, &gate))
        .reply(text("Two."));
    let one = ann
        .post("/runs", json!({ "agent_name": "worker", "prompt": "one" }))
        .await
        .expect(202);
    gate.reached().await;
    let resume = |prompt: &str| json!({ "type": "resume_session", "session_id": one["session_id"], "prompt": prompt });
    let two = ann.post("/runs", resume("two")).await.expect(202);
    let session = one["session_id"].as_str().unwrap();
    let sentence = refused(&ann, resume("three"), 409).await;
    assert_eq!(
        sentence,
        format!("Session not finished: {session} (status: pending)")
    );
    gate.open();
    assert_eq!(
        ended(&ann, two["run_id"].as_str().unwrap()).await["result"],
        "Two."
    );
}

#[tokio::test]
async fn whoever_hangs_up_on_a_run_does_not_stop_it() {
    let world = World::with(add_packs).await;
    let ann = world.user("ann", &[]).await;
    let gate = Gate::new();
    world.model.reply(text("Here it is.").gate(0, &gate));
    let body = json!({ "agent_name": "worker", "prompt": "x", "mode": "sync" });
    let asked = tokio::spawn({
        let ann = ann.clone();
        async move { ann.post("/runs", body).await }
    });
    gate.reached().await;
    asked.abort();
    gate.open();
    let sessions = ann.get("/v1/conversations").await.expect(200);
    let session = sessions["items"][0]["id"].as_str().unwrap().to_owned();
    eventually(async || super::said_in(&ann, &session).await == ["x", "Here it is."]).await;
}

#[tokio::test]
async fn waiting_has_an_end_and_the_run_goes_on() {
    let world = World::with(|setup| {
        add_packs(setup);
        setup.config.run_wait = std::time::Duration::from_millis(100);
    })
    .await;
    let ann = world.user("ann", &[]).await;
    let gate = Gate::new();
    world.model.reply(text("Late.").gate(0, &gate));
    let body = json!({ "agent_name": "worker", "prompt": "x", "mode": "sync" });
    let started = ann.post("/runs", body).await.expect(202);
    assert_eq!(started["status"], "running");
    gate.open();
    assert_eq!(
        ended(&ann, started["run_id"].as_str().unwrap()).await["result"],
        "Late."
    );
}

#[tokio::test]
async fn a_result_that_is_too_long_is_cut_and_says_so() {
    let world = World::with(add_packs).await;
    world.model.reply(text("é".repeat(50_001)));
    let ann = world.user("ann", &[]).await;
    let ran = run_with(&ann, json!({ "agent_name": "worker", "prompt": "x" })).await;
    let result = ran["result"].as_str().unwrap();
    assert!(
        result.starts_with(&"é".repeat(50_000)),
        "the first 50000 are there"
    );
    assert!(
        result.ends_with("\n\n[Cut: these are the first 50000 of 50001 characters.]"),
        "and what is said of it"
    );
    assert_eq!(result.matches('é').count(), 50_000);
}

#[tokio::test]
async fn a_run_is_cancelled_under_both_paths() {
    let world = World::with(add_packs).await;
    let ann = world.user("ann", &[]).await;
    let gate = Gate::new();
    world.model.reply(text("never heard").gate(1, &gate));
    let started = ann
        .post("/runs", json!({ "agent_name": "worker", "prompt": "x" }))
        .await
        .expect(202);
    gate.reached().await;
    let run = started["run_id"].as_str().unwrap();
    ann.post(&format!("/runs/{run}/cancel"), json!({}))
        .await
        .expect(202);
    assert_eq!(ended(&ann, run).await["status"], "cancelled");
}
