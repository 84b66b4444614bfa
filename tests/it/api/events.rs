//! Events: durable ones once and in order, also after a pause; transient ones for those who listen.

use std::sync::Arc;

use chatelaine::app::chat::conversations::{self, ConversationEvent};
use domain::{
    ids::UserId,
    principal::{Audience, Principal},
};
use http::Method;
use serde_json::{Value, json};

use crate::support::{
    client::{Client, Event, Events},
    has::Has,
    model::{Gate, text},
    world::World,
};

fn ids(events: &[Event]) -> Vec<i64> {
    events.iter().filter_map(|event| event.id).collect()
}

async fn last_event(client: &Client, conversation: &str) -> i64 {
    client
        .get(&format!("/v1/conversations/{conversation}"))
        .await
        .expect(200)["last_event"]
        .as_i64()
        .unwrap()
}

#[tokio::test]
async fn a_listener_hears_the_answer_as_it_is_said_and_then_whole() {
    let world = World::shared().await;
    world.model.reply(text("You have five euros."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let mut events = ann.listen(&id, None).await;
    let run = ann.say(&id, "How much?").await;
    let heard = events.until_run_ends(&run).await;
    let deltas: Vec<_> = heard.iter().filter(|event| event.name == "delta").collect();
    let said: String = deltas
        .iter()
        .map(|event| event.data["text"].as_str().unwrap())
        .collect();
    assert_eq!(said, "You have five euros.");
    assert!(deltas.len() > 1, "it is streamed");
    assert!(
        deltas
            .iter()
            .all(|event| event.id.is_none() && event.data["run_id"] == run.as_str())
    );
    let messages: Vec<_> = heard
        .iter()
        .filter(|event| event.name == "message")
        .map(|event| &event.data["role"])
        .collect();
    assert_eq!(messages, ["user", "assistant"]);
    let durable = |event: &&Event| !matches!(event.name.as_str(), "delta" | "server_started");
    assert!(heard.iter().filter(durable).all(|event| event.id.is_some()));
}

#[tokio::test]
async fn who_comes_back_hears_what_they_missed_once_and_in_order() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Yes.")));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let mut first = ann.listen(&id, Some(0)).await;
    let run = ann.say(&id, "one").await;
    let before = ids(&first.until_run_ends(&run).await);
    drop(first);
    ann.say_and_wait(&id, "two").await;
    let mut again = ann.listen(&id, before.last().copied()).await;
    let run = ann.say(&id, "three").await;
    let after = ids(&again.until_run_ends(&run).await);
    let all: Vec<i64> = before.into_iter().chain(after).collect();
    let last = last_event(&ann, &id).await;
    assert_eq!(all, (1..=last).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_was_heard_whole_is_not_heard_again_in_pieces() {
    let world = World::start().await;
    world.model.reply(text("euro ".repeat(400)));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let principal = Principal {
        tenant: world.tenant.id,
        user: UserId("ann".into()),
        claims: Arc::default(),
        locale: None,
        authenticated: true,
        key: None,
        audience: Audience::default(),
    };
    let mut slow = conversations::listen(world.app(), &principal, id.parse().unwrap(), None)
        .await
        .unwrap();
    // More is said than is kept for a slow listener: it reads the rows, and what is left was said before them.
    ann.say_and_wait(&id, "How much?").await;
    let name = |heard: ConversationEvent| match heard {
        ConversationEvent::Durable(event) => event.kind.name(),
        ConversationEvent::Transient(event) => event.name(),
    };
    let mut heard = Vec::new();
    while heard.last() != Some(&"run") {
        heard.push(name(slow.next().await.unwrap().unwrap()));
    }
    loop {
        tokio::select! {
            biased;
            left = slow.next() => heard.push(name(left.unwrap().unwrap())),
            () = std::future::ready(()) => break,
        }
    }
    assert_eq!(heard, ["message", "message", "run"]);
    // What is new is heard as it is said. The answer is held after its first word, before its rows are written.
    let gate = Gate::new();
    world.model.reply(text("Six euros.").gate(2, &gate));
    ann.say(&id, "And now?").await;
    while heard.last() != Some(&"delta") {
        heard.push(name(slow.next().await.unwrap().unwrap()));
    }
    gate.open();
    // Its server takes part as soon as it is discovered.
    heard.retain(|name| *name != "server_started");
    assert_eq!(heard[3..], ["message", "delta"]);
}

#[tokio::test]
async fn after_in_the_query_says_the_same_as_the_header_and_yields_to_it() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "/help").await;
    let last = last_event(&ann, &id).await;
    let path = format!("/v1/conversations/{id}/events?after=1");
    let mut by_query =
        crate::support::client::Events::of(ann.request(Method::GET, &path).send().await.unwrap());
    assert_eq!(by_query.next().await.unwrap().id, Some(2));
    let request = ann
        .request(Method::GET, &path)
        .header("last-event-id", last - 1);
    let mut by_header = crate::support::client::Events::of(request.send().await.unwrap());
    assert_eq!(by_header.next().await.unwrap().id, Some(last));
}

#[tokio::test]
async fn a_last_event_id_that_is_none_is_refused() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let path = format!("/v1/conversations/{}/events", ann.open("bank").await);
    for id in ["x", "-1", "1.5", "99999999999999999999"] {
        let problem = ann
            .send(ann.request(Method::GET, &path).header("last-event-id", id))
            .await
            .expect(400);
        assert_eq!(problem["field"], "Last-Event-ID", "{id}");
    }
}

