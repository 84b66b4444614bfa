//! The audit trail: a row for each call that was made or refused, and none of what was in it.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::Row;

use super::{shared_world, world};
use crate::support::{
    bank::{pair, payment},
    db::TestDb,
    model::{call, calls, text},
    wait::eventually,
    world::World,
};

/// Server, tool, outcome and hash of each row, in order.
async fn trail(
    db: &TestDb,
    world_tenant: domain::ids::TenantId,
) -> Vec<(String, String, String, String)> {
    let rows = sqlx::query(
        "select coalesce(server, '') as server, tool, coalesce(o.outcome, a.outcome) as outcome, args_sha256, agent
         from audit a left join audit_outcomes o using (tenant_id, id)
         where action = 'tool.call' order by at, id",
    )
    .fetch_all(&mut db.as_tenant(world_tenant).await)
    .await
    .unwrap();
    let row = |row: &sqlx::postgres::PgRow| {
        assert_eq!(row.get::<String, _>("agent"), "bank");
        let hash: Vec<u8> = row.get("args_sha256");
        (
            row.get("server"),
            row.get("tool"),
            row.get("outcome"),
            hex::encode(hash),
        )
    };
    rows.iter().map(row).collect()
}

async fn rows(world: &World, count: usize) -> Vec<(String, String, String, String)> {
    let mut seen = Vec::new();
    eventually(async || {
        seen = trail(&world.db, world.tenant.id).await;
        seen.len() >= count
    })
    .await;
    seen
}

fn hash(arguments: &Value) -> String {
    hex::encode(Sha256::digest(arguments.to_string()))
}

fn row(server: &str, tool: &str, outcome: &str, hash: String) -> (String, String, String, String) {
    (server.to_owned(), tool.to_owned(), outcome.to_owned(), hash)
}

#[tokio::test]
async fn every_call_is_in_the_trail_whether_it_was_made_or_refused() {
    let world = shared_world().await;
    let guest = world.guest().await;
    world
        .model
        .reply(calls([("bank__get_exchange_rate", pair())]));
    world
        .model
        .reply(calls([("bank__send_money", payment("1.00"))]));
    world
        .model
        .reply(text("").and_call(call("bank__get_exchange_rate", "{no")));
    world
        .model
        .reply(text("").and_call(call("made\0up", "{}")))
        .reply(text("Well."));
    let id = guest.open("bank").await;
    guest.say_and_wait(&id, "everything").await;
    guest.say_and_wait(&id, "/call bank get_balances").await;
    let expected = [
        row("bank", "get_exchange_rate", "succeeded", hash(&pair())),
        row("bank", "send_money", "denied", hash(&payment("1.00"))),
        row(
            "bank",
            "get_exchange_rate",
            "denied",
            hex::encode(Sha256::digest("{no")),
        ),
        row("", "made\u{fffd}up", "denied", hash(&json!({}))),
        row("bank", "get_balances", "denied", hash(&json!({}))),
    ];
    assert_eq!(rows(&world, 5).await, expected);
}

#[tokio::test]
async fn the_trail_is_written_before_the_process_ends() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, &format!("/call bank get_exchange_rate {}", pair()))
        .await;
    let tenant = world.tenant.id;
    let stopped = world.stop().await;
    assert_eq!(
        trail(&stopped.db, tenant).await,
        [row("bank", "get_exchange_rate", "succeeded", hash(&pair()))]
    );
}
