//! Issuers over the API: what the command line refuses is refused here, and what one tenant must not do to another.

use serde_json::{Value, json};

use axum::{body::Body, response::Response as Answer};

use super::{field, line, operator, trail, world, world_with};
use crate::{
    accounts::fixture::{AUDIENCE, ISSUER, Provider, Published},
    support::{
        client::Client,
        has::Has,
        origin::Origin,
        wait::eventually,
        world::{TIME_LIMIT, World},
    },
};

const ISSUERS: &str = "/v1/admin/issuers";

fn issuer(provider: &Provider) -> Value {
    json!({ "issuer": ISSUER, "audience": AUDIENCE, "algorithm": "EdDSA", "public_key": provider.public_pem() })
}

/// Somebody whom the provider vouches for.
fn user(world: &World, provider: &Provider) -> Client {
    let now = world.app().clock.now().unix_timestamp();
    world.client(
        &provider
            .token(json!({ "iat": now, "exp": now + 600 }))
            .into(),
    )
}

/// The operator lets a tenant trust the issuer, which is then the tenant's admins' to manage.
async fn introduce(world: &World) {
    let mut known = issuer(&Provider::new("k0"));
    known["audience"] = "of the operator".into();
    let path = "/v1/admin/tenants/acme/issuers";
    operator(world).post(path, known).await.expect(201);
}

#[tokio::test]
async fn an_issuer_that_is_new_to_the_installation_is_the_operators_to_add() {
    let world = world().await;
    let (admin, provider) = (world.admin().await, Provider::new("k1"));
    let development = "https://dev.chatelaine.invalid/globex";
    for name in [ISSUER, development] {
        let mut new = issuer(&provider);
        new["issuer"] = name.into();
        let refused = admin.post(ISSUERS, new).await.expect(409);
        assert_eq!(refused["code"], "issuer_not_allowed");
        let why = refused["detail"].as_str().unwrap();
        assert!(why.contains("ask whoever runs"), "{refused}");
    }
    user(&world, &provider).get("/v1/me").await.expect(401);
    introduce(&world).await;
    admin.post(ISSUERS, issuer(&provider)).await.expect(201);
}

#[tokio::test]
async fn what_the_operator_allows_packs_to_reach_is_not_for_tenants() {
    let world = world_with(|setup| setup.config.tenant_egress_allow.clear()).await;
    introduce(&world).await;
    let keys = json!({ "issuer": ISSUER, "audience": AUDIENCE, "algorithm": "RS256", "jwks_url": "http://127.0.0.1:1/keys" });
    let refused = world.admin().await.post(ISSUERS, keys.clone()).await;
    assert_eq!(refused.expect(400)["field"], "jwks_url");
    let path = "/v1/admin/tenants/acme/issuers";
    operator(&world).post(path, keys).await.expect(201);
    let hook = json!({ "url": "http://127.0.0.1:1/hook", "events": ["*"] });
    let refused = world.admin().await.post("/v1/admin/webhooks", hook).await;
    assert_eq!(refused.expect(400)["field"], "url");
    let entry = json!({ "id": "inside", "name": "Inside", "description": "x", "url": "http://127.0.0.1:1/mcp" });
    let refused = world.admin().await.post("/mcp-servers", entry).await;
    let refused = refused.expect(400);
    refused["detail"].says("not in egress allowlist");
}

