//! Deletes rows that are older than their tenant keeps them. One replica at a time does this, in batches, once an
//! hour; the command line does it at once. A failure in one tenant or kind does not stop the others.

use std::{sync::Arc, time::Duration};

use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::app::App;
use domain::{
    account::Tenant,
    audit::{Fact, SYSTEM},
    error::{Error, ErrorCode, Result},
    ids::ReplicaId,
    request_key::REMEMBERED_HOURS,
    retention::{Days, Kind},
};
use store::{Db, Tx, retention::Batch};

/// How often a replica checks whether a purge is due.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two purges of all replicas.
const PERIOD: Duration = Duration::from_secs(3600);
/// How long a killed replica keeps the others from purging. A batch takes much less.
const LEASE: Duration = Duration::from_secs(120);
const JOB: &str = "retention";
/// How long an attachment waits for a message that names it.
const UNNAMED: Duration = Duration::from_secs(3600);

/// The old rows of one kind in one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldRows {
    pub tenant: String,
    pub kind: Kind,
    /// How long this kind is kept.
    pub days: i32,
    pub rows: u64,
}

/// Purges if no replica has purged for an hour.
pub async fn purge_due(app: &Arc<App>) -> Result<()> {
    let Some(lease) = Lease::claim(&app.db, app.replica, &app.shutdown, PERIOD).await? else {
        return Ok(());
    };
    let purged = purge_all(&lease, &app.config.retention(), None, SYSTEM).await;
    lease.release(purged.is_ok()).await?;
    for old in purged? {
        tracing::info!(
            tenant = old.tenant,
            kind = old.kind.name(),
            rows = old.rows,
            "purged"
        );
    }
    Ok(())
}

/// Purges every tenant, or one, now. `Conflict` while a replica is purging.
pub async fn purge(
    db: &Db,
    settings: &Days,
    only: Option<&str>,
    actor: &str,
) -> Result<Vec<OldRows>> {
    let stop = CancellationToken::new();
    let lease = Lease::claim(db, ReplicaId::new(), &stop, Duration::ZERO).await?;
    let lease = lease.ok_or_else(|| {
        Error::conflict(
            ErrorCode::Conflict,
            "a replica is purging at the moment; try again in a few minutes",
        )
    })?;
    let purged = purge_all(&lease, settings, only, actor).await;
    // Only a purge of all tenants postpones the next purge of the replicas by an hour.
    lease.release(purged.is_ok() && only.is_none()).await?;
    purged
}

/// Counts the rows that a purge would delete now.
pub async fn preview(db: &Db, settings: &Days, only: Option<&str>) -> Result<Vec<OldRows>> {
    let mut found = Vec::new();
    for tenant in find_tenants(db, only).await? {
        for (kind, days) in due_kinds(&tenant, settings) {
            let mut tx = db.tenant(tenant.id).await?;
            let rows = count_old(&mut tx, kind, days).await?;
            push_found(&mut found, &tenant, kind, days, rows);
        }
    }
    Ok(found)
}

async fn find_tenants(db: &Db, only: Option<&str>) -> Result<Vec<Tenant>> {
    let mut tx = db.system().await?;
    let Some(name) = only else {
        return store::tenants::list(&mut tx).await;
    };
    let tenant = store::tenants::find_by_name(&mut tx, name).await?;
    tenant
        .map(|tenant| vec![tenant])
        .ok_or_else(|| Error::not_found(format!("tenant {name:?}")))
}

/// The kinds of data that a tenant does not keep for ever, each with its days.
fn due_kinds(tenant: &Tenant, settings: &Days) -> impl Iterator<Item = (Kind, i32)> + use<> {
    let days = tenant.retention.effective(settings);
    Kind::ALL
        .into_iter()
        .filter_map(move |kind| Some((kind, days.get(kind)?)))
}

fn push_found(found: &mut Vec<OldRows>, tenant: &Tenant, kind: Kind, days: i32, rows: u64) {
    if rows > 0 {
        let tenant = tenant.name.clone();
        found.push(OldRows {
            tenant,
            kind,
            days,
            rows,
        });
    }
}

