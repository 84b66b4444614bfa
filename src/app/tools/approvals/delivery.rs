//! Delivery of outcomes to requesters. The outcome of a request is a message in its conversation. When a model made
//! the call, it is also the input of a new run, so that the model learns the outcome and tells the user.
//!
//! The message is written in the transaction of the transition, hence once. A deleted conversation receives none.

use std::{collections::BTreeMap, sync::Arc};

use time::OffsetDateTime;

use super::{
    App,
    decision::{self, Tally},
    name_of, time_of,
};
use crate::app::{
    accounts,
    runs::creation::{self, CreatedRun, RunPlacement, RunRequest},
};
use domain::{
    approval::{Approval, Kind, Note, State},
    attachment::images_in,
    canonical::Hex,
    error::{Error, Result},
    event::Event,
    hidden::{escape_unclear, one_line},
    ids::{ConversationId, RunId, TenantId},
    message::{Part, Role, ToolResult},
    pack::Provider,
    principal::Principal,
    run::RunKind,
    texts::{self, Key, Texts},
};
use store::{Tx, messages::NewMessage};

/// The most characters of a reason or a note in the text of a request.
pub(super) const REASON: usize = 1000;

/// A message and perhaps a run, written but not yet committed.
pub enum OutcomeMessage {
    Message(ConversationId, Event),
    Run(Box<CreatedRun>),
}

impl OutcomeMessage {
    /// Notifies the listeners and starts the run, after the commit.
    pub(super) fn publish(self, app: &App, tenant: TenantId) {
        match self {
            Self::Message(conversation, event) => app.announce(tenant, conversation, event),
            Self::Run(created) => created.publish(app),
        }
    }
}

/// Writes the outcome into the conversation of the request. The caller's transition has locked the approval; this
/// locks the conversation after it.
pub(super) async fn deliver(
    app: &Arc<App>,
    tx: &mut Tx,
    approval: &Approval,
    result: Option<&ToolResult>,
) -> Result<Option<OutcomeMessage>> {
    let Some(id) = approval.conversation else {
        return Ok(None);
    };
    let conversation = match store::conversations::get(tx, approval.requester(), id, true).await {
        Ok(conversation) => conversation,
        Err(Error::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let pack = app.packs.get(&approval.agent);
    let for_model =
        approval.follow_up && pack.is_some_and(|pack| pack.llm.provider != Provider::None);
    // A user who stopped the run wants no answer now; the model reads the outcome in the next turn. A new run needs a
    // requester who is still signed in, and uses their newest claims.
    let principal = accounts::newest_claims::current(tx, approval.as_act()).await?;
    let follow_up = principal
        .ok()
        .filter(|_| for_model && approval.withdrawn_by.is_none());
    let tally = if approval.rule.min_approvals > 1 {
        // No pack says which approvals count: the request is not pending any more.
        let votes = decision::read_votes(tx, &[], &[approval]).await?;
        votes.tally(approval, false)
    } else {
        Tally::default()
    };
    let parts = [Part::Approval(Box::new(note(
        app, approval, result, &tally,
    )))];
    if let Some(principal) = follow_up {
        let request = RunRequest {
            id: RunId::new(),
            conversation: &conversation,
            principal: &principal,
            kind: RunKind::Turn,
            place: approval
                .run
                .map_or(RunPlacement::Alone, RunPlacement::WithRun),
            role: Role::System,
            parts: &parts,
            for_model,
            title: None,
            format: None,
            trace: approval.trace.as_ref(),
        };
        // A turn that waits already reads this message too: it starts to read under the lock that is held here.
        let created = creation::create(app, tx, &request).await?;
        return Ok(Some(OutcomeMessage::Run(Box::new(created))));
    }
    let (mut run, mut run_ordinal) = (None, 0);
    if let (true, Some(asked)) = (for_model, approval.run)
        && let Some((_, ordinal, _)) = store::approvals::get_run_origin(tx, asked).await?
    {
        (run, run_ordinal) = (Some(asked), ordinal);
    }
    let message = NewMessage {
        run,
        run_ordinal,
        role: Role::System,
        parts: &parts,
        for_model,
    };
    let (_, event) = store::messages::append(tx, approval.tenant, id, message).await?;
    Ok(Some(OutcomeMessage::Message(id, event)))
}

/// The state of a request, for its requester.
pub(super) fn note(
    app: &App,
    approval: &Approval,
    result: Option<&ToolResult>,
    tally: &Tally,
) -> Note {
    let raw = result.and_then(|result| result.raw.as_ref());
    Note {
        id: approval.id,
        code: approval.code.clone(),
        kind: approval.rule.kind(),
        state: approval.state,
        arguments: None,
        server: approval.server.to_string(),
        tool: approval.tool.clone(),
        args_sha256: Hex(approval.args_sha256).to_string(),
        approvers: approval.rule.approvers.clone(),
        min_approvals: approval.rule.min_approvals,
        approvals: tally.given,
        expires_at: approval.expires_at,
        by: approval.decided_by.clone(),
        approved_by: tally.names.clone(),
        reason: approval.reason.clone(),
        result: result.map(|result| result.text.clone()),
        raw: raw.filter(|raw| !images_in(raw).is_empty()).cloned(),
        recorded: approval.recorded.clone(),
        text: state_text(app, approval, &approval.principal, tally),
    }
}

/// The state of a request in words for `reader`: before its decision how many people it needs, and after it who they were.
pub(super) fn state_text(
    app: &App,
    approval: &Approval,
    reader: &Principal,
    tally: &Tally,
) -> String {
    let pack = app.packs.get(&approval.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), reader);
    let mine = reader.user == *approval.requester();
    let confirms = approval.rule.kind() == Kind::Confirmation;
    let key = match (approval.state, &approval.recorded) {
        (_, Some(recorded)) if recorded.happened => Key::ApprovalRecordedDone,
        (_, Some(_)) => Key::ApprovalRecordedNotDone,
        (State::Pending, None) if confirms => Key::ConfirmRequested,
        (State::Approved | State::Executing, None) if confirms => Key::ConfirmConfirmed,
        (State::Succeeded, None) if confirms => Key::ConfirmSucceeded,
        (State::Failed, None) if confirms => Key::ConfirmFailed,
        (State::OutcomeUnknown, None) if confirms => Key::ConfirmOutcomeUnknown,
        (State::Rejected, None) if confirms => Key::ConfirmDeclined,
        (State::Expired, None) if confirms => Key::ConfirmExpired,
        (State::Revoked, None) if confirms => Key::ApprovalRevokedUndecided,
        (State::Lapsed, None) if confirms => Key::ConfirmLapsed,
        (State::Pending, None) if mine => Key::ApprovalRequested,
        (State::Pending, None) => Key::ApprovalWaits,
        (State::Approved | State::Executing, None) => Key::ApprovalApproved,
        (State::Succeeded, None) => Key::ApprovalSucceeded,
        (State::Failed, None) => Key::ApprovalFailed,
        (State::OutcomeUnknown, None) => Key::ApprovalOutcomeUnknown,
        (State::Rejected, None) => Key::ApprovalRejected,
        (State::Expired, None) => Key::ApprovalExpired,
        (State::Cancelled, None) => Key::ApprovalCancelled,
        (State::Revoked, None) if approval.decided_by.is_none() => Key::ApprovalRevokedUndecided,
        (State::Revoked, None) => Key::ApprovalRevoked,
        (State::Lapsed, None) => Key::ApprovalLapsed,
    };
    let is_approval = matches!(
        approval.state,
        State::Approved
            | State::Executing
            | State::Succeeded
            | State::Failed
            | State::OutcomeUnknown
            | State::Revoked
            | State::Lapsed
    );
    let by = match (&approval.recorded, &approval.decided_by) {
        (Some(recorded), _) => Some(name_of(approval, &recorded.by)),
        (None, Some(_)) if is_approval && !tally.names.is_empty() => {
            Some(join_names(&texts, &tally.names))
        }
        (None, by) => by.as_ref().map(|by| name_of(approval, by)),
    };
    let note = approval
        .recorded
        .as_ref()
        .and_then(|recorded| recorded.note.as_deref());
    // People and servers wrote these texts, so line breaks in them must not start a line of their own.
    let (reason, note) = (
        one_line(approval.reason.as_deref().unwrap_or_default(), REASON),
        one_line(note.unwrap_or_default(), REASON),
    );
    let values = [
        ("code", approval.code.as_str()),
        ("server", approval.server.as_str()),
        ("tool", approval.tool.as_str()),
        ("approvers", &approval.rule.approvers.join(", ")),
        ("until", &deadline_text(app, &texts, approval.expires_at)),
        ("requester", &approval.requester_name),
        ("by", by.as_deref().unwrap_or("–")),
        ("reason", &reason),
        ("note", &note),
    ];
    let text = texts.render(key, &values).trim_end().to_owned();
    if approval.state != State::Pending || approval.rule.min_approvals < 2 {
        return text;
    }
    let votes = [
        ("given", &*tally.given.to_string()),
        ("needed", &approval.rule.min_approvals.to_string()),
    ];
    let key = if tally.is_last {
        Key::ApprovalVotesLast
    } else {
        Key::ApprovalVotes
    };
    format!("{text} {}", texts.render(key, &votes))
}

/// The names of several people in a sentence.
fn join_names(texts: &Texts<'_>, names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [others @ .., last] => {
            let others = others.join(", ");
            texts.render(Key::NamesAnd, &[("names", &others), ("last", last)])
        }
    }
}

