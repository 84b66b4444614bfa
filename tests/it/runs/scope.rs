//! The scope: inherited by children, seen by no model, sealed while it is there, gone when the tree is over.

use chatelaine::app::servers::run_values as values;
use domain::{ids::RunId, json::Members};
use serde_json::{Value, json};

use super::{came_to, run_with, start};
use crate::support::{
    client::Client,
    has::Has,
    model::{Gate, text, text_of},
    wait::{ended, eventually},
    world::World,
};

const CANARY: &str = "canary-2f9c1d";

fn last(request: &Value) -> String {
    text_of(request["messages"].as_array().unwrap().last().unwrap())
}

/// Everything that the database holds of runs and what is said in them, as text.
async fn rows(world: &World) -> String {
    let mut rows = String::new();
    for table in [
        "runs",
        "messages",
        "events",
        "conversations",
        "audit",
        "approvals",
        "usage",
        "webhook_deliveries",
    ] {
        let sql = format!("select coalesce(string_agg(t::text, ' '), '') from {table} t");
        let mut db = world.db.as_tenant(world.tenant.id).await;
        let found: String = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&mut db)
            .await
            .unwrap();
        rows += &found;
    }
    rows
}

async fn scopes_held(world: &World) -> i64 {
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query_scalar("select count(*) from runs where scope is not null")
        .fetch_one(&mut db)
        .await
        .unwrap()
}

async fn scope_of(world: &World, run: &str) -> Members {
    let run: RunId = run.parse().unwrap();
    values::load_stored(world.app(), world.tenant.id, run)
        .await
        .unwrap()
        .0
}

