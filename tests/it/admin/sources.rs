//! Two issuers or frontends may know different people by one id, and an address is proof of nothing where nobody verified
//! it.

use std::time::Duration;

use chatelaine::app::accounts::development::DevelopmentUser;
use domain::secret::Secret;
use serde_json::{Value, json};

use super::{operator, world, world_with};
use crate::{
    accounts::fixture::{AUDIENCE, ISSUER, Provider},
    support::{client::Client, has::Has, wait::eventually, world::World},
};

const ISSUERS: &str = "/v1/admin/issuers";
const ADDRESS: &str = "boss@example.org";
/// The first source of the tenant.
const DEVELOPMENT: &str = "https://dev.chatelaine.invalid/acme";

/// The agent `bank` for admins by e-mail address.
async fn world_of_addresses() -> World {
    let world = world_with(|_| {}).await;
    let named = json!({ "userIdAttribute": "email", "adminUsers": [ADDRESS] });
    world.change_pack(json!({ "flows": { "authentication": named } }));
    world
}

/// Trusts the provider as a second source of users, or as whatever the settings say.
async fn trust(world: &World, provider: &Provider, settings: Value) -> Value {
    let mut issuer = json!({ "issuer": ISSUER, "audience": AUDIENCE, "algorithm": "EdDSA", "public_key": provider.public_pem() });
    let settings = settings.as_object().unwrap().clone();
    issuer.as_object_mut().unwrap().extend(settings);
    let path = "/v1/admin/tenants/acme/issuers";
    let answer = operator(world).post(path, issuer).await;
    assert!([200, 201].contains(&answer.status), "{}", answer.text);
    serde_json::from_str(&answer.text).unwrap()
}

/// Somebody of the provider, with these claims.
fn user(world: &World, provider: &Provider, mut claims: Value) -> Client {
    let now = world.app().clock.now().unix_timestamp();
    claims["iat"] = now.into();
    claims["exp"] = (now + 600).into();
    world.client(&provider.token(claims).into())
}

/// A key for Open WebUI, as the API shows it, and a client that speaks by it for a user.
async fn frontend(world: &World, name: &str, user: &str, settings: Value) -> (Value, Client) {
    let mut frontend = json!({ "preset": "open-webui" });
    let settings = settings.as_object().unwrap().clone();
    frontend.as_object_mut().unwrap().extend(settings);
    let new = json!({ "name": name, "frontend": frontend });
    let made = world
        .admin()
        .await
        .post("/v1/admin/keys", new)
        .await
        .expect(201);
    let client = world.client(&Secret::new(made["key"].as_str().unwrap()));
    let client = client.with_header("X-OpenWebUI-User-Id", user);
    (made, client)
}

async fn id(client: &Client) -> String {
    let me = client.get("/v1/me").await.expect(200);
    me["user"].as_str().unwrap().to_owned()
}

async fn is_admin(client: &Client) -> bool {
    let me = client.get("/v1/me").await.expect(200);
    let agents = me["agents"].as_array().unwrap();
    let bank = agents.iter().find(|agent| agent["agent"] == "bank");
    bank.unwrap()["admin"] == true
}

