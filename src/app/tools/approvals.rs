//! Calls that wait for consent. A request is made ([`request`]), decided ([`decide`]), executed through the gate
//! ([`execution`]) and its outcome delivered ([`delivery`]). `runs::scheduler` says when a request is executed.
//!
//! Every transition is one transaction together with its audit line, its event for webhooks and, when it ends a
//! request, the delivery of the outcome: a crash leaves all of it or nothing.

pub mod client_calls;
mod confirmation;
mod decision;
pub mod delivery;
pub mod execution;
pub mod listening;
pub mod notices;
mod request;
pub mod view;

use std::sync::Arc;

use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tracing::Span;

use self::delivery::OutcomeMessage;
pub use self::{
    confirmation::{
        InterruptAnswer, InterruptResponse, PreparedAnswers, WrittenAnswers, answer_interrupts,
        answered_twice, await_end, confirm_for_client, prepare_answers, read_answer,
    },
    decision::{Ballot, cancel, decide, record, revoke_unpermitted},
    request::{ApprovalRequest, Requested, needs_text, request, waiting_text},
    view::{
        ApprovalFilter, LastSeen, decidable_count, find, get, last_shown, list, own_open_count,
        remember_shown, view_for_list,
    },
};
use crate::app::{App, platform::keys::contexts, servers::registry};
use domain::{
    approval::{Approval, Approver, Choice, Kind, State},
    canonical::Hex,
    error::{Error, Missing, Result},
    hidden::clean_name,
    ids::{AgentId, ApprovalId, ServerId, TenantId, UserId},
    pack::Pack,
    principal::Principal,
    trace_context::TRACES,
};
pub use store::approvals::{ApprovalSelection, Waiting};
use store::{Tx, audit::AuditRow, hints::Hint, vault::Context};

/// The roles with which a principal may decide, from today's packs and their newest claims. `Forbidden` without such a
/// role.
pub async fn approver(app: &App, principal: &Principal) -> Result<Approver> {
    let packs = served_packs(app, principal.tenant).await?;
    app.accounts.newest(principal).await?.approver(&packs)
}

/// The right of a principal to decide this request. A confirmation needs no role, but its requester.
pub async fn decider(app: &App, principal: &Principal, approval: &Approval) -> Result<Approver> {
    let packs = served_packs(app, principal.tenant).await?;
    let newest = app.accounts.newest(principal).await?;
    newest.decider(&packs, approval)
}

/// The packs that serve a tenant, with what its admins set for their servers.
async fn served_packs(app: &App, tenant: TenantId) -> Result<Vec<Arc<Pack>>> {
    let tenant = app.accounts.tenant(tenant).await?;
    let all = app.packs.snapshot();
    let mut served = Vec::new();
    for pack in all.packs().filter(|pack| tenant.serves(pack.id())) {
        served.push(registry::pack_for(app, tenant.id, pack).await?);
    }
    Ok(served)
}

/// Like [`approver`]; `None` for a principal without an approver role.
pub(in crate::app) async fn approver_if_any(
    app: &App,
    principal: &Principal,
) -> Result<Option<Approver>> {
    match approver(app, principal).await {
        Ok(approver) => Ok(Some(approver)),
        Err(Error::Forbidden(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn unknown_request(which: &str) -> Error {
    Error::NotFound(Missing::Approval(which.to_owned()))
}

/// The error for a caller who may not decide. It is `NotFound` for a caller who may not know of the request.
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
            approval.rule.approvers.join(" or ")
        ))
    } else {
        unknown_request(&approval.code)
    }
}

/// Says why a request can no longer be decided: what happened, by whom, and when.
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
    let kind = approval.rule.kind();
    match (&approval.state, by, approval.decided_at) {
        (State::Pending | State::Expired, ..) => {
            format!("{code} expired at {}", time_of(approval.expires_at))
        }
        (State::Rejected, Some(by), Some(at)) => {
            let rejected = Choice::Reject.done(kind);
            format!("{code} was {rejected} by {by} at {}", time_of(at))
        }
        (State::Cancelled, Some(by), Some(at)) => {
            format!("{code} was taken back by {by} at {}", time_of(at))
        }
        (state, Some(by), Some(at)) => {
            format!(
                "{code} was {} by {by} at {} and is {}",
                Choice::Approve.done(kind),
                time_of(at),
                state.into_str()
            )
        }
        (state, ..) => format!("{code} is {}", state.into_str()),
    }
}

/// The name of the person who brought a request into its state, or their id if no name is stored.
fn name_of(approval: &Approval, by: &UserId) -> String {
    match &approval.by_name {
        Some(name) if approval.decided_by.as_ref() == Some(by) => {
            clean_name(name).unwrap_or_else(|| by.display_name())
        }
        _ if by == approval.requester() => approval.requester_name.clone(),
        _ => by.display_name(),
    }
}

/// A time in UTC, to the second.
pub fn time_of(at: OffsetDateTime) -> String {
    let at = at
        .to_offset(time::UtcOffset::UTC)
        .replace_nanosecond(0)
        .unwrap_or(at);
    at.format(&Rfc3339).unwrap_or_default()
}

