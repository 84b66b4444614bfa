//! Sealing and opening of stored values. The keys of the ring come with the settings. Each tenant has a key of its
//! own, which lies wrapped in Postgres and is unwrapped once per process and time.
//!
//! A tenant's key gets a new version when something is sealed and the ring's sealing key has changed. Versions are
//! never deleted, so a replica that still seals with the older one loses nothing; the next `rewrap` seals such
//! records anew.
//!
//! A tenant's key that cannot be read is the operator's trouble: nothing is marked and no other key is made, what needs it
//! fails, and the next call works once the key is back. A credential that does not open with its tenant's key is
//! quarantined: it stays, its user is asked to enter it again, and [`retry_quarantined`] tries it again.

pub mod contexts;
pub mod folder;
pub mod replica_keys;
pub mod rewrap;
pub mod rotation;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use moka::future::Cache;

use domain::{
    audit::{Fact, OPERATOR, SYSTEM},
    credential::{CredentialRef, CredentialState},
    error::{Error, ErrorCode, Result},
    ids::{KekId, TenantId},
    ring::{Kek, KeyRing},
    secret::Secret,
};
use store::{
    Db, Tx,
    tenant_keys::WrappedKey,
    vault::{self, Context, TenantKey, Unopenable},
};

/// How long an unwrapped key stays in memory. The key of a version never changes.
const OPENED_FOR: Duration = Duration::from_secs(600);
/// How long a replica may take to notice that another version seals.
const SEALS_FOR: Duration = Duration::from_secs(30);
/// The most tenants' keys in each cache.
const AT_MOST: u64 = 10_000;
/// The most tries of a process to make a version while other replicas do the same.
const TRIES: u8 = 5;

/// The vault of a process. Cheap to clone; clones share their caches.
#[derive(Clone)]
pub struct Keys {
    db: Db,
    ring: Option<KeyRing>,
    versions: Cache<(TenantId, u32), Arc<TenantKey>>,
    sealing: Cache<TenantId, Arc<TenantKey>>,
    /// Whether the ring had the keys that the database needs when they were last compared.
    fits: Arc<AtomicBool>,
    /// The versions of tenants' keys that could not be read when they were last needed.
    unreadable: Arc<Mutex<BTreeSet<(TenantId, u32)>>>,
}

/// Why a value was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The value can never be opened and should be quarantined.
    #[error("the stored value cannot be opened: {0}")]
    Unopenable(#[from] Unopenable),
    /// Opening failed for another reason; it may succeed later.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Unopenable(_) => Self::conflict(
                ErrorCode::CredentialUnusable,
                "what is stored is damaged and cannot be opened; enter it again, or ask the operator to restore it",
            ),
            OpenError::Failed(error) => error,
        }
    }
}

impl Keys {
    pub fn new(db: Db, ring: Option<KeyRing>) -> Self {
        let versions = Cache::builder()
            .max_capacity(AT_MOST)
            .time_to_live(OPENED_FOR)
            .build();
        let sealing = Cache::builder()
            .max_capacity(AT_MOST)
            .time_to_live(SEALS_FOR)
            .build();
        Self {
            db,
            ring,
            versions,
            sealing,
            fits: Arc::new(AtomicBool::new(true)),
            unreadable: Arc::default(),
        }
    }

    /// Whether the ring has the keys that the database needs.
    pub fn is_complete(&self) -> bool {
        self.fits.load(Ordering::Relaxed)
    }

    fn set_complete(&self, fits: bool) {
        self.fits.store(fits, Ordering::Relaxed);
    }

    /// The number of tenants with a key that could not be read when it was last needed.
    pub fn unreadable_tenants(&self) -> usize {
        let tenants: BTreeSet<TenantId> = self.unreadable().iter().map(|(of, _)| *of).collect();
        tenants.len()
    }

    fn unreadable(&self) -> MutexGuard<'_, BTreeSet<(TenantId, u32)>> {
        self.unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything can be sealed.
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    pub async fn seal(
        &self,
        tenant: TenantId,
        context: &Context,
        plaintext: &Secret,
    ) -> Result<Vec<u8>> {
        check_tenant(tenant, context)?;
        self.ring()?;
        let key = match self.sealing.get(&tenant).await {
            Some(key) => key,
            None => self.load_sealing_version(tenant).await?,
        };
        Ok(vault::seal(&key, context, plaintext))
    }

    pub async fn open(
        &self,
        tenant: TenantId,
        context: &Context,
        sealed: &[u8],
    ) -> Result<Secret, OpenError> {
        check_tenant(tenant, context)?;
        let key = self
            .load_version(tenant, vault::key_version(sealed)?)
            .await?;
        Ok(vault::open(&key, context, sealed)?)
    }
}

/// The advice to an operator who has set no keys.
const MISSING: &str = "there is no key to protect credentials with; set MCP_CONFIG_ENCRYPTION_KEY to 64 hex \
                       digits (`openssl rand -hex 32` makes them), and keep a copy in a safe place";

