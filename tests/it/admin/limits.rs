//! A tenant's own limits of a day, in place of the installation's.

use serde_json::{Value, json};

use super::{operator, patch, world_with};
use crate::support::{
    client::{Answer, Client, plain},
    has::Has,
    model::text,
    world::World,
};

async fn limits(world: &World, limits: Value) -> Value {
    patch(
        &operator(world),
        "/v1/admin/tenants/acme",
        json!({ "limits": limits }),
    )
    .await
    .expect(200)
}

/// Asks the model something in a new conversation, or is refused.
async fn turn(client: &Client) -> Answer {
    let id = client.open("bank").await;
    let answer = client
        .post(
            &format!("/v1/conversations/{id}/messages"),
            json!({ "text": "hi" }),
        )
        .await;
    if answer.status == 202 {
        let run = answer.json()["run"]["id"].as_str().unwrap().to_owned();
        client.listen(&id, Some(0)).await.until_run_ends(&run).await;
    }
    answer
}

#[tokio::test]
async fn a_tenants_own_limit_counts_in_place_of_the_installations() {
    let world = world_with(|setup| setup.config.runs_per_user_per_day = Some(1)).await;
    world.model.on(|_| Some(text("Hello.")));
    let (ann, eve) = (world.user("ann", &[]).await, world.stranger("eve").await);
    assert_eq!(
        limits(&world, json!({ "runs_per_user": 2 })).await["in_force"],
        json!({ "runs_per_user": 2 })
    );
    turn(&ann).await.expect(202);
    turn(&ann).await.expect(202);
    let refused = turn(&ann).await;
    let problem = refused.expect(429);
    problem.has(json!({
        "code": "quota_exceeded",
        "detail": "you have used all 2 runs of today; there is more at 00:00 UTC",
    }));
    let after: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=86_400).contains(&after));
    turn(&eve).await.expect(202);
    turn(&eve).await.expect(429);
    assert_eq!(
        limits(&world, json!({ "runs_per_user": "unlimited" })).await["in_force"],
        json!({})
    );
    turn(&ann).await.expect(202);
    limits(&world, json!({ "runs_per_user": null })).await;
    let back = turn(&ann).await.expect(429);
    assert_eq!(
        back["detail"],
        "you have used all 1 runs of today; there is more at 00:00 UTC"
    );
}

#[tokio::test]
async fn all_users_of_a_tenant_share_its_tokens_on_every_replica_at_once() {
    let world = world_with(|_| {}).await;
    world.model.on(|_| Some(text("Hello.")));
    let replica = world.replica().await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    // Each answer of the scripted model says that it took 18.
    turn(&ann).await.expect(202);
    let there = bob.at(&replica.url);
    turn(&there).await.expect(202);
    limits(&world, json!({ "tokens_per_tenant": 36 })).await;
    let refused = turn(&there).await.expect(429);
    assert_eq!(
        refused["detail"],
        "your organisation has used all 36 tokens of today; there is more at 00:00 UTC"
    );
    limits(&world, json!({ "tokens_per_tenant": 37 })).await;
    turn(&there).await.expect(202);
    let used = operator(&world)
        .get("/v1/admin/tenants/acme")
        .await
        .expect(200);
    assert_eq!(used["used_today"], json!({ "runs": 3, "tokens": 54 }));
}

#[tokio::test]
async fn a_limit_of_no_runs_still_allows_commands() {
    let world = world_with(|_| {}).await;
    let ann = world.user("ann", &[]).await;
    limits(&world, json!({ "runs_per_tenant": 0 })).await;
    turn(&ann).await.expect(429);
    let id = ann.open("bank").await;
    let run = ann.say_and_wait(&id, "/help").await;
    assert_eq!(run["status"], "succeeded");
    let answer = plain(ann.messages(&id).await.last().unwrap());
    assert!(answer.contains("/help – this list"), "{answer}");
}
