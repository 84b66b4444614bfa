//! A request with an `Idempotency-Key`, sent again, makes nothing new: walked over the OpenAPI document.

use std::collections::BTreeSet;

use chatelaine::api;
use domain::secret::Secret;
use http::Method;
use serde_json::{Value, json};

use crate::support::{
    client::{Answer, Client},
    model::text,
    world::World,
};

const OPERATOR: &str = "operator-token-of-the-tests-0123456789";
const KEY: &str = "0190b6a2-key-of-a-request";

/// What is posted, without its body or with another one in the second place.
enum Sent {
    Nothing,
    Text(&'static str, &'static str),
    Json(Value, Value),
}

/// What the answers to one request have in common.
enum Same {
    /// All of it.
    Whole,
    Field(&'static str),
    Header(&'static str),
}

struct Case {
    path: &'static str,
    sent: Sent,
    same: Same,
    status: u16,
}

fn made(path: &'static str, one: Value, other: Value) -> Case {
    let (sent, same) = (Sent::Json(one, other), Same::Whole);
    Case {
        path,
        sent,
        same,
        status: 201,
    }
}

fn begun(path: &'static str, same: Same, status: u16, one: Value, other: Value) -> Case {
    let sent = Sent::Json(one, other);
    Case {
        path,
        sent,
        same,
        status,
    }
}

fn entry(id: &str) -> Value {
    json!({ "id": id, "url": "https://mcp.example.org/mcp" })
}

fn key(name: &str) -> Value {
    json!({ "name": name, "scopes": ["chat"] })
}

fn issuer(name: &str) -> Value {
    json!({ "issuer": format!("https://{name}.example.org"), "audience": "a",
            "jwks_url": "https://idp.example.org/keys" })
}

fn webhook(event: &str) -> Value {
    json!({ "url": "https://hooks.example.org/chatelaine", "events": [event] })
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    let chat = |text: &str| json!({ "model": "office", "messages": [{ "role": "user", "content": text }] });
    let ui = |text: &str| {
        let parts = json!([{ "type": "text", "text": text }]);
        json!({ "id": "one", "agent": "office", "messages": [{ "id": "m", "role": "user", "parts": parts }] })
    };
    let agui = |text: &str| {
        let message = json!({ "id": "m", "role": "user", "content": text });
        json!({ "threadId": "one", "runId": "one", "messages": [message] })
    };
    let run = |text: &str| json!({ "agent_name": "office", "prompt": text });
    let new = |title: &str| json!({ "agent": "bank", "title": title });
    let say = |text: &str| json!({ "text": text });
    let respond = |text: &str| json!({ "model": "office", "input": text });
    let skill = |to: &str| json!({ "arguments": { "from": "EUR", "to": to } });
    let tenant = |name: &str| json!({ "name": name });
    vec![
        made(
            "/v1/guests",
            json!({ "tenant": "acme" }),
            json!({ "tenant": "acme " }),
        ),
        made("/v1/conversations", new("one"), new("other")),
        begun(
            "/v1/conversations/{id}/messages",
            Same::Field("/run/id"),
            202,
            say("one"),
            say("other"),
        ),
        Case {
            path: "/v1/conversations/{id}/attachments",
            sent: Sent::Text("one", "other"),
            same: Same::Whole,
            status: 201,
        },
        Case {
            path: "/v1/events/ticket",
            sent: Sent::Nothing,
            same: Same::Whole,
            status: 200,
        },
        begun(
            "/v1/agents/{agent}/skills/{skill}",
            Same::Field("/run_id"),
            200,
            skill("USD"),
            skill("CHF"),
        ),
        begun(
            "/v1/runs",
            Same::Field("/run_id"),
            202,
            run("one"),
            run("other"),
        ),
        begun(
            "/runs",
            Same::Field("/run_id"),
            202,
            run("one"),
            run("other"),
        ),
        begun(
            "/v1/chat/completions",
            Same::Header("x-run-id"),
            200,
            chat("one"),
            chat("other"),
        ),
        begun(
            "/v1/responses",
            Same::Field("/id"),
            200,
            respond("one"),
            respond("other"),
        ),
        begun(
            "/v1/ui/chat",
            Same::Header("x-run-id"),
            200,
            ui("one"),
            ui("other"),
        ),
        begun(
            "/v1/agui/{agent}",
            Same::Header("x-run-id"),
            200,
            agui("one"),
            agui("other"),
        ),
        made(
            "/v1/admin/webhooks",
            webhook("approval.*"),
            webhook("run.*"),
        ),
        made("/v1/admin/tenants", tenant("one"), tenant("other")),
        made("/v1/admin/keys", key("one"), key("other")),
        made("/v1/admin/tenants/{tenant}/keys", key("a"), key("b")),
        made(
            "/v1/admin/tenants/{tenant}/issuers",
            issuer("a"),
            issuer("b"),
        ),
        // The operator has added it before.
        begun(
            "/v1/admin/issuers",
            Same::Whole,
            200,
            issuer("a"),
            issuer("b"),
        ),
        made("/v1/mcp-servers", entry("one"), entry("other")),
        made("/mcp-servers", entry("two"), entry("another")),
    ]
}

/// Posts that make nothing, or whose protocol says what makes two of them one.
const OTHERS: [&str; 18] = [
    "/a2a",
    "/a2a/{agent}",
    "/connect/{token}",
    "/mcp/{agent}",
    "/runs/{id}/cancel",
    "/v1/admin/changed-tools/accept",
    "/v1/admin/agents/{agent}/policy-trials",
    "/v1/admin/users/{user}/block",
    "/v1/admin/users/{user}/sign-out",
    "/v1/admin/webhooks/{id}/test",
    "/v1/agents/{agent}/connections/{server}/sign-in",
    "/v1/agents/{agent}/connections/{server}/test",
    "/v1/approvals/{id}/cancel",
    "/v1/approvals/{id}/decision",
    "/v1/approvals/{id}/outcome",
    "/v1/responses/{id}/cancel",
    "/v1/runs/check",
    "/v1/runs/{id}/cancel",
];

#[test]
fn every_post_takes_a_key_or_makes_nothing() {
    let document = api::openapi();
    let posts = document["paths"].as_object().unwrap().iter();
    let posts = posts.filter_map(|(path, item)| Some((path.as_str(), item.get("post")?)));
    let (mut keyed, mut others) = (BTreeSet::new(), BTreeSet::new());
    for (path, operation) in posts {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let takes_key = parameters
            .into_iter()
            .any(|parameter| parameter["name"] == "Idempotency-Key");
        if takes_key {
            keyed.insert(path);
        } else {
            others.insert(path);
        }
    }
    assert_eq!(keyed, cases().iter().map(|case| case.path).collect());
    assert_eq!(others, BTreeSet::from(OTHERS));
}

async fn world() -> World {
    World::with(|setup| {
        setup.config.operator_token = Some(Secret::new(OPERATOR));
        let binding = json!({ "server": "bank", "tools": ["get_exchange_rate"] });
        setup.change_pack(json!({ "skills": [{ "id": "rate", "mcpBinding": binding }] }));
    })
    .await
}

async fn caller(world: &World, path: &str) -> Client {
    let caller = match path {
        "/v1/guests" => world.nobody(),
        path if path.starts_with("/v1/admin/tenants") => world.client(&Secret::new(OPERATOR)),
        path if path.starts_with("/v1/admin") || path.ends_with("mcp-servers") => {
            world.admin().await
        }
        _ => world.user("ann", &["employee"]).await,
    };
    caller.with_header("idempotency-key", &format!("{KEY} {path}"))
}

async fn post(client: &Client, path: &str, sent: &Sent, other: bool) -> Answer {
    let request = client.request(Method::POST, path);
    client
        .send(match sent {
            Sent::Nothing => request,
            Sent::Text(one, two) => request.body(if other { *two } else { *one }),
            Sent::Json(one, two) => request.json(if other { two } else { one }),
        })
        .await
}

fn shared(answer: &Answer, same: &Same) -> String {
    match same {
        Same::Whole => format!(
            "{} {} {}",
            answer.header("location"),
            answer.header("etag"),
            answer.text
        ),
        Same::Field(field) => answer.json().pointer(field).unwrap().to_string(),
        Same::Header(name) => answer.header(name).to_owned(),
    }
}

#[tokio::test]
async fn every_request_with_a_key_is_done_once() {
    let world = world().await;
    world.tools_ready().await;
    world.model.on(|_| Some(text("Hello.")));
    for case in cases() {
        let client = caller(&world, case.path).await;
        let conversation = if case.path.contains("{id}") {
            world.user("ann", &["employee"]).await.open("office").await
        } else {
            String::new()
        };
        let agent = if case.path.contains("{skill}") {
            "bank"
        } else {
            "office"
        };
        let path = case.path.replace("{id}", &conversation);
        let path = path
            .replace("{agent}", agent)
            .replace("{skill}", "rate")
            .replace("{tenant}", "acme");
        let first = post(&client, &path, &case.sent, false).await;
        assert_eq!(first.status, case.status, "{path}: {}", first.text);
        let second = post(&client, &path, &case.sent, false).await;
        assert_eq!(second.status, case.status, "{path}: {}", second.text);
        let (one, two) = (shared(&first, &case.same), shared(&second, &case.same));
        assert!(!one.is_empty(), "{path}");
        assert_eq!(one, two, "{path}");
        if matches!(case.same, Same::Whole) || path.starts_with("/v1/chat/") {
            let told = [&first, &second].map(|answer| answer.header("idempotent-replayed"));
            assert_eq!(told, ["", "true"], "{path}");
        }
        if !matches!(case.sent, Sent::Nothing) {
            let other = post(&client, &path, &case.sent, true).await;
            // A tenant of another name has other keys.
            let expected = if case.path == "/v1/guests" { 404 } else { 422 };
            assert_eq!(other.status, expected, "{path}: {}", other.text);
        }
        // With another key it is another request.
        let again = client
            .clone()
            .with_header("idempotency-key", &format!("another {KEY} {}", case.path));
        let third = post(&again, &path, &case.sent, false).await;
        if third.status == case.status && case.path != "/v1/admin/issuers" {
            assert_ne!(shared(&third, &case.same), one, "{path}");
        } else {
            // The name is taken, or the issuer is known.
            assert!([200, 409].contains(&third.status), "{path}: {}", third.text);
        }
    }
}

#[tokio::test]
async fn requests_at_once_make_one_thing_and_a_refused_one_may_be_sent_again() {
    let world = world().await;
    let admin = world.admin().await.with_header("idempotency-key", KEY);
    let path = "/v1/admin/keys";
    let body = || json!({ "name": "one", "scopes": ["chat"] });
    let (one, two) = tokio::join!(admin.post(path, body()), admin.post(path, body()));
    for answer in [&one, &two] {
        assert!([201, 409].contains(&answer.status), "{}", answer.text);
    }
    let made = admin.post(path, body()).await.expect(201);
    assert!(made["key"].as_str().unwrap().starts_with("chk_"));
    let keys = admin.get(path).await.expect(200);
    let named = keys["items"].as_array().unwrap().iter();
    assert_eq!(named.filter(|key| key["name"] == "one").count(), 1);
    // What is kept is sealed.
    let sql = "select count(*) from request_answers where position($1::bytea in sealed) > 0";
    let secret = made["key"].as_str().unwrap().as_bytes().to_vec();
    let readable: i64 = sqlx::query_scalar(sql)
        .bind(secret)
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(readable, 0);

    let admin = admin.with_header("idempotency-key", "of-a-refused-request");
    let wrong = json!({ "name": "", "scopes": ["chat"] });
    assert!(admin.post(path, wrong.clone()).await.status >= 400);
    assert!(admin.post(path, wrong).await.status >= 400);
    admin
        .post(path, json!({ "name": "two", "scopes": ["chat"] }))
        .await
        .expect(201);
}

#[tokio::test]
async fn a_strangers_key_is_long_and_belongs_to_its_address() {
    let world = World::start().await;
    let body = || json!({ "tenant": "acme" });
    let short = world.nobody().with_header("idempotency-key", "1");
    let refused = short.post("/v1/guests", body()).await.expect(400);
    assert_eq!(refused["field"], "Idempotency-Key");
    let long = world.nobody().with_header("idempotency-key", KEY);
    let first = long.post("/v1/guests", body()).await.expect(201);
    assert_eq!(long.post("/v1/guests", body()).await.expect(201), first);
}
