//! Users as their tenant's admins see them, and an end to what they have.

use std::time::Duration;

use chatelaine::{
    app::{accounts::development, platform::keys::contexts},
    cli::user,
};
use domain::{
    account::{FrontendHeaders, KeyKind},
    credential::CredentialRef,
    ids::{AgentId, CredentialId, ServerId, UserId},
    principal::{Scope, Scopes},
    session::SignOut,
};
use serde_json::{Map, Value, json};

use super::{field, line, trail};
use crate::support::{
    bank::pair,
    client::Client,
    has::Has,
    model::{Gate, text},
    wait::eventually,
    world::{TIME_LIMIT, World},
};

const USERS: &str = "/v1/admin/users";

/// Something that a user entered for a personal server.
async fn enter(world: &World, user: &str, server: &str) {
    let (app, tenant) = (world.app(), world.tenant.id);
    let credential = CredentialRef {
        tenant,
        user: UserId(user.into()),
        agent: AgentId::parse("bank").unwrap(),
        server: ServerId::parse(server).unwrap(),
        id: CredentialId::new(),
        generation: 1,
    };
    let secret = "a-token-of-theirs".to_owned().into();
    let sealed = app
        .keys
        .seal(tenant, &contexts::of_credential(&credential), &secret)
        .await;
    let mut tx = world.db.db.tenant(tenant).await.unwrap();
    store::credentials::put(&mut tx, &credential, &sealed.unwrap(), None)
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_user_is_seen_with_what_they_have_and_used() {
    let world = World::start().await;
    world.tools_ready().await;
    world.model.on(|_| Some(text("Hello.")));
    let (admin, ann) = (
        world.admin().await,
        world.user("ann@example.org/1", &["employee"]).await,
    );
    let path = format!("{USERS}/ann%40example.org%2F1");
    admin.get(&path).await.expect(404);
    let conversation = ann.open("bank").await;
    ann.say_and_wait(&conversation, "hi").await;
    ann.say_and_wait(
        &conversation,
        &format!("/call bank get_exchange_rate {}", pair()),
    )
    .await;
    ann.open("office").await;
    enter(&world, "ann@example.org/1", "notes").await;
    // Lines of the audit trail come a moment later.
    eventually(async || admin.get(&path).await.expect(200)["tool_calls_today"] == 1).await;
    let mut seen = admin.get(&path).await.expect(200);
    let last = seen.as_object_mut().unwrap().remove("last_seen").unwrap();
    let agents = seen.as_object_mut().unwrap().remove("agents").unwrap();
    let bank = json!({ "agent": "bank", "roles": ["employee"], "admin": false });
    assert!(agents.as_array().unwrap().contains(&bank), "{agents}");
    let expected = json!({
        "id": "ann@example.org/1", "conversations": 2, "open_approvals": 0,
        "credentials": [{ "agent": "bank", "server": "notes", "state": "active" }],
        "runs_today": 1, "tokens_today": 18, "tool_calls_today": 1,
    });
    assert_eq!(seen, expected);
    let last = time::OffsetDateTime::parse(
        last.as_str().unwrap(),
        &time::format_description::well_known::Rfc3339,
    );
    assert!((world.app().clock.now() - last.unwrap()).abs() < time::Duration::minutes(1));
    // Seen even when the conversations are gone.
    for id in field(&ann.get("/v1/conversations").await.expect(200), "id") {
        assert_eq!(
            ann.delete(&format!("/v1/conversations/{id}")).await.status,
            204
        );
    }
    assert_eq!(admin.get(&path).await.expect(200)["conversations"], 0);
}

#[tokio::test]
async fn users_are_listed_in_pages_by_id_and_found_by_how_it_begins() {
    let world = World::start().await;
    let admin = world.admin().await;
    for user in ["ann", "anton", "bob", "an_other"] {
        world.user(user, &[]).await.open("bank").await;
    }
    enter(&world, "anyone", "notes").await;
    world.stranger("andrew").await.open("bank").await;
    let ids = async |query: &str| {
        field(
            &admin.get(&format!("{USERS}?{query}")).await.expect(200),
            "id",
        )
    };
    let mut all = ids("prefix=an").await;
    all.sort_unstable();
    assert_eq!(all, ["an_other", "ann", "anton", "anyone"]);
    assert_eq!(
        ids("prefix=an_").await,
        ["an_other"],
        "nothing stands for something else"
    );
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = admin
            .get(&format!("{USERS}?limit=2{after}"))
            .await
            .expect(200);
        seen.extend(field(&page, "id"));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        after = format!("&after={next}");
    }
    let everybody: std::collections::BTreeSet<_> = seen.iter().map(String::as_str).collect();
    assert_eq!(
        everybody,
        ["an_other", "ann", "anton", "anyone", "bob", "root"].into()
    );
    assert_eq!(seen.len(), 6, "nobody twice: {seen:?}");
    for query in [
        "limit=0",
        "limit=101",
        "prefix=a%00",
        "after=%00",
        "name=ann",
    ] {
        admin.get(&format!("{USERS}?{query}")).await.expect(400);
    }
}

