//! Requests as the people whom they concern see them: their views, their lists, and their counts.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;

use crate::app::{
    App,
    tools::approvals::{
        approver_if_any,
        decision::{self, CountedVotes, Tally},
        delivery, execution, link, served_packs, unknown_request,
    },
};
use domain::{
    approval::{Approval, Choice, Kind, Recorded, State, Vote, parse_code},
    canonical::{Hash, Hex, parse_hash},
    clock,
    error::{Error, ErrorCode, Result},
    ids::{ApprovalId, ConversationId, UserId},
    json::Json,
    principal::Principal,
    run::ClaimedRun,
    texts::{self, Key},
};
use store::approvals::{ApprovalOwner, ApprovalSelection};

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ApprovalView {
    pub id: ApprovalId,
    /// The code that people type.
    pub code: String,
    /// `confirmation`: it asks its own requester, and nobody else may decide it.
    pub kind: Kind,
    pub state: State,
    pub agent: String,
    pub server: String,
    pub tool: String,
    /// What the call means, in the words of the pack and with the arguments in their places. Absent where the pack has
    /// none for the tool, and with arguments that were erased or cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The words alone: each `{name}` stands for the argument of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_template: Option<String>,
    /// How the server describes the tool. The description is not verified.
    pub server_says: ServerSays,
    pub requester: Person,
    /// Exactly the arguments that are sent after approval. In a list only with `include=arguments`, and absent when they
    /// were erased after its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Box<RawValue>>,
    /// Decimal numbers among the arguments as the caller's language writes them, by name. `arguments` has the exact ones.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub amounts: BTreeMap<String, String>,
    /// SHA-256 over the canonical arguments (RFC 8785, but numbers keep their digits), in hex; a decision repeats it.
    pub args_sha256: String,
    /// The roles that may decide. Empty for a confirmation.
    pub approvers: Vec<String>,
    /// How many people must approve.
    pub min_approvals: u32,
    /// Whether a requester who holds one of the roles may decide their own request.
    pub self_approval: bool,
    /// How many have approved it, as far as their approvals count.
    pub approvals: usize,
    pub votes: Vec<VoteView>,
    /// Whether the caller may decide it now.
    pub decidable: bool,
    /// Why it can be rejected and not approved: its arguments cannot be read. Only in the view of a single request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// Whether the caller made it.
    pub own: bool,
    /// The conversation that receives the outcome; only its requester sees this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub decided_by: Option<UserId>,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub decided_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// From this moment on it cannot be approved.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub finished_at: Option<OffsetDateTime>,
    /// An answer that arrived after the outcome had become unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// Its state, in words for the caller.
    pub text: String,
    /// The address of the request, for people.
    pub link: String,
}

impl ApprovalView {
    /// Its state in words, and its exact arguments if it shows them.
    pub fn text_with_arguments(&self) -> String {
        match &self.arguments {
            Some(arguments) => delivery::with_arguments(&self.text, arguments.get(), &self.amounts),
            None => self.text.clone(),
        }
    }
}

/// A server's own words. Nobody has checked them, so no heading or sentence of the program contains them.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ServerSays {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub description: String,
    /// Such as `destructiveHint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub hints: Option<serde_json::Value>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Person {
    #[schema(value_type = String)]
    pub user: UserId,
    pub name: String,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct VoteView {
    #[schema(value_type = String)]
    pub by: UserId,
    pub decision: Choice,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Whether an approval of a pending request counts. The vote of a deleted or blocked user does not, and of two
    /// voters whose ids look the same, one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<bool>,
}

/// Views of requests with their votes, for `reader`.
pub(super) async fn build_views(
    app: &App,
    reader: &Principal,
    approvals: Vec<Approval>,
) -> Result<Vec<ApprovalView>> {
    if approvals.is_empty() {
        return Ok(Vec::new());
    }
    let approver = approver_if_any(app, reader).await?;
    let packs = served_packs(app, reader.tenant).await?;
    let mut tx = app.db.tenant(reader.tenant).await?;
    let requests: Vec<_> = approvals.iter().collect();
    let counted = decision::read_votes(&mut tx, &packs, &requests).await?;
    let now = tx.now().await?;
    drop(tx);
    let view = |approval: Approval| {
        let votes = votes_of(&approval, &counted);
        let open = approval.state == State::Pending && now < approval.expires_at;
        let spoken = votes
            .iter()
            .any(|vote| vote.by == reader.user && vote.counts != Some(false));
        let may_decide = approval.asks_requester(&reader.user)
            || approver
                .as_ref()
                .is_some_and(|approver| approver.may_decide(&approval));
        let decidable = open && !spoken && may_decide;
        let tally = counted.tally(&approval, decidable);
        build_view(app, reader, approval, votes, decidable, &tally)
    };
    Ok(approvals.into_iter().map(view).collect())
}

