//! Whether what waits is still its requester's to ask, and a vote its approver's to give: by the newest claims that were
//! seen of them, and not after a session ended.

use chatelaine::{
    app::accounts::development,
    domain::{
        account::{FrontendHeaders, KeyKind},
        principal::{Scope, Scopes},
    },
};

use super::*;
use crate::support::{model::Gate, world::TIME_LIMIT};

/// Somebody with these roles in a token that was issued a little later.
async fn later(world: &World, user: &str, roles: &[&str]) -> Client {
    let person = development::DevelopmentUser {
        user: user.to_owned(),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        ..Default::default()
    };
    let at = world.app().clock.now() + time::Duration::seconds(40);
    token(world, &person, at, time::Duration::hours(1)).await
}

async fn token(
    world: &World,
    person: &development::DevelopmentUser,
    at: time::OffsetDateTime,
    life: time::Duration,
) -> Client {
    let (db, data) = (&world.db.db, &world.config.data);
    let token = development::token(db, data, &world.tenant, person, at..at + life).await;
    world.client(&token.unwrap())
}

async fn reason(client: &Client, request: &Value) -> String {
    let view = becomes(client, request, "revoked").await;
    view["reason"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_role_that_was_taken_away_revokes_what_waits() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (conversation, request) = asked(&staff.ann, "10.00").await;
    let now = later(&world, "ann", &[]).await;
    now.get("/v1/me").await.expect(200);
    assert!(
        reason(&now, &request)
            .await
            .contains("may not use the tool any more")
    );
    approve(&staff.bob, &request).await.expect(409);
    let last = notes(&now, &conversation).await.pop().unwrap();
    let text = last["text"].as_str().unwrap();
    assert!(
        text.contains("was not carried out") && !text.contains("approved"),
        "{text}"
    );
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn signing_out_revokes_what_waits_and_no_run_follows() {
    let world = world().await;
    let (staff, admin) = (Staff::of(&world).await, world.admin().await);
    let amy = world.user("amy", &["employee"]).await;
    let (_, of_ann) = asked(&staff.ann, "10.00").await;
    let (chat, of_amy) = asked(&amy, "11.00").await;
    let asked_before = world.model.requests().len();
    let out = admin
        .post("/v1/admin/users/ann/sign-out", Value::Null)
        .await;
    assert_eq!(out.status, 204);
    amy.say(&chat, "/logout").await;
    for request in [&of_ann, &of_amy] {
        assert!(reason(&staff.bob, request).await.contains("was signed out"));
        approve(&staff.bob, request).await.expect(409);
    }
    assert_eq!(world.bank.executions("send_money"), 0);
    assert_eq!(world.model.requests().len(), asked_before);
}

#[tokio::test]
async fn a_request_that_slipped_in_beside_a_sign_out_is_not_approved() {
    let world = world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    // As a replica that wrote the request while another one signed ann out.
    sqlx::query(
        "insert into sign_outs (tenant_id, id, user_id, issued_until, expires_until)
         values ($1, gen_random_uuid(), 'ann', 9000000000, 9000000000)",
    )
    .bind(world.tenant.id.0)
    .execute(&mut world.db.as_tenant(world.tenant.id).await)
    .await
    .unwrap();
    let refused = approve(&staff.bob, &request).await.expect(409);
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("was signed out"),
        "{refused}"
    );
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn an_approver_who_lost_the_role_neither_votes_nor_counts() {
    let world = world_with(|setup| {
        policy(
            setup,
            "timeoutMinutes: 60",
            "minApprovals: 2, selfApproval: false",
        );
    })
    .await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    approve(&staff.bob, &request).await.expect(200);
    later(&world, "bob", &[])
        .await
        .get("/v1/me")
        .await
        .expect(200);
    let view = approve(&staff.carl, &request).await.expect(200);
    assert_eq!(view["state"], "pending", "{view:#}");
    let (_, other) = asked(&staff.ann, "11.00").await;
    approve(&staff.bob, &other).await.expect(404);
    let dora = world.user("dora", &["cfo"]).await;
    approve(&dora, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn who_only_voted_or_only_looked_can_be_signed_out() {
    let world = world().await;
    let (staff, admin) = (Staff::of(&world).await, world.admin().await);
    let (_, request) = asked(&staff.ann, "10.00").await;
    approve(&staff.bob, &request).await.expect(200);
    staff.carl.get("/v1/me").await.expect(200);
    for (user, client) in [("bob", &staff.bob), ("carl", &staff.carl)] {
        let out = format!("/v1/admin/users/{user}/sign-out");
        assert_eq!(admin.post(&out, Value::Null).await.status, 204);
        client.get("/v1/me").await.expect(401);
    }
    let nobody = admin.post("/v1/admin/users/nobody/sign-out", Value::Null);
    nobody.await.expect(404);
}

#[tokio::test]
async fn a_revoked_key_ends_what_waits_runs_and_listens_by_it() {
    let world = world().await;
    let (staff, admin) = (Staff::of(&world).await, world.admin().await);
    let replica = world.replica().await;
    let headers = FrontendHeaders::open_webui();
    let speaker = KeyKind::Frontend(headers.clone());
    let key = world.key("webui", Scopes::of([Scope::Chat]), speaker).await;
    let ann = world
        .client(&key)
        .with_header(&headers.user_id, "amy")
        .with_header(headers.roles.as_ref().unwrap(), "employee");
    let (conversation, request) = asked(&ann, "10.00").await;
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let there = ann.at(&replica.url);
    let listening = there.listen(&conversation, None).await;
    let run = ann.say(&conversation, "hello").await;
    gate.reached().await;
    let keys = admin.get("/v1/admin/keys").await.expect(200);
    let id = keys["items"][0]["id"].as_str().unwrap();
    let revoked = admin.delete(&format!("/v1/admin/keys/{id}")).await;
    assert_eq!(revoked.status, 204);
    ann.get("/v1/me").await.expect(401);
    tokio::time::timeout(TIME_LIMIT, listening.rest())
        .await
        .expect("the stream ends");
    eventually(async || there.get("/v1/me").await.status == 401).await;
    assert!(reason(&staff.bob, &request).await.contains("API key"));
    eventually(async || {
        let status: String = sqlx::query_scalar("select status from runs where id = $1::uuid")
            .bind(&run)
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
        status == "cancelled"
    })
    .await;
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_stream_ends_with_the_token_that_it_was_opened_with() {
    let world = world().await;
    let person = development::DevelopmentUser {
        user: "ann".to_owned(),
        ..Default::default()
    };
    let now = world.app().clock.now();
    let ann = token(&world, &person, now, time::Duration::seconds(3)).await;
    let conversation = ann.open("bank").await;
    let listening = ann.listen(&conversation, None).await;
    tokio::time::timeout(TIME_LIMIT, listening.rest())
        .await
        .expect("the stream ends");
}