#[tokio::test]
async fn a_user_who_is_signed_out_is_out_on_every_replica_and_may_come_back() {
    let world = World::start().await;
    let (admin, replica, gate) = (world.admin().await, world.replica().await, Gate::new());
    world.model.reply(text("never to be heard").gate(1, &gate));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let there = ann.at(&replica.url);
    let conversation = ann.open("bank").await;
    let (one, two) = (
        ann.listen(&conversation, None).await,
        there.listen(&conversation, None).await,
    );
    let run = ann.say(&conversation, "hi").await;
    gate.reached().await;
    assert_eq!(
        admin
            .post(&format!("{USERS}/ann/sign-out"), Value::Null)
            .await
            .status,
        204
    );
    for listening in [one, two] {
        tokio::time::timeout(TIME_LIMIT, listening.rest())
            .await
            .expect("the stream ends");
    }
    let refused = ann.get("/v1/me").await.expect(401);
    refused["detail"].says("sign in again");
    eventually(async || there.get("/v1/me").await.status == 401).await;
    bob.get("/v1/me").await.expect(200);
    assert_eq!(
        trail(&world, world.tenant.id, "user.%").await,
        [line("root", "user.signed_out", "ann")]
    );
    let again = back(&world, "ann").await;
    eventually(async || {
        again.get(&format!("/v1/runs/{run}")).await.expect(200)["status"] == "cancelled"
    })
    .await;
}

/// Somebody who was signed out and has signed in again.
async fn back(world: &World, user: &str) -> Client {
    let mut again = later(world, user).await;
    eventually(async || {
        again = later(world, user).await;
        again.get("/v1/me").await.status == 200
    })
    .await;
    again
}

/// Somebody whose token was issued in a minute.
async fn later(world: &World, user: &str) -> Client {
    let person = development::DevelopmentUser {
        user: user.to_owned(),
        ..Default::default()
    };
    let (at, life) = (
        world.app().clock.now() + time::Duration::minutes(1),
        time::Duration::hours(1),
    );
    let db = &world.db.db;
    world.client(
        &development::token(
            db,
            &world.config.data,
            &world.tenant,
            &person,
            at..at + life,
        )
        .await
        .unwrap(),
    )
}

#[test]
fn an_admins_sign_out_ends_tokens_that_it_does_not_have() {
    let claims = |text: &str| -> Map<String, Value> { serde_json::from_str(text).unwrap() };
    let (day, at) = (
        24 * 60 * 60,
        time::OffsetDateTime::from_unix_timestamp(1000).unwrap(),
    );
    for (token, over) in [
        (json!({ "iat": 1000, "exp": 9_000_000 }), true),
        (json!({ "iat": 1060, "exp": 9_000_000 }), true),
        (json!({ "iat": 1061, "exp": 2000 }), false),
        (json!({ "exp": 1000 + day }), true),
        (json!({ "exp": 1001 + day }), false),
    ] {
        assert_eq!(
            SignOut::of_all(at).ends(&claims(&token.to_string())),
            over,
            "{token}"
        );
    }
}

