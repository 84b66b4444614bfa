//! Keys that issuers publish: fetched once, fetched again when there is a reason, kept when a fetch fails.

use chatelaine::app::accounts::Accounts;
use domain::{config::Environment, error::Error};
use egress::Egress;
use futures_util::future::join_all;
use jsonwebtoken::{Algorithm, Header};
use serde_json::json;
use time::Duration;

use super::fixture::{
    MAX_TOKEN, Provider, Published, TenantFixture, admit, assert_unauthenticated, refusal,
};

const UNKNOWN_KEY: &str = "the token is signed with a key that its issuer does not publish";

async fn publishing(provider: &Provider) -> (TenantFixture, Published) {
    let fixture = TenantFixture::new().await;
    let published = Published::new(&[provider.jwk()]).await;
    fixture
        .trust(&fixture.tenant, "EdDSA", published.keys())
        .await;
    (fixture, published)
}

fn token(provider: &Provider, user: usize) -> String {
    provider.token(json!({ "sub": format!("user-{user}") }))
}

#[tokio::test]
async fn a_crowd_causes_one_fetch() {
    let provider = Provider::new("k1");
    let (fixture, published) = publishing(&provider).await;
    let tokens: Vec<String> = (0..20).map(|user| token(&provider, user)).collect();
    let callers = join_all(tokens.iter().map(|token| admit(&fixture.accounts, token))).await;
    assert_eq!(callers[19].principal.user.as_str(), "user-19");
    assert_eq!(published.fetches(), 1);
}

#[tokio::test]
async fn a_new_key_is_fetched_at_once_and_then_at_most_every_half_minute() {
    let (old, new) = (Provider::new("k1"), Provider::new("k2"));
    let (fixture, published) = publishing(&old).await;
    admit(&fixture.accounts, &token(&old, 1)).await;
    published.set(&[old.jwk(), new.jwk()]);
    admit(&fixture.accounts, &token(&new, 2)).await;
    assert_eq!(published.fetches(), 2);

    let stranger = Provider::new("k3");
    for user in 0..5 {
        assert_unauthenticated(&fixture.accounts, &token(&stranger, user), UNKNOWN_KEY).await;
    }
    assert_eq!(published.fetches(), 2, "strangers cause no traffic");
    fixture.clock.advance(Duration::seconds(30));
    published.set(&[new.jwk(), stranger.jwk()]);
    admit(&fixture.accounts, &token(&stranger, 6)).await;
    assert_eq!(published.fetches(), 3);
}

#[tokio::test]
async fn a_new_key_under_a_known_id_is_fetched_at_once_and_then_at_most_every_half_minute() {
    let (old, new) = (Provider::new("k1"), Provider::new("k1"));
    let (fixture, published) = publishing(&old).await;
    admit(&fixture.accounts, &token(&old, 1)).await;
    published.set(&[new.jwk()]);
    admit(&fixture.accounts, &token(&new, 2)).await;
    assert_eq!(published.fetches(), 2);
    let stranger = Provider::new("k1");
    let sentence = "the token's signature does not fit its issuer's key";
    for user in 0..5 {
        assert_unauthenticated(&fixture.accounts, &token(&stranger, user), sentence).await;
    }
    assert_eq!(published.fetches(), 2, "strangers cause no traffic");
    fixture.clock.advance(Duration::seconds(30));
    assert_unauthenticated(&fixture.accounts, &token(&stranger, 6), sentence).await;
    assert_unauthenticated(&fixture.accounts, &token(&old, 7), sentence).await;
    assert_eq!(published.fetches(), 3);
    admit(&fixture.accounts, &token(&new, 8)).await;
}

#[tokio::test]
async fn a_key_that_was_taken_back_is_forgotten_after_five_minutes() {
    let (old, new) = (Provider::new("k1"), Provider::new("k2"));
    let (fixture, published) = publishing(&old).await;
    admit(&fixture.accounts, &token(&old, 1)).await;
    published.set(&[new.jwk()]);
    fixture.clock.advance(Duration::seconds(299));
    admit(&fixture.accounts, &token(&old, 2)).await;
    assert_eq!(published.fetches(), 1);
    fixture.clock.advance(Duration::seconds(1));
    assert_unauthenticated(&fixture.accounts, &token(&old, 3), UNKNOWN_KEY).await;
    admit(&fixture.accounts, &token(&new, 4)).await;
}

