//! Users who sign out, tenants that are suspended or removed, and what their admins see of sign-ins.

use serde_json::{Value, json};

use super::{TEST, connect, connected, connection, guarded::Guarded, sign_in};
use crate::{
    admin::{operator, patch, with_operator},
    support::{
        client::Client,
        servers::{soon, until},
        wait::eventually,
        world::World,
    },
};

/// What an admin sees of somebody's credentials.
async fn credentials(world: &World, user: &str) -> Value {
    let admin = world.admin().await;
    let seen = admin.get(&format!("/v1/admin/users/{user}")).await;
    seen.expect(200)["credentials"].clone()
}

async fn until_revoked(guarded: &Guarded, tokens: usize) {
    until(|| guarded.seen(|seen| seen.revoked.len() == tokens)).await;
    assert!(guarded.seen(|seen| {
        let mut tokens = seen.revoked.iter();
        tokens.all(|token| token.starts_with("refresh-canary"))
    }));
}

async fn ben(world: &World) -> Client {
    let ben = world.user("ben", &[]).await;
    let chat = ben.open("desk").await;
    assert!(connect(world, &ben, &chat).await.starts_with("✅"));
    ben
}

#[tokio::test]
async fn signing_out_ends_the_sign_ins_of_the_user_on_every_replica_and_nobody_elses() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    let ben = ben(&world).await;
    let other = world.replica().await;
    let at_other = ann.at(&other.url).post(TEST, json!({})).await;
    assert_eq!(at_other.expect(200)["ok"], true);
    // The answer to that is still heard, and nothing after it.
    ann.say(&chat, "/logout").await;
    until_revoked(&guarded, 1).await;
    let ready = world.nobody().at(&other.url);
    eventually(async || ready.get("/readyz").await.json()["personal_connections"] == 0).await;
    assert_eq!(credentials(&world, "ann").await, json!([]));
    assert_eq!(connection(&ben).await["state"], "configured");
}

#[tokio::test]
async fn an_admin_sees_who_signed_in_where_and_ends_it() {
    let (guarded, world, ann, _) = connected(|_| {}).await;
    let mut seen = credentials(&world, "ann").await;
    let since = seen[0]["sign_in"].as_object_mut().unwrap().remove("since");
    assert!(since.unwrap().as_str().unwrap().starts_with("20"));
    let sign_in = json!({ "issuer": guarded.issuer, "scopes": ["notes:read"] });
    let expected =
        json!([{ "agent": "desk", "server": "notes", "state": "active", "sign_in": sign_in }]);
    assert_eq!(seen, expected);
    let admin = world.admin().await;
    admin
        .post("/v1/admin/users/ann/sign-out", json!({}))
        .await
        .expect(204);
    until_revoked(&guarded, 1).await;
    assert_eq!(credentials(&world, "ann").await, json!([]));
    ann.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_tenant_that_is_suspended_or_removed_leaves_no_sign_in_behind() {
    let (guarded, world, _, _) = connected(with_operator).await;
    ben(&world).await;
    let tenant = "/v1/admin/tenants/acme";
    let operator = operator(&world);
    patch(&operator, tenant, json!({ "suspended": true }))
        .await
        .expect(200);
    until_revoked(&guarded, 2).await;
    patch(&operator, tenant, json!({ "suspended": false }))
        .await
        .expect(200);
    assert_eq!(credentials(&world, "ann").await, json!([]));
    ben(&world).await;
    let removal = operator.request(http::Method::DELETE, &format!("{tenant}?confirm=acme"));
    operator.send(removal).await.expect(204);
    until_revoked(&guarded, 3).await;
}

#[tokio::test]
async fn tokens_that_come_while_their_user_signs_out_end_too() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    let other = world.replica().await;
    guarded.turn(|knobs| knobs.hold = true);
    guarded.end_access_tokens();
    let at_other = ann.at(&other.url);
    let asking = tokio::spawn(async move { at_other.post(TEST, json!({})).await });
    until(|| guarded.seen(|seen| seen.refreshes == 1)).await;
    // The answer to that is still heard, and nothing after it.
    ann.say(&chat, "/logout").await;
    until_revoked(&guarded, 1).await;
    guarded.turn(|knobs| knobs.hold = false);
    soon(asking).await.unwrap();
    until_revoked(&guarded, 2).await;
    assert_ne!(
        guarded.seen(|seen| seen.revoked[0].clone()),
        guarded.seen(|seen| seen.revoked[1].clone())
    );
    assert_eq!(guarded.seen(|seen| seen.calls), 0);
}

#[tokio::test]
async fn a_user_who_comes_back_from_a_sign_in_while_they_sign_out_is_not_connected() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    let begun = ann
        .post("/v1/agents/desk/connections/notes/sign-in", json!({}))
        .await;
    let cookie = begun.header("set-cookie").to_owned();
    let back = sign_in(&world.url, begun.expect(200)["url"].as_str().unwrap()).await;
    guarded.turn(|knobs| knobs.hold = true);
    let browser = world.nobody();
    let asking = tokio::spawn(async move {
        let request = browser.request(http::Method::GET, &back);
        let request = request.header("cookie", cookie.split(';').next().unwrap());
        browser.send(request).await
    });
    until(|| guarded.seen(|seen| seen.codes.len() == 2)).await;
    // The answer to that is still heard, and nothing after it.
    ann.say(&chat, "/logout").await;
    until_revoked(&guarded, 1).await;
    guarded.turn(|knobs| knobs.hold = false);
    let page = soon(asking).await.unwrap();
    assert!(!page.text.contains("notes is connected"), "{}", page.text);
    until_revoked(&guarded, 2).await;
    assert_eq!(credentials(&world, "ann").await, json!([]));
}
