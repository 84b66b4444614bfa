//! Sessions that end before their tokens do: sign-outs and blocks. A process knows sign-outs that are at most a second
//! old, so a sign-out holds on every replica within a second.

use std::time::Duration;

use tokio::sync::broadcast;

use super::{
    Accounts, EndedSessions, GUEST_USER, Shared, authentication::unauthenticated,
    tokens::LEEWAY_SECONDS,
};
use domain::{
    audit::Fact,
    error::{Error, Result},
    event::StreamEnd,
    ids::{ApiKeyId, TenantId, UserId},
    principal::{Admin, Principal},
    session::SignOut,
};
use store::{Db, Tx};

pub(super) const REMEMBERED: Duration = Duration::from_secs(1);

/// How long a stream stays open after its user signed out: the answer to the sign-out is still delivered.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// The number of ended sessions that a listener may be behind. A listener that is further behind ends, because its own
/// session may be among them.
pub(super) const BEHIND: usize = 256;

impl Shared {
    /// A user's sign-out from memory, at most a second old; `None` when it has to be read.
    async fn known_sign_out(&self, user_key: &(TenantId, UserId)) -> Option<Option<SignOut>> {
        let (sign_out, read) = self.sign_outs.get(user_key).await?;
        if self.knows_recent_changes() || self.clock.now() < read + REMEMBERED {
            return Some(sign_out);
        }
        self.sign_outs.invalidate(user_key).await;
        None
    }

    /// Refuses a caller with a valid credential whose session has ended, or whose tenant is gone or suspended. Stores
    /// the claims of every other caller. Rows that are not in memory are read and written in one transaction.
    pub(super) async fn check_session(&self, principal: &Principal, by_token: bool) -> Result<()> {
        let Principal { tenant, user, .. } = principal;
        let user_key = (*tenant, user.clone());
        let sign_out = self.known_sign_out(&user_key).await;
        let known = self.known_tenant(*tenant).await;
        let claims = self.claims_to_keep(principal).await;
        let mut tx = None;
        if sign_out.is_none() || known.is_none() || claims.is_some() {
            tx = Some(self.db.tenant(*tenant).await?);
        }
        let sign_out = match (sign_out, &mut tx) {
            (None, Some(tx)) => {
                let now = self.clock.now();
                let found = store::sign_outs::get(tx, user).await?;
                // An entry that a sign-out has written here meanwhile is newer.
                let entry = self.sign_outs.entry(user_key).or_insert((found, now)).await;
                entry.into_value().0
            }
            (known, _) => known.flatten(),
        };
        if let Some(sign_out) = sign_out {
            if sign_out.is_blocked {
                return Err(blocked());
            }
            if by_token && sign_out.ends(&principal.claims) {
                return unauthenticated("you signed out with this token; sign in again");
            }
        }
        let tenant = match (known, &mut tx) {
            (None, Some(tx)) => self.load_tenant(tx, *tenant).await,
            (known, _) => known.ok_or_else(|| Error::not_found("tenant")),
        };
        match tenant {
            Ok(tenant) => tenant.require_active()?,
            Err(Error::NotFound(_)) => {
                return unauthenticated("the tenant of this credential is gone");
            }
            Err(error) => return Err(error),
        }
        if let (Some(claims), Some(mut tx)) = (claims, tx) {
            let named = self.named_claims();
            let is_changed = claims.write(&mut tx, named.as_deref()).await?;
            tx.commit().await?;
            self.remember_claims(claims, is_changed).await;
        }
        Ok(())
    }
}

fn blocked() -> Error {
    Error::Blocked("an admin of your organisation has blocked you; ask them".to_owned())
}

/// Ends a user's sessions and refuses all their credentials from now on.
async fn block(tx: &mut Tx, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    end_sessions(tx, tenant, user).await?;
    store::sign_outs::block(tx, user, by).await?;
    let fact = Fact::new(by.as_str(), "user.blocked").detail(user.as_str());
    store::audit::record(tx, tenant, &fact).await
}

/// Accepts the credentials of a user again. Sessions that the block ended stay ended: the user signs in again.
pub async fn unblock_user(db: &Db, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    let mut tx = db.tenant(tenant).await?;
    if !store::sign_outs::unblock(&mut tx, user).await? {
        return Err(Error::not_found(format!(
            "a block of user {:?}",
            user.as_str()
        )));
    }
    let fact = Fact::new(by.as_str(), "user.unblocked").detail(user.as_str());
    store::audit::record(&mut tx, tenant, &fact).await?;
    tx.commit().await
}

/// Blocks a user. The caller ends their runs and waiting calls.
pub async fn block_user(db: &Db, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    let mut tx = db.tenant(tenant).await?;
    block(&mut tx, tenant, user, by).await?;
    tx.commit().await
}

/// Ends a user's sessions: their present tokens are refused from now on, and a guest's key is revoked.
pub(in crate::app) async fn end_sessions(
    tx: &mut Tx,
    tenant: TenantId,
    user: &UserId,
) -> Result<()> {
    let now = tx.now().await?;
    let sign_out = SignOut::of_all(now);
    store::sign_outs::put(tx, tenant, user, sign_out).await?;
    let guest = user
        .as_str()
        .strip_prefix(GUEST_USER)
        .and_then(|id| id.parse::<ApiKeyId>().ok());
    if let Some(key) = guest {
        store::api_keys::revoke_guest(tx, tenant, key, now).await?;
    }
    Ok(())
}

