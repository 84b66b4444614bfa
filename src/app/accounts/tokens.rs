//! Tokens: signed statements of an issuer about a user.
//!
//! Before it is trusted, a token is read only to learn which issuer to ask. Then exactly that issuer's algorithm,
//! key, `iss` and `aud` must fit, so a token cannot choose how it is checked.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, errors::ErrorKind,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use url::Url;

use crate::app::accounts::{
    CachedRow, Caller, Shared,
    authentication::{drop_unnamed, quoted, unauthenticated, user_id},
    key_sets::KeySource,
};
use domain::{
    account::{ChatSettings, Issuer, IssuerKeys},
    config::Environment,
    error::{Error, Result},
    ids::AgentId,
    principal::{Audience, Principal, Scope, Scopes},
    session::AHEAD,
};

/// A token is checked again after this time.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);
/// Clocks of issuers may differ from ours by this much.
pub(super) const LEEWAY_SECONDS: i64 = 30;
/// The scope that gives the right to manage the tenant, in the claim `scope` or `scp`.
const ADMIN_SCOPE: &str = "chatelaine:admin";

/// A token that was checked.
pub(super) struct VerifiedToken {
    caller: Caller,
    until: OffsetDateTime,
    /// The names of the claims that were kept.
    named: Option<Arc<BTreeSet<String>>>,
    /// About the memory of its claims, in bytes.
    pub(super) size: u32,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// The claims of an unchecked token that name its issuer and its audience.
#[derive(Deserialize)]
struct UnverifiedClaims {
    iss: String,
    aud: AudienceClaim,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum AudienceClaim {
    One(String),
    Many(Vec<String>),
}

impl AudienceClaim {
    fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
    }
}

impl Shared {
    pub(super) async fn token_caller(
        &self,
        token: &str,
        digest: [u8; 32],
        address: Option<IpAddr>,
    ) -> Result<Caller> {
        let (now, named) = (self.clock.now(), self.named_claims());
        if let Some(known) = self.tokens.get(&digest).await
            && now < known.until
            && known.named == named
        {
            return Ok(known.caller.clone());
        }
        let (issuer, audience, claims) = self.verify(token, address).await?;
        let expiry = check_times(&claims, now)?;
        let mut caller = make_caller(&issuer, audience, claims)?;
        drop_unnamed(&mut caller.principal, named.as_deref());
        let until = expiry.min(now + REMEMBERED);
        let size = estimate_memory(&caller);
        self.tokens
            .insert(
                digest,
                Arc::new(VerifiedToken {
                    caller: caller.clone(),
                    until,
                    named,
                    size,
                }),
            )
            .await;
        Ok(caller)
    }
}

fn make_caller(
    issuer: &Issuer,
    audience: Audience,
    mut claims: Map<String, Value>,
) -> Result<Caller> {
    issuer.source.vouch(&mut claims);
    let text = |claim: &str| claims.get(claim).and_then(Value::as_str);
    // `decode` also accepts a list of issuers, which identifies no single issuer.
    if text("iss") != Some(&issuer.issuer) {
        return unauthenticated("the token's claim `iss` is not its issuer");
    }
    let subject = user_id(read_subject(&claims)?, "the token's claim `sub`")?;
    let user = issuer.source.user(&subject);
    let locale = text("locale").map(str::to_owned);
    let scopes = read_scopes(&claims);
    let principal = Principal {
        tenant: issuer.tenant,
        user,
        claims: Arc::new(claims),
        locale,
        authenticated: true,
        key: None,
        audience,
    };
    Ok(Caller {
        principal,
        scopes,
        key: None,
        conversation_key: None,
        chat: ChatSettings::default(),
        is_frontend: false,
    })
}

/// About the memory of a caller, in bytes.
fn estimate_memory(caller: &Caller) -> u32 {
    let claims = serde_json::to_string(&*caller.principal.claims).unwrap_or_default();
    u32::try_from(claims.len())
        .unwrap_or(u32::MAX)
        .saturating_add(512)
}

/// The claim `sub`, which is text (RFC 7519): a number would have more than one spelling.
fn read_subject(claims: &Map<String, Value>) -> Result<&str> {
    let kind = match claims.get("sub") {
        None => return unauthenticated("the token lacks the claim `sub`"),
        Some(Value::String(subject)) => return Ok(subject),
        Some(Value::Number(_)) => "a number",
        Some(_) => "not text",
    };
    unauthenticated(format!(
        "the token's claim `sub` is {kind}; it must be text, so have its issuer send it as a string"
    ))
}

/// The scopes of a token. Every user may chat; the claim `scope` (text) or `scp` (list or text) says who
/// manages the tenant.
fn read_scopes(claims: &Map<String, Value>) -> Scopes {
    let names_admin = |claim: &Value| match claim {
        Value::String(text) => text.split_whitespace().any(|scope| scope == ADMIN_SCOPE),
        Value::Array(items) => items.iter().any(|scope| scope == ADMIN_SCOPE),
        _ => false,
    };
    let admin = ["scope", "scp"]
        .into_iter()
        .filter_map(|claim| claims.get(claim))
        .any(names_admin);
    Scopes::new(
        [Scope::Chat]
            .into_iter()
            .chain(admin.then_some(Scope::Admin)),
    )
}

impl Shared {
    /// Finds the issuer of the token and checks the signature with its key.
    async fn verify(
        &self,
        token: &str,
        address: Option<IpAddr>,
    ) -> Result<(Issuer, Audience, Map<String, Value>)> {
        let most = self.max_token_bytes;
        if token.len() > most {
            return unauthenticated(format!(
                "the token is longer than {most} bytes (CHATELAINE_MAX_TOKEN_BYTES)"
            ));
        }
        let mut parts = token.split('.');
        let (Some(head), Some(payload), Some(_), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return unauthenticated(
                "the credential is neither a token (JWT) nor an API key (`chk_…`)",
            );
        };
        let header: Header = decode_part(head, "its header is not JSON with `alg`")?;
        let origin: UnverifiedClaims = decode_part(
            payload,
            "it lacks the claim `iss` or `aud`, each of which must be text",
        )?;
        if header.crit.is_some() {
            return unauthenticated(
                "the token's header has `crit`, which names extensions that are not supported",
            );
        }
        let issuer = self.find_trusted_issuer(&origin, address).await?;
        if issuer.algorithm != header.alg {
            return unauthenticated(format!(
                "the token is signed with {}, its issuer uses {:?}",
                quoted(&header.alg),
                issuer.algorithm
            ));
        }
        let claims = self
            .check_signature(token, &issuer, header.kid.as_deref())
            .await?;
        let audience = Audience::narrowest(origin.aud.names().iter().map(String::as_str));
        Ok((issuer, audience, claims))
    }