#[tokio::test]
async fn a_guest_who_is_signed_out_has_no_key_any_more() {
    let world = World::shared().await;
    let (admin, guest, other) = (
        world.admin().await,
        world.guest().await,
        world.guest().await,
    );
    guest.open("bank").await;
    let id = guest.get("/v1/me").await.expect(200)["user"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        admin
            .post(&format!("{USERS}/{id}/sign-out"), Value::Null)
            .await
            .status,
        204
    );
    tokio::time::timeout(
        Duration::from_secs(10),
        eventually(async || guest.get("/v1/me").await.status == 401),
    )
    .await
    .expect("within seconds");
    other.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn what_a_user_entered_is_deleted_and_nobody_elses() {
    let world = World::start().await;
    let admin = world.admin().await;
    for (user, server) in [("ann", "notes"), ("ann", "mail"), ("bob", "notes")] {
        enter(&world, user, server).await;
    }
    assert_eq!(
        admin
            .delete(&format!("{USERS}/ann/credentials"))
            .await
            .expect(200),
        json!({ "removed": 2 })
    );
    admin.get(&format!("{USERS}/ann")).await.expect(404);
    let left = admin.get(&format!("{USERS}/bob")).await.expect(200);
    assert_eq!(left["credentials"].as_array().unwrap().len(), 1);
    let mut lines = trail(&world, world.tenant.id, "credential.%").await;
    lines.dedup();
    assert_eq!(lines, [line("root", "credential.removed", "of ann")]);
    assert_eq!(
        admin
            .delete(&format!("{USERS}/bob/credentials"))
            .await
            .expect(200),
        json!({ "removed": 1 })
    );
    admin
        .delete(&format!("{USERS}/bob/credentials"))
        .await
        .expect(404);
}

#[tokio::test]
async fn a_user_of_another_tenant_is_not_there() {
    let world = World::shared().await;
    let (admin, eve) = (world.admin().await, world.stranger("eve").await);
    eve.open("bank").await;
    for name in ["eve", "nobody", "a%00b"] {
        admin.get(&format!("{USERS}/{name}")).await.expect(404);
        admin
            .post(&format!("{USERS}/{name}/sign-out"), Value::Null)
            .await
            .expect(404);
        admin
            .delete(&format!("{USERS}/{name}/credentials"))
            .await
            .expect(404);
    }
    eve.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn a_token_of_a_fast_clock_does_not_outlive_a_sign_out() {
    let world = World::start().await;
    let admin = world.admin().await;
    let ann = later(&world, "ann").await;
    ann.get("/v1/me").await.expect(200);
    let out = admin
        .post(&format!("{USERS}/ann/sign-out"), Value::Null)
        .await;
    assert_eq!(out.status, 204);
    ann.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_blocked_user_is_out_everywhere_until_they_are_unblocked() {
    let world = World::start().await;
    let (admin, replica, gate) = (world.admin().await, world.replica().await, Gate::new());
    world.model.reply(text("never to be heard").gate(1, &gate));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let there = ann.at(&replica.url);
    there.get("/v1/me").await.expect(200);
    let conversation = ann.open("bank").await;
    let listening = there.listen(&conversation, None).await;
    let run = ann.say(&conversation, "hi").await;
    gate.reached().await;
    let block = format!("{USERS}/ann/block");
    assert_eq!(admin.post(&block, Value::Null).await.status, 204);
    tokio::time::timeout(TIME_LIMIT, listening.rest())
        .await
        .expect("the stream ends");
    let fresh = world.user("ann", &[]).await;
    for client in [&ann, &fresh, &later(&world, "ann").await] {
        let refused = client.get("/v1/me").await.expect(403);
        assert_eq!(refused["code"], "user_blocked", "{refused}");
        client
            .post(
                "/mcp/bank",
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }),
            )
            .await
            .expect(403);
    }
    eventually(async || there.get("/v1/me").await.status == 403).await;
    bob.get("/v1/me").await.expect(200);
    let seen = admin.get(&format!("{USERS}/ann")).await.expect(200);
    assert_eq!(seen["blocked_by"], "root", "{seen}");
    assert!(seen["blocked_at"].is_string(), "{seen}");
    // Twice is once.
    assert_eq!(admin.post(&block, Value::Null).await.status, 204);
    assert_eq!(admin.delete(&block).await.status, 204);
    admin.delete(&block).await.expect(404);
    ann.get("/v1/me").await.expect(401);
    let again = back(&world, "ann").await;
    eventually(async || again.at(&replica.url).get("/v1/me").await.status == 200).await;
    let ended = again.get(&format!("/v1/runs/{run}")).await.expect(200);
    assert_eq!(ended["status"], "cancelled");
    assert!(admin.get(&format!("{USERS}/ann")).await.expect(200)["blocked_at"].is_null());
    assert_eq!(
        trail(&world, world.tenant.id, "user.%").await,
        [
            line("root", "user.blocked", "ann"),
            line("root", "user.blocked", "ann"),
            line("root", "user.unblocked", "ann")
        ]
    );
}

#[tokio::test]
async fn a_frontend_does_not_speak_for_a_blocked_user() {
    let world = World::shared().await;
    let admin = world.admin().await;
    admin.get("/v1/me").await.expect(200);
    let headers = FrontendHeaders::open_webui();
    let speaker = KeyKind::Frontend(headers.clone());
    let key = world
        .key("webui", Scopes::new([Scope::Chat]), speaker)
        .await;
    let of = |user: &str| world.client(&key).with_header(&headers.user_id, user);
    let (ann, bob) = (of("ann"), of("bob"));
    let id = ann.get("/v1/me").await.expect(200)["user"]
        .as_str()
        .unwrap()
        .to_owned();
    let block = format!("{USERS}/{id}/block");
    assert_eq!(admin.post(&block, Value::Null).await.status, 204);
    assert_eq!(ann.get("/v1/me").await.expect(403)["code"], "user_blocked");
    bob.get("/v1/me").await.expect(200);
    assert_eq!(admin.delete(&block).await.status, 204);
    ann.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn a_block_on_the_command_line_stops_what_runs() {
    let world = World::start().await;
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let conversation = ann.open("bank").await;
    let listening = ann.listen(&conversation, None).await;
    let run = ann.say(&conversation, "hi").await;
    gate.reached().await;
    let command = |block: bool| {
        let (user, tenant) = ("ann".to_owned(), world.tenant.name.clone());
        if block {
            user::Command::Block { user, tenant }
        } else {
            user::Command::Unblock { user, tenant }
        }
    };
    let mut said = Vec::new();
    user::run(command(true), &world.db.db, &world.config, &mut said)
        .await
        .unwrap();
    tokio::time::timeout(TIME_LIMIT, listening.rest())
        .await
        .expect("the stream ends");
    eventually(async || ann.get("/v1/me").await.status == 403).await;
    eventually(async || {
        let status: String = sqlx::query_scalar("select status from runs where id = $1::uuid")
            .bind(&run)
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
        status == "cancelled"
    })
    .await;
    user::run(command(false), &world.db.db, &world.config, &mut said)
        .await
        .unwrap();
    user::run(command(false), &world.db.db, &world.config, &mut said)
        .await
        .unwrap_err();
    back(&world, "ann").await;
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains("is blocked") && said.contains("sign in again"),
        "{said}"
    );
    assert_eq!(
        trail(&world, world.tenant.id, "user.%").await,
        [
            line("operator", "user.blocked", "ann"),
            line("operator", "user.unblocked", "ann")
        ]
    );
}

#[tokio::test]
async fn a_role_that_was_taken_away_is_gone_from_older_tokens_everywhere() {
    let world = World::start().await;
    world.tools_ready().await;
    let replica = world.replica().await;
    let ann = world.user("ann", &["employee"]).await;
    let there = ann.at(&replica.url);
    let has_role = async |client: &Client| {
        let tools = client.get("/v1/agents/bank/tools").await.expect(200);
        tools.to_string().contains("get_balances")
    };
    assert!(has_role(&ann).await);
    eventually(async || has_role(&there).await).await;
    later(&world, "ann").await.get("/v1/me").await.expect(200);
    assert!(!has_role(&ann).await);
    eventually(async || !has_role(&there).await).await;
}
