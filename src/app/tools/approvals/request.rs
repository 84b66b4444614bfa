//! Making a request of a call: its arguments are sealed, it gets a code, and its conversation shows it.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use crate::app::{
    App,
    tools::approvals::{
        AuditedStep, audit, client_calls, context, decision::Tally, delivery, notify_listeners,
        time_of,
    },
};
use domain::{
    approval::{About, Approval, ApprovalRule, Choice, Kind, State, Vote, code},
    canonical,
    error::{Error, ErrorCode, Result},
    event::Event,
    ids::{AgentId, ApprovalId, RunId, ServerId, UserId},
    lookalike::spell_out,
    message::{Part, Role},
    policy::{ApprovalPolicy, Origin},
    principal::Principal,
    run::RunKind,
    secret::Secret,
    skill::words,
    tool::Tool,
};
use store::{
    Tx,
    approvals::{NewApproval, OpenRequests},
    messages::NewMessage,
};

/// How often a code is drawn while other open requests have the same.
const CODES: usize = 12;

/// A call that needs consent.
pub struct ApprovalRequest<'a> {
    pub principal: &'a Principal,
    pub agent: &'a AgentId,
    pub server: &'a ServerId,
    pub tool: &'a Tool,
    pub policy: &'a ApprovalPolicy,
    /// Whether the request itself counts as the first of the approvals that the policy wants.
    pub counts_requester: bool,
    /// Canonical JSON, validated and with its defaults: exactly the arguments that will be sent.
    pub arguments: &'a str,
    /// The identity of the credential that the call would be sent with.
    pub credential: &'a str,
    /// `None` for a client that calls tools itself and asks for the outcome.
    pub run: Option<RunId>,
    pub call_id: &'a str,
    pub origin: Origin,
    /// Whether the answer of the run shows the request to its user.
    pub is_shown: bool,
}

/// A call that waits for consent, as [`request`] left it.
pub struct Requested {
    pub approval: Approval,
    /// How many approvals it begins with; `None` if the call was waiting in this conversation before.
    pub begins_with: Option<usize>,
    /// The code of a request for the same call that waits in another conversation.
    pub equal_elsewhere: Option<String>,
}

/// Stores a call until an approver decides. The same call of the same person waits once per conversation; in another
/// conversation it is a request of its own, so that each conversation receives an outcome. The caps are checked before
/// the insert, so concurrent calls may exceed them by their number.
pub async fn request(app: &Arc<App>, asked: ApprovalRequest<'_>) -> Result<Requested> {
    let principal = asked.principal;
    let id = ApprovalId::new();
    let sealed = seal(app, &asked, id).await?;
    let about = describe_tool(asked.tool);
    let rule = ApprovalRule::from(asked.policy);
    let fingerprint =
        canonical::fingerprint(asked.tool).map_err(|why| Error::Internal(anyhow::anyhow!(why)))?;
    let trace = telemetry::current();
    let mut tx = app.db.tenant(principal.tenant).await?;
    let origin = match asked.run {
        // The run was deleted with its conversation: nobody would learn of the request or take it back.
        Some(run) => Some(
            store::approvals::get_run_origin(&mut tx, run)
                .await?
                .ok_or_else(run_deleted)?,
        ),
        None => None,
    };
    let requester_name = name_for_others(&mut tx, principal).await?;
    let new = NewApproval {
        id,
        principal,
        requester_name: &requester_name,
        agent: asked.agent,
        server: asked.server,
        tool: &asked.tool.name,
        about: &about,
        fingerprint,
        args_sha256: canonical::hash(asked.arguments),
        sealed: &sealed,
        credential: asked.credential,
        run: asked.run,
        conversation: origin.map(|(conversation, ..)| conversation),
        call_id: asked.call_id,
        origin: asked.origin,
        follow_up: origin.is_some_and(|(.., kind)| kind == RunKind::Turn),
        rule: &rule,
        timeout: Duration::from_secs(u64::from(asked.policy.timeout_minutes) * 60),
        trace: trace.as_ref(),
    };
    let run_ordinal = origin.map_or(0, |(_, ordinal, _)| ordinal);
    if let Some(same) = find_same(&mut tx, &new).await? {
        return requested_again(app, tx, same, &asked, run_ordinal).await;
    }
    let equal_elsewhere = store::approvals::find_elsewhere(&mut tx, &new).await?;
    check_caps(app, &mut tx, &principal.user, rule.kind()).await?;
    let approval = match insert_with_code(&mut tx, &new).await? {
        Inserted::New(approval) => approval,
        Inserted::Same(same) => {
            return requested_again(app, tx, same, &asked, run_ordinal).await;
        }
    };
    if asked.counts_requester {
        vote_as_requester(app, &mut tx, &approval).await?;
    }
    if new.run.is_none() {
        client_calls::await_result(&mut tx, approval.id).await?;
    }
    announce_request(app, tx, &approval, &asked, run_ordinal).await?;
    Ok(Requested {
        approval,
        begins_with: Some(usize::from(asked.counts_requester)),
        equal_elsewhere,
    })
}

