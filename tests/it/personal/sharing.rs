//! What users share of the list of a personal server: what the server and the pack say of it.

use std::time::Duration;

use domain::{
    ids::{AgentId, ServerId},
    owner::CatalogOwner,
    tool::{CacheHints, CacheScope},
};
use serde_json::{Value, json};

use super::{enter, tools};
use crate::support::{
    notes::{pack, ring},
    scripted::{Scripted, Seen, reply},
    world::World,
};

/// A server that lists one tool, which has the name in the token that it is asked with, and says this of the list.
async fn server(hints: Value) -> Scripted {
    Scripted::modern(move |seen: Seen| {
        let mut list = hints.clone();
        async move {
            if seen.method() != "tools/list" {
                return None;
            }
            let token = seen.headers["authorization"].to_str().unwrap();
            // The false credential that a server is judged with is nobody's.
            let Some(name) = token.strip_prefix("Bearer token-of-") else {
                return Some(reply(http::StatusCode::UNAUTHORIZED, &[], ""));
            };
            list["tools"] = json!([{ "name": name, "inputSchema": { "type": "object" } }]);
            Some(seen.result(list))
        }
    })
    .await
}

async fn world(server: &Scripted, catalog: &str) -> World {
    World::with(|setup| {
        setup.env = setup.env.clone().with("NOTES_URL", server.url.as_str());
        setup.config.ring = ring();
        // By default the admins would have to accept what the second user sees.
        setup.packs = vec![pack("notes", &format!("{catalog}\n      pin: \"off\""))];
    })
    .await
}

/// The tools that two users see who come one after the other, and how often the server was asked for them: once for
/// each user's test, and once with a false credential.
async fn seen_by_two(catalog: &str, hints: Value) -> ([Vec<String>; 2], usize) {
    let server = server(hints).await;
    let world = world(&server, catalog).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    enter(&ann, "notes", "token-of-ann").await.expect(200);
    enter(&bob, "notes", "token-of-bob").await.expect(200);
    let seen = [tools(&ann, "notes").await, tools(&bob, "notes").await];
    (seen, server.requests("tools/list").len())
}

fn names(to_ann: &str, to_bob: &str) -> [Vec<String>; 2] {
    [vec![to_ann.to_owned()], vec![to_bob.to_owned()]]
}

#[tokio::test]
async fn a_list_that_the_server_calls_private_is_not_shared_although_the_pack_shares() {
    for scope in ["private", "a word of tomorrow"] {
        let seen = seen_by_two("shared", json!({ "cacheScope": scope })).await;
        assert_eq!(seen, (names("ann", "bob"), 3), "{scope}");
    }
}

#[tokio::test]
async fn a_list_that_the_server_calls_public_or_says_nothing_of_is_shared_as_the_pack_says() {
    for hints in [json!({ "cacheScope": "public" }), json!({})] {
        let seen = seen_by_two("shared", hints.clone()).await;
        assert_eq!(seen, (names("ann", "ann"), 3), "{hints}");
    }
}

#[tokio::test]
async fn a_pack_that_keeps_lists_apart_does_so_whatever_the_server_says() {
    for hints in [json!({ "cacheScope": "public" }), json!({})] {
        let seen = seen_by_two("per-user", hints.clone()).await;
        assert_eq!(seen, (names("ann", "bob"), 3), "{hints}");
    }
}

#[tokio::test]
async fn what_the_server_said_of_its_list_is_stored_with_it() {
    let server = server(json!({ "cacheScope": "private", "ttlMs": 90_000 })).await;
    let world = world(&server, "shared").await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "token-of-ann").await.expect(200);
    let place = |owner| (ServerId::parse("notes").unwrap(), owner);
    let agent = AgentId::parse("notes").unwrap();
    let mut tx = world.db.db.tenant(world.tenant.id).await.unwrap();
    let shared = [place(CatalogOwner::Shared)];
    let stored = store::catalogs::list(&mut tx, &agent, &shared)
        .await
        .unwrap();
    let (shared, _) = &stored[0];
    assert!(shared.tools.is_empty(), "nothing of it is for others");
    let hints = CacheHints {
        ttl: Some(Duration::from_secs(90)),
        scope: Some(CacheScope::Private),
    };
    assert_eq!(shared.cache, hints);
}
