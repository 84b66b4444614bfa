//! Who is calling: from the headers of a request to a [`Caller`].
//!
//! One credential, `Authorization: Bearer …`, is either a token of an issuer that a tenant trusts or a key
//! of a tenant. Headers that name a user count with a frontend's key and with nothing else. A credential
//! seen shortly before is answered from memory: a token for a minute, a key for five seconds, so that a
//! revoked key stops within seconds. Changes of tenants, issuers and sign-outs are polled every second ([`watch`]), so
//! that a known caller costs no query.

mod authentication;
pub mod development;
mod frontends;
pub mod issuers;
mod key_sets;
mod keys;
mod lookups;
pub mod newest_claims;
mod sign_outs;
mod tenants;
pub mod tickets;
mod tokens;
pub mod usage;
pub mod users;
pub mod watch;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use moka::future::Cache;
use time::OffsetDateTime;
use tokio::sync::broadcast;

pub(in crate::app) use self::sign_outs::end_sessions;
pub use self::sign_outs::{block_user, unblock_user};
pub use self::{
    authentication::Caller,
    issuers::{add_issuer, list_issuers, remove_issuer},
    keys::{IssuedKey, KeyRotation, NewKey, create_key, list_keys, revoke_key, rotate_key},
    tenants::{
        LimitsChange, NewTenant, RetentionChange, TenantChange, add_tenant, change_tenant,
        create_tenant, find_tenant, has_been_claimed, list_tenants, list_tenants_page,
        remove_tenant,
    },
};
use self::{
    authentication::bearer, key_sets::KeySets, lookups::LookupLimiter, tokens::VerifiedToken,
};
pub(in crate::app) use domain::principal::GUEST_USER;
use domain::{
    account::{ApiKey, Issuer, Tenant},
    clock::Clock,
    config::Environment,
    error::{Error, Result},
    ids::{ApiKeyId, TenantId, UserId},
    principal::Operator,
    secret::Secret,
    session::SignOut,
};
use egress::Egress;
use store::{Db, Tx};

/// The most bytes of cached tokens.
const REMEMBERED_TOKEN_BYTES: u64 = 8 * 1024 * 1024;
/// How long cached rows of keys, issuers and tenants are used. A revocation takes effect within this time.
const ROWS_REMEMBERED: Duration = Duration::from_secs(5);
/// Claims that did not change are not written again within this time.
const CLAIMS_KEPT: Duration = Duration::from_secs(300);
/// Changes of claims that a listener may be behind. Those it misses are noticed at the next decision.
const CHANGES_BEHIND: usize = 4096;
/// How long an unused entry stays in the caches.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Looks up the values of a request's header, as they were sent.
pub type Headers<'a> = dyn Fn(&str) -> Vec<&'a [u8]> + Sync + 'a;

/// Identifies callers. Cheap to clone; clones share their caches.
#[derive(Clone)]
pub struct Accounts {
    shared: Arc<Shared>,
}

struct Shared {
    db: Db,
    clock: Clock,
    env: Environment,
    max_token_bytes: usize,
    public_url: String,
    key_sets: KeySets,
    /// By SHA-256 of the credential.
    tokens: Cache<[u8; 32], Arc<VerifiedToken>>,
    keys: Cache<[u8; 32], Arc<CachedRow<ApiKey>>>,
    /// By `iss`; only issuers that some tenant trusts.
    issuers: Cache<String, Arc<CachedRow<Vec<Issuer>>>>,
    tenants: Cache<TenantId, Arc<CachedRow<Arc<Tenant>>>>,
    /// Each with the time at which it was read.
    sign_outs: Cache<(TenantId, UserId), (Option<SignOut>, OffsetDateTime)>,
    /// The last successful poll for ended sessions and changed claims.
    sessions_checked: Mutex<OffsetDateTime>,
    watched: ArcSwap<watch::Watched>,
    lookups: LookupLimiter,
    /// Keys that were revoked while their rows may still be in the cache.
    revoked_keys: Cache<ApiKeyId, ()>,
    /// The claims that were written a moment ago, by person.
    kept_claims: Cache<(TenantId, UserId), Arc<newest_claims::StoredClaims>>,
    newest_claims: Cache<(TenantId, UserId), newest_claims::KnownClaims>,
    /// The names of the claims that are kept of tokens and frontends; `None` for all.
    named_claims: RwLock<Option<Arc<BTreeSet<String>>>>,
    /// Announces whose claims have changed.
    claims_changed: broadcast::Sender<(TenantId, UserId)>,
    /// Announces sessions that have ended.
    ended: broadcast::Sender<EndedSessions>,
}

/// Sessions that have ended.
#[derive(Clone)]
enum EndedSessions {
    /// A user's, as far as the sign-out goes.
    User(TenantId, UserId, SignOut),
    /// All sessions of a key.
    Key(TenantId, ApiKeyId),
    /// All sessions of a tenant.
    Tenant(TenantId),
    /// All sessions of an issuer's users: the rows of the issuer have changed.
    Issuer(String),
}

/// A row, and the time at which it was read.
struct CachedRow<T> {
    row: T,
    since: OffsetDateTime,
}

impl<T> CachedRow<T> {
    fn is_recent(&self, now: OffsetDateTime) -> bool {
        now < self.since + ROWS_REMEMBERED
    }
}

