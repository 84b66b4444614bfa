//! Rotation of the ring's keys in four steps: `add` a new key, `promote` it, [`rewrap`](super::rewrap) the data of the
//! old key, `retire` the old key. Replicas serve all the while. Each step can be repeated, and refuses to lose data.

use std::collections::BTreeMap;

use super::{
    Keys, MISSING,
    replica_keys::{check_same_key, refuse_other_name},
    rewrap::count_stale,
};
use domain::{
    audit::OPERATOR,
    error::{Error, ErrorCode, Result},
    ids::{KekId, TenantId},
    ring::{Kek, KeyRing},
};
use store::{
    keks::{KekRecord, KekState},
    tenant_keys::KekUsage,
    vault,
};

/// A key of the ring as an operator sees it.
#[derive(Clone, Debug)]
pub struct KekView {
    pub id: KekId,
    /// The key's record; `None` when it is in the ring alone.
    pub known: Option<KekRecord>,
    /// Whether the ring's key is the one that the database knows; `None` when it is not in the ring.
    pub fits: Option<bool>,
    pub needed: KekUsage,
}

/// All keys of the database and of the ring, and the number of records that are sealed with an older version of their
/// tenant's key.
pub async fn list(keys: &Keys) -> Result<(Vec<KekView>, u64)> {
    let mut tx = keys.db.system().await?;
    let known = store::keks::list(&mut tx).await?;
    let tenants = store::tenant_keys::list_tenants(&mut tx).await?;
    drop(tx);
    let needs = count_needs(keys, &tenants).await?;
    let stale = count_stale(keys, &tenants).await?;
    let ours: Vec<&Kek> = keys.ring.iter().flat_map(KeyRing::keks).collect();
    let new = ours
        .iter()
        .filter(|kek| !known.iter().any(|known| known.id == kek.id));
    let new = new.map(|kek| KekView {
        id: kek.id.clone(),
        known: None,
        fits: Some(true),
        needed: KekUsage::default(),
    });
    let new: Vec<KekView> = new.collect();
    let views = known.into_iter().map(|known| KekView {
        id: known.id.clone(),
        fits: ours
            .iter()
            .find(|kek| kek.id == known.id)
            .map(|kek| known.check_value == vault::check_value(kek)),
        needed: needs.get(&known.id).copied().unwrap_or_default(),
        known: Some(known),
    });
    Ok((views.chain(new).collect(), stale))
}

/// Adds a key of the ring to the database, so that a replica with another key of the same id does not start.
pub async fn add(keys: &Keys, id: &KekId) -> Result<KekState> {
    let kek = find_in_ring(keys, id)?;
    let mut tx = keys.db.system().await?;
    let before = store::keks::lock(&mut tx).await?;
    if !before.iter().any(|known| known.id == *id) {
        refuse_other_name(kek, &before)?;
        if store::keks::add(&mut tx, id, &vault::check_value(kek)).await? {
            store::audit::record_for_operator(&mut tx, OPERATOR, "kek.added", id.as_str()).await?;
        }
    }
    let known = store::keks::lock(&mut tx).await?;
    check_same_key(kek, &known)?;
    let state = find_record(&known, id)?.state;
    if state == KekState::Retired {
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!("key {id} is retired; give a new key another id"),
        ));
    }
    tx.commit().await?;
    Ok(state)
}

