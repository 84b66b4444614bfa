//! Access tokens for servers: the program's own, by client credentials (RFC 6749, section 4.4), and those of users who
//! signed in.
//!
//! All connections with the same credentials share a token. It is replaced shortly before it expires, and when a server
//! refuses it. The creator of [`super::Mcp`] sets the source of tokens ([`TokenSource`]), since other processes may share
//! the same tokens.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use http::HeaderValue;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::{
    error::Failure,
    lock,
    oauth::{self, OAuthError, OAuthErrorKind},
};
use domain::{
    clock::{self, Clock},
    ids::TenantId,
    scrub::Scrubber,
    secret::Secret,
    server::{ClientCredentials, ServerAuth},
};
use egress::Egress;

/// The life of a token without `expires_in`.
const DEFAULT_LIFE: Duration = Duration::from_secs(300);
/// A token is replaced this long before it expires, or when a quarter of its life is left.
const EXPIRY_MARGIN: Duration = Duration::from_secs(30);
/// A token with a longer life is replaced after this time.
const LONGEST_LIFE: Duration = Duration::from_secs(86_400);
/// Above this many credentials, the tokens that no request is getting are forgotten.
const MAX_REMEMBERED: usize = 4096;
/// A token counts as fresh for this long. Replacing a fresh token that was refused is of no use.
const FRESH: Duration = Duration::from_secs(2);

/// The token of one set of credentials, behind a lock that is held while a new one is fetched.
type Slot = Arc<tokio::sync::Mutex<Option<Arc<Token>>>>;

/// The source of the access tokens of this process: a function from a request to a token.
#[derive(Clone)]
pub struct TokenSource(
    Arc<dyn Fn(TokenRequest) -> BoxFuture<'static, Result<TokenGrant, NoToken>> + Send + Sync>,
);

/// A request for a token.
#[derive(Clone)]
pub struct TokenRequest {
    /// The tenant whose connection needs it; `None`: the connection serves all tenants.
    pub tenant: Option<TenantId>,
    pub auth: ServerAuth,
    /// The version of the token before, if the server has refused it.
    pub refused: Option<i64>,
}

/// A token from a [`TokenSource`].
pub struct TokenGrant {
    pub token: Secret,
    /// How long it may be used, which is a little less than until it expires.
    pub life: Duration,
    /// When it expires; `None` if that is not known.
    pub ends_at: Option<OffsetDateTime>,
    /// The version of a stored token; 0 when tokens are not stored.
    pub version: i64,
}

/// Why there is no token. The request that needed it was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no access token for the server: {why}")]
pub struct NoToken {
    pub kind: NoTokenKind,
    pub why: String,
}

/// The kind of a [`NoToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTokenKind {
    /// Trying again later may succeed.
    Later,
    /// Trying again is useless until a setting changes.
    Misconfigured,
    /// The user's authorization has ended. The user must sign in again.
    Refused,
}

/// The tokens of this process.
pub(super) struct Tokens {
    source: TokenSource,
    slots: Mutex<HashMap<[u8; 32], Slot>>,
}

/// An access token.
pub(super) struct Token {
    /// The value of the `Authorization` header, `Bearer …`.
    pub(super) header: HeaderValue,
    /// Removes the token from texts of a server.
    pub(super) scrubber: Arc<Scrubber>,
    got_at: Instant,
    /// Until when it is used.
    good_until: Instant,
    ends_at: Option<OffsetDateTime>,
    version: i64,
}

/// Gets the access tokens of one connection.
#[derive(Clone)]
pub(super) struct Bearer {
    pub(super) tokens: Arc<Tokens>,
    pub(super) tenant: Option<TenantId>,
    pub(super) auth: ServerAuth,
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
    pub fn new(kind: NoTokenKind, why: impl Into<String>) -> Self {
        Self {
            kind,
            why: why.into(),
        }
    }
}

impl From<OAuthError> for NoToken {
    /// The error for the program's own token. A refusal lasts until a setting changes.
    fn from(error: OAuthError) -> Self {
        let kind = match error.kind {
            OAuthErrorKind::Unavailable | OAuthErrorKind::Redirected => NoTokenKind::Later,
            _ => NoTokenKind::Misconfigured,
        };
        Self::new(kind, error.why)
    }
}

impl From<NoToken> for Failure {
    fn from(none: NoToken) -> Self {
        match none.kind {
            NoTokenKind::Later => Self::NotSent(none.to_string()),
            NoTokenKind::Misconfigured => Self::Misconfigured(none.to_string()),
            NoTokenKind::Refused => Self::Unauthorized,
        }
    }
}

