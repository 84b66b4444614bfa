//! A tenant on hold: nobody of it gets in, nothing of it runs, and all of it is there afterwards. And one that is
//! removed.

use domain::{
    account::KeyKind,
    principal::{Scope, Scopes},
};
use serde_json::{Map, Value, json};

use super::{line, operator, patch, trail, with_operator, world};
use crate::support::{
    has::Has,
    many::connections_of,
    model::{Gate, text},
    wait::eventually,
    world::{TIME_LIMIT, World},
};

const ACME: &str = "/v1/admin/tenants/acme";

async fn suspend(world: &World) {
    let suspended = patch(&operator(world), ACME, json!({ "suspended": true }))
        .await
        .expect(200);
    assert_eq!(suspended["suspended"], true);
    assert!(suspended["suspended_at"].is_string());
}

#[tokio::test]
async fn nobody_of_a_suspended_tenant_gets_in_on_any_replica_until_it_is_resumed() {
    let world = world().await;
    let replica = world.replica().await;
    let key = world
        .key(
            "nightly",
            Scopes::new([Scope::Chat, Scope::Admin]),
            KeyKind::Service(Map::new()),
        )
        .await;
    let callers = [
        world.user("ann", &[]).await,
        world.frontend("bob").await,
        world.guest().await,
        world.client(&key),
    ];
    let stranger = world.stranger("eve").await;
    for caller in &callers {
        caller.get("/v1/me").await.expect(200);
        caller.at(&replica.url).get("/v1/me").await.expect(200);
    }
    suspend(&world).await;
    for caller in &callers {
        let refused = caller.get("/v1/me").await.expect(403);
        assert_eq!(refused["code"], "tenant_suspended");
        refused["detail"].says("the tenant acme is suspended");
        let there = caller.at(&replica.url);
        eventually(async || there.get("/v1/me").await.status == 403).await;
    }
    world
        .nobody()
        .post("/v1/guests", json!({ "tenant": "acme" }))
        .await
        .expect(404);
    stranger.get("/v1/me").await.expect(200);
    patch(&operator(&world), ACME, json!({ "suspended": false }))
        .await
        .expect(200);
    for caller in &callers {
        caller.get("/v1/me").await.expect(200);
        let there = caller.at(&replica.url);
        eventually(async || there.get("/v1/me").await.status == 200).await;
    }
}

#[tokio::test]
async fn what_runs_is_stopped_and_who_listens_is_let_go() {
    let world = world().await;
    let replica = world.replica().await;
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let conversation = ann.open("bank").await;
    let (here, there) = (
        ann.listen(&conversation, None).await,
        ann.at(&replica.url).listen(&conversation, None).await,
    );
    let run = ann.say(&conversation, "hi").await;
    gate.reached().await;
    suspend(&world).await;
    for listening in [here, there] {
        tokio::time::timeout(TIME_LIMIT, listening.rest())
            .await
            .expect("the stream ends");
    }
    eventually(async || status(&world, &run).await == "cancelled").await;
    patch(&operator(&world), ACME, json!({ "suspended": false }))
        .await
        .expect(200);
    world.model.on(|_| Some(text("Here again.")));
    assert_eq!(
        ann.say_and_wait(&conversation, "again").await["status"],
        "succeeded",
        "nothing was lost"
    );
}