fn unavailable(why: &str) -> Error {
    Error::Unavailable(why.to_owned())
}

fn check_tenant(tenant: TenantId, context: &Context) -> Result<()> {
    if context.tenant == tenant {
        return Ok(());
    }
    Err(Error::internal(anyhow::anyhow!(
        "a context of tenant {} was used by {tenant}",
        context.tenant
    )))
}

impl Keys {
    /// A version of the tenant's key.
    async fn load_version(
        &self,
        tenant: TenantId,
        version: u32,
    ) -> Result<Arc<TenantKey>, OpenError> {
        if let Some(key) = self.versions.get(&(tenant, version)).await {
            return Ok(key);
        }
        let mut tx = self.db.tenant(tenant).await?;
        let stored = store::tenant_keys::get(&mut tx, tenant, version).await?;
        drop(tx);
        let stored = stored.ok_or(Unopenable::UnknownVersion(version))?;
        Ok(self.unwrap_version(tenant, &stored).await?)
    }

    /// Notes a version that cannot be read, and says so once.
    fn note_unreadable(&self, tenant: TenantId, version: u32, why: Unopenable) -> Error {
        if self.unreadable().insert((tenant, version)) {
            tracing::error!(
                %tenant, version, %why,
                "a tenant's key cannot be read; what needs it fails until the key is back"
            );
        }
        Error::KeysUnreadable
    }

    /// Tries the versions again that could not be read, so that one that is back, or is gone with its tenant, is not reported
    /// for good.
    async fn retry_unreadable(&self) -> Result<()> {
        let noted: Vec<_> = self.unreadable().iter().copied().collect();
        for (tenant, version) in noted {
            let mut tx = self.db.tenant(tenant).await?;
            let stored = store::tenant_keys::get(&mut tx, tenant, version).await?;
            drop(tx);
            match stored {
                // What is still unreadable stays noted.
                Some(stored) => drop(self.unwrap_version(tenant, &stored).await),
                None => drop(self.unreadable().remove(&(tenant, version))),
            }
        }
        Ok(())
    }

    /// The version that seals the tenant's records, read from the database. When no version is wrapped with the
    /// sealing key of the ring, a new version is made.
    async fn load_sealing_version(&self, tenant: TenantId) -> Result<Arc<TenantKey>> {
        for _ in 0..TRIES {
            let mut tx = self.db.tenant(tenant).await?;
            let stored = store::tenant_keys::get_sealing(&mut tx, tenant).await?;
            let kek = store::tenant_keys::get_sealing_kek(&mut tx).await?;
            let kek = kek.ok_or_else(|| {
                unavailable("no key of the ring seals yet; start a replica, which adds it")
            })?;
            let key = match stored {
                // A key that cannot be read is not replaced by another one: its records would be lost with it.
                Some(stored) if stored.kek == kek => self.unwrap_version(tenant, &stored).await?,
                stored => {
                    let version = stored.map_or(1, |stored| stored.version + 1);
                    let Some(key) = self.create_version(tx, tenant, version, kek).await? else {
                        continue;
                    };
                    key
                }
            };
            self.sealing.insert(tenant, key.clone()).await;
            return Ok(key);
        }
        let reason = "other replicas are making a key for this tenant; try again".to_owned();
        Err(Error::Busy {
            reason,
            retry_after: Duration::from_secs(1),
        })
    }

    /// Makes a new version and puts it in force; `None` when another replica was first.
    async fn create_version(
        &self,
        mut tx: Tx,
        tenant: TenantId,
        version: u32,
        kek: KekId,
    ) -> Result<Option<Arc<TenantKey>>> {
        let key = Arc::new(TenantKey::generate(version));
        let new = WrappedKey {
            version,
            wrapped: vault::wrap(self.kek(&kek)?, tenant, &key),
            kek,
        };
        if !store::tenant_keys::insert(&mut tx, tenant, &new).await? {
            return Ok(None);
        }
        let detail = format!("version {version}, wrapped with {}", new.kek);
        store::audit::record(
            &mut tx,
            tenant,
            &Fact::new(SYSTEM, "tenant_key.created").detail(&detail),
        )
        .await?;
        tx.commit().await?;
        tracing::info!(%tenant, version, key = %new.kek, "a tenant's key was made");
        self.versions.insert((tenant, version), key.clone()).await;
        Ok(Some(key))
    }

    /// Unwraps a version, and remembers it for a while.
    async fn unwrap_version(
        &self,
        tenant: TenantId,
        stored: &WrappedKey,
    ) -> Result<Arc<TenantKey>> {
        let version = stored.version;
        let key = vault::unwrap(self.kek(&stored.kek)?, tenant, version, &stored.wrapped)
            .map_err(|why| self.note_unreadable(tenant, version, why))?;
        let key = Arc::new(key);
        self.unreadable().remove(&(tenant, version));
        self.versions.insert((tenant, version), key.clone()).await;
        Ok(key)
    }

