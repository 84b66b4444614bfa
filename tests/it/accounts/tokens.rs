//! Tokens, and every reason to refuse one.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chatelaine::{api::values_of, app::accounts};
use domain::{
    account::IssuerKeys,
    clock::{self, Clock},
    error::Error,
    principal::{Audience, Scope, find_claim, keep_claims},
};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use time::Duration;

use super::fixture::{
    HMAC_SECRET, ISSUER, MAX_TOKEN, NOW, PUBLIC_URL, Provider, TenantFixture, admit,
    assert_unauthenticated, bearer, headers, issuer, refusal, refusal_of, usual,
};

/// Signed elsewhere (openssl) for `ada`, valid until 2033, with the public key.
const RS256: (&str, &str) = (
    "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lkcC5leGFtcGxlIiwiYXVkIjoiY2hhdCIsInN1YiI6ImFkYSIsImV4cCI6MjAwMDAwMDAwMH0.bwec6joWqtdRSXGtKYsJQmDVZkAYmpGXcaaJj9wxXUQqmfXbjYlwjPxhT3BHt6D0gYx6jB_rH7T0uddU2AdM4cqt_TpBWbklpCy8xRFJZ6bin9ZDqt2btH9l9ueHv0gM8W0mOVYBJ05KgAkjS2AOlO2OnKM2QfuhSsAM9K3DwxCJKRMbc6n42d_3cKsNlqZ1OK6IPIjmqRWArdB5eS2Unix-1qIbKwn3MvtduqMw8HkNW-aYeqdnQgwzgVr9P2jfKWHuBewqxv5wCEylf_24xGWQ7zGeqXv52kiq2DDzWsDgamQiHbekn_ir-UL7vjpvqAk7ljLe1poF3qHP-l_1DA",
    "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEApGFPhXNqpJaiXpuMjMlQ
m6WKg2exiV6jDyXQ0juHE82LScXSbdTqENgDO0fYCiq+3pwq9ptm/QX2o+kGPVKB
Z2Yvj2jsAgP19mS/ayk0kxmfTCae/XwUYsfk46wbJRUePsiTh1MgkR97Zj1o2Ek2
BpGBTVLQ5jobhpCDZqoCeZBJ6PS+NO3nnVxaQ6ybYk0fph7mdG55pVXoG0GM49m3
GJ0o8nYz5obNVqKSbRzvXLHNQuIAr0VyiB/d+H1El2BUs0k3H0YCrwGW2i8JK6GO
qc3pTLRQtZ6kkRfwiLLcOdieE7oZK+evMNcHD5Yj0Jy02EOz0bzY3yV5wVylxChA
uQIDAQAB
-----END PUBLIC KEY-----
",
);
const ES256: (&str, &str) = (
    "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lkcC5leGFtcGxlIiwiYXVkIjoiY2hhdCIsInN1YiI6ImFkYSIsImV4cCI6MjAwMDAwMDAwMH0.a-0mW9Jqs61AwWY70o6RDyfaNjik0AUSx6vMkqE4khA1Kkxx1dpJQvI45OzGWtZ75jy5042v9u7L4mGOuRzZ6Q",
    "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEBHiKYrDxvLG2ZpECxZhJIIcB2Nru
CotdtJvLAlh43RZxOHUqbBuQUcKm2+Wgm/TXcr5WmTW3jKwMmEDnTLzZBA==
-----END PUBLIC KEY-----
",
);
const NOT_ITS_KEY: &str = "the token's signature does not fit its issuer's key";

/// A token with a header and payload of one's own and no honest signature.
fn forged(header: &Value, claims: Value, signature: &str) -> String {
    let part = |json: String| URL_SAFE_NO_PAD.encode(json);
    format!(
        "{}.{}.{signature}",
        part(header.to_string()),
        part(Value::Object(usual(claims)).to_string())
    )
}

#[tokio::test]
async fn a_token_of_a_trusted_issuer_names_its_tenant_and_user() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let token =
        provider.token(json!({ "roles": ["finance"], "email": "ada@example.org", "locale": "es" }));
    let caller = admit(&fixture.accounts, &token).await;
    let principal = &caller.principal;
    assert_eq!(
        (principal.tenant, principal.user.as_str()),
        (fixture.tenant.id, "ada")
    );
    assert!(principal.authenticated);
    assert_eq!(principal.locale.as_deref(), Some("es"));
    assert_eq!(principal.claims["roles"], json!(["finance"]));
    assert_eq!((caller.key, caller.conversation_key), (None, None));
    assert!(caller.scopes.has(Scope::Chat) && !caller.scopes.has(Scope::Admin));
}

