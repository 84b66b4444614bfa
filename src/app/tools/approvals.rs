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
mod lists;
mod news;
pub mod recheck;
mod recording;
mod standing;
pub mod view;

use std::sync::Arc;

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

pub use self::{
    creation::{ApprovalRequest, Requested, request, waiting_text},
    deciding::{Verdict, decide, revoke_unpermitted},
    lists::{
        ApprovalFilter, decidable_count, find, get, last_shown, list, own_open_count,
        remember_shown, view_for_list,
    },
    recording::record,
};
use self::{delivery::OutcomeMessage, recording::apply_vote};
pub use crate::store::approvals::Page;
use crate::{
    app::{App, platform::keys::contexts},
    domain::{
        approval::{Approval, Approver, Choice, State, Vote},
        error::{Error, ErrorCode, Result, Thing},
        hidden::clean_name,
        ids::{AgentId, ApprovalId, ServerId, TenantId, UserId},
        pack::Pack,
        principal::Principal,
    },
    store::{self, Tx, audit::AuditRow, hints::Hint},
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
        return Err(Error::conflict(
            ErrorCode::AlreadyDecided,
            closed_reason(&approval),
        ));
    }
    let vote = Vote {
        approval: id,
        voter: principal.clone(),
        choice: Choice::Reject,
        reason: None,
        at: app.clock.now(),
    };
    let name = principal.display_name();
    let vote = (&vote, name.as_str());
    let (approval, delivered) = apply_vote(app, &mut tx, id, State::Cancelled, vote).await?;
    let step = AuditedStep::new("approval.cancelled", &principal.user);
    audit(app, &mut tx, &approval, step).await?;
    tx.commit().await?;
    publish_outcome(app, &approval, delivered);
    Ok(approval)
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
            approval.requester_name.clone()
        } else {
            by.display_name()
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
        Some(name) if approval.decided_by.as_ref() == Some(by) => {
            clean_name(name).unwrap_or_else(|| by.display_name())
        }
        _ if by == approval.requester() => approval.requester_name.clone(),
        _ => by.display_name(),
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

/// What happened to a request, for the audit trail.
struct AuditedStep<'a> {
    action: &'static str,
    actor: &'a UserId,
    why: Option<&'a str>,
}

impl<'a> AuditedStep<'a> {
    fn new(action: &'static str, actor: &'a UserId) -> Self {
        Self {
            action,
            actor,
            why: None,
        }
    }

    fn because(mut self, why: Option<&'a str>) -> Self {
        self.why = why;
        self
    }
}

/// One line of the audit trail, and the news for webhooks, in the transaction of what they tell.
async fn audit(
    app: &App,
    tx: &mut Tx,
    approval: &Approval,
    AuditedStep { action, actor, why }: AuditedStep<'_>,
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