async fn first_run(client: &Client, session: &str) -> String {
    client.messages(session).await[0]["run_id"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn members(object: &Value) -> Members {
    object.as_object().unwrap().into()
}

/// A world whose worker waits at a gate.
async fn gated() -> (World, Gate) {
    let world = World::with(super::add_packs).await;
    let gate = Gate::new();
    let held = gate.clone();
    world
        .model
        .on(move |request| (last(request) == "slowly").then(|| text("There.").gate(0, &held)));
    world.model.on(super::obedient);
    world.model.forbid(CANARY);
    (world, gate)
}

#[tokio::test]
async fn a_scope_is_inherited_sealed_shown_to_nobody_and_gone_with_the_last_run_of_its_tree() {
    let (world, gate) = gated().await;
    let ann = world.user("ann", &[]).await;
    let prompt = start("lead", &start("worker", "slowly", "async_poll"), "sync");
    let body = json!({ "agent_name": "lead", "prompt": prompt, "scope": { "context_id": CANARY, "deep": { "n": 1 } } });
    let answer = run_with(&ann, body).await;
    gate.reached().await;
    assert!(!answer.to_string().contains(CANARY));
    let child = came_to(answer["result"].as_str().unwrap());
    let grandchild = came_to(child["result"].as_str().unwrap())["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let bottom = first_run(&ann, &grandchild).await;
    // Only the grandchild is open, and the scope is its own as it was given.
    assert_eq!(
        scope_of(&world, &bottom).await,
        members(&json!({ "context_id": CANARY, "deep": { "n": 1 } }))
    );
    assert_eq!(scopes_held(&world).await, 1);
    let shown = ann.get(&format!("/runs/{bottom}")).await.text
        + &ann.get("/v1/conversations?include=children").await.text;
    assert!(!shown.contains(CANARY) && !rows(&world).await.contains(CANARY));
    assert!(
        !rows(&world).await.contains(&hex::encode(CANARY)),
        "not even as bytes"
    );
    gate.open();
    ended(&ann, &bottom).await;
    eventually(async || scopes_held(&world).await == 0).await;
    assert_eq!(scope_of(&world, &bottom).await, Members::default());
}

#[tokio::test]
async fn a_scope_lives_until_the_session_that_waits_has_heard_and_answered() {
    let (world, gate) = gated().await;
    let ann = world.user("ann", &[]).await;
    let prompt = start("worker", "slowly", "async_callback");
    let lead = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": prompt, "scope": { "k": CANARY } }),
    )
    .await;
    gate.reached().await;
    assert_eq!(
        scopes_held(&world).await,
        1,
        "the first run is over, its child is not"
    );
    gate.open();
    let session = lead["session_id"].as_str().unwrap();
    eventually(async || {
        super::said_in(&ann, session)
            .await
            .last()
            .unwrap()
            .starts_with("I heard")
    })
    .await;
    eventually(async || scopes_held(&world).await == 0).await;
}

#[tokio::test]
async fn a_session_does_not_keep_the_scope_of_its_runs() {
    let (world, gate) = gated().await;
    let ann = world.user("ann", &[]).await;
    let first = run_with(
        &ann,
        json!({ "agent_name": "worker", "prompt": "x", "scope": { "k": CANARY } }),
    )
    .await;
    let body =
        json!({ "type": "resume_session", "session_id": first["session_id"], "prompt": "slowly" });
    let second = ann.post("/runs", body).await.expect(202);
    gate.reached().await;
    assert_eq!(
        scope_of(&world, second["run_id"].as_str().unwrap()).await,
        Members::default()
    );
    gate.open();
}

#[tokio::test]
async fn a_model_cannot_name_a_scope_for_its_child() {
    let (world, _) = gated().await;
    let ann = world.user("ann", &[]).await;
    let arguments =
        json!({ "agent_name": "worker", "prompt": "x", "scope": { "context_id": "another" } });
    let ran = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": super::order("start_agent_session", &arguments) }),
    )
    .await;
    ran["result"].says("not executed: the arguments do not fit the tool");
    let sessions = ann
        .get("/v1/conversations?include=children")
        .await
        .expect(200);
    assert_eq!(
        sessions["items"].as_array().unwrap().len(),
        1,
        "no child was made"
    );
}

#[tokio::test]
async fn without_a_key_ring_a_scope_is_refused_and_a_run_without_one_is_not() {
    let world = World::with(|setup| {
        super::add_packs(setup);
        setup.config.ring = None;
    })
    .await;
    world.model.on(super::obedient);
    let ann = world.user("ann", &[]).await;
    let refused = ann
        .post(
            "/runs",
            json!({ "agent_name": "worker", "prompt": "x", "scope": { "k": "v" } }),
        )
        .await;
    refused.expect(502)["detail"].says("MCP_CONFIG_ENCRYPTION_KEY");
    assert_eq!(
        run_with(&ann, json!({ "agent_name": "worker", "prompt": "x" })).await["status"],
        "succeeded"
    );
}

#[tokio::test]
async fn a_scope_that_is_too_large_is_refused_without_a_word_of_it() {
    let (world, _) = gated().await;
    let ann = world.user("ann", &[]).await;
    let scope = json!({ "k": CANARY.repeat(10_000) });
    let refused = ann
        .post(
            "/runs",
            json!({ "agent_name": "worker", "prompt": "x", "scope": scope }),
        )
        .await;
    assert_eq!(
        refused.expect(400)["detail"],
        "scope has more than 100000 characters"
    );
    assert!(!refused.text.contains(CANARY));
}

#[tokio::test]
async fn a_child_whose_first_run_is_deleted_is_told_nothing_less_but_ends() {
    let (world, gate) = gated().await;
    let ann = world.user("ann", &[]).await;
    // The child's own orders need the orchestrator, hence its values.
    let prompt = start("lead", "slowly", "async_poll");
    let body = json!({ "agent_name": "lead", "prompt": prompt, "scope": { "k": CANARY } });
    let lead = run_with(&ann, body).await;
    gate.reached().await;
    let child = came_to(lead["result"].as_str().unwrap())["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let run: RunId = first_run(&ann, &child).await.parse().unwrap();
    // The session goes with the one that started it.
    ann.delete(&format!(
        "/v1/conversations/{}",
        lead["session_id"].as_str().unwrap()
    ))
    .await;
    ann.get(&format!("/v1/conversations/{child}"))
        .await
        .expect(404);
    assert!(
        values::load_stored(world.app(), world.tenant.id, run)
            .await
            .is_err()
    );
    gate.open();
}

#[tokio::test]
async fn what_waits_for_consent_keeps_the_scope_and_its_follow_up_goes_on_with_it() {
    let (world, _) = gated().await;
    let (ann, boss) = (
        world.user("ann", &[]).await,
        world.user("boss", &["admin"]).await,
    );
    let delete = super::order("delete_all_agent_sessions", &json!({}));
    let lead = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": delete, "scope": { "k": CANARY } }),
    )
    .await;
    let request = boss.get("/v1/approvals").await.expect(200)["items"][0].clone();
    assert_eq!(scopes_held(&world).await, 1, "the call may still be made");
    let decision = json!({ "decision": "approve", "args_sha256": request["args_sha256"] });
    boss.post(
        &format!("/v1/approvals/{}/decision", request["id"].as_str().unwrap()),
        decision,
    )
    .await
    .expect(200);
    eventually(async || scopes_held(&world).await == 0).await;
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let of_tree: i64 = sqlx::query_scalar("select count(*) from runs where root_run = $1::uuid")
        .bind(lead["run_id"].as_str().unwrap())
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(of_tree, 2, "the run, and the one that was told the outcome");
}
