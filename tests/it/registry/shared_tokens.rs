//! Access tokens of more than one process: asked for once, kept sealed, replaced once.

use serde_json::json;

use super::{
    Watched, eventually, offered, put,
    tokens::{Endpoint, endpoint, external, rate, reading},
};
use crate::support::{
    canary::everything_stored,
    client::Client,
    world::{Setup, World},
};

/// How often the endpoint was asked and has answered.
fn asked(endpoint: &Endpoint) -> usize {
    endpoint.given.lock().unwrap().len()
}

/// A bank, its token endpoint, the product with the document's entry, and somebody who reads.
async fn start(change: impl FnOnce(&mut Setup)) -> (Watched, Endpoint, World, Client) {
    let bank = Watched::start().await;
    let (endpoint, _) = endpoint(&bank, 3600).await;
    let world = World::with(|setup| {
        reading(setup);
        change(setup);
    })
    .await;
    let ann = world.user("ann", &[]).await;
    (bank, endpoint, world, ann)
}

/// Opens the agent, which uses its servers.
async fn look(client: &Client) {
    client
        .get("/v1/agents/reader/connections")
        .await
        .expect(200);
}

async fn define(world: &World, bank: &Watched, endpoint: &Endpoint) {
    world
        .admin()
        .await
        .post("/mcp-servers", external(bank, endpoint))
        .await
        .expect(201);
}

#[tokio::test]
async fn replicas_and_those_that_start_later_use_one_token_that_lies_sealed() {
    let (bank, endpoint, world, here) = start(|_| {}).await;
    let other = world.replica().await;
    define(&world, &bank, &endpoint).await;
    let there = here.at(&other.url);
    tokio::join!(
        offered(&here, "reader", "api"),
        offered(&there, "reader", "api")
    );
    let (a, b) = tokio::join!(rate(&here), rate(&there));
    assert!(a.contains("1.085") && b.contains("1.085"), "{a} {b}");
    let third = world.replica().await;
    offered(&here.at(&third.url), "reader", "api").await;
    assert!(rate(&here.at(&third.url)).await.contains("1.085"));
    other.kill();
    let world = world.stop().await.start().await;
    let ann = world.user("ann", &[]).await;
    offered(&ann, "reader", "api").await;
    assert!(rate(&ann).await.contains("1.085"));
    assert_eq!(asked(&endpoint), 1, "four processes, one request");
    let stored = everything_stored(&world.db).await;
    assert!(stored.contains("access_tokens: [\""), "the rows were read");
    for secret in [
        "token-1-0123456789",
        "s3cret/+",
        &hex::encode("token-1-0123456789"),
        &hex::encode("s3cret/+"),
    ] {
        assert!(!stored.contains(secret), "{secret} lies there in clear");
    }
}

#[tokio::test]
async fn a_token_that_the_server_refuses_is_replaced_once_for_all_replicas() {
    let (bank, endpoint, world, here) = start(|_| {}).await;
    let other = world.replica().await;
    define(&world, &bank, &endpoint).await;
    let there = here.at(&other.url);
    tokio::join!(
        offered(&here, "reader", "api"),
        offered(&there, "reader", "api")
    );
    *bank.token.lock().unwrap() = Some("rotated".to_owned());
    let (a, b) = tokio::join!(rate(&here), rate(&there));
    assert!(a.contains("1.085") && b.contains("1.085"), "{a} {b}");
    assert_eq!((bank.executions(), asked(&endpoint)), (2, 2));
}

#[tokio::test]
async fn whoever_dies_while_they_ask_is_followed_by_another_and_comes_too_late() {
    let (bank, endpoint, world, here) = start(|_| {}).await;
    let other = world.replica().await;
    endpoint
        .silent
        .store(true, std::sync::atomic::Ordering::SeqCst);
    define(&world, &bank, &endpoint).await;
    look(&here).await;
    eventually("somebody asks, and gets no answer", async || {
        !endpoint.silent.load(std::sync::atomic::Ordering::SeqCst)
    })
    .await;
    // Its lease ends.
    let ended = "update access_tokens set lease_until = now() where lease_until is not null";
    let mut db = world.db.as_tenant(world.tenant.id).await;
    assert_eq!(
        sqlx::query(ended)
            .execute(&mut db)
            .await
            .unwrap()
            .rows_affected(),
        1
    );
    let there = here.at(&other.url);
    tokio::select! {
        () = offered(&here, "reader", "api") => {}
        () = offered(&there, "reader", "api") => {}
    }
    assert_eq!(asked(&endpoint), 1);
    let (fence, version): (i64, i64) = sqlx::query_as("select fence, version from access_tokens")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!((fence, version), (2, 1), "two have asked, one token came");
}

#[tokio::test]
async fn another_secret_gets_no_token_of_the_one_before() {
    let (bank, endpoint, world, ann) = start(|_| {}).await;
    define(&world, &bank, &endpoint).await;
    offered(&ann, "reader", "api").await;
    let mut changed = external(&bank, &endpoint);
    changed["auth"]["client_secret"] = json!("another");
    put(&world.admin().await, "/mcp-servers/external-api", &changed)
        .await
        .expect(200);
    eventually("a token for the new secret", async || {
        look(&ann).await;
        asked(&endpoint) == 2
    })
    .await;
    offered(&ann, "reader", "api").await;
    let given = endpoint.given.lock().unwrap().clone();
    assert_ne!(given[0].0["authorization"], given[1].0["authorization"]);
}

#[tokio::test]
async fn what_cannot_be_opened_any_more_is_got_anew() {
    let (bank, endpoint, world, ann) = start(|_| {}).await;
    define(&world, &bank, &endpoint).await;
    offered(&ann, "reader", "api").await;
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let spoilt =
        "update access_tokens set sealed = set_byte(sealed, 60, get_byte(sealed, 60) # 255)";
    sqlx::query(spoilt).execute(&mut db).await.unwrap();
    let later = world.replica().await;
    let there = ann.at(&later.url);
    offered(&there, "reader", "api").await;
    assert!(rate(&there).await.contains("1.085"));
    assert_eq!(asked(&endpoint), 2);
}

#[tokio::test]
async fn without_a_key_ring_each_process_has_a_token_of_its_own() {
    let (bank, endpoint, world, here) = start(|setup| setup.config.ring = None).await;
    define(&world, &bank, &endpoint).await;
    offered(&here, "reader", "api").await;
    let other = world.replica().await;
    offered(&here.at(&other.url), "reader", "api").await;
    rate(&here.at(&other.url)).await;
    assert!(asked(&endpoint) >= 2);
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let kept: i64 = sqlx::query_scalar("select count(*) from access_tokens")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(kept, 0, "nothing can be sealed, so nothing is kept");
}