/// The context in which the arguments of a request are sealed.
fn context(principal: &Principal, agent: &AgentId, server: &ServerId, id: ApprovalId) -> Context {
    contexts::of_approval(
        principal.tenant,
        &principal.user,
        agent.as_str(),
        server.as_str(),
        id.0,
    )
}

/// One step of a request, as the audit trail records it.
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

/// Writes the audit line of a step and its event for webhooks, in the transaction of the step.
async fn audit(
    app: &App,
    tx: &mut Tx,
    approval: &Approval,
    AuditedStep { action, actor, why }: AuditedStep<'_>,
) -> Result<()> {
    let what = match approval.rule.kind() {
        Kind::Approval => approval.code.clone(),
        Kind::Confirmation => format!("confirmation {}", approval.code),
    };
    let detail = match why {
        Some(why) => format!("{what}: {why}"),
        None => what,
    };
    let row = AuditRow {
        agent: approval.agent.to_string(),
        run: approval.run,
        server: approval.server.to_string(),
        tool: approval.tool.clone(),
        args_sha256: approval.args_sha256.to_vec(),
        outcome: approval.state.into_str(),
        detail: Some(detail),
        ..AuditRow::new(approval.tenant, app.clock.now(), actor.as_str(), action)
    };
    store::audit::insert(tx, approval.tenant, &[row]).await?;
    enqueue_event(app, tx, approval, action).await
}

/// Publishes a step after its commit: notifies the listeners, and starts the run that an outcome has opened.
fn publish_outcome(app: &Arc<App>, approval: &Approval, delivered: Option<OutcomeMessage>) {
    record_wait(approval);
    if let Some(delivered) = delivered {
        delivered.publish(app, approval.tenant);
    }
    notify_listeners(app, approval);
}

/// Makes the span of the wait for a decision, once that has ended. It belongs to the trace of the call, and leads to that
/// of the decision.
fn record_wait(approval: &Approval) {
    let is_decision = match approval.state {
        State::Approved | State::Rejected | State::Cancelled | State::Expired => true,
        // What was approved is over by the time that it is revoked.
        State::Revoked => approval.decided_at.is_none(),
        _ => false,
    };
    if approval.trace.is_none() || !is_decision {
        return;
    }
    let wait = tracing::error_span!(
        target: TRACES,
        parent: None,
        "approval wait",
        since = i64::try_from(approval.created_at.unix_timestamp_nanos()).ok(),
        tenant = %approval.tenant,
        approval = %approval.id,
        server = %approval.server,
        tool = approval.tool,
        state = approval.state.into_str(),
    );
    telemetry::join(&wait, approval.trace.as_ref());
    let decision = Span::current();
    wait.follows_from(&decision);
    decision.follows_from(&wait);
}

/// Notifies the listeners for approvals, here and on the other replicas.
fn notify_listeners(app: &App, approval: &Approval) {
    app.live.notify_approval_listeners(approval.tenant);
    let _ = app.hints.send(Hint::Approvals {
        tenant: approval.tenant,
    });
}

/// The address of a request for people: the operator's `CHATELAINE_APPROVAL_URL`, or else the web client.
fn link(app: &App, id: ApprovalId) -> String {
    if app.config.approval_url.is_empty() {
        format!(
            "{}/#/approvals/{id}",
            app.config.public_url.trim_end_matches('/')
        )
    } else {
        app.config.approval_url.replace("{id}", &id.to_string())
    }
}

/// The address of the list of requests for people. The operator's `CHATELAINE_APPROVAL_URL` has no list, so with it the
/// address is that of a request.
fn link_to_list(app: &App, first: ApprovalId) -> String {
    if app.config.approval_url.is_empty() {
        format!(
            "{}/#/approvals",
            app.config.public_url.trim_end_matches('/')
        )
    } else {
        link(app, first)
    }
}

/// Puts the event of a step into the outbox of webhooks. It never contains the arguments: a receiver who may see them
/// follows the link. Receivers tell approvers, whom a confirmation does not concern.
async fn enqueue_event(app: &App, tx: &mut Tx, approval: &Approval, event: &str) -> Result<()> {
    if approval.rule.kind() == Kind::Confirmation {
        return Ok(());
    }
    let given = if approval.rule.min_approvals > 1 {
        let votes = store::approvals::list_votes(tx, &[approval.id]).await?;
        let given = votes.iter().filter(|vote| vote.choice == Choice::Approve);
        given.count()
    } else {
        let is_refused = matches!(approval.state, State::Rejected | State::Cancelled);
        usize::from(approval.decided_by.is_some() && !is_refused)
    };
    let payload = json!({
        "id": approval.id,
        "code": approval.code,
        "state": approval.state,
        "agent": approval.agent.as_str(),
        "server": approval.server.as_str(),
        "tool": approval.tool,
        "requester": { "user": approval.requester().as_str(), "name": approval.requester_name },
        "approvers": approval.rule.approvers,
        "min_approvals": approval.rule.min_approvals,
        "approvals": given,
        "args_sha256": Hex(approval.args_sha256).to_string(),
        "expires_at": time_of(approval.expires_at),
        "decided_by": approval.decided_by.as_ref().map(UserId::as_str),
        "reason": approval.reason,
        "link": link(app, approval.id),
    });
    store::webhooks::enqueue(tx, approval.tenant, event, &payload).await
}
