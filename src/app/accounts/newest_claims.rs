//! The newest verified claims of each person. They decide what becomes of what the person has waiting, whichever token
//! they came with then. What is known of them here is at most a second old.

use std::sync::Arc;

use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::{Accounts, Shared};
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

impl Shared {
    /// Keeps the claims of somebody who was verified just now. Without a write when the same were kept a moment ago.
    pub(super) async fn keep_claims(&self, principal: &Principal) -> Result<()> {
        let whose = (principal.tenant, principal.user.clone());
        let issued_at = principal.claims.get("iat").and_then(Value::as_f64);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a cast saturates, and what is out of range is taken for now"
        )]
        let issued_at =
            issued_at.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds as i64).ok());
        let person = of_person(principal);
        if self
            .kept_claims
            .get(&whose)
            .await
            .is_some_and(|kept| kept.claims == person.claims && kept.locale == person.locale)
        {
            return Ok(());
        }
        let mut tx = self.db.tenant(principal.tenant).await?;
        let is_news = store::users::put(&mut tx, &person, issued_at).await?;
        tx.commit().await?;
        self.newest_claims.invalidate(&whose).await;
        self.kept_claims
            .insert(whose.clone(), Arc::new(person))
            .await;
        if is_news {
            // Nobody may be listening.
            let _ = self.claims_changed.send(whose);
        }
        Ok(())
    }
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
        locale: newest.locale,
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