/// The name of a requester for approvers. The id is added when another user's name looks the same.
async fn name_for_others(tx: &mut Tx, principal: &Principal) -> Result<String> {
    let name = principal.display_name();
    if principal.authenticated && store::users::has_lookalike(tx, principal).await? {
        return Ok(format!(
            "{name} [{}]",
            spell_out(&principal.user.display_name())
        ));
    }
    Ok(name)
}

fn run_deleted() -> Error {
    let why = "not executed: the conversation that wants it was deleted";
    Error::conflict(ErrorCode::RunOver, why)
}

async fn seal(app: &App, asked: &ApprovalRequest<'_>, id: ApprovalId) -> Result<Vec<u8>> {
    if !app.keys.has_ring() {
        let why = "there is no key to keep its arguments with; the operator has to set MCP_CONFIG_ENCRYPTION_KEY";
        return Err(Error::Unavailable(why.to_owned()));
    }
    let sealed_for = context(asked.principal, asked.agent, asked.server, id);
    let arguments = Secret::new(asked.arguments);
    app.keys
        .seal(asked.principal.tenant, &sealed_for, &arguments)
        .await
}

fn describe_tool(tool: &Tool) -> About {
    let annotations = tool
        .annotations
        .as_ref()
        .and_then(|hints| serde_json::from_str(hints.get()).ok());
    About {
        title: tool.title.clone(),
        description: tool.description.clone(),
        annotations,
        decimals: words::decimals(&tool.input_schema),
    }
}

enum Inserted {
    New(Approval),
    /// Another transaction has inserted the same request meanwhile.
    Same(Approval),
}

/// Inserts the request with a code that is free.
async fn insert_with_code(tx: &mut Tx, new: &NewApproval<'_>) -> Result<Inserted> {
    for attempt in 0..CODES {
        if let Some(approval) = store::approvals::insert(tx, new, &code(attempt)).await? {
            return Ok(Inserted::New(approval));
        }
        if let Some(same) = find_same(tx, new).await? {
            return Ok(Inserted::Same(same));
        }
    }
    Err(Error::Busy {
        reason: "no code is free; try again".to_owned(),
        retry_after: Duration::from_secs(1),
    })
}

/// Finds an open request for the same call. For a client, a request that has ended also counts until the client has
/// received its outcome.
async fn find_same(tx: &mut Tx, new: &NewApproval<'_>) -> Result<Option<Approval>> {
    match store::approvals::find_same(tx, new).await? {
        None if new.run.is_none() => client_calls::find_uncollected(tx, new).await,
        same => Ok(same),
    }
}

/// The result for a call whose request exists already. A client will ask for its outcome, so the outcome is kept for
/// it. A user who has not confirmed the call yet is asked again.
async fn requested_again(
    app: &App,
    mut tx: Tx,
    same: Approval,
    asked: &ApprovalRequest<'_>,
    run_ordinal: i64,
) -> Result<Requested> {
    if same.run.is_none() && same.conversation.is_none() {
        client_calls::await_result(&mut tx, same.id).await?;
        tx.commit().await?;
    } else if same.state == State::Pending && same.rule.kind() == Kind::Confirmation {
        let event = show_request(app, &mut tx, &same, asked, run_ordinal).await?;
        tx.commit().await?;
        announce_event(app, &same, event);
    }
    Ok(Requested {
        approval: same,
        begins_with: None,
        equal_elsewhere: None,
    })
}

async fn vote_as_requester(app: &App, tx: &mut Tx, approval: &Approval) -> Result<()> {
    let vote = Vote {
        approval: approval.id,
        voter: approval.principal.clone(),
        choice: Choice::Approve,
        reason: None,
        at: app.clock.now(),
    };
    store::approvals::add_vote(tx, approval.tenant, &vote).await
}

