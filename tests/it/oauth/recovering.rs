//! Sign-ins that go on although an authorization server has forgotten something, or writes in words of its own.

use serde_json::{Value, json};
use url::Url;

use super::{
    PACK, TEST, call, connect, connected, connection, fetch,
    guarded::{Guarded, Wrong},
    link, open, say, sign_in, texts, world,
};
use crate::support::{client::Client, world::World};

async fn guarded_by(wrong: Wrong) -> (Guarded, World, Client, String) {
    served(wrong, "auth: oauth", |url| url).await
}

/// A server with something wrong at its authorization server, these lines in its pack, and its address changed.
async fn served(
    wrong: Wrong,
    lines: &str,
    at: impl FnOnce(Url) -> Url,
) -> (Guarded, World, Client, String) {
    let guarded = Guarded::start().await;
    guarded.turn(|knobs| knobs.wrong = wrong);
    let world = world(&at(guarded.url.clone()), lines, |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    (guarded, world, ann, chat)
}

async fn run(world: &World, sql: &'static str) {
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query(sql).execute(&mut db).await.unwrap();
}

fn registrations(guarded: &Guarded) -> usize {
    guarded.seen(|seen| seen.registrations)
}

#[tokio::test]
async fn a_client_that_was_forgotten_is_registered_again_when_its_user_begins_again() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.forget_clients();
    let dead = link(&ann, &chat).await;
    assert_eq!(
        fetch(&dead).await.status(),
        400,
        "the page knows no such client"
    );
    assert_eq!(registrations(&guarded), 1);
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    assert_eq!(registrations(&guarded), 2);
    // Not more often than once in ten minutes.
    guarded.forget_clients();
    for _ in 0..3 {
        let dead = link(&ann, &chat).await;
        assert_eq!(fetch(&dead).await.status(), 400);
    }
    assert_eq!(registrations(&guarded), 2);
    run(
        &world,
        "update oauth_clients set registered_again_at = now() - interval '11 minutes'",
    )
    .await;
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    assert_eq!(registrations(&guarded), 3);
}

#[tokio::test]
async fn a_registration_whose_last_sign_in_never_came_back_is_made_again_for_the_next_user() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.forget_clients();
    link(&ann, &chat).await;
    run(&world, "update oauth_clients set begun_at = (begun_at at time zone 'utc' - interval '11 minutes') at time zone 'utc', came_back_at = (came_back_at at time zone 'utc' - interval '12 minutes') at time zone 'utc'").await;
    let bob = world.user("bob", &[]).await;
    let at = bob.open("desk").await;
    assert!(connect(&world, &bob, &at).await.starts_with("✅"));
    assert_eq!(registrations(&guarded), 2);
}

#[tokio::test]
async fn the_sign_ins_of_an_old_client_keep_it() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    let bob = world.user("bob", &[]).await;
    let at = bob.open("desk").await;
    link(&bob, &at).await;
    assert!(connect(&world, &bob, &at).await.starts_with("✅"));
    assert_eq!(registrations(&guarded), 2);
    guarded.end_access_tokens();
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    assert_eq!(call(&world, &bob, &at, "read").await["text"], "done");
    let clients = guarded.seen(|seen| seen.clients.clone());
    assert_eq!(clients[2..], ["client-1", "client-2"]);
}

#[tokio::test]
async fn a_client_that_is_unknown_at_a_refresh_is_another_one_at_the_next_sign_in() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.forget_clients();
    guarded.end_access_tokens();
    assert_eq!(call(&world, &ann, &chat, "read").await["status"], "failed");
    assert_eq!(connection(&ann).await["state"], "needs_attention");
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    assert_eq!(registrations(&guarded), 2);
}

#[tokio::test]
async fn a_client_whose_secret_ends_is_registered_again_in_time() {
    let (guarded, world, ann, chat) = guarded_by(Wrong::Nothing).await;
    let now = domain::clock::Clock::System.now().unix_timestamp();
    guarded.turn(|knobs| knobs.secret_ends_at = now + 60);
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    guarded.turn(|knobs| knobs.secret_ends_at = 0);
    for _ in 0..2 {
        assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
        assert_eq!(registrations(&guarded), 2);
    }
}

#[tokio::test]
async fn a_dead_refresh_token_is_known_in_all_its_words() {
    for (status, body) in [
        (200, "{\"error\":\"bad_refresh_token\"}"),
        (400, "{\"error\":\"bad_refresh_token\"}"),
        (200, "{\"error\":\"invalid_grant\"}"),
        (
            400,
            "{\"code\":400,\"error_code\":\"refresh_token_not_found\",\"msg\":\"Invalid Refresh Token\"}",
        ),
        (401, "error=invalid_grant&error_description=no"),
    ] {
        let (guarded, world, ann, chat) = connected(|_| {}).await;
        guarded.turn(|knobs| knobs.refusal = Some((status, body)));
        guarded.end_access_tokens();
        assert_eq!(call(&world, &ann, &chat, "read").await["status"], "failed");
        assert_eq!(
            connection(&ann).await["state"],
            "needs_attention",
            "{status} {body}"
        );
        let said = serde_json::to_string(&ann.messages(&chat).await).unwrap();
        assert!(said.contains("credential_rejected"), "{said}");
    }
}

