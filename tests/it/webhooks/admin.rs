//! Webhooks as a tenant's admin manages them.

use chatelaine::app::accounts::{self, NewKey};
use domain::{
    account::KeyKind,
    clock::Clock,
    principal::{Scope, Scopes},
};
use serde_json::{Value, json};

use super::{Receiver, answer, deliveries, happens, hook, told};
use crate::support::{client::Client, has::Has, world::World};

/// Somebody who may manage the other tenant.
async fn other_admin(world: &World) -> Client {
    let speaker = KeyKind::Service(serde_json::Map::new());
    let new = NewKey {
        source: domain::account::SourceSettings::default(),
        name: "root".to_owned(),
        scopes: Scopes::new([Scope::Admin]),
        speaker,
        chat: domain::account::ChatSettings::default(),
        expires_at: None,
    };
    world.client(
        &accounts::create_key(&world.db.db, &Clock::System, world.other.id, new)
            .await
            .unwrap()
            .secret,
    )
}

async fn listed(admin: &Client) -> Vec<Value> {
    admin.get("/v1/admin/webhooks").await.expect(200)["items"]
        .as_array()
        .unwrap()
        .clone()
}

async fn audited(admin: &Client, prefix: &str) -> Vec<(String, String)> {
    let page = admin
        .get(&format!("/v1/admin/audit?action={prefix}"))
        .await
        .expect(200);
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| (text(line, "action"), text(line, "detail")))
        .collect()
}

#[tokio::test]
async fn a_secret_is_shown_once_and_kept_sealed() {
    let world = World::start().await;
    let admin = world.admin().await;
    let (id, secret) = hook(
        &admin,
        "https://hooks.example.org/T0/secret-path",
        &["approval.*"],
    )
    .await;
    assert!(
        secret.starts_with("whsec_") && secret.len() == 6 + 44,
        "{secret}"
    );
    let list = admin.get("/v1/admin/webhooks").await;
    assert!(
        !list.text.contains("whsec_") && !list.text.contains("secret\":"),
        "{}",
        list.text
    );
    let [only] = &listed(&admin).await[..] else {
        panic!()
    };
    only.has(json!({ "id": id, "events": ["approval.*"] }));
    let row: String =
        sqlx::query_scalar("select webhooks::text || encode(sealed, 'escape') from webhooks")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    assert!(
        row.contains("hooks.example.org"),
        "the test looks at the row: {row}"
    );
    assert!(!row.contains(&secret[6..]), "{row}");
}

#[tokio::test]
async fn what_is_done_to_webhooks_is_in_the_trail_without_the_path_of_their_urls() {
    let world = World::start().await;
    let admin = world.admin().await;
    let (id, _) = hook(&admin, "https://hooks.example.org/T0/secret-path", &["*"]).await;
    admin
        .delete(&format!("/v1/admin/webhooks/{id}"))
        .await
        .expect(204);
    admin
        .delete(&format!("/v1/admin/webhooks/{id}"))
        .await
        .expect(404);
    let expected = [
        ("webhook.removed", id.clone()),
        ("webhook.created", format!("{id} at hooks.example.org")),
    ];
    assert_eq!(
        audited(&admin, "webhook.").await,
        expected.map(|(action, detail)| (action.to_owned(), detail))
    );
    assert_eq!(listed(&admin).await, [] as [Value; 0]);
}

#[tokio::test]
async fn what_cannot_be_a_webhook_is_refused_by_its_field() {
    let world = World::start().await;
    let admin = world.admin().await;
    let good = "https://hooks.example.org/";
    for (url, events, field, why) in [
        (
            "http://hooks.example.org/",
            json!(["*"]),
            "url",
            "plain http",
        ),
        (
            "https://10.0.0.7/hook",
            json!(["*"]),
            "url",
            "not in egress allowlist",
        ),
        (
            "https://[::1]/hook",
            json!(["*"]),
            "url",
            "not in egress allowlist",
        ),
        (
            "https://ann:pw@hooks.example.org/",
            json!(["*"]),
            "url",
            "user information",
        ),
        (
            "ftp://hooks.example.org/",
            json!(["*"]),
            "url",
            "not allowed",
        ),
        ("nonsense", json!(["*"]), "url", "unparseable"),
        (good, json!([]), "events", "1 to 20"),
        (
            good,
            json!(["Approval.created"]),
            "events",
            "no name of events",
        ),
        (good, json!(["approval*"]), "events", "no name of events"),
        (good, json!(["*.created"]), "events", "no name of events"),
        (good, json!(["approval..x"]), "events", "no name of events"),
    ] {
        let refused = admin
            .post(
                "/v1/admin/webhooks",
                json!({ "url": url, "events": events }),
            )
            .await
            .expect(400);
        assert_eq!(refused["field"], field, "{url} {events}: {refused}");
        assert!(
            refused["detail"].as_str().unwrap().contains(why),
            "{url} {events}: {refused}"
        );
    }
    assert_eq!(listed(&admin).await, [] as [Value; 0]);
}

