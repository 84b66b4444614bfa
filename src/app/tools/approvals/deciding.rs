//! Deciding about requests, and revoking those that are not what would run any more.

use std::{sync::Arc, time::Duration};

use super::{
    App, AuditedStep, apply_vote, audit, closed_reason,
    delivery::{self, REASON},
    packs, publish_outcome, recheck, refusal, standing, time_of, unknown,
};
use crate::{
    domain::{
        approval::{Approval, Approver, Choice, State, Vote},
        audit::SYSTEM,
        canonical::Hash,
        error::{Error, ErrorCode, Result},
        hidden::one_line,
        ids::{ApprovalId, TenantId, UserId},
        lookalike::{are_lookalikes, spell_out},
    },
    store::{
        self, Tx,
        approvals::{ApprovalOwner, Page, Transition, TransitionGuard},
    },
};

/// What somebody decides about a request.
pub struct Verdict {
    pub choice: Choice,
    pub reason: Option<String>,
    /// Of the arguments that they saw.
    pub args_sha256: Hash,
}

/// Decides. The first look only locks the row: what counts is read in statements of their own after it, because
/// the lock may have been waited for past the expiry.
pub async fn decide(
    app: &Arc<App>,
    approver: &Approver,
    id: ApprovalId,
    verdict: &Verdict,
) -> Result<Approval> {
    let obstacle = obstacle(app, approver, id, verdict).await?;
    let packs = packs(app, approver.tenant()).await?;
    let mut tx = app.db.tenant(approver.tenant()).await?;
    let approval = lock(&mut tx, approver, id, verdict).await?;
    let votes = store::approvals::votes(&mut tx, &[id]).await?;
    let mine = votes.iter().find(|vote| vote.by() == approver.user());
    let counted = standing::counted_votes(&mut tx, &packs, &[&approval], &votes).await?;
    // An approval that does not count any more can be given again, and taken back.
    let is_void = |vote: &Vote| {
        approval.state == State::Pending && !counted.iter().any(|other| other.by() == vote.by())
    };
    if let Some(mine) = mine.filter(|mine| !is_void(mine)) {
        return repeat_vote(approval, mine, verdict);
    }
    if !store::approvals::is_live(&mut tx, id).await? {
        return Err(Error::conflict(
            ErrorCode::AlreadyDecided,
            closed_reason(&approval),
        ));
    }
    if let Some(reason) = obstacle {
        let ended = revoke(app, tx, &approval, &reason).await?;
        return Err(Error::conflict(
            ErrorCode::ApprovalRevoked,
            format!(
                "{} cannot be approved any more and was revoked: {reason}",
                ended.code
            ),
        ));
    }
    let approver = &standing::approver_now(&mut tx, &packs, approver).await?;
    if !approver.may_decide(&approval) {
        return Err(refusal(approver, &approval));
    }
    if verdict.choice == Choice::Approve {
        refuse_lookalike(approver, &approval, &counted)?;
    }
    let vote = Vote {
        approval: id,
        voter: approver.principal().clone(),
        choice: verdict.choice,
        reason: verdict.reason.as_deref().map(|said| one_line(said, REASON)),
        at: app.clock.now(),
    };
    store::approvals::vote(&mut tx, approver.tenant(), &vote).await?;
    let enough = standing::are_enough(counted.len() + 1, &approval);
    let (to, action) = outcome_of(verdict.choice, enough);
    let (approval, delivered) = match to {
        Some(to) => apply_vote(app, &mut tx, id, to, (&vote, approver.name())).await?,
        None => (get(&mut tx, id, &approval.code).await?, None),
    };
    let (by, reason) = (approver.user(), vote.reason.as_deref());
    let step = AuditedStep::new(action, by).because(reason);
    audit(app, &mut tx, &approval, step).await?;
    tx.commit().await?;
    publish_outcome(app, &approval, delivered);
    if approval.state == State::Approved {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((approval.tenant, approval.id));
    }
    Ok(approval)
}

/// The state after a vote, if the vote changes it, and the name of the vote in the audit trail.
fn outcome_of(choice: Choice, enough: bool) -> (Option<State>, &'static str) {
    match choice {
        Choice::Reject => (Some(State::Rejected), "approval.rejected"),
        Choice::Approve => (enough.then_some(State::Approved), "approval.approved"),
    }
}

async fn get(tx: &mut Tx, id: ApprovalId, name: &str) -> Result<Approval> {
    let approval = store::approvals::get(tx, id).await?;
    approval.ok_or_else(|| unknown(name))
}

