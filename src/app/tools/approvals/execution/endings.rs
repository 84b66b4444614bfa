//! The ends of a request that is not carried out: withdrawn, expired, given up.

use std::sync::Arc;

use super::{Claimed, PAUSE, due, held};
use crate::{
    app::tools::approvals::{App, AuditedStep, audit, delivery, name_of, publish_outcome},
    domain::{
        approval::State,
        audit::SYSTEM,
        error::Result,
        ids::{ApprovalId, TenantId, UserId},
    },
    store::{
        self,
        approvals::{Transition, TransitionGuard},
    },
};

/// Ends a request whose call is not the approved one any more; the call is not made.
pub async fn revoke(app: &Arc<App>, approval: &Claimed, reason: &str) -> Result<()> {
    settle(
        app,
        approval.tenant,
        approval.id,
        held(approval, State::Revoked, Some(reason)),
        "approval.revoked",
    )
    .await?;
    Ok(())
}

/// Postpones a call that cannot be sent now. It was not sent, so it is tried again a little later.
pub async fn postpone(app: &App, approval: &Claimed) -> Result<()> {
    let mut tx = app.db.tenant(approval.tenant).await?;
    store::approvals::release(&mut tx, approval, PAUSE).await?;
    tx.commit().await
}

/// Ends a request that was taken back; it could not be approved from that moment on anyhow. `false` when it is
/// another's, or over.
pub async fn withdraw(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<bool> {
    let mut tx = app.db.tenant(tenant).await?;
    store::approvals::lock(&mut tx, id).await?;
    let approval = store::approvals::get(&mut tx, id).await?;
    let approval = approval.filter(|it| it.state == State::Pending);
    let withdrawn = approval.and_then(|it| it.withdrawn_by.clone().map(|by| (it, by)));
    let Some((approval, by)) = withdrawn else {
        return Ok(false);
    };
    // With its run it is taken back; a session that ended revokes it.
    let (to, action) = match approval.withdrawn_cause {
        None => (State::Cancelled, "approval.cancelled"),
        Some(_) => (State::Revoked, "approval.revoked"),
    };
    let name = name_of(&approval, &by);
    let change = Transition {
        by: Some((&by, name.as_str())).filter(|_| to == State::Cancelled),
        reason: Some(approval.withdrawn_reason()),
        ..due(State::Pending, to, TransitionGuard::Locked)
    };
    let Some(ended) = store::approvals::change(&mut tx, id, &change).await? else {
        return Ok(false);
    };
    let delivered = delivery::deliver(app, &mut tx, &ended, None).await?;
    let step = AuditedStep::new(action, &by).because(change.reason);
    audit(app, &mut tx, &ended, step).await?;
    tx.commit().await?;
    publish_outcome(app, &ended, delivered);
    Ok(true)
}

/// Records that a request's time is over; it could not be approved from that moment on anyhow.
pub async fn expire(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<bool> {
    settle(
        app,
        tenant,
        id,
        due(State::Pending, State::Expired, TransitionGuard::Overdue),
        "approval.expired",
    )
    .await
}

/// Ends an approved request that could not be begun in time; `false` when there is time left.
pub async fn lapse(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<bool> {
    settle(
        app,
        tenant,
        id,
        due(State::Approved, State::Lapsed, TransitionGuard::Stale),
        "approval.lapsed",
    )
    .await
}

/// Ends a request whose executor is dead. The call may have been sent, so it is never sent again.
pub async fn give_up(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<bool> {
    settle(
        app,
        tenant,
        id,
        due(
            State::Executing,
            State::OutcomeUnknown,
            TransitionGuard::Lost,
        ),
        "approval.executed",
    )
    .await
}

async fn settle(
    app: &Arc<App>,
    tenant: TenantId,
    id: ApprovalId,
    change: Transition<'_>,
    action: &'static str,
) -> Result<bool> {
    let mut tx = app.db.tenant(tenant).await?;
    let Some(ended) = store::approvals::change(&mut tx, id, &change).await? else {
        return Ok(false);
    };
    let delivered = delivery::deliver(app, &mut tx, &ended, None).await?;
    let program = UserId(SYSTEM.into());
    let step = AuditedStep::new(action, &program).because(change.reason);
    audit(app, &mut tx, &ended, step).await?;
    tx.commit().await?;
    publish_outcome(app, &ended, delivered);
    Ok(true)
}