/// How many users' kept claims say that their address is verified.
async fn kept_addresses(world: &World) -> i64 {
    let sql = "select count(*) from users where claims->>'email_verified' = 'true'";
    sqlx::query_scalar(sql)
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_frontend_cannot_speak_for_the_users_of_an_issuer() {
    let world = world().await;
    let alice = world.user("alice", &[]).await;
    let chat = alice.open("bank").await;
    assert!(is_admin(&alice).await);
    let (key, stranger) = frontend(&world, "webui", "alice", json!({})).await;
    key.has(json!({ "user_prefix": "frontend:webui:", "trust_email": false }));
    assert_eq!(id(&stranger).await, "frontend:webui:alice");
    assert!(!is_admin(&stranger).await);
    let path = format!("/v1/conversations/{chat}");
    stranger.get(&path).await.expect(404);
    // Nor can the issuer's users take the name of a frontend's.
    let forged = world.user("frontend:webui:alice", &[]).await;
    let refused = forged.get("/v1/me").await.expect(401);
    let why = refused["detail"].as_str().unwrap();
    assert!(why.contains("starts with `frontend:`"), "{refused}");
    // The next key of the name speaks for the same users.
    let keys = world.admin().await.get("/v1/admin/keys").await.expect(200);
    assert_eq!(keys["items"][0]["user_prefix"], "frontend:webui:");
}

#[tokio::test]
async fn a_source_shares_the_users_of_another_where_the_admin_says_so() {
    let world = world().await;
    let alice = world.user("alice", &[]).await;
    let chat = alice.open("bank").await;
    let shared = json!({ "shares_users_with": DEVELOPMENT });
    let (key, same) = frontend(&world, "webui", "alice", shared).await;
    assert_eq!(key["user_prefix"], "");
    same.get(&format!("/v1/conversations/{chat}"))
        .await
        .expect(200);
    // Users of a frontend of its own, and an issuer that shares those.
    let (_, other) = frontend(&world, "chat", "ada", json!({})).await;
    let provider = Provider::new("k1");
    let shared = json!({ "shares_users_with": "chat" });
    trust(&world, &provider, shared).await;
    let ada = user(&world, &provider, json!({}));
    assert_eq!(id(&ada).await, id(&other).await);
    for unknown in ["nobody", "https://idp.invalid"] {
        let settings = json!({ "preset": "open-webui", "shares_users_with": unknown });
        let new = json!({ "name": "third", "frontend": settings });
        let refused = world
            .admin()
            .await
            .post("/v1/admin/keys", new)
            .await
            .expect(400);
        assert_eq!(refused["field"], "shares_users_with");
    }
}

#[tokio::test]
async fn users_of_an_issuer_are_the_same_after_it_was_removed_and_added_again() {
    let world = world().await;
    world.user("ada", &[]).await.get("/v1/me").await.expect(200);
    let provider = Provider::new("k1");
    let added = trust(&world, &provider, json!({})).await;
    let prefix = added["user_prefix"].as_str().unwrap().to_owned();
    assert!(prefix.starts_with("issuer:"), "{added}");
    let ada = user(&world, &provider, json!({}));
    assert_eq!(id(&ada).await, format!("{prefix}ada"));
    let admin = world.admin().await;
    let path = format!("{ISSUERS}/{}", added["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    ada.get("/v1/me").await.expect(401);
    let again = trust(&world, &provider, json!({})).await;
    assert_eq!(again["user_prefix"], prefix);
    assert_eq!(id(&ada).await, format!("{prefix}ada"));
    // The admin changes that for whoever comes next, and another replica knows of it, too.
    let replica = world.replica().await;
    let there = ada.at(&replica.url);
    assert_eq!(id(&there).await, format!("{prefix}ada"));
    let development = DEVELOPMENT;
    trust(
        &world,
        &provider,
        json!({ "shares_users_with": development }),
    )
    .await;
    assert_eq!(id(&ada).await, "ada");
    eventually(async || id(&there).await == "ada").await;
    // Its own name ends that.
    let parted = trust(&world, &provider, json!({ "shares_users_with": ISSUER })).await;
    assert_eq!(parted["user_prefix"], prefix);
    assert_eq!(id(&ada).await, format!("{prefix}ada"));
}

#[tokio::test]
async fn an_address_makes_an_admin_only_where_it_is_verified() {
    let world = world_of_addresses().await;
    let provider = Provider::new("k1");
    trust(&world, &provider, json!({})).await;
    let cases = [
        (json!({ "email": ADDRESS, "email_verified": true }), true),
        (json!({ "email": ADDRESS, "email_verified": "true" }), true),
        (json!({ "email": ADDRESS, "email_verified": false }), false),
        (
            json!({ "email": ADDRESS, "email_verified": "false" }),
            false,
        ),
        (json!({ "email": ADDRESS, "email_verified": null }), false),
        (json!({ "email": ADDRESS, "email_verified": 1 }), false),
        (json!({ "email": ADDRESS }), false),
        (
            json!({ "email": "other@example.org", "email_verified": true }),
            false,
        ),
        (json!({}), false),
    ];
    eventually(async || is_admin(&user(&world, &provider, cases[0].0.clone())).await).await;
    for (claims, expected) in cases {
        let admitted = is_admin(&user(&world, &provider, claims.clone())).await;
        assert_eq!(admitted, expected, "{claims}");
    }
    let added = trust(&world, &provider, json!({ "trust_email": true })).await;
    assert_eq!(added["trust_email"], true);
    let silent = user(&world, &provider, json!({ "email": ADDRESS }));
    assert!(is_admin(&silent).await, "the issuer is trusted");
    let unverified = json!({ "email": ADDRESS, "email_verified": false });
    let unverified = user(&world, &provider, unverified);
    assert!(
        !is_admin(&unverified).await,
        "the issuer says that it is not"
    );
    // The keys change, and what was said about the users stays.
    let kept = trust(&world, &provider, json!({})).await;
    assert_eq!(kept["trust_email"], true);
    // Taken back, the trust is gone from what is kept of the users, too: it decides about what they have waiting. What the
    // token of a later second says is kept.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let silent = user(&world, &provider, json!({ "email": ADDRESS }));
    eventually(async || is_admin(&silent).await && kept_addresses(&world).await == 1).await;
    trust(&world, &provider, json!({ "trust_email": false })).await;
    assert_eq!(kept_addresses(&world).await, 0);
    assert!(!is_admin(&silent).await);
}

#[tokio::test]
async fn distrust_of_a_source_spares_addresses_that_another_verified() {
    let world = world_of_addresses().await;
    let provider = Provider::new("k1");
    let boss = DevelopmentUser {
        user: "boss".to_owned(),
        email: Some(ADDRESS.to_owned()),
        ..Default::default()
    };
    let boss = world.someone(&boss).await;
    let settings = json!({ "trust_email": true, "shares_users_with": DEVELOPMENT });
    trust(&world, &provider, settings).await;
    let verified = json!({ "email": ADDRESS, "email_verified": true });
    let verified = user(&world, &provider, verified);
    eventually(async || {
        is_admin(&boss).await && is_admin(&verified).await && kept_addresses(&world).await == 2
    })
    .await;
    trust(&world, &provider, json!({ "trust_email": false })).await;
    assert_eq!(kept_addresses(&world).await, 1, "the first source's");
    // What a token says itself is written again.
    eventually(async || is_admin(&verified).await && kept_addresses(&world).await == 2).await;
}

#[tokio::test]
async fn an_address_from_a_frontend_counts_where_the_frontend_is_trusted_with_it() {
    let world = world_of_addresses().await;
    let header = "X-OpenWebUI-User-Email";
    let (_, evil) = frontend(&world, "open", "evil", json!({})).await;
    let (key, boss) = frontend(&world, "staff", "boss", json!({ "trust_email": true })).await;
    assert_eq!(key["trust_email"], true);
    let boss = boss.with_header(header, ADDRESS);
    eventually(async || is_admin(&boss).await).await;
    let evil = evil.with_header(header, ADDRESS);
    assert!(!is_admin(&evil).await);
    let path = "/v1/agents/bank/tools?explain=true&user=frontend:staff:boss";
    evil.get(path).await.expect(403);
}
