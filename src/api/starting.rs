//! What is answered while the process waits for the database or brings its schema up to date: it is alive, and not ready
//! yet. A supervisor that asks must not end a migration in its middle.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::OriginalUri,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use tokio::sync::watch;

use super::{layers, problem::Problem};
use domain::{
    config::Config,
    error::ErrorCode,
    replica::{Readiness, Start},
};

/// When a client may come back.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// No route of the API is there yet: one handler answers every path.
pub(super) fn build_router(config: &Config, start: watch::Receiver<Start>) -> Router {
    let answer = async move |OriginalUri(uri): OriginalUri| match uri.path() {
        "/healthz" => "ok".into_response(),
        "/readyz" => readyz(*start.borrow()),
        _ => refuse().into_response(),
    };
    layers::wrap(Router::new().fallback(answer), config)
}

fn readyz(start: Start) -> Response {
    let readiness = Readiness {
        start: Some(start),
        ..Readiness::default()
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(readiness)).into_response()
}

fn refuse() -> Problem {
    let detail = "this replica is starting; try again";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Busy, detail).retry_after(RETRY_AFTER)
}
