//! Runs: each is one turn of an agent. A program starts them with parameters, which the model reads, and a scope, which
//! only servers receive. The registry document has the same routes without `/v1`.

use std::{str::FromStr, sync::Arc};

use axum::{
    Extension,
    extract::{FromRequest, Request, State},
};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    ApiState,
    extract::{Caller, Json, Located, Path, Query, located},
    limits::RequestPermit,
    paging::{check_limit, default_limit, split_page},
    problem::Problem,
    request_key::{self, Keyed},
};
use crate::app::{
    self, App,
    runs::{
        OpenRequests, RunFilter, RunView,
        ending::wait,
        starting::{self, RunCheck, RunInitiator, RunSpec, RunTarget, begin},
    },
};
use domain::{
    canonical,
    error::{Error, ErrorCode, Reason},
    ids::{ConversationId, RunId},
    json::Members,
    request_key::RequestKey,
    run::{Mode, Run, RunStatus},
};

/// The header with the session to which a new session belongs, and which a run in mode `async_callback` calls back.
const SESSION_HEADER: &str = "x-agent-session-id";

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RunRequest)]
pub(super) struct NewRun {
    /// `start_session`, the default, or `resume_session`.
    #[schema(value_type = Option<RunType>)]
    r#type: Option<String>,
    /// The agent's id, to start a session.
    agent_name: Option<String>,
    /// The session to resume.
    session_id: Option<String>,
    /// What the agent is to do. Together with `params` at most 100000 characters.
    prompt: Option<String>,
    /// What the agent's `paramsSchema` wants; the model reads it.
    #[schema(value_type = Option<Object>)]
    params: Option<Box<RawValue>>,
    /// What only the servers of the run are told, and of the runs that it starts. Never shown again.
    #[schema(value_type = Option<Object>)]
    scope: Option<Box<RawValue>>,
    /// `sync`: the answer is the result. `async_poll`, the default: ask for it. `async_callback`: the session that
    /// `X-Agent-Session-Id` names is told.
    #[schema(value_type = Option<RunMode>)]
    mode: Option<String>,
}

/// The values of `type`. A text is read instead of this enum, because the registry document words the refusal of others.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "read by the derive only")]
enum RunType {
    StartSession,
    ResumeSession,
}

/// The values of `mode`, read as a text like `type`.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "read by the derive only")]
enum RunMode {
    Sync,
    AsyncPoll,
    AsyncCallback,
}

/// A request for a new run: its body, its key and its headers.
pub(super) struct NewRunRequest {
    new: NewRun,
    key: Option<RequestKey>,
    /// The session that [`SESSION_HEADER`] names.
    parent: Option<ConversationId>,
    /// The path that the client used. The address of the run is below it.
    path: String,
}

/// A run that was started.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Started {
    run_id: RunId,
    session_id: ConversationId,
    agent_name: String,
    /// `pending`; in mode `sync` as it ended, or `running` when that takes longer.
    status: &'static str,
    /// In mode `sync`: what the agent said.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    /// In mode `sync`: why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl FromRequest<ApiState> for NewRunRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let path = request.uri().path().to_owned();
        let parent = parent_of(request.headers());
        let Keyed(new, key) = Keyed::from_request(request, state).await?;
        Ok(Self {
            new,
            key,
            parent: parent?,
            path,
        })
    }
}

impl NewRun {
    /// Checks the request and makes the specification of the run.
    fn read(self, parent: Option<ConversationId>) -> Result<(RunSpec, Mode), Problem> {
        let mode = self
            .mode
            .as_deref()
            .map_or(Ok(Mode::AsyncPoll), Mode::from_str);
        let mode = mode.map_err(|why| Problem::invalid("mode", Reason::Sentence(why)))?;
        let target = match self.r#type.as_deref().unwrap_or("start_session") {
            "start_session" if self.session_id.is_some() => {
                let why =
                    "is for `\"type\": \"resume_session\"`; leave it out to start a new session";
                return Err(Problem::invalid("session_id", why));
            }
            "start_session" => RunTarget::Start {
                agent: require("agent_name", self.agent_name)?,
            },
            "resume_session" => RunTarget::Resume {
                session: read_session(&require("session_id", self.session_id)?)?,
            },
            other => {
                let why =
                    format!("Invalid type: {other}. Must be one of: start_session, resume_session");
                return Err(Problem::invalid("type", Reason::Sentence(why)));
            }
        };
        if mode == Mode::AsyncCallback && parent.is_none() {
            let why = "async_callback mode requires X-Agent-Session-Id header".to_owned();
            return Err(Problem::invalid("mode", Reason::Sentence(why)));
        }
        let spec = RunSpec {
            target,
            prompt: self.prompt.unwrap_or_default(),
            params: read_object("params", self.params)?,
            scope: read_object("scope", self.scope)?,
            callback: parent.filter(|_| mode == Mode::AsyncCallback),
            parent_session: parent,
            key: None,
        };
        Ok((spec, mode))
    }
}

