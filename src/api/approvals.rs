//! Approval requests: calls that wait for consent, and the stream of their changes (SSE). A request is visible to its
//! requester and to users who have one of its approver roles now; any other user gets 404. A decision names the request
//! by its id and repeats the hash of the arguments that the approver saw.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{Response, sse},
};
use futures_util::{Stream, StreamExt, stream};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    ApiState, events,
    extract::{Caller, Json, Listener, MAX_USER, Path, Query, check_text},
    limits::{self, RequestPermit},
    paging::{check_limit, default_limit, split_page},
    problem::Problem,
};
use crate::app::{
    self, App,
    tools::approvals::{
        ApprovalFilter, ApprovalSelection, Ballot, Waiting,
        listening::{ApprovalStream, ApprovalUpdate, Badge},
        view::ApprovalView,
    },
};
use domain::{
    approval::{Approval, Choice, State as Status},
    canonical::parse_hash,
    error::{Error, ErrorCode},
    event::StreamEnd,
    ids::ApprovalId,
};

/// The most characters of a reason or a note.
const MAX_REASON: usize = 1000;

#[derive(Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ApprovalRole)]
pub(super) enum Role {
    /// Those that I may decide or see decided.
    #[default]
    Approver,
    /// Those that I made.
    Requester,
}

/// Which requests come first.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    #[default]
    Newest,
    Oldest,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApprovalsQuery {
    /// As whom I look.
    #[serde(default)]
    #[param(inline)]
    role: Role,
    /// Only those in this state.
    #[param(inline)]
    state: Option<Status>,
    /// Only those for this tool.
    #[param(min_length = 1, max_length = 330, pattern = r"\S")]
    tool: Option<String>,
    /// Only those of this user, by id.
    #[param(min_length = 1, max_length = 330, pattern = r"\S")]
    requester: Option<String>,
    /// Only those that wait for my decision.
    #[serde(default)]
    decidable: bool,
    /// `newest` first, the default, or `oldest` first.
    #[serde(default)]
    #[param(inline)]
    order: Order,
    /// Only those behind this one, in this order: the `next` of the page before.
    #[serde(alias = "before")]
    cursor: Option<ApprovalId>,
    /// `arguments` adds those of each request, so that a queue can be decided from one answer.
    #[param(inline)]
    include: Option<Include>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100)]
    limit: i64,
}

#[derive(Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ApprovalInclude)]
pub(super) enum Include {
    Arguments,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct ApprovalPage {
    items: Vec<ApprovalView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<ApprovalId>,
}

/// Calls that wait or waited for consent.
///
/// For requesters their own, for approvers those of the agents and tools whose role they hold. A queue is
/// `decidable=true&order=oldest&include=arguments`.
#[utoipa::path(get, path = "/v1/approvals", operation_id = "listApprovals", tag = "approvals",
    params(ApprovalsQuery), responses((status = 200, body = ApprovalPage)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(which): Query<ApprovalsQuery>,
) -> Result<axum::Json<ApprovalPage>, Problem> {
    let limit = check_limit(which.limit, 100)?;
    for (field, text) in [("tool", &which.tool), ("requester", &which.requester)] {
        if let Some(text) = text {
            check_text(field, text, MAX_USER)?;
        }
    }
    let page = ApprovalSelection {
        state: which.state,
        tool: which.tool.as_deref(),
        requester: which.requester.as_deref(),
        waiting: which.decidable.then_some(Waiting::All),
        oldest_first: which.order == Order::Oldest,
        after: which.cursor,
        limit: limit + 1,
    };
    let filter = ApprovalFilter {
        as_approver: matches!(which.role, Role::Approver),
        has_arguments: which.include.is_some(),
        page,
    };
    let items = app::tools::approvals::list(&app, caller.principal(), &filter).await?;
    let (items, next) = split_page(items, limit, |view| view.id);
    Ok(axum::Json(ApprovalPage { items, next }))
}

/// One of them by its id or code, with everything that a decision needs.
///
/// For its requester and its approvers. The `args_sha256` of the answer is what a decision names.
#[utoipa::path(get, path = "/v1/approvals/{id}", operation_id = "getApproval", tag = "approvals",
    params(("id" = String, Path)), responses((status = 200, body = ApprovalView)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(which): Path<String>,
) -> Result<axum::Json<ApprovalView>, Problem> {
    Ok(axum::Json(
        app::tools::approvals::get(&app, caller.principal(), &which).await?,
    ))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DecisionRequest)]
