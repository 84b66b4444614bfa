//! What surrounds every request: headers, limits, stopping.

use std::time::Duration;

use chatelaine::cli::serve::Service;
use http::Method;
use store::Db;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{
    client::{Client, Events},
    world::{TIME_LIMIT, World},
};

/// A connection to the product, to say what no client says.
async fn connect(world: &World) -> TcpStream {
    TcpStream::connect(world.url.strip_prefix("http://").unwrap())
        .await
        .unwrap()
}

/// Polls until `done`; what should happen at once may still take a moment.
async fn eventually(what: &str, done: impl AsyncFn() -> bool) {
    let poll = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, poll)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn every_answer_carries_the_security_headers() {
    let world = World::shared().await;
    let (ann, nobody) = (world.user("ann", &[]).await, world.nobody());
    let answers = [
        ann.get("/v1/agents").await,
        ann.get("/v1/models/none").await,
        nobody.get("/v1/me").await,
        nobody.get("/nothing").await,
        nobody.send(nobody.request(Method::PUT, "/v1/me")).await,
        nobody.get("/openapi.json").await,
    ];
    for answer in answers {
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("x-frame-options"), "DENY");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        assert_eq!(
            answer.header("content-security-policy"),
            "default-src 'none'; frame-ancestors 'none'"
        );
        assert_eq!(answer.header("cache-control"), "no-store");
        assert!(!answer.header("x-request-id").is_empty());
    }
}

#[tokio::test]
async fn a_proxys_request_id_is_kept_when_it_is_harmless() {
    let world = World::shared().await;
    let nobody = world.nobody();
    let with = async |id: &str| {
        let answer = nobody
            .send(
                nobody
                    .request(Method::GET, "/healthz")
                    .header("x-request-id", id),
            )
            .await;
        answer.header("x-request-id").to_owned()
    };
    assert_eq!(with("abc-1.2_3").await, "abc-1.2_3");
    for harmful in ["", "a b", "{\"x\":1}", &"a".repeat(65)] {
        let given = with(harmful).await;
        assert!(
            given != harmful && given.len() == 32,
            "{harmful:?} became {given:?}"
        );
    }
}

#[tokio::test]
async fn without_a_list_no_browser_of_another_origin_may_call() {
    let world = World::shared().await;
    let answer = world
        .nobody()
        .with_header("origin", "https://chat.example.org")
        .get("/healthz")
        .await;
    assert_eq!(answer.header("access-control-allow-origin"), "");
}

#[tokio::test]
async fn browsers_of_listed_origins_may_call() {
    let world = World::with(|setup| {
        setup.config.cors_origins = vec!["https://chat.example.org".to_owned()];
    })
    .await;
    let preflight = async |origin: &str| {
        let client = world
            .nobody()
            .with_header("origin", origin)
            .with_header("access-control-request-method", "POST");
        let request = client.request(Method::OPTIONS, "/v1/conversations");
        client
            .send(request.header(
                "access-control-request-headers",
                "authorization,if-match,x-agent-session-id,x-stainless-lang,idempotency-key",
            ))
            .await
    };
    let listed = preflight("https://chat.example.org").await;
    assert_eq!(listed.status, 200, "a preflight carries no credential");
    assert_eq!(
        listed.header("access-control-allow-origin"),
        "https://chat.example.org"
    );
    let sent = [
        "authorization",
        "if-match",
        "x-agent-session-id",
        "x-stainless-lang",
        "idempotency-key",
    ];
    for header in sent {
        assert!(
            listed
                .header("access-control-allow-headers")
                .contains(header),
            "{header}"
        );
    }
    assert_eq!(listed.header("access-control-allow-credentials"), "");
    assert_eq!(
        preflight("https://evil.example.org")
            .await
            .header("access-control-allow-origin"),
        ""
    );
    let failed = world
        .nobody()
        .with_header("origin", "https://chat.example.org")
        .get("/v1/me")
        .await;
    assert_eq!(failed.status, 401);
    assert_eq!(
        failed.header("access-control-allow-origin"),
        "https://chat.example.org",
        "a page may read why"
    );
    for header in [
        "etag",
        "x-conversation-id",
        "x-run-id",
        "retry-after",
        "ratelimit",
        "ratelimit-policy",
    ] {
        assert!(
            failed
                .header("access-control-expose-headers")
                .contains(header),
            "{header}"
        );
    }
}

