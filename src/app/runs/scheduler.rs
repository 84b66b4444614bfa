//! Assigns runs to workers: runs that this process claimed when it created them, runs that wait, and runs whose worker
//! died. [`approvals`] does the same for approved calls. `hints` tells the other replicas of changes, and a poll each
//! second finds the changes whose hint was lost.

pub mod approvals;
mod hints;

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, field::Empty};

pub(crate) use self::hints::poll_changes;
pub use self::hints::{receive_hints, send_hints};
use crate::app::{
    App,
    platform::leases,
    runs::{self, run_slots::RunSlot},
};
use domain::{
    error::{Error, ErrorCode, Result},
    ids::RunId,
    principal::FairShareKey,
    run::ClaimedRun,
};

/// The most waiting runs that are looked up at once.
const BATCH: i64 = 32;

/// The runs that this process works on, each with the token that cancels it.
#[derive(Default)]
pub struct Running(Mutex<HashMap<RunId, CancellationToken>>);

impl Running {
    fn add(&self, id: RunId) -> CancellationToken {
        let token = CancellationToken::new();
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, token.clone());
        token
    }

    fn remove(&self, id: RunId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
    }

    /// How many runs this process works on.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether this process works on a run.
    pub fn has(&self, id: RunId) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(&id)
    }

    /// Cancels a run if this process works on it.
    pub fn cancel(&self, id: RunId) {
        if let Some(token) = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id)
        {
            token.cancel();
        }
    }
}

/// A run that this process has claimed.
pub struct Claim {
    pub run: ClaimedRun,
    /// Absent when another run waits for this one: then this run works in the slot of the other.
    pub slot: Option<RunSlot>,
}

/// A function that works on a claimed run until its end. The token is cancelled when the user asks to stop.
pub type Worker = fn(Arc<App>, ClaimedRun, CancellationToken) -> BoxFuture<'static, Result<RunEnd>>;

/// The consequences of the end of a run, as its last transaction saw them.
pub struct RunEnd {
    /// The turn that waits in the conversation.
    pub next: Option<RunId>,
    /// Whether a session may wait for the end, or the tree may have ended.
    pub in_tree: bool,
}

/// Starts the runs that this process has claimed, until the process stops.
pub async fn receive_runs(app: Arc<App>, mut inbox: mpsc::UnboundedReceiver<Claim>) {
    loop {
        tokio::select! {
            Some(claim) = inbox.recv() => start(&app, claim, false),
            () = app.shutdown.cancelled() => break,
        }
    }
    // Runs that were claimed at the last moment are handed back.
    inbox.close();
    while let Some(claim) = inbox.recv().await {
        release_run(&app, &claim.run).await;
    }
}

/// Claims runs that no process works on, as long as slots are free: one tenant after the other, and in a tenant one
/// user after the other.
pub async fn claim_waiting(app: &Arc<App>) -> Result<()> {
    if app.run_slots.is_full() {
        return Ok(());
    }
    let full = app.run_slots.full_shares();
    let mut found = app
        .db
        .look(move |tx| {
            Box::pin(async move { store::runs::list_claimable(tx, BATCH, &full).await })
        })
        .await?;
    while !found.is_empty() {
        if app.run_slots.is_full() {
            app.run_slots.note_refused();
            break;
        }
        // The next run is one of the tenant, and then of the user, whose last turn is longest ago: the oldest such run.
        let next = (0..found.len()).min_by_key(|at| app.run_slots.last_turn(&found[*at].share));
        let run = found.remove(next.expect("the list is not empty"));
        // A run that cannot be read, or whose share of the slots is used up, must not hold up the others.
        if let Err(error) = claim(app, run.id, &run.share).await {
            tracing::warn!(run = %run.id, error = error.with_cause(), "a run could not be claimed; trying again");
        }
    }
    Ok(())
}

/// Claims one run and starts it, if a slot is free for its share.
async fn claim(app: &Arc<App>, id: RunId, share: &FairShareKey) -> Result<()> {
    let Some(slot) = app.run_slots.take(share) else {
        return Ok(());
    };
    let tenant = share.tenant;
    let mut tx = app.db.tenant(tenant).await?;
    let claimed =
        store::runs::claim(&mut tx, tenant, id, app.replica, app.config.run_lease).await?;
    tx.commit().await?;
    if let Some((run, stopping)) = claimed {
        if run.attempt > 1 {
            metrics::counter!("chatelaine_run_takeovers_total").increment(1);
            tracing::info!(run = %run.id, attempt = run.attempt, "taking over a run whose worker is gone");
        }
        let slot = Some(slot);
        start(app, Claim { run, slot }, stopping);
    }
    Ok(())
}