impl Bearer {
    /// A token that can be used now. A `refused` token is replaced.
    pub(super) async fn token(&self, refused: Option<&Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let slot = self.tokens.slot(self.tenant, &self.auth);
        let mut known = slot.lock().await;
        if let Some(token) = &*known {
            let same = refused.is_some_and(|refused| Arc::ptr_eq(refused, token));
            if !same && clock::instant() < token.good_until {
                return Ok(token.clone());
            }
        }
        *known = None;
        let (tenant, auth) = (self.tenant, self.auth.clone());
        let refused = refused.map(|refused| refused.version);
        let granted = (self.tokens.source.0)(TokenRequest {
            tenant,
            auth,
            refused,
        })
        .await?;
        let token = Arc::new(Token::new(&granted)?);
        *known = Some(token.clone());
        Ok(token)
    }

    /// Whether the tokens are those of a user who signed in.
    pub(super) fn is_of_user(&self) -> bool {
        matches!(self.auth, ServerAuth::User(_))
    }
}

impl Token {
    /// Whether it was fetched only a moment ago, so that a newer one would be refused too.
    pub(super) fn is_fresh(&self) -> bool {
        self.got_at.elapsed() < FRESH
    }

    /// Whether it has expired.
    pub(super) fn has_ended(&self) -> bool {
        self.ends_at.is_some_and(|end| end <= Clock::System.now())
    }

    fn new(granted: &TokenGrant) -> Result<Self, NoToken> {
        let header = header_of(&granted.token)?;
        let scrubber = Arc::new(Scrubber::new([&granted.token]));
        Ok(Self {
            header,
            scrubber,
            got_at: clock::instant(),
            good_until: clock::instant() + granted.life,
            ends_at: granted.ends_at,
            version: granted.version,
        })
    }
}

fn header_of(token: &Secret) -> Result<HeaderValue, NoToken> {
    let mut header =
        HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(|_| {
            NoToken::new(
                NoTokenKind::Misconfigured,
                "the token endpoint gave a token that no header can carry",
            )
        })?;
    header.set_sensitive(true);
    Ok(header)
}

impl Tokens {
    /// Tokens from `source`. Without a source, this process gets its own from the token endpoints.
    pub(super) fn new(egress: Egress, source: Option<TokenSource>) -> Self {
        let own_source = || {
            TokenSource::new(move |request: TokenRequest| {
                let egress = egress.clone();
                Box::pin(async move {
                    match &request.auth {
                        ServerAuth::Client(credentials) => fetch(&egress, credentials).await,
                        ServerAuth::User(_) => Err(NoToken::new(
                            NoTokenKind::Misconfigured,
                            "nobody keeps the tokens of users here",
                        )),
                    }
                })
            })
        };
        Self {
            source: source.unwrap_or_else(own_source),
            slots: Mutex::default(),
        }
    }

    /// The slot for these credentials. Its key is a digest, so that no secret is kept as a key.
    fn slot(&self, tenant: Option<TenantId>, auth: &ServerAuth) -> Slot {
        let mut digest = Sha256::new();
        let mut part = |part: &[u8]| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        part(
            tenant
                .as_ref()
                .map_or(&[][..], |tenant| tenant.0.as_bytes()),
        );
        match auth {
            ServerAuth::Client(credentials) => {
                for text in credentials.identity() {
                    part(text.as_bytes());
                }
                part(credentials.secret().expose().as_bytes());
            }
            ServerAuth::User(user) => {
                part(user.credential.id.0.as_bytes());
                part(&user.credential.generation.to_be_bytes());
            }
        }
        let mut slots = lock(&self.slots);
        if slots.len() >= MAX_REMEMBERED {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(digest.finalize().into()).or_default().clone()
    }
}

/// Gets a token for the program itself from the token endpoint.
pub async fn fetch(
    egress: &Egress,
    credentials: &ClientCredentials,
) -> Result<TokenGrant, NoToken> {
    let egress = if credentials.of_tenant {
        &egress.for_tenants()
    } else {
        egress
    };
    let asked_at = clock::instant();
    let service = oauth::service_for(egress, credentials).await?;
    let granted = oauth::client_credentials(egress, &service, credentials.scope.as_deref()).await?;
    let life = granted.life().unwrap_or(DEFAULT_LIFE).min(LONGEST_LIFE);
    Ok(TokenGrant {
        ends_at: granted.expires_at,
        token: granted.access_token,
        life: usable_life(life).saturating_sub(asked_at.elapsed()),
        version: 0,
    })
}

/// How long a token with this life is used.
pub fn usable_life(life: Duration) -> Duration {
    life.saturating_sub(EXPIRY_MARGIN.min(life / 4))
}
