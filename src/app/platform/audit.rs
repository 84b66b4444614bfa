//! The audit trail: its readers, and the queue for calls that have no row of their own (calls of MCP clients, refused
//! calls, prompts and resources). Every other line is written in the transaction of its fact.
//!
//! The line of a call is queued before the call is sent and written within 100 ms, in batches; the outcome of the call
//! follows it. When the queue is full, the call is refused, and no line is dropped. A killed process loses at most the
//! lines of its last 100 ms, and none with `CHATELAINE_AUDIT_WAIT`: then a call waits until its line is written.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

use crate::app::App;
use domain::{
    audit::{Filter, Line as Entry, OperatorLine},
    error::{Error, Result},
    ids::{AuditId, TenantId},
    principal::Admin,
};
use store::{Db, audit::AuditRow};

const QUEUE: usize = 16_384;
const BATCH: usize = 2048;
const EVERY: Duration = Duration::from_millis(100);

/// The sending end of the audit queue.
pub struct AuditQueue {
    sender: mpsc::Sender<QueuedLine>,
    /// Whether calls wait until their lines are written.
    waits: bool,
}

/// The receiving end of the audit queue.
pub struct AuditReceiver(mpsc::Receiver<QueuedLine>);

/// A change of the trail that waits to be written.
enum QueuedLine {
    Row(Box<AuditRow>, Option<oneshot::Sender<()>>),
    Outcome(TenantId, AuditId, &'static str),
}

/// The queued line of a call, with a reserved place in the queue for the outcome of the call. When the call is stopped
/// and this is dropped without [`Line::end`], the line stays as it was queued.
pub struct Line<'a> {
    permit: mpsc::Permit<'a, QueuedLine>,
    tenant: TenantId,
    id: AuditId,
    outcome: &'static str,
    written: Option<oneshot::Receiver<()>>,
}

impl AuditQueue {
    pub fn new(waits: bool) -> (Self, AuditReceiver) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { sender, waits }, AuditReceiver(receiver))
    }

    /// Queues the line of a call that is about to be sent; `Busy` when the database cannot keep up. `waits`: the call waits
    /// until the line is written, whatever the settings say.
    pub fn open(&self, row: AuditRow, waits: bool) -> Result<Line<'_>> {
        let mut permits = self.sender.try_reserve_many(2).map_err(|_| queue_full())?;
        let (Some(first), Some(permit)) = (permits.next(), permits.next()) else {
            return Err(queue_full());
        };
        let (tenant, id, outcome) = (row.tenant, row.id, row.outcome);
        let (confirm, written) = if self.waits || waits {
            let (confirm, written) = oneshot::channel();
            (Some(confirm), Some(written))
        } else {
            (None, None)
        };
        first.send(QueuedLine::Row(Box::new(row), confirm));
        Ok(Line {
            permit,
            tenant,
            id,
            outcome,
            written,
        })
    }

    /// Queues the line of a refused call. When the queue is full, this line is dropped: no call is made.
    pub fn record(&self, row: AuditRow) {
        let _ = self.sender.try_send(QueuedLine::Row(Box::new(row), None));
    }
}

fn queue_full() -> Error {
    Error::Busy {
        reason: "the audit trail cannot be written fast enough; try again".to_owned(),
        retry_after: Duration::from_secs(1),
    }
}

impl Line<'_> {
    /// Completes when the line is written, or at once unless the call waits for it.
    pub async fn wait_until_written(&mut self) -> Result<()> {
        match self.written.take() {
            Some(written) => written.await.map_err(|_| queue_full()),
            None => Ok(()),
        }
    }

    /// Queues the outcome of the call.
    pub fn end(self, outcome: &'static str) {
        if outcome != self.outcome {
            self.permit
                .send(QueuedLine::Outcome(self.tenant, self.id, outcome));
        }
    }
}