#[tokio::test]
async fn static_keys_of_every_family_verify() {
    for (algorithm, (token, pem)) in [("RS256", RS256), ("ES256", ES256)] {
        let fixture = TenantFixture::new().await;
        fixture
            .trust(
                &fixture.tenant,
                algorithm,
                IssuerKeys::PublicKey(pem.to_owned()),
            )
            .await;
        assert_eq!(
            admit(&fixture.accounts, token)
                .await
                .principal
                .user
                .as_str(),
            "ada"
        );
        let (front, _) = token.rsplit_once('.').unwrap();
        let other = format!("{front}.{}", URL_SAFE_NO_PAD.encode([7; 64]));
        assert_unauthenticated(&fixture.accounts, &other, NOT_ITS_KEY).await;
    }
}

#[tokio::test]
async fn a_secret_in_the_environment_verifies_hs256() {
    let fixture = TenantFixture::new().await;
    fixture
        .trust(
            &fixture.tenant,
            "HS256",
            IssuerKeys::SecretEnv("IDP_SECRET".to_owned()),
        )
        .await;
    let sign = |secret: &str| {
        encode(
            &Header::new(Algorithm::HS256),
            &usual(json!({})),
            &EncodingKey::from_secret(secret.as_bytes()),
        )
        .unwrap()
    };
    assert_eq!(
        admit(&fixture.accounts, &sign(HMAC_SECRET))
            .await
            .principal
            .user
            .as_str(),
        "ada"
    );
    assert_unauthenticated(
        &fixture.accounts,
        &sign("another secret of at least 32 bytes"),
        NOT_ITS_KEY,
    )
    .await;
}

