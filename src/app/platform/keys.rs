//! Sealing and opening for everybody: which key, from where. The keys of the ring come with the settings,
//! the tenants' keys lie wrapped in Postgres and are unwrapped once per process and time.
//!
//! A tenant's new version is made when something is to be sealed and the key of the ring that seals has
//! changed. Versions are never deleted, so a replica that still seals with the one before loses nothing;
//! `rewrap` brings such records along the next time.

pub mod contexts;
pub mod folder;
mod quarantine;
pub mod replica_keys;
pub mod rewrap;
pub mod rotation;
mod versions;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use moka::future::Cache;

pub use self::quarantine::mark_credential;
use crate::{
    app::App,
    domain::{
        credential::CredentialRef,
        error::{Error, ErrorCode, Result},
        ids::{TenantId, UserId, WebhookId},
        ring::KeyRing,
        secret::Secret,
    },
    store::Db,
    vault::{self, Context, TenantKey, Unopenable},
};

/// How long an unwrapped key stays in memory. The key of a version never changes.
const OPENED_FOR: Duration = Duration::from_secs(600);
/// How long a replica may take to notice that another version is used for sealing.
const SEALS_FOR: Duration = Duration::from_secs(30);
/// Tenants' keys in memory, of each kind.
const AT_MOST: u64 = 10_000;
/// Looks at a version that another replica is making at the same time.
const TRIES: u8 = 5;

/// The vault of a process. Cheap to clone; clones share what they have unwrapped.
#[derive(Clone)]
pub struct Keys {
    db: Db,
    ring: Option<KeyRing>,
    versions: Cache<(TenantId, u32), Arc<TenantKey>>,
    sealing: Cache<TenantId, Arc<TenantKey>>,
    /// The ring has the keys that the database needs, as of the last look.
    fits: Arc<AtomicBool>,
}

/// Why something was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The value can never be opened: quarantine it.
    #[error("the stored value cannot be opened: {0}")]
    Unopenable(#[from] Unopenable),
    /// The value was not opened because of another failure; it may open later.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Unopenable(_) => Self::conflict(
                ErrorCode::CredentialUnusable,
                "what is stored cannot be opened; enter it again",
            ),
            OpenError::Failed(error) => error,
        }
    }
}

/// Seals for a context of this tenant.
pub async fn seal(
    app: &App,
    tenant: TenantId,
    context: &Context,
    plaintext: &Secret,
) -> Result<Vec<u8>> {
    app.keys.seal(tenant, context, plaintext).await
}

/// Opens what was sealed for the same context.
pub async fn open(
    app: &App,
    tenant: TenantId,
    context: &Context,
    sealed: &[u8],
) -> Result<Secret, OpenError> {
    app.keys.open(tenant, context, sealed).await
}

/// What a credential is sealed for.
pub fn context(credential: &CredentialRef) -> Context {
    Context {
        tenant: credential.tenant,
        user: credential.user.clone(),
        scope: format!("{}/{}", credential.agent, credential.server),
        credential: credential.id.0,
        generation: credential.generation,
    }
}

/// What the secret of a webhook is sealed for.
pub fn context_of_webhook(tenant: TenantId, id: WebhookId) -> Context {
    Context {
        tenant,
        user: UserId("".into()),
        scope: "webhook".to_owned(),
        credential: id.0,
        generation: 1,
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
        }
    }

    /// Whether the ring has the keys that the database needs.
    pub fn fit(&self) -> bool {
        self.fits.load(Ordering::Relaxed)
    }

    fn set_fit(&self, fits: bool) {
        self.fits.store(fits, Ordering::Relaxed);
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
        same_tenant(tenant, context)?;
        self.ring()?;
        let key = match self.sealing.get(&tenant).await {
            Some(key) => key,
            None => self.sealing_now(tenant).await?,
        };
        Ok(vault::seal(&key, context, plaintext))
    }

    pub async fn open(
        &self,
        tenant: TenantId,
        context: &Context,
        sealed: &[u8],
    ) -> Result<Secret, OpenError> {
        same_tenant(tenant, context)?;
        let key = self.version(tenant, vault::key_version(sealed)?).await?;
        Ok(vault::open(&key, context, sealed)?)
    }
}

/// What to do when there is no ring.
const MISSING: &str = "there is no key to protect credentials with; set MCP_CONFIG_ENCRYPTION_KEY to 64 hex \
                       digits (`openssl rand -hex 32` makes them), and keep a copy in a safe place";

fn closed(why: &str) -> Error {
    Error::Unavailable(why.to_owned())
}

fn same_tenant(tenant: TenantId, context: &Context) -> Result<()> {
    if context.tenant == tenant {
        return Ok(());
    }
    Err(Error::internal(anyhow::anyhow!(
        "a context of tenant {} was used by {tenant}",
        context.tenant
    )))
}
