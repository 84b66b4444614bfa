//! The newest verified claims of each person. A person's waiting calls and votes are judged by these claims, and not by
//! the claims of the token that they used when they asked or voted. A process knows claims that are at most a second
//! old.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::{Accounts, Shared, sign_outs::REMEMBERED};
use domain::{
    audit::{Fact, SYSTEM},
    error::{Error, Result},
    ids::{TenantId, UserId},
    principal::{KEY_USER, Principal, is_left_out},
    session::{ActKind, PastAct, SessionEnd},
};
use store::{Tx, users::ClaimsWritten};

/// Claims that describe a token and not its person: the next token of the same person has other values.
const OF_A_TOKEN: [&str; 10] = [
    "exp",
    "nbf",
    "iat",
    "jti",
    "nonce",
    "at_hash",
    "c_hash",
    "s_hash",
    "auth_time",
    "sid",
];
/// Claims that name the session of a token.
const OF_A_SESSION: [&str; 3] = ["iss", "iat", "exp"];

/// The stored claims of a person, and the token that they come from.
pub(super) struct StoredClaims {
    source: Arc<Map<String, Value>>,
    person: Principal,
    issued_at: Option<OffsetDateTime>,
}

/// The newest claims of a person, and the time at which they were read.
#[derive(Clone)]
pub(super) struct KnownClaims {
    newest: Option<Arc<Principal>>,
    read: OffsetDateTime,
}

impl Shared {
    /// The claims of a principal who was just verified, if they have to be written.
    pub(super) async fn claims_to_keep(&self, principal: &Principal) -> Option<StoredClaims> {
        // The claims of a service are stored with its key, and a guest has no claims.
        if !principal.authenticated || principal.user.as_str().starts_with(KEY_USER) {
            return None;
        }
        let user_key = (principal.tenant, principal.user.clone());
        let known = self.kept_claims.get(&user_key).await;
        if let Some(known) = &known
            && Arc::ptr_eq(&known.source, &principal.claims)
        {
            return None;
        }
        let new = StoredClaims {
            source: principal.claims.clone(),
            person: without_token_claims(principal),
            issued_at: issue_time(principal, self.clock.now()),
        };
        let Some(known) = known else {
            return Some(new);
        };
        let is_same =
            known.person.claims == new.person.claims && known.person.locale == new.person.locale;
        if is_same {
            self.kept_claims.insert(user_key, Arc::new(new)).await;
            return None;
        }
        // A token that was issued before the one with the stored claims.
        let is_older =
            matches!((new.issued_at, known.issued_at), (Some(new), Some(known)) if new < known);
        (!is_older).then_some(new)
    }

    /// The newest claims of a person, at most a second old.
    async fn newest_claims_of(&self, principal: &Principal) -> Result<Option<Arc<Principal>>> {
        let user_key = (principal.tenant, principal.user.clone());
        let now = self.clock.now();
        if let Some(known) = self.newest_claims.get(&user_key).await
            && (self.knows_recent_changes() || now < known.read + REMEMBERED)
        {
            return Ok(known.newest);
        }
        let mut tx = self.db.tenant(principal.tenant).await?;
        let found =
            store::users::list_principals(&mut tx, std::slice::from_ref(&principal.user)).await?;
        let newest = found.into_iter().next().map(Arc::new);
        let known = KnownClaims {
            newest: newest.clone(),
            read: now,
        };
        self.newest_claims.insert(user_key, known).await;
        Ok(newest)
    }

    /// Remembers claims after the commit of [`StoredClaims::write`]. `is_changed` is what that function returned.
    pub(super) async fn remember_claims(&self, kept: StoredClaims, is_changed: bool) {
        let user_key = (kept.person.tenant, kept.person.user.clone());
        self.newest_claims.invalidate(&user_key).await;
        self.kept_claims
            .insert(user_key.clone(), Arc::new(kept))
            .await;
        if is_changed {
            // An error means that there is no listener.
            let _ = self.claims_changed.send(user_key);
        }
    }
}

impl StoredClaims {
    /// Writes the claims and returns whether they differ from the stored ones. When the issuer has left out a claim
    /// that a pack names, a line of the audit trail tells the admins.
    pub(super) async fn write(
        &self,
        tx: &mut Tx,
        named: Option<&BTreeSet<String>>,
    ) -> Result<bool> {
        let written = store::users::put(tx, &self.person, self.issued_at).await?;
        if written == ClaimsWritten::Kept {
            return Ok(false);
        }
        let (tenant, user) = (self.person.tenant, &self.person.user);
        for claim in named.into_iter().flatten() {
            if !is_left_out(&self.person.claims, claim) {
                continue;
            }
            tracing::warn!(
                %tenant,
                claim,
                "an issuer left a claim out of the token of a user, as Entra ID does for people in more than 200 groups; \
                 let it send app roles, or only the groups that are assigned to the application"
            );
            let detail = format!("{claim} of {user}");
            let fact = Fact::new(SYSTEM, "user.claim_left_out").detail(&detail);
            store::audit::record(tx, tenant, &fact).await?;
        }
        Ok(written == ClaimsWritten::Changed)
    }
}