#[tokio::test]
async fn an_absent_or_short_secret_admits_nobody() {
    for variable in ["NO_SUCH_VARIABLE", "SHORT_SECRET"] {
        let fixture = TenantFixture::new().await;
        fixture
            .trust(
                &fixture.tenant,
                "HS256",
                IssuerKeys::SecretEnv(variable.to_owned()),
            )
            .await;
        for secret in ["", "too short"] {
            let key = EncodingKey::from_secret(secret.as_bytes());
            let token = encode(&Header::new(Algorithm::HS256), &usual(json!({})), &key).unwrap();
            let error = refusal(&fixture.accounts, &token).await;
            assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_token_cannot_choose_how_it_is_checked() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let refused = async |token: &str, algorithm: &str| {
        let sentence = format!("the token is signed with {algorithm:?}, its issuer uses \"EdDSA\"");
        assert_unauthenticated(&fixture.accounts, token, &sentence).await;
    };
    for none in ["none", "None", "NONE", "nOnE", ""] {
        refused(&forged(&json!({ "alg": none }), json!({}), ""), none).await;
    }
    // The public key as an HMAC secret: the oldest trick.
    let pem = provider.public_pem();
    for secret in [pem.as_bytes(), pem.trim().as_bytes()] {
        let key = EncodingKey::from_secret(secret);
        refused(
            &encode(&Header::new(Algorithm::HS256), &usual(json!({})), &key).unwrap(),
            "HS256",
        )
        .await;
    }
    refused(RS256.0, "RS256").await;
}

#[tokio::test]
async fn a_changed_token_is_refused() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let token = provider.token(json!({}));
    let parts: Vec<&str> = token.split('.').collect();
    let other = provider.token(json!({ "sub": "eve" }));
    let payload_of_another = format!(
        "{}.{}.{}",
        parts[0],
        other.split('.').nth(1).unwrap(),
        parts[2]
    );
    assert_unauthenticated(&fixture.accounts, &payload_of_another, NOT_ITS_KEY).await;
    let stranger = Provider::new("k1").token(json!({}));
    assert_unauthenticated(&fixture.accounts, &stranger, NOT_ITS_KEY).await;
    let unsigned = format!("{}.{}.", parts[0], parts[1]);
    let error = refusal(&fixture.accounts, &unsigned).await;
    assert!(matches!(error, Error::Unauthenticated(_)), "{error:?}");
    assert_eq!(
        admit(&fixture.accounts, &token)
            .await
            .principal
            .user
            .as_str(),
        "ada"
    );
}

#[tokio::test]
async fn claims_that_do_not_fit_are_refused_with_a_reason() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let now = NOW.unix_timestamp();
    let untrusted =
        |issuer: &str| format!("no tenant trusts the token's issuer {issuer:?} for its audience");
    let unreadable =
        "the token cannot be read: it lacks the claim `iss` or `aud`, each of which must be text";
    let sub = "the token's claim `sub`";
    let shape = format!("{sub} is not a user id of 1 to 255 bytes");
    let kind = |kind: &str| {
        format!("{sub} is {kind}; it must be text, so have its issuer send it as a string")
    };
    let ahead = |seconds: i64| {
        format!(
            "the token's claim `iat` is {seconds} seconds in the future; the clock of its issuer, or ours, is wrong"
        )
    };
    let reserved = |prefix: &str| format!("{sub} starts with `{prefix}`, which is reserved");
    let expired = "the token has expired; ask its issuer for a new one";
    for (claims, sentence) in [
        (
            json!({ "iss": "https://other.example" }),
            untrusted("https://other.example"),
        ),
        (
            json!({ "iss": format!("{ISSUER}/") }),
            untrusted("https://idp.example/"),
        ),
        (json!({ "iss": null }), unreadable.to_owned()),
        (json!({ "iss": [ISSUER] }), unreadable.to_owned()),
        (json!({ "aud": "other" }), untrusted(ISSUER)),
        (json!({ "aud": [] }), untrusted(ISSUER)),
        (json!({ "aud": null }), unreadable.to_owned()),
        (json!({ "aud": 7 }), unreadable.to_owned()),
        (
            json!({ "sub": null }),
            "the token lacks the claim `sub`".to_owned(),
        ),
        (json!({ "sub": 7 }), kind("a number")),
        (json!({ "sub": "" }), shape.clone()),
        (json!({ "sub": "x".repeat(256) }), shape),
        (json!({ "sub": "key:ci" }), reserved("key:")),
        (
            json!({ "sub": "frontend:webui:ada" }),
            reserved("frontend:"),
        ),
        (json!({ "sub": "guest:1" }), reserved("guest:")),
        (
            json!({ "sub": "operator" }),
            format!("{sub} is \"operator\", which is reserved"),
        ),
        (
            json!({ "sub": "system" }),
            format!("{sub} is \"system\", which is reserved"),
        ),
        (
            json!({ "exp": null }),
            "the token lacks the claim `exp`".to_owned(),
        ),
        (
            json!({ "exp": "tomorrow" }),
            "the token lacks the claim `exp`".to_owned(),
        ),
        (
            json!({ "exp": 1e300 }),
            "the token lacks the claim `exp`".to_owned(),
        ),
        (json!({ "exp": now - 30 }), expired.to_owned()),
        (json!({ "exp": 0 }), expired.to_owned()),
        (
            json!({ "nbf": now + 31 }),
            "the token is not valid yet".to_owned(),
        ),
        (json!({ "iat": now + 61 }), ahead(61)),
        (json!({ "iat": now + 30 * 86_400 }), ahead(30 * 86_400)),
        (
            json!({ "iat": "now" }),
            "the token's claim `iat` is not a time".to_owned(),
        ),
        (
            json!({ "nbf": "soon" }),
            "the token's claim `nbf` is not a time".to_owned(),
        ),
    ] {
        assert_unauthenticated(&fixture.accounts, &provider.token(claims), &sentence).await;
    }
}

