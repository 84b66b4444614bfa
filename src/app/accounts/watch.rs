//! Polls for changes of cached tenants and issuers every second. While the polls succeed, cached rows stay valid for
//! longer than a few seconds, so a known caller costs no query. A poll reads a stamp of each row, not the row.

use std::{collections::HashMap, sync::Arc};

use time::{Duration, OffsetDateTime};

use super::{Accounts, CachedRow, EndedSessions};
use crate::app::App;
use domain::{account::Issuer, error::Result, ids::TenantId, principal::Principal};
use store::Tx;

/// After this time without a successful poll, no cached row counts as unchanged.
const ALIVE: Duration = Duration::seconds(3);
/// The pause between two polls after which some sign-outs may have been missed. The polls overlap by ten seconds.
const OVERLAP: Duration = Duration::seconds(8);

/// How often a listener checks whether the issuer of its token is still trusted. It checks before the issuer leaves the
/// cache.
const TRUST_CHECKED: std::time::Duration = std::time::Duration::from_secs(20);

/// The result of the last poll.
pub(super) struct Watched {
    at: OffsetDateTime,
    tenants: HashMap<TenantId, Seen>,
    issuers: HashMap<String, Seen>,
}

/// A stamp, and the end of the poll that saw it first: a row that was read after that has not changed since.
#[derive(Clone)]
struct Seen {
    stamp: String,
    since: OffsetDateTime,
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            at: OffsetDateTime::UNIX_EPOCH,
            tenants: HashMap::new(),
            issuers: HashMap::new(),
        }
    }
}

impl Watched {
    /// Whether a tenant that was read at the time `read` is unchanged.
    pub(super) fn covers_tenant(
        &self,
        id: TenantId,
        read: OffsetDateTime,
        now: OffsetDateTime,
    ) -> bool {
        now < self.at + ALIVE && self.tenants.get(&id).is_some_and(|seen| seen.since <= read)
    }

    pub(super) fn covers_issuer(
        &self,
        issuer: &str,
        read: OffsetDateTime,
        now: OffsetDateTime,
    ) -> bool {
        let seen = self.issuers.get(issuer);
        now < self.at + ALIVE && seen.is_some_and(|seen| seen.since <= read)
    }
}

/// Polls for changes of the cached tenants and issuers, and drops those that have changed.
pub async fn poll_changes(app: &Arc<App>) -> Result<()> {
    let shared = &app.accounts.shared;
    let tenants: Vec<TenantId> = shared.tenants.iter().map(|(id, _)| *id).collect();
    let known: Vec<_> = shared.issuers.iter().collect();
    let issuers: Vec<String> = known.iter().map(|(issuer, _)| (**issuer).clone()).collect();
    let before = shared.watched.load_full();
    let (asked_tenants, asked_issuers, seen_before) =
        (tenants.clone(), issuers.clone(), before.clone());
    let stamps = app.db.look_at_access(move |tx| {
        Box::pin(async move {
            let of_tenants = store::tenants::list_stamps(tx, &asked_tenants).await?;
            let of_issuers = store::issuers::list_stamps(tx, &asked_issuers).await?;
            let changed = find_changed_since_read(tx, &seen_before, &known).await?;
            Ok((of_tenants, of_issuers, changed))
        })
    });
    let (of_tenants, of_issuers, changed_before) = stamps.await?;
    let now = app.clock.now();
    let seen = |stamp: Option<&String>, known: Option<&Seen>| {
        let stamp = stamp.cloned().unwrap_or_default();
        match known {
            Some(known) if known.stamp == stamp => known.clone(),
            _ => Seen { stamp, since: now },
        }
    };
    let tenants = tenants.into_iter().map(|id| {
        let seen = seen(of_tenants.get(&id), before.tenants.get(&id));
        (id, seen)
    });
    let issuers = issuers.into_iter().map(|issuer| {
        let seen = seen(of_issuers.get(&issuer), before.issuers.get(&issuer));
        (issuer, seen)
    });
    let watched = Watched {
        at: now,
        tenants: tenants.collect(),
        issuers: issuers.collect(),
    };
    let is_changed =
        |known: Option<&Seen>, seen: &Seen| known.is_some_and(|known| known.stamp != seen.stamp);
    let changed = watched.tenants.iter();
    let changed = changed.filter(|(id, seen)| is_changed(before.tenants.get(id), seen));
    let tenants: Vec<TenantId> = changed.map(|(id, _)| *id).collect();
    let changed = watched.issuers.iter();
    let changed = changed.filter(|(issuer, seen)| is_changed(before.issuers.get(*issuer), seen));
    let issuers: Vec<String> = changed.map(|(issuer, _)| issuer.clone()).collect();
    shared.watched.store(Arc::new(watched));
    for tenant in tenants {
        shared.tenants.invalidate(&tenant).await;
    }
    for issuer in issuers.into_iter().chain(changed_before) {
        shared.issuer_changed(&issuer).await;
    }
    Ok(())
}

