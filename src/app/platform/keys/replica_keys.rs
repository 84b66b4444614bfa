//! A replica and its ring. At the start, a wrong or missing key is refused. While the replica lives, it
//! counts as a holder of its keys, and the first key of its ring may begin to seal once every replica has
//! it.
//!
//! A key begins to seal only when every living replica has it; until then the one before goes on. So a rolling
//! restart with a new ring never makes anything that some replica cannot open.

use std::{sync::Arc, time::Duration};

use super::{Keys, MISSING};
use crate::{
    app::App,
    domain::{
        audit::SYSTEM,
        error::{Error, ErrorCode, Result},
        ids::{KekId, ReplicaId},
        pack::Pack,
        ring::{Kek, KeyRing},
        server::AccessMode,
    },
    store::{
        self, Tx,
        keks::{KekRecord, KekState},
    },
    vault,
};

/// How often a replica says that it is alive; it counts for a minute after it said so.
const BEAT: Duration = Duration::from_secs(15);

/// Refuses packs with personal servers when there is no key for what their users will enter.
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

/// Makes sure at the start that the ring is the one this database was sealed with; the error says which key is
/// wrong. From then on the replica counts as a holder of its keys.
pub async fn enter(keys: &Keys, replica: ReplicaId) -> Result<()> {
    let Some(ring) = &keys.ring else {
        return Ok(());
    };
    let mut tx = keys.db.system().await?;
    let known = register(&mut tx, ring).await?;
    let sealing = known.iter().find(|kek| kek.state == KekState::Sealing);
    for needed in store::tenant_keys::keks(&mut tx).await? {
        require(ring, &needed, "it wraps tenants' keys")?;
    }
    if let Some(sealing) = sealing {
        require(ring, &sealing.id, "it seals")?;
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

/// Lets a new first key seal, if every living replica has it.
async fn promote_first(tx: &mut Tx, first: &KekId, sealing: Option<&KekId>) -> Result<()> {
    let lacking = store::keks::replicas_without(tx, first).await?.len();
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

/// Ends the registration of a replica: its keys do not count any more.
pub async fn leave(keys: &Keys, replica: ReplicaId) {
    let left = async {
        let mut tx = keys.db.system().await?;
        store::keks::remove_replica(&mut tx, replica).await?;
        tx.commit().await
    };
    let left: Result<()> = left.await;
    if let Err(error) = left {
        tracing::debug!(%error, "a sign that this replica is gone was not written; it is forgotten in a minute");
    }
}

/// Says that this replica is alive, until it is asked to stop. It counts on until it [`leave`]s: what is under
/// way may still need a key.
pub async fn hold(app: Arc<App>) {
    if !app.keys.has_ring() {
        return;
    }
    loop {
        tokio::select! {
            () = tokio::time::sleep(BEAT) => {}
            () = app.shutdown.cancelled() => break,
        }
        match enter(&app.keys, app.replica).await {
            Ok(()) => app.keys.set_fit(true),
            Err(error) => {
                // A database that is away says nothing about the keys.
                if matches!(error, Error::Conflict(..)) {
                    app.keys.set_fit(false);
                }
                tracing::error!(%error, "this replica's keys could not be checked, or do not fit the database");
            }
        }
    }
}

/// Makes the keys of the ring known and compares those that are. Everything known, locked until the end of the
/// transaction.
async fn register(tx: &mut Tx, ring: &KeyRing) -> Result<Vec<KekRecord>> {
    let before = store::keks::lock(tx).await?;
    let mut new: Vec<&Kek> = ring
        .keks()
        .filter(|kek| !before.iter().any(|known| known.id == kek.id))
        .collect();
    // In one order everywhere, so that replicas that start at once do not wait for each other in a circle.
    new.sort_by_key(|kek| &kek.id);
    for kek in new {
        refuse_other_name(kek, &before)?;
        if store::keks::add(tx, &kek.id, &vault::check_value(kek)).await? {
            store::audit::record_for_operator(tx, SYSTEM, "kek.added", kek.id.as_str()).await?;
        }
    }
    let known = store::keks::lock(tx).await?;
    for kek in ring.keks() {
        compare(kek, &known)?;
    }
    Ok(known)
}

/// Refuses a key that is not the one known by its id.
pub(super) fn compare(kek: &Kek, known: &[KekRecord]) -> Result<()> {
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

/// Refuses a key that is known by another id.
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

fn require(ring: &KeyRing, id: &KekId, why: &str) -> Result<()> {
    if ring.get(id).is_some() {
        return Ok(());
    }
    Err(Error::conflict(
        ErrorCode::Conflict,
        format!("key {id} is missing: {why}; add `{id}:…` to MCP_CONFIG_ENCRYPTION_KEYS"),
    ))
}
