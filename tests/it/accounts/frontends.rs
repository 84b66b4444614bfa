//! Frontends' keys: they speak for the users that they name, and for nobody else.

use chatelaine::api::values_of;
use domain::{
    account::{FrontendHeaders, KeyKind},
    error::Error,
};
use serde_json::{Map, json};

use super::fixture::{TenantFixture, bearer, headers, refusal_of};

async fn frontend(settings: FrontendHeaders) -> (TenantFixture, String) {
    let fixture = TenantFixture::new().await;
    let key = fixture.key("web", KeyKind::Frontend(settings)).await;
    (fixture, key)
}

pub(super) fn with<'a>(
    key: &str,
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> http::HeaderMap {
    let mut sent = bearer(key);
    sent.extend(headers(pairs));
    sent
}

#[tokio::test]
async fn open_webui_speaks_for_its_users() {
    let (fixture, key) = frontend(FrontendHeaders::open_webui()).await;
    let sent = with(
        &key,
        [
            ("X-OpenWebUI-User-Id", "8f0c"),
            ("X-OpenWebUI-User-Name", "Zo%C3%AB van der Berg"),
            ("X-OpenWebUI-User-Email", "zoe@example.org"),
            ("X-OpenWebUI-User-Role", "user"),
            ("X-OpenWebUI-Chat-Id", "chat-7"),
        ],
    );
    let caller = fixture
        .accounts
        .authenticate(&values_of(&sent), None, None)
        .await
        .unwrap();
    let principal = &caller.principal;
    assert_eq!(
        (principal.tenant, principal.user.as_str()),
        (fixture.tenant.id, "8f0c")
    );
    assert!(principal.authenticated);
    assert_eq!(
        serde_json::to_value(&*principal.claims).unwrap(),
        json!({ "sub": "8f0c", "name": "Zoë van der Berg", "email": "zoe@example.org", "roles": "user" })
    );
    assert_eq!(caller.conversation_key.as_deref(), Some("chat-7"));
}

#[tokio::test]
async fn librechat_speaks_for_its_users() {
    let (fixture, key) = frontend(FrontendHeaders::librechat()).await;
    let sent = with(
        &key,
        [
            ("X-LibreChat-User-Id", "65a1"),
            ("X-LibreChat-User-Name", "b64:xYF1a2Fzeg=="),
            ("X-LibreChat-User-Role", "USER"),
            ("X-LibreChat-Conversation-Id", "conv-1"),
        ],
    );
    let caller = fixture
        .accounts
        .authenticate(&values_of(&sent), None, None)
        .await
        .unwrap();
    assert_eq!(caller.principal.user.as_str(), "65a1");
    assert_eq!(caller.principal.claim("name").as_deref(), Some("Łukasz"));
    assert_eq!(caller.conversation_key.as_deref(), Some("conv-1"));
}

#[tokio::test]
async fn a_frontend_that_names_no_user_is_refused() {
    let (fixture, key) = frontend(FrontendHeaders::open_webui()).await;
    let missing =
        "this key speaks for users: send the user's id in the header `X-OpenWebUI-User-Id`"
            .to_owned();
    let header = "the header `X-OpenWebUI-User-Id`";
    for (pairs, sentence) in [
        (vec![], missing.clone()),
        (vec![("X-OpenWebUI-User-Id", "  ")], missing.clone()),
        (
            vec![("X-OpenWebUI-User-Email", "zoe@example.org")],
            missing.clone(),
        ),
        (vec![("X-LibreChat-User-Id", "8f0c")], missing),
        (
            vec![("X-OpenWebUI-User-Id", "{{LIBRECHAT_USER_ID}}")],
            format!("{header} holds a placeholder that the frontend did not fill in"),
        ),
        (
            vec![("X-OpenWebUI-User-Id", "a"), ("X-OpenWebUI-User-Id", "b")],
            format!("{header} was sent more than once"),
        ),
        (
            vec![("X-OpenWebUI-User-Id", "key:web")],
            format!("{header} starts with `key:`, which is reserved"),
        ),
        (
            vec![("X-OpenWebUI-User-Id", "guest:1")],
            format!("{header} starts with `guest:`, which is reserved"),
        ),
        (
            vec![("X-OpenWebUI-User-Id", "issuer:0:ada")],
            format!("{header} starts with `issuer:`, which is reserved"),
        ),
    ] {
        let error = refusal_of(&fixture.accounts, &with(&key, pairs)).await;
        assert!(matches!(error, Error::Unauthenticated(_)), "{error:?}");
        assert_eq!(error.to_string(), sentence);
    }
}

#[tokio::test]
async fn one_warm_key_still_speaks_for_each_user_apart() {
    let (fixture, key) = frontend(FrontendHeaders::open_webui()).await;
    for user in ["ann", "bob", "ann"] {
        let caller = fixture
            .accounts
            .authenticate(
                &values_of(&with(&key, [("X-OpenWebUI-User-Id", user)])),
                None,
                None,
            )
            .await
            .unwrap();
        assert_eq!(caller.principal.user.as_str(), user);
    }
}

#[tokio::test]
async fn ids_are_taken_as_they_are_and_only_descriptions_are_decoded() {
    let (fixture, key) = frontend(FrontendHeaders::open_webui()).await;
    for (id, name, decoded) in [
        ("a%62", "100%", "100%"),
        ("ab", "50%25", "50%"),
        ("a b", "%zz", "%zz"),
        ("%0a", "a%0Ab", "a%0Ab"),
        ("b64:YQ==", "%ff", "%ff"),
    ] {
        let sent = with(
            &key,
            [("X-OpenWebUI-User-Id", id), ("X-OpenWebUI-User-Name", name)],
        );
        let caller = fixture
            .accounts
            .authenticate(&values_of(&sent), None, None)
            .await
            .unwrap();
        assert_eq!(caller.principal.user.as_str(), id);
        assert_eq!(caller.principal.claim("name").as_deref(), Some(decoded));
    }
}

#[tokio::test]
async fn headers_that_name_a_user_mean_nothing_with_another_key() {
    let fixture = TenantFixture::new().await;
    let key = fixture.key("nightly", KeyKind::Service(Map::new())).await;
    let sent = with(
        &key,
        [
            ("X-OpenWebUI-User-Id", "eve"),
            ("X-OpenWebUI-User-Role", "admin"),
        ],
    );
    let caller = fixture
        .accounts
        .authenticate(&values_of(&sent), None, None)
        .await
        .unwrap();
    assert_eq!(caller.principal.user.as_str(), "key:nightly");
    assert!(caller.principal.claims.is_empty());
}

// ---- guests