#[tokio::test]
async fn a_user_id_that_looks_like_another_for_what_cannot_be_seen_is_refused() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let sub = "the token's claim `sub`";
    let unseen = |code: &str| {
        format!("{sub} holds the character U+{code}, which cannot be seen in a user id")
    };
    let blank = format!("{sub} begins or ends with white space, which no user id does");
    for (claims, sentence) in [
        (json!({ "sub": "a\nb" }), unseen("000A")),
        (json!({ "sub": "ada " }), blank.clone()),
        (json!({ "sub": "\u{a0}ada" }), blank.clone()),
        (json!({ "sub": "ada\u{3000}" }), blank.clone()),
        (json!({ "sub": "a\u{200b}da" }), unseen("200B")),
        (json!({ "sub": "\u{202e}ada" }), unseen("202E")),
        (json!({ "sub": "ada\u{ad}" }), unseen("00AD")),
        (json!({ "sub": "ada\u{2800}" }), unseen("2800")),
        (json!({ "sub": "ada\u{e0041}" }), unseen("E0041")),
        (json!({ "sub": "a\u{2028}da" }), unseen("2028")),
    ] {
        assert_unauthenticated(&fixture.accounts, &provider.token(claims), &sentence).await;
    }
    for sub in [
        "ada lovelace",
        "\u{c9}mile",
        "auth0|5f7c",
        "\u{674e}\u{96f7}",
    ] {
        admit(&fixture.accounts, &provider.token(json!({ "sub": sub }))).await;
    }
}

#[tokio::test]
async fn clocks_may_differ_by_half_a_minute_or_by_one() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let now = NOW.unix_timestamp();
    for claims in [
        json!({ "exp": now - 29 }),
        json!({ "nbf": now + 30 }),
        json!({ "iat": now + 60 }),
        json!({ "aud": ["else", "chat"] }),
    ] {
        admit(&fixture.accounts, &provider.token(claims)).await;
    }
}

#[tokio::test]
async fn what_is_no_credential_is_refused_with_a_hint() {
    let fixture = TenantFixture::new().await;
    let form = "the `Authorization` header is not of the form `Bearer <token or key>`";
    let neither = "the credential is neither a token (JWT) nor an API key (`chk_…`)";
    for (sent, sentence) in [
        (
            vec![],
            "no credential: send the header `Authorization: Bearer <token or key>`",
        ),
        (
            vec!["Bearer a", "Bearer b"],
            "more than one `Authorization` header: send one",
        ),
        (vec!["Basic YTpi"], form),
        (vec!["Bearer"], form),
        (vec!["Bearer  "], form),
        (vec![""], form),
        (vec!["Bearer a.b"], neither),
        (vec!["Bearer a.b.c.d"], neither),
        (vec!["Bearer sk-proj-0123456789"], neither),
        (
            vec!["Bearer a.b.c"],
            "the token cannot be read: its header is not JSON with `alg`",
        ),
    ] {
        let error = refusal_of(
            &fixture.accounts,
            &headers(sent.iter().map(|value| ("authorization", *value))),
        )
        .await;
        assert!(matches!(error, Error::Unauthenticated(_)), "{error:?}");
        assert_eq!(error.to_string(), sentence, "{sent:?}");
    }
}

#[tokio::test]
async fn the_scheme_is_bearer_in_any_case() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let value = format!("bEARER {}", provider.token(json!({})));
    fixture
        .accounts
        .authenticate(
            &values_of(&headers([("authorization", value.as_str())])),
            None,
            None,
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn a_huge_token_is_not_looked_at() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let token = provider.token(json!({ "padding": "x".repeat(MAX_TOKEN) }));
    assert_unauthenticated(
        &fixture.accounts,
        &token,
        "the token is longer than 32768 bytes (CHATELAINE_MAX_TOKEN_BYTES)",
    )
    .await;
}

#[tokio::test]
async fn an_extension_that_must_be_understood_is_refused() {
    let (fixture, _) = TenantFixture::with_provider().await;
    let token = forged(
        &json!({ "alg": "EdDSA", "crit": ["b64"], "b64": false }),
        json!({}),
        "c2ln",
    );
    let sentence = "the token's header has `crit`, which names extensions that are not supported";
    assert_unauthenticated(&fixture.accounts, &token, sentence).await;
}

