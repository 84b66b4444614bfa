//! A turn that fails after it has called a tool: many clients send a request again by themselves that failed, and the
//! tool must not be called again for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    PATH, content,
    python::{LLAMA_INDEX, run},
    request, stream,
};
use crate::support::{
    bank::{approval_by, pair, payment},
    client::{Answer, Client, Events},
    has::Has,
    model::{Gate, Reply, calls, error, results, said, text},
    node,
    wait::eventually,
    world::World,
};

const RATE: &str = "get_exchange_rate";
/// A client has read of a streamed answer when it could be read for so long.
const READ_AFTER: Duration = Duration::from_millis(1100);
/// An answer that took so long may have been given up by a client behind a proxy.
const PATIENCE: Duration = Duration::from_millis(20_100);

fn rate() -> Reply {
    calls([("bank__get_exchange_rate", pair())])
}

/// A world whose model looks up a rate and then fails.
async fn world() -> World {
    let world = World::start().await;
    world.tools_ready().await;
    world.model.on(|request| {
        Some(
            match (said(request, "rate?"), results(request).is_empty()) {
                (true, _) => rate(),
                (false, false) => error(400, "on holiday"),
                (false, true) => text("Hello."),
            },
        )
    });
    world
}

fn ids(answer: &Answer) -> [String; 2] {
    ["x-conversation-id", "x-run-id"].map(|name| answer.header(name).to_owned())
}

/// The status that no client repeats, the code of the case, and where the run is.
fn assert_final(answer: &Answer) {
    let failed = answer.expect(400)["error"].clone();
    assert_eq!(failed["code"], "turn_failed_after_call", "{failed}");
    assert_eq!(failed["type"], "invalid_request_error");
    assert_eq!(answer.header("x-should-retry"), "false");
    assert_eq!(answer.header("retry-after"), "");
    assert!(
        ids(answer).iter().all(|id| id.len() == 36),
        "{:?}",
        ids(answer)
    );
}