    fn kek(&self, id: &KekId) -> Result<&Kek> {
        let kek = self.ring()?.get(id);
        self.set_complete(self.is_complete() && kek.is_some());
        kek.ok_or_else(|| {
            unavailable(&format!(
                "key {id} is not in the ring; add it to MCP_CONFIG_ENCRYPTION_KEYS"
            ))
        })
    }

    fn ring(&self) -> Result<&KeyRing> {
        self.ring.as_ref().ok_or_else(|| unavailable(MISSING))
    }
}

/// Marks a credential that needs its user's attention. `false` when the credential has a newer generation by now, or
/// was marked before.
pub async fn mark_credential(
    db: &Db,
    credential: &CredentialRef,
    state: CredentialState,
    reason: &str,
) -> Result<bool> {
    let CredentialRef {
        tenant,
        user,
        agent,
        server,
        id,
        generation,
    } = credential;
    let mut tx = db.tenant(*tenant).await?;
    // A candidate that the server refused is dropped, and the credential before it stays. One that cannot be opened is kept.
    let dropped = state == CredentialState::Rejected
        && store::credentials::drop_candidate(&mut tx, *id, *generation).await?;
    let marked =
        dropped || store::credentials::mark(&mut tx, *id, *generation, state, reason).await?;
    if marked {
        let fact = match state {
            _ if dropped => Fact::new(user.as_str(), "credential.refused"),
            CredentialState::Rejected => Fact::new(user.as_str(), "credential.rejected"),
            _ => Fact::new(SYSTEM, "credential.quarantined"),
        };
        let fact = fact.at(agent.as_str(), server.as_str()).detail(reason);
        store::audit::record(&mut tx, *tenant, &fact).await?;
    }
    tx.commit().await?;
    if marked {
        tracing::warn!(%agent, %server, reason, "a user's credential needs their attention");
        metrics::counter!("chatelaine_credentials_marked_total", "state" => state.into_str())
            .increment(1);
    }
    Ok(marked)
}

impl Keys {
    /// Opens a stored credential. One that cannot be opened is quarantined: it stays, and its user is asked to enter
    /// it again.
    pub async fn open_credential(&self, credential: &CredentialRef) -> Result<Secret, OpenError> {
        let mut tx = self.db.tenant(credential.tenant).await?;
        let (id, generation) = (credential.id, credential.generation);
        let sealed = store::credentials::get_sealed(&mut tx, id, generation).await?;
        drop(tx);
        let gone = || {
            Error::conflict(
                ErrorCode::Conflict,
                "the credential has changed meanwhile; try again",
            )
        };
        let sealed = sealed.ok_or_else(gone)?;
        let opened = self
            .open(
                credential.tenant,
                &contexts::of_credential(credential),
                &sealed,
            )
            .await;
        if let Err(OpenError::Unopenable(why)) = &opened {
            self.quarantine(credential, why).await?;
        }
        opened
    }

    /// Puts a credential aside that does not open with its tenant's key.
    async fn quarantine(&self, credential: &CredentialRef, why: &Unopenable) -> Result<()> {
        let (tenant, id) = (credential.tenant, credential.id);
        tracing::error!(%tenant, credential = %id, %why, "a credential cannot be opened; it is put aside");
        let state = CredentialState::Quarantined;
        mark_credential(&self.db, credential, state, &why.to_string()).await?;
        Ok(())
    }
}

/// What [`retry_quarantined`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retried {
    /// The quarantined credentials.
    pub tried: u64,
    /// Those that could be opened, and are active again.
    pub active: u64,
}

/// Tries to open the quarantined credentials of a tenant again. Those that open are active again, at all replicas within
/// a second.
pub async fn retry_quarantined(keys: &Keys, tenant: TenantId) -> Result<Retried> {
    let mut tx = keys.db.tenant(tenant).await?;
    let quarantined = store::credentials::list_quarantined(&mut tx).await?;
    drop(tx);
    let mut retried = Retried::default();
    for (credential, sealed) in quarantined {
        retried.tried += 1;
        let context = contexts::of_credential(&credential);
        match keys.open(tenant, &context, &sealed).await {
            Ok(_) => {}
            Err(OpenError::Unopenable(_) | OpenError::Failed(Error::KeysUnreadable)) => continue,
            Err(OpenError::Failed(error)) => return Err(error),
        }
        let mut tx = keys.db.tenant(tenant).await?;
        if store::credentials::reactivate(&mut tx, &credential, &sealed).await? {
            let (agent, server) = (credential.agent.as_str(), credential.server.as_str());
            let fact = Fact::new(OPERATOR, "credential.reactivated").at(agent, server);
            store::audit::record(&mut tx, tenant, &fact).await?;
            retried.active += 1;
        }
        tx.commit().await?;
    }
    Ok(retried)
}
