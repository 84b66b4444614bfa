//! What is answered while the process waits for the database or brings its schema up to date: it is alive, and not ready
//! yet. A supervisor that asks must not end a migration in its middle.

use std::time::Duration;

use axum::{
    Json, Router,
    response::{IntoResponse, Response},
    routing::{any, get},
};
use http::StatusCode;
use tokio::sync::watch;

use super::{layers, operations, problem::Problem};
use domain::{
    config::Config,
    error::ErrorCode,
    replica::{Readiness, Start},
};

/// When a client may come back.
const RETRY_AFTER: Duration = Duration::from_secs(2);

pub(super) fn build_router(config: &Config, start: watch::Receiver<Start>) -> Router {
    let readyz = async move || readyz(*start.borrow());
    let routes = Router::new()
        .route("/healthz", get(operations::healthz))
        .route("/readyz", get(readyz))
        .route("/", any(refuse))
        .route("/{*path}", any(refuse));
    layers::wrap_routes(routes, config)
}

fn readyz(start: Start) -> Response {
    let readiness = Readiness {
        start: Some(start),
        ..Readiness::default()
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(readiness)).into_response()
}

async fn refuse() -> Problem {
    let detail = "this replica is starting; try again";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Busy, detail).retry_after(RETRY_AFTER)
}