    /// The one issuer of one tenant that the token names, with that audience of the token for which it is trusted.
    async fn find_trusted_issuer(
        &self,
        origin: &UnverifiedClaims,
        address: Option<IpAddr>,
    ) -> Result<Issuer> {
        let issuers = self.find_issuers(&origin.iss, address).await?;
        let listed = issuers.row.iter();
        let mut fitting: Vec<Issuer> = listed
            .filter(|issuer| origin.aud.names().contains(&issuer.audience))
            .cloned()
            .collect();
        if fitting.is_empty() {
            fitting = self.list_for_endpoint(&issuers.row, &origin.aud).await?;
        }
        let Some(issuer) = fitting.first() else {
            return unauthenticated(format!(
                "no tenant trusts the token's issuer {} for its audience",
                quoted(&origin.iss)
            ));
        };
        if fitting.iter().any(|other| other.tenant != issuer.tenant) {
            return unauthenticated(
                "the token's audiences belong to more than one tenant; ask for a token with one",
            );
        }
        Ok(issuer.clone())
    }

    /// The issuers whose tokens for the MCP endpoint that the token names are taken without an entry of their own: those
    /// that are trusted for the service. Where several tenants trust an issuer, `?tenant=` behind the address says whose
    /// user it is, as in the metadata of the endpoint.
    async fn list_for_endpoint(
        &self,
        issuers: &[Issuer],
        aud: &AudienceClaim,
    ) -> Result<Vec<Issuer>> {
        let own = aud.names().iter().find_map(|name| {
            let url = Url::parse(name).ok()?;
            is_own_endpoint(&self.public_url, &url).then_some((name, url))
        });
        let Some((name, url)) = own else {
            return Ok(Vec::new());
        };
        let tenant = url.query_pairs().find(|(name, _)| name == "tenant");
        let mut fitting = Vec::new();
        for issuer in issuers {
            let is_for_service = Audience::narrowest([issuer.audience.as_str()]).is_service();
            let is_meant = match &tenant {
                Some((_, tenant)) => self.tenant(issuer.tenant).await?.name == *tenant,
                None => true,
            };
            if is_for_service && is_meant {
                fitting.push(Issuer {
                    audience: name.clone(),
                    ..issuer.clone()
                });
            }
        }
        Ok(fitting)
    }

