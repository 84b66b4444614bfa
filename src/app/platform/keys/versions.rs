//! The versions of a tenant's key: which one seals, and how each is unwrapped.

use std::{sync::Arc, time::Duration};

use super::{Keys, MISSING, OpenError, TRIES, closed};
use crate::{
    domain::{
        audit::{Fact, SYSTEM},
        error::{Error, Result},
        ids::{KekId, TenantId},
        ring::{Kek, KeyRing},
    },
    store::{self, Tx, tenant_keys::WrappedKey},
    vault::{self, TenantKey, Unopenable},
};

impl Keys {
    /// A version of the tenant's key.
    pub(super) async fn version(
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
        self.unwrap_version(tenant, &stored).await
    }

    /// The version that seals the tenant's records, as the database says now; a new one if there is none that
    /// the key of the ring in force wraps.
    pub(super) async fn sealing_now(&self, tenant: TenantId) -> Result<Arc<TenantKey>> {
        for _ in 0..TRIES {
            let mut tx = self.db.tenant(tenant).await?;
            let stored = store::tenant_keys::sealing(&mut tx, tenant).await?;
            let kek = store::tenant_keys::sealing_kek(&mut tx).await?;
            let kek = kek.ok_or_else(|| {
                closed("no key of the ring seals yet; start a replica, which adds it")
            })?;
            let usable = match &stored {
                Some(stored) if stored.kek == kek => self.usable(tenant, stored).await?,
                _ => None,
            };
            let key = match usable {
                Some(key) => key,
                None => {
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

    /// Unwraps a version for sealing; `None` when it is damaged. Replicas that have it in memory can still
    /// use it.
    async fn usable(
        &self,
        tenant: TenantId,
        stored: &WrappedKey,
    ) -> Result<Option<Arc<TenantKey>>> {
        match self.unwrap_version(tenant, stored).await {
            Ok(key) => Ok(Some(key)),
            Err(OpenError::Unopenable(_)) => Ok(None),
            Err(OpenError::Failed(error)) => Err(error),
        }
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
    ) -> Result<Arc<TenantKey>, OpenError> {
        let key = vault::unwrap(self.kek(&stored.kek)?, tenant, stored.version, &stored.wrapped).inspect_err(|why| {
            tracing::error!(%tenant, version = stored.version, key = %stored.kek, %why, "a tenant's key cannot be unwrapped");
        })?;
        let key = Arc::new(key);
        self.versions
            .insert((tenant, key.version), key.clone())
            .await;
        Ok(key)
    }

    pub(super) fn kek(&self, id: &KekId) -> Result<&Kek> {
        let kek = self.ring()?.get(id);
        self.set_fit(self.fit() && kek.is_some());
        kek.ok_or_else(|| {
            closed(&format!(
                "key {id} is not in the ring; add it to MCP_CONFIG_ENCRYPTION_KEYS"
            ))
        })
    }

    pub(super) fn ring(&self) -> Result<&KeyRing> {
        self.ring.as_ref().ok_or_else(|| closed(MISSING))
    }
}
