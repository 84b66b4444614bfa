//! The audit trail: reading it, and writing that of calls which have no row of their own: calls of MCP clients, refused
//! calls, prompts and resources (everything else is written where it is done, in the same transaction). The line of a
//! call is queued before the call is sent and written within 100 ms, in batches; how the call ended follows it. When the
//! queue is full the call is refused, never a line dropped. A killed process loses at most the lines of its last 100 ms,
//! and none with `CHATELAINE_AUDIT_WAIT`: then a call waits until its line is written.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

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

const QUEUE: usize = 16_384;
const BATCH: usize = 2048;
const EVERY: Duration = Duration::from_millis(100);

/// The sending end of the audit queue.
pub struct AuditQueue {
    sender: mpsc::Sender<QueuedLine>,
    /// Calls wait until their lines are written.
    waits: bool,
}

/// The receiving end of the audit queue.
pub struct AuditReceiver(mpsc::Receiver<QueuedLine>);

/// What waits to be written.
enum QueuedLine {
    Row(Box<AuditRow>, Option<oneshot::Sender<()>>),
    Outcome(TenantId, AuditId, &'static str),
}

/// The line of a call, which is queued, and a reserved place for how the call ends. Dropped without [`Line::end`],
/// because the call was stopped, the line stays as it was queued.
pub struct Line<'a> {
    place: mpsc::Permit<'a, QueuedLine>,
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

    /// Queues the line of a call that is about to be sent; `Busy` when the database cannot keep up.
    pub fn open(&self, row: AuditRow) -> Result<Line<'_>> {
        let mut places = self.sender.try_reserve_many(2).map_err(|_| full())?;
        let (Some(first), Some(place)) = (places.next(), places.next()) else {
            return Err(full());
        };
        let (tenant, id, outcome) = (row.tenant, row.id, row.outcome);
        let (confirm, written) = if self.waits {
            let (confirm, written) = oneshot::channel();
            (Some(confirm), Some(written))
        } else {
            (None, None)
        };
        first.send(QueuedLine::Row(Box::new(row), confirm));
        Ok(Line {
            place,
            tenant,
            id,
            outcome,
            written,
        })
    }

    /// Queues the line of a call that is not made. When the queue is full, the line is dropped.
    pub fn record(&self, row: AuditRow) {
        let _ = self.sender.try_send(QueuedLine::Row(Box::new(row), None));
    }
}

fn full() -> Error {
    Error::Busy {
        reason: "the audit trail cannot be written fast enough; try again".to_owned(),
        retry_after: Duration::from_secs(1),
    }
}

impl Line<'_> {
    /// Completes when the line is written, where the settings say that a call waits for that.
    pub async fn wait_until_written(&mut self) -> Result<()> {
        match self.written.take() {
            Some(written) => written.await.map_err(|_| full()),
            None => Ok(()),
        }
    }

    /// Queues how the call ended.
    pub fn end(self, outcome: &'static str) {
        if outcome != self.outcome {
            self.place
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
            () = finished(&app) => inbox.0.close(),
        }
        // More lines wait already: without a pause, or a busy process would refuse calls because the queue
        // is full. A call that waits for its line is not kept waiting either.
        let pauses = lines.len() < BATCH && !app.audit.waits;
        let mut batches = by_tenant(lines.drain(..));
        while !batches.is_empty() {
            if let Err(error) = write_batches(&app, &mut batches).await {
                tracing::error!(%error, tenants = batches.len(), "the audit trail could not be written; trying again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        if pauses {
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

/// Lines of one tenant that are written together.
#[derive(Default)]
struct Batch {
    rows: Vec<AuditRow>,
    /// Where each row is in `rows`.
    places: HashMap<AuditId, usize>,
    /// Of lines that were written before.
    outcomes: Vec<(AuditId, &'static str)>,
    confirms: Vec<oneshot::Sender<()>>,
}

fn by_tenant(lines: impl Iterator<Item = QueuedLine>) -> HashMap<TenantId, Batch> {
    let mut batches: HashMap<TenantId, Batch> = HashMap::new();
    for line in lines {
        match line {
            QueuedLine::Row(row, confirm) => {
                let batch = batches.entry(row.tenant).or_default();
                batch.places.insert(row.id, batch.rows.len());
                batch.rows.push(*row);
                batch.confirms.extend(confirm);
            }
            QueuedLine::Outcome(tenant, id, outcome) => {
                let batch = batches.entry(tenant).or_default();
                match batch.places.get(&id) {
                    Some(place) => batch.rows[*place].outcome = outcome,
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
        store::audit::end_many(&mut tx, &batch.outcomes).await?;
    }
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
