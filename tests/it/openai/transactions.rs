//! What a request costs: how many transactions of the tenant a run begins.

use serde_json::json;

use super::{complete, request, stream};
use crate::support::{
    client::Client,
    model::{calls, text},
    world::World,
};

/// Requests that are counted, of which the middle one counts: the clock's own work meets some of them, and so does what a
/// slow machine has to read once more.
const ROUNDS: usize = 9;

/// Transactions of a request. Each is sent by a new user, of whom nothing is remembered.
async fn counted(world: &World, ask: impl AsyncFn(&Client)) -> u64 {
    let mut begun = Vec::new();
    for round in 0..=ROUNDS {
        let user = world.user(&format!("user-{round}"), &["employee"]).await;
        let before = world.app().transactions();
        ask(&user).await;
        // The first request also reads what the process remembers of the tenant.
        if round > 0 {
            begun.push(world.app().transactions() - before);
        }
    }
    begun.sort_unstable();
    begun[ROUNDS / 2]
}

#[tokio::test]
async fn a_run_without_tools_is_at_most_five_transactions() {
    let world = World::start().await;
    world.tools_ready().await;
    world.model.on(|_| Some(text("Hello.")));
    let first = counted(&world, async |user| {
        stream(user, request(&["hi"])).await;
    });
    let first = first.await;
    assert!(first <= 5, "{first} transactions in a new conversation");
    let both = counted(&world, async |user| {
        complete(user, &["hi"]).await;
        complete(user, &["hi", "Hello.", "again"]).await;
    });
    let more = both.await - first;
    assert!(more <= 5, "{more} transactions in a known conversation");
}

#[tokio::test]
async fn a_run_with_one_tool_is_at_most_seven_transactions() {
    let world = World::start().await;
    world.tools_ready().await;
    world.model.on(|request| {
        let called = request["messages"]
            .as_array()
            .unwrap()
            .last()
            .is_some_and(|last| last["role"] == "tool");
        let rate = [(
            "bank__get_exchange_rate",
            json!({ "from": "EUR", "to": "USD" }),
        )];
        Some(if called {
            text("It is high.")
        } else {
            calls(rate)
        })
    });
    let first = counted(&world, async |user| {
        stream(user, request(&["rate?"])).await;
    });
    let first = first.await;
    assert!(first <= 7, "{first} transactions in a new conversation");
    let both = counted(&world, async |user| {
        complete(user, &["rate?"]).await;
        complete(user, &["rate?", "It is high.", "and now?"]).await;
    });
    let more = both.await - first;
    // One of them records that the client has read the whole answer of a turn that called something.
    assert!(more <= 8, "{more} transactions in a known conversation");
}