#[tokio::test]
async fn keys_stay_while_their_issuer_is_down() {
    let provider = Provider::new("k1");
    let (fixture, published) = publishing(&provider).await;
    admit(&fixture.accounts, &token(&provider, 1)).await;
    published.break_down();
    fixture.clock.advance(Duration::minutes(6));
    for user in 2..6 {
        admit(&fixture.accounts, &token(&provider, user)).await;
    }
    assert_eq!(published.fetches(), 2, "one try, then a pause");
    fixture.clock.advance(Duration::seconds(5));
    admit(&fixture.accounts, &token(&provider, 7)).await;
    assert_eq!(published.fetches(), 3);
}

#[tokio::test]
async fn an_issuer_that_never_answered_is_unavailable_until_it_does() {
    let provider = Provider::new("k1");
    let (fixture, published) = publishing(&provider).await;
    published.break_down();
    for user in 0..3 {
        let error = refusal(&fixture.accounts, &token(&provider, user)).await;
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert_eq!(
            error.to_string(),
            "the keys of the token's issuer cannot be fetched; try again soon"
        );
    }
    assert_eq!(published.fetches(), 1, "one try, then a pause");
    published.set(&[provider.jwk()]);
    fixture.clock.advance(Duration::seconds(5));
    admit(&fixture.accounts, &token(&provider, 4)).await;
}

#[tokio::test]
async fn a_key_set_on_a_private_address_is_not_fetched_unless_the_operator_allows_it() {
    let provider = Provider::new("k1");
    let (fixture, published) = publishing(&provider).await;
    let egress = Egress::new(&[]).unwrap();
    let guarded = Accounts::new(
        fixture.db().clone(),
        egress,
        fixture.clock.clone(),
        Environment::default(),
        MAX_TOKEN,
        "",
    );
    let error = refusal(&guarded, &token(&provider, 1)).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert_eq!(published.origin.accepted(), 0);
}

#[tokio::test]
async fn keys_that_cannot_be_used_do_not_spoil_the_others() {
    let provider = Provider::new("k1");
    let (fixture, published) = publishing(&provider).await;
    let mut encrypting = Provider::new("enc").jwk();
    encrypting["use"] = json!("enc");
    published.set(&[
        json!("nonsense"),
        json!({ "kty": "unheard-of", "kid": "x" }),
        json!({ "kty": "oct", "kid": "k1", "k": "c2VjcmV0" }),
        json!({ "kty": "RSA", "kid": "k1", "n": "!", "e": "AQAB" }),
        encrypting,
        provider.jwk(),
    ]);
    admit(&fixture.accounts, &token(&provider, 1)).await;
}

#[tokio::test]
async fn a_key_that_is_not_for_signatures_verifies_none() {
    let provider = Provider::new("k1");
    let (fixture, published) = publishing(&provider).await;
    let mut jwk = provider.jwk();
    jwk["use"] = json!("enc");
    published.set(&[jwk]);
    assert_unauthenticated(&fixture.accounts, &token(&provider, 1), UNKNOWN_KEY).await;
}

#[tokio::test]
async fn a_token_without_a_key_id_needs_a_set_of_one() {
    let (one, two) = (Provider::new("k1"), Provider::new("k2"));
    let (fixture, published) = publishing(&one).await;
    let anonymous = one.token_with(&Header::new(Algorithm::EdDSA), json!({}));
    admit(&fixture.accounts, &anonymous).await;
    published.set(&[one.jwk(), two.jwk()]);
    let sentence = "the token's header has no `kid` that says which of its issuer's keys signed it";
    assert_unauthenticated(&fixture.replica(), &anonymous, sentence).await;
}
