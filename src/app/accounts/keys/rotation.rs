//! A key is replaced: the old one works for some time beside the new one.

use super::{IssuedKey, NewKey, described, issue, source_of};
use crate::{
    domain::{
        account::SourceSettings,
        audit::{self, Fact},
        clock::Clock,
        error::{Error, ErrorCode, Result},
        ids::TenantId,
    },
    store::{self, Db},
};

/// How a key is replaced.
#[derive(Clone, Debug, Default)]
pub struct KeyRotation {
    /// How long the first one still works.
    pub overlap: time::Duration,
    /// Of a frontend.
    pub source: SourceSettings,
}

/// Makes a second key like the live one of a name, which then ends.
pub async fn rotate_key(
    db: &Db,
    clock: &Clock,
    tenant: TenantId,
    name: &str,
    change: KeyRotation,
) -> Result<IssuedKey> {
    let now = clock.now();
    let mut tx = db.tenant(tenant).await?;
    store::api_keys::retire(&mut tx, tenant, name, now).await?;
    let mut live = store::api_keys::list(&mut tx, tenant, Some(name)).await?;
    live.retain(|key| key.is_live(now));
    let old = live
        .pop()
        .ok_or_else(|| Error::not_found(format!("live key {name:?}")))?;
    if !live.is_empty() {
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!("two keys {name:?} are live; revoke one by its prefix first"),
        ));
    }
    let span = old.expires_at.map(|expiry| expiry - old.created_at);
    let new = NewKey {
        name: old.name.clone(),
        scopes: old.scopes,
        speaker: old.speaker.clone(),
        source: SourceSettings::default(),
        chat: old.chat,
        expires_at: span.map(|span| now + span),
    };
    let (mut issued, hash) = issue(tenant, new, now);
    issued.key.source = source_of(&mut tx, &issued.key, &change.source).await?;
    let slot = store::api_keys::slot(&mut tx, tenant, old.id).await?;
    store::api_keys::insert(&mut tx, &issued.key, &hash, 1 - slot).await?;
    store::api_keys::expire(&mut tx, tenant, old.id, now + change.overlap).await?;
    let detail = format!("{}, in place of {}", described(&issued.key), old.prefix);
    store::audit::record(
        &mut tx,
        tenant,
        &Fact::new(audit::OPERATOR, "key.rotated").detail(&detail),
    )
    .await?;
    tx.commit().await?;
    Ok(issued)
}
