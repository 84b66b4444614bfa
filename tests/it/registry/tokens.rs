//! OAuth 2.0 client credentials: against a token endpoint at the socket.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use axum::{Json, Router, extract::State, routing::post};
use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::{Watched, entry, eventually, offered, open_localhost, pack, put};
use crate::support::{
    client::Client,
    has::Has,
    world::{Setup, World},
};

/// Every request for a token: its headers and its form.
pub type Log = Arc<Mutex<Vec<(HeaderMap, HashMap<String, String>)>>>;

/// Gives `token-1`, `token-2`, … and lets the bank take only the latest.
pub struct Endpoint {
    pub url: String,
    pub given: Log,
    /// The next request is never answered.
    pub silent: Arc<AtomicBool>,
    /// How long it thinks, in ms.
    pub slow: Arc<AtomicU64>,
    /// What it says in place of a token.
    pub says: Arc<Mutex<Option<Value>>>,
}

#[derive(Clone)]
struct Given {
    silent: Arc<AtomicBool>,
    slow: Arc<AtomicU64>,
    says: Arc<Mutex<Option<Value>>>,
    log: Log,
    takes: Arc<Mutex<Option<String>>>,
    expires_in: u64,
    refuse: Arc<Mutex<bool>>,
}

async fn give(
    State(given): State<Given>,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, Json<Value>) {
    if given.silent.swap(false, Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(
        given.slow.load(Ordering::SeqCst),
    ))
    .await;
    if let Some(said) = given.says.lock().unwrap().clone() {
        return (StatusCode::OK, Json(said));
    }
    if *given.refuse.lock().unwrap() {
        return (
            StatusCode::UNAUTHORIZED,
            Json(json!({ "error": "invalid_client", "error_description": "sEcReT" })),
        );
    }
    let mut log = given.log.lock().unwrap();
    let form = url::form_urlencoded::parse(body.as_bytes())
        .into_owned()
        .collect();
    log.push((headers, form));
    let token = format!("token-{}-0123456789", log.len());
    *given.takes.lock().unwrap() = Some(token.clone());
    (
        StatusCode::OK,
        Json(
            json!({ "access_token": token, "token_type": "Bearer", "expires_in": given.expires_in }),
        ),
    )
}