/// The votes on a request as its readers see them.
fn votes_of(approval: &Approval, votes: &CountedVotes) -> Vec<VoteView> {
    let is_pending = approval.state == State::Pending;
    let given = votes.all.iter().filter(|vote| vote.approval == approval.id);
    let view = |vote: &Vote| VoteView {
        by: vote.by().clone(),
        decision: vote.choice,
        reason: vote.reason.clone(),
        at: vote.at,
        counts: (vote.choice == Choice::Approve && is_pending).then(|| {
            let mut counted = votes.counted.iter();
            counted.any(|other| other.approval == vote.approval && other.by() == vote.by())
        }),
    };
    given.map(view).collect()
}

fn build_view(
    app: &App,
    reader: &Principal,
    approval: Approval,
    votes: Vec<VoteView>,
    decidable: bool,
    tally: &Tally,
) -> ApprovalView {
    let own = reader.user == *approval.requester();
    let about = approval.about.clone().cleaned();
    let pack = app.packs.get(&approval.agent);
    let summary_template = pack.and_then(|pack| {
        pack.summary(
            approval.server.as_str(),
            &approval.tool,
            reader.locale.as_deref(),
        )
        .map(str::to_owned)
    });
    ApprovalView {
        text: delivery::state_text(app, &approval, reader, tally),
        summary: None,
        summary_template,
        link: link(app, approval.id),
        id: approval.id,
        code: approval.code,
        kind: approval.rule.kind(),
        state: approval.state,
        agent: approval.agent.to_string(),
        server: approval.server.to_string(),
        tool: approval.tool,
        server_says: ServerSays {
            title: about.title,
            description: about.description,
            hints: about.annotations,
        },
        requester: Person {
            user: approval.principal.user.clone(),
            name: approval.requester_name.clone(),
        },
        arguments: None,
        amounts: BTreeMap::new(),
        args_sha256: Hex(approval.args_sha256).to_string(),
        approvers: approval.rule.approvers,
        min_approvals: approval.rule.min_approvals,
        self_approval: approval.rule.self_approval,
        approvals: tally.given,
        votes,
        decidable,
        obstacle: None,
        own,
        conversation_id: approval.conversation.filter(|_| own),
        reason: approval.reason,
        decided_by: approval.decided_by,
        decided_at: approval.decided_at,
        created_at: approval.created_at,
        expires_at: approval.expires_at,
        changed_at: approval.changed_at,
        finished_at: approval.finished_at,
        evidence: approval.evidence,
        recorded: approval.recorded,
    }
}

/// Finds a request by its id or code, for the people whom it concerns: its requester, and holders of its approver
/// roles.
pub async fn find(app: &App, principal: &Principal, which: &str) -> Result<Approval> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found = match (which.parse(), parse_code(which)) {
        (Ok(id), _) => store::approvals::get(&mut tx, id).await?,
        (_, Some(code)) => store::approvals::find_by_code(&mut tx, &code).await?,
        _ => None,
    };
    drop(tx);
    let found = found.ok_or_else(|| unknown_request(which))?;
    let concerned = *found.requester() == principal.user
        || approver_if_any(app, principal)
            .await?
            .is_some_and(|approver| approver.holds_role_for(&found));
    if concerned {
        Ok(found)
    } else {
        Err(unknown_request(which))
    }
}

/// A request as the requester and the approvers see it in a list.
pub async fn view_for_list(
    app: &App,
    principal: &Principal,
    id: ApprovalId,
) -> Result<ApprovalView> {
    let approval = find(app, principal, &id.to_string()).await?;
    build_views(app, principal, vec![approval])
        .await?
        .pop()
        .ok_or_else(|| unknown_request(&id.to_string()))
}

/// A request with its arguments, for a decision. The arguments of a closed request may be erased.
pub async fn get(app: &App, principal: &Principal, which: &str) -> Result<ApprovalView> {
    let approval = find(app, principal, which).await?;
    let mut view = build_views(app, principal, vec![approval.clone()])
        .await?
        .pop()
        .ok_or_else(|| unknown_request(which))?;
    add_arguments(app, principal, &approval, &mut view).await?;
    if let Some(obstacle) = &view.obstacle {
        view.text = format!("{} {obstacle}", view.text);
    }
    Ok(view)
}

