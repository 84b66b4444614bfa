//! One client cannot use up what all need.

use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use ipnet::IpNet;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{
    has::Has,
    model::{Gate, error, said, text},
    wait::eventually,
    world::{TIME_LIMIT, World},
};

async fn send(world: &World, text: &str) -> TcpStream {
    let address = world.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// The head of a request whose body is announced.
fn half_sent(path: &str, media: &str, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{more}content-type: {media}\r\ncontent-length: 9\r\n\r\n{{"
    )
}

#[tokio::test]
async fn half_sent_requests_hold_no_place() {
    let world = World::with(|setup| setup.config.max_requests = 2).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let credential = format!("authorization: Bearer {}\r\n", bob.token());
    let mut held = Vec::new();
    for _ in 0..16 {
        for head in [
            half_sent("/connect/x", "application/x-www-form-urlencoded", ""),
            half_sent("/v1/guests", "application/json", ""),
            half_sent("/v1/conversations", "application/json", &credential),
            half_sent("/v1/runs", "application/json", &credential),
        ] {
            held.push(send(&world, &head).await);
        }
    }
    // Each has a place until it is known whose it is.
    eventually(async || {
        for _ in 0..8 {
            if ann.get("/v1/agents").await.status != 200 {
                return false;
            }
        }
        world.nobody().get("/readyz").await.status == 200
    })
    .await;
    // One that came while both places were taken was refused at once.
    let head = half_sent("/connect/x", "application/x-www-form-urlencoded", "");
    eventually(async || {
        let mut refused = String::new();
        let mut late = send(&world, &head).await;
        let read = tokio::time::timeout(TIME_LIMIT, late.read_to_string(&mut refused)).await;
        read.expect("nobody waits for ever for a body").unwrap();
        refused.starts_with("HTTP/1.1 408")
    })
    .await;
}

#[tokio::test]
async fn idle_connections_make_room_for_new_ones() {
    let world = World::with(|setup| setup.config.max_connections = 8).await;
    let mut oldest = send(&world, "").await;
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(send(&world, "GET /v1/me HTTP/1.1\r\n").await);
    }
    let mut rest = Vec::new();
    tokio::time::timeout(TIME_LIMIT, oldest.read_to_end(&mut rest))
        .await
        .expect("the connection that waited longest is closed")
        .ok();
    assert_eq!(world.nobody().get("/healthz").await.status, 200);
    held.push(send(&world, &half_sent("/connect/x", "text/plain", "")).await);
    assert_eq!(world.nobody().get("/healthz").await.status, 200);
}

#[tokio::test]
async fn invented_methods_are_measured_as_one() {
    let world = World::start().await;
    for number in 0..50 {
        let method = Method::from_bytes(format!("INVENTED{number}").as_bytes()).unwrap();
        let path = if number % 2 == 0 { "/" } else { "/nothing" };
        let nobody = world.nobody();
        let answer = nobody.send(nobody.request(method, path)).await;
        assert!([404, 405].contains(&answer.status));
    }
    let metrics = world.nobody().get("/metrics").await.text;
    assert!(!metrics.contains("INVENTED"));
    assert!(metrics.contains(r#"method="other""#));
}

#[tokio::test]
async fn waiting_for_runs_holds_no_place_and_has_an_end() {
    let world = World::with(|setup| {
        (setup.config.max_requests, setup.config.sse_per_user) = (2, 3);
    })
    .await;
    let gate = Gate::new();
    let answers = gate.clone();
    world
        .model
        .on(move |_| Some(text("late").gate(0, &answers)));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let body = json!({ "agent_name": "bank", "prompt": "wait", "mode": "sync" });
    for count in 1..=3 {
        let (bob, body) = (bob.clone(), body.clone());
        tokio::spawn(async move { bob.post("/v1/runs", body).await });
        world.model.wait_for_requests(count).await;
    }
    ann.get("/v1/me").await.expect(200);
    let fourth = bob.post("/v1/runs", body).await;
    assert_eq!(fourth.expect(429)["code"], "too_many_streams");
}

#[tokio::test]
async fn streams_that_all_come_at_once_wait_for_their_turn() {
    let world = World::with(|setup| setup.config.max_requests = 2).await;
    let names: Vec<String> = (0..20).map(|number| format!("user{number}")).collect();
    let users = join_all(names.iter().map(|name| world.user(name, &[]))).await;
    let open = users
        .iter()
        .flat_map(|user| [user, user])
        .map(|user| user.request(Method::GET, "/v1/events").send());
    for answer in join_all(open).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn one_user_holds_a_share_of_the_places() {
    let world = World::with(|setup| setup.config.max_requests = 16).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    ann.get("/v1/agents").await.expect(200);
    bob.get("/v1/agents").await.expect(200);
    // What reads conversations waits for this.
    let mut owner = world.db.as_owner().await;
    let lock = "begin; lock table conversations in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut owner).await.unwrap();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let bob = bob.clone();
            tokio::spawn(async move { bob.get("/v1/conversations").await.status })
        })
        .collect();
    let refused = async || bob.get("/v1/agents").await.status == 429;
    until("the user's share is used up", refused).await;
    ann.get("/v1/agents").await.expect(200);
    let names: Vec<String> = (0..7).map(|number| format!("user{number}")).collect();
    let users = join_all(names.iter().map(|name| world.user(name, &[]))).await;
    let others: Vec<_> = users
        .iter()
        .flat_map(|user| [user.clone(), user.clone()])
        .map(|user| tokio::spawn(async move { user.get("/v1/conversations").await.status }))
        .collect();
    let full = async || ann.get("/v1/agents").await.status == 503;
    until("every place is taken", full).await;
    sqlx::raw_sql("rollback").execute(&mut owner).await.unwrap();
    for answer in waiting.into_iter().chain(others) {
        answer.await.unwrap();
    }
    ann.get("/v1/agents").await.expect(200);
    assert_eq!(world.nobody().get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_replica_without_a_free_place_is_not_ready_until_one_is_free() {
    let world = World::with(|setup| setup.config.max_requests = 1).await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    // It takes a message and says nothing, so whoever tries it waits.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", silent.local_addr().unwrap());
    let made = admin
        .post("/v1/admin/webhooks", json!({ "url": url, "events": ["*"] }))
        .await
        .expect(201);
    let path = format!("/v1/admin/webhooks/{}/test", made["id"].as_str().unwrap());
    let trying = tokio::spawn(async move { admin.post(&path, Value::Null).await });
    let (taken, _) = silent.accept().await.unwrap();
    let nobody = world.nobody();
    let mut full = Value::Null;
    until("a full replica is not ready", async || {
        assert_eq!(
            ann.get("/v1/agents").await.expect(503)["code"],
            "overloaded"
        );
        let ready = nobody.get("/readyz").await;
        full = ready.json();
        // Before its first discovery it is not ready either.
        full["started"] == true && ready.status == 503
    })
    .await;
    full.has(json!({ "accepting": false, "database": true, "started": true }));
    nobody.get("/healthz").await;
    drop(taken);
    assert_eq!(trying.await.unwrap().expect(200)["delivered"], false);
    // The place is free when the answer has gone.
    until(
        "a replica with a free place answers and is ready",
        async || {
            ann.get("/v1/agents").await.status == 200 && nobody.get("/readyz").await.status == 200
        },
    )
    .await;
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, poll)
        .await
        .unwrap_or_else(|_| panic!("not so: {what}"));
}

#[tokio::test]
async fn invented_credentials_are_refused_before_the_database_is_asked() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    ann.get("/v1/me").await.expect(200);
    let invent = |number: usize| {
        let nobody = world.nobody();
        let key = format!("Bearer chk_{number:012x}_{number:064x}");
        let token = format!("Bearer {}", unsigned(&format!("https://{number}.example")));
        let credential = if number.is_multiple_of(2) { key } else { token };
        async move {
            nobody
                .with_header("authorization", &credential)
                .get("/v1/me")
                .await
                .status
        }
    };
    // As many as it takes: the rate is filled up again while they are sent.
    let mut batches = (0..10_000).step_by(200);
    loop {
        let first = batches.next().expect("the rate is never used up");
        let before = world.app().transactions();
        let statuses = join_all((first..first + 200).map(invent)).await;
        assert!(
            statuses.iter().all(|status| [401, 429].contains(status)),
            "{statuses:?}"
        );
        let refused = statuses.iter().filter(|status| **status == 429).count();
        let asked = world.app().transactions() - before;
        let allowed = u64::try_from(statuses.len() - refused).unwrap();
        assert!(
            asked <= allowed + 5,
            "{asked} transactions, {refused} refused"
        );
        if refused > 0 {
            break;
        }
    }
    ann.get("/v1/me").await.expect(200);
    // A known issuer's users are let in although their tokens are new.
    world.user("zoe", &[]).await.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn a_key_that_is_unknown_is_not_looked_up_again() {
    let world = World::start().await;
    let key = format!("Bearer chk_{:012x}_{:064x}", 7, 7);
    let stranger = world.nobody().with_header("authorization", &key);
    stranger.get("/v1/me").await.expect(401);
    let before = world.app().transactions();
    for _ in 0..60 {
        let status = stranger.get("/v1/me").await.status;
        assert!([401, 429].contains(&status), "{status}");
    }
    // The program's own work begins a few.
    let begun = world.app().transactions() - before;
    assert!(begun < 40, "{begun} transactions");
}

fn unsigned(issuer: &str) -> String {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(json!({ "alg": "RS256" }));
    let claims =
        part(json!({ "iss": issuer, "aud": "chat", "sub": "eve", "exp": 9_999_999_999_u64 }));
    format!("{head}.{claims}.AAAA")
}

#[tokio::test]
async fn behind_a_trusted_proxy_each_address_has_its_own_rate() {
    let world = |proxies: &[&str]| {
        let proxies: Vec<IpNet> = proxies.iter().map(|net| net.parse().unwrap()).collect();
        World::with(|setup| {
            (
                setup.config.requests_per_minute,
                setup.config.trusted_proxies,
            ) = (1, proxies);
        })
    };
    let ask = async |world: &World, forwarded: &str| {
        let nobody = world.nobody().with_header("x-forwarded-for", forwarded);
        nobody
            .post("/v1/guests", json!({ "tenant": "acme" }))
            .await
            .status
    };
    let behind = world(&["127.0.0.0/8", "10.0.0.0/8"]).await;
    assert_eq!(ask(&behind, "192.0.2.1").await, 201);
    assert_eq!(ask(&behind, "192.0.2.1").await, 429);
    assert_eq!(
        ask(&behind, "192.0.2.9, 192.0.2.1, 10.1.2.3").await,
        429,
        "what a client invents is before it"
    );
    assert_eq!(ask(&behind, "192.0.2.2").await, 201);
    assert_eq!(ask(&behind, "2001:db8::1").await, 201);
    assert_eq!(
        ask(&behind, "2001:db8::2").await,
        429,
        "a network of one customer"
    );
    let open = world(&[]).await;
    assert_eq!(ask(&open, "192.0.2.1").await, 201);
    assert_eq!(ask(&open, "192.0.2.2").await, 429, "nobody is trusted");
}

#[tokio::test]
async fn one_users_failing_questions_do_not_stop_the_model_for_others() {
    let world = World::shared().await;
    world.model.on(|request| {
        Some(if said(request, "break") {
            error(500, "this question breaks me")
        } else {
            text("Hello.")
        })
    });
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let ask = |question: &str| json!({ "model": "bank", "messages": [{ "role": "user", "content": question }] });
    let broken = (0..4).map(|_| ann.post("/v1/chat/completions", ask("break")));
    for answer in join_all(broken).await {
        answer.expect(503);
    }
    bob.post("/v1/chat/completions", ask("hi"))
        .await
        .expect(200);
}

#[tokio::test]
async fn a_model_that_cannot_be_reached_is_503_with_the_time_to_wait() {
    let world = World::with(|setup| {
        setup.env = setup.env.clone().with("MODEL_URL", "http://127.0.0.1:1/v1");
    })
    .await;
    let ann = world.user("ann", &[]).await;
    let ask = json!({ "model": "bank", "messages": [{ "role": "user", "content": "hi" }] });
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(ann.post("/v1/chat/completions", ask.clone()).await);
    }
    assert_eq!(answers[0].expect(503)["error"]["code"], "busy");
    let paused = answers.pop().unwrap();
    assert_eq!(paused.expect(503)["error"]["code"], "busy");
    let seconds: u64 = paused.header("retry-after").parse().unwrap();
    assert!((1..=15).contains(&seconds), "{seconds}");
    assert_eq!(
        paused.header("x-should-retry"),
        "",
        "nothing was done, so it may be sent again"
    );
    let title = "### Task:\nGenerate a concise title";
    let beside = json!({ "model": "bank", "messages": [{ "role": "user", "content": title }] });
    let beside = ann.post("/v1/chat/completions", beside).await;
    beside.expect(503);
    assert_ne!(beside.header("retry-after"), "");
}
