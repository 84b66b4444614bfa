//! `/approvals`, `/approve`, `/reject` and `/cancel CODE`: requests for consent in frontends that show nothing but text.
//!
//! A decision repeats the hash of the arguments that the approver has seen. A person cannot type a hash, so the
//! conversation remembers which arguments it has shown, and a command decides about those and no others. If this
//! conversation has not shown a request before the command was sent, the command shows the request in place of a
//! decision.
//!
//! An answer that shows requests ends with choices, each of which is such a command: a frontend draws them as buttons.

use std::sync::Arc;

use super::commands::{Answer, notice};
use crate::app::{
    App,
    servers::agents,
    tools::approvals::{self, ApprovalFilter, Verdict, view::ApprovalView},
};
use domain::{
    approval::{Choice, State, parse_code},
    error::{Error, Result},
    hidden::escape_unclear,
    message::{self, Part},
    principal::Principal,
    run::ClaimedRun,
    texts::{self, Key, Texts},
};
use store::approvals::{ApprovalSelection, Waiting};

/// Requests that are shown in each of the two lists: those that wait for the user, and the user's own.
const SHOWN: u8 = 20;

/// Whether a text is a command that shows requests or decides about them.
pub(super) fn is_one(text: &str) -> bool {
    let name = text.split_whitespace().next();
    matches!(name, Some("/approvals" | "/approve" | "/reject"))
}

/// Answers a command about requests for consent.
pub(super) async fn answer(
    app: &Arc<App>,
    run: &ClaimedRun,
    name: &str,
    rest: &str,
) -> Result<Answer> {
    let principal = &run.principal;
    let pack = agents::pack(app, principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, principal);
    let parts = match run_command(app, run, &texts, name, rest.trim()).await {
        Ok(parts) => parts,
        Err(error @ (Error::Internal(_) | Error::Busy { .. })) => return Err(error),
        // Any other error is a message for the user, and the run does not fail.
        Err(error) => {
            let text = explain_error(app, principal, &texts, &error, rest).await?;
            vec![notice(error.code().as_str(), text)]
        }
    };
    Ok(Answer::Parts(parts))
}

/// Says why a command about a request was refused, from the present state of the request and in the user's language.
async fn explain_error(
    app: &App,
    principal: &Principal,
    texts: &Texts<'_>,
    error: &Error,
    rest: &str,
) -> Result<String> {
    let Some(code) = rest.split_whitespace().next().and_then(parse_code) else {
        return Ok(error.to_string());
    };
    let values = [("code", code.as_str())];
    let view = match approvals::get(app, principal, &code).await {
        Ok(view) => view,
        Err(Error::NotFound(_)) => return Ok(texts.render(Key::ApprovalNotFound, &values)),
        Err(error) => return Err(error),
    };
    let approvers = view.approvers.join(", ");
    Ok(match error {
        _ if view.state != State::Pending => view.text,
        Error::Forbidden(_) if view.own && !view.self_approval => {
            texts.render(Key::ApprovalOwn, &values)
        }
        Error::Forbidden(_) => texts.render(
            Key::ApprovalForOthers,
            &[("code", &code), ("approvers", &approvers)],
        ),
        Error::Conflict(..) if view.votes.iter().any(|vote| vote.by == principal.user) => {
            texts.render(Key::ApprovalAlreadyVoted, &values)
        }
        Error::NotFound(_) => texts.render(Key::ApprovalNotFound, &values),
        _ => error.to_string(),
    })
}

async fn run_command(
    app: &Arc<App>,
    run: &ClaimedRun,
    texts: &Texts<'_>,
    name: &str,
    rest: &str,
) -> Result<Vec<Part>> {
    let principal = &run.principal;
    if name == "/approvals" && rest.is_empty() {
        return list(app, run, texts).await;
    }
    let (code, reason) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let Some(code) = parse_code(code) else {
        let usage = texts.render(Key::ApprovalUsage, &[("command", name)]);
        return Ok(vec![Part::text(usage)]);
    };
    let approval = approvals::find(app, principal, &code).await?;
    if name == "/approvals" {
        let view = approvals::get(app, principal, &approval.id.to_string()).await?;
        approvals::remember_shown(app, run, &[&view]).await?;
        let how = explain_choices(texts, view.decidable, may_take_back(&view));
        return Ok(with_choices(show(&view), how, choices_of(texts, &view)));
    }
    if name == "/cancel" {
        let cancelled = approvals::cancel(app, principal, approval.id).await?;
        return describe(app, principal, &cancelled.code).await;
    }
    let approver = approvals::approver(app, principal).await?;
    let reason = Some(reason.trim())
        .filter(|reason| !reason.is_empty())
        .map(str::to_owned);
    let choice = if name == "/approve" {
        Choice::Approve
    } else {
        Choice::Reject
    };
    let view = approvals::get(app, principal, &approval.id.to_string()).await?;
    let args_sha256 = match approvals::last_shown(app, run, approval.id).await? {
        Some(shown) if shown == approval.args_sha256 => shown,
        _ if view.decidable => {
            approvals::remember_shown(app, run, &[&view]).await?;
            let repeat = [("command", name), ("code", &code)];
            let repeat = texts.render(Key::ApprovalRepeat, &repeat);
            let text = format!("{}\n{repeat}", show(&view));
            let how = explain_choices(texts, true, false);
            return Ok(with_choices(text, how, choices_of(texts, &view)));
        }
        // The user cannot decide, and `decide` says why.
        _ => approval.args_sha256,
    };
    let verdict = Verdict {
        choice,
        reason,
        args_sha256,
    };
    let decided = approvals::decide(app, &approver, approval.id, &verdict).await?;
    if decided.state != State::Pending {
        return describe(app, principal, &code).await;
    }
    let view = approvals::get(app, principal, &code).await?;
    let given = view
        .votes
        .iter()
        .filter(|vote| vote.counts == Some(true))
        .count();
    let voted = texts.render(
        Key::ApprovalVoted,
        &[
            ("code", &code),
            ("given", &given.to_string()),
            ("needed", &view.min_approvals.to_string()),
        ],
    );
    Ok(vec![Part::text(voted)])
}