#[tokio::test]
async fn a_tenant_has_at_most_twenty() {
    let world = World::start().await;
    let admin = world.admin().await;
    let new = || json!({ "url": "https://hooks.example.org/", "events": ["*"] });
    let tries = (0..24).map(|_| admin.post("/v1/admin/webhooks", new()));
    let made = futures_util::future::join_all(tries).await;
    assert!(
        made.iter().all(|answer| matches!(answer.status, 201 | 409)),
        "{made:?}"
    );
    while listed(&admin).await.len() < 20 {
        hook(&admin, "https://hooks.example.org/", &["*"]).await;
    }
    admin.post("/v1/admin/webhooks", new()).await.expect(409);
    let first = listed(&admin).await[0]["id"].as_str().unwrap().to_owned();
    admin
        .delete(&format!("/v1/admin/webhooks/{first}"))
        .await
        .expect(204);
    admin.post("/v1/admin/webhooks", new()).await.expect(201);
    assert_eq!(listed(&admin).await.len(), 20);
}

#[tokio::test]
async fn a_test_sends_a_ping_at_once_and_says_how_it_went() {
    let (_world, admin, receiver, id) = told().await;
    let path = format!("/v1/admin/webhooks/{id}/test");
    assert_eq!(
        admin.post(&path, json!({})).await.expect(200),
        json!({ "delivered": true, "status": 200 })
    );
    let seen = receiver.seen();
    let body: Value = serde_json::from_str(&seen[0].body).unwrap();
    assert_eq!(body["type"], "ping");
    assert_eq!(body["data"], json!({ "webhook_id": id }));
    receiver.will_answer(answer(503));
    let failed = admin.post(&path, json!({})).await.expect(200);
    assert_eq!(
        failed,
        json!({ "delivered": false, "status": 503, "error": "the receiver answered 503" })
    );
    let states: Vec<_> = deliveries(&admin, &id)
        .await
        .iter()
        .map(|item| item["state"].clone())
        .collect();
    assert_eq!(states, ["failed", "delivered"], "a test is not sent again");
}

#[tokio::test]
async fn another_tenants_webhooks_are_not_there() {
    let (world, admin, receiver, id) = told().await;
    let other = other_admin(&world).await;
    assert_eq!(listed(&other).await, [] as [Value; 0]);
    other
        .delete(&format!("/v1/admin/webhooks/{id}"))
        .await
        .expect(404);
    other
        .post(&format!("/v1/admin/webhooks/{id}/test"), json!({}))
        .await
        .expect(404);
    other
        .get(&format!("/v1/admin/webhooks/{id}/deliveries"))
        .await
        .expect(404);
    happens(
        &world.db.db,
        world.other.id,
        "approval.requested",
        &json!({ "whose": "theirs" }),
    )
    .await;
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({ "whose": "ours" }),
    )
    .await;
    let heard = receiver.heard(1).await;
    assert!(
        heard.len() == 1 && heard[0].body.contains("ours"),
        "{heard:?}"
    );
    assert_eq!(listed(&admin).await.len(), 1);
}

#[tokio::test]
async fn the_messages_to_a_webhook_come_in_pages_newest_first() {
    let (world, admin, receiver, id) = told().await;
    for number in 0..5 {
        happens(
            &world.db.db,
            world.tenant.id,
            "approval.requested",
            &json!({ "number": number }),
        )
        .await;
    }
    receiver.heard(5).await;
    let whole: Vec<_> = deliveries(&admin, &id)
        .await
        .iter()
        .map(|item| item["id"].clone())
        .collect();
    let (mut walked, mut next) = (Vec::new(), String::new());
    loop {
        let page = admin
            .get(&format!("/v1/admin/webhooks/{id}/deliveries?limit=2{next}"))
            .await
            .expect(200);
        walked.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["id"].clone()),
        );
        match page["next"].as_str() {
            Some(cursor) => next = format!("&before={cursor}"),
            None => break,
        }
    }
    assert_eq!(walked.len(), 5);
    assert_eq!(walked, whole);
}

#[tokio::test]
async fn without_a_key_ring_no_webhook_is_made_and_the_error_says_what_to_do() {
    let world = World::with(|setup| setup.config.ring = None).await;
    let receiver = Receiver::start().await;
    let new = json!({ "url": receiver.url(), "events": ["*"] });
    let refused = world
        .admin()
        .await
        .post("/v1/admin/webhooks", new)
        .await
        .expect(502);
    refused["detail"].says("MCP_CONFIG_ENCRYPTION_KEY");
}