/// Locks the row and reads it. Refuses who may not decide, and who saw other arguments.
async fn lock(
    tx: &mut Tx,
    approver: &Approver,
    id: ApprovalId,
    verdict: &Verdict,
) -> Result<Approval> {
    store::approvals::lock(tx, id).await?;
    let approval = get(tx, id, &id.to_string()).await?;
    if !approver.may_decide(&approval) {
        return Err(refusal(approver, &approval));
    }
    if verdict.args_sha256 != approval.args_sha256 {
        return Err(Error::conflict(
            ErrorCode::ArgumentsChanged,
            format!(
                "these are not the arguments of {}; look at it again and decide anew",
                approval.code
            ),
        ));
    }
    Ok(approval)
}

/// The same vote again changes nothing; another vote is refused.
fn repeat_vote(approval: Approval, mine: &Vote, verdict: &Verdict) -> Result<Approval> {
    if mine.choice == verdict.choice {
        return Ok(approval);
    }
    Err(Error::conflict(
        ErrorCode::AlreadyVoted,
        format!(
            "you {} {} at {}",
            mine.choice.done(),
            approval.code,
            time_of(mine.at)
        ),
    ))
}

/// Why a request must not be approved although it is pending. Asked before the row is locked.
async fn obstacle(
    app: &Arc<App>,
    approver: &Approver,
    id: ApprovalId,
    verdict: &Verdict,
) -> Result<Option<String>> {
    if verdict.choice == Choice::Reject {
        return Ok(None);
    }
    let mut tx = app.db.tenant(approver.tenant()).await?;
    let approval = store::approvals::get(&mut tx, id).await?;
    drop(tx);
    match approval
        .filter(|approval| approval.state == State::Pending && approver.may_decide(approval))
    {
        Some(approval) => recheck::obstacle(app, &approval).await,
        None => Ok(None),
    }
}

/// Refuses an approval that would make two of one person: of somebody whose id looks like that of an approver who has
/// voted, or of a requester who may not approve their own request.
fn refuse_lookalike(approver: &Approver, approval: &Approval, counted: &[Vote]) -> Result<()> {
    let me = approver.user().as_str();
    let requester = approval.requester().as_str();
    let (other, did) = if !approval.consent.self_approval && are_lookalikes(me, requester) {
        (requester, "asked for it")
    } else {
        let same = counted
            .iter()
            .find(|vote| are_lookalikes(me, vote.by().as_str()));
        let Some(same) = same else { return Ok(()) };
        (same.by().as_str(), "has approved it already")
    };
    Err(Error::conflict(
        ErrorCode::LookalikeUser,
        format!(
            "your user id {} looks like {}, whose owner {did}, so {} wants the approval of somebody else",
            spell_out(me),
            spell_out(other),
            approval.code
        ),
    ))
}

/// Revokes what waits for a user and is not theirs to ask any more, by their newest claims.
pub async fn revoke_unpermitted(app: &Arc<App>, tenant: TenantId, user: &UserId) -> Result<()> {
    let page = Page {
        state: Some(State::Pending),
        limit: i64::from(app.config.approvals_per_tenant),
        ..Page::default()
    };
    let mut tx = app.db.tenant(tenant).await?;
    let waiting = store::approvals::list(&mut tx, ApprovalOwner::Requester(user), page).await?;
    drop(tx);
    for approval in waiting {
        let Err(reason) = recheck::permitted_server(app, &approval).await? else {
            continue;
        };
        let mut tx = app.db.tenant(tenant).await?;
        store::approvals::lock(&mut tx, approval.id).await?;
        match revoke(app, tx, &approval, &reason).await {
            // It was decided meanwhile; whoever executes it looks again.
            Ok(_) | Err(Error::Conflict(..)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ends a pending request, locked in this transaction, that is not what would run any more.
async fn revoke(app: &Arc<App>, mut tx: Tx, approval: &Approval, reason: &str) -> Result<Approval> {
    let (from, to, when) = (State::Pending, State::Revoked, TransitionGuard::Locked);
    let change = Transition {
        from,
        to,
        when,
        reason: Some(reason),
        by: None,
        window: Duration::ZERO,
    };
    let ended = store::approvals::change(&mut tx, approval.id, &change).await?;
    let ended =
        ended.ok_or_else(|| Error::conflict(ErrorCode::AlreadyDecided, closed_reason(approval)))?;
    let delivered = delivery::deliver(app, &mut tx, &ended, None).await?;
    let program = UserId(SYSTEM.into());
    let step = AuditedStep::new("approval.revoked", &program).because(Some(reason));
    audit(app, &mut tx, &ended, step).await?;
    tx.commit().await?;
    publish_outcome(app, &ended, delivered);
    Ok(ended)
}
