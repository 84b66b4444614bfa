//! `/approvals`, `/approve`, `/reject`, `/confirm`, `/decline` and `/cancel CODE`: requests for consent in frontends that
//! show nothing but text. `/confirm` and `/decline` answer what the user is asked about their own call, in the
//! conversation that asks it. Such a command is the whole message of a user, so no model and no tool can write one. A
//! message that is more than the command decides nothing and is answered with the request.
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
    tools::{
        approvals::{self, ApprovalFilter, Ballot, LastSeen, view::ApprovalView},
        skills::outcome,
    },
};
use domain::{
    approval::{Choice, Kind, State},
    command::{ConsentCommand, ConsentVerb},
    error::{Error, Result},
    ids::{ApprovalId, ConversationId},
    message::{self, Part, TextSource},
    principal::Principal,
    run::ClaimedRun,
    texts::{self, Key, Texts},
};
use store::approvals::{ApprovalSelection, Waiting};

/// Requests that are shown in each of the two lists: those that wait for the user, and the user's own.
const SHOWN: u8 = 20;
/// Requests of a program's key among which those of a conversation are looked for.
const MOST_OF_KEY: u8 = 100;

/// Answers a command about requests for consent.
pub(super) async fn answer(
    app: &Arc<App>,
    run: &ClaimedRun,
    command: ConsentCommand,
) -> Result<Answer> {
    let principal = &run.principal;
    let pack = agents::pack(app, principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, principal);
    let code = match &command {
        ConsentCommand::List => None,
        ConsentCommand::One { code, .. } => Some(code.clone()),
        ConsentCommand::Unclear { code, .. } => code.clone(),
    };
    let parts = match run_command(app, run, &texts, command).await {
        Ok(parts) => parts,
        Err(error @ (Error::Internal(_) | Error::Busy { .. } | Error::Collided)) => {
            return Err(error);
        }
        // Any other error is a message for the user, and the run does not fail.
        Err(error) => {
            let text = explain_error(app, principal, &texts, &error, code).await?;
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
    code: Option<String>,
) -> Result<String> {
    let Some(code) = code else {
        return Ok(texts.explain(error));
    };
    let values = [("code", code.as_str())];
    if let Error::NotFound(_) = error {
        return Ok(texts.render(Key::ApprovalNotFound, &values));
    }
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
        _ => view.obstacle.unwrap_or_else(|| texts.explain(error)),
    })
}

async fn run_command(
    app: &Arc<App>,
    run: &ClaimedRun,
    texts: &Texts<'_>,
    command: ConsentCommand,
) -> Result<Vec<Part>> {
    let principal = &run.principal;
    let (verb, code, reason, is_whole) = match command {
        ConsentCommand::List => return list(app, run, texts).await,
        ConsentCommand::One { verb, code, reason } => (verb, code, reason, true),
        ConsentCommand::Unclear {
            verb,
            code: Some(code),
        } => (verb, code, None, false),
        ConsentCommand::Unclear { verb, code: None } => {
            let usage = texts.render(Key::ApprovalUsage, &[("command", verb.name())]);
            return Ok(vec![Part::text(usage)]);
        }
    };
    let approval = approvals::find(app, principal, &code).await?;
    let is_own = approval.requester() == &principal.user;
    if is_own && !is_shown_in(principal, approval.conversation, run) {
        return Err(Error::not_found(format!("request {code}")));
    }
    let say = |key| texts.render(key, &[("command", verb.name()), ("code", &code)]);
    if verb == ConsentVerb::Show {
        return show(app, run, texts, approval.id, None).await;
    }
    if !is_whole && approval.state != State::Pending {
        return describe(app, principal, &code).await;
    }
    if !is_whole {
        return show(
            app,
            run,
            texts,
            approval.id,
            Some(say(Key::ApprovalUnclear)),
        )
        .await;
    }
    let Some(choice) = verb.choice() else {
        let cancelled = approvals::cancel(app, principal, approval.id).await?;
        return describe(app, principal, &cancelled.code).await;
    };
    let is_confirmation = approval.rule.kind() == Kind::Confirmation;
    let values = [
        ("code", code.as_str()),
        ("approvers", &approval.rule.approvers.join(", ")),
    ];
    if is_confirmation && !is_asked_in(approval.conversation, run) {
        return Ok(vec![Part::text(
            texts.render(Key::ConfirmElsewhere, &values),
        )]);
    }
    if !is_confirmation && matches!(verb, ConsentVerb::Confirm | ConsentVerb::Decline) {
        return Ok(vec![Part::text(
            texts.render(Key::ApprovalForOthers, &values),
        )]);
    }
    let approver = approvals::decider(app, principal, &approval).await?;
    let view = approvals::get(app, principal, &approval.id.to_string()).await?;
    let args_sha256 = match approvals::last_shown(app, run, approval.id).await? {
        LastSeen::Seen(shown) if shown == approval.args_sha256 => shown,
        // Arguments that cannot be opened cannot be shown either.
        _ if view.obstacle.is_some() && choice == Choice::Reject => approval.args_sha256,
        seen if view.decidable => {
            let key = match seen {
                LastSeen::JustNow => Key::ApprovalTooSoon,
                LastSeen::Never | LastSeen::Seen(_) => Key::ApprovalRepeat,
            };
            return show(app, run, texts, approval.id, Some(say(key))).await;
        }
        // The user cannot decide, and `decide` says why.
        _ => approval.args_sha256,
    };
    let ballot = Ballot {
        choice,
        reason,
        args_sha256,
    };
    let decided = approvals::decide(app, &approver, approval.id, ballot).await?;
    if is_confirmation {
        return describe_outcome(app, run, decided.id).await;
    }
    if decided.state != State::Pending {
        return describe(app, principal, &code).await;
    }
    let view = approvals::get(app, principal, &code).await?;
    let voted = texts.render(
        Key::ApprovalVoted,
        &[
            ("code", &code),
            ("given", &view.approvals.to_string()),
            ("needed", &view.min_approvals.to_string()),
        ],
    );
    Ok(vec![Part::text(voted)])
}

