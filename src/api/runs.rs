//! Runs: one turn of an agent each.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;

use super::{
    extract::{Caller, Path},
    problem::Problem,
};
use crate::{
    app::{self, App},
    domain::{ids::RunId, run::Run},
};

/// How a run is doing.
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 200, body = Run)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<RunId>,
) -> Result<axum::Json<Run>, Problem> {
    Ok(axum::Json(app::runs::get(&app, caller.principal(), id).await?))
}

/// Asks a run to stop. What it has sent to a tool stays done; one that is over cannot be stopped: 409.
#[utoipa::path(post, path = "/v1/runs/{id}/cancel", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 202, body = Run)))]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<RunId>,
) -> Result<(StatusCode, axum::Json<Run>), Problem> {
    Ok((StatusCode::ACCEPTED, axum::Json(app::runs::cancel(&app, caller.principal(), id).await?)))
}
