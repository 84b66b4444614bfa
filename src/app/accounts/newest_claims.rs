//! The newest verified claims of each person. They decide what becomes of what the person has waiting, whichever token
//! they came with then. What is known of them here is at most a second old.

use std::sync::Arc;

use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::{Accounts, Shared, authentication::KEY_USER};
use crate::{
    domain::{
        error::Result,
        ids::{TenantId, UserId},
        principal::Principal,
        session::SessionEnd,
    },
    store::{self, Tx},
};

/// Claims of a token rather than of a person: another token of the same person has others.
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
/// Claims that say to which session something belongs.
const OF_A_SESSION: [&str; 3] = ["iss", "iat", "exp"];

/// Claims of a person that are written, and of which token they were read.
pub(super) struct Kept {
    source: Arc<Map<String, Value>>,
    person: Principal,
    issued_at: Option<OffsetDateTime>,
}

impl Shared {
    /// The claims of somebody who was verified just now, if they have to be written.
    pub(super) async fn claims_to_keep(&self, principal: &Principal) -> Option<Kept> {
        // A service's claims stand with its key, and a guest has none.
        if !principal.authenticated || principal.user.as_str().starts_with(KEY_USER) {
            return None;
        }
        let whose = (principal.tenant, principal.user.clone());
        let known = self.kept_claims.get(&whose).await;
        if let Some(known) = &known
            && Arc::ptr_eq(&known.source, &principal.claims)
        {
            return None;
        }
        let new = Kept {
            source: principal.claims.clone(),
            person: of_person(principal),
            issued_at: issued_at(principal),
        };
        let Some(known) = known else {
            return Some(new);
        };
        let is_same =
            known.person.claims == new.person.claims && known.person.locale == new.person.locale;
        if is_same {
            self.kept_claims.insert(whose, Arc::new(new)).await;
            return None;
        }
        // An older token than the one that was read last.
        let is_older =
            matches!((new.issued_at, known.issued_at), (Some(new), Some(known)) if new < known);
        (!is_older).then_some(new)
    }

    /// After the commit of [`Kept::write`], which says whether they are news.
    pub(super) async fn claims_kept(&self, kept: Kept, is_news: bool) {
        let whose = (kept.person.tenant, kept.person.user.clone());
        self.newest_claims.invalidate(&whose).await;
        self.kept_claims.insert(whose.clone(), Arc::new(kept)).await;
        if is_news {
            // Nobody may be listening.
            let _ = self.claims_changed.send(whose);
        }
    }
}

impl Kept {
    /// Whether they are other claims than before.
    pub(super) async fn write(&self, tx: &mut Tx) -> Result<bool> {
        store::users::put(tx, &self.person, self.issued_at).await
    }
}

/// When the token was issued that the principal came with, if the token says so.
fn issued_at(principal: &Principal) -> Option<OffsetDateTime> {
    let seconds = principal.claims.get("iat")?.as_f64()?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast saturates, and what is out of range is taken for now"
    )]
    OffsetDateTime::from_unix_timestamp(seconds as i64).ok()
}

/// The principal without what belongs to one token.
fn of_person(principal: &Principal) -> Principal {
    let mut claims: Map<String, Value> = (*principal.claims).clone();
    claims.retain(|name, _| !OF_A_TOKEN.contains(&name.as_str()));
    Principal {
        claims: Arc::new(claims),
        ..principal.clone()
    }
}

/// A principal with the newest claims of the person, in the session that they came with.
fn renewed(principal: &Principal, newest: Principal) -> Principal {
    let mut claims = (*newest.claims).clone();
    for name in OF_A_SESSION {
        if let Some(value) = principal.claims.get(name) {
            claims.insert(name.to_owned(), value.clone());
        }
    }
    Principal {
        claims: Arc::new(claims),
        locale: newest.locale.or_else(|| principal.locale.clone()),
        ..principal.clone()
    }
}

/// The principal as they are now, in a transaction of their tenant; or why what they asked for is not theirs any more.
pub async fn current(
    tx: &mut Tx,
    principal: &Principal,
) -> Result<std::result::Result<Principal, SessionEnd>> {
    if let Some(end) = store::users::session_end(tx, principal).await? {
        return Ok(Err(end));
    }
    let newest = store::users::newest(tx, std::slice::from_ref(&principal.user)).await?;
    let newest = newest.into_iter().next();
    Ok(Ok(match newest {
        Some(newest) if principal.authenticated => renewed(principal, newest),
        _ => principal.clone(),
    }))
}

impl Accounts {
    /// Somebody who is signed in, with the newest claims that any replica has seen of them.
    pub async fn newest(&self, principal: &Principal) -> Result<Principal> {
        let whose = (principal.tenant, principal.user.clone());
        let known = match self.shared.newest_claims.get(&whose).await {
            Some(known) => known,
            None => {
                let mut tx = self.shared.db.tenant(principal.tenant).await?;
                let found = store::users::newest(&mut tx, std::slice::from_ref(&whose.1)).await?;
                let found = found.into_iter().next().map(Arc::new);
                self.shared.newest_claims.insert(whose, found.clone()).await;
                found
            }
        };
        Ok(match known {
            Some(newest) if principal.authenticated => renewed(principal, (*newest).clone()),
            _ => principal.clone(),
        })
    }

    /// The principal as they are now, or why what they asked for is not theirs any more.
    pub async fn current(
        &self,
        principal: &Principal,
    ) -> Result<std::result::Result<Principal, SessionEnd>> {
        let mut tx = self.shared.db.tenant(principal.tenant).await?;
        current(&mut tx, principal).await
    }

    /// Whose claims change from here on, as far as this replica sees it.
    pub fn watch_claims(&self) -> tokio::sync::broadcast::Receiver<(TenantId, UserId)> {
        self.shared.claims_changed.subscribe()
    }
}
