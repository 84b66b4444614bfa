//! Liveness, readiness, metrics and the OpenAPI document. They need no credential, so they never name a tenant, a user
//! or a pack.

use std::time::Instant;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{StatusCode, header};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::{
    ApiState, DOCUMENT, DOCUMENT_FOR_USERS, extract::Query, metrics::recorder, problem::Problem,
};
use crate::app;
use domain::{clock, replica::Readiness};

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Root {
    name: &'static str,
    version: &'static str,
    /// Where the description of the API is.
    openapi: &'static str,
}

impl Root {
    pub(super) const HERE: Self = Self {
        name: "chatelaine",
        version: env!("CARGO_PKG_VERSION"),
        openapi: "/openapi.json",
    };
}

/// Whether the process is alive.
///
/// Depends on nothing, and needs no credential.
#[utoipa::path(get, path = "/healthz", operation_id = "getHealth", tag = "operations", security(()),
    responses((status = 200, body = String)))]
pub(super) async fn healthz() -> &'static str {
    "ok"
}

/// Whether requests can be answered: 200, or 503 with what is missing.
///
/// It needs no credential. A load balancer asks here.
#[utoipa::path(get, path = "/readyz", operation_id = "getReadiness", tag = "operations", security(()),
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
pub(super) async fn readyz(State(state): State<ApiState>) -> Response {
    let mut readiness = app::platform::health::check_readiness(&state.app).await;
    if state.limits.is_overloaded() {
        (readiness.ready, readiness.accepting) = (false, false);
    }
    let status = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, axum::Json(readiness)).into_response()
}

/// The newest text of the measurements, and when it was begun.
pub(super) type LastMetrics = Mutex<Option<(Instant, Bytes)>>;

/// Measurements, in Prometheus' text format.
///
/// Anybody may ask, and writing them costs much, so they are written once for all who wait, and not where requests
/// are answered.
#[utoipa::path(get, path = "/metrics", operation_id = "getMetrics", tag = "operations", security(()),
    responses((status = 200, body = String)))]
pub(super) async fn metrics(
    State(state): State<ApiState>,
) -> ([(header::HeaderName, &'static str); 1], Bytes) {
    let asked = clock::instant();
    let mut last = state.measured.lock().await;
    let text = match &*last {
        Some((begun, text)) if *begun >= asked => text.clone(),
        _ => {
            let begun = clock::instant();
            app::platform::measurements::measure(&state.app).await;
            let written = tokio::task::spawn_blocking(|| Bytes::from(recorder().render()));
            let text = written.await.unwrap_or_default();
            *last = Some((begun, text.clone()));
            text
        }
    };
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

/// Whose operations a document describes.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Audience {
    User,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DocumentQuery {
    /// `user`: only what the frontends of users call.
    #[param(inline)]
    audience: Option<Audience>,
}

/// This document.
///
/// It needs no credential.
#[utoipa::path(get, path = "/openapi.json", operation_id = "getOpenapi", tag = "operations", security(()),
    params(DocumentQuery),
    responses((status = 200, body = Object, content_type = "application/json")))]
pub(super) async fn openapi(
    Query(which): Query<DocumentQuery>,
) -> Result<([(header::HeaderName, &'static str); 1], Bytes), Problem> {
    let document = match which.audience {
        None => &DOCUMENT,
        Some(Audience::User) => &DOCUMENT_FOR_USERS,
    };
    let media_type = [(header::CONTENT_TYPE, "application/json")];
    Ok((media_type, Bytes::clone(document)))
}