async fn check_caps(app: &App, tx: &mut Tx, requester: &UserId, kind: Kind) -> Result<()> {
    let OpenRequests { own, for_others } = store::approvals::count_open(tx, requester).await?;
    let (most_own, most) = (
        app.config.approvals_per_user,
        app.config.approvals_per_tenant,
    );
    if own >= i64::from(most_own) {
        let why = format!(
            "{own} calls of this user wait for approval already, and at most {most_own} may; cancel one"
        );
        return Err(Error::conflict(ErrorCode::LimitReached, why));
    }
    if kind == Kind::Approval && for_others >= i64::from(most) {
        return Err(Error::conflict(
            ErrorCode::LimitReached,
            format!("{for_others} calls wait for approval already, and at most {most} may"),
        ));
    }
    Ok(())
}

/// The text of a call that waits, and the advice to the model. A new request begins with some approvals.
pub fn waiting_text(approval: &Approval, begins_with: Option<usize>) -> (String, &'static str) {
    let (code, approvers) = (&approval.code, approval.rule.approvers.join(" or "));
    match approval.state {
        State::Pending => {}
        State::Approved | State::Executing => {
            let text = format!(
                "not executed again: request {code} for this very call is approved and being carried out"
            );
            return (text, "do not retry");
        }
        ended => {
            let text = format!(
                "not executed again: request {code} for this very call is over ({}), and its outcome is told in the \
                 conversation",
                ended.into_str()
            );
            return (text, "do not retry");
        }
    }
    let again = begins_with.map_or("still ", |_| "");
    let until = time_of(approval.expires_at);
    if approval.rule.kind() == Kind::Confirmation {
        let text = format!(
            "not executed: {again}waiting for the user to confirm it ({code}) until {until}"
        );
        let advice = "do not retry, and do not confirm it for them: only the user can, with /confirm and the code or \
                      /decline and the code. Tell them what the call would do. You will be told the outcome.";
        return (text, advice);
    }
    let needs = needs_text(approval.rule.min_approvals, begins_with);
    let text = format!(
        "not executed: {again}waiting for approval {code} by {approvers} until {until}{needs}"
    );
    let advice = "do not retry. Tell the user the code, who can approve it and how many have to. You will be told the \
                  outcome.";
    (text, advice)
}

/// How many approvals a request needs, for a model or a program; empty for one.
pub fn needs_text(needed: u32, given: Option<usize>) -> String {
    match (needed, given) {
        (0 | 1, _) => String::new(),
        (_, Some(given)) => format!("; it needs {needed} approvals, {given} so far"),
        (_, None) => format!("; it needs {needed} approvals"),
    }
}

/// Shows a request in its conversation, if it has one. A user who is asked to confirm a call sees its exact arguments.
async fn show_request(
    app: &App,
    tx: &mut Tx,
    approval: &Approval,
    asked: &ApprovalRequest<'_>,
    run_ordinal: i64,
) -> Result<Option<Event>> {
    let Some(conversation) = approval.conversation else {
        return Ok(None);
    };
    let tally = Tally {
        given: usize::from(asked.counts_requester),
        ..Tally::default()
    };
    let mut note = delivery::note(app, approval, None, &tally);
    if note.kind == Kind::Confirmation {
        let locale = approval.principal.locale.as_deref();
        let amounts = approval.about.amounts(asked.arguments, locale);
        note.text = delivery::with_arguments(&note.text, asked.arguments, &amounts);
        let arguments = RawValue::from_string(asked.arguments.to_owned());
        note.arguments = Some(arguments.map_err(Error::internal)?);
        if let Some(run) = asked.run.filter(|_| asked.is_shown) {
            let shown = [(approval.id, approval.args_sha256)];
            store::approvals::remember_shown(tx, conversation, run, &shown).await?;
        }
    }
    let message = NewMessage {
        run: asked.run,
        run_ordinal,
        role: Role::System,
        parts: &[Part::Approval(Box::new(note))],
        for_model: false,
    };
    let (_, event) = store::messages::append(tx, approval.tenant, conversation, message).await?;
    Ok(Some(event))
}

/// Tells the listeners of the conversation, after the commit.
fn announce_event(app: &App, approval: &Approval, event: Option<Event>) {
    if let Some((conversation, event)) = approval.conversation.zip(event) {
        app.announce(approval.tenant, conversation, event);
    }
}

/// Shows a new request in its conversation, records it and commits.
async fn announce_request(
    app: &Arc<App>,
    mut tx: Tx,
    approval: &Approval,
    asked: &ApprovalRequest<'_>,
    run_ordinal: i64,
) -> Result<()> {
    let event = show_request(app, &mut tx, approval, asked, run_ordinal).await?;
    let step = AuditedStep::new("approval.requested", approval.requester());
    audit(app, &mut tx, approval, step).await?;
    tx.commit().await?;
    announce_event(app, approval, event);
    notify_listeners(app, approval);
    metrics::counter!("chatelaine_approvals_requested_total").increment(1);
    Ok(())
}
