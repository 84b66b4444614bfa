//! Keys over the API: shown once, listed without what opens, revoked for good.

use serde_json::{Value, json};

use super::{field, line, operator, trail, world};
use crate::support::{client::Client, has::Has, wait::eventually, world::World};

const KEYS: &str = "/v1/admin/keys";

/// Makes a key; its view, and whoever holds it.
async fn made(world: &World, admin: &Client, new: Value) -> (Value, Client) {
    let made = admin.post(KEYS, new).await.expect(201);
    let holder = world.client(&made["key"].as_str().unwrap().to_owned().into());
    (made, holder)
}

#[tokio::test]
async fn a_key_is_shown_once_works_and_ends_everywhere_when_it_is_revoked() {
    let world = World::start().await;
    let (admin, replica) = (world.admin().await, world.replica().await);
    let (key, holder) = made(
        &world,
        &admin,
        json!({ "name": "nightly", "claims": { "roles": ["finance"] } }),
    )
    .await;
    let there = holder.at(&replica.url);
    assert_eq!(there.get("/v1/me").await.expect(200)["user"], "key:nightly");
    let secret = key["key"].as_str().unwrap();
    assert!(secret.starts_with(&format!("chk_{}_", key["prefix"].as_str().unwrap())));
    let listed = admin.get(KEYS).await;
    let item = &listed.expect(200)["items"][0];
    item.has(json!({ "id": key["id"], "state": "live", "kind": "service", "scopes": ["chat"] }));
    assert_eq!(item["claims"], json!({ "roles": ["finance"] }));
    let hidden = secret.rsplit('_').next().unwrap();
    assert!(!listed.text.contains(hidden), "{}", listed.text);
    assert_eq!(admin.delete(&path(&key)).await.status, 204);
    for client in [&holder, &there] {
        eventually(async || client.get("/v1/me").await.status == 401).await;
    }
    assert_eq!(
        admin.get(KEYS).await.expect(200)["items"][0]["state"],
        "revoked"
    );
    let name = format!(
        "nightly ({}): service, chat",
        key["prefix"].as_str().unwrap()
    );
    let lines = trail(&world, world.tenant.id, "key.%").await;
    assert_eq!(
        lines,
        [
            line("root", "key.created", &name),
            line("root", "key.revoked", &name)
        ]
    );
    let told = admin.get("/v1/admin/audit?action=key.").await;
    assert!(!told.text.contains(hidden));
}

