//! Authorization servers and servers that lie: nothing is sent where it does not belong.

use super::{
    connection,
    guarded::{Guarded, Wrong},
    link, open, say, sign_in, texts, world,
};
use crate::support::{client::Client, world::World};

async fn wrong(wrong: Wrong) -> (Guarded, World, Client, String) {
    let guarded = Guarded::start().await;
    guarded.turn(|knobs| knobs.wrong = wrong);
    let world = world(&guarded.url, "auth: oauth", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    (guarded, world, ann, chat)
}

#[tokio::test]
async fn whoever_lies_before_the_sign_in_gets_no_user() {
    for kind in [
        Wrong::Issuer,
        Wrong::Resource,
        Wrong::Script,
        Wrong::Circle,
        Wrong::Huge,
        Wrong::NoPkce,
    ] {
        let (guarded, _world, ann, chat) = wrong(kind).await;
        let parts = say(&ann, &chat, "/connect notes").await;
        assert!(
            parts.iter().all(|part| part["type"] == "notice"),
            "{kind:?}: {parts:?}"
        );
        let said = texts(&parts);
        assert!(said.starts_with("⚠️"), "{kind:?}: {said}");
        let asked = guarded.seen(|seen| seen.asked.clone());
        assert!(
            !asked.iter().any(|path| path.starts_with("token")),
            "{kind:?}: {asked:?}"
        );
    }
}

#[tokio::test]
async fn metadata_that_is_not_at_another_origin_is_looked_for_at_the_servers_own() {
    let (guarded, world, ann, chat) = wrong(Wrong::ForeignMetadata).await;
    let link = link(&ann, &chat).await;
    assert!(
        link.starts_with(&guarded.issuer),
        "nothing is at the place that the challenge names"
    );
    sign_in(&world.url, &link).await;
}

#[tokio::test]
async fn a_code_is_not_redeemed_when_its_issuer_is_not_certain() {
    for kind in [Wrong::AnswerIssuer, Wrong::NoAnswerIssuer] {
        let (guarded, world, ann, chat) = wrong(kind).await;
        let back = sign_in(&world.url, &link(&ann, &chat).await).await;
        open(&world, &back).await.expect_page(200, "not connected");
        assert_eq!(guarded.seen(|seen| seen.codes.len()), 0, "{kind:?}");
        assert_eq!(connection(&ann).await["state"], "not_configured");
    }
}

#[tokio::test]
async fn a_code_is_sent_to_no_private_address() {
    let (guarded, world, ann, chat) = wrong(Wrong::PrivateTokenEndpoint).await;
    let back = sign_in(&world.url, &link(&ann, &chat).await).await;
    open(&world, &back).await.expect_page(200, "not connected");
    assert_eq!(guarded.seen(|seen| seen.codes.len()), 0);
}

#[tokio::test]
async fn a_code_of_one_sign_in_is_of_no_use_in_another() {
    let (guarded, world, ann, chat) = wrong(Wrong::Nothing).await;
    let first = sign_in(&world.url, &link(&ann, &chat).await).await;
    let second = sign_in(&world.url, &link(&ann, &chat).await).await;
    let code = |path: &str| {
        let (_, rest) = path.split_once("code=").unwrap();
        rest.split('&').next().unwrap().to_owned()
    };
    let mixed = second.replace(&code(&second), &code(&first));
    open(&world, &mixed).await.expect_page(200, "not connected");
    assert_eq!(guarded.seen(|seen| seen.codes.len()), 1, "PKCE refused it");
    assert_eq!(connection(&ann).await["state"], "not_configured");
}