#[tokio::test]
async fn an_issuer_that_an_admin_trusts_vouches_for_users_until_it_is_removed() {
    let world = world().await;
    introduce(&world).await;
    let (admin, provider) = (world.admin().await, Provider::new("k1"));
    let ada = user(&world, &provider);
    let added = admin.post(ISSUERS, issuer(&provider)).await.expect(201);
    assert_eq!(ada.get("/v1/me").await.expect(200)["user"], "ada");
    let me = admin.get("/v1/me").await.expect(200);
    let root = me["user"].as_str().unwrap();
    let listed = admin.get(ISSUERS).await.expect(200);
    assert!(
        listed["items"].as_array().unwrap().contains(&added),
        "{listed}"
    );
    let path = format!("{ISSUERS}/{}", added["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    admin.delete(&path).await.expect(404);
    ada.get("/v1/me").await.expect(401);
    let lines = trail(&world, world.tenant.id, "issuer.%").await;
    let ours: Vec<_> = lines.into_iter().filter(|line| line.0 == root).collect();
    let (stored, removed) = (
        format!("{ISSUER} for {AUDIENCE}, EdDSA"),
        format!("{ISSUER} for {AUDIENCE}"),
    );
    assert_eq!(
        ours,
        [
            line(root, "issuer.stored", &stored),
            line(root, "issuer.removed", &removed)
        ]
    );
}

#[tokio::test]
async fn who_listens_is_sent_away_on_every_replica_when_their_issuer_is_removed() {
    let world = world().await;
    introduce(&world).await;
    let (admin, provider) = (world.admin().await, Provider::new("k1"));
    let added = admin.post(ISSUERS, issuer(&provider)).await.expect(201);
    let replica = world.replica().await;
    let here = user(&world, &provider);
    let there = here.at(&replica.url);
    let chat = here.open("bank").await;
    let bystander = world.user("ann", &[]).await;
    let other = bystander.open("bank").await;
    let mut stays = bystander.listen(&other, None).await;
    let streams = [
        here.listen(&chat, None).await,
        there.listen(&chat, None).await,
    ];
    let path = format!("{ISSUERS}/{}", added["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    here.get("/v1/me").await.expect(401);
    for stream in streams {
        tokio::time::timeout(TIME_LIMIT, stream.rest())
            .await
            .expect("the stream ends");
    }
    eventually(async || there.get("/v1/me").await.status == 401).await;
    world.model.reply(crate::support::model::text("Hello."));
    let run = bystander.say(&other, "hello").await;
    stays.until_run_ends(&run).await;
}

#[tokio::test]
async fn an_admin_does_not_remove_the_last_issuer() {
    let world = world().await;
    let admin = world.admin().await;
    let known = admin.get(ISSUERS).await.expect(200);
    let [last] = known["items"].as_array().unwrap().as_slice() else {
        panic!("{known}")
    };
    let path = format!("{ISSUERS}/{}", last["id"].as_str().unwrap());
    let refused = admin.delete(&path).await.expect(409);
    assert_eq!(refused["code"], "last_issuer");
}

#[tokio::test]
async fn keys_of_an_issuer_are_replaced_in_place() {
    let world = world().await;
    introduce(&world).await;
    let (admin, before, after) = (
        world.admin().await,
        Provider::new("k1"),
        Provider::new("k2"),
    );
    let added = admin.post(ISSUERS, issuer(&before)).await.expect(201);
    let replaced = admin.post(ISSUERS, issuer(&after)).await.expect(200);
    assert_eq!(added["id"], replaced["id"]);
    user(&world, &after).get("/v1/me").await.expect(200);
    user(&world, &before).get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn what_cannot_vouch_for_anybody_is_refused_by_its_field() {
    let world = world_with(|setup| {
        setup.config.egress_allow = Vec::new();
        setup.config.tenant_egress_allow = Vec::new();
    })
    .await;
    let (admin, operator) = (world.admin().await, operator(&world));
    let pem = Provider::new("k1").public_pem();
    let with = |algorithm: &str, field: &str, value: &str| json!({ "issuer": ISSUER, "audience": AUDIENCE, "algorithm": algorithm, field: value });
    let cases = [
        (json!({}), "issuer"),
        (
            json!({ "issuer": ISSUER, "audience": AUDIENCE }),
            "jwks_url",
        ),
        (
            with("RS256", "jwks_url", "http://idp.example/keys"),
            "jwks_url",
        ),
        (
            with("RS256", "jwks_url", "https://127.0.0.1/keys"),
            "jwks_url",
        ),
        (
            with("RS256", "jwks_url", "https://[::ffff:10.0.0.1]/keys"),
            "jwks_url",
        ),
        (with("RS256", "jwks_url", "file:///etc/passwd"), "jwks_url"),
        (
            with("RS256", "jwks_url", "https://user:pass@idp.example/keys"),
            "jwks_url",
        ),
        (
            with("none", "jwks_url", "https://idp.example/keys"),
            "algorithm",
        ),
        (
            with("HS256", "jwks_url", "https://idp.example/keys"),
            "algorithm",
        ),
        (with("HS256", "public_key", &pem), "algorithm"),
        (with("RS256", "public_key", &pem), "public_key"),
        (
            with("EdDSA", "public_key", &pem.replace("PUBLIC", "PRIVATE")),
            "public_key",
        ),
        (with("RS256", "secret", "mine"), "secret"),
        (
            json!({ "issuer": "", "audience": AUDIENCE, "jwks_url": "https://idp.example/keys" }),
            "issuer",
        ),
        (
            json!({ "issuer": ISSUER, "audience": "a\0b", "jwks_url": "https://idp.example/keys" }),
            "audience",
        ),
    ];
    for (body, wanted) in cases {
        for (caller, path) in [
            (&admin, ISSUERS),
            (&operator, "/v1/admin/tenants/acme/issuers"),
        ] {
            let problem = caller.post(path, body.clone()).await.expect(400);
            assert_eq!(problem["field"], wanted, "{body}: {problem}");
        }
    }
    let twice = json!({ "issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://idp.example/k", "public_key": pem });
    admin.post(ISSUERS, twice).await.expect(400);
    assert!(!field(&admin.get(ISSUERS).await.expect(200), "issuer").contains(&ISSUER.to_owned()));
}

#[tokio::test]
async fn only_the_operator_names_a_variable_of_the_environment() {
    let world = world().await;
    let new = json!({ "issuer": ISSUER, "audience": AUDIENCE, "algorithm": "HS256", "secret_env": "IDP_SECRET" });
    let refused = world
        .admin()
        .await
        .post(ISSUERS, new.clone())
        .await
        .expect(400);
    assert_eq!(refused["field"], "secret_env");
    let added = operator(&world)
        .post("/v1/admin/tenants/acme/issuers", new)
        .await
        .expect(201);
    assert_eq!(added["secret_env"], "IDP_SECRET");
}

#[tokio::test]
async fn no_admin_meddles_with_the_issuer_of_another_tenant() {
    let world = world().await;
    let (admin, operator, provider) = (world.admin().await, operator(&world), Provider::new("k1"));
    let theirs = "/v1/admin/tenants/globex/issuers";
    let added = operator.post(theirs, issuer(&provider)).await.expect(201);
    let ada = user(&world, &provider);
    assert_eq!(
        ada.get("/v1/me").await.expect(200)["tenant"],
        world.other.id.to_string()
    );
    // Not even with another audience: a token with both would be refused.
    for audience in [AUDIENCE, "another"] {
        let mut new = issuer(&Provider::new("k1"));
        new["audience"] = audience.into();
        let refused = admin.post(ISSUERS, new).await.expect(409);
        refused["detail"].says("vouches for users of another tenant");
    }
    admin
        .delete(&format!("{ISSUERS}/{}", added["id"].as_str().unwrap()))
        .await
        .expect(404);
    let mut shared = issuer(&provider);
    shared["audience"] = "another".into();
    operator
        .post("/v1/admin/tenants/acme/issuers", shared)
        .await
        .expect(201);
    operator
        .post("/v1/admin/tenants/acme/issuers", issuer(&provider))
        .await
        .expect(409);
    let path = format!("{theirs}/{}", added["id"].as_str().unwrap());
    assert_eq!(operator.delete(&path).await.status, 204);
    assert_eq!(operator.get(theirs).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn an_issuer_is_trusted_from_the_moment_on_at_which_an_admin_adds_it() {
    let world = world().await;
    let (admin, provider) = (world.admin().await, Provider::new("k1"));
    introduce(&world).await;
    let someone = user(&world, &provider);
    // What is known of the issuer is remembered with this look at it.
    someone.get("/v1/me").await.expect(401);
    admin.post(ISSUERS, issuer(&provider)).await.expect(201);
    someone.get("/v1/me").await.expect(200);
}

/// An issuer with its keys at an address.
fn publishing(url: &str) -> Value {
    json!({ "issuer": ISSUER, "audience": AUDIENCE, "algorithm": "EdDSA", "jwks_url": url })
}

#[tokio::test]
async fn a_redirect_of_a_tenants_key_set_stays_under_the_rules_for_tenants() {
    let provider = Provider::new("k1");
    let inside = Published::new(&[provider.jwk()]).await;
    let target = inside.origin.url("/internal").to_string();
    let hop = Origin::start(move |_| {
        Answer::builder()
            .status(302)
            .header("location", &target)
            .body(Body::empty())
            .unwrap()
    })
    .await;
    let allowed = hop.address.to_string();
    // The operator's own list has all of 127.0.0.1.
    let world = world_with(|setup| setup.config.tenant_egress_allow = vec![allowed]).await;
    introduce(&world).await;
    let at = hop.url("/keys").to_string();
    let admin = world.admin().await;
    admin.post(ISSUERS, publishing(&at)).await.expect(201);
    user(&world, &provider).get("/v1/me").await.expect(502);
    assert_eq!((hop.seen().len(), inside.fetches()), (1, 0));
    // What the operator writes follows the operator's list.
    let path = "/v1/admin/tenants/acme/issuers";
    operator(&world)
        .post(path, publishing(&at))
        .await
        .expect(200);
    user(&world, &provider).get("/v1/me").await.expect(200);
    assert_eq!(inside.fetches(), 1);
}

#[tokio::test]
async fn a_key_set_that_tenants_may_name_is_fetched_by_the_list_for_tenants() {
    let provider = Provider::new("k1");
    let published = Published::new(&[provider.jwk()]).await;
    let at = published.origin.address.to_string();
    let world = world_with(|setup| {
        setup.config.egress_allow.clear();
        setup.config.tenant_egress_allow = vec![at];
    })
    .await;
    introduce(&world).await;
    let url = published.origin.url("/keys").to_string();
    let admin = world.admin().await;
    admin.post(ISSUERS, publishing(&url)).await.expect(201);
    user(&world, &provider).get("/v1/me").await.expect(200);
    assert_eq!(published.fetches(), 1);
}
