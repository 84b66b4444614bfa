//! What is true of every route: pages, `Location`, repeated requests, rates, and what `/v1/me` says.

use chatelaine::api;
use serde_json::{Value, json};

use crate::support::{client::Client, has::Has, model::text, world::World};

/// The schema behind a reference, or the schema itself.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(to) => document.pointer(&to[1..]).unwrap(),
        None => schema,
    }
}

#[test]
fn every_list_pages_alike_and_every_creation_says_where() {
    let document = api::openapi();
    let (mut pages, mut creations) = (0, 0);
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let responses = &operation["responses"];
            if !responses["201"].is_null() {
                creations += 1;
                let location = &responses["201"]["headers"]["Location"];
                assert!(location.is_object(), "{method} {path} answers no Location");
            }
            // What is tried with a `POST` names the page in its body.
            if method == "post" {
                continue;
            }
            let schema = &responses["200"]["content"]["application/json"]["schema"];
            if resolved(&document, schema)["properties"]["next"].is_null() {
                continue;
            }
            pages += 1;
            let parameters = operation["parameters"].as_array().unwrap().iter();
            let names: Vec<_> = parameters
                .map(|given| given["name"].as_str().unwrap())
                .collect();
            assert!(
                names.contains(&"limit") && names.contains(&"cursor"),
                "{method} {path} pages by {names:?}"
            );
        }
    }
    assert!(pages > 8 && creations > 8, "{pages} {creations}");
}

#[tokio::test]
async fn what_was_made_is_where_the_answer_says() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    let made = ann
        .post("/v1/conversations", json!({ "agent": "bank" }))
        .await;
    let id = made.expect(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(made.header("location"), format!("/v1/conversations/{id}"));
    ann.get(made.header("location")).await.expect(200);

    let said = json!({ "text": "/help" });
    let said = ann
        .post(&format!("/v1/conversations/{id}/messages"), said)
        .await;
    said.expect(202);
    ann.get(said.header("location")).await.expect(200);

    let run = json!({ "agent_name": "office", "prompt": "hi" });
    for path in ["/v1/runs", "/runs"] {
        let begun = ann.post(path, run.clone()).await;
        let id = begun.expect(202)["run_id"].as_str().unwrap().to_owned();
        assert_eq!(begun.header("location"), format!("{path}/{id}"));
        ann.get(begun.header("location")).await.expect(200);
    }

    let admin = world.admin().await;
    let entry = json!({ "id": "docs", "url": "https://mcp.example.org/mcp" });
    let made = admin.post("/v1/mcp-servers", entry).await;
    made.expect(201);
    admin.get(made.header("location")).await.expect(200);
    let key = admin.post("/v1/admin/keys", json!({ "name": "one" })).await;
    key.expect(201);
    assert_eq!(admin.delete(key.header("location")).await.status, 204);
}

#[tokio::test]
async fn a_creation_answers_the_times_that_are_read_later_in_utc() {
    let world = World::shared().await;
    let admin = world.admin().await;
    let new = json!({ "name": "one", "expires_at": "2099-01-31T12:00:00.123456789+02:00" });
    let made = admin.post("/v1/admin/keys", new).await.expect(201);
    assert_eq!(made["expires_at"], "2099-01-31T10:00:00.123456Z");
    let read = admin.get("/v1/admin/keys").await.expect(200)["items"][0].clone();
    for name in ["created_at", "expires_at"] {
        assert_eq!(made[name], read[name], "{name}");
    }
}

#[tokio::test]
async fn a_repeated_request_makes_one_conversation() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let keyed = ann.clone().with_header("idempotency-key", "one");
    let ask = async |client: &Client, title: &str| {
        let body = json!({ "agent": "bank", "title": title });
        client.post("/v1/conversations", body).await
    };
    let (first, second) = tokio::join!(ask(&keyed, "Taxes"), ask(&keyed, "Taxes"));
    assert_eq!(first.expect(201), second.expect(201));
    let other = ask(&keyed, "Rates").await.expect(422);
    assert_eq!(other["code"], "idempotency_key_reused");
    let page = ann.get("/v1/conversations").await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn answers_say_how_many_requests_are_left() {
    let world = World::with(|setup| setup.config.requests_per_minute = 3).await;
    let ann = world.user("ann", &[]).await;
    for left in ["2", "1", "0"] {
        let answer = ann.get("/v1/agents").await;
        answer.expect(200);
        assert_eq!(
            answer.header("ratelimit"),
            format!("\"requests\";r={left};t=20")
        );
        assert_eq!(answer.header("ratelimit-policy"), "\"requests\";q=3;w=60");
    }
    let refused = ann.get("/v1/agents").await;
    refused.expect(429);
    assert_eq!(refused.header("ratelimit"), "\"requests\";r=0;t=20");
    assert_eq!(world.nobody().get("/healthz").await.header("ratelimit"), "");
}

#[tokio::test]
async fn me_tells_roles_claims_and_usage() {
    let world = World::with(|setup| setup.config.runs_per_user_per_day = Some(5)).await;
    world.model.on(|_| Some(text("Fine.")));
    let fin = world.user("fin", &["finance", "unheard-of"]).await;
    fin.ask("bank", "hi").await;
    let me = fin.get("/v1/me").await.expect(200);
    let bank = json!({ "agent": "bank", "roles": ["finance"], "admin": false });
    assert_eq!(me["agents"][0], bank);
    me.has(json!({
        "claims": { "roles": ["finance", "unheard-of"] },
        "usage": { "runs": 1, "runs_limit": 5 },
    }));
    assert!(me["usage"]["tokens"].as_i64().unwrap() > 0);
    assert!(me["usage"].get("tokens_limit").is_none());
    let alice = world
        .user("alice", &[])
        .await
        .get("/v1/me")
        .await
        .expect(200);
    assert_eq!(alice["agents"][0]["admin"], true);
    let guest = world.guest().await.get("/v1/me").await.expect(200);
    assert_eq!(
        guest["agents"],
        json!([{ "agent": "bank", "roles": ["guest"], "admin": false }])
    );
    assert_eq!(guest["claims"], json!({}));
}