impl Accounts {
    /// `env` holds the secrets of issuers with HMAC; `public_url` is where this service is for its clients.
    pub fn new(
        db: Db,
        egress: Egress,
        clock: Clock,
        env: Environment,
        max_token_bytes: usize,
        public_url: &str,
    ) -> Self {
        let shared = Shared {
            db,
            key_sets: KeySets::new(egress, clock.clone()),
            clock,
            env,
            max_token_bytes,
            public_url: public_url.to_owned(),
            tokens: Cache::builder()
                .weigher(|_, token: &Arc<VerifiedToken>| token.size)
                .max_capacity(REMEMBERED_TOKEN_BYTES)
                .time_to_live(tokens::REMEMBERED)
                .build(),
            keys: Cache::builder()
                .max_capacity(10_000)
                .time_to_live(FORGOTTEN)
                .build(),
            issuers: Cache::builder()
                .max_capacity(1_000)
                .time_to_idle(FORGOTTEN)
                .build(),
            tenants: Cache::builder()
                .max_capacity(10_000)
                .time_to_idle(FORGOTTEN)
                .build(),
            sign_outs: Cache::builder()
                .max_capacity(20_000)
                .time_to_idle(FORGOTTEN)
                .build(),
            sessions_checked: Mutex::new(OffsetDateTime::UNIX_EPOCH),
            watched: ArcSwap::default(),
            lookups: LookupLimiter::new(),
            revoked_keys: Cache::builder()
                .max_capacity(10_000)
                .time_to_live(FORGOTTEN)
                .build(),
            kept_claims: Cache::builder()
                .max_capacity(20_000)
                .time_to_live(CLAIMS_KEPT)
                .build(),
            newest_claims: Cache::builder()
                .max_capacity(20_000)
                .time_to_idle(FORGOTTEN)
                .build(),
            named_claims: RwLock::default(),
            claims_changed: broadcast::channel(CHANGES_BEHIND).0,
            ended: broadcast::channel(sign_outs::BEHIND).0,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// From now on, only these claims of tokens and frontends are kept, in memory and in every row. Nothing needs the
    /// others.
    pub fn keep_claims(&self, named: BTreeSet<String>) {
        let mut kept = self
            .shared
            .named_claims
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if kept.as_deref() != Some(&named) {
            *kept = Some(Arc::new(named));
        }
    }

    /// Makes a key for one guest and returns it with its end.
    pub async fn create_guest(&self, tenant: TenantId) -> Result<(Secret, OffsetDateTime)> {
        keys::create_guest(&self.shared.db, &self.shared.clock, tenant).await
    }

    /// The tenant of this name, if it takes guests.
    pub async fn tenant_for_guests(&self, name: &str) -> Result<TenantId> {
        keys::tenant_for_guests(&self.shared.db, name).await
    }

    /// Every tenant that is not suspended, read from the database.
    pub async fn tenants(&self) -> Result<Vec<Tenant>> {
        let mut tenants = list_tenants(&self.shared.db).await?;
        tenants.retain(|tenant| tenant.suspended_at.is_none());
        Ok(tenants)
    }

    /// Drops the cached row of a tenant that was changed, here or on another replica, and returns whether the
    /// tenant is still active. If it is not, the streams of all its users are closed.
    pub async fn tenant_changed(&self, id: TenantId) -> Result<bool> {
        self.shared.tenants.invalidate(&id).await;
        let active = match self.tenant(id).await {
            Ok(tenant) => tenant.suspended_at.is_none(),
            Err(Error::NotFound(_)) => false,
            Err(error) => return Err(error),
        };
        if !active {
            // An error means that there is no listener.
            let _ = self.shared.ended.send(EndedSessions::Tenant(id));
        }
        Ok(active)
    }

    /// A tenant's settings, at most five seconds old.
    pub async fn tenant(&self, id: TenantId) -> Result<Arc<Tenant>> {
        self.shared.tenant(id).await
    }
}

impl Shared {
    fn named_claims(&self) -> Option<Arc<BTreeSet<String>>> {
        let named = self.named_claims.read();
        named.unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn tenant(&self, id: TenantId) -> Result<Arc<Tenant>> {
        if let Some(known) = self.known_tenant(id).await {
            return Ok(known);
        }
        let mut tx = self.db.tenant(id).await?;
        self.load_tenant(&mut tx, id).await
    }

    async fn known_tenant(&self, id: TenantId) -> Option<Arc<Tenant>> {
        let known = self.tenants.get(&id).await?;
        let now = self.clock.now();
        let is_good = known.is_recent(now) || {
            let watched = self.watched.load();
            watched.covers_tenant(id, known.since, now)
        };
        is_good.then(|| known.row.clone())
    }

    async fn load_tenant(&self, tx: &mut Tx, id: TenantId) -> Result<Arc<Tenant>> {
        let since = self.clock.now();
        let tenant = store::tenants::get(tx, id)
            .await?
            .ok_or_else(|| Error::not_found("tenant"))?;
        let row = Arc::new(tenant);
        let known = CachedRow {
            row: row.clone(),
            since,
        };
        self.tenants.insert(id, Arc::new(known)).await;
        Ok(row)
    }
}

/// Checks the operator's token.
pub fn operator(token: &Secret, headers: &Headers<'_>) -> Result<Operator> {
    Operator::by_token(token, bearer(headers)?)
}
