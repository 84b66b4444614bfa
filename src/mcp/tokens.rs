//! Access tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4), for servers that the program itself
//! signs in to.
//!
//! A token is asked for by one caller at a time, used by all connections with the same credentials until shortly
//! before it ends, and replaced once when a server refuses it. Where tokens are from is for whoever makes the
//! connections to say ([`TokenSource`]): there may be more processes than this one that want the same.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use url::form_urlencoded;

use super::{error::Failure, interceptor::locked};
use crate::{
    domain::{clock, ids::TenantId, scrub::Scrubber, secret::Secret, server::ClientCredentials},
    egress::{Egress, Limits, Request},
};

/// How long a token endpoint may take, and what it may say.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const MAX_ANSWER: usize = 64 * 1024;
/// The life of a token whose endpoint does not give one.
const DEFAULT_LIFE: Duration = Duration::from_secs(300);
/// It is replaced so long before its end, or when a quarter of its life is left.
const MARGIN: Duration = Duration::from_secs(30);
/// One that is said to hold for longer is replaced all the same.
const LONGEST_LIFE: Duration = Duration::from_secs(86_400);
/// Different credentials that are remembered.
const REMEMBERED: usize = 4096;

type Slot = Arc<tokio::sync::Mutex<Option<Arc<Token>>>>;

/// Where the tokens of this process are from.
#[derive(Clone)]
pub struct TokenSource(
    Arc<dyn Fn(TokenRequest) -> BoxFuture<'static, Result<TokenGrant, NoToken>> + Send + Sync>,
);

/// A token that is wanted.
#[derive(Clone)]
pub struct TokenRequest {
    pub tenant: TenantId,
    pub credentials: ClientCredentials,
    /// The version of the one before, when its server has refused it.
    pub refused: Option<i64>,
}

/// A token that was got.
pub struct TokenGrant {
    pub token: Secret,
    /// For how long it is used, which is less than it is good for.
    pub life: Duration,
    /// The version of a stored token; 0 when tokens are not stored.
    pub version: i64,
}

/// Why there is no token. No request was sent to the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no access token for the server: {why}")]
pub struct NoToken {
    /// It will be the same the next time.
    pub for_good: bool,
    pub why: String,
}

/// The tokens of this process.
pub(super) struct Tokens {
    source: TokenSource,
    slots: Mutex<HashMap<[u8; 32], Slot>>,
}

pub(super) struct Token {
    /// `Bearer …`
    pub(super) header: HeaderValue,
    /// Takes the token out of what a server says.
    pub(super) scrubber: Arc<Scrubber>,
    good_until: Instant,
    version: i64,
}

/// How one connection gets its token.
#[derive(Clone)]
pub(super) struct Bearer {
    pub(super) tokens: Arc<Tokens>,
    pub(super) tenant: TenantId,
    pub(super) credentials: ClientCredentials,
}

/// What a token endpoint says.
#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    token_type: String,
    #[serde(default)]
    expires_in: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct TokenErrorResponse {
    error: String,
}

impl TokenSource {
    pub fn new(
        get: impl Fn(TokenRequest) -> BoxFuture<'static, Result<TokenGrant, NoToken>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(get))
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSource")
    }
}

impl NoToken {
    pub fn new(for_good: bool, why: impl Into<String>) -> Self {
        Self {
            for_good,
            why: why.into(),
        }
    }
}

impl From<NoToken> for Failure {
    fn from(none: NoToken) -> Self {
        if none.for_good {
            Self::Misconfigured(none.to_string())
        } else {
            Self::NotSent(none.to_string())
        }
    }
}

impl Bearer {
    /// A token that is good for a while. One that was `refused` is not given again.
    pub(super) async fn token(&self, refused: Option<&Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let slot = self.tokens.slot(self.tenant, &self.credentials);
        let mut known = slot.lock().await;
        if let Some(token) = &*known {
            let same = refused.is_some_and(|refused| Arc::ptr_eq(refused, token));
            if !same && clock::instant() < token.good_until {
                return Ok(token.clone());
            }
        }
        *known = None;
        let (tenant, credentials) = (self.tenant, self.credentials.clone());
        let refused = refused.map(|refused| refused.version);
        let granted = (self.tokens.source.0)(TokenRequest {
            tenant,
            credentials,
            refused,
        })
        .await?;
        let token = Arc::new(Token::new(&granted)?);
        *known = Some(token.clone());
        Ok(token)
    }
}

impl Token {
    fn new(granted: &TokenGrant) -> Result<Self, NoToken> {
        let header = header_of(&granted.token)?;
        let scrubber = Arc::new(Scrubber::new([&granted.token]));
        Ok(Self {
            header,
            scrubber,
            good_until: clock::instant() + granted.life,
            version: granted.version,
        })
    }
}

