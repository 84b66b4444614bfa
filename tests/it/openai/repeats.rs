//! A request that is sent again begins nothing twice.

use serde_json::{Value, json};

use super::{PATH, request};
use crate::{
    retention::purge,
    support::{
        client::{Answer, Client},
        model::{Gate, calls, text},
        wait::eventually,
        world::World,
    },
};

fn asking(client: &Client, body: Value) -> tokio::task::JoinHandle<Answer> {
    let client = client.clone();
    tokio::spawn(async move { client.post(PATH, body).await })
}

#[tokio::test]
async fn two_requests_with_one_key_are_one_run() {
    let world = World::shared().await;
    let gate = Gate::new();
    world.model.reply(text("Once.").gate(1, &gate));
    let ann = world
        .user("ann", &[])
        .await
        .with_header("idempotency-key", "k-1");
    let (one, two) = (
        asking(&ann, request(&["hi"])),
        asking(&ann, request(&["hi"])),
    );
    gate.reached().await;
    gate.open();
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    let later = ann.post(PATH, request(&["hi"])).await;
    for answer in [&one, &two, &later] {
        assert_eq!(
            answer.expect(200)["choices"][0]["message"]["content"],
            "Once."
        );
        assert_eq!(answer.header("x-run-id"), one.header("x-run-id"));
    }
    assert_eq!(world.model.requests().len(), 1);
    let other = ann.post(PATH, request(&["something else"])).await;
    assert_eq!(other.expect(422)["error"]["code"], "idempotency_key_reused");
    let bob = world
        .user("bob", &[])
        .await
        .with_header("idempotency-key", "k-1");
    world.model.reply(text("Bob's own."));
    bob.post(PATH, request(&["hi"])).await.expect(200);
}

/// The text of an answer, streamed or whole.
fn text_of(answer: &Answer) -> String {
    let events = answer
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"));
    let streamed: String = events
        .map(|rest| serde_json::from_str::<Value>(&format!("{{{rest}")).unwrap())
        .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    if streamed.is_empty() {
        let whole = answer.expect(200);
        return whole["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned();
    }
    streamed
}

#[tokio::test]
async fn a_turn_whose_request_came_again_before_it_called_anything_calls_nothing() {
    let world = World::start().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let rate = || {
        let pair = json!({ "from": "EUR", "to": "USD" });
        calls([("bank__get_exchange_rate", pair)])
    };
    for is_streamed in [false, true] {
        let gate = Gate::new();
        world.model.reply(rate().gate(0, &gate));
        let mut body = request(&["rate?"]);
        body["stream"] = json!(is_streamed);
        // As behind a proxy that holds the connection of a client that has given up.
        let first = asking(&ann, body.clone());
        gate.reached().await;
        world.model.reply(rate());
        world.model.reply(text("It is high."));
        let second = asking(&ann, body).await.unwrap();
        let answer = text_of(&second);
        assert_eq!(answer, "It is high.", "{}", second.text);
        gate.open();
        let first = first.await.unwrap();
        if is_streamed {
            let ended = text_of(&first);
            assert!(ended.contains("was sent again"), "{}", first.text);
        } else {
            assert_eq!(first.expect(400)["error"]["code"], "answer_pending");
        }
    }
    assert_eq!(world.bank.executions("get_exchange_rate"), 2);
}

#[tokio::test]
async fn what_was_answered_is_answered_again_although_the_agent_was_taken_away() {
    let world = World::start().await;
    world.model.reply(text("Once."));
    let ann = world.user("ann", &[]).await;
    let keyed = ann.clone().with_header("idempotency-key", "k-1");
    let first = keyed.post(PATH, request(&["hi"])).await;
    first.expect(200);
    sqlx::query("update tenants set agents = '{}' where id = $1")
        .bind(world.tenant.id.0)
        .execute(&mut world.db.as_system().await)
        .await
        .unwrap();
    eventually(async || ann.get("/v1/models/bank").await.status == 404).await;
    let unnamed = ann.post(PATH, request(&["hi"])).await;
    unnamed.expect(404);
    let again = keyed.post(PATH, request(&["hi"])).await;
    assert_eq!(
        again.expect(200)["choices"][0]["message"]["content"],
        "Once."
    );
    assert_eq!(again.header("x-run-id"), first.header("x-run-id"));
    assert_eq!(world.model.requests().len(), 1);
}

#[tokio::test]
async fn a_key_is_forgotten_after_a_day() {
    let world = World::start().await;
    world.model.on(|_| Some(text("Yes.")));
    let ann = world.user("ann", &[]).await;
    let named = |key: &str| ann.clone().with_header("idempotency-key", key);
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    for key in ["old", "older"] {
        named(key).post(PATH, request(&["hi"])).await.expect(200);
    }
    // Ids begin with their time, in milliseconds.
    let age = "update request_keys set created_at = now() - interval '25 hours',
               id = (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - 90000000), 12, '0')
                     || substr(replace(id::text, '-', ''), 13))::uuid";
    sqlx::raw_sql(age).execute(&mut tenant).await.unwrap();
    named("new").post(PATH, request(&["hi"])).await.expect(200);
    let again = named("old").post(PATH, request(&["something else"])).await;
    again.expect(200);
    assert_eq!(world.model.requests().len(), 4);
    purge(&world, &[]).await;
    let left = "select substr(key, position(':' in key) + 1) from request_keys order by 1";
    let left: Vec<String> = sqlx::query_scalar(left)
        .fetch_all(&mut tenant)
        .await
        .unwrap();
    assert_eq!(left, ["new", "old"]);
}