#[tokio::test]
async fn a_doubtful_refusal_ends_a_sign_in_when_it_came_three_times() {
    for code in ["invalid_request", "unauthorized_client"] {
        let (guarded, _world, ann, _) = connected(|_| {}).await;
        let body = match code {
            "invalid_request" => "{\"error\":\"invalid_request\"}",
            _ => "{\"error\":\"unauthorized_client\"}",
        };
        guarded.turn(|knobs| knobs.refusal = Some((400, body)));
        guarded.end_access_tokens();
        for _ in 0..2 {
            assert_eq!(ann.post(TEST, json!({})).await.expect(200)["ok"], false);
            assert_ne!(connection(&ann).await["state"], "needs_attention", "{code}");
        }
        assert_eq!(
            ann.post(TEST, json!({})).await.expect(200)["reason"],
            "unauthorized"
        );
        assert_eq!(connection(&ann).await["state"], "needs_attention", "{code}");
    }
}

#[tokio::test]
async fn an_issuer_with_and_without_its_last_slash_is_one_where_metadata_is_looked_up() {
    let (_guarded, world, ann, chat) = guarded_by(Wrong::Slash).await;
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    let (guarded, world, ann, chat) = guarded_by(Wrong::AnswerSlash).await;
    let back = sign_in(&world.url, &link(&ann, &chat).await).await;
    open(&world, &back).await.expect_page(200, "not connected");
    let codes = guarded.seen(|seen| seen.codes.len());
    assert_eq!(codes, 0, "an answer is compared byte for byte");
}

#[tokio::test]
async fn a_page_or_a_redirect_at_a_well_known_place_is_not_the_metadata() {
    let (_guarded, world, ann, chat) = guarded_by(Wrong::Pages).await;
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
}

#[tokio::test]
async fn metadata_may_be_at_another_host_and_no_query_or_header_hides_the_challenge() {
    for lines in [
        "auth: oauth",
        "auth: oauth\n      headers: { X-MCP-Readonly: \"true\" }",
        "auth: oauth\n      headers: { X-Api-Key: a-key-0123456789 }",
    ] {
        for query in [None, Some("project_ref=abc"), Some("api_key=0123456789")] {
            let (_guarded, world, ann, chat) =
                served(Wrong::MetadataElsewhere, lines, |mut url| {
                    url.set_query(query);
                    url
                })
                .await;
            let said = connect(&world, &ann, &chat).await;
            assert!(said.starts_with("✅"), "{lines} {query:?}: {said}");
        }
    }
}

#[tokio::test]
async fn pkce_is_assumed_only_where_the_pack_says_so_and_is_asked_before_anything_is_registered() {
    let (guarded, _world, ann, chat) = guarded_by(Wrong::SilentPkce).await;
    let said = texts(&say(&ann, &chat, "/connect notes").await);
    assert!(said.contains("pkce: assumed"), "{said}");
    assert_eq!(registrations(&guarded), 0);
    let of_pack = "auth: { type: oauth, clientId: by-hand, clientSecret: client-secret-canary, pkce: assumed }";
    let (_guarded, world, ann, chat) = served(Wrong::SilentPkce, of_pack, |url| url).await;
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    let (_guarded, _world, ann, chat) = served(Wrong::NoPkce, of_pack, |url| url).await;
    let said = texts(&say(&ann, &chat, "/connect notes").await);
    assert!(said.contains("does not support PKCE"), "{said}");
}

#[test]
fn pkce_is_assumed_for_no_client_that_the_program_registers() {
    let text = PACK.replace("AUTH", "auth: { type: oauth, pkce: assumed }");
    let variables = crate::support::packs::env(&[
        ("MODEL_URL", "https://a.example.org"),
        ("SERVER_URL", "https://b.example.org/mcp"),
    ]);
    let error = crate::support::packs::load_with(&text, &variables)
        .unwrap_err()
        .to_string();
    assert!(error.contains("write its `clientId`"), "{error}");
}

#[tokio::test]
async fn an_answer_with_tokens_that_is_outside_of_the_rfc_is_read_or_named() {
    for wrong in [Wrong::Form, Wrong::ScopeList] {
        let (_guarded, world, ann, chat) = guarded_by(wrong).await;
        assert!(
            connect(&world, &ann, &chat).await.starts_with("✅"),
            "{wrong:?}"
        );
        assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    }
    let (_guarded, world, ann, chat) = guarded_by(Wrong::NoTokenType).await;
    let back = sign_in(&world.url, &link(&ann, &chat).await).await;
    open(&world, &back)
        .await
        .expect_page(200, "has no `token_type`");
    let said: Value = ann.messages(&chat).await.into_iter().collect();
    assert!(said.to_string().contains("has no `token_type`"), "{said}");
}

#[tokio::test]
async fn an_admin_forgets_a_client_and_whoever_is_signed_in_stays_so() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    let admin = world.admin().await;
    let listed = admin.get("/v1/oauth-clients").await.expect(200);
    let client = &listed["items"][0];
    assert_eq!(client["issuer"], guarded.issuer.as_str());
    let path = format!("/v1/oauth-clients/{}", client["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    assert_eq!(admin.delete(&path).await.status, 404);
    guarded.end_access_tokens();
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    assert_eq!(registrations(&guarded), 2);
}
