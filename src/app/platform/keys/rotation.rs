//! Rotation: `add` a key, `promote` it, [`rewrap`](super::rewrap) what the one before protects, `retire` that.
//! Replicas serve all the while; each step can be repeated, and refuses what would lose something.

use std::collections::BTreeMap;

use super::{
    Keys, MISSING,
    replica_keys::{compare, refuse_other_name},
    rewrap::stale,
};
use crate::{
    domain::{
        audit::OPERATOR,
        error::{Error, ErrorCode, Result},
        ids::{KekId, TenantId},
        ring::{Kek, KeyRing},
    },
    store::{
        self,
        keks::{KekRecord, KekState},
        tenant_keys::KekUsage,
    },
    vault,
};

/// A key of the ring as an operator sees it.
#[derive(Clone, Debug)]
pub struct KekView {
    pub id: KekId,
    /// `None`: in the ring, and not known to the database.
    pub known: Option<KekRecord>,
    /// `None`: not in the ring; else whether it is the key that the database knows, if it does.
    pub fits: Option<bool>,
    pub needed: KekUsage,
}

/// All keys, of the database and of the ring; and how many records are sealed with an older version of their
/// tenant's key.
pub async fn list(keys: &Keys) -> Result<(Vec<KekView>, u64)> {
    let mut tx = keys.db.system().await?;
    let known = store::keks::list(&mut tx).await?;
    let tenants = store::tenant_keys::tenants(&mut tx).await?;
    drop(tx);
    let needs = needs(keys, &tenants).await?;
    let stale = stale(keys, &tenants).await?;
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

/// Makes a key of the ring known, so that a replica with another key of the same id does not start.
pub async fn add(keys: &Keys, id: &KekId) -> Result<KekState> {
    let kek = in_ring(keys, id)?;
    let mut tx = keys.db.system().await?;
    let before = store::keks::lock(&mut tx).await?;
    if !before.iter().any(|known| known.id == *id) {
        refuse_other_name(kek, &before)?;
        if store::keks::add(&mut tx, id, &vault::check_value(kek)).await? {
            store::audit::record_for_operator(&mut tx, OPERATOR, "kek.added", id.as_str()).await?;
        }
    }
    let known = store::keks::lock(&mut tx).await?;
    compare(kek, &known)?;
    let state = found(&known, id)?.state;
    if state == KekState::Retired {
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!("key {id} is retired; give a new key another id"),
        ));
    }
    tx.commit().await?;
    Ok(state)
}

/// Lets a key seal, in place of the one that does. Refused while a living replica does not have it.
pub async fn promote(keys: &Keys, id: &KekId) -> Result<()> {
    let kek = in_ring(keys, id)?;
    let mut tx = keys.db.system().await?;
    let known = store::keks::lock(&mut tx).await?;
    let state = found(&known, id)?.state;
    compare(kek, &known)?;
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
    let lacking = store::keks::replicas_without(&mut tx, id).await?;
    if !lacking.is_empty() {
        let replicas: Vec<String> = lacking.iter().map(ToString::to_string).collect();
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!(
                "{} running without key {id} ({}): restart with `{id}:…` in MCP_CONFIG_ENCRYPTION_KEYS first (a replica \
             that was killed counts for a minute)",
                counted(lacking.len() as u64, "replica is", "replicas are"),
                replicas.join(", "),
            ),
        ));
    }
    store::keks::promote(&mut tx, id).await?;
    store::audit::record_for_operator(&mut tx, OPERATOR, "kek.promoted", id.as_str()).await?;
    tx.commit().await
}

/// Marks a key as not needed any more, so that it may leave the ring. Refused while it seals or anything is
/// wrapped with it.
pub async fn retire(keys: &Keys, id: &KekId) -> Result<()> {
    let mut tx = keys.db.system().await?;
    let known = store::keks::lock(&mut tx).await?;
    match found(&known, id)?.state {
        KekState::Retired => return Ok(()),
        KekState::Sealing => {
            return Err(Error::conflict(
                ErrorCode::Conflict,
                format!("key {id} seals; promote another one first"),
            ));
        }
        KekState::Added | KekState::Opening => {}
    }
    // Each record needs a version of its tenant's key, and each version the key that wraps it: so this is all.
    if store::tenant_keys::keks(&mut tx).await?.contains(id) {
        let tenants = store::tenant_keys::tenants(&mut tx).await?;
        // It is refused, so the lock has served; the counting wants transactions of its own.
        drop(tx);
        let needed = needs(keys, &tenants)
            .await?
            .get(id)
            .copied()
            .unwrap_or_default();
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!(
                "key {id} is needed: it wraps {}, which {}; run `chatelaine keys rewrap` first",
                counted(needed.tenant_keys, "tenant key", "tenant keys"),
                counted(needed.records, "record needs", "records need"),
            ),
        ));
    }
    store::keks::retire(&mut tx, id).await?;
    store::audit::record_for_operator(&mut tx, OPERATOR, "kek.retired", id.as_str()).await?;
    tx.commit().await
}

/// Per key of the ring, what needs it; keys that nothing needs are left out.
async fn needs(keys: &Keys, tenants: &[TenantId]) -> Result<BTreeMap<KekId, KekUsage>> {
    let mut needs: BTreeMap<KekId, KekUsage> = BTreeMap::new();
    for tenant in tenants {
        let mut tx = keys.db.tenant(*tenant).await?;
        let versions = store::tenant_keys::wrapped_with(&mut tx, *tenant).await?;
        let sealed = store::sealed::by_version(&mut tx).await?;
        for (version, kek) in versions {
            let needed = needs.entry(kek).or_default();
            needed.tenant_keys += 1;
            needed.records += sealed.get(&version).copied().unwrap_or_default();
        }
    }
    Ok(needs)
}

fn in_ring<'a>(keys: &'a Keys, id: &KekId) -> Result<&'a Kek> {
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

fn found<'a>(known: &'a [KekRecord], id: &KekId) -> Result<&'a KekRecord> {
    known.iter().find(|known| known.id == *id).ok_or_else(|| {
        Error::conflict(
            ErrorCode::Conflict,
            format!("this database does not know a key {id}; run `chatelaine keys add {id}` first"),
        )
    })
}

fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