/// Shows a request with its arguments and its choices. `why` says why a command about it has decided nothing.
async fn show(
    app: &App,
    run: &ClaimedRun,
    texts: &Texts<'_>,
    id: ApprovalId,
    why: Option<String>,
) -> Result<Vec<Part>> {
    let view = view_here(app, run, id).await?;
    approvals::remember_shown(app, run, &[&view]).await?;
    let mut text = view.text_with_arguments();
    if let Some(why) = why {
        text = format!("{text}\n{why}");
    }
    let how = explain_choices(texts, &[&view]);
    Ok(with_choices(text, how, choices_of(texts, &view)))
}

async fn describe(app: &App, principal: &Principal, code: &str) -> Result<Vec<Part>> {
    let view = approvals::get(app, principal, code).await?;
    Ok(vec![Part::text(view.text)])
}

/// Waits for the call that the user has confirmed, and describes what came of it: what the server said, word for word, or
/// how the request stands. The outcome itself is a message of its own.
async fn describe_outcome(app: &Arc<App>, run: &ClaimedRun, id: ApprovalId) -> Result<Vec<Part>> {
    let ended = approvals::await_end(app, &run.principal, id).await?;
    let outcome = outcome::of_request(app, &run.principal, id).await?;
    let is_answered = matches!(ended.state, State::Succeeded | State::Failed);
    Ok(vec![Part::Text {
        source: (is_answered && outcome.text != outcome.approval.text).then(|| {
            Box::new(TextSource {
                server: ended.server.to_string(),
                tool: ended.tool,
            })
        }),
        text: outcome.text,
    }])
}

/// Whether a request of this conversation, or of none, can be confirmed in the conversation of a run.
fn is_asked_in(conversation: Option<ConversationId>, run: &ClaimedRun) -> bool {
    conversation.is_none_or(|asking| asking == run.conversation)
}

/// Whether the conversation of a run may show a request of its own principal. Many people may speak with the key of a
/// program, each in a conversation of their own.
fn is_shown_in(
    principal: &Principal,
    conversation: Option<ConversationId>,
    run: &ClaimedRun,
) -> bool {
    !principal.names_nobody() || conversation == Some(run.conversation)
}

/// A request with its arguments, for the reader of a conversation: what another conversation asks is not decided in it.
async fn view_here(app: &App, run: &ClaimedRun, id: ApprovalId) -> Result<ApprovalView> {
    let mut view = approvals::get(app, &run.principal, &id.to_string()).await?;
    view.decidable &= view.kind == Kind::Approval || is_asked_in(view.conversation_id, run);
    Ok(view)
}

/// A text, and the choices that it ends with, if there are any.
fn with_choices(text: String, how: String, choices: Vec<message::Choice>) -> Vec<Part> {
    let choices = (!choices.is_empty()).then_some(Part::Choices { text: how, choices });
    std::iter::once(Part::text(text)).chain(choices).collect()
}