/// The text of a request with the exact arguments of its call. The empty line and the indentation make the arguments code
/// for a frontend that shows Markdown, which would otherwise drop the backslash of a `\"`. Amounts stand below them once
/// more, as the reader writes them.
pub fn with_arguments(text: &str, arguments: &str, amounts: &BTreeMap<String, String>) -> String {
    let amounts = amounts.iter().map(|(name, written)| {
        let name = serde_json::Value::from(name.as_str()).to_string();
        format!("\n    {} = {written}", escape_unclear(&name))
    });
    let amounts = amounts.collect::<String>();
    format!("{text}\n\n    {}{amounts}", escape_unclear(arguments))
}

/// When a request expires, and the time until then in minutes, or in hours from two days on. The time is rounded up, so it
/// is never shown as less than it is. A new request of one hour says `1 h`.
fn deadline_text(app: &App, texts: &Texts<'_>, at: OffsetDateTime) -> String {
    let seconds = (at - app.clock.now()).whole_seconds().max(0);
    let minutes = round_up(seconds, 60);
    let (hours, minutes) = if minutes >= 48 * 60 {
        (round_up(minutes, 60), 0)
    } else {
        (minutes / 60, minutes % 60)
    };
    let days = texts.render(Key::TimeDays, &[("days", &(hours / 24).to_string())]);
    let left = match (hours, minutes) {
        (0, _) => format!("{minutes} min"),
        (48.., _) if hours % 24 == 0 => days,
        (48.., _) => format!("{days} {} h", hours % 24),
        (_, 0) => format!("{hours} h"),
        _ => format!("{hours} h {minutes} min"),
    };
    let left = texts.render(Key::TimeLeft, &[("left", &left)]);
    format!("{} ({left})", time_of(at))
}

/// How many units of this size a time fills or begins.
fn round_up(time: i64, unit: i64) -> i64 {
    (time + unit - 1) / unit
}
