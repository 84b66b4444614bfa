//! A turn without tools, everything kept, through each protocol that frontends speak: the request by HTTP, one step of a
//! model that answers at once, the whole answer streamed. The protocols take turns.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, routing::post};
use domain::clock;
use futures_util::future::join_all;
use http::{Method, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    product::{Deployment, pack},
    support::client::Client,
    table::{
        Amount::{Factor, Time},
        Target::{AtLeast, AtMost, Unset},
        Times, median, row,
    },
    turns::on_disk,
};

const AT_ONCE: usize = 16;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const ALONE: Duration = Duration::from_secs(4);
/// The last word of the model's answer.
const LAST: &str = "word19";

/// The others are compared with it.
const FIRST: &str = "chat completions";

#[derive(Clone, Copy)]
struct Protocol {
    name: &'static str,
    path: &'static str,
    body: fn(&str) -> Value,
}

const PROTOCOLS: [Protocol; 4] = [
    Protocol {
        name: FIRST,
        path: "/v1/chat/completions",
        body: |text| json!({ "model": "bank", "stream": true, "messages": [{ "role": "user", "content": text }] }),
    },
    Protocol {
        name: "responses",
        path: "/v1/responses",
        body: |text| json!({ "model": "bank", "stream": true, "input": text }),
    },
    Protocol {
        name: "the AI SDK's stream",
        path: "/v1/ui/chat",
        body: |text| {
            let parts = json!([{ "type": "text", "text": text }]);
            json!({ "id": text, "agent": "bank", "trigger": "submit-message",
                    "messages": [{ "id": "1", "role": "user", "parts": parts }] })
        },
    },
    Protocol {
        name: "AG-UI",
        path: "/v1/agui/bank",
        body: |text| {
            json!({ "threadId": text, "runId": "1", "tools": [], "context": [],
                    "messages": [{ "id": "1", "role": "user", "content": text }] })
        },
    },
];

/// Turns that were made at the same time: how long each took, and until its first byte.
struct Round {
    whole: Vec<Duration>,
    first: Vec<Duration>,
    took: Duration,
}

impl Round {
    fn per_second(&self) -> f64 {
        let turns = u32::try_from(self.whole.len()).expect("thousands of turns");
        f64::from(turns) / self.took.as_secs_f64()
    }
}

pub async fn measure() {
    let (_folder, postgres) = on_disk().await;
    let model = instant_model().await;
    let packs = [(
        "bank".to_owned(),
        pack("bank", &model, "http://127.0.0.1:9/mcp"),
    )];
    let deployment = Deployment::new(postgres.url(), packs).await;
    let product = deployment.start().await;
    let mut people = Vec::new();
    for at in 0..AT_ONCE {
        people.push(deployment.user(&product, &format!("user-{at}")).await);
    }
    for protocol in PROTOCOLS {
        turns(protocol, &people, ROUND / 2).await;
    }
    together(&people).await;
    alone(&people[..1]).await;
    drop(product);
    postgres.stop().await.unwrap();
}

async fn together(people: &[Client]) {
    let mut rounds: [Vec<Round>; PROTOCOLS.len()] = Default::default();
    for _ in 0..ROUNDS {
        for (protocol, rounds) in PROTOCOLS.into_iter().zip(&mut rounds) {
            rounds.push(turns(protocol, people, ROUND).await);
        }
    }
    for (protocol, own) in PROTOCOLS.iter().zip(&rounds) {
        let rate = median(own.iter().map(Round::per_second).collect());
        let times = Times::of(own.iter().flat_map(|round| round.whole.clone()).collect());
        let remark = format!(
            "{rate:.0} a second; p50 {}, p99 {}",
            Time(times.median()),
            Time(times.percentile(99))
        );
        let figure = format!("turns through {}, {AT_ONCE} at once", protocol.name);
        let ratios = own.iter().zip(&rounds[0]);
        let ratios = ratios.map(|(own, first)| own.per_second() / first.per_second());
        let (figure, target, measured) = match protocol.name {
            FIRST => (figure + ", of 500 a second", 1.0, rate / 500.0),
            _ => (figure + ", of the first", 0.9, median(ratios.collect())),
        };
        row(&figure, &AtLeast(Factor(target)), Factor(measured), &remark);
    }
}

async fn alone(person: &[Client]) {
    for protocol in PROTOCOLS {
        let round = turns(protocol, person, ALONE).await;
        let (whole, first) = (Times::of(round.whole), Times::of(round.first));
        let target = |most| match protocol.name {
            FIRST => AtMost(Time(Duration::from_millis(most))),
            _ => Unset,
        };
        let figure = format!("a turn through {}, alone, p50", protocol.name);
        row(&figure, &target(4), Time(whole.median()), "");
        let figure = "its first byte, p50; the model's comes at once";
        row(figure, &target(2), Time(first.median()), "");
    }
}

async fn turns(protocol: Protocol, people: &[Client], time: Duration) -> Round {
    let start = clock::instant();
    let talks = people
        .iter()
        .map(|person| tokio::spawn(talk(protocol, person.clone(), start + time)));
    let (whole, first) = join_all(talks)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .unzip();
    Round {
        whole,
        first,
        took: start.elapsed(),
    }
}

async fn talk(protocol: Protocol, person: Client, until: Instant) -> Vec<(Duration, Duration)> {
    let mut times = Vec::new();
    while clock::instant() < until {
        let body = (protocol.body)(&next_text());
        let start = clock::instant();
        let mut answer = person
            .request(Method::POST, protocol.path)
            .json(&body)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
        let (mut first, mut text) = (None, Vec::new());
        while let Some(bytes) = answer.chunk().await.unwrap() {
            first.get_or_insert_with(|| start.elapsed());
            text.extend(bytes);
        }
        times.push((start.elapsed(), first.unwrap()));
        assert!(
            String::from_utf8_lossy(&text).contains(LAST),
            "the answer is cut"
        );
    }
    times
}

/// Each turn opens a conversation of its own.
fn next_text() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("hello {}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A model that answers with twenty pieces at once; its address. It lives as long as this process.
async fn instant_model() -> String {
    let chunk = |delta: Value, reason: Value| {
        let choices = json!([{ "index": 0, "delta": delta, "finish_reason": reason }]);
        let chunk = json!({ "id": "1", "object": "chat.completion.chunk", "created": 0, "model": "instant", "choices": choices });
        format!("data: {chunk}\n\n")
    };
    let mut body = chunk(json!({ "role": "assistant", "content": "" }), Value::Null);
    for word in 1..20 {
        body += &chunk(json!({ "content": format!("word{word} ") }), Value::Null);
    }
    body += &chunk(json!({}), json!("stop"));
    body += "data: [DONE]\n\n";
    let body: Arc<str> = body.into();
    let answer = async move || {
        (
            [(header::CONTENT_TYPE, "text/event-stream")],
            body.to_string(),
        )
    };
    let router = Router::new().route("/v1/chat/completions", post(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}