/// Adds the arguments of a request, unless they were erased, what the call means with them, or why they cannot be read.
async fn add_arguments(
    app: &App,
    principal: &Principal,
    approval: &Approval,
    view: &mut ApprovalView,
) -> Result<()> {
    if !approval.has_arguments() {
        return Ok(());
    }
    let arguments = match execution::open_arguments(app, approval).await {
        Ok(arguments) => arguments,
        Err(
            error @ (Error::KeysUnreadable | Error::Conflict(ErrorCode::ArgumentsUnreadable, _)),
        ) => {
            let pack = app.packs.get(&approval.agent);
            let texts = texts::for_optional_pack(pack.as_deref(), principal);
            let values = [
                ("code", approval.code.as_str()),
                ("reason", &texts.explain(&error)),
            ];
            let obstacle = texts.render(Key::ApprovalUnreadable, &values);
            view.obstacle = Some(obstacle).filter(|_| view.state == State::Pending);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let locale = principal.locale.as_deref();
    view.amounts = approval.about.amounts(arguments.get(), locale);
    let template = view.summary_template.as_deref();
    view.summary =
        template.and_then(|template| fill_summary(template, arguments.get(), &view.amounts));
    view.arguments = Some(arguments);
    Ok(())
}

/// The words of a pack for a call with the arguments in their places: amounts as the reader writes them, a plain word as
/// it is, and anything else as JSON, so that no text passes for words of the pack. `None` where an argument is not there.
fn fill_summary(
    template: &str,
    arguments: &str,
    amounts: &BTreeMap<String, String>,
) -> Option<String> {
    let arguments = Json::parse(arguments).ok()?;
    let is_plain = |text: &str| {
        let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
        !text.is_empty() && text.chars().all(is_of_word)
    };
    let (mut filled, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        let value = arguments.as_object()?.get(name)?;
        filled.push_str(before);
        match (amounts.get(name), value.as_text()) {
            (Some(amount), _) => filled.push_str(amount),
            (None, Some(text)) if is_plain(text) => filled.push_str(text),
            (None, _) => filled.push_str(&value.to_string()),
        }
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

/// Which requests to list.
pub struct ApprovalFilter<'a> {
    /// Requests that the principal may decide, instead of their own.
    pub as_approver: bool,
    pub has_arguments: bool,
    pub page: ApprovalSelection<'a>,
}

/// Requests in the order of the page, each with what its call means, and with its arguments if they are wanted.
pub async fn list(
    app: &App,
    principal: &Principal,
    wanted: &ApprovalFilter<'_>,
) -> Result<Vec<ApprovalView>> {
    let approver = if wanted.as_approver {
        approver_if_any(app, principal).await?
    } else {
        None
    };
    let whose = match (&approver, wanted.as_approver) {
        (Some(approver), _) => ApprovalOwner::Approver(approver),
        (None, true) => return Ok(Vec::new()),
        (None, false) => ApprovalOwner::Requester(&principal.user),
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found = store::approvals::list(&mut tx, whose, wanted.page).await?;
    drop(tx);
    let mut views = build_views(app, principal, found.clone()).await?;
    for (view, approval) in views.iter_mut().zip(&found) {
        if wanted.has_arguments || view.summary_template.is_some() {
            add_arguments(app, principal, approval, view).await?;
        }
        if !wanted.has_arguments {
            (view.arguments, view.amounts) = (None, BTreeMap::new());
        }
    }
    Ok(views)
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

/// How soon after an answer was read its reading is recorded.
const RECORDED_WITHIN: Duration = Duration::from_secs(2);
const RECORD_POLL: Duration = Duration::from_millis(50);

/// How the conversation of a run has shown a request before the run was requested.
pub enum LastSeen {
    Never,
    /// Less than a second before.
    JustNow,
    /// With arguments of this hash.
    Seen(Hash),
}

/// How the conversation of a run last showed the arguments of a request, before the run was requested. Waits until the
/// reading of that answer is recorded, which may be a moment after the client's next question.
pub async fn last_shown(app: &App, run: &ClaimedRun, id: ApprovalId) -> Result<LastSeen> {
    let deadline = clock::instant() + RECORDED_WITHIN;
    loop {
        let mut tx = app.db.tenant(run.tenant).await?;
        let shown =
            store::approvals::find_last_shown(&mut tx, run.conversation, run.id, id).await?;
        drop(tx);
        match shown {
            Some(shown) if shown.is_too_recent => return Ok(LastSeen::JustNow),
            Some(shown) if !shown.is_underway => return Ok(LastSeen::Seen(shown.hash)),
            Some(_) if clock::instant() < deadline => tokio::time::sleep(RECORD_POLL).await,
            _ => return Ok(LastSeen::Never),
        }
    }
}

/// How many requests wait for this principal's decision.
pub async fn decidable_count(app: &App, principal: &Principal) -> Result<i64> {
    let Some(approver) = approver_if_any(app, principal).await? else {
        return Ok(0);
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::approvals::count_undecided(&mut tx, &approver).await
}

/// How many of this principal's own requests are open.
pub async fn own_open_count(app: &App, principal: &Principal) -> Result<i64> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::approvals::count_open_of_requester(&mut tx, &principal.user).await
}
