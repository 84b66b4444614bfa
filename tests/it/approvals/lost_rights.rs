//! Whether what waits is still its requester's to ask, and a vote its approver's to give: by the newest claims that were
//! seen of them, and not after a session ended.

use chatelaine::app::accounts::{self, development};
use domain::{
    account::{FrontendHeaders, IssuerKeys, KeyKind, SourceSettings},
    principal::{Scope, Scopes},
};

use super::*;
use crate::{
    accounts::fixture::{AUDIENCE, ISSUER, Provider, issuer},
    support::{has::Has, model::Gate, world::TIME_LIMIT},
};

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
    let world = shared_world().await;
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
    refused["detail"].says("was signed out");
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn an_approver_who_lost_the_role_neither_votes_nor_counts() {
    let world = world_with(|setup| {
        setup.change_server(policy(json!({ "minApprovals": 2, "selfApproval": false })));
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
    let world = shared_world().await;
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
    let key = world
        .key("webui", Scopes::new([Scope::Chat]), speaker)
        .await;
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
    // Within the leeway for clocks, in which a token is taken.
    let begin = world.app().clock.now() - time::Duration::seconds(30);
    let ann = token(&world, &person, begin, time::Duration::seconds(10)).await;
    let conversation = ann.open("bank").await;
    let listening = ann.listen(&conversation, None).await;
    tokio::time::timeout(TIME_LIMIT, listening.rest())
        .await
        .expect("the stream ends");
}

/// The bank, where two others have to approve.
async fn strict_world() -> World {
    world_with(|setup| {
        setup.change_server(policy(json!({ "minApprovals": 2, "selfApproval": false })));
    })
    .await
}

/// A request that this voter has approved, the first of two.
async fn half_approved(staff: &Staff, voter: &Client) -> Value {
    let (_, request) = asked(&staff.ann, "10.00").await;
    let view = approve(voter, &request).await.expect(200);
    assert_eq!(view["state"], "pending", "{view:#}");
    assert_eq!(view["votes"][0]["counts"], true, "{view:#}");
    request
}

/// That the vote of whoever is gone does not count, and that the votes of two who are there do.
async fn assert_void(world: &World, staff: &Staff, request: &Value) {
    let view = approve(&staff.carl, request).await.expect(200);
    assert_eq!(view["state"], "pending", "{view:#}");
    assert_eq!(view["votes"][0]["counts"], false, "{view:#}");
    view["text"].says("needs 2 approvals, 1 so far");
    assert_eq!(world.bank.executions("send_money"), 0);
    let dora = world.user("dora", &["cfo"]).await;
    approve(&dora, request).await.expect(200);
    becomes(&staff.ann, request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

async fn admin_ends(world: &World, what: &str) {
    let admin = world.admin().await;
    let ended = match what.strip_prefix("DELETE ") {
        Some(path) => admin.delete(path).await,
        None => admin.post(what, Value::Null).await,
    };
    assert_eq!(ended.status, 204, "{what}: {}", ended.text);
}

#[tokio::test]
async fn the_vote_of_somebody_whom_an_admin_signed_out_does_not_count() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let request = half_approved(&staff, &staff.bob).await;
    admin_ends(&world, "/v1/admin/users/bob/sign-out").await;
    assert_void(&world, &staff, &request).await;
}

#[tokio::test]
async fn the_vote_of_somebody_who_was_deleted_does_not_count() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let request = half_approved(&staff, &staff.bob).await;
    admin_ends(&world, "DELETE /v1/admin/users/bob").await;
    assert_void(&world, &staff, &request).await;
}

#[tokio::test]
async fn the_vote_of_somebody_who_deleted_all_that_is_theirs_does_not_count() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let request = half_approved(&staff, &staff.bob).await;
    assert_eq!(staff.bob.delete("/v1/me/data").await.status, 204);
    assert_void(&world, &staff, &request).await;
}

#[tokio::test]
async fn the_vote_of_somebody_who_is_blocked_does_not_count() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let request = half_approved(&staff, &staff.bob).await;
    admin_ends(&world, "/v1/admin/users/bob/block").await;
    let refused = approve(&staff.bob, &request).await.expect(403);
    assert_eq!(refused["code"], "user_blocked", "{refused}");
    assert_void(&world, &staff, &request).await;
}

#[tokio::test]
async fn the_vote_of_a_program_counts_as_long_as_its_key_is_good() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let claims = json!({ "roles": ["finance-manager"] });
    let speaker = KeyKind::Service(claims.as_object().unwrap().clone());
    let key = world
        .key("robot", Scopes::new([Scope::Chat]), speaker)
        .await;
    let robot = world.client(&key);
    let good = half_approved(&staff, &robot).await;
    approve(&staff.carl, &good).await.expect(200);
    becomes(&staff.ann, &good, "succeeded").await;
    let (_, request) = asked(&staff.ann, "11.00").await;
    approve(&robot, &request).await.expect(200);
    admin_ends(&world, &format!("DELETE {}", key_path(&world).await)).await;
    let view = approve(&staff.carl, &request).await.expect(200);
    assert_eq!(view["state"], "pending", "{view:#}");
    assert_eq!(view["votes"][0]["counts"], false, "{view:#}");
    assert_eq!(world.bank.executions("send_money"), 1);
}