async fn describe(app: &App, principal: &Principal, code: &str) -> Result<Vec<Part>> {
    let view = approvals::get(app, principal, code).await?;
    Ok(vec![Part::text(view.text)])
}

/// A text, and the choices that it ends with, if there are any.
fn with_choices(text: String, how: String, choices: Vec<message::Choice>) -> Vec<Part> {
    let choices = (!choices.is_empty()).then_some(Part::Choices { text: how, choices });
    std::iter::once(Part::text(text)).chain(choices).collect()
}

/// How the choices of an answer decide or take back, for a person who types.
fn explain_choices(texts: &Texts<'_>, decides: bool, takes_back: bool) -> String {
    let keys = [
        decides.then_some(Key::ApprovalsHow),
        takes_back.then_some(Key::ApprovalsTakeBack),
    ];
    let sentences = keys.into_iter().flatten().map(|key| texts.render(key, &[]));
    sentences.collect::<Vec<_>>().join(" ")
}

/// What the reader of a request can do with it.
fn choices_of(texts: &Texts<'_>, view: &ApprovalView) -> Vec<message::Choice> {
    let commands = [
        (view.decidable, Key::ApprovalChoiceApprove, "/approve"),
        (view.decidable, Key::ApprovalChoiceReject, "/reject"),
        (may_take_back(view), Key::ApprovalChoiceCancel, "/cancel"),
    ];
    let choice = |(_, key, command)| message::Choice {
        value: format!("{command} {}", view.code),
        label: texts.render(key, &[("code", &view.code)]),
    };
    let possible = commands
        .into_iter()
        .filter(|(is_possible, ..)| *is_possible);
    possible.map(choice).collect()
}

/// A choice that shows one of several requests, with its own choices: a list in which every request had two buttons would
/// invite a wrong click.
fn choice_to_show(view: &ApprovalView) -> message::Choice {
    message::Choice {
        value: format!("/approvals {}", view.code),
        label: format!(
            "{}: {} {}, {}",
            view.code, view.server, view.tool, view.requester.name
        ),
    }
}

fn may_take_back(view: &ApprovalView) -> bool {
    view.own && view.state == State::Pending
}

/// A request with the exact arguments of its call. The empty line and the indentation make the arguments code for a
/// frontend that shows Markdown, which would otherwise drop the backslash of a `\"`.
fn show(view: &ApprovalView) -> String {
    match &view.arguments {
        Some(arguments) => format!("{}\n\n    {}", view.text, escape_unclear(arguments.get())),
        None => view.text.clone(),
    }
}

/// `/approvals`: the requests that wait for the user, the oldest first and with their arguments, and then the user's own
/// open requests.
async fn list(app: &App, run: &ClaimedRun, texts: &Texts<'_>) -> Result<Vec<Part>> {
    let principal = &run.principal;
    let page = ApprovalSelection {
        waiting: Some(Waiting::All),
        oldest_first: true,
        limit: i64::from(SHOWN) + 1,
        ..ApprovalSelection::default()
    };
    let filter = ApprovalFilter {
        as_approver: true,
        page,
    };
    let mut waiting = Vec::new();
    for view in approvals::list(app, principal, &filter).await? {
        waiting.push(approvals::get(app, principal, &view.id.to_string()).await?);
    }
    let shown = &waiting[..waiting.len().min(usize::from(SHOWN))];
    approvals::remember_shown(app, run, &shown.iter().collect::<Vec<_>>()).await?;
    let filter = ApprovalFilter {
        as_approver: false,
        page: ApprovalSelection {
            waiting: None,
            limit: i64::from(SHOWN),
            ..page
        },
    };
    let own = approvals::list(app, principal, &filter).await?;
    let mut lines = Vec::new();
    if !shown.is_empty() {
        lines.push(texts.render(Key::ApprovalsWaiting, &[]));
        lines.extend(shown.iter().map(show));
        if shown.len() < waiting.len() {
            lines.push(texts.render(Key::ApprovalsMore, &[]));
        }
    }
    let mut choices = match shown {
        [only] => choices_of(texts, only),
        several => several.iter().map(choice_to_show).collect(),
    };
    // A request of one's own that one may also decide has its choices already.
    let to_take_back = own
        .iter()
        .filter(|view| may_take_back(view) && !view.decidable);
    choices.extend(
        to_take_back
            .clone()
            .flat_map(|view| choices_of(texts, view)),
    );
    let how = explain_choices(texts, !shown.is_empty(), to_take_back.count() > 0);
    if !own.is_empty() {
        lines.push(texts.render(Key::ApprovalsMine, &[]));
        lines.extend(own.into_iter().map(|view| view.text));
    }
    if lines.is_empty() {
        lines.push(texts.render(Key::ApprovalsNone, &[]));
    }
    Ok(with_choices(lines.join("\n"), how, choices))
}
