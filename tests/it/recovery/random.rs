//! Messages, cancels and kills in whatever order a random generator likes. Whatever happens: every run ends, every
//! call has one result, every payment was made at most once, and the model never sees a broken transcript (it
//! checks that itself).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::world_with;
use crate::support::{
    bank::{payment, start_slow_bank},
    client::Client,
    model::{Reply, call, text, text_of},
    replica::Replica,
    seed::of_run,
    wait::ended,
    world::World,
};

/// Pays for each message that nobody has answered yet, and then says so.
fn pay(request: &Value) -> Option<Reply> {
    let messages = request["messages"].as_array()?;
    let last = messages.last()?;
    if last["role"] != "user" {
        return Some(text("That is what became of it."));
    }
    let asked = messages
        .iter()
        .rev()
        .take_while(|message| message["role"] == "user")
        .map(text_of);
    let asked = asked.collect::<Vec<_>>().into_iter().rev();
    Some(asked.fold(text("I will."), |reply, amount| {
        reply.and_call(call("bank__send_money", payment(&amount).to_string()))
    }))
}

/// A life of some seconds; the runs and messages that came of it are checked.
async fn live(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let bank = start_slow_bank(None, Duration::from_millis(60)).await;
    let world =
        world_with(|setup| setup.env = setup.env.clone().with("BANK_URL", bank.url.clone())).await;
    world.model.on(pay);
    let fin = world.user("fin", &["finance"]).await;
    let conversations = [fin.open("bank").await, fin.open("bank").await];
    let mut other: Option<Replica> = None;
    let mut runs = BTreeSet::new();
    for at in 0..24 {
        let id = &conversations[random.random_range(0..2)];
        match random.random_range(0..10) {
            0..=5 => {
                let there = other
                    .as_ref()
                    .filter(|_| random.random_bool(0.7))
                    .map(|other| fin.at(&other.url));
                runs.insert(
                    there
                        .as_ref()
                        .unwrap_or(&fin)
                        .say(id, &format!("1.{at:02}"))
                        .await,
                );
            }
            6 => {
                if let Some(run) = runs.iter().last() {
                    fin.post(&format!("/v1/runs/{run}/cancel"), json!({})).await;
                }
            }
            7 => drop(other.take()),
            _ if other.is_none() => other = Some(world.replica().await),
            _ => {}
        }
        // Noise, so that kills meet runs in every state; nothing waits for it.
        tokio::time::sleep(Duration::from_millis(random.next_u64() % 90)).await;
    }
    drop(other);
    for run in &runs {
        ended(&fin, run).await;
    }
    check(&world, &fin, &conversations).await;
    let mut made = BTreeMap::new();
    for entry in bank.books.entries() {
        *made
            .entry(entry.arguments["amount"].to_string())
            .or_insert(0) += 1;
    }
    assert!(
        made.values().all(|times| *times == 1),
        "seed {seed}: paid twice: {made:?}"
    );
}

async fn check(world: &World, client: &Client, conversations: &[String]) {
    for id in conversations {
        let mut results: BTreeMap<String, i32> = BTreeMap::new();
        for message in client.messages(id).await {
            for part in message["parts"].as_array().unwrap() {
                match part["type"].as_str().unwrap() {
                    "tool_call" => *results.entry(part["call_id"].to_string()).or_default() -= 1,
                    "tool_result" => *results.entry(part["call_id"].to_string()).or_default() += 1,
                    _ => {}
                }
            }
        }
        assert!(
            results.values().all(|balance| *balance == 0),
            "a call without its one result: {results:?}"
        );
        let seqs: Vec<i64> = sqlx::query_scalar(
            "select seq from events where conversation_id = $1::uuid order by seq",
        )
        .bind(id)
        .fetch_all(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
        assert_eq!(
            seqs,
            (1..=i64::try_from(seqs.len()).unwrap()).collect::<Vec<_>>(),
            "no event is missing"
        );
    }
    world.model.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_nothing_is_lost_or_done_twice() {
    let first = of_run(1);
    futures_util::future::join_all([0, 1, 2].map(|at| live(first.wrapping_add(at)))).await;
}
