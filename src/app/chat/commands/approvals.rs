//! `/approvals`, `/approve`, `/reject` and `/cancel CODE`: the queue for frontends that show nothing but text.
//!
//! A decision has to repeat the hash of the arguments that were seen. A typed one cannot, so the code stands for
//! it: a code names one request, `/approvals` shows its arguments, and those never change.

use std::sync::Arc;

use super::{Answer, notice};
use crate::{
    app::{
        App,
        servers::agents,
        tools::approvals::{self, ApprovalFilter, Verdict},
    },
    domain::{
        approval::{Choice, State, parse_code},
        error::{Error, Result},
        message::Part,
        principal::Principal,
        run::ClaimedRun,
        texts::{self, Key, Texts},
    },
    store::approvals::Page,
};

/// Requests of each kind that are shown.
const SHOWN: i64 = 20;

pub(super) async fn answer(
    app: &Arc<App>,
    run: &ClaimedRun,
    name: &str,
    rest: &str,
) -> Result<Answer> {
    let principal = &run.principal;
    let pack = agents::pack(app, principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, principal);
    let part = match done(app, principal, &texts, name, rest.trim()).await {
        Ok(text) => Part::text(text),
        Err(error @ (Error::Internal(_) | Error::Busy { .. })) => return Err(error),
        // Such an error is a message for the user and no failure of the run.
        Err(error) => notice(error.code(), error.to_string()),
    };
    Ok(Answer::Parts(vec![part]))
}

async fn done(
    app: &Arc<App>,
    principal: &Principal,
    texts: &Texts<'_>,
    name: &str,
    rest: &str,
) -> Result<String> {
    if name == "/approvals" {
        return listed(app, principal, texts).await;
    }
    let (code, reason) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let Some(code) = parse_code(code) else {
        return Ok(texts.render(Key::ApprovalUsage, &[("command", name)]));
    };
    let approval = approvals::find(app, principal, &code).await?;
    if name == "/cancel" {
        let cancelled = approvals::cancel(app, principal, approval.id).await?;
        return said(app, principal, &cancelled.code).await;
    }
    let approver = approvals::approver(app, principal)
        .await
        .map_err(|error| match error {
            Error::Forbidden(_) => Error::Forbidden(format!(
                "{code} is for {} to decide",
                approval.consent.approvers.join(" or ")
            )),
            error => error,
        })?;
    let reason = Some(reason.trim())
        .filter(|reason| !reason.is_empty())
        .map(str::to_owned);
    let choice = if name == "/approve" {
        Choice::Approve
    } else {
        Choice::Reject
    };
    let verdict = Verdict {
        choice,
        reason,
        args_sha256: approval.args_sha256,
    };
    let decided = approvals::decide(app, &approver, approval.id, &verdict).await?;
    if decided.state != State::Pending {
        return said(app, principal, &code).await;
    }
    let view = approvals::get(app, principal, &code).await?;
    let given = view
        .votes
        .iter()
        .filter(|vote| vote.decision == Choice::Approve)
        .count();
    let more = usize::try_from(view.min_approvals)
        .unwrap_or(usize::MAX)
        .saturating_sub(given);
    Ok(texts.render(
        Key::ApprovalVoted,
        &[("code", &code), ("more", &more.to_string())],
    ))
}

async fn said(app: &App, principal: &Principal, code: &str) -> Result<String> {
    Ok(approvals::get(app, principal, code).await?.text)
}

/// What waits for the principal, with its arguments, and their own open requests.
async fn listed(app: &App, principal: &Principal, texts: &Texts<'_>) -> Result<String> {
    let page = Page {
        state: None,
        undecided: true,
        before: None,
        limit: SHOWN,
    };
    let waiting = approvals::list(
        app,
        principal,
        &ApprovalFilter {
            as_approver: true,
            page,
        },
    )
    .await?;
    let page = Page {
        undecided: false,
        ..page
    };
    let own = approvals::list(
        app,
        principal,
        &ApprovalFilter {
            as_approver: false,
            page,
        },
    )
    .await?;
    let mut lines = Vec::new();
    if !waiting.is_empty() {
        lines.push(texts.render(Key::ApprovalsWaiting, &[]));
        for view in &waiting {
            lines.push(view.text.clone());
            let view = approvals::get(app, principal, &view.id.to_string()).await?;
            lines.push(format!(
                "    {}",
                view.arguments
                    .as_ref()
                    .map_or("", |arguments| arguments.get())
            ));
        }
        lines.push(texts.render(Key::ApprovalsHow, &[]));
    }
    if !own.is_empty() {
        lines.push(texts.render(Key::ApprovalsMine, &[]));
        lines.extend(own.into_iter().map(|view| view.text));
    }
    if lines.is_empty() {
        lines.push(texts.render(Key::ApprovalsNone, &[]));
    }
    Ok(lines.join("\n"))
}