fn require(field: &str, value: Option<String>) -> Result<String, Problem> {
    value.ok_or_else(|| Problem::unfit(ErrorCode::MissingField, field, "is missing"))
}

fn read_session(text: &str) -> Result<ConversationId, Problem> {
    text.parse()
        .map_err(|_| Error::SessionNotFound(text.chars().take(64).collect()).into())
}

/// Reads an object. The error never repeats the value, because a scope is secret.
fn read_object(field: &str, value: Option<Box<RawValue>>) -> Result<Members, Problem> {
    let Some(value) = value else {
        return Ok(Members::default());
    };
    if canonical::ambiguity(value.get()).is_some() {
        return Err(Problem::invalid(field, "holds a name twice"));
    }
    serde_json::from_str(value.get())
        .map_err(|_| Problem::unfit(ErrorCode::WrongType, field, "must be an object"))
}

/// Start an agent, or go on with a session.
///
/// `mode` says whether the answer waits for the end (200) or not (202). A wait that lasts too long is answered
/// with 202, too.
#[utoipa::path(post, path = "/v1/runs", operation_id = "startRun", tag = "runs", request_body = NewRun,
    params(("X-Agent-Session-Id" = Option<ConversationId>, Header)),
    responses((status = 200, body = Started), (status = 202, body = Started),
        (status = 409, description = "agent_has_no_model, session_busy"),
        (status = 429, description = "too_many_streams, too_many_runs, quota_exceeded")))]
pub(super) async fn create(
    State(state): State<ApiState>,
    caller: Caller,
    Extension(permit): Extension<RequestPermit>,
    request: NewRunRequest,
) -> Result<Located<Started>, Problem> {
    let app = &state.app;
    let (mut spec, mode) = request.new.read(request.parent)?;
    let waits = mode == Mode::Sync;
    let _stream = waits
        .then(|| state.limits.open_stream(caller.principal()))
        .transpose()?;
    spec.key.clone_from(&request.key);
    let (principal, key) = (caller.principal(), request.key.as_ref());
    let mut earlier = request_key::join_earlier(app, principal, key).await?;
    let mut begun = None;
    if earlier.is_none() {
        match begin(app, RunInitiator::Program(principal), spec).await {
            Err(Error::Repeated) => {
                earlier = request_key::join_earlier(app, principal, key).await?;
            }
            made => begun = Some(made?),
        }
    }
    let begun = match (begun, earlier) {
        (Some(begun), _) => begun,
        (None, Some(earlier)) => starting::load_started(app, principal, earlier).await?,
        (None, None) => return Err(Error::Repeated.into()),
    };
    let mut started = Started {
        run_id: begun.run,
        session_id: begun.session,
        agent_name: begun.agent.to_string(),
        status: "pending",
        result: None,
        error: None,
    };
    let location = format!("{}/{}", request.path, begun.run);
    if !waits {
        return Ok(located(StatusCode::ACCEPTED, location, started));
    }
    permit.release();
    let run = wait(app, caller.principal(), &begun).await?;
    started.status = run.status.into_str();
    if !run.status.is_final() {
        return Ok(located(StatusCode::ACCEPTED, location, started));
    }
    let view = app::runs::view(app, caller.principal(), begun.run).await?;
    (started.result, started.error) = (view.result, view.run.error);
    Ok(located(StatusCode::OK, location, started))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunsQuery {
    /// Only those of this conversation.
    conversation: Option<ConversationId>,
    /// Only those in this state.
    status: Option<RunStatus>,
    /// The `next` of the page before.
    cursor: Option<RunId>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100)]
    limit: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct RunPage {
    items: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<RunId>,
}

/// The caller's runs, the newest first, without their results.
///
/// `conversation` asks for those of one conversation.
#[utoipa::path(get, path = "/v1/runs", operation_id = "listRuns", tag = "runs", params(RunsQuery),
    responses((status = 200, body = RunPage)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(which): Query<RunsQuery>,
) -> Result<axum::Json<RunPage>, Problem> {
    let limit = check_limit(which.limit, 100)?;
    let filter = RunFilter {
        conversation: which.conversation,
        status: which.status,
        cursor: which.cursor,
        limit: limit + 1,
    };
    let items = app::runs::list(&app, caller.principal(), filter).await?;
    let (items, next) = split_page(items, limit, |run| run.id);
    Ok(axum::Json(RunPage { items, next }))
}

