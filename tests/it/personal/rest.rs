//! Enter, test, replace and remove over REST, with a real server and its log.

use std::time::Duration;

use chatelaine::cli::serve::Service;
use serde_json::json;
use store::Db;
use tokio::net::{TcpListener, TcpSocket};

use super::{connection, enter, tools};
use crate::support::{
    client::Client,
    has::Has,
    model::{calls, text},
    notes::{Notes, pack},
    world::{TIME_LIMIT, World},
};

#[tokio::test]
async fn without_a_credential_a_personal_server_has_no_tools() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(tools(&ann, "notes").await, [""; 0]);
    let seen = connection(&ann, "notes").await;
    seen.has(json!({ "state": "not_configured", "kind": "personal" }));
    assert_eq!(
        seen["fields"],
        json!([{ "name": "token", "type": "secret", "label": "Your token of Notes?", "required": true }])
    );
    assert_eq!(
        notes.count("tools/list"),
        0,
        "nobody connects without a credential"
    );
}

#[tokio::test]
async fn a_good_token_brings_the_tools_and_never_comes_back() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let entered = enter(&ann, "notes", "writer-token-1").await;
    assert_eq!(entered.expect(200)["state"], "configured");
    assert!(
        tools(&ann, "notes")
            .await
            .contains(&"write_note".to_owned())
    );
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "writer1");
    for answer in [entered, ann.get("/v1/agents/notes/connections/notes").await] {
        assert!(!answer.text.contains("writer-token-1"), "{}", answer.text);
    }
}

#[tokio::test]
async fn a_token_that_the_server_refuses_is_not_kept() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let refused = enter(&ann, "notes", "not-a-token").await;
    assert_eq!(refused.expect(422)["code"], "unauthorized");
    assert_eq!(connection(&ann, "notes").await["state"], "not_configured");
    assert_eq!(tools(&ann, "notes").await, [""; 0]);
}

#[tokio::test]
async fn a_bad_token_does_not_replace_a_good_one() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    enter(&ann, "notes", "not-a-token").await.expect(422);
    assert_eq!(connection(&ann, "notes").await["state"], "configured");
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "reader1");
}

#[tokio::test]
async fn a_good_token_replaces_the_one_before_at_once() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "reader1");
    enter(&ann, "notes", "reader-token-2").await.expect(200);
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "reader2");
}

#[tokio::test]
async fn the_test_of_a_second_user_leaves_a_shared_catalog_as_it_is() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let (ann, bob, eve) = (
        world.user("ann", &[]).await,
        world.user("bob", &[]).await,
        world.user("eve", &[]).await,
    );
    enter(&ann, "notes", "writer-token-1").await.expect(200);
    enter(&bob, "notes", "reader-token-1").await.expect(200);
    assert_eq!(tools(&bob, "notes").await, tools(&ann, "notes").await);
    assert_eq!(
        bob.ask("notes", "/call notes whoami").await,
        "reader1",
        "with their own token"
    );
    assert_eq!(notes.count("tools/list"), 2, "a list tests each credential");
    assert_eq!(
        tools(&eve, "notes").await,
        [""; 0],
        "nothing without a credential, whatever is known"
    );
    enter(&eve, "notes", "not-a-token").await.expect(422);
}

#[tokio::test]
async fn a_per_user_catalog_shows_each_user_their_own_tools() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    enter(&ann, "private", "writer-token-1").await.expect(200);
    enter(&bob, "private", "reader-token-1").await.expect(200);
    assert!(
        tools(&ann, "private")
            .await
            .contains(&"write_note".to_owned())
    );
    assert!(
        !tools(&bob, "private")
            .await
            .contains(&"write_note".to_owned())
    );
    assert_eq!(notes.count("tools/list"), 2);
}

#[tokio::test]
async fn a_revoked_token_takes_its_tools_away_and_its_user_is_told_once() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    enter(&bob, "notes", "reader-token-2").await.expect(200);
    notes.revoke("reader-token-1");
    let chat = ann.open("notes").await;
    world
        .model
        .reply(calls([("notes__whoami", json!({}))]))
        .reply(text("Gone."))
        .reply(text("Still gone."));
    ann.say_and_wait(&chat, "who am I?").await;
    ann.say_and_wait(&chat, "and now?").await;
    let said = serde_json::to_string(&ann.messages(&chat).await).unwrap();
    assert_eq!(said.matches("credential_rejected").count(), 1, "{said}");
    let requests = world.model.requests();
    assert!(requests[0].body.to_string().contains("notes__whoami"));
    assert!(
        !requests[1].body["tools"]
            .to_string()
            .contains("notes__whoami"),
        "gone in the very next step"
    );
    let seen = connection(&ann, "notes").await;
    seen.has(json!({ "state": "needs_attention", "reason": "rejected" }));
    assert_eq!(
        bob.ask("notes", "/call notes whoami").await,
        "reader2",
        "others notice nothing"
    );
}

#[tokio::test]
async fn a_rejected_credential_is_good_again_when_its_test_succeeds() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    notes.revoke("reader-token-1");
    let path = "/v1/agents/notes/connections/notes/test";
    let tested = ann.post(path, json!({})).await.expect(200);
    tested.has(json!({ "ok": false, "reason": "unauthorized" }));
    assert_eq!(tools(&ann, "notes").await, [""; 0]);
    notes.grant("reader-token-1", "reader1", &["read"]);
    assert_eq!(ann.post(path, json!({})).await.expect(200)["ok"], true);
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "reader1");
}