/// Lets a key seal in place of the present one. Refused while a living replica does not hold it.
pub async fn promote(keys: &Keys, id: &KekId) -> Result<()> {
    let kek = find_in_ring(keys, id)?;
    let mut tx = keys.db.system().await?;
    let known = store::keks::lock(&mut tx).await?;
    let state = find_record(&known, id)?.state;
    check_same_key(kek, &known)?;
    match state {
        KekState::Sealing => return Ok(()),
        KekState::Retired => {
            return Err(Error::conflict(
                ErrorCode::Conflict,
                format!("key {id} is retired; add a new one and promote that"),
            ));
        }
        KekState::Added | KekState::Opening => {}
    }
    let lacking = store::keks::list_replicas_without(&mut tx, id).await?;
    if !lacking.is_empty() {
        let replicas: Vec<String> = lacking.iter().map(ToString::to_string).collect();
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!(
                "{} running without key {id} ({}): restart with `{id}:…` in MCP_CONFIG_ENCRYPTION_KEYS first (a replica \
             that was killed counts for a minute)",
                count_words(lacking.len() as u64, "replica is", "replicas are"),
                replicas.join(", "),
            ),
        ));
    }
    store::keks::promote(&mut tx, id).await?;
    store::audit::record_for_operator(&mut tx, OPERATOR, "kek.promoted", id.as_str()).await?;
    tx.commit().await
}

/// Marks a key as no longer needed, so that it may leave the ring. Refused while it seals or anything is wrapped with
/// it.
pub async fn retire(keys: &Keys, id: &KekId) -> Result<()> {
    let mut tx = keys.db.system().await?;
    let known = store::keks::lock(&mut tx).await?;
    match find_record(&known, id)?.state {
        KekState::Retired => return Ok(()),
        KekState::Sealing => {
            return Err(Error::conflict(
                ErrorCode::Conflict,
                format!("key {id} seals; promote another one first"),
            ));
        }
        KekState::Added | KekState::Opening => {}
    }
    // A record needs a version of its tenant's key, and a version needs the key that wraps it. So this covers all
    // data.
    if store::tenant_keys::list_keks(&mut tx).await?.contains(id) {
        let tenants = store::tenant_keys::list_tenants(&mut tx).await?;
        // The key stays, so the lock is no longer needed, and counting takes transactions of its own.
        drop(tx);
        let needed = count_needs(keys, &tenants)
            .await?
            .get(id)
            .copied()
            .unwrap_or_default();
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!(
                "key {id} is needed: it wraps {}, which {}; run `chatelaine keys rewrap` first",
                count_words(needed.tenant_keys, "tenant key", "tenant keys"),
                count_words(needed.records, "record needs", "records need"),
            ),
        ));
    }
    store::keks::retire(&mut tx, id).await?;
    store::audit::record_for_operator(&mut tx, OPERATOR, "kek.retired", id.as_str()).await?;
    tx.commit().await
}

/// The data that needs each key of the ring. A key that nothing needs is left out.
async fn count_needs(keys: &Keys, tenants: &[TenantId]) -> Result<BTreeMap<KekId, KekUsage>> {
    let mut needs: BTreeMap<KekId, KekUsage> = BTreeMap::new();
    for tenant in tenants {
        let mut tx = keys.db.tenant(*tenant).await?;
        let versions = store::tenant_keys::list_versions(&mut tx, *tenant).await?;
        let sealed = store::sealed::count_by_version(&mut tx).await?;
        for (version, kek) in versions {
            let needed = needs.entry(kek).or_default();
            needed.tenant_keys += 1;
            needed.records += sealed.get(&version).copied().unwrap_or_default();
        }
    }
    Ok(needs)
}

fn find_in_ring<'a>(keys: &'a Keys, id: &KekId) -> Result<&'a Kek> {
    let ring = keys
        .ring
        .as_ref()
        .ok_or_else(|| Error::Unavailable(MISSING.to_owned()))?;
    let missing = || {
        Error::invalid(
            id.as_str(),
            "is not in the ring; write `<id>:<64 hex digits>` into MCP_CONFIG_ENCRYPTION_KEYS",
        )
    };
    ring.get(id).ok_or_else(missing)
}

fn find_record<'a>(known: &'a [KekRecord], id: &KekId) -> Result<&'a KekRecord> {
    known.iter().find(|known| known.id == *id).ok_or_else(|| {
        Error::conflict(
            ErrorCode::Conflict,
            format!("this database does not know a key {id}; run `chatelaine keys add {id}` first"),
        )
    })
}

fn count_words(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