#[tokio::test]
async fn an_sdk_that_lost_its_connection_gets_the_answer_of_its_first_attempt() {
    let world = World::start().await;
    let gate = Gate::new();
    world.model.reply(text("Once.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let attempt = |count: &str| ann.clone().with_header("x-stainless-retry-count", count);
    let lost = asking(&attempt("0"), request(&["hi"]));
    gate.reached().await;
    lost.abort();
    let again = asking(&attempt("1"), request(&["hi"]));
    // It listens to the run before the model goes on.
    eventually(async || {
        let repeats: Option<i32> = sqlx::query_scalar("select max(repeats) from request_keys")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
        repeats == Some(1)
    })
    .await;
    gate.open();
    let answer = again.await.unwrap();
    assert_eq!(
        answer.expect(200)["choices"][0]["message"]["content"],
        "Once."
    );
    assert_eq!(world.model.requests().len(), 1);
    // A first attempt is a question of its own.
    world.model.reply(text("Twice."));
    let fresh = attempt("0").post(PATH, request(&["hi"])).await;
    assert_eq!(
        fresh.expect(200)["choices"][0]["message"]["content"],
        "Twice."
    );
}

#[tokio::test]
async fn a_run_that_nobody_asks_for_again_is_stopped() {
    let world = World::with(|setup| {
        setup.config.retry_grace = std::time::Duration::from_millis(1);
    })
    .await;
    let gate = Gate::new();
    world
        .model
        .reply(text("Hello."))
        .reply(text("never to be heard").gate(1, &gate))
        .reply(text("Anew."));
    let ann = world.user("ann", &[]).await;
    let attempt = |count: &str| ann.clone().with_header("x-stainless-retry-count", count);
    let first = ann.post(PATH, request(&["hi"])).await;
    let more = || request(&["hi", "Hello.", "more"]);
    let lost = asking(&attempt("0"), more());
    gate.reached().await;
    lost.abort();
    let mut events = ann.listen(first.header("x-conversation-id"), Some(0)).await;
    while events.next().await.unwrap().data["status"] != "cancelled" {}
    let again = attempt("1").post(PATH, more()).await;
    assert_eq!(
        again.expect(200)["choices"][0]["message"]["content"],
        "Anew."
    );
    let conversations = ann.get("/v1/conversations").await.expect(200);
    let items = conversations["items"].as_array().unwrap();
    assert_eq!(
        items.len(),
        2,
        "the question that was stopped is in none but its own"
    );
    gate.open();
}

#[tokio::test]
async fn messages_and_runs_with_one_key_are_made_once() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Done.")));
    let ann = world.user("ann", &[]).await;
    let conversation = ann.open("bank").await;
    let ann = ann.with_header("idempotency-key", "k-1");
    let path = format!("/v1/conversations/{conversation}/messages");
    let first = ann.post(&path, json!({ "text": "hi" })).await.expect(202);
    let second = ann.post(&path, json!({ "text": "hi" })).await.expect(202);
    assert_eq!(first["message"], second["message"]);
    assert_eq!(first["run"]["id"], second["run"]["id"]);
    let other = ann.post(&path, json!({ "text": "other" })).await;
    assert_eq!(other.expect(422)["code"], "idempotency_key_reused");
    let ann = ann.with_header("idempotency-key", "k-2");
    let run = json!({ "agent_name": "bank", "prompt": "hi", "mode": "sync" });
    let (one, two) = tokio::join!(
        ann.post("/runs", run.clone()),
        ann.post("/runs", run.clone())
    );
    assert_eq!(one.expect(200), two.expect(200));
    ann.post("/v1/runs", run).await.expect(422);
    let bad = ann.with_header("idempotency-key", &"k".repeat(256));
    let refused = bad.post(&path, json!({ "text": "hi" })).await.expect(400);
    assert_eq!(refused["field"], "Idempotency-Key");
}