#[tokio::test]
async fn an_outage_changes_nothing() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    let before = tools(&ann, "notes").await;
    drop(notes);
    let said = ann.ask("notes", "/call notes whoami").await;
    assert!(
        said.contains("failed") || said.contains("outcome unknown"),
        "{said}"
    );
    let tested = ann
        .post("/v1/agents/notes/connections/notes/test", json!({}))
        .await
        .expect(200);
    assert_eq!(tested["reason"], "unreachable");
    assert_eq!(tools(&ann, "notes").await, before);
    assert_ne!(connection(&ann, "notes").await["state"], "needs_attention");
}

#[tokio::test]
async fn what_is_removed_is_gone() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    ann.delete("/v1/agents/notes/connections/notes")
        .await
        .expect(204);
    assert_eq!(tools(&ann, "notes").await, [""; 0]);
    assert_eq!(connection(&ann, "notes").await["state"], "not_configured");
    let said = ann.ask("notes", "/call notes whoami").await;
    assert_eq!(
        said,
        "not executed: notes is not connected; type /connect notes"
    );
    ann.delete("/v1/agents/notes/connections/notes")
        .await
        .expect(204);
    let rows: i64 = sqlx::query_scalar("select count(*) from credentials")
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn another_replica_learns_of_every_change_within_a_moment() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let db = Db::connect(&world.db.url, 8).await.unwrap();
    let second = Service::start(world.config.clone(), &world.env, db)
        .await
        .unwrap();
    let there = Client::new(
        &format!("http://{}", second.address),
        Some(&ann.token().to_owned().into()),
    );
    assert_eq!(
        tools(&there, "notes").await,
        [""; 0],
        "asked before, so that it is remembered there"
    );
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    eventually(async || there.ask("notes", "/call notes whoami").await == "reader1").await;
    enter(&ann, "notes", "reader-token-2").await.expect(200);
    eventually(async || there.ask("notes", "/call notes whoami").await == "reader2").await;
    ann.delete("/v1/agents/notes/connections/notes")
        .await
        .expect(204);
    eventually(async || tools(&there, "notes").await.is_empty()).await;
    second.stop().await.unwrap();
}

/// Asks until it holds.
async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let asked = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, asked)
        .await
        .expect("the other replica has not heard of it");
}

#[tokio::test]
async fn credentials_and_catalogs_outlive_a_restart() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let token = {
        let ann = world.user("ann", &[]).await;
        enter(&ann, "notes", "reader-token-1").await.expect(200);
        ann.token().to_owned()
    };
    let world = world.stop().await.start().await;
    let ann = world.client(&token.into());
    assert!(tools(&ann, "notes").await.contains(&"whoami".to_owned()));
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "reader1");
    assert_eq!(notes.count("tools/list"), 1);
}

/// Enters a token where something else than Notes answers; the reason.
async fn reason_at(url: &str, token: &str) -> String {
    let world = World::with(|setup| {
        setup.env = setup.env.clone().with("NOTES_URL", url);
        setup.config.ring = crate::support::notes::ring();
        setup.packs = vec![pack("notes", "shared")];
    })
    .await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", token).await.expect(422)["code"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn the_reason_of_a_failed_test_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}/mcp", listener.local_addr().unwrap());
    // Bound, so that no other test gets the port, and not listened at.
    let bound = TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = format!("http://{}/mcp", bound.local_addr().unwrap());
    let pages = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let page = format!("http://{}/mcp", pages.local_addr().unwrap());
    let html = axum::Router::new().fallback(async || axum::response::Html("<p>hello</p>"));
    tokio::spawn(async move { axum::serve(pages, html).await });
    let broken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let failing = format!("http://{}/mcp", broken.local_addr().unwrap());
    let errors = axum::Router::new().fallback(async || http::StatusCode::INTERNAL_SERVER_ERROR);
    tokio::spawn(async move { axum::serve(broken, errors).await });
    assert_eq!(reason_at(&silent, "some-token").await, "timeout");
    assert_eq!(reason_at(&closed, "some-token").await, "unreachable");
    assert_eq!(reason_at(&page, "some-token").await, "not_mcp");
    assert_eq!(reason_at(&failing, "some-token").await, "unreachable");
    assert_eq!(reason_at(&page, "tokén").await, "bad_template");
}

#[tokio::test]
async fn values_that_cannot_be_used_are_refused_by_name_and_not_repeated() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    for token in [
        "",
        "  ",
        "s3cret\r\nX-Evil: 1",
        "s3cret\nmore",
        "s3cret\0",
        &"s3cret".repeat(6000),
    ] {
        let refused = enter(&ann, "notes", token).await;
        assert_eq!(refused.expect(400)["field"], "fields.token");
        assert!(!refused.text.contains("s3cret"), "{}", refused.text);
    }
    // A line break that came along with copying.
    enter(&ann, "notes", "reader-token-1\r\n").await.expect(200);
    let put = |body| {
        ann.send(
            ann.request(http::Method::PUT, "/v1/agents/notes/connections/notes")
                .json(&body),
        )
    };
    for body in [
        json!({ "fields": "s3cret" }),
        json!({ "fields": { "token": ["s3cret"] } }),
    ] {
        let refused = put(body).await;
        refused.expect(400);
        assert!(!refused.text.contains("s3cret"), "{}", refused.text);
    }
    assert_eq!(
        put(json!({ "fields": { "token": "a", "other": "b" } }))
            .await
            .expect(400)["field"],
        "fields.other"
    );
}

#[tokio::test]
async fn explain_names_the_missing_credential() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let (ann, root) = (world.user("ann", &[]).await, world.user("root", &[]).await);
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    let explained = root
        .get("/v1/agents/notes/tools?explain=true")
        .await
        .expect(200);
    let denied = explained["items"][0]["denied"].as_array().unwrap();
    assert!(!denied.is_empty());
    assert!(
        denied.iter().all(|tool| tool["reason"] == "no_credential"),
        "{denied:?}"
    );
}
