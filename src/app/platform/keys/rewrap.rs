//! Protects all data with the newest keys: every tenant's key is wrapped with the sealing key of the ring, and every
//! record is sealed anew with the newest version of its tenant's key.
//!
//! This happens in short transactions while all replicas serve. The rows alone say what is left to do, so a command
//! that was stopped anywhere is continued by the next one, and two at once do no harm. A record that changes meanwhile
//! is skipped, because the change seals it anew.

use std::collections::BTreeMap;

use super::{Keys, OpenError, contexts, unavailable};
use domain::{
    audit::{Fact, OPERATOR},
    error::{Error, Result},
    ids::TenantId,
    ring::Kek,
};
use store::{
    sealed::{Kind, Sealed},
    tenant_keys::WrappedKey,
    vault::{self, Unopenable},
};

/// The default number of records in one transaction.
pub const BATCH: u16 = 256;

/// The progress of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Versions of tenants' keys that were wrapped anew.
    pub tenant_keys: u64,
    /// Records that were sealed anew.
    pub records: u64,
    /// Records that were handled, of `total`.
    pub seen: u64,
    /// Records that had to be sealed anew at the start.
    pub total: u64,
    /// Records that cannot be opened. They are kept; the users of such credentials are asked to enter them again.
    pub unopenable: u64,
    /// Records whose tenant's key cannot be read. Nothing of them is changed or marked: the key may come back.
    pub locked: u64,
}

/// Wraps and seals anew all that needs it, and calls `report` with the progress after each batch.
pub async fn rewrap(
    keys: &Keys,
    batch: u16,
    mut report: impl FnMut(&Progress) + Send,
) -> Result<Progress> {
    let mut progress = Progress::default();
    let mut tx = keys.db.system().await?;
    let tenants = store::tenant_keys::list_tenants(&mut tx).await?;
    drop(tx);
    for tenant in &tenants {
        // The new version comes first, so that nothing more is sealed with the old one.
        if let Err(error) = keys.load_sealing_version(*tenant).await
            && !matches!(error, Error::KeysUnreadable)
        {
            return Err(error);
        }
        progress.tenant_keys += wrap_anew(keys, *tenant).await?;
    }
    progress.total = count_stale(keys, &tenants).await?;
    report(&progress);
    for tenant in tenants {
        seal_anew(keys, tenant, batch, &mut progress, &mut report).await?;
    }
    Ok(progress)
}

/// Wraps the tenant's older versions with the sealing key of the ring.
async fn wrap_anew(keys: &Keys, tenant: TenantId) -> Result<u64> {
    let mut tx = keys.db.tenant(tenant).await?;
    let id = store::tenant_keys::get_sealing_kek(&mut tx).await?;
    let id = id.ok_or_else(|| {
        unavailable("no key of the ring seals yet; start a replica, which adds it")
    })?;
    let kek: &Kek = keys.kek(&id)?;
    let mut wrapped = 0;
    for old in store::tenant_keys::list_not_wrapped_with(&mut tx, tenant, &id).await? {
        let key = match vault::unwrap(keys.kek(&old.kek)?, tenant, old.version, &old.wrapped) {
            Ok(key) => key,
            Err(why) => {
                let (version, kek) = (old.version, &old.kek);
                tracing::error!(%tenant, version, key = %kek, %why, "a tenant's key cannot be unwrapped; it stays as it is");
                continue;
            }
        };
        let new = WrappedKey {
            version: key.version,
            kek: id.clone(),
            wrapped: vault::wrap(kek, tenant, &key),
        };
        wrapped += u64::from(store::tenant_keys::rewrap(&mut tx, tenant, &old.kek, &new).await?);
    }
    if wrapped > 0 {
        let detail = format!("{wrapped}, with {id}");
        store::audit::record(
            &mut tx,
            tenant,
            &Fact::new(OPERATOR, "tenant_key.rewrapped").detail(&detail),
        )
        .await?;
    }
    tx.commit().await?;
    Ok(wrapped)
}

