//! A tenant with a database of its own, an identity provider that signs, and what a caller sends.

use std::sync::{Arc, Mutex};

use axum::response::Response as Answer;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chatelaine::{
    api::values_of,
    app::accounts::{self, Accounts, Caller, NewKey},
};
use domain::{
    account::{Issuer, IssuerKeys, KeyKind, Tenant},
    clock::Clock,
    config::Environment,
    error::Error,
    ids::IssuerId,
    principal::{Scope, Scopes},
};
use egress::Egress;
use http::{HeaderMap, HeaderName, HeaderValue};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use serde_json::{Map, Value, json};
use store::Db;
use time::{OffsetDateTime, macros::datetime};

use crate::support::{db::TestDb, origin::Origin};

pub const NOW: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);
pub const ISSUER: &str = "https://idp.example";
/// Where the service is for its clients.
pub const PUBLIC_URL: &str = "https://chat.example.org";
/// Bytes of a token.
pub const MAX_TOKEN: usize = 32 * 1024;
pub const AUDIENCE: &str = "chat";
pub const HMAC_SECRET: &str = "a shared secret of at least 32 bytes";

pub struct TenantFixture {
    pub accounts: Accounts,
    pub clock: Clock,
    pub tenant: Tenant,
    pub database: TestDb,
}

impl TenantFixture {
    pub async fn new() -> Self {
        let database = TestDb::new().await;
        let clock = Clock::manual(NOW);
        let tenant = accounts::add_tenant(&database.db, &clock, "acme", None, false)
            .await
            .unwrap();
        let accounts = remembering_nothing(&database.db, &clock);
        Self {
            accounts,
            clock,
            tenant,
            database,
        }
    }

    pub fn db(&self) -> &Db {
        &self.database.db
    }

    /// Another replica.
    pub fn replica(&self) -> Accounts {
        remembering_nothing(self.db(), &self.clock)
    }

    /// Another replica, whose clock says that it is this time.
    pub fn replica_at(&self, now: OffsetDateTime) -> Accounts {
        remembering_nothing(self.db(), &Clock::manual(now))
    }

    pub async fn trust(&self, tenant: &Tenant, algorithm: &str, keys: IssuerKeys) {
        accounts::add_issuer(
            self.db(),
            issuer(tenant, algorithm, keys),
            &domain::account::SourceSettings::default(),
        )
        .await
        .unwrap();
    }

    /// A tenant that trusts one identity provider with a static key.
    pub async fn with_provider() -> (Self, Provider) {
        let fixture = Self::new().await;
        let provider = Provider::new("k1");
        fixture
            .trust(
                &fixture.tenant,
                "EdDSA",
                IssuerKeys::PublicKey(provider.public_pem()),
            )
            .await;
        (fixture, provider)
    }

    pub async fn key(&self, name: &str, speaker: KeyKind) -> String {
        self.key_of(&self.tenant, name, speaker).await
    }

    pub async fn key_of(&self, tenant: &Tenant, name: &str, speaker: KeyKind) -> String {
        let new = NewKey {
            source: domain::account::SourceSettings::default(),
            name: name.to_owned(),
            scopes: Scopes::new([Scope::Chat]),
            speaker,
            chat: domain::account::ChatSettings::default(),
            expires_at: None,
        };
        let issued = accounts::create_key(self.db(), &self.clock, tenant.id, new)
            .await
            .unwrap();
        issued.secret.expose().to_owned()
    }
}

fn remembering_nothing(db: &Db, clock: &Clock) -> Accounts {
    let egress = Egress::new(&["127.0.0.1".to_owned()]).unwrap();
    let env = Environment::default()
        .with("IDP_SECRET", HMAC_SECRET)
        .with("SHORT_SECRET", "too short");
    let clock = clock.clone();
    Accounts::new(db.clone(), egress, clock, env, MAX_TOKEN, PUBLIC_URL)
}

pub fn issuer(tenant: &Tenant, algorithm: &str, keys: IssuerKeys) -> Issuer {
    Issuer {
        id: IssuerId::new(),
        tenant: tenant.id,
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        algorithm: algorithm.to_owned(),
        keys,
        source: domain::account::UserSource::default(),
        of_tenant: None,
    }
}

/// An identity provider with one Ed25519 key.
pub struct Provider {
    pub kid: String,
    key: EncodingKey,
}

