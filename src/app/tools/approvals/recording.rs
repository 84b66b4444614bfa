//! A vote on a request, and a note about a call that ended without an answer.

use std::sync::Arc;

use super::{
    AuditedStep, audit, closed_reason,
    delivery::{self, OutcomeMessage, REASON},
    name_of, publish_outcome, refusal, time_of, unknown,
};
use crate::{
    app::App,
    domain::{
        approval::{Approval, Approver, State, Vote},
        error::{Error, ErrorCode, Result},
        hidden::one_line,
        ids::ApprovalId,
    },
    store::{
        self, Tx,
        approvals::{Transition, TransitionGuard},
    },
};

/// The transition that a vote makes.
pub(super) async fn apply_vote(
    app: &Arc<App>,
    tx: &mut Tx,
    id: ApprovalId,
    to: State,
    (vote, name): (&Vote, &str),
) -> Result<(Approval, Option<OutcomeMessage>)> {
    let change = Transition {
        from: State::Pending,
        to,
        when: TransitionGuard::Locked,
        reason: vote.reason.as_deref(),
        by: Some((vote.by(), name)),
        window: app.config.approval_window,
    };
    let approval = store::approvals::change(tx, id, &change).await?;
    let approval = approval.ok_or_else(|| {
        Error::conflict(
            ErrorCode::AlreadyDecided,
            "it was decided meanwhile; look again",
        )
    })?;
    let delivered = if to.is_open() {
        None
    } else {
        delivery::deliver(app, tx, &approval, None).await?
    };
    Ok((approval, delivered))
}

/// Notes what really happened to a call of unknown outcome. It changes no state and runs nothing.
pub async fn record(
    app: &Arc<App>,
    approver: &Approver,
    id: ApprovalId,
    happened: bool,
    note: Option<&str>,
) -> Result<Approval> {
    let mut tx = app.db.tenant(approver.tenant()).await?;
    store::approvals::lock(&mut tx, id).await?;
    let approval = store::approvals::get(&mut tx, id)
        .await?
        .ok_or_else(|| unknown(&id.to_string()))?;
    if !approver.holds_role_for(&approval) {
        return Err(refusal(approver, &approval));
    }
    if let Some(recorded) = &approval.recorded {
        if recorded.by == *approver.user() && recorded.happened == happened {
            return Ok(approval);
        }
        let (by, at) = (name_of(&approval, &recorded.by), time_of(recorded.at));
        return Err(Error::conflict(
            ErrorCode::OutcomeKnown,
            format!("{by} recorded what happened to {} at {at}", approval.code),
        ));
    }
    let note = note.map(|note| one_line(note, REASON));
    let user = approver.user();
    let recorded = store::approvals::record(&mut tx, id, happened, note.as_deref(), user).await?;
    let recorded = recorded.ok_or_else(|| {
        Error::conflict(
            ErrorCode::OutcomeKnown,
            format!(
                "{}; only an unknown outcome can be recorded",
                closed_reason(&approval)
            ),
        )
    })?;
    let delivered = delivery::deliver(app, &mut tx, &recorded, None).await?;
    let detail = if happened {
        "it was carried out"
    } else {
        "it was not carried out"
    };
    let step = AuditedStep::new("approval.recorded", approver.user()).because(Some(detail));
    audit(app, &mut tx, &recorded, step).await?;
    tx.commit().await?;
    publish_outcome(app, &recorded, delivered);
    Ok(recorded)
}
