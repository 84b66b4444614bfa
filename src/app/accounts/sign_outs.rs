//! Sessions that ended before their tokens did. What is known of a user's is at most a second old, so that a
//! sign-out holds on every replica within one.

use std::time::Duration;

use tokio::sync::broadcast;

use super::{Accounts, Caller, Shared, unauthenticated};
use crate::{
    domain::{
        error::Result,
        ids::{TenantId, UserId},
        principal::Principal,
        session::SignOut,
    },
    store,
};

pub(super) const REMEMBERED: Duration = Duration::from_secs(1);

/// How long a listener goes on after its user signed out.
const GOODBYE: Duration = Duration::from_secs(1);

/// Listeners that are this many sign-outs behind end as if theirs was among them.
pub(super) const BEHIND: usize = 256;

impl Shared {
    /// Refuses a caller whose token was valid and whose session is over.
    pub(super) async fn check_session(&self, caller: &Caller) -> Result<()> {
        let Principal { tenant, user, claims, .. } = &caller.principal;
        let load = async {
            let mut tx = self.db.tenant(*tenant).await?;
            store::sign_outs::get(&mut tx, user).await
        };
        let whose = (*tenant, user.clone());
        let known = match self.sign_outs.get(&whose).await {
            Some(known) => known,
            None => {
                let found = load.await?;
                self.sign_outs.insert(whose, found).await;
                found
            }
        };
        if known.is_some_and(|sign_out| sign_out.ends(claims)) {
            return unauthenticated("you signed out with this token; sign in again");
        }
        Ok(())
    }
}

impl Accounts {
    /// Ends the principal's sessions: no token that they have now is taken any more. `false` when they came
    /// without one, by a key, which only its holder can stop using.
    pub async fn sign_out(&self, principal: &Principal) -> Result<bool> {
        let now = self.shared.clock.now().unix_timestamp();
        let Some(sign_out) = SignOut::of(&principal.claims, now) else { return Ok(false) };
        let mut tx = self.shared.db.tenant(principal.tenant).await?;
        store::sign_outs::put(&mut tx, principal.tenant, &principal.user, sign_out).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// A user signed out, here or on another replica.
    pub async fn signed_out(&self, tenant: TenantId, user: &UserId) {
        self.shared.sign_outs.invalidate(&(tenant, user.clone())).await;
        // Nobody may be listening.
        let _ = self.shared.ended.send((tenant, user.clone()));
    }

    /// Completes a moment after the principal signed out: the answer to that is still heard.
    pub fn ended(&self, principal: &Principal) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.shared.ended.subscribe();
        let whose = (principal.tenant, principal.user.clone());
        async move {
            loop {
                match ended.recv().await {
                    Ok(other) if other != whose => {}
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => break,
                    Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                }
            }
            tokio::time::sleep(GOODBYE).await;
        }
    }
}
