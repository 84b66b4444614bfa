//! The way of an approved call as rows. Claimed with a lease and a fence while nothing has been sent, marked as
//! executing before the first byte is, ended once. Whoever lost the lease changes nothing: what they bring is
//! kept as evidence beside an outcome that stays unknown.

mod endings;

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

pub use self::endings::{expire, give_up, lapse, postpone, revoke, withdraw};
use super::{
    App, AuditedStep, audit, changed, client_calls, context, delivery, packs, publish_outcome,
    standing,
};
use crate::{
    domain::{
        approval::{Approval, State},
        canonical, elicitation,
        error::{Error, ErrorCode, Result},
        hidden::one_line,
        ids::{ApprovalId, AuditId, ServerId, TenantId},
        message::{CallStatus, ToolResult},
        resource,
    },
    store::{
        self,
        approvals::{Transition, TransitionGuard},
        audit::AuditRow,
    },
};

/// A server that cannot be reached is tried again after this time, until the request lapses.
const PAUSE: Duration = Duration::from_secs(5);
/// Why an approved call is not made when a vote for it does not count any more.
const VOTES_GONE: &str = "not enough of those who approved it may still do so: somebody was signed out, blocked or deleted, or lost the \
     role; ask again";
/// Characters of an answer that came too late.
const EVIDENCE: usize = 2000;

/// An approved request that this process has taken to execute it, under a lease and a fence. Only [`claim`] makes one.
pub struct Claimed {
    approval: Approval,
    /// The line of its call in the audit trail.
    audit_id: AuditId,
}

impl Claimed {
    pub fn audit_id(&self) -> AuditId {
        self.audit_id
    }
}

impl std::ops::Deref for Claimed {
    type Target = Approval;

    fn deref(&self) -> &Approval {
        &self.approval
    }
}

/// Takes an approved request to execute it; `None` when it is not free.
pub async fn claim(app: &App, tenant: TenantId, id: ApprovalId) -> Result<Option<Claimed>> {
    let mut tx = app.db.tenant(tenant).await?;
    let claimed = store::approvals::claim(&mut tx, id, app.replica, app.config.run_lease).await?;
    tx.commit().await?;
    Ok(claimed.map(|approval| Claimed {
        approval,
        audit_id: AuditId::new(),
    }))
}

/// Prolongs the lease; `false` when it was lost.
pub async fn heartbeat(app: &App, approval: &Claimed) -> Result<bool> {
    let mut tx = app.db.tenant(approval.tenant).await?;
    let held = store::approvals::heartbeat(&mut tx, approval, app.config.run_lease).await?;
    tx.commit().await?;
    Ok(held)
}

/// The arguments that were approved, to the byte. Canonical JSON, of which the hash was shown to who decided.
pub async fn arguments(app: &App, approval: &Approval) -> Result<Box<RawValue>> {
    let sealed_for = context(
        &approval.principal,
        &approval.agent,
        &approval.server,
        approval.id,
    );
    let opened = app
        .keys
        .open(approval.tenant, &sealed_for, &approval.sealed)
        .await?;
    if canonical::hash(opened.expose()) != approval.args_sha256 {
        return Err(Error::Internal(anyhow::anyhow!(
            "the arguments of approval {} are not its own",
            approval.id
        )));
    }
    RawValue::from_string(opened.expose().to_owned()).map_err(Error::internal)
}

/// From here on it may be sent: committed before the first byte is, with the line of the call in the audit trail. Else
/// why it must not be: it was taken back meanwhile, or those who approved it do not stand any more. `Conflict` when the
/// lease was lost.
pub async fn start(app: &App, approval: &Claimed, line: &AuditRow) -> Result<Option<&'static str>> {
    let packs = packs(app, approval.tenant).await?;
    let mut tx = app.db.tenant(approval.tenant).await?;
    let started = store::approvals::change(
        &mut tx,
        approval.id,
        &held(approval, State::Executing, None),
    )
    .await?;
    let Some(started) = started else {
        let now = store::approvals::get(&mut tx, approval.id).await?;
        let withdrawn = now.filter(|now| {
            now.fence == approval.fence
                && now.state == State::Approved
                && now.withdrawn_by.is_some()
        });
        return match withdrawn {
            Some(now) => Ok(Some(now.withdrawn_reason())),
            None => Err(lost(approval)),
        };
    };
    if !standing::is_approved(&mut tx, &packs, &started).await? {
        return Ok(Some(VOTES_GONE));
    }
    let step = AuditedStep::new("approval.executing", approval.requester());
    audit(app, &mut tx, &started, step).await?;
    store::audit::insert(&mut tx, approval.tenant, std::slice::from_ref(line)).await?;
    tx.commit().await?;
    changed(app, &started);
    Ok(None)
}