#[tokio::test]
async fn a_principal_who_asks_too_often_is_told_to_wait_and_others_are_not() {
    let world = World::with(|setup| setup.config.requests_per_minute = 5).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    for _ in 0..5 {
        ann.get("/v1/me").await.expect(200);
    }
    let refused = ann.get("/v1/me").await;
    assert_eq!(refused.expect(429)["code"], "rate_limited");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=13).contains(&wait), "{wait}");
    let openai = ann.get("/v1/models").await;
    assert_eq!(openai.expect(429)["error"]["code"], "rate_limit_exceeded");
    bob.get("/v1/me").await.expect(200);
    world.stranger("ann").await.get("/v1/me").await.expect(200);
    world.nobody().get("/healthz").await;
}

#[tokio::test]
async fn an_address_that_asks_for_too_many_guests_is_told_to_wait() {
    let world = World::with(|setup| setup.config.requests_per_minute = 2).await;
    let ask = async || {
        world
            .nobody()
            .post("/v1/guests", serde_json::json!({ "tenant": "acme" }))
            .await
            .status
    };
    assert_eq!([ask().await, ask().await, ask().await], [201, 201, 429]);
}

#[tokio::test]
async fn one_request_too_many_at_once_is_refused_at_once() {
    let world = World::with(|setup| setup.config.max_requests = 1).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    bob.get("/v1/conversations").await.expect(200);
    // What reads conversations waits for this.
    let mut owner = world.db.as_owner().await;
    let lock = "begin; lock table conversations in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut owner).await.unwrap();
    let slow = tokio::spawn(async move { bob.get("/v1/conversations").await.status });
    eventually("the place was never taken", async || {
        ann.get("/v1/me").await.status == 503
    })
    .await;
    let refused = ann.get("/v1/me").await;
    assert_eq!(refused.expect(503)["code"], "overloaded");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(
        world.nobody().get("/healthz").await.status,
        200,
        "operators are answered however busy it is"
    );
    sqlx::raw_sql("rollback").execute(&mut owner).await.unwrap();
    assert_eq!(slow.await.unwrap(), 200);
    eventually("the place was never given back", async || {
        ann.get("/v1/me").await.status == 200
    })
    .await;
}

