//! The same under the paths of the registry document, without `/v1`.

use std::sync::Arc;

use axum::{Extension, extract::State};
use http::StatusCode;

use super::{CancelQuery, NewRun, NewRunRequest, Started};
use crate::{
    api::{
        ApiState,
        extract::{Caller, Located, Path, Query},
        limits::RequestPermit,
        problem::Problem,
    },
    app::{App, runs::RunView},
    domain::{
        ids::{ConversationId, RunId},
        run::Run,
    },
};

/// As `POST /v1/runs`.
#[utoipa::path(post, path = "/runs", tag = "plain_runs", request_body = NewRun,
    params(("X-Agent-Session-Id" = Option<ConversationId>, Header)),
    responses((status = 200, body = Started), (status = 202, body = Started)))]
pub(in crate::api) async fn create(
    state: State<ApiState>,
    caller: Caller,
    permit: Extension<RequestPermit>,
    request: NewRunRequest,
) -> Result<Located<Started>, Problem> {
    super::create(state, caller, permit, request).await
}

/// As `GET /v1/runs/{id}`.
#[utoipa::path(get, path = "/runs/{id}", tag = "plain_runs", params(("id" = RunId, Path)),
    responses((status = 200, body = RunView)))]
pub(in crate::api) async fn get(
    app: State<Arc<App>>,
    caller: Caller,
    id: Path<RunId>,
) -> Result<axum::Json<RunView>, Problem> {
    super::get(app, caller, id).await
}

/// As `POST /v1/runs/{id}/cancel`.
#[utoipa::path(post, path = "/runs/{id}/cancel", tag = "plain_runs", params(("id" = RunId, Path), CancelQuery),
    responses((status = 202, body = Run)))]
pub(in crate::api) async fn cancel(
    app: State<Arc<App>>,
    caller: Caller,
    id: Path<RunId>,
    how: Query<CancelQuery>,
) -> Result<(StatusCode, axum::Json<Run>), Problem> {
    super::cancel(app, caller, id, how).await
}