fn header_of(token: &Secret) -> Result<HeaderValue, NoToken> {
    let mut header =
        HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(|_| {
            NoToken::new(
                true,
                "the token endpoint gave a token that no header can carry",
            )
        })?;
    header.set_sensitive(true);
    Ok(header)
}

impl Tokens {
    /// From `source`, or where there is none from the token endpoints, for this process alone.
    pub(super) fn new(egress: Egress, source: Option<TokenSource>) -> Self {
        let alone = || {
            TokenSource::new(move |wanted| {
                let egress = egress.clone();
                Box::pin(async move { fetch(&egress, &wanted.credentials).await })
            })
        };
        Self {
            source: source.unwrap_or_else(alone),
            slots: Mutex::default(),
        }
    }

    fn slot(&self, tenant: TenantId, of: &ClientCredentials) -> Slot {
        let mut digest = Sha256::new();
        let (tenant, scope) = (tenant.to_string(), of.scope.as_deref().unwrap_or_default());
        for part in [
            &tenant,
            of.token_url.as_str(),
            of.client_id.expose(),
            of.client_secret.expose(),
            scope,
        ] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut slots = locked(&self.slots);
        if slots.len() >= REMEMBERED {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(digest.finalize().into()).or_default().clone()
    }
}

/// Asks a token endpoint for a token.
pub async fn fetch(egress: &Egress, of: &ClientCredentials) -> Result<TokenGrant, NoToken> {
    let asked_at = clock::instant();
    let answer = if of.of_tenant {
        egress.for_tenants().send(request(of)).await
    } else {
        egress.send(request(of)).await
    };
    let answer = answer.map_err(|error| NoToken::new(error.is_rejected(), error.to_string()))?;
    let status = answer.status;
    let body = answer
        .bytes()
        .await
        .map_err(|error| NoToken::new(false, error.to_string()))?;
    if !status.is_success() {
        return Err(refusal(status, &body));
    }
    let answered: TokenResponse = serde_json::from_slice(&body).map_err(|_| {
        NoToken::new(
            false,
            "the token endpoint answered with something else than a token",
        )
    })?;
    if !answered.token_type.eq_ignore_ascii_case("bearer") {
        return Err(NoToken::new(
            true,
            "the token endpoint gives other tokens than bearer tokens",
        ));
    }
    if answered.access_token.trim().is_empty() {
        return Err(NoToken::new(
            false,
            "the token endpoint answered with an empty token",
        ));
    }
    let token = Secret::new(answered.access_token);
    header_of(&token)?;
    let life = answered
        .expires_in
        .as_ref()
        .and_then(seconds)
        .unwrap_or(DEFAULT_LIFE)
        .min(LONGEST_LIFE);
    let life = life
        .saturating_sub(MARGIN.min(life / 4))
        .saturating_sub(asked_at.elapsed());
    Ok(TokenGrant {
        token,
        life,
        version: 0,
    })
}

fn request(of: &ClientCredentials) -> Request {
    let encoded = |secret: &Secret| {
        form_urlencoded::byte_serialize(secret.expose().as_bytes()).collect::<String>()
    };
    let pair = format!("{}:{}", encoded(&of.client_id), encoded(&of.client_secret));
    let mut basic = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(pair)))
        .expect("Base64 is ASCII");
    basic.set_sensitive(true);
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("grant_type", "client_credentials");
    if let Some(scope) = &of.scope {
        form.append_pair("scope", scope);
    }
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, basic);
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-www-form-urlencoded"),
    );
    let limits = Limits {
        deadline: Some(PATIENCE),
        max_body: MAX_ANSWER,
        ..Limits::default()
    };
    Request {
        method: Method::POST,
        url: of.token_url.clone(),
        headers,
        body: form.finish().into(),
        limits,
    }
}

/// Some endpoints send the number as text.
fn seconds(value: &serde_json::Value) -> Option<Duration> {
    let number = value
        .as_f64()
        .or_else(|| value.as_str()?.trim().parse().ok())?;
    Duration::try_from_secs_f64(number).ok()
}

/// The code of an error is a word of the protocol; whatever else an endpoint says is not repeated.
fn refusal(status: StatusCode, body: &[u8]) -> NoToken {
    let word = |code: &String| {
        code.len() <= 64 && code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    let code = serde_json::from_slice::<TokenErrorResponse>(body)
        .ok()
        .map(|refused| refused.error)
        .filter(word);
    let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
    let why = format!(
        "the token endpoint answered with HTTP {}{code}",
        status.as_u16()
    );
    let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    NoToken::new(status.is_client_error() && !later, why)
}