/// Writes lines until the process stops and all are written.
pub async fn write(app: Arc<App>, mut inbox: AuditReceiver) {
    let mut lines = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            received = inbox.0.recv_many(&mut lines, BATCH) => if received == 0 { return },
            () = wait_until_idle(&app) => inbox.0.close(),
        }
        // A full batch means that more lines wait: a pause could fill the queue, and calls would be refused. A call
        // that waits for its line must not wait for a pause either.
        let pauses = lines.len() < BATCH && !app.audit.waits;
        let mut batches = group_by_tenant(lines.drain(..));
        while !batches.is_empty() {
            if let Err(error) = write_batches(&app, &mut batches).await {
                tracing::error!(
                    error = error.with_cause(),
                    tenants = batches.len(),
                    "the audit trail could not be written; trying again"
                );
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        if pauses {
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// Waits until a stop was requested and only the background work is still running.
async fn wait_until_idle(app: &App) {
    app.shutdown.cancelled().await;
    while !app.run_slots.is_idle() {
        tokio::time::sleep(EVERY).await;
    }
}

/// Lines of one tenant that are written together.
#[derive(Default)]
struct Batch {
    rows: Vec<AuditRow>,
    /// The index of each row in `rows`.
    positions: HashMap<AuditId, usize>,
    /// The outcomes of lines that were written before.
    outcomes: Vec<(AuditId, &'static str)>,
    confirms: Vec<oneshot::Sender<()>>,
}

fn group_by_tenant(lines: impl Iterator<Item = QueuedLine>) -> HashMap<TenantId, Batch> {
    let mut batches: HashMap<TenantId, Batch> = HashMap::new();
    for line in lines {
        match line {
            QueuedLine::Row(row, confirm) => {
                let batch = batches.entry(row.tenant).or_default();
                batch.positions.insert(row.id, batch.rows.len());
                batch.rows.push(*row);
                batch.confirms.extend(confirm);
            }
            QueuedLine::Outcome(tenant, id, outcome) => {
                let batch = batches.entry(tenant).or_default();
                match batch.positions.get(&id) {
                    Some(position) => batch.rows[*position].outcome = outcome,
                    None => batch.outcomes.push((id, outcome)),
                }
            }
        }
    }
    batches
}

/// Writes the batches and removes the written ones. A failure of one tenant does not affect the others.
async fn write_batches(app: &App, batches: &mut HashMap<TenantId, Batch>) -> Result<()> {
    let mut outcome = Ok(());
    for tenant in batches.keys().copied().collect::<Vec<_>>() {
        let Some(batch) = batches.remove(&tenant) else {
            continue;
        };
        match write_batch(app, tenant, &batch).await {
            Ok(()) => {
                for confirm in batch.confirms {
                    // The call may have been stopped meanwhile.
                    let _ = confirm.send(());
                }
            }
            Err(error) => {
                batches.insert(tenant, batch);
                outcome = Err(error);
            }
        }
    }
    outcome
}

async fn write_batch(app: &App, tenant: TenantId, batch: &Batch) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    if !batch.rows.is_empty() {
        store::audit::insert(&mut tx, tenant, &batch.rows).await?;
    }
    if !batch.outcomes.is_empty() {
        store::audit::record_outcomes(&mut tx, &batch.outcomes).await?;
    }
    tx.commit().await
}

/// The lines of the tenant's trail that pass the filter, before the line `before`, newest first.
pub async fn list(
    app: &App,
    admin: &Admin,
    filter: &Filter,
    before: Option<AuditId>,
    limit: i64,
) -> Result<Vec<Entry>> {
    of_tenant(&app.db, admin.tenant(), filter, before, limit).await
}

/// Like [`list`], for the operator, who may read the trail of any tenant.
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

/// The operator's own trail, newest first: changes of the key ring, tenants that were created and removed.
pub async fn of_operator(
    db: &Db,
    since: Option<time::OffsetDateTime>,
    limit: i64,
) -> Result<Vec<OperatorLine>> {
    let mut tx = db.system().await?;
    store::audit::list_of_operator(&mut tx, since, limit).await
}
