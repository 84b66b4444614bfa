//! The keys that each replica holds. A replica with a wrong or missing key does not start. While it lives, it is
//! registered as a holder of the keys of its ring.
//!
//! A key begins to seal only when every living replica holds it; until then the one before seals. So a rolling restart
//! with a new ring never seals a value that some replica cannot open.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{Keys, MISSING};
use crate::app::App;
use domain::{
    audit::SYSTEM,
    error::{Error, ErrorCode, Result},
    finding::{Code, Finding},
    ids::{KekId, ReplicaId},
    pack::Pack,
    ring::{Kek, KeyRing},
    server::AccessMode,
};
use store::{
    Db, Tx,
    keks::{KekRecord, KekState},
    vault,
};

/// How often a replica renews its registration, which lasts for a minute.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// The most tenants that a finding names.
const SHOWN_TENANTS: usize = 3;

/// Why a key is needed.
const WRAPS: &str = "it wraps tenants' keys";
const SEALS: &str = "it seals";

/// Refuses packs with personal servers when there is no key to seal their users' credentials.
pub fn require_ring<'a>(
    ring: Option<&KeyRing>,
    packs: impl Iterator<Item = &'a Arc<Pack>>,
) -> anyhow::Result<()> {
    if ring.is_some() {
        return Ok(());
    }
    for pack in packs {
        if let Some(server) = pack
            .servers
            .iter()
            .find(|server| server.access_mode == AccessMode::UserControlled)
        {
            anyhow::bail!(
                "pack {}: server {} is personal, and {MISSING}",
                pack.id(),
                server.id
            );
        }
    }
    Ok(())
}

/// Checks that the ring is the one this database was sealed with, and registers the replica as a holder of its keys.
/// The error says which key is wrong.
pub async fn register(keys: &Keys, replica: ReplicaId) -> Result<()> {
    let Some(ring) = &keys.ring else {
        return Ok(());
    };
    let mut tx = keys.db.system().await?;
    let known = add_new_keys(&mut tx, ring).await?;
    let sealing = known.iter().find(|kek| kek.state == KekState::Sealing);
    for needed in store::tenant_keys::list_keks(&mut tx).await? {
        require_key(ring, &needed, WRAPS)?;
    }
    if let Some(sealing) = sealing {
        require_key(ring, &sealing.id, SEALS)?;
    }
    let ids: Vec<String> = ring.keks().map(|kek| kek.id.to_string()).collect();
    store::keks::record_replica(&mut tx, replica, &ids).await?;
    let first = known
        .iter()
        .find(|kek| kek.id == ring.first().id)
        .expect("every key of the ring was registered");
    if first.state == KekState::Added {
        promote_first(&mut tx, &first.id, sealing.map(|kek| &kek.id)).await?;
    }
    tx.commit().await
}

/// What is wrong with the ring that a replica would start with, as far as this database tells. Changes nothing.
pub async fn examine(db: &Db, ring: Option<&KeyRing>) -> Result<Vec<Finding>> {
    let mut tx = db.system().await?;
    let known = store::keks::list(&mut tx).await?;
    let wrapping = store::tenant_keys::list_keks(&mut tx).await?;
    let Some(ring) = ring else {
        let missing = Finding::new(Code::KeysMissing, MISSING, "");
        return Ok((!wrapping.is_empty())
            .then_some(missing)
            .into_iter()
            .collect());
    };
    let mut findings = Vec::new();
    let mut add = |code, checked: Result<()>| match checked {
        Ok(()) => Ok(()),
        Err(Error::Conflict(_, why)) => {
            findings.push(Finding::new(code, why, ""));
            Ok(())
        }
        Err(error) => Err(error),
    };
    for kek in ring.keks() {
        let is_known = known.iter().any(|record| record.id == kek.id);
        let checked = if is_known {
            check_same_key(kek, &known)
        } else {
            refuse_other_name(kek, &known)
        };
        add(Code::KeysWrong, checked)?;
    }
    for needed in &wrapping {
        add(Code::KeysLacking, require_key(ring, needed, WRAPS))?;
    }
    for kek in known.iter().filter(|kek| !wrapping.contains(&kek.id)) {
        match kek.state {
            KekState::Sealing => add(Code::KeysLacking, require_key(ring, &kek.id, SEALS))?,
            KekState::Added => {
                let why = "another replica has it and will seal with it";
                add(Code::KeysReplicas, require_key(ring, &kek.id, why))?;
            }
            KekState::Opening | KekState::Retired => {}
        }
    }
    let is_complete = findings.is_empty();
    for kek in ring.keks() {
        let lacking = store::keks::list_replicas_without(&mut tx, &kek.id).await?;
        if !lacking.is_empty() {
            let (id, lacking) = (&kek.id, lacking.len());
            findings.push(Finding::new(
                Code::KeysReplicas,
                format!("key {id} is in this ring, and {lacking} replicas that run do not have it"),
                "restart them with the same keys; until then the key before it seals",
            ));
        }
    }
    drop(tx);
    if is_complete {
        findings.extend(examine_tenant_keys(db, ring).await?);
    }
    Ok(findings)
}