#[tokio::test]
async fn one_issuer_may_serve_two_tenants_by_audience() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let other = accounts::add_tenant(fixture.db(), &fixture.clock, "other", None, false)
        .await
        .unwrap();
    let mut theirs = issuer(
        &other,
        "EdDSA",
        IssuerKeys::PublicKey(provider.public_pem()),
    );
    theirs.audience = "their chat".to_owned();
    accounts::add_issuer(
        fixture.db(),
        theirs,
        &domain::account::SourceSettings::default(),
    )
    .await
    .unwrap();
    let ours = admit(&fixture.accounts, &provider.token(json!({}))).await;
    assert_eq!(ours.principal.tenant, fixture.tenant.id);
    let token = provider.token(json!({ "aud": "their chat" }));
    assert_eq!(
        admit(&fixture.accounts, &token).await.principal.tenant,
        other.id
    );
    let both = provider.token(json!({ "aud": ["chat", "their chat"] }));
    let sentence = "the token's audiences belong to more than one tenant; ask for a token with one";
    assert_unauthenticated(&fixture.accounts, &both, sentence).await;
}

#[test]
fn an_audience_is_an_endpoint_however_its_address_is_spelled() {
    let bank = Audience::Endpoints(["bank".to_owned()].into());
    for name in [
        "https://chat.example.org/mcp/bank",
        "https://chat.example.org/mcp/bank/",
        "HTTPS://CHAT.EXAMPLE.ORG:443/mcp/bank?tenant=acme#x",
        "http://10.0.0.1:8080/behind/a/proxy/mcp/bank",
        "https://chat.example.org/mcp//bank//",
        "https://chat.example.org/x/../mcp/./bank",
        "https://chat.example.org/%6dcp/b%61nk",
        "https://chat.example.org/mcp%2Fbank",
        "https://chat.example.org/MCP/bank",
        "api://chatelaine/mcp/bank",
        "chat.example.org/mcp/bank",
        "/mcp/bank",
    ] {
        assert_eq!(Audience::narrowest([name]), bank, "{name}");
        assert_eq!(Audience::narrowest(["chat", name, "web"]), bank, "{name}");
    }
    for name in [
        "chat",
        "https://chat.example.org",
        "https://chat.example.org/mcp",
        "https://chat.example.org/mcp/",
        "https://chat.example.org/api/bank",
        "https://chat.example.org/?resource=/mcp/bank",
        "https://mcp/bank",
        "urn:mcp:bank",
    ] {
        assert_eq!(Audience::narrowest([name]), Audience::Service, "{name}");
    }
}

#[tokio::test]
async fn a_token_for_an_endpoint_is_taken_there_and_nowhere_else() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let bank = format!("{PUBLIC_URL}/mcp/bank");
    let at = async |aud: Value, endpoint: Option<&str>| {
        let sent = bearer(&provider.token(json!({ "aud": aud })));
        let accounts = &fixture.accounts;
        accounts
            .authenticate(&values_of(&sent), None, endpoint)
            .await
    };
    // Trusted for the frontends' audience, an issuer is trusted for the endpoints of this service.
    for aud in [
        json!(bank),
        json!(["chat", bank]),
        json!([bank, "chat"]),
        json!(["chat", "https://proxy.example/mcp/bank"]),
        json!(format!("{PUBLIC_URL}/mcp/bank?tenant=acme")),
    ] {
        at(aud.clone(), Some("bank")).await.unwrap();
        for endpoint in [None, Some("office")] {
            let error = at(aud.clone(), endpoint).await.expect_err("nowhere else");
            assert!(matches!(error, Error::Unauthenticated(_)), "{error:?}");
            assert!(error.to_string().contains("made for /mcp/bank"), "{error}");
        }
    }
    at(
        json!([bank, format!("{PUBLIC_URL}/mcp/office")]),
        Some("office"),
    )
    .await
    .unwrap();
    for endpoint in [None, Some("bank"), Some("office")] {
        at(json!("chat"), endpoint).await.unwrap();
    }
    // Somebody else's endpoint is no audience of ours, and neither is that of another tenant.
    let strange = [
        "https://else.example/mcp/bank",
        "https://chat.example.org/x/mcp/bank",
    ];
    let strange = strange.map(str::to_owned).into_iter();
    for aud in strange.chain([format!("{PUBLIC_URL}/mcp/bank?tenant=globex")]) {
        at(json!(aud), Some("bank")).await.expect_err("not ours");
    }
}