pub(super) struct NewDecision {
    decision: Choice,
    /// The id of the request as it was shown. May be left out where the path names the request by its id: a code alone
    /// names no request for good.
    id: Option<ApprovalId>,
    /// For the requester and the other approvers; at most 1000 characters.
    #[schema(min_length = 1, max_length = 1000, pattern = r"\S")]
    reason: Option<String>,
    /// The `args_sha256` of the request as it was shown: this and nothing else is decided about.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    args_sha256: String,
}

/// Approve or reject what was shown, or confirm or decline it as its requester.
///
/// The decision is about one request, by its id, with these arguments, by their hash. The same decision again is
/// answered the same; another one, one that comes too late, or one about something else than what was shown is
/// refused.
#[utoipa::path(post, path = "/v1/approvals/{id}/decision", operation_id = "decideApproval", tag = "approvals",
    params(("id" = String, Path)), request_body = NewDecision,
    responses((status = 200, body = ApprovalView), (status = 409,
            description = "arguments_changed, already_decided, already_voted, approval_revoked, \
            arguments_unreadable, lookalike_user")))]
pub(super) async fn decide(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(which): Path<String>,
    Json(new): Json<NewDecision>,
) -> Result<axum::Json<ApprovalView>, Problem> {
    if let Some(reason) = &new.reason {
        check_text("reason", reason, MAX_REASON)?;
    }
    let unreadable = || {
        Problem::invalid(
            "args_sha256",
            "must be 64 hex digits, as the request shows them",
        )
    };
    let args_sha256 = parse_hash(&new.args_sha256).ok_or_else(unreadable)?;
    let approval = app::tools::approvals::find(&app, caller.principal(), &which).await?;
    let approver = app::tools::approvals::decider(&app, caller.principal(), &approval).await?;
    let shown_id = new.id.or_else(|| which.parse().ok()).ok_or_else(|| {
        Problem::invalid(
            "id",
            "must be the id of the request as it was shown: another request may have its code by now",
        )
    })?;
    if shown_id != approval.id {
        return Err(other_request_error(&approval).into());
    }
    let ballot = Ballot {
        choice: new.decision,
        reason: new.reason,
        args_sha256,
    };
    let approval = app::tools::approvals::decide(&app, &approver, approval.id, ballot).await?;
    view(&app, &caller, &approval).await
}

/// The error for a decision about another request than the one that the path names.
fn other_request_error(approval: &Approval) -> Error {
    let why = format!(
        "{} is another request than the one that was shown; look at it and decide anew",
        approval.code
    );
    Error::conflict(ErrorCode::ArgumentsChanged, why)
}

/// Take one's own request back.
///
/// For its requester, while it is open. Again is answered the same.
#[utoipa::path(post, path = "/v1/approvals/{id}/cancel", operation_id = "cancelApproval", tag = "approvals",
    params(("id" = String, Path)),
    responses((status = 200, body = ApprovalView), (status = 409, description = "already_decided")))]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(which): Path<String>,
) -> Result<axum::Json<ApprovalView>, Problem> {
    let approval = app::tools::approvals::find(&app, caller.principal(), &which).await?;
    let approval = app::tools::approvals::cancel(&app, caller.principal(), approval.id).await?;
    view(&app, &caller, &approval).await
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OutcomeRequest)]
pub(super) struct NewOutcome {
    /// Whether the call was carried out after all.
    happened: bool,
    /// How one knows; at most 1000 characters.
    #[schema(min_length = 1, max_length = 1000, pattern = r"\S")]
    note: Option<String>,
}

