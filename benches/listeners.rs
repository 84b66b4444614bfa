//! People who wait for an answer: what a thousand of them cost, and how fast one of the model's words reaches all
//! who listen to the same conversation while the thousand wait.
//!
//! The model says what time it is; whoever hears it looks at the same clock.

use std::{
    collections::HashMap,
    convert::Infallible,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, response::Response, routing::post};
use domain::clock;
use futures_util::{StreamExt, future::join_all, stream};
use serde_json::json;
use tokio::net::TcpListener;

use super::{
    product::{Deployment, Product, pack},
    rates,
    support::{
        client::{Client, Events},
        db::TestDb,
    },
    table::{
        Amount::{Bytes, Time},
        Target::AtMost,
        Times, row,
    },
};

const IDLE: usize = 1000;
/// As many as one user may open, who is the only one who can listen to a conversation.
const TOGETHER: usize = 16;
const AT_ONCE: usize = 8;
/// After this time nothing moves any more.
const SETTLE: Duration = Duration::from_secs(4);
/// How often the model speaks, and the pause in between.
const WORDS: usize = 300;
const PAUSE: Duration = Duration::from_millis(20);

pub async fn measure() {
    let (database, server, zero) = (TestDb::new().await, rates::start().await, clock::instant());
    let packs = [(
        "bank".to_owned(),
        pack("bank", &talking_clock(zero).await, &server),
    )];
    let deployment = Deployment::new(&database.url, packs).await;
    let product = deployment.start().await;
    product.until_connected().await;
    tokio::time::sleep(SETTLE).await;
    let mebibytes = |count: f64| Bytes(count * 1024.0 * 1024.0);
    row(
        "resident memory when idle",
        &AtMost(mebibytes(40.0)),
        Bytes(product.resident()),
        "one pack, one server",
    );

    let mut people = Vec::new();
    for at in 0..IDLE.div_ceil(TOGETHER) {
        people.push(deployment.user(&product, &format!("user-{at}")).await);
    }
    let opened = stream::iter(0..IDLE).map(async |at| {
        (
            &people[at / TOGETHER],
            people[at / TOGETHER].open("bank").await,
        )
    });
    let opened: Vec<_> = opened.buffer_unordered(AT_ONCE).collect().await;
    tokio::time::sleep(SETTLE).await;
    let before = product.resident();
    let listening = stream::iter(&opened)
        .map(async |(person, conversation)| product.listen(person, conversation).await);
    let listening: Vec<Events> = listening.buffer_unordered(AT_ONCE).collect().await;
    tokio::time::sleep(SETTLE).await;
    let grown = product.resident() - before;
    let each = grown / f64::from(u32::try_from(listening.len()).unwrap());
    let remark = format!("a conversation each; {} in all", Bytes(product.resident()));
    row(
        &format!("memory of one of {IDLE} idle listeners"),
        &AtMost(Bytes(40.0 * 1024.0)),
        Bytes(each),
        &remark,
    );

    let person = deployment.user(&product, "somebody").await;
    let times = words_heard_by_all(&product, &person, zero).await;
    let figure =
        format!("a delta from the model to all {TOGETHER} listeners of a conversation, p50");
    let remark = format!(
        "p99 {}; the {IDLE} wait meanwhile",
        Time(times.percentile(99))
    );
    row(
        &figure,
        &AtMost(Time(Duration::from_millis(5))),
        Time(times.median()),
        &remark,
    );
    drop(listening);
}

/// For each word, how long it took from the model to the last of the listeners.
async fn words_heard_by_all(product: &Product, person: &Client, zero: Instant) -> Times {
    let conversation = person.open("bank").await;
    let mut listeners = Vec::new();
    for _ in 0..TOGETHER {
        listeners.push(product.listen(person, &conversation).await);
    }
    let listeners: Vec<_> = listeners
        .into_iter()
        .map(|events| tokio::spawn(hear(events, zero)))
        .collect();
    person.say(&conversation, "What time is it?").await;
    let mut heard: HashMap<u64, Vec<Duration>> = HashMap::new();
    for (word, took) in join_all(listeners)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
    {
        heard.entry(word).or_default().push(took);
    }
    assert!(
        heard.values().all(|times| times.len() == TOGETHER),
        "somebody missed a word"
    );
    assert_eq!(heard.len(), WORDS);
    Times::of(
        heard
            .into_values()
            .map(|times| times.into_iter().max().expect("all heard it"))
            .collect(),
    )
}

/// What one listener hears: each word and how old it was.
async fn hear(mut events: Events, zero: Instant) -> Vec<(u64, Duration)> {
    let mut heard = Vec::new();
    while heard.len() < WORDS {
        let event = events
            .next()
            .await
            .expect("the stream ended before the run");
        let now = zero.elapsed();
        if event.name == "delta" {
            let words = event.data["text"].as_str().unwrap().split_whitespace();
            let words = words.map(|word| word.parse::<u64>().unwrap());
            heard.extend(words.map(|word| (word, now.saturating_sub(Duration::from_nanos(word)))));
        }
    }
    heard
}

/// A model that says [`WORDS`] times how many nanoseconds have passed since `zero`; answers its address.
async fn talking_clock(zero: Instant) -> String {
    let answer = async move || {
        let words = stream::iter(0..=WORDS).then(move |at| word(at, zero));
        Response::builder()
            .header("content-type", "text/event-stream")
            .body(Body::from_stream(words))
            .unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/v1", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/chat/completions", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// What the clock says next, after a pause.
async fn word(at: usize, zero: Instant) -> Result<String, Infallible> {
    tokio::time::sleep(PAUSE).await;
    let chunk = |delta: &str, end: Option<&str>| {
        let choice = json!({ "index": 0, "delta": { "content": delta }, "finish_reason": end });
        format!(
            "data: {}\n\n",
            json!({ "id": "clock", "object": "chat.completion.chunk", "choices": [choice] })
        )
    };
    Ok(match at {
        WORDS => format!("{}data: [DONE]\n\n", chunk("", Some("stop"))),
        _ => chunk(&format!("{} ", zero.elapsed().as_nanos()), None),
    })
}
