//! Access tokens for servers: the program's own, by client credentials (RFC 6749, section 4.4), and those of users who
//! signed in.
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

use futures_util::future::BoxFuture;
use http::HeaderValue;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::{
    error::Failure,
    interceptor::locked,
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

/// The life of a token whose endpoint does not give one.
const DEFAULT_LIFE: Duration = Duration::from_secs(300);
/// It is replaced so long before its end, or when a quarter of its life is left.
const MARGIN: Duration = Duration::from_secs(30);
/// One that is said to hold for longer is replaced all the same.
const LONGEST_LIFE: Duration = Duration::from_secs(86_400);
/// Different credentials that are remembered.
const REMEMBERED: usize = 4096;
/// A token that a server refuses so soon after it came is not replaced by yet another one.
const FRESH: Duration = Duration::from_secs(2);

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
    pub auth: ServerAuth,
    /// The version of the one before, when its server has refused it.
    pub refused: Option<i64>,
}

/// A token that was got.
pub struct TokenGrant {
    pub token: Secret,
    /// For how long it is used, which is less than it is good for.
    pub life: Duration,
    /// When it ends; `None` when nobody knows.
    pub ends_at: Option<OffsetDateTime>,
    /// The version of a stored token; 0 when tokens are not stored.
    pub version: i64,
}

/// Why there is no token. No request was sent to the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no access token for the server: {why}")]
pub struct NoToken {
    pub kind: NoTokenKind,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTokenKind {
    /// It may be there the next time.
    Later,
    /// It will be the same until a setting changes.
    Misconfigured,
    /// The authorization of the user has ended; only the user can give another one.
    Refused,
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
    got_at: Instant,
    good_until: Instant,
    ends_at: Option<OffsetDateTime>,
    version: i64,
}

/// How one connection gets its token.
#[derive(Clone)]
pub(super) struct Bearer {
    pub(super) tokens: Arc<Tokens>,
    pub(super) tenant: TenantId,
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
    /// For the program's own token: whatever is refused stays refused until somebody changes a setting.
    fn from(error: OAuthError) -> Self {
        let kind = match error.kind {
            OAuthErrorKind::Away | OAuthErrorKind::Redirected => NoTokenKind::Later,
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
    /// A token that is good for a while. One that was `refused` is not given again.
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
    /// Whether it came only just now: a server that refuses it wants something else than a newer one.
    pub(super) fn is_fresh(&self) -> bool {
        self.got_at.elapsed() < FRESH
    }

    /// Whether its time is over by now.
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
    /// From `source`, or where there is none from the token endpoints, for this process alone.
    pub(super) fn new(egress: Egress, source: Option<TokenSource>) -> Self {
        let alone = || {
            TokenSource::new(move |wanted| {
                let egress = egress.clone();
                Box::pin(async move {
                    match &wanted.auth {
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
            source: source.unwrap_or_else(alone),
            slots: Mutex::default(),
        }
    }

    fn slot(&self, tenant: TenantId, auth: &ServerAuth) -> Slot {
        let mut digest = Sha256::new();
        let mut part = |part: &[u8]| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        part(tenant.0.as_bytes());
        match auth {
            ServerAuth::Client(of) => {
                of.identity().iter().for_each(|it| part(it.as_bytes()));
                part(of.secret().expose().as_bytes());
            }
            ServerAuth::User(of) => {
                part(of.credential.id.0.as_bytes());
                part(&of.credential.generation.to_be_bytes());
            }
        }
        let mut slots = locked(&self.slots);
        if slots.len() >= REMEMBERED {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(digest.finalize().into()).or_default().clone()
    }
}

/// Gets a token for the program itself.
pub async fn fetch(egress: &Egress, of: &ClientCredentials) -> Result<TokenGrant, NoToken> {
    let egress = if of.of_tenant {
        &egress.for_tenants()
    } else {
        egress
    };
    let asked_at = clock::instant();
    let service = oauth::service_for(egress, of).await?;
    let granted = oauth::client_credentials(egress, &service, of.scope.as_deref()).await?;
    let life = granted.life().unwrap_or(DEFAULT_LIFE).min(LONGEST_LIFE);
    Ok(TokenGrant {
        ends_at: granted.expires_at,
        token: granted.access_token,
        life: usable_life(life).saturating_sub(asked_at.elapsed()),
        version: 0,
    })
}

/// For how long a token is used that is good for `life`.
pub fn usable_life(life: Duration) -> Duration {
    life.saturating_sub(MARGIN.min(life / 4))
}