impl Provider {
    pub fn new(kid: &str) -> Self {
        let mut der = vec![
            0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
        ];
        der.extend(rand::random::<[u8; 32]>());
        Self {
            kid: kid.to_owned(),
            key: EncodingKey::from_ed_der(&der),
        }
    }

    pub fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, Algorithm::EdDSA).unwrap();
        jwk.common.key_id = Some(self.kid.clone());
        serde_json::to_value(jwk).unwrap()
    }

    pub fn public_pem(&self) -> String {
        let x = URL_SAFE_NO_PAD
            .decode(self.jwk()["x"].as_str().unwrap())
            .unwrap();
        let der = [
            &[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0],
            x.as_slice(),
        ]
        .concat();
        let body = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n")
    }

    /// A token with the usual claims and these; `null` takes one away.
    pub fn token(&self, claims: Value) -> String {
        let header = Header {
            kid: Some(self.kid.clone()),
            ..Header::new(Algorithm::EdDSA)
        };
        self.token_with(&header, claims)
    }

    pub fn token_with(&self, header: &Header, claims: Value) -> String {
        encode(header, &usual(claims), &self.key).unwrap()
    }
}

/// The claims that every token needs, changed by these.
pub fn usual(changes: Value) -> Map<String, Value> {
    let now = NOW.unix_timestamp();
    let claims =
        json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 600 });
    let (Value::Object(mut claims), Value::Object(changes)) = (claims, changes) else {
        panic!("claims are an object")
    };
    for (claim, value) in changes {
        if value.is_null() {
            claims.remove(&claim)
        } else {
            claims.insert(claim, value)
        };
    }
    claims
}

/// A server with a key set that can be changed or taken away.
pub struct Published {
    pub origin: Origin,
    document: Arc<Mutex<Option<String>>>,
}

impl Published {
    pub async fn new(keys: &[Value]) -> Self {
        let document = Arc::<Mutex<Option<String>>>::default();
        let answered = document.clone();
        let origin = Origin::start(move |_| match answered.lock().unwrap().clone() {
            Some(text) => Answer::new(text.into()),
            None => Answer::builder().status(500).body("down".into()).unwrap(),
        })
        .await;
        let published = Self { origin, document };
        published.set(keys);
        published
    }

    pub fn set(&self, keys: &[Value]) {
        *self.document.lock().unwrap() = Some(json!({ "keys": keys }).to_string());
    }

    pub fn break_down(&self) {
        *self.document.lock().unwrap() = None;
    }

    pub fn keys(&self) -> IssuerKeys {
        IssuerKeys::Jwks(self.origin.url("/jwks").into())
    }

    pub fn fetches(&self) -> usize {
        self.origin.seen().len()
    }
}

pub fn headers<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> HeaderMap {
    let pairs = pairs.into_iter();
    pairs
        .map(|(name, value)| {
            (
                name.parse::<HeaderName>().unwrap(),
                HeaderValue::from_str(value).unwrap(),
            )
        })
        .collect()
}

pub fn bearer(credential: &str) -> HeaderMap {
    headers([("authorization", format!("Bearer {credential}").as_str())])
}

pub async fn admit(accounts: &Accounts, credential: &str) -> Caller {
    accounts
        .authenticate(&values_of(&bearer(credential)), None, None)
        .await
        .unwrap()
}

/// The reason of a refusal, which never holds the credential.
pub async fn refusal(accounts: &Accounts, credential: &str) -> Error {
    refusal_of(accounts, &bearer(credential)).await
}

pub async fn refusal_of(accounts: &Accounts, headers: &HeaderMap) -> Error {
    let error = accounts
        .authenticate(&values_of(headers), None, None)
        .await
        .expect_err("nobody may get in with this");
    for value in headers.get_all("authorization") {
        for credential in value
            .to_str()
            .unwrap()
            .split([' ', '.', '_'])
            .filter(|part| part.len() >= 20)
        {
            let said = format!("{error} {error:?}");
            assert!(!said.contains(credential), "{said}");
        }
    }
    error
}

/// That nobody is let in, with this sentence.
pub async fn assert_unauthenticated(accounts: &Accounts, credential: &str, sentence: &str) {
    let error = refusal(accounts, credential).await;
    assert!(matches!(error, Error::Unauthenticated(_)), "{error:?}");
    assert_eq!(error.to_string(), sentence);
}
