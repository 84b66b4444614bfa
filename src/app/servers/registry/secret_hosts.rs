//! The hosts that a tenant's secrets are sent to. Whoever may change an entry need not know what is in a secret, so an entry
//! that would send it elsewhere is refused until the secret is entered again.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use super::{agents_with, snapshot};
use crate::{
    app::App,
    domain::{
        error::{Error, ErrorCode, Result},
        ids::TenantId,
        registry::{ConfigValue, Entry, EntryId, host_of},
    },
    store,
};

/// For so long after it was entered a secret may be sent to hosts that have not had it.
const SECRET_IS_NEW: time::Duration = time::Duration::hours(1);

/// Refuses to send a secret of the tenant to a host that no entry has sent it to yet, unless it was entered a moment ago.
pub(super) async fn check_secrets(app: &App, tenant: TenantId, entry: &Entry) -> Result<()> {
    let hosts = hosts_of(entry);
    // The rows, not what is in memory of them.
    app.registry.snapshots.invalidate(&tenant).await;
    let snapshot = snapshot(app, tenant).await?;
    let of_packs = secrets_of_packs(app, tenant).await?;
    let named = |entry: &Entry, name: &str| {
        let by_pack = (entry.id.clone(), name.to_owned());
        entry.secrets().any(|used| used == name) || of_packs.contains(&by_pack)
    };
    let mut tx = app.db.tenant(tenant).await?;
    for secret in store::secrets::all(&mut tx).await? {
        let name = secret.name.as_str();
        let is_new = app.clock.now() - secret.updated_at < SECRET_IS_NEW;
        if is_new || !named(entry, name) {
            continue;
        }
        let senders = snapshot.entries.values().filter(|known| named(known, name));
        let known: BTreeSet<String> = senders.flat_map(|known| hosts_of(known)).collect();
        if let Some(host) = hosts.difference(&known).next() {
            return Err(Error::unfit(
                ErrorCode::SecretNeeded,
                "url",
                format!(
                    "would send the secret {name:?} to {host}, which has not had it; enter the secret again \
                     (PUT /v1/secrets/{name}) and repeat this within an hour"
                ),
            ));
        }
    }
    Ok(())
}

/// Where an entry sends what it is given.
fn hosts_of(entry: &Entry) -> BTreeSet<String> {
    let token_url = entry.definition.auth.as_ref().map(|auth| &auth.token_url);
    std::iter::once(&entry.definition.url)
        .chain(token_url)
        .map(|address| host_of(address).unwrap_or_else(|| address.clone()))
        .collect()
}

/// The secrets that packs hand to an entry of the tenant.
async fn secrets_of_packs(app: &App, tenant: TenantId) -> Result<BTreeSet<(EntryId, String)>> {
    let found = Mutex::new(BTreeSet::new());
    agents_with(app, tenant, |_, reference| {
        let values = reference
            .levels
            .iter()
            .flat_map(|level| level.config.values())
            .flatten();
        for secret in values.filter_map(ConfigValue::secret) {
            let used = (reference.entry.clone(), secret.as_str().to_owned());
            found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(used);
        }
        false
    })
    .await?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}