async fn status(world: &World, run: &str) -> String {
    let sql = "select status from runs where id = $1::uuid";
    sqlx::query_scalar(sql)
        .bind(run)
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_suspended_tenants_servers_are_left_and_found_again() {
    let world = World::with(|setup| {
        with_operator(setup);
        setup.change_server(json!({ "instances": "per-tenant" }));
    })
    .await;
    let ready = [("bank", "ready")];
    let (ann, eve) = (world.user("ann", &[]).await, world.stranger("eve").await);
    connections_of(&ann, "bank", &ready).await;
    connections_of(&eve, "bank", &ready).await;
    assert_eq!(world.app().connections.count().0, 2);
    suspend(&world).await;
    eventually(async || world.app().connections.count().0 == 1).await;
    patch(&operator(&world), ACME, json!({ "suspended": false }))
        .await
        .expect(200);
    connections_of(&ann, "bank", &ready).await;
}

#[tokio::test]
async fn it_is_written_down_once_however_many_say_it() {
    let world = world().await;
    let operator = operator(&world);
    let at_once = (0..4).map(|_| patch(&operator, ACME, json!({ "suspended": true })));
    for answer in futures_util::future::join_all(at_once).await {
        answer.expect(200);
    }
    patch(&operator, ACME, json!({ "suspended": false }))
        .await
        .expect(200);
    let lines = trail(&world, world.tenant.id, "tenant.%").await;
    let expected = ["tenant.created", "tenant.suspended", "tenant.resumed"]
        .map(|action| line("operator", action, "acme"));
    assert_eq!(lines, expected);
    assert_eq!(
        operators_trail(&world, "acme (%").await,
        ["tenant.created", "tenant.suspended", "tenant.resumed"]
    );
}

async fn operators_trail(world: &World, detail: &str) -> Vec<String> {
    let sql = "select action from operator_audit where action like 'tenant.%' and detail like $1 order by id";
    sqlx::query_scalar(sql)
        .bind(detail)
        .fetch_all(&mut world.db.as_system().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_tenant_is_removed_with_everything_when_its_name_is_said_twice() {
    let world = world().await;
    let (operator, replica) = (operator(&world), world.replica().await);
    world.model.on(|_| Some(text("Hello.")));
    let (ann, admin, eve) = (
        world.user("ann", &[]).await,
        world.admin().await,
        world.stranger("eve").await,
    );
    let conversation = ann.open("bank").await;
    ann.say_and_wait(&conversation, "hi").await;
    admin
        .send(
            admin
                .request(http::Method::PUT, "/v1/secrets/token")
                .json(&json!({ "value": "v" })),
        )
        .await;
    admin
        .post("/v1/admin/keys", json!({ "name": "nightly" }))
        .await
        .expect(201);
    let theirs = eve.open("bank").await;
    for path in [
        ACME.to_owned(),
        format!("{ACME}?confirm=globex"),
        format!("{ACME}?confirm="),
    ] {
        let refused = operator.delete(&path).await.expect(400);
        assert_eq!(refused["field"], "confirm");
    }
    ann.get("/v1/me").await.expect(200);
    ann.at(&replica.url).get("/v1/me").await.expect(200);
    let listening = ann.listen(&conversation, None).await;
    assert_eq!(
        operator
            .delete(&format!("{ACME}?confirm=acme"))
            .await
            .status,
        204
    );
    tokio::time::timeout(TIME_LIMIT, listening.rest())
        .await
        .expect("the stream ends");
    let refused = ann.get("/v1/me").await.expect(401);
    // After a second or so the tenant's issuer is forgotten, too.
    let why = refused["detail"].as_str().unwrap();
    assert!(
        why.contains("gone") || why.contains("no tenant trusts"),
        "{refused}"
    );
    let there = ann.at(&replica.url);
    eventually(async || there.get("/v1/me").await.status == 401).await;
    operator.get(ACME).await.expect(404);
    operator
        .delete(&format!("{ACME}?confirm=acme"))
        .await
        .expect(404);
    for table in [
        "conversations",
        "runs",
        "messages",
        "secrets",
        "tenant_keys",
        "api_keys",
        "issuers",
        "audit",
        "usage",
    ] {
        let sql = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
        let left: i64 = sqlx::query_scalar(sql)
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
        assert_eq!(left, 0, "{table}");
    }
    assert_eq!(
        operators_trail(&world, &world.tenant.id.to_string()).await,
        ["tenant.removed"]
    );
    eve.get(&format!("/v1/conversations/{theirs}"))
        .await
        .expect(200);
    let again = operator
        .post("/v1/admin/tenants", json!({ "name": "acme" }))
        .await
        .expect(201);
    assert_ne!(
        again["id"],
        Value::from(world.tenant.id.to_string()),
        "its name is free, and nothing comes back"
    );
}