/// How the choices about these requests decide or take back, for a person who types.
fn explain_choices(texts: &Texts<'_>, views: &[&ApprovalView]) -> String {
    let decides = |kind| {
        let mut views = views.iter();
        views.any(|view| view.decidable && view.kind == kind)
    };
    let takes_back = views.iter().any(|view| may_take_back(view));
    let keys = [
        decides(Kind::Approval).then_some(Key::ApprovalsHow),
        decides(Kind::Confirmation).then_some(Key::ConfirmHow),
        takes_back.then_some(Key::ApprovalsTakeBack),
    ];
    let sentences = keys.into_iter().flatten().map(|key| texts.render(key, &[]));
    sentences.collect::<Vec<_>>().join(" ")
}

/// What the reader of a request can do with it.
fn choices_of(texts: &Texts<'_>, view: &ApprovalView) -> Vec<message::Choice> {
    let may_approve = view.decidable && view.obstacle.is_none();
    let (yes, no) = match view.kind {
        Kind::Approval => (
            (may_approve, Key::ApprovalChoiceApprove, "/approve"),
            (view.decidable, Key::ApprovalChoiceReject, "/reject"),
        ),
        Kind::Confirmation => (
            (may_approve, Key::ConfirmChoiceConfirm, "/confirm"),
            (view.decidable, Key::ConfirmChoiceDecline, "/decline"),
        ),
    };
    let commands = [
        yes,
        no,
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

/// Whether the reader can take it back. What they can confirm, they decline instead.
fn may_take_back(view: &ApprovalView) -> bool {
    let is_declined = view.kind == Kind::Confirmation && view.decidable;
    view.own && view.state == State::Pending && !is_declined
}

/// `/approvals`: the requests that wait for the user, the oldest first and with their arguments, and then the user's own
/// requests, with the arguments of those that they can confirm here.
async fn list(app: &App, run: &ClaimedRun, texts: &Texts<'_>) -> Result<Vec<Part>> {
    let principal = &run.principal;
    let page = ApprovalSelection {
        waiting: Some(Waiting::All),
        oldest_first: true,
        limit: i64::from(SHOWN) + 1,
        ..ApprovalSelection::default()
    };
    let filter = ApprovalFilter {
        has_arguments: false,
        as_approver: true,
        page,
    };
    let mut waiting = Vec::new();
    for view in approvals::list(app, principal, &filter).await? {
        waiting.push(approvals::get(app, principal, &view.id.to_string()).await?);
    }
    let shown = &waiting[..waiting.len().min(usize::from(SHOWN))];
    let filter = ApprovalFilter {
        has_arguments: false,
        as_approver: false,
        page: ApprovalSelection {
            waiting: None,
            limit: i64::from(if principal.names_nobody() {
                MOST_OF_KEY
            } else {
                SHOWN
            }),
            ..page
        },
    };
    let mut own = approvals::list(app, principal, &filter).await?;
    own.retain(|view| is_shown_in(principal, view.conversation_id, run));
    own.truncate(usize::from(SHOWN));
    for view in &mut own {
        if view.kind == Kind::Confirmation && view.decidable {
            let seen = view_here(app, run, view.id).await?;
            let arguments = seen.arguments.filter(|_| seen.decidable);
            (view.decidable, view.arguments) = (seen.decidable, arguments);
            view.amounts = seen.amounts;
        }
    }
    let seen: Vec<_> = shown.iter().chain(&own).collect();
    approvals::remember_shown(app, run, &seen).await?;
    let mut lines = Vec::new();
    if !shown.is_empty() {
        lines.push(texts.render(Key::ApprovalsWaiting, &[]));
        lines.extend(shown.iter().map(ApprovalView::text_with_arguments));
        if shown.len() < waiting.len() {
            lines.push(texts.render(Key::ApprovalsMore, &[]));
        }
    }
    let mut choices = match shown {
        [only] => choices_of(texts, only),
        several => several.iter().map(choice_to_show).collect(),
    };
    // A request of one's own that one may also approve has its choices already.
    let mine = own
        .iter()
        .filter(|view| view.kind == Kind::Confirmation || !view.decidable);
    choices.extend(mine.clone().flat_map(|view| choices_of(texts, view)));
    let offered: Vec<_> = shown.iter().chain(mine).collect();
    let how = explain_choices(texts, &offered);
    if !own.is_empty() {
        lines.push(texts.render(Key::ApprovalsMine, &[]));
        lines.extend(own.iter().map(ApprovalView::text_with_arguments));
    }
    if lines.is_empty() {
        lines.push(texts.render(Key::ApprovalsNone, &[]));
    }
    Ok(with_choices(lines.join("\n"), how, choices))
}