/// What came of the call. Of a request that was given up for lost meanwhile it is only evidence.
pub async fn finish(app: &Arc<App>, approval: &Claimed, result: &ToolResult) -> Result<()> {
    let failure = failure_of(&approval.server, result);
    let (to, reason) = match result.status {
        CallStatus::Succeeded => (State::Succeeded, None),
        CallStatus::OutcomeUnknown => (State::OutcomeUnknown, Some(result.text.as_str())),
        _ => (State::Failed, failure.as_deref()),
    };
    let mut tx = app.db.tenant(approval.tenant).await?;
    store::audit::end(&mut tx, approval.audit_id, result.status.as_str()).await?;
    let Some(ended) =
        store::approvals::change(&mut tx, approval.id, &held(approval, to, reason)).await?
    else {
        drop(tx);
        return keep_evidence(app, approval, result).await;
    };
    let delivered = delivery::deliver(app, &mut tx, &ended, Some(result)).await?;
    if ended.run.is_none() && ended.conversation.is_none() {
        client_calls::keep_result(&mut tx, ended.id, result).await?;
    }
    // Delivered means that the conversation is there, and locked.
    if let (Some(_), Some(session), Some(raw)) = (&delivered, ended.conversation, &result.raw) {
        let (whose, links) = (
            (ended.server.as_str(), ended.tool.as_str()),
            resource::links_in(raw),
        );
        store::resources::insert(&mut tx, ended.tenant, session, whose, &links).await?;
    }
    let step = AuditedStep::new("approval.executed", approval.requester());
    audit(app, &mut tx, &ended, step).await?;
    tx.commit().await?;
    publish_outcome(app, &ended, delivered);
    Ok(())
}

/// The beginning of what is said about a failure, for those who did not ask and read no result. A server's own words stand
/// in quotes behind its name, so that they cannot pass for the program's.
fn failure_of(server: &ServerId, result: &ToolResult) -> Option<String> {
    let mut lines = result
        .text
        .lines()
        .map(|line| elicitation::readable(line, MAX_REASON));
    let line = lines.find(|line| !line.is_empty())?;
    if result.raw.is_none() {
        return Some(line);
    }
    Some(format!("{server}: “{}”", line.replace(['“', '”'], "\"")))
}

/// Characters of the reason of a failure.
const MAX_REASON: usize = 200;

async fn keep_evidence(app: &App, approval: &Approval, result: &ToolResult) -> Result<()> {
    let status = if result.status == CallStatus::Succeeded {
        "succeeded"
    } else {
        "did not succeed"
    };
    let text = one_line(&result.text, EVIDENCE);
    let mut tx = app.db.tenant(approval.tenant).await?;
    let evidence = format!("a late answer says that it {status}: {text}");
    let Some(noted) = store::approvals::add_evidence(&mut tx, approval.id, &evidence).await? else {
        return Ok(());
    };
    let why = format!("a late answer says that it {status}");
    let step = AuditedStep::new("approval.evidence", approval.requester()).because(Some(&why));
    audit(app, &mut tx, &noted, step).await?;
    tx.commit().await?;
    changed(app, &noted);
    Ok(())
}

fn due(from: State, to: State, when: TransitionGuard) -> Transition<'static> {
    Transition {
        from,
        to,
        when,
        reason: None,
        by: None,
        window: Duration::ZERO,
    }
}

fn held<'a>(approval: &Approval, to: State, reason: Option<&'a str>) -> Transition<'a> {
    let from = if matches!(to, State::Executing | State::Revoked) {
        State::Approved
    } else {
        State::Executing
    };
    Transition {
        from,
        to,
        when: TransitionGuard::Held(approval.fence),
        reason,
        by: None,
        window: Duration::ZERO,
    }
}

fn lost(approval: &Approval) -> Error {
    Error::conflict(
        ErrorCode::Conflict,
        format!("approval {} is no longer held by this replica", approval.id),
    )
}