    pub(in crate::app::accounts) async fn find_issuers(
        &self,
        iss: &str,
        address: Option<IpAddr>,
    ) -> Result<Arc<CachedRow<Vec<Issuer>>>> {
        let now = self.clock.now();
        if let Some(known) = self.issuers.get(iss).await
            && (known.is_recent(now) || self.watched.load().covers_issuer(iss, known.since, now))
        {
            return Ok(known);
        }
        let digest = Sha256::digest(iss).into();
        let _permit = self.lookups.begin(digest, address).await?;
        let mut tx = self.db.system().await?;
        let found = CachedRow {
            row: store::issuers::list_by_issuer(&mut tx, iss).await?,
            since: now,
        };
        let found = Arc::new(found);
        if !found.row.is_empty() {
            self.lookups.note_good(digest).await;
            self.issuers.insert(iss.to_owned(), found.clone()).await;
        }
        Ok(found)
    }

    async fn check_signature(
        &self,
        token: &str,
        issuer: &Issuer,
        kid: Option<&str>,
    ) -> Result<Map<String, Value>> {
        let algorithm = algorithm(&issuer.algorithm).ok_or_else(|| {
            Error::internal(anyhow::anyhow!(
                "issuer {} has an unknown algorithm",
                issuer.id
            ))
        })?;
        let mut validation = Validation::new(algorithm);
        validation.set_issuer(&[&issuer.issuer]);
        validation.set_audience(&[&issuer.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        // Times are checked against our own clock.
        validation.validate_exp = false;
        let check = |key: &DecodingKey| decode::<Map<String, Value>>(token, key, &validation);
        let checked = match &issuer.keys {
            IssuerKeys::Jwks(url) => {
                let source = KeySource {
                    url: url.clone(),
                    of_tenant: issuer.of_tenant,
                };
                let key = self.key_sets.find(&source, kid, algorithm).await?;
                let checked = check(&key);
                let fits = |error: &jsonwebtoken::errors::Error| {
                    !matches!(error.kind(), ErrorKind::InvalidSignature)
                };
                if checked.as_ref().err().is_none_or(fits) {
                    checked
                } else {
                    let newer = self.key_sets.find_newer(&source, kid, algorithm, &key);
                    newer.await.map_or(checked, |newer| check(&newer))
                }
            }
            IssuerKeys::PublicKey(pem) => {
                check(&public_key(pem, algorithm).map_err(Error::internal)?)
            }
            IssuerKeys::SecretEnv(name) => check(&self.secret(name)?),
        };
        match checked {
            Ok(checked) => Ok(checked.claims),
            Err(error) => unauthenticated(match error.kind() {
                ErrorKind::MissingRequiredClaim(claim) => {
                    format!("the token lacks the claim `{claim}`")
                }
                ErrorKind::InvalidSignature => {
                    "the token's signature does not fit its issuer's key".to_owned()
                }
                _ => "the token is malformed or its signature does not fit its issuer's key"
                    .to_owned(),
            }),
        }
    }

    fn secret(&self, variable: &str) -> Result<DecodingKey> {
        match read_secret(&self.env, variable) {
            Ok(secret) => Ok(DecodingKey::from_secret(secret.as_bytes())),
            Err(state) => {
                tracing::error!(
                    variable,
                    "the environment variable with an issuer's secret {state}"
                );
                Err(Error::Unavailable(
                    "the secret of the token's issuer is not configured; tell the operator".into(),
                ))
            }
        }
    }
}

/// Whether an audience is the address of an MCP endpoint of this service.
fn is_own_endpoint(public_url: &str, audience: &Url) -> bool {
    let Ok(own) = Url::parse(public_url) else {
        return false;
    };
    let below = audience
        .path()
        .strip_prefix(own.path().trim_end_matches('/'));
    let agent = below.and_then(|path| path.strip_prefix("/mcp/"));
    own.origin() == audience.origin()
        && agent.is_some_and(|agent| AgentId::parse(agent.trim_end_matches('/')).is_ok())
}

/// The secret of an issuer that lies in a variable; the error says what the variable is instead.
pub(super) fn read_secret<'e>(
    env: &'e Environment,
    variable: &str,
) -> std::result::Result<&'e str, &'static str> {
    let secret = env.get(variable).ok_or("is not set")?;
    if secret.len() < 32 {
        return Err("is shorter than 32 bytes");
    }
    Ok(secret)
}

fn decode_part<T: DeserializeOwned>(encoded: &str, why: &str) -> Result<T> {
    let decoded = URL_SAFE_NO_PAD
        .decode(encoded)
        .ok()
        .and_then(|json| serde_json::from_slice(&json).ok());
    decoded.ok_or_else(|| Error::Unauthenticated(format!("the token cannot be read: {why}")))
}

/// Refuses a token before and after its time; returns its end.
fn check_times(claims: &Map<String, Value>, now: OffsetDateTime) -> Result<OffsetDateTime> {
    let seconds = |claim: &str| match claims.get(claim)?.as_f64() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a cast saturates, and what is out of range is refused"
        )]
        Some(seconds) => Some(seconds as i64),
        None => Some(i64::MIN),
    };
    let malformed =
        |claim| Error::Unauthenticated(format!("the token's claim `{claim}` is not a time"));
    let now_seconds = now.unix_timestamp();
    if let Some(not_before) = seconds("nbf") {
        OffsetDateTime::from_unix_timestamp(not_before).map_err(|_| malformed("nbf"))?;
        if not_before > now_seconds + LEEWAY_SECONDS {
            return unauthenticated("the token is not valid yet");
        }
    }
    if let Some(issued) = seconds("iat") {
        OffsetDateTime::from_unix_timestamp(issued).map_err(|_| malformed("iat"))?;
        let ahead = issued - now_seconds;
        // Otherwise such a token would outlive every sign-out until that time.
        if ahead > AHEAD {
            return unauthenticated(format!(
                "the token's claim `iat` is {ahead} seconds in the future; the clock of its issuer, or ours, is wrong"
            ));
        }
    }
    let expiry = OffsetDateTime::from_unix_timestamp(seconds("exp").unwrap_or(i64::MIN))
        .map_err(|_| malformed("exp"))?;
    if expiry.unix_timestamp() + LEEWAY_SECONDS <= now_seconds {
        return unauthenticated("the token has expired; ask its issuer for a new one");
    }
    Ok(expiry)
}

/// The algorithm of a name, as issuers are configured with it.
pub(in crate::app::accounts) fn algorithm(name: &str) -> Option<Algorithm> {
    name.parse().ok()
}

/// A static key of the family of an algorithm.
pub(in crate::app::accounts) fn public_key(
    pem: &str,
    algorithm: Algorithm,
) -> Result<DecodingKey, jsonwebtoken::errors::Error> {
    match algorithm.family() {
        AlgorithmFamily::Rsa => DecodingKey::from_rsa_pem(pem.as_bytes()),
        AlgorithmFamily::Ec => DecodingKey::from_ec_pem(pem.as_bytes()),
        AlgorithmFamily::Ed => DecodingKey::from_ed_pem(pem.as_bytes()),
        AlgorithmFamily::Hmac => Err(ErrorKind::InvalidKeyFormat.into()),
    }
}