async fn purge_all(
    lease: &Lease<'_>,
    settings: &Days,
    only: Option<&str>,
    actor: &str,
) -> Result<Vec<OldRows>> {
    let (mut found, mut failed) = (Vec::new(), None);
    for tenant in find_tenants(lease.db, only).await? {
        let set = set_audit_days(lease.db, &tenant, settings, actor).await;
        failed = failed.or(log_error(&tenant, "the days of the audit trail", set));
        for (what, purge) in [
            ("old request keys", Leftover::RequestKeys),
            ("attachments that no message names", Leftover::Attachments),
            ("sums of limits that are over", Leftover::LimitSums),
        ] {
            match purge_leftovers(lease, &tenant, purge).await {
                Ok(true) => {}
                Ok(false) => return Err(stopped_error()),
                Err(error) => failed = failed.or(log_error(&tenant, what, Err(error))),
            }
        }
        for (kind, days) in due_kinds(&tenant, settings) {
            let mut rows = 0;
            let purged = purge_kind(lease, &tenant, kind, days, actor, &mut rows).await;
            push_found(&mut found, &tenant, kind, days, rows);
            match purged {
                Ok(true) => {}
                Ok(false) => return Err(stopped_error()),
                Err(error) => failed = failed.or(log_error(&tenant, kind.name(), Err(error))),
            }
        }
    }
    failed.map_or(Ok(found), Err)
}

fn stopped_error() -> Error {
    Error::conflict(
        ErrorCode::Conflict,
        "the purge was stopped; what is left is purged the next time",
    )
}

/// Logs the error of one tenant, if there is one.
fn log_error(tenant: &Tenant, what: &str, done: Result<()>) -> Option<Error> {
    let error = done.err()?;
    tracing::warn!(
        tenant = tenant.name,
        what,
        error = error.with_cause(),
        "cannot purge; trying again"
    );
    Some(error)
}

/// Rows that are deleted whatever the settings of their tenant are.
#[derive(Clone, Copy)]
enum Leftover {
    /// Idempotency keys that are too old.
    RequestKeys,
    /// Attachments that were uploaded an hour ago and that no message names.
    Attachments,
    /// Sums of limits whose time is over.
    LimitSums,
}

/// Deletes leftovers; `false` when it was stopped. They are neither counted nor in the audit trail, because no tenant
/// decides how long they are kept.
async fn purge_leftovers(lease: &Lease<'_>, tenant: &Tenant, what: Leftover) -> Result<bool> {
    loop {
        if !lease.prolong().await? {
            return Ok(false);
        }
        let mut tx = lease.db.tenant(tenant.id).await?;
        let deleted = match what {
            Leftover::RequestKeys => {
                let cutoff = cutoff(&mut tx, REMEMBERED_HOURS / 24).await?;
                store::retention::purge_request_keys(&mut tx, cutoff).await?
            }
            Leftover::LimitSums => store::retention::purge_limit_sums(&mut tx).await?,
            Leftover::Attachments => {
                let cutoff = cutoff(&mut tx, 0).await? - UNNAMED;
                store::retention::purge_unnamed_attachments(&mut tx, cutoff).await?
            }
        };
        tx.commit().await?;
        if deleted == 0 {
            return Ok(true);
        }
    }
}

/// Tells the database which lines of the audit trail may be deleted. The change has a line in the trail.
async fn set_audit_days(db: &Db, tenant: &Tenant, settings: &Days, actor: &str) -> Result<()> {
    let days = tenant.retention.effective(settings).audit;
    let mut tx = db.system_then_tenant().await?;
    if !store::retention::set_audit_days(&mut tx, tenant.id, days).await? {
        return Ok(());
    }
    let rule = days.map_or_else(
        || "kept for ever".to_owned(),
        |days| format!("kept {days} days"),
    );
    let detail = format!("{} ({}): {rule}", tenant.name, tenant.id);
    store::audit::record_for_operator(&mut tx, actor, "audit.retention_changed", &detail).await?;
    tx.enter(tenant.id).await?;
    let fact = Fact::new(actor, "audit.retention_changed").detail(&rule);
    store::audit::record(&mut tx, tenant.id, &fact).await?;
    tx.commit().await
}