#[tokio::test]
async fn all_listeners_of_a_conversation_hear_the_same() {
    let world = World::shared().await;
    let gate = Gate::new();
    world.model.reply(text("The same for all.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let (mut one, mut two) = (ann.listen(&id, None).await, ann.listen(&id, None).await);
    let run = ann.say(&id, "hi").await;
    gate.reached().await;
    gate.open();
    let texts = |heard: Vec<Event>| {
        heard
            .into_iter()
            .map(|event| (event.name, event.text))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        texts(one.until_run_ends(&run).await),
        texts(two.until_run_ends(&run).await)
    );
}

#[tokio::test]
async fn a_stream_opens_with_a_word_and_asks_to_be_let_through() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let path = format!("/v1/conversations/{}/events", ann.open("bank").await);
    let mut answer = ann.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let first = answer.chunk().await.unwrap().unwrap();
    assert!(
        String::from_utf8_lossy(&first).contains("retry: 2000"),
        "{first:?}"
    );
}

#[tokio::test]
async fn a_stop_ends_streams_and_the_answer_is_there_after_the_start() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "/help").await;
    let events = ann.listen(&id, None).await;
    let before = ann.messages(&id).await;
    let stopped = world.stop().await;
    let rest = events.rest().await;
    assert_eq!(rest.len(), 1, "the stream ended without a broken event");
    rest[0].data.has(json!({ "reason": "stopping" }));
    let world = stopped.start().await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(ann.messages(&id).await, before);
    let mut replayed = ann.listen(&id, Some(0)).await;
    assert_eq!(
        replayed.next().await.unwrap().data,
        without_nulls(&before[0])
    );
}

/// Within the leeway of clocks a token opens a stream as it makes a request, and no longer.
#[tokio::test]
async fn a_stream_lasts_as_long_as_its_token_is_taken_and_says_so() {
    let world = World::shared().await;
    let ann = world.user("late", &[]).await;
    let id = ann.open("bank").await;
    let late = world
        .user_for_a_while("late", time::Duration::seconds(-20))
        .await;
    late.get("/v1/me").await.expect(200);
    let events = late.listen(&id, None).await;
    let news = late
        .request(Method::GET, "/v1/events")
        .send()
        .await
        .unwrap();
    for events in [events, Events::of(news)] {
        let last = events.rest().await.pop().unwrap();
        assert_eq!(last.name, "end");
        assert_eq!(last.data, json!({ "reason": "token_expired" }));
    }
    late.get("/v1/me").await.expect(401);
}

fn without_nulls(message: &Value) -> Value {
    let fields = message
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, value)| !value.is_null());
    json!(
        fields
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<serde_json::Map<_, _>>()
    )
}