/// Seals anew the tenant's records that are not sealed with its newest version. A record that cannot be opened stays
/// as it is; its user is told when it is needed.
async fn seal_anew(
    keys: &Keys,
    tenant: TenantId,
    batch: u16,
    progress: &mut Progress,
    report: &mut (impl FnMut(&Progress) + Send),
) -> Result<()> {
    let newest = match keys.load_sealing_version(tenant).await {
        Ok(newest) => newest,
        Err(Error::KeysUnreadable) => {
            let count = count_stale(keys, &[tenant]).await?;
            progress.seen += count;
            progress.locked += count;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let mut after = None;
    loop {
        let mut tx = keys.db.tenant(tenant).await?;
        let read =
            store::sealed::list_not_sealed_with(&mut tx, newest.version, after, i64::from(batch))
                .await?;
        drop(tx);
        let Some(last) = read.last() else {
            return Ok(());
        };
        after = Some((last.kind, last.id));
        progress.seen += read.len() as u64;
        let mut anew: BTreeMap<Kind, (Vec<Sealed>, Vec<Vec<u8>>)> = BTreeMap::new();
        for row in read {
            let context = contexts::of_row(tenant, &row)?;
            match keys.open(tenant, &context, &row.sealed).await {
                Ok(plaintext) => {
                    let (rows, sealed) = anew.entry(row.kind).or_default();
                    sealed.push(vault::seal(&newest, &context, &plaintext));
                    rows.push(row);
                }
                Err(OpenError::Unopenable(why)) => {
                    progress.unopenable += 1;
                    give_up(keys, tenant, &row, &why).await?;
                }
                Err(OpenError::Failed(Error::KeysUnreadable)) => progress.locked += 1,
                Err(OpenError::Failed(error)) => return Err(error),
            }
        }
        progress.records += replace(keys, tenant, newest.version, anew).await?;
        report(progress);
    }
}

/// Stores the records that were sealed anew, in one transaction, and returns how many rows changed.
async fn replace(
    keys: &Keys,
    tenant: TenantId,
    version: u32,
    anew: BTreeMap<Kind, (Vec<Sealed>, Vec<Vec<u8>>)>,
) -> Result<u64> {
    let mut tx = keys.db.tenant(tenant).await?;
    let (mut credentials, mut others) = (0, 0);
    for (kind, (rows, sealed)) in anew {
        let changed = store::sealed::reseal(&mut tx, kind, &rows, &sealed).await?;
        match kind {
            Kind::Credential | Kind::CredentialCandidate => credentials += changed,
            _ => others += changed,
        }
    }
    for (action, changed) in [
        ("credential.resealed", credentials),
        ("record.resealed", others),
    ] {
        if changed > 0 {
            let detail = format!("{changed}, with version {version}");
            let fact = Fact::new(OPERATOR, action).detail(&detail);
            store::audit::record(&mut tx, tenant, &fact).await?;
        }
    }
    tx.commit().await?;
    Ok(credentials + others)
}

/// Handles a record that cannot be opened: it stays as it is, and a credential is marked as quarantined.
async fn give_up(keys: &Keys, tenant: TenantId, row: &Sealed, why: &Unopenable) -> Result<()> {
    if matches!(row.kind, Kind::Credential | Kind::CredentialCandidate) {
        return keys
            .quarantine(&contexts::credential(tenant, row)?, why)
            .await;
    }
    let (kind, id) = (row.kind, row.id);
    tracing::error!(%tenant, ?kind, %id, %why, "a sealed value cannot be opened; it stays as it is");
    Ok(())
}

/// The number of records, in all tenants, that are not sealed with the newest version of their tenant's key.
pub(super) async fn count_stale(keys: &Keys, tenants: &[TenantId]) -> Result<u64> {
    let mut stale = 0;
    for tenant in tenants {
        let mut tx = keys.db.tenant(*tenant).await?;
        let newest = store::tenant_keys::get_sealing(&mut tx, *tenant)
            .await?
            .map(|key| key.version);
        let sealed = store::sealed::count_by_version(&mut tx).await?;
        stale += sealed
            .iter()
            .filter(|(version, _)| Some(**version) != newest)
            .map(|(_, count)| count)
            .sum::<u64>();
    }
    Ok(stale)
}