#[tokio::test]
async fn an_issuer_that_is_trusted_for_one_endpoint_opens_that_one_alone() {
    let fixture = TenantFixture::new().await;
    let provider = Provider::new("k1");
    let mut trusted = issuer(
        &fixture.tenant,
        "EdDSA",
        IssuerKeys::PublicKey(provider.public_pem()),
    );
    trusted.audience = "https://old.example/prefix/mcp/bank".to_owned();
    accounts::add_issuer(
        fixture.db(),
        trusted,
        &domain::account::SourceSettings::default(),
    )
    .await
    .unwrap();
    let at = async |aud: &str, endpoint: Option<&str>| {
        let sent = bearer(&provider.token(json!({ "aud": aud })));
        let values = values_of(&sent);
        let found = fixture.accounts.authenticate(&values, None, endpoint);
        found.await.is_ok()
    };
    let known = "https://old.example/prefix/mcp/bank";
    assert!(at(known, Some("bank")).await);
    assert!(!at(known, None).await && !at(known, Some("office")).await);
    let other = format!("{PUBLIC_URL}/mcp/office");
    assert!(!at(&other, Some("office")).await && !at(&other, None).await);
}

#[tokio::test]
async fn an_issuer_and_audience_belong_to_one_tenant() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let other = accounts::add_tenant(fixture.db(), &fixture.clock, "other", None, false)
        .await
        .unwrap();
    let theirs = issuer(
        &other,
        "EdDSA",
        IssuerKeys::PublicKey(Provider::new("evil").public_pem()),
    );
    let error = accounts::add_issuer(
        fixture.db(),
        theirs,
        &domain::account::SourceSettings::default(),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, Error::Conflict(..)), "{error:?}");
    let caller = admit(&fixture.accounts, &provider.token(json!({}))).await;
    assert_eq!(caller.principal.tenant, fixture.tenant.id);
    assert!(
        accounts::list_issuers(fixture.db(), other.id)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn an_issuer_that_was_removed_vouches_for_nobody_within_a_minute() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let token = provider.token(json!({}));
    admit(&fixture.accounts, &token).await;
    let (db, tenant) = (fixture.db(), fixture.tenant.id);
    accounts::remove_issuer(db, tenant, ISSUER, Some("another"))
        .await
        .unwrap_err();
    accounts::remove_issuer(db, tenant, ISSUER, None)
        .await
        .unwrap();
    let untrusted = format!("no tenant trusts the token's issuer {ISSUER:?} for its audience");
    assert_unauthenticated(&fixture.replica(), &token, &untrusted).await;
    fixture.clock.advance(Duration::seconds(59));
    admit(&fixture.accounts, &token).await;
    fixture.clock.advance(Duration::seconds(1));
    assert_unauthenticated(&fixture.accounts, &token, &untrusted).await;
}

#[tokio::test]
async fn a_warm_token_needs_no_database() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let token = provider.token(json!({}));
    admit(&fixture.accounts, &token).await;
    fixture.db().close().await;
    assert_eq!(
        admit(&fixture.accounts, &token)
            .await
            .principal
            .user
            .as_str(),
        "ada"
    );
    let error = refusal(&fixture.replica(), &token).await;
    assert!(
        matches!(error, Error::Busy { .. }),
        "without the memory it does need one: {error:?}"
    );
}

#[tokio::test]
async fn a_warm_token_ends_with_its_time() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let token = provider.token(json!({ "exp": NOW.unix_timestamp() + 5 }));
    admit(&fixture.accounts, &token).await;
    fixture.clock.advance(Duration::seconds(36));
    assert_unauthenticated(
        &fixture.accounts,
        &token,
        "the token has expired; ask its issuer for a new one",
    )
    .await;
}

#[tokio::test]
async fn only_the_scope_claim_gives_the_power_to_manage() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    for (claims, manages) in [
        (json!({ "scope": "openid chatelaine:admin" }), true),
        (json!({ "scp": ["chatelaine:admin"] }), true),
        (json!({ "scope": "chatelaine:administrator" }), false),
        (json!({ "scope": "openid" }), false),
        (json!({ "roles": ["admin", "chatelaine:admin"] }), false),
        (json!({ "admin": true }), false),
    ] {
        let caller = admit(&fixture.accounts, &provider.token(claims.clone())).await;
        assert_eq!(caller.admin().is_ok(), manages, "{claims}");
        assert_eq!(caller.require(Scope::Admin).is_ok(), manages, "{claims}");
    }
    let caller = admit(
        &fixture.accounts,
        &provider.token(json!({ "scope": "chatelaine:admin" })),
    )
    .await;
    assert_eq!(caller.admin().unwrap().tenant(), fixture.tenant.id);
}

