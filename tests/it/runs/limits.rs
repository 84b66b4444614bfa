//! How deep, how many, how much in a day; and what was used.

use serde_json::{Value, json};

use super::{came_to, order, run, run_with, start, world_with};
use crate::support::{
    client::Client,
    has::Has,
    model::{calls, results, text_of},
    world::{Setup, World},
};

#[tokio::test]
async fn generations_are_bounded() {
    let world = world_with(|setup: &mut Setup| setup.config.run_depth = 2).await;
    let ann = world.user("ann", &[]).await;
    let deep = start(
        "lead",
        &start("lead", &start("worker", "too deep", "sync"), "sync"),
        "sync",
    );
    let child = came_to(&run(&ann, "lead", &deep).await);
    let grandchild = came_to(child["result"].as_str().unwrap());
    assert_eq!(
        grandchild["result"],
        "It came to: failed: not started: agents may start agents 2 generations deep at most; do this yourself"
    );
    let sessions = ann
        .get("/v1/conversations?include=children")
        .await
        .expect(200);
    assert_eq!(sessions["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn the_children_of_a_run_are_bounded_however_many_are_started_at_once() {
    let world = World::with(|setup| {
        super::add_packs(setup);
        setup.config.run_children = 2;
    })
    .await;
    let ann = world.user("ann", &[]).await;
    let started = said_by_four(&ann, &world).await;
    let refused = started
        .iter()
        .filter(|said| said.contains("one run may start 2 runs at most"))
        .count();
    let finished = started
        .iter()
        .filter(|said| said.contains("finished"))
        .count();
    assert_eq!((finished, refused), (2, 2), "{started:?}");
}

/// Has four children started in one step; what came of each.
async fn said_by_four(client: &Client, world: &World) -> Vec<String> {
    let one = json!({ "agent_name": "worker", "prompt": "x" });
    let tool = "orchestrator__start_agent_session";
    let four = move |request: &Value| {
        let last = request["messages"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone();
        (text_of(&last) == "four").then(|| {
            calls([
                (tool, one.clone()),
                (tool, one.clone()),
                (tool, one.clone()),
                (tool, one.clone()),
            ])
        })
    };
    world.model.on(four).on(super::obedient);
    run(client, "lead", "four").await;
    let with_results = world
        .model
        .requests()
        .into_iter()
        .rev()
        .find(|request| results(&request.body).len() == 4);
    results(&with_results.unwrap().body)
}

#[tokio::test]
async fn a_process_with_one_place_works_on_what_is_waited_for() {
    let world = world_with(|setup: &mut Setup| setup.config.runs_at_once = 1).await;
    let ann = world.user("ann", &[]).await;
    let child = came_to(
        &run(
            &ann,
            "lead",
            &start("lead", &start("worker", "x", "sync"), "sync"),
        )
        .await,
    );
    assert_eq!(
        came_to(child["result"].as_str().unwrap())["result"],
        "Done: x"
    );
}

#[tokio::test]
async fn a_whole_tree_is_bounded() {
    let world = world_with(|setup: &mut Setup| setup.config.run_tree = 2).await;
    let ann = world.user("ann", &[]).await;
    let child = came_to(
        &run(
            &ann,
            "lead",
            &start("lead", &start("worker", "x", "sync"), "sync"),
        )
        .await,
    );
    assert_eq!(
        child["result"],
        "It came to: failed: not started: a tree of runs may have 2 runs at most; finish with what there is"
    );
}

#[tokio::test]
async fn whoever_has_used_all_of_today_is_told_when_there_is_more() {
    let world = world_with(|setup: &mut Setup| setup.config.runs_per_user_per_day = Some(2)).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    run(&ann, "worker", "one").await;
    let id = ann.open("worker").await;
    ann.say_and_wait(&id, "two").await;
    let body = json!({ "agent_name": "worker", "prompt": "three" });
    for answer in [
        ann.post("/runs", body).await,
        ann.post(
            &format!("/v1/conversations/{id}/messages"),
            json!({ "text": "three" }),
        )
        .await,
    ] {
        let problem = answer.expect(429);
        problem.has(json!({
            "code": "quota_exceeded",
            "detail": "you have used all 2 runs of today; there is more at 00:00 UTC",
        }));
        let after: u64 = answer.header("retry-after").parse().unwrap();
        assert!((1..=86_400).contains(&after));
    }
    ann.post(
        &format!("/v1/conversations/{id}/messages"),
        json!({ "text": "/help" }),
    )
    .await
    .expect(202);
    ann.delete(&format!("/v1/conversations/{id}")).await;
    ann.post("/runs", json!({ "agent_name": "worker", "prompt": "four" }))
        .await
        .expect(429);
    run(&bob, "worker", "another's").await;
}

#[tokio::test]
async fn a_tenants_tokens_are_limited_for_everybody_and_for_children_too() {
    // Each answer of the scripted model says that it took 18.
    let world =
        world_with(|setup: &mut Setup| setup.config.tokens_per_tenant_per_day = Some(18)).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let said = run(&ann, "lead", &start("worker", "x", "sync")).await;
    assert_eq!(
        said,
        "It came to: failed: your organisation has used all 18 tokens of today; there is more at 00:00 UTC"
    );
    bob.post("/runs", json!({ "agent_name": "worker", "prompt": "x" }))
        .await
        .expect(429);
    let id = world.stranger("eve").await.open("bank").await;
    world.stranger("eve").await.say_and_wait(&id, "hi").await;
}

#[tokio::test]
async fn what_was_used_is_listed_by_user_and_agent_and_outlives_conversations() {
    let world = world_with(|_| {}).await;
    let (ann, bob, admin) = (
        world.user("ann", &[]).await,
        world.user("bob", &[]).await,
        world.admin().await,
    );
    let ran = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": order("list_agent_sessions", &json!({})) }),
    )
    .await;
    run(&bob, "worker", "x").await;
    ann.delete(&format!(
        "/v1/conversations/{}",
        ran["session_id"].as_str().unwrap()
    ))
    .await;
    let used = |path: &'static str| {
        let admin = admin.clone();
        async move { admin.get(path).await.expect(200)["items"].clone() }
    };
    let expected = json!([
        { "user": "ann", "agent": "lead", "runs": 1, "tool_calls": 1, "input_tokens": 22, "cached_input_tokens": 0, "output_tokens": 14 },
        { "user": "bob", "agent": "worker", "runs": 1, "tool_calls": 0, "input_tokens": 11, "cached_input_tokens": 0, "output_tokens": 7 },
    ]);
    // Lines of the audit trail come a moment later.
    crate::support::wait::eventually(async || used("/v1/admin/usage").await == expected).await;
    assert_eq!(used("/v1/admin/usage?since=2026-01-01").await, expected);
    assert_eq!(used("/v1/admin/usage?until=2026-01-01").await, json!([]));
    admin
        .get("/v1/admin/usage?since=yesterday")
        .await
        .expect(400);
}

#[tokio::test]
async fn an_admin_reads_the_usage_of_each_day_and_the_limits_in_force() {
    let world = world_with(|setup| setup.config.tokens_per_tenant_per_day = Some(500)).await;
    let (ann, admin) = (world.user("ann", &[]).await, world.admin().await);
    run(&ann, "worker", "x").await;
    let today = world.app().clock.now().date();
    let (before, after) = (today.previous_day().unwrap(), today.next_day().unwrap());
    let days = |since: time::Date, until: time::Date| {
        let path = format!("/v1/admin/usage/days?since={since}&until={until}");
        let admin = admin.clone();
        async move { admin.get(&path).await }
    };
    let day = |day: time::Date, runs: i64, read: i64, written: i64| json!({ "day": day.to_string(), "runs": runs, "tool_calls": 0, "input_tokens": read, "cached_input_tokens": 0, "output_tokens": written });
    assert_eq!(
        days(before, after).await.expect(200)["items"],
        json!([day(before, 0, 0, 0), day(today, 1, 11, 7)])
    );
    let of_user = async |user: &str| {
        let path = format!("/v1/admin/usage/days?since={today}&until={after}&user={user}");
        admin.get(&path).await.expect(200)["items"].clone()
    };
    assert_eq!(of_user("ann").await, json!([day(today, 1, 11, 7)]));
    assert_eq!(of_user("bob").await, json!([day(today, 0, 0, 0)]));
    assert_eq!(days(today, today).await.expect(400)["field"], "until");
    let mine = admin.get("/v1/admin/tenant").await.expect(200);
    assert_eq!(mine["in_force"], json!({ "tokens_per_tenant": 500 }));
    assert_eq!(mine["used_today"], json!({ "runs": 1, "tokens": 18 }));
    ann.get("/v1/admin/tenant").await.expect(403);
}
