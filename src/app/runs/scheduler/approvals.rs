//! Executes approved calls. A sweep each second records overdue requests as expired, executes approved requests that no
//! process executes, and gives requests whose process died an unknown outcome. Whether a request may be approved never
//! depends on the sweep.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast::error::RecvError, mpsc};
use tracing::{Instrument as _, field::Empty};

use crate::app::{
    App,
    platform::polls::{POLL, ticks},
    tools::approvals::{self, execution},
};
use domain::{
    approval::State,
    error::{Error, Result},
    ids::{ApprovalId, TenantId},
};
use store::approvals::LastChange;

/// Approved calls of this process that are under way at once.
const MAX_PARALLEL_EXECUTIONS: usize = 32;
/// Requests that a sweep looks up at once.
const BATCH: i64 = 64;

/// Executes requests that were approved in this process at once, and sweeps each second, until the process stops.
pub async fn receive_due(
    app: Arc<App>,
    mut inbox: mpsc::UnboundedReceiver<(TenantId, ApprovalId)>,
) {
    let slots = Arc::new(Semaphore::new(MAX_PARALLEL_EXECUTIONS));
    let mut poll = ticks(&app, POLL);
    loop {
        tokio::select! {
            Some((tenant, id, slot)) = receive_with_slot(&mut inbox, &slots) => {
                start(&app, tenant, id, slot);
            }
            _ = poll.tick() => {
                if let Err(error) = sweep(&app, &slots).await {
                    let error = error.with_cause();
                    tracing::warn!(error, "cannot look for approvals; trying again");
                }
            }
            () = app.shutdown.cancelled() => return,
        }
    }
}

/// The next request that was approved in this process, once there is a slot for it. Nothing is lost when this is dropped.
async fn receive_with_slot(
    inbox: &mut mpsc::UnboundedReceiver<(TenantId, ApprovalId)>,
    slots: &Arc<Semaphore>,
) -> Option<(TenantId, ApprovalId, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.ok()?;
    let (tenant, id) = inbox.recv().await?;
    Some((tenant, id, slot))
}

/// Takes the next step of each request for which one is due: its state and the time say which step.
async fn sweep(app: &Arc<App>, slots: &Arc<Semaphore>) -> Result<()> {
    let due = app
        .db
        .look(|tx| Box::pin(store::approvals::list_due(tx, BATCH)));
    let due = due.await?;
    for (tenant, id, state) in due {
        let done = match state {
            State::Pending => match execution::withdraw(app, tenant, id).await {
                Ok(false) => execution::expire(app, tenant, id).await,
                withdrawn => withdrawn,
            },
            State::Executing => execution::give_up(app, tenant, id).await,
            _ => match execution::lapse(app, tenant, id).await {
                Ok(false) => {
                    if let Ok(slot) = slots.clone().try_acquire_owned() {
                        start(app, tenant, id, slot);
                    }
                    Ok(false)
                }
                lapsed => lapsed,
            },
        };
        // A request that cannot be written must not hold up the others.
        if let Err(error) = done {
            tracing::warn!(approval = %id, error = error.with_cause(), "a request for approval could not be brought on; trying again");
        }
    }
    Ok(())
}

/// Executes a request in a task of its own, unless another process executes it.
fn start(app: &Arc<App>, tenant: TenantId, id: ApprovalId, slot: OwnedSemaphorePermit) {
    // The run that asked for the call is known when the request is claimed.
    let span = tracing::error_span!(
        parent: None, "approval", %tenant, conversation = Empty, run = Empty, approval = %id,
    );
    let app = app.clone();
    let tracker = app.tasks.clone();
    let execute = async move {
        let _slot = slot;
        match AssertUnwindSafe(Box::pin(execution::execute(&app, tenant, id)))
            .catch_unwind()
            .await
        {
            Ok(Ok(())) => {}
            Ok(Err(Error::Conflict(_, reason))) => {
                tracing::info!(reason, "an approval is left to another");
            }
            Ok(Err(error)) => {
                let error = error.with_cause();
                tracing::error!(error, "an approved call broke off; it is never made twice");
            }
            Err(_) => tracing::error!("an approved call panicked; it is never made twice"),
        }
    };
    tracker.spawn(execute.instrument(span));
}

/// Revokes open requests of users whose claims no longer permit them, until the process stops. A request that is missed
/// here is checked again when an approver decides about it, and before its call is sent.
pub async fn follow_user_claims(app: Arc<App>) {
    let mut changes = app.accounts.watch_claims();
    loop {
        let changed = tokio::select! {
            changed = changes.recv() => changed,
            () = app.shutdown.cancelled() => return,
        };
        let (tenant, user) = match changed {
            Ok(changed) => changed,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        if let Err(error) = approvals::revoke_unpermitted(&app, tenant, &user).await {
            let error = error.with_cause();
            tracing::warn!(
                error,
                "what waits for a user whose claims changed was not looked at; it is before it is sent"
            );
        }
    }
}

/// Notifies the listeners of tenants whose approvals have changed since the last poll (`known`). Hints are faster. One
/// query serves all tenants.
pub(crate) async fn poll_changes(
    app: &Arc<App>,
    known: &mut HashMap<TenantId, LastChange>,
) -> Result<()> {
    let watched = app.live.watched_approvals();
    if watched.is_empty() {
        return Ok(());
    }
    let now = app.db.look(move |tx| {
        Box::pin(async move { store::approvals::list_last_changes(tx, &watched).await })
    });
    let now = now.await?;
    for (tenant, now) in now {
        if known.insert(tenant, now) != Some(now) {
            app.live.notify_approval_listeners(tenant);
        }
    }
    Ok(())
}
