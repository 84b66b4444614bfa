//! Tokens: what an issuer says about a user, signed.
//!
//! The token is read before it is trusted only to learn which issuer is to be asked. Then exactly that
//! issuer's algorithm, key, `iss` and `aud` must fit, so a token cannot choose how it is checked.

mod verification;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;

use self::verification::check_times;
pub(super) use self::verification::{algorithm, public_key};
use super::{
    Caller, Shared,
    authentication::{drop_unnamed, unauthenticated, user_id},
};
use crate::domain::{
    account::{ChatSettings, Issuer},
    error::Result,
    principal::{Principal, Scope, Scopes},
};

/// A token is checked again after this time at the latest.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);
/// Clocks of issuers may differ from ours by this much.
const LEEWAY_SECONDS: i64 = 30;
/// In the claim `scope` or `scp`, it gives the right to manage the tenant.
const ADMIN_SCOPE: &str = "chatelaine:admin";

/// A token that was checked.
pub(super) struct VerifiedToken {
    caller: Caller,
    until: OffsetDateTime,
    /// The claims that were kept.
    named: Option<Arc<BTreeSet<String>>>,
    /// About the memory that its claims take, in bytes.
    pub(super) size: u32,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// What an unchecked token says about where it is from.
#[derive(Deserialize)]
struct UnverifiedClaims {
    iss: String,
    aud: Audience,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn names(&self, audience: &str) -> bool {
        match self {
            Self::One(name) => name == audience,
            Self::Many(names) => names.iter().any(|name| name == audience),
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
        let (issuer, claims) = self.verify(token, address).await?;
        let expiry = check_times(&claims, now)?;
        let mut caller = caller(&issuer, claims)?;
        drop_unnamed(&mut caller.principal, named.as_deref());
        let until = expiry.min(now + REMEMBERED);
        let size = memory_of(&caller);
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

fn caller(issuer: &Issuer, mut claims: Map<String, Value>) -> Result<Caller> {
    issuer.source.vouch(&mut claims);
    let text = |claim: &str| claims.get(claim).and_then(Value::as_str);
    // `decode` also accepts a list of issuers, which identifies no single issuer.
    if text("iss") != Some(&issuer.issuer) {
        return unauthenticated("the token's claim `iss` is not its issuer");
    }
    let subject = user_id(subject(&claims)?, "the token's claim `sub`")?;
    let user = issuer.source.user(&subject);
    let locale = text("locale").map(str::to_owned);
    let scopes = scopes(&claims);
    let principal = Principal {
        tenant: issuer.tenant,
        user,
        claims: Arc::new(claims),
        locale,
        authenticated: true,
        key: None,
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

/// About the bytes that a caller takes in memory.
fn memory_of(caller: &Caller) -> u32 {
    let claims = serde_json::to_string(&*caller.principal.claims).unwrap_or_default();
    u32::try_from(claims.len())
        .unwrap_or(u32::MAX)
        .saturating_add(512)
}

/// The claim `sub`, which is text (RFC 7519): a number would have more than one spelling.
fn subject(claims: &Map<String, Value>) -> Result<&str> {
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
fn scopes(claims: &Map<String, Value>) -> Scopes {
    let names_admin = |claim: &Value| match claim {
        Value::String(text) => text.split_whitespace().any(|scope| scope == ADMIN_SCOPE),
        Value::Array(items) => items.iter().any(|scope| scope == ADMIN_SCOPE),
        _ => false,
    };
    let admin = ["scope", "scp"]
        .into_iter()
        .filter_map(|claim| claims.get(claim))
        .any(names_admin);
    Scopes::of(
        [Scope::Chat]
            .into_iter()
            .chain(admin.then_some(Scope::Admin)),
    )
}