/// When the principal's token was issued, if it says so. A time in the future counts as now.
fn issue_time(principal: &Principal, now: OffsetDateTime) -> Option<OffsetDateTime> {
    let seconds = principal.claims.get("iat")?.as_f64()?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast saturates, and what is out of range is taken for now"
    )]
    let issued = OffsetDateTime::from_unix_timestamp(seconds as i64).ok()?;
    Some(issued.min(now))
}

/// The principal without the claims of one token.
fn without_token_claims(principal: &Principal) -> Principal {
    let mut claims: Map<String, Value> = (*principal.claims).clone();
    claims.retain(|name, _| !OF_A_TOKEN.contains(&name.as_str()));
    Principal {
        claims: Arc::new(claims),
        ..principal.clone()
    }
}

/// Whether the principal already has the newest claims of their person.
fn is_newest(principal: &Principal, newest: &Principal) -> bool {
    let of_person = |principal: &Principal| {
        let claims = principal.claims.keys();
        claims
            .filter(|name| !OF_A_TOKEN.contains(&name.as_str()))
            .count()
    };
    let is_same = |(name, claim)| principal.claims.get(name) == Some(claim);
    newest.claims.iter().all(is_same) && of_person(principal) == newest.claims.len()
}

/// The principal with the newest claims of their person, and with their own session.
fn renew(principal: &Principal, newest: &Principal) -> Principal {
    let mut claims = (*newest.claims).clone();
    for name in OF_A_SESSION {
        if let Some(value) = principal.claims.get(name) {
            claims.insert(name.to_owned(), value.clone());
        }
    }
    Principal {
        claims: Arc::new(claims),
        locale: newest.locale.clone().or_else(|| principal.locale.clone()),
        ..principal.clone()
    }
}

/// How an act is judged: the person who did it, with their newest claims, or why the act no longer counts.
pub type Judgement = std::result::Result<Principal, SessionEnd>;

/// Judges acts in a transaction of their tenant: which of them still count. Both the people who asked for a call and
/// those who voted on it are judged here and nowhere else.
pub async fn judge(tx: &mut Tx, acts: &[PastAct<'_>]) -> Result<Vec<Judgement>> {
    let ends = store::users::list_session_ends(tx, acts).await?;
    let users: Vec<UserId> = acts.iter().map(|act| act.who.user.clone()).collect();
    let newest = store::users::list_principals(tx, &users).await?;
    let judged = acts.iter().zip(ends).map(|(act, end)| {
        if let Some(end) = end {
            return Err(end);
        }
        match newest.iter().find(|newest| newest.user == act.who.user) {
            Some(newest) if act.who.authenticated => Ok(renew(act.who, newest)),
            // A voter without stored claims was deleted, or their key was. Guests never have stored claims: theirs counts
            // as long as their key does.
            _ if act.kind == ActKind::Vote && act.who.authenticated => Err(SessionEnd::Deleted),
            _ => Ok(act.who.clone()),
        }
    });
    Ok(judged.collect())
}

/// Judges one act.
pub async fn current(tx: &mut Tx, act: PastAct<'_>) -> Result<Judgement> {
    let judged = judge(tx, &[act]).await?;
    judged
        .into_iter()
        .next()
        .ok_or_else(|| Error::Internal(anyhow::anyhow!("an act was not judged")))
}

impl Accounts {
    /// The principal with their newest claims that any replica has seen. A service keeps the claims of its key, and a
    /// guest has none.
    pub async fn newest(&self, principal: &Principal) -> Result<Principal> {
        if !principal.authenticated || principal.user.as_str().starts_with(KEY_USER) {
            return Ok(principal.clone());
        }
        Ok(match self.shared.newest_claims_of(principal).await? {
            Some(newest) if !is_newest(principal, &newest) => Principal {
                // The language of the request counts before the stored one.
                locale: principal.locale.clone().or_else(|| newest.locale.clone()),
                ..renew(principal, &newest)
            },
            _ => principal.clone(),
        })
    }

    /// Forgets the claims of a user whose claims were written, here or on another replica.
    pub async fn claims_changed(&self, tenant: TenantId, user: &UserId) {
        let user_key = (tenant, user.clone());
        self.shared.newest_claims.invalidate(&user_key).await;
        self.shared.kept_claims.invalidate(&user_key).await;
    }

    /// Like [`current`], in a transaction of its own.
    pub async fn current(&self, act: PastAct<'_>) -> Result<Judgement> {
        let mut tx = self.shared.db.tenant(act.who.tenant).await?;
        current(&mut tx, act).await
    }

    /// Subscribes to the users whose claims this replica sees changing.
    pub fn watch_claims(&self) -> tokio::sync::broadcast::Receiver<(TenantId, UserId)> {
        self.shared.claims_changed.subscribe()
    }
}