fn message(answer: &Answer) -> String {
    answer.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Lets 90 seconds pass since the turns that failed.
async fn wait_long(world: &World) {
    for earlier in [
        "update request_keys set failed_at = (failed_at at time zone 'utc' - interval '91 seconds') at time zone 'utc'",
        "update runs set finished_at = (finished_at at time zone 'utc' - interval '91 seconds') at time zone 'utc'",
    ] {
        sqlx::query(earlier)
            .execute(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn it_has_a_status_that_no_client_repeats_and_is_not_begun_again() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let ask_responses = json!({ "model": "bank", "input": "rate?" });
    for (at, (path, body)) in [
        (PATH, request(&["rate?"])),
        ("/v1/responses", ask_responses),
    ]
    .into_iter()
    .enumerate()
    {
        let before = 3 * at;
        let first = ann.post(path, body.clone()).await;
        assert_final(&first);
        let why = message(&first);
        assert!(
            why.contains("bank.get_exchange_rate") && why.contains("refused this conversation"),
            "{why}"
        );
        assert!(
            why.contains("90 seconds") && why.contains("Idempotency-Key"),
            "{why}"
        );
        for counted in [None, Some("0"), Some("1")] {
            let client = match counted {
                None => ann.clone(),
                Some(count) => ann.clone().with_header("x-stainless-retry-count", count),
            };
            let again = client.post(path, body.clone()).await;
            assert_final(&again);
            assert_eq!(ids(&again), ids(&first));
            let why = message(&again);
            assert!(!why.contains("holiday") && !why.contains("bank"), "{why}");
            assert!(
                why.contains("90 seconds") && why.contains("Idempotency-Key"),
                "{why}"
            );
        }
        assert_eq!(world.bank.executions(RATE), before + 1);
        // Whoever means it anew says so, once for each key.
        let keyed = ann
            .clone()
            .with_header("idempotency-key", &format!("anew-{at}"));
        let anew = keyed.post(path, body.clone()).await;
        assert_final(&anew);
        assert_ne!(ids(&anew), ids(&first));
        let kept = keyed.post(path, body.clone()).await;
        assert_final(&kept);
        assert_eq!(ids(&kept), ids(&anew));
        assert!(
            message(&kept).contains("send a new key"),
            "{}",
            message(&kept)
        );
        assert_eq!(world.bank.executions(RATE), before + 2);
        // Or waits.
        wait_long(&world).await;
        let later = ann.post(path, body).await;
        assert_final(&later);
        assert_ne!(ids(&later), ids(&first));
        assert_eq!(world.bank.executions(RATE), before + 3);
    }
    // Another person's request is another one.
    let bob = world.user("bob", &["employee"]).await;
    assert_final(&bob.post(PATH, request(&["rate?"])).await);
    assert_eq!(world.bank.executions(RATE), 7);
}

#[tokio::test]
async fn another_replica_does_not_begin_it_again() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let first = ann.post(PATH, request(&["rate?"])).await;
    assert_final(&first);
    let other = world.replica().await;
    let again = ann.at(&other.url).post(PATH, request(&["rate?"])).await;
    assert_final(&again);
    assert_eq!(ids(&again), ids(&first));
    assert_eq!(world.bank.executions(RATE), 1);
}

#[tokio::test]
async fn a_stream_ends_with_an_error_after_what_happened_and_the_chat_goes_on() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let (chunks, done) = stream(&ann, request(&["rate?"])).await;
    assert!(!done);
    chunks.last().unwrap()["error"]
        .has(json!({ "type": "server_error", "code": "turn_failed_after_call" }));
    let ends = |chunk: &Value| chunk["choices"][0]["finish_reason"].is_string();
    assert!(!chunks.iter().any(ends), "{chunks:?}");
    let shown = content(&chunks);
    assert!(
        shown.contains("bank.get_exchange_rate") && shown.contains("refused this conversation"),
        "{shown}"
    );
    world.model.on(|_| Some(text("It was looked up.")));
    let next = ann.post(PATH, request(&["rate?", &shown, "so?"])).await;
    next.expect(200);
    let seen = world.model.last_request();
    let messages = seen["messages"].as_array().unwrap();
    let is_result = |message: &Value| message["role"] == "tool";
    assert!(
        messages.iter().any(is_result),
        "the model knows what it has called: {seen}"
    );
    let body = json!({ "model": "bank", "input": "rate?", "stream": true });
    let asked = ann
        .request(Method::POST, "/v1/responses")
        .json(&body)
        .send();
    let events = Events::of(asked.await.unwrap()).rest().await;
    let last = &events.last().unwrap().data;
    assert_eq!(last["type"], "response.failed", "{last}");
    last["response"]["status"].says("failed");
    last["response"]["error"]["message"].says("bank.get_exchange_rate");
    let id = last["response"]["id"].as_str().unwrap();
    let read = ann.get(&format!("/v1/responses/{id}")).await.expect(200);
    assert_eq!(
        read["status"], "failed",
        "who reads it later begins nothing: {read}"
    );
    let replayed = ann.request(Method::GET, &format!("/v1/responses/{id}?stream=true"));
    let replayed = Events::of(replayed.send().await.unwrap()).rest().await;
    assert_eq!(replayed.last().unwrap().data["type"], "response.failed");
}

#[tokio::test]
async fn a_model_that_is_busy_is_told_with_its_time_and_may_be_asked_again_before_a_call() {
    let world = World::start().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    for (path, body) in [
        (PATH, request(&["hi"])),
        ("/v1/responses", json!({ "model": "bank", "input": "hi" })),
    ] {
        for status in [429, 503] {
            world
                .model
                .reply(error(status, "slow down").retry_after("47"))
                .reply(text("Hello."));
            let busy = ann.post(path, body.clone()).await;
            assert_eq!(busy.expect(503)["error"]["code"], "busy", "{path}");
            let after: u64 = busy.header("retry-after").parse().unwrap();
            assert!((40..=47).contains(&after), "{path}: {after}");
            assert_eq!(busy.header("x-should-retry"), "");
            ann.post(path, body.clone()).await.expect(200);
        }
    }
    world
        .model
        .reply(rate())
        .reply(error(429, "slow down").retry_after("47"));
    assert_final(&ann.post(PATH, request(&["rate?"])).await);
    assert_final(&ann.post(PATH, request(&["rate?"])).await);
    assert_eq!(world.bank.executions(RATE), 1);
}

/// A client that is told to ask again does so by itself, so that three attempts of ours would be nine.
#[tokio::test]
async fn what_a_client_is_told_to_repeat_is_not_repeated_here_as_well() {
    let world = World::start().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    for status in [429, 503] {
        let before = world.model.requests().len();
        world.model.reply(error(status, "slow down"));
        ann.post(PATH, request(&["hi"])).await.expect(503);
        assert_eq!(world.model.requests().len() - before, 1);
        // Nobody repeats what has called a tool, nor a message of a conversation.
        world
            .model
            .reply(rate())
            .reply(error(status, "slow down"))
            .reply(text("Known."));
        ann.post(PATH, request(&["rate?"])).await.expect(200);
        world
            .model
            .reply(error(status, "slow down"))
            .reply(text("Hello."));
        assert_eq!(ann.ask("bank", "hi").await, "Hello.");
    }
}

/// The operator's words are for the log, and for those who run the agent.
#[tokio::test]
async fn users_read_in_their_language_what_to_do_and_admins_what_the_model_said() {
    let world = World::start().await;
    world.tools_ready().await;
    let asked = Arc::new(AtomicU16::new(0));
    let status = asked.clone();
    world.model.on(move |_| {
        let status = status.load(Ordering::Relaxed);
        Some(error(status, "boom at gpu-7.internal:9000"))
    });
    for (status, sentence) in [
        (401, "no funciona tal como está configurado"),
        (500, "no responde en este momento"),
        (400, "rechazó esta conversación"),
    ] {
        asked.store(status, Ordering::Relaxed);
        for who in ["bea", "alice"] {
            let user = world
                .user(who, &["employee"])
                .await
                .with_header("accept-language", "es");
            let id = user.open("bank").await;
            let run = user.say_and_wait(&id, "hola").await;
            let told = run["error"].as_str().unwrap().to_owned();
            assert_eq!(told.contains("gpu-7.internal"), who == "alice", "{told}");
            assert_eq!(told.contains(sentence), who != "alice", "{told}");
        }
    }
}

#[tokio::test]
async fn a_request_for_approval_counts_as_a_call() {
    let world = World::with(|setup| setup.change_server(approval_by("cfo"))).await;
    world.tools_ready().await;
    world.model.on(|request| {
        let pays = said(request, "pay");
        Some(if pays {
            calls([("bank__send_money", payment("5.00"))])
        } else {
            error(400, "on holiday")
        })
    });
    let ann = world.user("ann", &["finance"]).await;
    for _ in 0..2 {
        assert_final(&ann.post(PATH, request(&["pay"])).await);
    }
    let asked = ann.get("/v1/approvals?role=requester").await.expect(200);
    assert_eq!(asked["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_turn_that_called_nothing_may_be_asked_again() {
    let world = World::shared().await;
    world.tools_ready().await;
    world
        .model
        .reply(error(400, "on holiday"))
        // A tool that is not this user's.
        .reply(calls([("bank__send_money", payment("5.00"))]))
        .reply(error(400, "on holiday"))
        .reply(text("Hello."));
    let ann = world.user("ann", &["employee"]).await;
    for _ in 0..2 {
        let failed = ann.post(PATH, request(&["hi"])).await;
        assert_eq!(failed.expect(502)["error"]["code"], "run_failed");
        let [conversation, run] = ids(&failed);
        let seen = ann.get(&format!("/v1/runs/{run}")).await.expect(200);
        assert_eq!(seen["conversation_id"], *conversation);
    }
    ann.post(PATH, request(&["hi"])).await.expect(200);
}

#[tokio::test]
async fn a_failure_that_is_kept_says_that_a_new_key_is_needed() {
    let world = World::shared().await;
    world.model.reply(error(400, "on holiday"));
    let ann = world.user("ann", &[]).await;
    let keyed = ann.with_header("idempotency-key", "k-1");
    for _ in 0..2 {
        let failed = keyed.post(PATH, request(&["hi"])).await;
        failed.expect(502);
        assert!(
            message(&failed).contains("send a new key"),
            "{}",
            message(&failed)
        );
        assert_eq!(failed.header("x-should-retry"), "false");
    }
    assert_eq!(world.model.requests().len(), 1);
}

#[tokio::test]
async fn a_client_that_waits_and_is_cut_off_does_not_call_again_and_one_that_reads_may() {
    let world = World::shared().await;
    world.tools_ready().await;
    let gate = Gate::new();
    let held = gate.clone();
    world.model.on(move |request| {
        Some(if said(request, "rate?") {
            rate()
        } else {
            text("One moment").gate(2, &held)
        })
    });
    let ann = world.user("ann", &["employee"]).await;
    let lost = {
        let ann = ann.clone();
        tokio::spawn(async move { ann.post(PATH, request(&["rate?"])).await })
    };
    gate.reached().await;
    lost.abort();
    is_cancelled(&ann).await;
    assert_final(&ann.post(PATH, request(&["rate?"])).await);
    assert_eq!(world.bank.executions(RATE), 1);
    // Whoever reads the answer as it comes sees where it was stopped.
    let mut body = request(&["rate?"]);
    body["stream"] = json!(true);
    let asked = ann.request(Method::POST, PATH).json(&body).send().await;
    let mut asked = asked.unwrap();
    let mut read = String::new();
    while !read.contains("One") {
        read += &String::from_utf8_lossy(&asked.chunk().await.unwrap().unwrap());
    }
    assert_eq!(world.bank.executions(RATE), 2);
    // A proxy may have read what its client has not, unless the client had a second to read it.
    sleep(READ_AFTER).await;
    drop(asked);
    is_cancelled(&ann).await;
    gate.open();
    let (chunks, done) = stream(&ann, request(&["rate?"])).await;
    assert!(done);
    assert_eq!(content(&chunks), "One moment");
}

#[tokio::test]
async fn a_stream_that_breaks_with_its_first_text_after_a_call_does_not_call_again() {
    let world = World::shared().await;
    world.tools_ready().await;
    let gate = Gate::new();
    let held = gate.clone();
    world.model.on(move |request| {
        Some(if said(request, "rate?") {
            rate()
        } else {
            text("One moment").gate(2, &held)
        })
    });
    let ann = world.user("ann", &["employee"]).await;
    let mut body = request(&["rate?"]);
    body["stream"] = json!(true);
    let asked = ann.request(Method::POST, PATH).json(&body).send().await;
    let mut asked = asked.unwrap();
    let mut read = String::new();
    while !read.contains("One") {
        read += &String::from_utf8_lossy(&asked.chunk().await.unwrap().unwrap());
    }
    drop(asked);
    is_cancelled(&ann).await;
    gate.open();
    assert_final(&ann.post(PATH, body).await);
    assert_eq!(world.bank.executions(RATE), 1);
}

#[tokio::test]
async fn an_answer_that_took_long_is_not_begun_again_at_once() {
    let world = World::shared().await;
    world.tools_ready().await;
    let gate = Gate::new();
    let held = gate.clone();
    world.model.on(move |request| {
        Some(if said(request, "rate?") {
            rate()
        } else {
            text("At last").gate(1, &held)
        })
    });
    let ann = world.user("ann", &["employee"]).await;
    let asked = {
        let ann = ann.clone();
        let asked = ann.request(Method::POST, PATH).timeout(3 * PATIENCE);
        tokio::spawn(asked.json(&request(&["rate?"])).send())
    };
    gate.reached().await;
    sleep(PATIENCE).await;
    gate.open();
    assert_eq!(asked.await.unwrap().unwrap().status(), 200);
    let again = ann.post(PATH, request(&["rate?"])).await;
    assert_eq!(again.expect(400)["error"]["code"], "answer_pending");
    assert_eq!(world.bank.executions(RATE), 1);
    let anew = ann.with_header("idempotency-key", "once more");
    anew.post(PATH, request(&["rate?"])).await.expect(200);
    assert_eq!(world.bank.executions(RATE), 2);
}

/// Waits until the newest run was cancelled.
async fn is_cancelled(client: &Client) {
    eventually(async || {
        let runs = client.get("/v1/runs").await.expect(200);
        runs["items"][0]["status"] == "cancelled"
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_is_cut_where_its_client_wants_may_be_asked_for_again() {
    let world = World::shared().await;
    world.tools_ready().await;
    world.model.on(|request| {
        Some(if said(request, "rate?") {
            rate()
        } else {
            text("It is high, as it was before, and it will be higher.")
        })
    });
    let ann = world.user("ann", &["employee"]).await;
    let mut body = request(&["rate?"]);
    body["max_tokens"] = json!(2);
    for _ in 0..2 {
        let answer = ann.post(PATH, body.clone()).await.expect(200);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    assert_eq!(world.bank.executions(RATE), 2);
}

#[tokio::test]
async fn clients_that_repeat_what_failed_call_the_tool_once() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let seen = node::run(include_str!("failing.mjs"), &world.url, &ann).await;
    for (client, failed) in seen.as_object().unwrap() {
        let is_stream = client.ends_with("stream");
        let right = if is_stream {
            json!("error")
        } else {
            json!(400)
        };
        assert_eq!(failed, &right, "{client}");
    }
    assert_eq!(seen.as_object().unwrap().len(), 7, "{seen}");
    assert_eq!(world.bank.executions(RATE), 7, "{seen}");
}

#[tokio::test]
async fn llama_index_calls_the_tool_once() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let seen = run(LLAMA_INDEX, "tests/it/openai/failing.py", &world, &ann).await;
    assert_eq!(seen, json!([400, "turn_failed_after_call"]));
    assert_eq!(world.bank.executions(RATE), 1);
}