#[tokio::test]
async fn a_listener_holds_no_place_among_the_requests() {
    let world = World::with(|setup| setup.config.max_requests = 1).await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let _one = ann.listen(&id, None).await;
    let _two = ann.listen(&id, None).await;
    ann.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn a_user_may_hold_so_many_streams_and_no_more() {
    let world = World::with(|setup| setup.config.sse_per_user = 1).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let (anns, bobs) = (ann.open("bank").await, bob.open("bank").await);
    let path = format!("/v1/conversations/{anns}/events");
    let held = ann.listen(&anns, None).await;
    let refused = ann.get(&path).await;
    assert_eq!(refused.expect(429)["code"], "too_many_streams");
    assert_eq!(refused.header("retry-after"), "5");
    let _other = bob.listen(&bobs, None).await;
    drop(held);
    let again = async || {
        ann.request(Method::GET, &path)
            .send()
            .await
            .unwrap()
            .status()
            == 200
    };
    eventually("the stream still counts after its end", again).await;
}

#[tokio::test]
async fn what_is_not_http_is_cut_off_and_nobody_else_notices() {
    let world = World::shared().await;
    let mut odd = connect(&world).await;
    odd.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is no HTTP\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(TIME_LIMIT, odd.read_to_end(&mut answer))
        .await
        .expect("the connection stays open");
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"));
    assert_eq!(world.nobody().get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let world = World::shared().await;
    for bytes in [65_536, 90_000, 200_000] {
        let mut large = connect(&world).await;
        let head = format!(
            "GET /healthz HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n",
            "x".repeat(bytes)
        );
        let _ = large.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(TIME_LIMIT, large.read_to_end(&mut answer))
            .await
            .expect("the connection stays open");
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"),
            "{bytes}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
    let mut small = connect(&world).await;
    let head = format!(
        "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-large: {}\r\n\r\n",
        "x".repeat(60_000)
    );
    small.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    small.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "a head of 60 KB");
}

#[tokio::test]
async fn a_stop_lets_a_request_finish_and_takes_no_new_ones() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let mut slow = connect(&world).await;
    let body = r#"{"agent": "bank"}"#;
    let head = format!(
        "POST /v1/conversations HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        ann.token(),
        body.len()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body once a handler reads it: the request is under way.
    let mut go_on = [0; 25];
    slow.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    world.app().shutdown.cancel();
    let closed = async || {
        TcpStream::connect(world.url.strip_prefix("http://").unwrap())
            .await
            .is_err()
    };
    eventually("new connections are still taken", closed).await;
    slow.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert!(
        answer.to_lowercase().contains("connection: close"),
        "{answer}"
    );
}

#[tokio::test]
async fn an_open_stream_does_not_delay_a_stop() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let path = format!("/v1/conversations/{}/events", ann.open("bank").await);
    let events = Events::of(ann.request(Method::GET, &path).send().await.unwrap());
    tokio::time::timeout(Duration::from_secs(8), world.stop())
        .await
        .expect("the stop waits for the stream");
    events.rest().await;
}

#[tokio::test]
async fn a_browser_at_an_address_of_the_api_is_shown_a_page() {
    let world = World::shared().await;
    let browser = world
        .nobody()
        .with_header("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    for (path, status) in [("/v1/me", 401), ("/v1/nothing", 404), ("/v1/models", 401)] {
        let page = browser.get(path).await;
        assert_eq!(page.status, status, "{path}: {}", page.text);
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(
            page.header("content-security-policy")
                .contains("default-src 'none'")
        );
        assert!(
            page.text.contains("<h1>") && !page.text.contains("\"code\""),
            "{}",
            page.text
        );
        assert!(!page.header("x-request-id").is_empty());
    }
    let program = world.nobody().with_header("accept", "application/json");
    assert_eq!(
        program.get("/v1/me").await.json()["code"],
        "unauthenticated"
    );
}

#[tokio::test]
async fn metrics_may_have_an_address_of_their_own() {
    let world = World::start().await;
    let mut config = world.config.clone();
    config.metrics_listen = Some("127.0.0.1:0".parse().unwrap());
    config.public_url = "https://chat.example.org".to_owned();
    let db = Db::connect(&world.db.url, 4).await.unwrap();
    let service = Service::start(config, &world.env, db).await.unwrap();
    let client = |address| Client::new(&format!("http://{address}"), None);
    let (api, watched) = (
        client(service.address),
        client(service.metrics_address.unwrap()),
    );
    api.get("/metrics").await.expect(404);
    let healthy = api.get("/healthz").await;
    assert_eq!(healthy.status, 200);
    let once = healthy.header("strict-transport-security");
    assert!(once.starts_with("max-age="), "{once}");
    let metrics = watched.get("/metrics").await;
    assert!(
        metrics.text.contains("chatelaine_request_seconds"),
        "{}",
        metrics.text
    );
    assert_eq!(watched.get("/healthz").await.status, 200);
    let ready = async || watched.get("/readyz").await.status == 200;
    eventually("the replica is ready", ready).await;
    watched.get("/v1/me").await.expect(404);
    service.stop().await.unwrap();
    let here = world.nobody().get("/metrics").await;
    assert_eq!(here.status, 200, "it is with the API unless said otherwise");
}
