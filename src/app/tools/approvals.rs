//! Calls that wait for consent: requesting, giving and withdrawing it, and reading requests. Approved calls
//! are executed by `runs::scheduler`, through the gate like any other call.
//!
//! Every transition is one transaction with its line in the audit trail and, when it ends a request, with what
//! its requester is told ([`delivery`]): a crash leaves all of it or nothing.

pub mod client_calls;
mod creation;
mod deciding;
pub mod delivery;
pub mod execution;
pub mod listening;
mod news;
pub mod recheck;
pub mod view;

use std::sync::Arc;

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

pub use self::{
    creation::{ApprovalRequest, Requested, request, waiting_text},
    deciding::{Verdict, decide, revoke_unpermitted},
};
use self::{delivery::OutcomeMessage, view::ApprovalView};
use crate::app::{App, platform::keys::contexts};
pub use crate::store::approvals::Page;
use crate::{
    domain::{
        approval::{Approval, Approver, Choice, State, Vote, parse_code},
        error::{Error, Result, Thing},
        ids::{AgentId, ApprovalId, ServerId, TenantId, UserId},
        pack::Pack,
        principal::Principal,
    },
    store::{
        self, Tx,
        approvals::{ApprovalOwner, Transition, TransitionGuard},
        audit::AuditRow,
        hints::Hint,
    },
    vault::Context,
};

/// The power of a principal to decide, by today's packs and the newest claims that were seen of them.
pub async fn approver(app: &App, principal: &Principal) -> Result<Approver> {
    let packs = packs(app, principal.tenant).await?;
    app.accounts.newest(principal).await?.approver(&packs)
}

/// The packs that serve a tenant.
async fn packs(app: &App, tenant: TenantId) -> Result<Vec<Arc<Pack>>> {
    let tenant = app.accounts.tenant(tenant).await?;
    let library = app.library.snapshot();
    let packs = library.packs().filter(|pack| tenant.serves(pack.id()));
    Ok(packs.cloned().collect())
}

/// The same; `None` for somebody who holds no approver role.
pub(in crate::app) async fn power(app: &App, principal: &Principal) -> Result<Option<Approver>> {
    match approver(app, principal).await {
        Ok(approver) => Ok(Some(approver)),
        Err(Error::Forbidden(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The transition that a vote makes.
async fn apply_vote(
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
        by: Some((&vote.by, name)),
        window: app.config.approval_window,
    };
    let approval = store::approvals::change(tx, id, &change).await?;
    let approval = approval
        .ok_or_else(|| Error::Conflict("it was decided meanwhile; look again".to_owned()))?;
    let delivered = if to.is_open() {
        None
    } else {
        delivery::deliver(app, tx, &approval, None).await?
    };
    Ok((approval, delivered))
}

/// Takes one's own request back.
pub async fn cancel(app: &Arc<App>, principal: &Principal, id: ApprovalId) -> Result<Approval> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::approvals::lock(&mut tx, id).await?;
    let approval = store::approvals::get(&mut tx, id)
        .await?
        .filter(|found| *found.requester() == principal.user);
    let approval = approval.ok_or_else(|| unknown(&id.to_string()))?;
    if approval.state == State::Cancelled {
        return Ok(approval);
    }
    if !store::approvals::is_live(&mut tx, id).await? {
        return Err(Error::Conflict(closed_reason(&approval)));
    }
    let vote = Vote {
        approval: id,
        by: principal.user.clone(),
        choice: Choice::Reject,
        reason: None,
        at: app.clock.now(),
    };
    let (approval, delivered) = apply_vote(
        app,
        &mut tx,
        id,
        State::Cancelled,
        (&vote, &principal.display_name()),
    )
    .await?;
    audit(
        app,
        &mut tx,
        &approval,
        "approval.cancelled",
        &principal.user,
        None,
    )
    .await?;
    tx.commit().await?;
    publish_outcome(app, &approval, delivered);
    Ok(approval)
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
        return Err(Error::Conflict(format!(
            "{by} recorded what happened to {} at {at}",
            approval.code
        )));
    }
    let by = (approver.user(), approver.name());
    let recorded = store::approvals::record(&mut tx, id, happened, note, by).await?;
    let recorded = recorded.ok_or_else(|| {
        Error::Conflict(format!(
            "{}; only an unknown outcome can be recorded",
            closed_reason(&approval)
        ))
    })?;
    let delivered = delivery::deliver(app, &mut tx, &recorded, None).await?;
    let detail = if happened {
        "it was carried out"
    } else {
        "it was not carried out"
    };
    audit(
        app,
        &mut tx,
        &recorded,
        "approval.recorded",
        approver.user(),
        Some(detail),
    )
    .await?;
    tx.commit().await?;
    publish_outcome(app, &recorded, delivered);
    Ok(recorded)
}

/// A request by its id or code, for those whom it concerns: its requester, and who may decide such requests.
pub async fn find(app: &App, principal: &Principal, which: &str) -> Result<Approval> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found = match (which.parse(), parse_code(which)) {
        (Ok(id), _) => store::approvals::get(&mut tx, id).await?,
        (_, Some(code)) => store::approvals::by_code(&mut tx, &code).await?,
        _ => None,
    };
    drop(tx);
    let found = found.ok_or_else(|| unknown(which))?;
    let concerned = *found.requester() == principal.user
        || power(app, principal)
            .await?
            .is_some_and(|approver| approver.holds_role_for(&found));
    if concerned {
        Ok(found)
    } else {
        Err(unknown(which))
    }
}

