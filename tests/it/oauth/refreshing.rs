//! Tokens that end.

use std::time::Duration;

use chatelaine::domain::clock;

use super::{call, connect, connected, connection, guarded::Guarded, world};

#[tokio::test]
async fn a_token_that_ends_is_refreshed_and_the_call_is_made() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.end_access_tokens();
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
    assert_eq!(guarded.seen(|seen| (seen.refreshes, seen.replays)), (1, 0));
    assert_eq!(connection(&ann).await["state"], "configured");
}

#[tokio::test]
async fn an_authorization_server_that_is_away_takes_nothing_from_the_user() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.turn(|knobs| knobs.away = true);
    guarded.end_access_tokens();
    let result = call(&world, &ann, &chat, "read").await;
    let said = result["text"].as_str().unwrap();
    assert!(said.contains("nothing was sent"), "{said}");
    assert_eq!(guarded.seen(|seen| seen.calls), 0);
    guarded.turn(|knobs| knobs.away = false);
    until_done(&world, &ann, &chat).await;
    assert_eq!(guarded.seen(|seen| (seen.refreshes, seen.replays)), (1, 0));
}

/// Calls until the pause after a failure is over.
async fn until_done(
    world: &crate::support::world::World,
    client: &crate::support::client::Client,
    chat: &str,
) {
    for _ in 0..20 {
        if call(world, client, chat, "read").await["text"] == "done" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("the server does not come back");
}

#[tokio::test]
async fn a_refresh_that_is_refused_asks_the_user_again() {
    let (guarded, world, ann, chat) = connected(|_| {}).await;
    guarded.end_authorizations();
    let result = call(&world, &ann, &chat, "read").await;
    assert_eq!(result["status"], "failed", "{result}");
    let now = connection(&ann).await;
    assert_eq!(
        (&now["state"], &now["reason"]),
        (&"needs_attention".into(), &"rejected".into())
    );
    assert!(connect(&world, &ann, &chat).await.starts_with("✅"));
    assert_eq!(call(&world, &ann, &chat, "read").await["text"], "done");
}

#[tokio::test]
async fn two_replicas_and_many_users_refresh_once_for_each_life_of_a_token() {
    const USERS: usize = 8;
    let guarded = Guarded::start().await;
    guarded.turn(|knobs| knobs.life = 5);
    let often =
        |setup: &mut crate::support::world::Setup| setup.config.requests_per_minute = 100_000;
    let world = world(&guarded.url, "auth: oauth", often).await;
    let other = world.replica().await;
    let mut users = Vec::new();
    for number in 0..USERS {
        let user = world.user(&format!("user{number}"), &[]).await;
        let chat = user.open("desk").await;
        assert!(connect(&world, &user, &chat).await.starts_with("✅"));
        users.push(user);
    }
    let until = clock::instant() + Duration::from_secs(17);
    let mut busy = tokio::task::JoinSet::new();
    for user in &users {
        for client in [user.at(&world.url), user.at(&other.url)] {
            busy.spawn(async move {
                let mut made = 0;
                while clock::instant() < until {
                    let tested = client
                        .post(
                            "/v1/agents/desk/connections/notes/test",
                            serde_json::json!({}),
                        )
                        .await;
                    assert_eq!(tested.expect(200)["ok"], true);
                    made += 1;
                }
                made
            });
        }
    }
    let made: usize = busy.join_all().await.into_iter().sum();
    let (refreshes, replays) = guarded.seen(|seen| (seen.refreshes, seen.replays));
    assert!(made > USERS * 8, "they were busy: {made}");
    assert_eq!(replays, 0, "each refresh token was used once at most");
    // A life of 5 s is used for more than 3 s.
    assert!((USERS * 2..=USERS * 7).contains(&refreshes), "{refreshes}");
    for user in &users {
        assert_eq!(connection(user).await["state"], "configured");
    }
}
