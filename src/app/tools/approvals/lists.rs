//! Lists of requests, and one request for its reader.

use std::time::Duration;

use super::{
    execution, power, unknown,
    view::{self, ApprovalView},
};
use crate::{
    app::App,
    domain::{
        approval::{Approval, parse_code},
        canonical::{Hash, parse_hash},
        clock,
        error::Result,
        ids::ApprovalId,
        principal::Principal,
        run::ClaimedRun,
    },
    store::{
        self,
        approvals::{ApprovalOwner, Page},
    },
};

/// That a client has read an answer is recorded so soon after.
const RECORDED_WITHIN: Duration = Duration::from_secs(2);
const RECORD_POLL: Duration = Duration::from_millis(50);

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
pub struct ApprovalFilter<'a> {
    /// Those that one may decide, instead of one's own.
    pub as_approver: bool,
    pub page: Page<'a>,
}

/// Requests in the order of the page, without their arguments.
pub async fn list(
    app: &App,
    principal: &Principal,
    wanted: &ApprovalFilter<'_>,
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

/// Remembers that the answer of a run shows these requests with their arguments.
pub async fn remember_shown(app: &App, run: &ClaimedRun, views: &[&ApprovalView]) -> Result<()> {
    let shown = views.iter().filter(|view| view.arguments.is_some());
    let shown: Vec<_> = shown
        .filter_map(|view| Some((view.id, parse_hash(&view.args_sha256)?)))
        .collect();
    if shown.is_empty() {
        return Ok(());
    }
    let mut tx = app.db.tenant(run.tenant).await?;
    store::approvals::remember_shown(&mut tx, run.conversation, run.id, &shown).await?;
    tx.commit().await
}

/// The hash of the arguments that the conversation of a run last showed of a request, before the run was wanted. Waits
/// until it is recorded that the client has read the answer, which may be a moment after the client's next question.
pub async fn last_shown(app: &App, run: &ClaimedRun, id: ApprovalId) -> Result<Option<Hash>> {
    let deadline = clock::instant() + RECORDED_WITHIN;
    loop {
        let mut tx = app.db.tenant(run.tenant).await?;
        let shown = store::approvals::last_shown(&mut tx, run.conversation, run.id, id).await?;
        drop(tx);
        match shown {
            Some(shown) if shown.is_underway && clock::instant() < deadline => {
                tokio::time::sleep(RECORD_POLL).await;
            }
            shown => {
                return Ok(shown
                    .filter(|shown| !shown.is_underway)
                    .map(|shown| shown.hash));
            }
        }
    }
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