/// The one key of the tenant.
async fn key_path(world: &World) -> String {
    let keys = world.admin().await.get("/v1/admin/keys").await.expect(200);
    format!(
        "/v1/admin/keys/{}",
        keys["items"][0]["id"].as_str().unwrap()
    )
}

#[tokio::test]
async fn a_vote_through_a_frontend_whose_key_was_revoked_does_not_count() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let headers = FrontendHeaders::open_webui();
    let speaker = KeyKind::Frontend(headers.clone());
    let key = world
        .key("webui", Scopes::new([Scope::Chat]), speaker)
        .await;
    let fay = world
        .client(&key)
        .with_header(&headers.user_id, "fay")
        .with_header(headers.roles.as_ref().unwrap(), "finance-manager");
    let request = half_approved(&staff, &fay).await;
    admin_ends(&world, &format!("DELETE {}", key_path(&world).await)).await;
    assert_void(&world, &staff, &request).await;
}

#[tokio::test]
async fn a_vote_by_the_token_of_an_issuer_that_was_removed_does_not_count() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let (db, provider) = (&world.db.db, Provider::new("k1"));
    let keys = IssuerKeys::PublicKey(provider.public_pem());
    let theirs = issuer(&world.tenant, "EdDSA", keys);
    accounts::add_issuer(db, theirs, &SourceSettings::default())
        .await
        .unwrap();
    let now = world.app().clock.now().unix_timestamp();
    let claims = json!({ "sub": "ida", "aud": AUDIENCE, "iat": now, "exp": now + 600,
                         "roles": ["finance-manager"] });
    let ida = world.client(&provider.token(claims).into());
    let request = half_approved(&staff, &ida).await;
    accounts::remove_issuer(db, world.tenant.id, ISSUER, None)
        .await
        .unwrap();
    assert_void(&world, &staff, &request).await;
}

#[tokio::test]
async fn the_vote_of_somebody_who_signed_out_themselves_counts() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let request = half_approved(&staff, &staff.bob).await;
    let conversation = staff.bob.open("bank").await;
    staff.bob.say(&conversation, "/logout").await;
    eventually(async || staff.bob.get("/v1/me").await.status == 401).await;
    approve(&staff.carl, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn who_was_signed_out_and_is_back_may_vote_again() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let request = half_approved(&staff, &staff.bob).await;
    admin_ends(&world, "/v1/admin/users/bob/sign-out").await;
    let mut again = staff.bob;
    let person = development::DevelopmentUser {
        user: "bob".to_owned(),
        roles: vec!["finance-manager".to_owned()],
        ..Default::default()
    };
    eventually(async || {
        let at = world.app().clock.now() + time::Duration::seconds(60);
        again = token(&world, &person, at, time::Duration::hours(1)).await;
        again.get("/v1/me").await.status == 200
    })
    .await;
    let waiting = again.get("/v1/approvals?role=approver").await.expect(200);
    assert_eq!(waiting["items"][0]["decidable"], true, "{waiting:#}");
    let view = approve(&again, &request).await.expect(200);
    assert_eq!(view["votes"].as_array().unwrap().len(), 1, "{view:#}");
    assert_eq!(view["votes"][0]["counts"], true, "{view:#}");
    approve(&staff.carl, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn two_ids_that_look_the_same_are_no_two_approvers() {
    let world = strict_world().await;
    let staff = Staff::of(&world).await;
    let request = half_approved(&staff, &staff.bob).await;
    let twin = world.user("b\u{43e}b", &["finance-manager"]).await;
    let refused = approve(&twin, &request).await.expect(409);
    assert_eq!(refused["code"], "lookalike_user", "{refused}");
    let why = refused["detail"].as_str().unwrap();
    assert!(
        why.contains("U+043E") && why.contains("has approved it already"),
        "{why}"
    );
    let of_ann = world.user("\u{430}nn", &["cfo"]).await;
    let refused = approve(&of_ann, &request).await.expect(409);
    refused["detail"].says("asked for it");
    assert_eq!(world.bank.executions("send_money"), 0);
    approve(&staff.carl, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
}

#[tokio::test]
async fn what_waits_for_somebody_who_is_blocked_is_revoked() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    admin_ends(&world, "/v1/admin/users/ann/block").await;
    assert!(reason(&staff.bob, &request).await.contains("was blocked"));
    approve(&staff.bob, &request).await.expect(409);
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_requester_whose_name_is_read_as_anothers_is_shown_with_their_id() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let named = |user: &str, name: &str| development::DevelopmentUser {
        user: user.to_owned(),
        name: Some(name.to_owned()),
        roles: vec!["employee".to_owned()],
        ..Default::default()
    };
    let fred = world.someone(&named("fred", "Fred Smith")).await;
    let (_, alone) = asked(&fred, "1.00").await;
    assert_eq!(alone["requester"]["name"], "Fred Smith");
    let twin = world
        .someone(&named("fre\u{501}", "Fr\u{435}d\u{a0}Smith"))
        .await;
    let (_, request) = asked(&twin, "2.00").await;
    let view = staff.bob.get(&path(&request)).await.expect(200);
    let name = view["requester"]["name"].as_str().unwrap();
    assert!(name.contains("[fre\u{501}(U+0501)]"), "{name}");
    view["text"].says(name);
    let (_, again) = asked(&fred, "3.00").await;
    assert_eq!(again["requester"]["name"], "Fred Smith [fred]");
}