/// Try out what would be started, and start nothing.
///
/// The checks are those of `POST /v1/runs`.
#[utoipa::path(post, path = "/v1/runs/check", operation_id = "checkRun", tag = "runs", request_body = NewRun,
    params(("X-Agent-Session-Id" = Option<ConversationId>, Header)),
    responses((status = 200, body = RunCheck), (status = 409, description = "agent_has_no_model, session_busy")))]
pub(super) async fn check(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    Json(new): Json<NewRun>,
) -> Result<axum::Json<RunCheck>, Problem> {
    let (spec, _) = new.read(parent_of(&headers)?)?;
    let by = RunInitiator::Program(caller.principal());
    Ok(axum::Json(starting::check(&app, by, &spec).await?))
}

fn parent_of(headers: &HeaderMap) -> Result<Option<ConversationId>, Problem> {
    let parent = headers.get(SESSION_HEADER);
    parent
        .map(|value| read_session(value.to_str().unwrap_or_default()))
        .transpose()
}

/// How a run is doing, and what came of it.
///
/// For the user whose run it is.
#[utoipa::path(get, path = "/v1/runs/{id}", operation_id = "getRun", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 200, body = RunView)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<RunId>,
) -> Result<axum::Json<RunView>, Problem> {
    Ok(axum::Json(
        app::runs::view(&app, caller.principal(), id).await?,
    ))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CancelQuery {
    /// What the run has asked consent for waits on, instead of being taken back.
    #[serde(default)]
    keep_requests: bool,
}

/// Ask a run to stop.
///
/// What it has sent to a tool stays done. One that is over cannot be stopped.
#[utoipa::path(post, path = "/v1/runs/{id}/cancel", operation_id = "cancelRun", tag = "runs",
    params(("id" = RunId, Path), CancelQuery),
    responses((status = 202, body = Run), (status = 409, description = "run_over")))]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<RunId>,
    Query(how): Query<CancelQuery>,
) -> Result<(StatusCode, axum::Json<Run>), Problem> {
    let requests = if how.keep_requests {
        OpenRequests::Keep
    } else {
        OpenRequests::Withdraw
    };
    Ok((
        StatusCode::ACCEPTED,
        axum::Json(app::runs::cancel(&app, caller.principal(), id, requests).await?),
    ))
}

/// The routes of the registry document, which has them without `/v1`.
pub(super) mod plain {
    use super::{
        ApiState, App, Arc, Caller, CancelQuery, ConversationId, Extension, Located, NewRun,
        NewRunRequest, Path, Problem, Query, RequestPermit, Run, RunId, RunView, Started, State,
        StatusCode,
    };

    /// As `POST /v1/runs`.
    ///
    /// The path of the registry document, which has no version.
    #[utoipa::path(post, path = "/runs", operation_id = "startRegistryRun", tag = "plain_runs",
        request_body = NewRun, params(("X-Agent-Session-Id" = Option<ConversationId>, Header)),
        responses((status = 200, body = Started), (status = 202, body = Started),
            (status = 409, description = "agent_has_no_model, session_busy"),
            (status = 429, description = "too_many_streams, too_many_runs, quota_exceeded")))]
    pub(in crate::api) async fn create(
        state: State<ApiState>,
        caller: Caller,
        permit: Extension<RequestPermit>,
        request: NewRunRequest,
    ) -> Result<Located<Started>, Problem> {
        super::create(state, caller, permit, request).await
    }

    /// As `GET /v1/runs/{id}`.
    ///
    /// The path of the registry document, which has no version.
    #[utoipa::path(get, path = "/runs/{id}", operation_id = "getRegistryRun", tag = "plain_runs",
        params(("id" = RunId, Path)), responses((status = 200, body = RunView)))]
    pub(in crate::api) async fn get(
        app: State<Arc<App>>,
        caller: Caller,
        id: Path<RunId>,
    ) -> Result<axum::Json<RunView>, Problem> {
        super::get(app, caller, id).await
    }

    /// As `POST /v1/runs/{id}/cancel`.
    ///
    /// The path of the registry document, which has no version.
    #[utoipa::path(post, path = "/runs/{id}/cancel", operation_id = "cancelRegistryRun", tag = "plain_runs",
        params(("id" = RunId, Path), CancelQuery),
        responses((status = 202, body = Run), (status = 409, description = "run_over")))]
    pub(in crate::api) async fn cancel(
        app: State<Arc<App>>,
        caller: Caller,
        id: Path<RunId>,
        how: Query<CancelQuery>,
    ) -> Result<(StatusCode, axum::Json<Run>), Problem> {
        super::cancel(app, caller, id, how).await
    }
}