#[tokio::test]
async fn headers_that_name_a_user_mean_nothing_with_a_token() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let mut sent = bearer(&provider.token(json!({})));
    sent.extend(headers([
        ("x-openwebui-user-id", "eve"),
        ("x-openwebui-user-role", "admin"),
        ("x-librechat-user-id", "eve"),
        ("x-openwebui-chat-id", "c1"),
    ]));
    let caller = fixture
        .accounts
        .authenticate(&values_of(&sent), None, None)
        .await
        .unwrap();
    assert_eq!(caller.principal.user.as_str(), "ada");
    assert!(!caller.principal.claims.contains_key("roles") && caller.conversation_key.is_none());
}

#[tokio::test]
async fn an_issuer_that_could_not_verify_anything_is_refused() {
    let fixture = TenantFixture::new().await;
    let pem = Provider::new("k").public_pem();
    let private = pem.replace("PUBLIC", "PRIVATE");
    let jwks = |url: &str| IssuerKeys::Jwks(url.to_owned());
    for (algorithm, keys, field) in [
        ("none", jwks("https://idp.example/jwks"), "algorithm"),
        ("RS1", jwks("https://idp.example/jwks"), "algorithm"),
        ("HS256", jwks("https://idp.example/jwks"), "algorithm"),
        ("HS256", IssuerKeys::PublicKey(pem.clone()), "algorithm"),
        (
            "RS256",
            IssuerKeys::SecretEnv("IDP_SECRET".to_owned()),
            "algorithm",
        ),
        (
            "HS256",
            IssuerKeys::SecretEnv(HMAC_SECRET.to_owned()),
            "secret_env",
        ),
        ("RS256", IssuerKeys::PublicKey(pem.clone()), "public_key"),
        (
            "ES256",
            IssuerKeys::PublicKey("nonsense".to_owned()),
            "public_key",
        ),
        ("EdDSA", IssuerKeys::PublicKey(private), "public_key"),
        ("RS256", jwks("ftp://idp.example/jwks"), "jwks_url"),
        ("RS256", jwks("idp.example"), "jwks_url"),
    ] {
        let error = accounts::add_issuer(
            fixture.db(),
            issuer(&fixture.tenant, algorithm, keys),
            &domain::account::SourceSettings::default(),
        )
        .await
        .unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { field: at, .. } if at == field),
            "{algorithm}: {error:?}"
        );
        assert!(!format!("{error} {error:?}").contains(HMAC_SECRET));
    }
}

#[tokio::test]
async fn a_sign_out_is_judged_by_the_database_however_wrong_a_replicas_clock_is() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let now = Clock::System.now();
    let replicas = [-20, 20].map(|off| fixture.replica_at(now + Duration::seconds(off)));
    let token = |issued: i64| {
        let at = now.unix_timestamp();
        provider.token(json!({ "iat": at + issued, "exp": at + 3600 }))
    };
    let before = token(-1);
    let principal = admit(&replicas[0], &before).await.principal;
    assert!(replicas[0].sign_out(&principal).await.unwrap());
    // Nothing of what the replicas remember of the user counts here.
    let replicas = [-20, 20].map(|off| fixture.replica_at(now + Duration::seconds(off)));
    for replica in &replicas {
        let sentence = "you signed out with this token; sign in again";
        assert_unauthenticated(replica, &before, sentence).await;
        admit(replica, &token(30)).await;
    }
}

#[tokio::test]
async fn an_older_token_has_the_newest_claims_of_its_user() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let now = NOW.unix_timestamp();
    let roles = async |token: &str| {
        let caller = admit(&fixture.accounts, token).await;
        caller.principal.claims.get("roles").cloned()
    };
    let older = provider.token(json!({ "iat": now - 10, "roles": ["finance"] }));
    let newer = provider.token(json!({ "iat": now, "jti": "2" }));
    assert_eq!(roles(&older).await, Some(json!(["finance"])));
    assert_eq!(roles(&newer).await, None);
    assert_eq!(roles(&older).await, None, "the role was taken away");
    let newest = provider.token(json!({ "iat": now, "jti": "3", "roles": ["cfo"] }));
    assert_eq!(roles(&newest).await, Some(json!(["cfo"])));
    let caller = admit(&fixture.accounts, &older).await;
    assert_eq!(caller.principal.claims["roles"], json!(["cfo"]));
    assert_eq!(
        caller.principal.claims["iat"],
        json!(now - 10),
        "its own session"
    );
}

