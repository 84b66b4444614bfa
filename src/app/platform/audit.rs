//! The audit trail: reading it, and writing that of calls which have no row of their own: refused calls, prompts and
//! resources (everything else is written where it is done, in the same transaction). A line is promised before the
//! request is made and written within 100 ms, in batches; when the queue is full the request is refused, never the line
//! dropped. A killed process loses at most the lines of its last 100 ms.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::mpsc;

use crate::app::App;
use crate::{
    domain::{
        audit::{Filter, Line as Entry, OperatorLine},
        error::{Error, Result},
        ids::{AuditId, TenantId},
        principal::Admin,
    },
    store::{self, Db, audit::AuditRow},
};

const QUEUE: usize = 4096;
const BATCH: usize = 512;
const EVERY: Duration = Duration::from_millis(100);

/// The sending end of the audit queue.
pub struct AuditQueue {
    sender: mpsc::Sender<AuditRow>,
}

/// The receiving end of the audit queue.
pub struct AuditReceiver(mpsc::Receiver<AuditRow>);

/// A promised place for one line. Dropped without [`Line::write`], because whoever made the call was stopped
/// meanwhile, it is written as it was promised.
pub struct Line<'a> {
    permit: Option<mpsc::Permit<'a, AuditRow>>,
    row: Option<AuditRow>,
}

impl AuditQueue {
    pub fn new() -> (Self, AuditReceiver) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { sender }, AuditReceiver(receiver))
    }

    /// Reserves a line; `Busy` when the database cannot keep up.
    pub fn reserve(&self, row: AuditRow) -> Result<Line<'_>> {
        let reserved = self.sender.try_reserve().map_err(|_| Error::Busy {
            reason: "the audit trail cannot be written fast enough; try again".to_owned(),
            retry_after: Duration::from_secs(1),
        });
        Ok(Line {
            permit: Some(reserved?),
            row: Some(row),
        })
    }
}

impl Line<'_> {
    /// Writes how it ended.
    pub fn write(mut self, outcome: &'static str) {
        if let Some(row) = &mut self.row {
            row.outcome = outcome;
        }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if let (Some(permit), Some(row)) = (self.permit.take(), self.row.take()) {
            permit.send(row);
        }
    }
}

/// Writes lines until the process stops and all are written.
pub async fn write(app: Arc<App>, mut inbox: AuditReceiver) {
    let mut rows = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            received = inbox.0.recv_many(&mut rows, BATCH) => if received == 0 { return },
            () = finished(&app) => inbox.0.close(),
        }
        // More rows wait already: without a pause, or a busy process would refuse calls because the queue
        // is full.
        let full = rows.len() >= BATCH;
        while !rows.is_empty() {
            if let Err(error) = write_batch(&app, &mut rows).await {
                tracing::error!(%error, lines = rows.len(), "the audit trail could not be written; trying again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        if !full {
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// Waits until a stop was requested and only the background work is still running.
async fn finished(app: &App) {
    app.shutdown.cancelled().await;
    while !app.run_slots.is_idle() {
        tokio::time::sleep(EVERY).await;
    }
}

/// Writes rows tenant by tenant and removes the written ones from `rows`. A failure of one tenant does not
/// affect the others.
async fn write_batch(app: &App, rows: &mut Vec<AuditRow>) -> Result<()> {
    let mut by_tenant: HashMap<TenantId, Vec<AuditRow>> = HashMap::new();
    for row in rows.drain(..) {
        by_tenant.entry(row.tenant).or_default().push(row);
    }
    let mut outcome = Ok(());
    for (tenant, batch) in by_tenant {
        if let Err(error) = write_rows(app, tenant, &batch).await {
            rows.extend(batch);
            outcome = Err(error);
        }
    }
    outcome
}

async fn write_rows(app: &App, tenant: TenantId, rows: &[AuditRow]) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    store::audit::insert(&mut tx, tenant, rows).await?;
    tx.commit().await
}

/// The tenant's trail, newest first: what passes a filter, before a line.
pub async fn list(
    app: &App,
    admin: &Admin,
    filter: &Filter,
    before: Option<AuditId>,
    limit: i64,
) -> Result<Vec<Entry>> {
    of_tenant(&app.db, admin.tenant(), filter, before, limit).await
}

/// The same for the operator, who may read any tenant's.
pub async fn of_tenant(
    db: &Db,
    tenant: TenantId,
    filter: &Filter,
    before: Option<AuditId>,
    limit: i64,
) -> Result<Vec<Entry>> {
    let mut tx = db.tenant(tenant).await?;
    store::audit::list(&mut tx, tenant, filter, before, limit).await
}

/// The operator's own trail, newest first: the keys of the ring, tenants that came and went.
pub async fn of_operator(
    db: &Db,
    since: Option<time::OffsetDateTime>,
    limit: i64,
) -> Result<Vec<OperatorLine>> {
    let mut tx = db.system().await?;
    store::audit::operators(&mut tx, since, limit).await
}