/// The tenants whose keys cannot be read with a ring that is complete.
async fn examine_tenant_keys(db: &Db, ring: &KeyRing) -> Result<Option<Finding>> {
    let mut tx = db.system().await?;
    let with_key = store::tenant_keys::list_tenants(&mut tx).await?;
    let tenants = store::tenants::list(&mut tx).await?;
    drop(tx);
    let mut unreadable = BTreeSet::new();
    for tenant in with_key {
        let mut tx = db.tenant(tenant).await?;
        for (version, kek) in store::tenant_keys::list_versions(&mut tx, tenant).await? {
            let stored = store::tenant_keys::get(&mut tx, tenant, version).await?;
            let opened = ring
                .get(&kek)
                .zip(stored)
                .map(|(kek, stored)| vault::unwrap(kek, tenant, version, &stored.wrapped));
            if opened.is_some_and(|opened| opened.is_err()) {
                unreadable.insert(tenant);
            }
        }
    }
    if unreadable.is_empty() {
        return Ok(None);
    }
    let names = tenants
        .iter()
        .filter(|tenant| unreadable.contains(&tenant.id));
    let names: Vec<_> = names
        .take(SHOWN_TENANTS)
        .map(|tenant| tenant.name.as_str())
        .collect();
    Ok(Some(Finding::new(
        Code::KeysTenant,
        format!(
            "the keys of {} tenants in the database cannot be read ({}), so what they protect cannot be opened",
            unreadable.len(),
            names.join(", ")
        ),
        "restore their rows of tenant_keys from a backup; calls then work again without a restart",
    )))
}

/// Lets a new first key seal, if every living replica holds it.
async fn promote_first(tx: &mut Tx, first: &KekId, sealing: Option<&KekId>) -> Result<()> {
    let lacking = store::keks::list_replicas_without(tx, first).await?.len();
    if let Some(sealing) = sealing
        && lacking > 0
    {
        tracing::warn!(
            "key {first} is first in the ring; {sealing} goes on to seal until {lacking} more replicas have it"
        );
        return Ok(());
    }
    store::keks::promote(tx, first).await?;
    store::audit::record_for_operator(tx, SYSTEM, "kek.promoted", first.as_str()).await?;
    tracing::info!(key = %first, "the first key of the ring seals from now on");
    Ok(())
}

/// Ends the registration of a replica as a holder of keys.
pub async fn leave(keys: &Keys, replica: ReplicaId) {
    let left = async {
        let mut tx = keys.db.system().await?;
        store::keks::remove_replica(&mut tx, replica).await?;
        tx.commit().await
    };
    let left: Result<()> = left.await;
    if let Err(error) = left {
        tracing::debug!(
            error = error.with_cause(),
            "a sign that this replica is gone was not written; it is forgotten in a minute"
        );
    }
}

/// Renews the registration of this replica until a stop is requested. It stays registered until it [`leave`]s, because
/// running work may still need a key.
pub async fn hold(app: Arc<App>) {
    if !app.keys.has_ring() {
        return;
    }
    loop {
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
            () = app.shutdown.cancelled() => break,
        }
        match register(&app.keys, app.replica).await {
            Ok(()) => {
                app.keys.set_complete(true);
                if let Err(error) = app.keys.retry_unreadable().await {
                    tracing::debug!(
                        error = error.with_cause(),
                        "keys that could not be read are tried again later"
                    );
                }
            }
            Err(error) => {
                // An unreachable database says nothing about the keys.
                if matches!(error, Error::Conflict(..)) {
                    app.keys.set_complete(false);
                }
                tracing::error!(
                    error = error.with_cause(),
                    "this replica's keys could not be checked, or do not fit the database"
                );
            }
        }
    }
}

/// Adds the new keys of the ring to the database and compares the others. Returns all keys of the database, locked
/// until the end of the transaction.
async fn add_new_keys(tx: &mut Tx, ring: &KeyRing) -> Result<Vec<KekRecord>> {
    let before = store::keks::lock(tx).await?;
    let mut new: Vec<&Kek> = ring
        .keks()
        .filter(|kek| !before.iter().any(|known| known.id == kek.id))
        .collect();
    // One order on all replicas, so that replicas that start at once do not deadlock.
    new.sort_by_key(|kek| &kek.id);
    for kek in new {
        refuse_other_name(kek, &before)?;
        if store::keks::add(tx, &kek.id, &vault::check_value(kek)).await? {
            store::audit::record_for_operator(tx, SYSTEM, "kek.added", kek.id.as_str()).await?;
        }
    }
    let known = store::keks::lock(tx).await?;
    for kek in ring.keks() {
        check_same_key(kek, &known)?;
    }
    Ok(known)
}

/// Refuses a key that differs from the database's key with the same id.
pub(super) fn check_same_key(kek: &Kek, known: &[KekRecord]) -> Result<()> {
    let (id, ours) = (&kek.id, vault::check_value(kek));
    let Some(theirs) = known.iter().find(|known| known.id == *id) else {
        return Ok(());
    };
    if theirs.check_value == ours {
        return Ok(());
    }
    refuse_other_name(kek, known)?;
    Err(Error::conflict(
        ErrorCode::Conflict,
        format!(
            "key {id} is wrong: this database was sealed with another one (its check value is {}, that of yours {}); \
         put the right key back, or give the new one an id of its own",
            hex::encode(&theirs.check_value[..4]),
            hex::encode(&ours[..4]),
        ),
    ))
}

/// Refuses a key that the database knows by another id.
pub(super) fn refuse_other_name(kek: &Kek, known: &[KekRecord]) -> Result<()> {
    let value = vault::check_value(kek);
    match known.iter().find(|known| known.check_value == value) {
        Some(same) => Err(Error::conflict(
            ErrorCode::Conflict,
            format!(
                "key {} is wrong: this database knows that key as {}; write `{}:` before it",
                kek.id, same.id, same.id,
            ),
        )),
        None => Ok(()),
    }
}

fn require_key(ring: &KeyRing, id: &KekId, why: &str) -> Result<()> {
    if ring.get(id).is_some() {
        return Ok(());
    }
    Err(Error::conflict(
        ErrorCode::Conflict,
        format!("key {id} is missing: {why}; add `{id}:…` to MCP_CONFIG_ENCRYPTION_KEYS"),
    ))
}