#[tokio::test]
async fn a_token_of_somebody_in_two_hundred_groups_is_accepted() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let groups: Vec<String> = (0..200)
        .map(|at| format!("6f1f0c0e-6b7c-4c5e-9f5a-{at:012}"))
        .collect();
    let token = provider.token(json!({ "groups": groups }));
    assert!(token.len() > 10_000);
    let caller = admit(&fixture.accounts, &token).await;
    assert_eq!(caller.principal.claims["groups"], json!(groups));
}

#[test]
fn the_roles_of_a_claim_are_found_in_objects() {
    let claims = json!({
        "realm_access": { "roles": ["finance"] },
        "resource_access": { "my.client": { "roles": ["cfo"] }, "web": { "roles": ["clerk"] } },
        "https://example.org/roles": ["url"],
        "flat.roles": ["own"],
        "flat": { "roles": ["inner"] },
        "text": "roles",
    });
    let Value::Object(claims) = claims else {
        unreachable!("an object was written")
    };
    for (name, found) in [
        ("realm_access.roles", Some(json!(["finance"]))),
        ("resource_access.web.roles", Some(json!(["clerk"]))),
        ("resource_access.my.client.roles", Some(json!(["cfo"]))),
        ("https://example.org/roles", Some(json!(["url"]))),
        ("flat.roles", Some(json!(["own"]))),
        ("realm_access.role", None),
        ("realm_access", Some(json!({ "roles": ["finance"] }))),
        ("text.roles", None),
        ("realm_access.", None),
        (".roles", None),
    ] {
        assert_eq!(find_claim(&claims, name).cloned(), found, "{name}");
        let mut kept = claims.clone();
        keep_claims(&mut kept, &[name.to_owned()].into());
        assert_eq!(kept.len(), usize::from(found.is_some()), "{name}");
        assert_eq!(find_claim(&kept, name).cloned(), found, "{name}");
    }
}

#[tokio::test]
async fn groups_that_an_issuer_left_out_are_told_to_the_admins() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    fixture.accounts.keep_claims(
        ["iss", "iat", "groups", "_claim_names", "hasgroups"]
            .map(str::to_owned)
            .into(),
    );
    let sources = json!({ "groups": "src1" });
    for (user, claims) in [
        ("ada", json!({ "_claim_names": sources })),
        ("bea", json!({ "hasgroups": true })),
        (
            "cleo",
            json!({ "groups": ["finance"], "_claim_names": sources }),
        ),
        ("dora", json!({})),
    ] {
        let mut claims = claims;
        claims["sub"] = user.into();
        let token = provider.token(claims);
        admit(&fixture.accounts, &token).await;
        admit(&fixture.replica(), &token).await;
    }
    let told: Vec<(String, String)> = sqlx::query_as(
        "select actor, detail from audit where action = 'user.claim_left_out' order by detail",
    )
    .fetch_all(&mut fixture.database.as_tenant(fixture.tenant.id).await)
    .await
    .unwrap();
    let line = |user: &str| ("system".to_owned(), format!("groups of {user}"));
    assert_eq!(told, [line("ada"), line("bea")]);
}

#[test]
fn a_clock_that_is_minutes_off_is_corrected_and_a_slow_answer_says_nothing() {
    let (there, second) = (NOW, Duration::seconds(1));
    let off = |behind: i64| NOW - Duration::seconds(behind);
    assert_eq!(clock::correction(NOW, there, NOW), Some(Duration::ZERO));
    assert_eq!(
        clock::correction(off(4), there, off(4)),
        Some(Duration::ZERO)
    );
    assert_eq!(
        clock::correction(off(300), there, off(300) + second),
        Some(Duration::milliseconds(299_500))
    );
    assert_eq!(
        clock::correction(off(-300), there, off(-300)),
        Some(Duration::seconds(-300))
    );
    assert_eq!(clock::correction(off(300), there, off(290)), None);
    assert_eq!(clock::correction(NOW, there, NOW - second), None);
}
