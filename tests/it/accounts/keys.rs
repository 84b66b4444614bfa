//! API keys: their life, guests, and that nothing crosses a tenant.

use chatelaine::{
    api::values_of,
    app::accounts::{self, NewKey},
};
use domain::{
    account::{FrontendHeaders, KeyKind},
    error::{Error, Result},
    principal::{Scope, Scopes},
    secret::Secret,
};
use serde_json::{Map, json};
use time::{Duration, OffsetDateTime};

use super::{
    fixture::{TenantFixture, admit, assert_unauthenticated, bearer},
    frontends::with,
};

const UNKNOWN: &str = "the API key is unknown; check that it was copied whole";

fn service() -> KeyKind {
    KeyKind::Service(Map::new())
}

fn prefix(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

fn new(name: &str, scopes: &[Scope], speaker: KeyKind) -> NewKey {
    NewKey {
        source: domain::account::SourceSettings::default(),
        name: name.to_owned(),
        scopes: Scopes::new(scopes.iter().copied()),
        speaker,
        chat: domain::account::ChatSettings::default(),
        expires_at: None,
    }
}

#[tokio::test]
async fn a_service_key_speaks_for_itself() {
    let fixture = TenantFixture::new().await;
    let claims = Map::from_iter([
        ("roles".to_owned(), json!(["finance"])),
        ("locale".to_owned(), json!("de")),
    ]);
    let key = fixture.key("nightly", KeyKind::Service(claims)).await;
    let caller = admit(&fixture.accounts, &key).await;
    assert_eq!(
        (caller.principal.tenant, caller.principal.user.as_str()),
        (fixture.tenant.id, "key:nightly")
    );
    assert!(caller.principal.authenticated && caller.key.is_some());
    assert_eq!(caller.principal.claims["roles"], json!(["finance"]));
    assert_eq!(caller.principal.locale.as_deref(), Some("de"));
    assert!(caller.admin().is_err() && caller.require(Scope::Chat).is_ok());
}

#[tokio::test]
async fn an_admin_key_has_the_power_to_manage_and_not_to_chat() {
    let fixture = TenantFixture::new().await;
    let issued = accounts::create_key(
        fixture.db(),
        &fixture.clock,
        fixture.tenant.id,
        new("ops", &[Scope::Admin], service()),
    )
    .await
    .unwrap();
    let caller = admit(&fixture.accounts, issued.secret.expose()).await;
    assert_eq!(caller.admin().unwrap().user().as_str(), "key:ops");
    let error = caller.require(Scope::Chat).unwrap_err();
    assert_eq!(
        error.to_string(),
        "this needs a credential with the scope `chat`"
    );
}

#[tokio::test]
async fn a_key_is_kept_as_a_hash_only() {
    let fixture = TenantFixture::new().await;
    let key = fixture.key("nightly", service()).await;
    let row: String =
        sqlx::query_scalar("select api_keys::text || encode(hash, 'escape') from api_keys")
            .fetch_one(&mut fixture.database.as_owner().await)
            .await
            .unwrap();
    let secret = key.split('_').nth(2).unwrap();
    assert!(row.contains(prefix(&key)) && !row.contains(secret), "{row}");
    assert!(secret.len() == 64);
}

#[tokio::test]
async fn what_only_looks_like_a_key_is_refused() {
    let fixture = TenantFixture::new().await;
    let key = fixture.key("nightly", service()).await;
    let other = fixture.key("other", service()).await;
    let swapped = format!("chk_{}_{}", prefix(&key), other.split('_').nth(2).unwrap());
    let longer = format!("{key}0");
    let changed = key.replace(char::is_numeric, "f");
    for text in [
        "chk_",
        "chk_a_b",
        "chk_000000000000_",
        key[..key.len() - 1].as_ref(),
        &longer,
        &swapped,
        &changed,
    ] {
        assert_unauthenticated(&fixture.accounts, text, UNKNOWN).await;
    }
    let unknown = format!("chk_ffffffffffff_{}", "0".repeat(64));
    assert_unauthenticated(&fixture.accounts, &unknown, UNKNOWN).await;
    admit(&fixture.accounts, &key).await;
}

#[tokio::test]
async fn a_revoked_key_ends_within_five_seconds() {
    let fixture = TenantFixture::new().await;
    let key = fixture.key("nightly", service()).await;
    admit(&fixture.accounts, &key).await;
    let db = fixture.db();
    assert_eq!(
        accounts::revoke_key(db, fixture.tenant.id, prefix(&key))
            .await
            .unwrap(),
        1
    );
    let sentence = format!("the API key {} is revoked", prefix(&key));
    assert_unauthenticated(&fixture.replica(), &key, &sentence).await;
    fixture.clock.advance(Duration::seconds(4));
    admit(&fixture.accounts, &key).await;
    fixture.clock.advance(Duration::seconds(1));
    assert_unauthenticated(&fixture.accounts, &key, &sentence).await;
    let error = accounts::revoke_key(db, fixture.tenant.id, "nightly")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn a_warm_key_needs_no_database() {
    let fixture = TenantFixture::new().await;
    let key = fixture.key("nightly", service()).await;
    admit(&fixture.accounts, &key).await;
    fixture.db().close().await;
    admit(&fixture.accounts, &key).await;
    assert!(
        fixture
            .replica()
            .authenticate(&values_of(&bearer(&key)), None, None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_key_ends_at_its_time_even_when_it_is_warm() {
    let fixture = TenantFixture::new().await;
    let expires_at = Some(fixture.clock.now() + Duration::seconds(3));
    let new = NewKey {
        expires_at,
        ..new("brief", &[Scope::Chat], service())
    };
    let issued = accounts::create_key(fixture.db(), &fixture.clock, fixture.tenant.id, new)
        .await
        .unwrap();
    let key = issued.secret.expose();
    fixture.clock.advance(Duration::seconds(2));
    admit(&fixture.accounts, key).await;
    fixture.clock.advance(Duration::seconds(1));
    let sentence = format!("the API key {} has expired", prefix(key));
    assert_unauthenticated(&fixture.accounts, key, &sentence).await;
    assert_unauthenticated(&fixture.replica(), key, &sentence).await;
}

#[tokio::test]
async fn rotation_lets_two_keys_of_a_name_live_and_the_first_one_end() {
    let fixture = TenantFixture::new().await;
    let (db, clock, tenant) = (fixture.db(), &fixture.clock, fixture.tenant.id);
    let first = fixture.key("nightly", service()).await;
    let second = accounts::rotate_key(db, clock, tenant, "nightly", after(Duration::hours(1)))
        .await
        .unwrap();
    let second = second.secret.expose();
    for key in [first.as_str(), second] {
        assert_eq!(
            admit(&fixture.accounts, key).await.principal.user.as_str(),
            "key:nightly"
        );
    }
    let error = accounts::rotate_key(db, clock, tenant, "nightly", after(Duration::hours(1)))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "two keys \"nightly\" are live; revoke one by its prefix first"
    );

    clock.advance(Duration::hours(1));
    let sentence = format!("the API key {} has expired", prefix(&first));
    assert_unauthenticated(&fixture.accounts, &first, &sentence).await;
    admit(&fixture.accounts, second).await;
    let third = accounts::rotate_key(db, clock, tenant, "nightly", after(Duration::ZERO))
        .await
        .unwrap();
    admit(&fixture.accounts, third.secret.expose()).await;
    let sentence = format!("the API key {} has expired", prefix(second));
    assert_unauthenticated(&fixture.replica(), second, &sentence).await;
}

#[tokio::test]
async fn a_rotated_key_keeps_its_rights_and_its_span() {
    let fixture = TenantFixture::new().await;
    let (db, clock, tenant) = (fixture.db(), &fixture.clock, fixture.tenant.id);
    let expires_at = Some(clock.now() + Duration::days(30));
    let old = NewKey {
        expires_at,
        ..new("ops", &[Scope::Admin, Scope::Chat], service())
    };
    accounts::create_key(db, clock, tenant, old).await.unwrap();
    clock.advance(Duration::days(20));
    let fresh = accounts::rotate_key(db, clock, tenant, "ops", after(Duration::days(20)))
        .await
        .unwrap()
        .key;
    assert_eq!(fresh.scopes, Scopes::new([Scope::Admin, Scope::Chat]));
    assert_eq!(fresh.expires_at, Some(clock.now() + Duration::days(30)));
    let old = accounts::list_keys(db, tenant)
        .await
        .unwrap()
        .into_iter()
        .find(|key| key.id != fresh.id)
        .unwrap();
    assert_eq!(
        old.expires_at, expires_at,
        "an overlap never prolongs a key"
    );
}

#[tokio::test]
async fn a_name_has_one_key_until_it_is_rotated() {
    let fixture = TenantFixture::new().await;
    let (db, clock, tenant) = (fixture.db(), &fixture.clock, fixture.tenant.id);
    let create =
        || accounts::create_key(db, clock, tenant, new("nightly", &[Scope::Chat], service()));
    let (one, two) = tokio::join!(create(), create());
    assert_eq!(
        [one.is_ok(), two.is_ok()]
            .iter()
            .filter(|made| **made)
            .count(),
        1,
        "{one:?} {two:?}"
    );
    let error = create().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is a live key \"nightly\" already; rotate or revoke it"
    );
    accounts::revoke_key(db, tenant, "nightly").await.unwrap();
    create().await.unwrap();
    let expired = NewKey {
        expires_at: Some(clock.now()),
        ..new("brief", &[Scope::Chat], service())
    };
    accounts::create_key(db, clock, tenant, expired)
        .await
        .unwrap();
    accounts::create_key(db, clock, tenant, new("brief", &[Scope::Chat], service()))
        .await
        .unwrap();
}

#[tokio::test]
async fn two_rotations_at_once_make_one_key() {
    let fixture = TenantFixture::new().await;
    let (db, clock, tenant) = (fixture.db(), &fixture.clock, fixture.tenant.id);
    fixture.key("nightly", service()).await;
    let rotate = || accounts::rotate_key(db, clock, tenant, "nightly", after(Duration::hours(1)));
    let (one, two) = tokio::join!(rotate(), rotate());
    assert_eq!(
        [one.is_ok(), two.is_ok()]
            .iter()
            .filter(|made| **made)
            .count(),
        1,
        "{one:?} {two:?}"
    );
    assert_eq!(accounts::list_keys(db, tenant).await.unwrap().len(), 2);
}

#[tokio::test]
async fn keys_that_make_no_sense_are_not_made() {
    let fixture = TenantFixture::new().await;
    let with_header = |user_id: &str| {
        KeyKind::Frontend(FrontendHeaders {
            user_id: user_id.to_owned(),
            ..FrontendHeaders::open_webui()
        })
    };
    for (new, field) in [
        (new("", &[Scope::Chat], service()), "name"),
        (new("Nightly", &[Scope::Chat], service()), "name"),
        (new("-x", &[Scope::Chat], service()), "name"),
        (new("no-scope", &[], service()), "scopes"),
        (
            new(
                "web",
                &[Scope::Chat, Scope::Admin],
                KeyKind::Frontend(FrontendHeaders::librechat()),
            ),
            "scopes",
        ),
        (
            new("web", &[Scope::Chat], with_header("Authorization")),
            "frontend",
        ),
        (
            new("web", &[Scope::Chat], with_header("not a header")),
            "frontend",
        ),
        (new("web", &[Scope::Chat], KeyKind::Guest), "speaker"),
    ] {
        let error = accounts::create_key(fixture.db(), &fixture.clock, fixture.tenant.id, new)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { field: at, .. } if at == field),
            "{field}: {error:?}"
        );
    }
}

#[tokio::test]
async fn an_issued_key_prints_nothing_of_itself() {
    let fixture = TenantFixture::new().await;
    let new = new("nightly", &[Scope::Chat], service());
    let issued = accounts::create_key(fixture.db(), &fixture.clock, fixture.tenant.id, new)
        .await
        .unwrap();
    let caller = admit(&fixture.accounts, issued.secret.expose()).await;
    let secret = issued.secret.expose().split('_').nth(2).unwrap();
    assert!(!format!("{issued:?} {caller:?}").contains(secret));
}

// ---- frontends

#[tokio::test]
async fn a_guest_is_somebody_unauthenticated_for_a_day() {
    let fixture = TenantFixture::new().await;
    let clock = &fixture.clock;
    let hotel = accounts::add_tenant(fixture.db(), clock, "hotel", None, true)
        .await
        .unwrap();
    let (key, expiry) = create_guest(&fixture, "hotel").await.unwrap();
    let (other, _) = create_guest(&fixture, "hotel").await.unwrap();
    assert_eq!(expiry, clock.now() + Duration::hours(24));
    let sent = with(key.expose(), [("X-OpenWebUI-User-Id", "eve")]);
    let caller = fixture
        .accounts
        .authenticate(&values_of(&sent), None, None)
        .await
        .unwrap();
    assert_eq!(caller.principal.tenant, hotel.id);
    assert!(!caller.principal.authenticated && caller.principal.claims.is_empty());
    assert!(caller.principal.user.as_str().starts_with("guest:"));
    assert!(caller.require(Scope::Chat).is_ok() && caller.admin().is_err());
    let other = admit(&fixture.accounts, other.expose()).await;
    assert_ne!(caller.principal.user, other.principal.user);

    clock.advance(Duration::hours(24));
    let sentence = format!("the API key {} has expired", prefix(key.expose()));
    assert_unauthenticated(&fixture.accounts, key.expose(), &sentence).await;
    create_guest(&fixture, "hotel").await.unwrap();
    let left: i64 = sqlx::query_scalar("select count(*) from api_keys")
        .fetch_one(&mut fixture.database.as_owner().await)
        .await
        .unwrap();
    assert_eq!(left, 1, "guests that expired are forgotten");
    assert!(
        accounts::list_keys(fixture.db(), hotel.id)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_tenant_without_guests_and_no_tenant_look_alike() {
    let fixture = TenantFixture::new().await;
    for name in ["acme", "nobody"] {
        let error = create_guest(&fixture, name).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("tenant {name:?} that takes guests was not found")
        );
    }
}

// ---- tenants

#[tokio::test]
async fn nothing_of_a_key_crosses_to_another_tenant() {
    let fixture = TenantFixture::new().await;
    let (db, clock) = (fixture.db(), &fixture.clock);
    let other = accounts::add_tenant(db, clock, "other", None, false)
        .await
        .unwrap();
    let ours = fixture.key("nightly", service()).await;
    let theirs = fixture.key_of(&other, "nightly", service()).await;
    assert_eq!(
        admit(&fixture.accounts, &ours).await.principal.tenant,
        fixture.tenant.id
    );
    assert_eq!(
        admit(&fixture.accounts, &theirs).await.principal.tenant,
        other.id
    );
    let listed = accounts::list_keys(db, fixture.tenant.id).await.unwrap();
    assert_eq!(
        listed
            .iter()
            .map(|key| key.prefix.as_str())
            .collect::<Vec<_>>(),
        [prefix(&ours)]
    );
    let error = accounts::revoke_key(db, fixture.tenant.id, prefix(&theirs))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotFound(_)), "{error:?}");
    accounts::revoke_key(db, fixture.tenant.id, "nightly")
        .await
        .unwrap();
    admit(&fixture.replica(), &theirs).await;
}

#[tokio::test]
async fn a_removed_tenant_takes_its_keys_and_issuers_with_it() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let key = fixture.key("nightly", service()).await;
    accounts::remove_tenant(fixture.db(), fixture.tenant.id)
        .await
        .unwrap();
    let replica = fixture.replica();
    assert_unauthenticated(&replica, &key, UNKNOWN).await;
    assert!(
        replica
            .authenticate(&values_of(&bearer(&provider.token(json!({})))), None, None)
            .await
            .is_err()
    );
    let error = replica.tenant(fixture.tenant.id).await.unwrap_err();
    assert!(matches!(error, Error::NotFound(_)), "{error:?}");
}

async fn create_guest(fixture: &TenantFixture, tenant: &str) -> Result<(Secret, OffsetDateTime)> {
    let tenant = fixture.accounts.tenant_for_guests(tenant).await?;
    fixture.accounts.create_guest(tenant).await
}

/// The first key ends after this time.
fn after(overlap: time::Duration) -> accounts::KeyRotation {
    accounts::KeyRotation {
        overlap,
        ..accounts::KeyRotation::default()
    }
}