/// The name of an issuer, and its cached rows.
type KnownIssuer = (Arc<String>, Arc<CachedRow<Vec<Issuer>>>);

/// The issuers that this poll sees for the first time and that have changed since they were read.
async fn find_changed_since_read(
    tx: &mut Tx,
    before: &Watched,
    known: &[KnownIssuer],
) -> Result<Vec<String>> {
    let mut changed = Vec::new();
    for (issuer, cached) in known {
        if !before.issuers.contains_key(issuer.as_str())
            && store::issuers::list_by_issuer(tx, issuer).await? != cached.row
        {
            changed.push((**issuer).clone());
        }
    }
    Ok(changed)
}

impl Accounts {
    /// Notes that a poll for ended sessions has succeeded and its results are known here. `false` when changes may have
    /// been missed since the one before.
    pub fn sessions_were_checked(&self) -> bool {
        let now = self.shared.clock.now();
        let mut checked = self.shared.sessions_checked();
        let is_in_time = now <= *checked + OVERLAP;
        if !is_in_time {
            self.shared.sign_outs.invalidate_all();
            self.shared.newest_claims.invalidate_all();
        }
        *checked = now;
        is_in_time
    }

    /// Whether this process knows all changes that this poll looks for and that are older than a few seconds.
    pub fn knows_recent_changes(&self) -> bool {
        self.shared.knows_recent_changes()
    }
}

impl super::Shared {
    /// Drops an issuer whose rows have changed: its tokens are checked again, their claims are written again, and the
    /// streams of its users end, so that their clients authenticate again.
    pub(super) async fn issuer_changed(&self, issuer: &str) {
        self.issuers.invalidate(issuer).await;
        self.tokens.invalidate_all();
        self.kept_claims.invalidate_all();
        // An error means that there is no listener.
        let _ = self.ended.send(EndedSessions::Issuer(issuer.to_owned()));
    }

    /// Completes when the principal's tenant no longer trusts the issuer of their token. The look-ups here keep the
    /// issuer in the cache and so among those that are polled, which notices a change within a second.
    pub(super) async fn wait_for_distrust(&self, principal: &Principal) {
        let Some(issuer) = principal.issuer() else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(TRUST_CHECKED).await;
            // The database may be unreachable for a moment.
            if let Ok(known) = self.find_issuers(issuer, None).await
                && known
                    .row
                    .iter()
                    .all(|issuer| issuer.tenant != principal.tenant)
            {
                return;
            }
        }
    }

    fn sessions_checked(&self) -> std::sync::MutexGuard<'_, OffsetDateTime> {
        let checked = self.sessions_checked.lock();
        checked.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether this process knows all ended sessions and all changed claims that are older than a few seconds.
    pub(super) fn knows_recent_changes(&self) -> bool {
        self.clock.now() < *self.sessions_checked() + ALIVE
    }
}
