//! Tokens that end.

use std::time::Duration;

use serde_json::json;

use super::{TEST, call, connect, connected, connection, guarded::Guarded};
use crate::support::{
    client::Client,
    has::Has,
    servers::{soon, until},
    world::World,
};

#[tokio::test]
async fn a_token_that_ends_is_refreshed_and_the_call_is_made() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.end_access_tokens();
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    assert_eq!(guarded.seen(|seen| (seen.refreshes, seen.replays)), (1, 0));
    assert_eq!(connection(&ann).await["state"], "configured");
}

#[tokio::test]
async fn an_authorization_server_that_is_away_takes_nothing_from_the_user() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.turn(|knobs| knobs.away = true);
    guarded.end_access_tokens();
    let result = call(&world, &ann, &chat, "read").await;
    let said = result["text"].as_str().unwrap();
    assert!(said.contains("nothing was sent"), "{said}");
    assert_eq!(guarded.seen(|seen| seen.calls), 0);
    guarded.turn(|knobs| knobs.away = false);
    until_done(&world, &ann, &chat).await;
    assert_eq!(guarded.seen(|seen| (seen.refreshes, seen.replays)), (1, 0));
}

/// Calls until the pause after a failure is over.
async fn until_done(world: &World, client: &Client, chat: &str) {
    for _ in 0..20 {
        if call(world, client, chat, "read").await["text"] == "done" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("the server does not come back");
}

#[tokio::test]
async fn a_refresh_that_is_refused_asks_the_user_again() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.end_authorizations();
    let result = call(&world, &ann, &chat, "read").await;
    assert_eq!(result["status"], "failed", "{result}");
    let now = connection(&ann).await;
    now.has(json!({ "state": "needs_attention", "reason": "rejected" }));
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
}

#[tokio::test]
async fn a_token_that_ends_on_its_way_says_nothing_of_the_sign_in() {
    let (guarded, _world, ann, _) = connected(|_| {}).await;
    guarded.turn(|knobs| (knobs.life, knobs.slow) = (1, Duration::from_millis(1500)));
    guarded.end_access_tokens();
    assert_eq!(ann.post(TEST, json!({})).await.expect(200)["ok"], false);
    assert_eq!(connection(&ann).await["state"], "configured");
    guarded.turn(|knobs| (knobs.life, knobs.slow) = (3600, Duration::ZERO));
    assert_eq!(ann.post(TEST, json!({})).await.expect(200)["ok"], true);
    assert_eq!(guarded.seen(|seen| seen.replays), 0);
}

#[tokio::test]
async fn a_token_that_is_refused_late_is_no_proof_that_the_call_was_not_read() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    guarded.turn(|knobs| knobs.slow = Duration::from_millis(2500));
    guarded.end_access_tokens();
    let result = call(&world, &ann, &chat, "read").await;
    assert_eq!(result["status"], "outcome_unknown", "{result}");
    assert_eq!(guarded.seen(|seen| (seen.calls, seen.refreshes)), (1, 0));
    guarded.turn(|knobs| knobs.slow = Duration::ZERO);
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    assert_eq!(guarded.seen(|seen| seen.calls), 2);
}

/// Waits until a refresh is done at the authorization server whose answer is held back.
async fn until_refreshed(guarded: &Guarded, times: usize) {
    until(|| guarded.seen(|seen| seen.refreshes == times)).await;
}

/// A replica that was killed when its refresh was done, and before the answer came.
async fn killed_in_a_refresh(guarded: &Guarded, world: &World, ann: &Client) {
    let other = world.replica().await;
    guarded.turn(|knobs| knobs.hold = true);
    guarded.end_access_tokens();
    let at_other = ann.at(&other.url);
    let asking = tokio::spawn(async move { at_other.post(TEST, json!({})).await });
    until_refreshed(guarded, 1).await;
    asking.abort();
    other.kill();
    guarded.turn(|knobs| knobs.hold = false);
    // Its lease is over.
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let ended = sqlx::query("update credentials set lease_until = now() where lease_until > now()");
    assert_eq!(ended.execute(&mut db).await.unwrap().rows_affected(), 1);
}

#[tokio::test]
async fn a_replica_that_dies_with_a_refresh_costs_a_sign_in_at_most_and_is_asked_for_once() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    killed_in_a_refresh(&guarded, &world, &ann).await;
    for _ in 0..3 {
        call(&world, &ann, &chat, "read").await;
    }
    let now = connection(&ann).await;
    now.has(json!({ "state": "needs_attention", "reason": "rejected" }));
    assert_eq!(guarded.seen(|seen| (seen.refreshes, seen.replays)), (1, 1));
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
}

#[tokio::test]
async fn where_a_refresh_token_is_good_twice_for_a_while_nothing_is_lost_with_a_replica() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.turn(|knobs| knobs.grace = Duration::from_secs(60));
    killed_in_a_refresh(&guarded, &world, &ann).await;
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    assert_eq!(connection(&ann).await["state"], "configured");
    assert_eq!(guarded.seen(|seen| (seen.refreshes, seen.replays)), (1, 0));
}

#[tokio::test]
async fn tokens_that_the_database_does_not_take_are_used_and_written_later() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    let mut owner = world.db.as_owner().await;
    let mut run = async |sql: &'static str| sqlx::query(sql).execute(&mut owner).await.unwrap();
    run("alter table credentials add constraint full_disk check (token_version = 0)").await;
    guarded.end_access_tokens();
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    run("alter table credentials drop constraint full_disk").await;
    let mut db = world.db.as_tenant(world.tenant.id).await;
    soon(async {
        let version = "select token_version from credentials";
        while sqlx::query_scalar::<_, i64>(version)
            .fetch_one(&mut db)
            .await
            .unwrap()
            == 0
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    guarded.end_access_tokens();
    let other = world.replica().await;
    let tested = ann.at(&other.url).post(TEST, json!({})).await;
    assert_eq!(tested.expect(200)["ok"], true);
    assert_eq!(guarded.seen(|seen| (seen.refreshes, seen.replays)), (2, 0));
}