/// Works on a run in a task of its own. `stopping`: the user has asked to stop the run, so the worker only writes its
/// end.
fn start(app: &Arc<App>, claim: Claim, stopping: bool) {
    let Claim { run, slot } = claim;
    let span = span_of(&run);
    let app = app.clone();
    let tracker = app.tasks.clone();
    let work_on = async move {
        let cancel = app.running.add(run.id);
        if stopping {
            cancel.cancel();
        }
        let work = (app.worker)(app.clone(), run.clone(), cancel.clone());
        let worked = tokio::select! {
            worked = AssertUnwindSafe(work).catch_unwind() => worked,
            _ = hold(&app, &run, &cancel) => Ok(Err(Error::conflict(ErrorCode::Conflict, "the lease was lost"))),
        };
        app.running.remove(run.id);
        drop(slot);
        match worked {
            Ok(Ok(end)) => {
                if let Some(next) = end.next {
                    start_next(&app, next, &run.principal.fair_share_key()).await;
                }
                if end.in_tree {
                    runs::ending::finalize(&app, run.tenant, run.id).await;
                }
            }
            Ok(Err(Error::Conflict(_, reason))) => {
                tracing::info!(reason, "a run is left to another worker");
                release_run(&app, &run).await;
            }
            Ok(Err(error)) => {
                tracing::error!(error = ?error, "a run broke off; it is taken up again");
            }
            Err(_) => tracing::error!("a run panicked; it is taken up again when its lease ends"),
        }
        start_refused(&app).await;
    };
    tracker.spawn(work_on.instrument(span));
}

/// What each line of the log says that belongs to the run. Its level is that of errors, so that a filter which keeps
/// only warnings keeps it.
fn span_of(run: &ClaimedRun) -> Span {
    let span = tracing::error_span!(
        parent: None,
        "run",
        tenant = %run.tenant,
        user = run.principal.pseudonym(),
        agent = %run.agent,
        conversation = %run.conversation,
        run = %run.id,
        request = run.request.as_deref(),
        attempt = run.attempt,
        status = Empty,
        trace_id = Empty,
        span_id = Empty,
    );
    telemetry::join(&span, run.trace.as_ref());
    span
}

/// Renews the lease until it is lost, and cancels the run when its row says so.
async fn hold(app: &App, run: &ClaimedRun, cancel: &CancellationToken) -> leases::LeaseEnd {
    leases::renew_until_lost(app, "run", || async move {
        let mut tx = app.db.tenant(run.tenant).await?;
        let cancelled = store::runs::heartbeat(&mut tx, run, app.config.run_lease).await?;
        tx.commit().await?;
        if cancelled {
            cancel.cancel();
        }
        Ok(())
    })
    .await
}

/// Starts the turn that waited for the end of another one.
async fn start_next(app: &Arc<App>, next: RunId, share: &FairShareKey) {
    if app.shutdown.is_cancelled() {
        return;
    }
    if let Err(error) = claim(app, next, share).await {
        tracing::warn!(
            error = error.with_cause(),
            "the next turn is not started at once; it is found within a second"
        );
    }
}

/// Starts runs that were refused a slot, since one is free now.
async fn start_refused(app: &Arc<App>) {
    if app.shutdown.is_cancelled() || !app.run_slots.take_refused() {
        return;
    }
    if let Err(error) = claim_waiting(app).await {
        tracing::warn!(
            error = error.with_cause(),
            "waiting runs are not started at once; they are found within a second"
        );
    }
}

async fn release_run(app: &App, run: &ClaimedRun) {
    let released = async {
        let mut tx = app.db.tenant(run.tenant).await?;
        store::runs::release(&mut tx, run).await?;
        tx.commit().await
    };
    if let Err(error) = released.await {
        tracing::warn!(run = %run.id, error = error.with_cause(), "a run could not be handed back; it is taken up when its lease ends");
    }
}