/// Record what really happened to a call of unknown outcome.
///
/// For its approvers and for a requester who has confirmed it. It runs nothing. The first word counts, and the
/// same again is answered the same.
#[utoipa::path(post, path = "/v1/approvals/{id}/outcome", operation_id = "recordOutcome", tag = "approvals",
    params(("id" = String, Path)), request_body = NewOutcome,
    responses((status = 200, body = ApprovalView), (status = 409, description = "outcome_known")))]
pub(super) async fn record(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(which): Path<String>,
    Json(new): Json<NewOutcome>,
) -> Result<axum::Json<ApprovalView>, Problem> {
    if let Some(note) = &new.note {
        check_text("note", note, MAX_REASON)?;
    }
    let approval = app::tools::approvals::find(&app, caller.principal(), &which).await?;
    let approver = app::tools::approvals::decider(&app, caller.principal(), &approval).await?;
    let note = new.note.as_deref();
    let approval =
        app::tools::approvals::record(&app, &approver, approval.id, new.happened, note).await?;
    view(&app, &caller, &approval).await
}

async fn view(
    app: &App,
    caller: &Caller,
    approval: &Approval,
) -> Result<axum::Json<ApprovalView>, Problem> {
    Ok(axum::Json(
        app::tools::approvals::get(app, caller.principal(), &approval.id.to_string()).await?,
    ))
}

/// News for the caller: `badge` and `approval`.
///
/// `badge` says how many requests wait for the caller, how many of theirs are open and, for admins, how many
/// changed tools wait. `approval` is one request as it stands now. Both are states, so hearing one twice changes
/// nothing. First comes the badge and what is open; with `Last-Event-ID`, what changed since then, and a few
/// seconds before (at least once).
#[utoipa::path(get, path = "/v1/events", operation_id = "listenToEvents", tag = "approvals",
    params(("Last-Event-ID" = Option<String>, Header),
    ("ticket" = Option<String>, Query, description = "Of `POST /v1/events/ticket`, instead of a credential.")),
    responses((status = 200, body = Badge, content_type = "text/event-stream"),
        (status = 429, description = "too_many_streams")))]
pub(super) async fn listen(
    State(state): State<ApiState>,
    Listener {
        principal,
        is_admin,
    }: Listener,
    Extension(permit): Extension<RequestPermit>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let last = headers
        .get("last-event-id")
        .filter(|value| !value.is_empty());
    let last = last.map(|value| {
        value
            .to_str()
            .ok()
            .filter(|id| app::tools::approvals::listening::time_of_id(id).is_some())
    });
    let unknown = || Problem::invalid("Last-Event-ID", "must be the id of an event of this stream");
    let last = last.map(|id| id.ok_or_else(unknown)).transpose()?;
    let open = state.limits.open_stream(&principal)?;
    let listening =
        app::tools::approvals::listening::listen(&state.app, &principal, is_admin, last).await?;
    permit.release();
    let first = stream::iter([sse::Event::default()
        .retry(events::RETRY)
        .comment("listening")]);
    let session_end = state.app.accounts.wait_for_session_end(&principal);
    let updates = updates(listening, open);
    Ok(events::answer(
        first.chain(events::until_end(updates, session_end)),
    ))
}

/// The events of the stream, and why there are no more.
fn updates(
    listening: ApprovalStream,
    open: limits::Stream,
) -> impl Stream<Item = Result<sse::Event, StreamEnd>> {
    let end = Instant::now() + events::LIFETIME;
    stream::unfold((listening, open), move |(mut listening, open)| async move {
        let next = tokio::time::timeout_at(end, listening.next()).await;
        let next = events::next_or_end(next).map(|update| event(&update));
        Some((next, (listening, open)))
    })
}

fn event(update: &ApprovalUpdate) -> sse::Event {
    let event = match update {
        ApprovalUpdate::Badge(badge) => sse::Event::default().event("badge").json_data(badge),
        ApprovalUpdate::Approval(view) => sse::Event::default().event("approval").json_data(view),
    };
    let event = event.expect("news are plain data that can be written");
    match update.id() {
        Some(id) => event.id(id),
        None => event,
    }
}