/// Deletes the old rows of one kind and counts them in `rows`; `false` when it was stopped. Each batch has a line in
/// the audit trail.
async fn purge_kind(
    lease: &Lease<'_>,
    tenant: &Tenant,
    kind: Kind,
    days: i32,
    actor: &str,
    rows: &mut u64,
) -> Result<bool> {
    let mut before = None;
    loop {
        if !lease.prolong().await? {
            return Ok(false);
        }
        let mut tx = match kind {
            Kind::Audit => lease.db.retention(tenant.id).await?,
            _ => lease.db.tenant(tenant.id).await?,
        };
        let batch = purge_batch(&mut tx, kind, days, before).await?;
        if batch.rows > 0 {
            let detail = format!("{} {} older than {days} days", batch.rows, kind.name());
            let fact = Fact::new(actor, "retention.purged").detail(&detail);
            store::audit::record(&mut tx, tenant.id, &fact).await?;
        }
        tx.commit().await?;
        *rows += batch.rows;
        before = batch.before;
        if before.is_none() {
            return Ok(true);
        }
    }
}

async fn purge_batch(tx: &mut Tx, kind: Kind, days: i32, before: Option<Uuid>) -> Result<Batch> {
    let cutoff = cutoff(tx, days).await?;
    match kind {
        Kind::Conversations => {
            store::retention::purge_conversations(tx, false, cutoff, before).await
        }
        Kind::GuestConversations => {
            store::retention::purge_conversations(tx, true, cutoff, before).await
        }
        Kind::Runs => store::retention::purge_runs(tx, cutoff, before).await,
        Kind::ApprovalArguments => store::retention::purge_arguments(tx, cutoff).await,
        Kind::CallArguments => store::retention::purge_kept_calls(tx, cutoff).await,
        Kind::Audit => store::retention::purge_audit(tx, cutoff).await,
    }
}

async fn count_old(tx: &mut Tx, kind: Kind, days: i32) -> Result<u64> {
    let cutoff = cutoff(tx, days).await?;
    let count = match kind {
        Kind::Conversations => store::retention::count_conversations(tx, false, cutoff).await?,
        Kind::GuestConversations => store::retention::count_conversations(tx, true, cutoff).await?,
        Kind::Runs => store::retention::count_runs(tx, cutoff).await?,
        Kind::ApprovalArguments => store::retention::count_arguments(tx, cutoff).await?,
        Kind::CallArguments => store::retention::count_kept_calls(tx, cutoff).await?,
        Kind::Audit => store::retention::count_audit(tx, cutoff).await?,
    };
    Ok(count.cast_unsigned())
}

/// The time before which rows count as old, by the database's clock.
async fn cutoff(tx: &mut Tx, days: i32) -> Result<OffsetDateTime> {
    Ok(tx.now().await? - time::Duration::days(days.into()))
}

/// The right to purge, which one process has at a time.
struct Lease<'a> {
    db: &'a Db,
    owner: ReplicaId,
    stop: &'a CancellationToken,
}

impl<'a> Lease<'a> {
    async fn claim(
        db: &'a Db,
        owner: ReplicaId,
        stop: &'a CancellationToken,
        period: Duration,
    ) -> Result<Option<Self>> {
        let mut tx = db.system().await?;
        let claimed = store::jobs::claim(&mut tx, JOB, owner, LEASE, period).await?;
        tx.commit().await?;
        Ok(claimed.then_some(Self { db, owner, stop }))
    }

    /// Whether another batch may begin.
    async fn prolong(&self) -> Result<bool> {
        if self.stop.is_cancelled() {
            return Ok(false);
        }
        let mut tx = self.db.system().await?;
        let held = store::jobs::prolong(&mut tx, JOB, self.owner, LEASE).await?;
        tx.commit().await?;
        Ok(held)
    }

    async fn release(self, done: bool) -> Result<()> {
        let mut tx = self.db.system().await?;
        if done {
            store::jobs::finish(&mut tx, JOB, self.owner).await?;
        } else {
            store::jobs::release(&mut tx, JOB, self.owner).await?;
        }
        tx.commit().await
    }
}
