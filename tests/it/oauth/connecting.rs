//! From `/connect` to the tools, and back.

use std::time::Duration;

use serde_json::json;

use super::{
    call, code, connect, connected, connection,
    guarded::{Guarded, Wrong},
    link, open, say, sign_in, texts, world,
};
use crate::support::model::text;

#[tokio::test]
async fn a_user_signs_in_and_the_tools_are_in_the_next_answer() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    assert_eq!(connection(&ann).await["state"], "configured");
    let ben = world.user("ben", &[]).await;
    assert_eq!(connection(&ben).await["state"], "not_configured");
    let theirs = ben.open("desk").await;
    connect(&world, &ben, &theirs).await;
    assert_eq!(
        guarded.seen(|seen| seen.registrations),
        1,
        "one client for all"
    );
}

#[tokio::test]
async fn a_personal_server_of_which_nothing_is_said_is_found_to_want_a_sign_in() {
    let guarded = Guarded::start().await;
    let world = world(&guarded.url, "", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
}

/// A process looks each second for connections whose credential is gone. The question where to sign in is asked with
/// none.
#[tokio::test]
async fn a_server_that_answers_slowly_is_signed_in_at_like_any_other() {
    let guarded = Guarded::start().await;
    let world = world(&guarded.url, "auth: oauth", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    guarded.turn(|knobs| knobs.slow = Duration::from_secs(3));
    assert!(link(&ann, &chat).await.starts_with(&guarded.issuer));
}

#[tokio::test]
async fn the_browser_that_asked_for_a_sign_in_needs_no_code() {
    let guarded = Guarded::start().await;
    let world = world(&guarded.url, "auth: oauth", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let path = "/v1/agents/desk/connections/notes/sign-in";
    let begun = ann.post(path, json!({})).await;
    let cookie = begun.header("set-cookie").to_owned();
    assert!(
        cookie.contains("Path=/oauth/callback; Max-Age=600; HttpOnly; SameSite=Lax"),
        "{cookie}"
    );
    let back = sign_in(&world.url, begun.expect(200)["url"].as_str().unwrap()).await;
    let browser = world.nobody().request(http::Method::GET, &back);
    let browser = browser.header("cookie", cookie.split(';').next().unwrap());
    let page = world.nobody().send(browser).await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("notes is connected"), "{}", page.text);
    assert_eq!(page.header("referrer-policy"), "no-referrer");
    for forbidden in ["<script", "http://", "code-canary"] {
        assert!(!page.text.contains(forbidden), "{}", page.text);
    }
    assert_eq!(connection(&ann).await["state"], "configured");
}

#[tokio::test]
async fn somebody_else_who_follows_the_link_connects_nothing() {
    let guarded = Guarded::start().await;
    let world = world(&guarded.url, "auth: oauth", |_| {}).await;
    let mallory = world.user("mallory", &[]).await;
    let chat = mallory.open("desk").await;
    let link = link(&mallory, &chat).await;
    let page = world.nobody().get(&sign_in(&world.url, &link).await).await;
    let shown_to_the_other = code(&page);
    assert_eq!(connection(&mallory).await["state"], "not_configured");
    let guess = if shown_to_the_other == "123456" {
        "654321"
    } else {
        "123456"
    };
    for _ in 0..5 {
        say(&mallory, &chat, guess).await;
    }
    let late = texts(&say(&mallory, &chat, "/cancel").await);
    assert!(
        late.contains("nothing to cancel"),
        "the flow is over: {late}"
    );
    assert_eq!(connection(&mallory).await["state"], "not_configured");
}

#[tokio::test]
async fn a_sign_in_works_once_and_is_over_when_it_is_declined_or_too_old() {
    let guarded = Guarded::start().await;
    let world = world(&guarded.url, "auth: oauth", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let first = link(&ann, &chat).await;
    let back = sign_in(&world.url, &first).await;
    open(&world, &back).await.expect_page(200, "type this code");
    open(&world, &back).await.expect_page(404, "over already");
    let strange = "/oauth/callback?state=made-up&code=stolen";
    open(&world, strange)
        .await
        .expect_page(404, "leads nowhere");

    guarded.turn(|knobs| knobs.wrong = Wrong::Declines);
    let back = sign_in(&world.url, &link(&ann, &chat).await).await;
    open(&world, &back).await.expect_page(200, "declined");
    let said = ann.messages(&chat).await;
    let last = said.last().unwrap()["parts"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(last.contains("the sign-in was declined"), "{last}");

    guarded.turn(|knobs| knobs.wrong = Wrong::Nothing);
    let back = sign_in(&world.url, &link(&ann, &chat).await).await;
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let age = "update oauth_sign_ins set expires_at = now() - interval '1 second'";
    sqlx::query(age).execute(&mut db).await.unwrap();
    open(&world, &back).await.expect_page(404, "too old");
    assert_eq!(
        guarded.seen(|seen| seen.codes.len()),
        1,
        "only the first was redeemed"
    );
}

#[tokio::test]
async fn whoever_signs_in_elsewhere_may_go_on_talking() {
    let guarded = Guarded::start().await;
    let world = world(&guarded.url, "auth: oauth", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let link = link(&ann, &chat).await;
    world.model.reply(text("Hello, ann."));
    assert_eq!(
        texts(&say(&ann, &chat, "hello, call 555").await),
        "Hello, ann."
    );
    let page = world.nobody().get(&sign_in(&world.url, &link).await).await;
    let said = texts(&say(&ann, &chat, &code(&page)).await);
    assert!(said.starts_with("✅"), "{said}");
}

#[tokio::test]
async fn disconnecting_revokes_and_deletes() {
    let (guarded, _world, ann, chat) = connected(|_| {}).await;
    say(&ann, &chat, "/disconnect notes").await;
    assert_eq!(connection(&ann).await["state"], "not_configured");
    crate::support::servers::until(|| guarded.seen(|seen| seen.revoked.len() == 1)).await;
    assert!(guarded.seen(|seen| seen.revoked[0].starts_with("refresh-canary")));
}

#[tokio::test]
async fn a_tool_that_needs_more_says_so_and_the_user_allows_it() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    let result = call(&world, &ann, &chat, "write").await;
    let said = result["text"].as_str().unwrap();
    assert_eq!(result["status"], "failed");
    assert!(
        said.contains("the call was not made") && said.contains("/connect notes"),
        "{said}"
    );
    assert_eq!(
        connection(&ann).await["state"],
        "configured",
        "the rest goes on"
    );
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    let scopes = guarded.seen(|seen| seen.scopes.clone());
    assert_eq!(
        scopes,
        ["notes:read", "notes:read notes:write"],
        "the union"
    );
    assert_eq!(call(&world, &ann, &chat, "write").await["text"], "done");
    // What was allowed already is not asked for again.
    guarded.turn(|knobs| knobs.write_scope = "notes:read notes:write".to_owned());
    let result = call(&world, &ann, &chat, "write").await;
    let said = result["text"].as_str().unwrap();
    assert!(
        said.contains("for lack of permissions") && !said.contains("/connect"),
        "{said}"
    );
}