pub async fn endpoint(bank: &Watched, expires_in: u64) -> (Endpoint, Arc<Mutex<bool>>) {
    let (silent, takes) = (Arc::<AtomicBool>::default(), bank.token.clone());
    // Long enough for others to ask meanwhile.
    let (slow, says) = (
        Arc::new(AtomicU64::new(50)),
        Arc::<Mutex<Option<Value>>>::default(),
    );
    let (log, refuse) = (Log::default(), Arc::default());
    let given = Given {
        silent: silent.clone(),
        slow: slow.clone(),
        says: says.clone(),
        log,
        takes,
        expires_in,
        refuse,
    };
    *bank.token.lock().unwrap() = Some("nobody has this one".to_owned());
    let (log, refuse) = (given.log.clone(), given.refuse.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    let router = Router::new().route("/token", post(give)).with_state(given);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (
        Endpoint {
            url,
            given: log,
            silent,
            slow,
            says,
        },
        refuse,
    )
}

/// The document's entry, with the rest of what an entry needs.
pub fn external(bank: &Watched, endpoint: &Endpoint) -> Value {
    let mut external = entry("external-api", &bank.url, json!({}), json!({}));
    external["auth"] = json!({
        "type": "oauth2_client_credentials",
        "token_url": endpoint.url,
        "client_id": "${env.EXTERNAL_CLIENT_ID}",
        "client_secret": "${env.EXTERNAL_CLIENT_SECRET}",
        "scope": "api:read api:write"
    });
    external
}

async fn world() -> World {
    World::with(reading).await
}

/// An agent that takes the server of the document's entry.
pub fn reading(setup: &mut Setup) {
    open_localhost(setup);
    setup.config.registry_env.push("EXTERNAL_*@*".to_owned());
    setup.env = setup
        .env
        .clone()
        .with("EXTERNAL_CLIENT_ID", "id:1")
        .with("EXTERNAL_CLIENT_SECRET", "s3cret/+");
    setup.packs.push(pack(
        "reader",
        "mcpServers: { api: { ref: external-api, toolAccess: { default: public } } }",
    ));
}

pub async fn rate(client: &Client) -> String {
    client
        .ask(
            "reader",
            "/call api get_exchange_rate {\"from\":\"EUR\",\"to\":\"USD\"}",
        )
        .await
}

#[tokio::test]
async fn a_token_is_asked_for_once_and_used_by_every_request() {
    let bank = Watched::start().await;
    let (endpoint, _) = endpoint(&bank, 3600).await;
    let world = world().await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    let created = admin
        .post("/mcp-servers", external(&bank, &endpoint))
        .await
        .expect(201);
    assert_eq!(
        created["auth"]["client_secret"],
        "${env.EXTERNAL_CLIENT_SECRET}"
    );
    offered(&ann, "reader", "api").await;
    let both = tokio::join!(rate(&ann), rate(&ann), rate(&ann));
    assert!(
        [both.0, both.1, both.2]
            .iter()
            .all(|rate| rate.contains("1.085"))
    );
    let given = endpoint.given.lock().unwrap().clone();
    assert_eq!(given.len(), 1, "one request for a token");
    let (headers, form) = &given[0];
    assert_eq!(
        (form["grant_type"].as_str(), form["scope"].as_str()),
        ("client_credentials", "api:read api:write")
    );
    // RFC 6749, 2.3.1: both are form-encoded before they are joined.
    assert_eq!(
        headers["authorization"],
        format!("Basic {}", BASE64_STANDARD.encode("id%3A1:s3cret%2F%2B"))
    );
    assert_eq!(
        bank.last("authorization").as_deref(),
        Some("Bearer token-1-0123456789")
    );
}

#[tokio::test]
async fn a_token_that_the_server_refuses_is_replaced_once_and_the_call_made_once() {
    let bank = Watched::start().await;
    let (endpoint, refuse) = endpoint(&bank, 3600).await;
    let world = world().await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    admin
        .post("/mcp-servers", external(&bank, &endpoint))
        .await
        .expect(201);
    offered(&ann, "reader", "api").await;
    *bank.token.lock().unwrap() = Some("rotated".to_owned());
    assert!(rate(&ann).await.contains("1.085"));
    assert_eq!(
        (bank.executions(), endpoint.given.lock().unwrap().len()),
        (1, 2)
    );
    // Two refusals in a row are the end of it.
    *refuse.lock().unwrap() = true;
    *bank.token.lock().unwrap() = Some("rotated again".to_owned());
    let refused = rate(&ann).await;
    assert!(
        refused.contains("failed") && !refused.contains("token-"),
        "{refused}"
    );
    assert_eq!(bank.executions(), 1);
}

#[tokio::test]
async fn a_token_is_replaced_shortly_before_it_ends() {
    let bank = Watched::start().await;
    let (endpoint, _) = endpoint(&bank, 1).await;
    let world = world().await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    admin
        .post("/mcp-servers", external(&bank, &endpoint))
        .await
        .expect(201);
    offered(&ann, "reader", "api").await;
    eventually("a later call has a new token", async || {
        assert!(rate(&ann).await.contains("1.085"));
        endpoint.given.lock().unwrap().len() >= 3
    })
    .await;
    let refusals = bank
        .seen
        .lock()
        .unwrap()
        .iter()
        .filter(|headers| !headers.contains_key("authorization"))
        .count();
    assert_eq!(refusals, 0, "nothing goes out without a token");
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_said_without_its_words() {
    let bank = Watched::start().await;
    let (endpoint, refuse) = endpoint(&bank, 3600).await;
    *refuse.lock().unwrap() = true;
    let world = world().await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    admin
        .post("/mcp-servers", external(&bank, &endpoint))
        .await
        .expect(201);
    let mut seen = String::new();
    eventually("the server is down", async || {
        seen = ann.get("/v1/agents/reader/servers").await.text;
        seen.contains("\"down\"")
    })
    .await;
    assert!(
        seen.contains("the token endpoint answered with HTTP 401 (invalid_client)"),
        "{seen}"
    );
    assert!(!seen.contains("sEcReT"), "{seen}");
    assert!(
        bank.seen.lock().unwrap().is_empty(),
        "nothing was sent to the server"
    );
}

#[tokio::test]
async fn a_slow_endpoint_is_waited_for_and_costs_the_server_nothing_of_its_time() {
    let bank = Watched::start().await;
    let (endpoint, _) = endpoint(&bank, 3600).await;
    endpoint.slow.store(4000, Ordering::SeqCst);
    let world = World::with(|setup| {
        reading(setup);
        let below = "mcpServers: { api: { ref: external-api, toolAccess: { default: public }, timeouts: { connectSeconds: 3 } } }";
        setup.packs.retain(|(id, _)| id != "reader");
        setup.packs.push(pack("reader", below));
    })
    .await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    admin
        .post("/mcp-servers", external(&bank, &endpoint))
        .await
        .expect(201);
    eventually("the server is ready, and was never down", async || {
        let seen = ann.get("/v1/agents/reader/servers").await.text;
        assert!(!seen.contains("\"down\""), "{seen}");
        seen.contains("\"ready\"")
    })
    .await;
}

#[tokio::test]
async fn what_is_no_token_is_not_sent_to_the_server() {
    for (said, why) in [
        (
            json!({ "access_token": "", "token_type": "Bearer" }),
            "has no `access_token`",
        ),
        (
            json!({ "access_token": "  ", "token_type": "Bearer" }),
            "has no `access_token`",
        ),
        (
            json!({ "access_token": "a\r\nX-Admin: 1", "token_type": "Bearer" }),
            "a token that no header can carry",
        ),
        (
            json!({ "access_token": "token-0123456789", "token_type": "mac" }),
            "other tokens than bearer tokens",
        ),
        (
            json!({ "token": "token-0123456789" }),
            "no access token for the server",
        ),
        (
            json!(["token-0123456789"]),
            "no access token for the server",
        ),
    ] {
        let bank = Watched::start().await;
        let (endpoint, _) = endpoint(&bank, 3600).await;
        *endpoint.says.lock().unwrap() = Some(said.clone());
        let world = world().await;
        let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
        admin
            .post("/mcp-servers", external(&bank, &endpoint))
            .await
            .expect(201);
        let mut seen = String::new();
        eventually("the server is down", async || {
            seen = ann.get("/v1/agents/reader/servers").await.text;
            seen.contains("\"down\"")
        })
        .await;
        assert!(
            seen.contains(why) && !seen.contains("token-0123"),
            "{said}: {seen}"
        );
        assert!(
            bank.seen.lock().unwrap().is_empty(),
            "{said}: nothing was sent to the server"
        );
    }
}

#[tokio::test]
async fn how_long_a_token_holds_may_be_said_in_any_way() {
    for expires_in in [
        json!(1e300),
        json!(u64::MAX),
        json!(-5),
        json!("3600"),
        json!({ "a": 1 }),
        json!(null),
    ] {
        let bank = Watched::start().await;
        let (endpoint, _) = endpoint(&bank, 3600).await;
        *bank.token.lock().unwrap() = Some("token-0123456789".to_owned());
        let said = json!({ "access_token": "token-0123456789", "token_type": "bearer", "expires_in": expires_in });
        *endpoint.says.lock().unwrap() = Some(said);
        let world = world().await;
        let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
        admin
            .post("/mcp-servers", external(&bank, &endpoint))
            .await
            .expect(201);
        offered(&ann, "reader", "api").await;
        assert!(rate(&ann).await.contains("1.085"), "{expires_in}");
    }
}

#[tokio::test]
async fn a_client_secret_is_sealed_and_masked() {
    let bank = Watched::start().await;
    let (endpoint, _) = endpoint(&bank, 3600).await;
    let world = world().await;
    let admin = world.admin().await;
    let mut body = external(&bank, &endpoint);
    body["auth"]["client_secret"] = "literal-secret-0123".into();
    let created = admin.post("/mcp-servers", body.clone()).await;
    assert_eq!(created.expect(201)["auth"]["client_secret"], "••••");
    body["auth"]
        .as_object_mut()
        .unwrap()
        .remove("client_secret");
    let kept = put(&admin, "/mcp-servers/external-api", &body).await;
    assert_eq!(kept.expect(200)["auth"]["client_secret"], "••••");
    body["auth"]["token_url"] = "https://evil.example.org/token".into();
    let moved = put(&admin, "/mcp-servers/external-api", &body)
        .await
        .expect(400);
    assert_eq!(moved["field"], "auth.client_secret");
    body["auth"]["token_url"] = "http://10.0.0.1/token".into();
    body["auth"]["client_secret"] = "again".into();
    assert_eq!(
        put(&admin, "/mcp-servers/external-api", &body)
            .await
            .expect(400)["field"],
        "auth.token_url"
    );
    body["auth"]["token_url"] = endpoint.url.clone().into();
    body["config_schema"] = json!({ "token": { "type": "string", "header": "Authorization" } });
    let clash = put(&admin, "/mcp-servers/external-api", &body)
        .await
        .expect(400);
    clash["detail"].says("which auth fills already");
}