impl Accounts {
    /// Ends the principal's sessions: their present tokens are refused from now on, and a guest's key is revoked.
    /// `false` for the key of a frontend or a service, which only its holder can stop using.
    pub async fn sign_out(&self, principal: &Principal) -> Result<bool> {
        let mut tx = self.shared.db.tenant(principal.tenant).await?;
        if !principal.authenticated {
            end_sessions(&mut tx, principal.tenant, &principal.user).await?;
            tx.commit().await?;
            return Ok(true);
        }
        let now = tx.now().await?.unix_timestamp();
        let Some(sign_out) = SignOut::from_claims(&principal.claims, now) else {
            return Ok(false);
        };
        store::sign_outs::put(&mut tx, principal.tenant, &principal.user, sign_out).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Ends a user's sessions as an admin: their present tokens are refused from now on, and a guest's key is revoked.
    /// A frontend's key still speaks for them.
    pub async fn sign_out_user(&self, admin: &Admin, user: &UserId) -> Result<()> {
        let mut tx = self.shared.db.tenant(admin.tenant()).await?;
        end_sessions(&mut tx, admin.tenant(), user).await?;
        let fact = Fact::new(admin.user().as_str(), "user.signed_out").detail(user.as_str());
        store::audit::record(&mut tx, admin.tenant(), &fact).await?;
        tx.commit().await
    }

    /// Refuses a principal who is blocked. A block on another replica is noticed within a second.
    pub async fn require_unblocked(&self, principal: &Principal) -> Result<()> {
        let user_key = (principal.tenant, principal.user.clone());
        let sign_out = match self.shared.known_sign_out(&user_key).await {
            Some(known) => known,
            None => {
                let mut tx = self.shared.db.tenant(principal.tenant).await?;
                store::sign_outs::get(&mut tx, &principal.user).await?
            }
        };
        match sign_out {
            Some(sign_out) if sign_out.is_blocked => Err(blocked()),
            _ => Ok(()),
        }
    }

    /// Reads a user's sign-out again and ends their streams, after a sign-out, block or unblock here or on another
    /// replica. Returns whether the user is blocked.
    pub async fn signed_out(&self, tenant: TenantId, user: &UserId) -> Result<bool> {
        let mut tx = self.shared.db.tenant(tenant).await?;
        let sign_out = store::sign_outs::get(&mut tx, user).await?;
        drop(tx);
        let user_key = (tenant, user.clone());
        let known = (sign_out, self.shared.clock.now());
        self.shared.sign_outs.insert(user_key.clone(), known).await;
        // The claims may have been deleted with the user.
        self.shared.newest_claims.invalidate(&user_key).await;
        self.shared.kept_claims.invalidate(&user_key).await;
        if let Some(sign_out) = sign_out {
            // An error means that there is no listener.
            let ended = EndedSessions::User(tenant, user.clone(), sign_out);
            let _ = self.shared.ended.send(ended);
        }
        Ok(sign_out.is_some_and(|sign_out| sign_out.is_blocked))
    }

    /// Completes when the principal's token ends. It also completes a moment after they signed out, their key was
    /// revoked, their issuer was changed or removed, or their tenant was suspended. In that moment the answer to the
    /// sign-out is still delivered.
    pub fn wait_for_session_end(
        &self,
        principal: &Principal,
    ) -> impl Future<Output = StreamEnd> + Send + use<> {
        let mut ended = self.shared.ended.subscribe();
        let me = principal.clone();
        let is_mine = move |ended: &EndedSessions| match ended {
            EndedSessions::User(tenant, user, sign_out) => {
                *tenant == me.tenant && *user == me.user && sign_out.ends(&me.claims)
            }
            EndedSessions::Key(tenant, key) => *tenant == me.tenant && Some(*key) == me.key,
            EndedSessions::Tenant(tenant) => *tenant == me.tenant,
            EndedSessions::Issuer(issuer) => me.issuer() == Some(issuer),
        };
        let left = self.time_left(principal);
        let (shared, principal) = (self.shared.clone(), principal.clone());
        async move {
            let session_ended = async {
                loop {
                    match ended.recv().await {
                        Ok(ended) if !is_mine(&ended) => {}
                        Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => break,
                        Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                    }
                }
            };
            let must_end = async {
                tokio::select! {
                    () = session_ended => {}
                    () = shared.wait_for_distrust(&principal) => {}
                }
                tokio::time::sleep(ANSWER_TIME).await;
                StreamEnd::SignedOut
            };
            match left {
                Some(left) => tokio::time::timeout(left, must_end)
                    .await
                    .unwrap_or(StreamEnd::TokenExpired),
                None => must_end.await,
            }
        }
    }

    /// How long the token of a principal is taken: until the same moment as in a request.
    fn time_left(&self, principal: &Principal) -> Option<Duration> {
        principal.issuer()?;
        let end = principal.claims.get("exp")?.as_f64()?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a cast saturates, and a time far away is as good as none"
        )]
        let end = (end as i64).saturating_add(LEEWAY_SECONDS);
        let left = end.saturating_sub(self.shared.clock.now().unix_timestamp());
        Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
    }
}