fn path(key: &Value) -> String {
    format!("{KEYS}/{}", key["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_frontends_key_speaks_for_its_users_by_the_headers_that_were_said() {
    let world = World::shared().await;
    let admin = world.admin().await;
    let (_, webui) = made(
        &world,
        &admin,
        json!({ "name": "webui", "frontend": { "preset": "open-webui" } }),
    )
    .await;
    webui.get("/v1/me").await.expect(401);
    let ann = webui.clone().with_header("X-OpenWebUI-User-Id", "ann");
    assert_eq!(
        ann.get("/v1/me").await.expect(200)["user"],
        "frontend:webui:ann"
    );
    let other =
        json!({ "name": "own", "frontend": { "preset": "librechat", "user_id": "X-Person" } });
    let (key, own) = made(&world, &admin, other).await;
    assert_eq!(key["frontend"]["user_id"], "X-Person");
    assert_eq!(
        key["frontend"]["roles"], "X-LibreChat-User-Role",
        "the preset's"
    );
    assert_eq!(
        own.with_header("X-Person", "bob")
            .get("/v1/me")
            .await
            .expect(200)["user"],
        "frontend:own:bob"
    );
}

#[tokio::test]
async fn what_cannot_be_a_key_is_refused_by_its_field() {
    let world = World::shared().await;
    let admin = world.admin().await;
    let frontend = |settings: Value| json!({ "name": "one", "frontend": settings });
    let cases = [
        (json!({}), "name"),
        (json!({ "name": "No" }), "name"),
        (json!({ "name": "one", "scopes": [] }), "scopes"),
        (json!({ "name": "one", "scopes": ["root"] }), "scopes"),
        (json!({ "name": "one", "claims": [] }), "claims"),
        (
            json!({ "name": "one", "claims": { "a": "b\0c" } }),
            "claims",
        ),
        (
            json!({ "name": "one", "claims": { "a": "b".repeat(9000) } }),
            "claims",
        ),
        (
            json!({ "name": "one", "expires_at": "2020-01-01T00:00:00Z" }),
            "expires_at",
        ),
        (
            json!({ "name": "one", "expires_at": "tomorrow" }),
            "expires_at",
        ),
        (json!({ "name": "one", "secret": "mine" }), "secret"),
        (frontend(json!({})), "frontend"),
        (frontend(json!({ "name": "X-Name" })), "frontend"),
        (frontend(json!({ "user_id": "not a header" })), "frontend"),
        (frontend(json!({ "user_id": "Authorization" })), "frontend"),
        (frontend(json!({ "preset": "irc" })), "frontend.preset"),
        (
            json!({ "name": "one", "frontend": { "preset": "librechat" }, "claims": {} }),
            "claims",
        ),
        (
            json!({ "name": "one", "scopes": ["admin"], "frontend": { "preset": "librechat" } }),
            "scopes",
        ),
    ];
    for (body, wanted) in cases {
        let problem = admin.post(KEYS, body.clone()).await.expect(400);
        assert_eq!(problem["field"], wanted, "{body}: {problem}");
    }
    assert_eq!(
        admin.get(KEYS).await.expect(200)["items"],
        json!([]),
        "nothing was made"
    );
    assert!(trail(&world, world.tenant.id, "key.%").await.is_empty());
}

#[tokio::test]
async fn of_two_admins_who_revoke_a_key_at_once_the_second_is_told_when_it_was() {
    let world = World::shared().await;
    let admin = world.admin().await;
    let (key, _) = made(&world, &admin, json!({ "name": "nightly" })).await;
    let path = path(&key);
    let (one, two) = tokio::join!(admin.delete(&path), admin.delete(&path));
    let (done, late) = if one.status == 204 {
        (one, two)
    } else {
        (two, one)
    };
    assert_eq!(done.status, 204);
    let problem = late.expect(409);
    assert_eq!(problem["code"], "already_revoked");
    let since = admin.get(KEYS).await.expect(200)["items"][0]["revoked_at"]
        .as_str()
        .unwrap()
        .to_owned();
    problem["detail"].says(&format!("is revoked already, since {since}"));
    assert_eq!(trail(&world, world.tenant.id, "key.revoked").await.len(), 1);
}

#[tokio::test]
async fn of_two_admins_who_make_a_key_of_one_name_at_once_one_does() {
    let world = World::shared().await;
    let admin = world.admin().await;
    let make = || admin.post(KEYS, json!({ "name": "nightly" }));
    let (one, two) = tokio::join!(make(), make());
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
    assert_eq!(
        field(&admin.get(KEYS).await.expect(200), "name"),
        ["nightly"]
    );
    assert_eq!(trail(&world, world.tenant.id, "key.created").await.len(), 1);
}

#[tokio::test]
async fn keys_of_others_and_of_guests_are_not_there() {
    let world = world().await;
    let (admin, operator) = (world.admin().await, operator(&world));
    world.guest().await;
    let guest: uuid::Uuid = sqlx::query_scalar("select id from api_keys where kind = 'guest'")
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    let theirs = operator
        .post("/v1/admin/tenants/globex/keys", json!({ "name": "theirs" }))
        .await
        .expect(201);
    admin.delete(&path(&theirs)).await.expect(404);
    admin.delete(&format!("{KEYS}/{guest}")).await.expect(404);
    admin.delete(&format!("{KEYS}/no-id")).await.expect(404);
    assert_eq!(admin.get(KEYS).await.expect(200)["items"], json!([]));
    // Nor by way of another tenant.
    let by_way = format!(
        "/v1/admin/tenants/acme/keys/{}",
        theirs["id"].as_str().unwrap()
    );
    operator.delete(&by_way).await.expect(404);
    assert_eq!(
        operator
            .delete(&by_way.replace("acme", "globex"))
            .await
            .status,
        204
    );
    let lines = trail(&world, world.other.id, "key.%").await;
    let actors: Vec<&str> = lines.iter().map(|line| line.0.as_str()).collect();
    assert_eq!(actors, ["operator", "operator"]);
}

#[tokio::test]
async fn keys_are_listed_in_pages_the_newest_first() {
    let world = World::shared().await;
    let admin = world.admin().await;
    for name in ["one", "two", "three"] {
        made(&world, &admin, json!({ "name": name })).await;
    }
    let page = admin.get(&format!("{KEYS}?limit=2")).await.expect(200);
    assert_eq!(field(&page, "name"), ["three", "two"]);
    let rest = admin
        .get(&format!(
            "{KEYS}?limit=2&before={}",
            page["next"].as_str().unwrap()
        ))
        .await
        .expect(200);
    assert_eq!(
        (field(&rest, "name"), rest.get("next")),
        (vec!["one".to_owned()], None)
    );
}