/// A request as the requester and the approvers see it in a list.
pub async fn view_for_list(
    app: &App,
    principal: &Principal,
    id: ApprovalId,
) -> Result<ApprovalView> {
    let approval = find(app, principal, &id.to_string()).await?;
    view::of(app, principal, vec![approval])
        .await?
        .pop()
        .ok_or_else(|| unknown(&id.to_string()))
}

/// The same with everything that a decision needs, its arguments among it. Those of a closed request may be erased.
pub async fn get(app: &App, principal: &Principal, which: &str) -> Result<ApprovalView> {
    let approval = find(app, principal, which).await?;
    let arguments = if approval.has_arguments() {
        Some(execution::arguments(app, &approval).await?)
    } else {
        None
    };
    let mut view = view::of(app, principal, vec![approval])
        .await?
        .pop()
        .ok_or_else(|| unknown(which))?;
    view.arguments = arguments;
    Ok(view)
}

/// Which requests to list.
pub struct ApprovalFilter {
    /// Those that one may decide, instead of one's own.
    pub as_approver: bool,
    pub page: Page,
}

/// Requests, the newest first, without their arguments.
pub async fn list(
    app: &App,
    principal: &Principal,
    wanted: &ApprovalFilter,
) -> Result<Vec<ApprovalView>> {
    let power = if wanted.as_approver {
        power(app, principal).await?
    } else {
        None
    };
    let whose = match (&power, wanted.as_approver) {
        (Some(power), _) => ApprovalOwner::Approver(power),
        (None, true) => return Ok(Vec::new()),
        (None, false) => ApprovalOwner::Requester(&principal.user),
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found = store::approvals::list(&mut tx, whose, wanted.page).await?;
    drop(tx);
    view::of(app, principal, found).await
}

/// How many requests wait for this principal's decision.
pub async fn decidable_count(app: &App, principal: &Principal) -> Result<i64> {
    let Some(approver) = power(app, principal).await? else {
        return Ok(0);
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::approvals::badge_of_approver(&mut tx, &approver).await
}

/// How many of this principal's own requests are open.
pub async fn own_open_count(app: &App, principal: &Principal) -> Result<i64> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::approvals::open_of_requester(&mut tx, &principal.user).await
}

fn unknown(which: &str) -> Error {
    Error::NotFound(Thing::Approval(which.to_owned()))
}

/// The error for a caller who may not decide. A caller who may not know of the request gets `NotFound`.
fn refusal(approver: &Approver, approval: &Approval) -> Error {
    let own = approver.user() == approval.requester();
    if own && approver.holds_role_for(approval) {
        Error::Forbidden(format!(
            "nobody decides their own request here; somebody else must decide {}",
            approval.code
        ))
    } else if own {
        Error::Forbidden(format!(
            "{} is for {} to decide",
            approval.code,
            approval.consent.approvers.join(" or ")
        ))
    } else {
        unknown(&approval.code)
    }
}

/// Why nothing can be decided any more: what happened, by whom, when.
fn closed_reason(approval: &Approval) -> String {
    let code = &approval.code;
    if let (State::Pending, Some(by)) = (approval.state, &approval.withdrawn_by) {
        let by = if by == approval.requester() {
            approval.principal.display_name()
        } else {
            by.to_string()
        };
        return format!("{code} was taken back by {by}");
    }
    let by = approval.decided_by.as_ref().map(|by| name_of(approval, by));
    match (&approval.state, by, approval.decided_at) {
        (State::Pending | State::Expired, ..) => {
            format!("{code} expired at {}", time_of(approval.expires_at))
        }
        (State::Rejected, Some(by), Some(at)) => {
            format!("{code} was rejected by {by} at {}", time_of(at))
        }
        (State::Cancelled, Some(by), Some(at)) => {
            format!("{code} was taken back by {by} at {}", time_of(at))
        }
        (state, Some(by), Some(at)) => {
            format!(
                "{code} was approved by {by} at {} and is {}",
                time_of(at),
                state.as_str()
            )
        }
        (state, ..) => format!("{code} is {}", state.as_str()),
    }
}

/// What to call whoever brought a request into its state; the id of those whose name is not kept.
fn name_of(approval: &Approval, by: &UserId) -> String {
    match &approval.by_name {
        Some(name) => name.clone(),
        None if by == approval.requester() => approval.principal.display_name(),
        None => by.to_string(),
    }
}

/// To the second, in UTC.
pub fn time_of(at: OffsetDateTime) -> String {
    let at = at
        .to_offset(time::UtcOffset::UTC)
        .replace_nanosecond(0)
        .unwrap_or(at);
    at.format(&Rfc3339).unwrap_or_default()
}

/// What arguments are sealed for.
fn context(principal: &Principal, agent: &AgentId, server: &ServerId, id: ApprovalId) -> Context {
    contexts::of_approval(
        principal.tenant,
        &principal.user,
        agent.as_str(),
        server.as_str(),
        id.0,
    )
}

/// One line of the audit trail, and the news for webhooks, in the transaction of what they tell.
async fn audit(
    app: &App,
    tx: &mut Tx,
    approval: &Approval,
    action: &'static str,
    actor: &UserId,
    why: Option<&str>,
) -> Result<()> {
    let detail = match why {
        Some(why) => format!("{}: {why}", approval.code),
        None => approval.code.clone(),
    };
    let row = AuditRow {
        agent: approval.agent.to_string(),
        run: approval.run,
        server: approval.server.to_string(),
        tool: approval.tool.clone(),
        args_sha256: approval.args_sha256.to_vec(),
        outcome: approval.state.as_str(),
        detail: Some(detail),
        ..AuditRow::new(approval.tenant, app.clock.now(), actor.as_str(), action)
    };
    store::audit::insert(tx, approval.tenant, &[row]).await?;
    news::tell(app, tx, approval, action).await
}

/// After the commit: tells everybody who listens, and starts the run that an outcome has opened.
fn publish_outcome(app: &Arc<App>, approval: &Approval, delivered: Option<OutcomeMessage>) {
    if let Some(delivered) = delivered {
        delivered.publish(app, approval.tenant);
    }
    changed(app, approval);
}

/// Tells those who listen for approvals, here and on the other replicas.
fn changed(app: &App, approval: &Approval) {
    app.live.approvals_changed(approval.tenant);
    let _ = app.hints.send(Hint::Approvals {
        tenant: approval.tenant,
    });
}
