//! Liveness, readiness, metrics and the OpenAPI document. They need no credential, so they never name a tenant, a user
//! or a pack.
//!
//! Code records metrics with the macros of the crate `metrics`. They are collected from the first router on, once per
//! process (tests build several routers).

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{StatusCode, header};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::Serialize;

use super::{ApiState, DOCUMENT};
use crate::app::{self, App};
use domain::replica::Readiness;

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

/// Whether the process is alive. Depends on nothing.
#[utoipa::path(get, path = "/healthz", tag = "operations", security(()), responses((status = 200, body = String)))]
pub(super) async fn healthz() -> &'static str {
    "ok"
}

/// Whether requests can be answered: 200, or 503 with what is missing.
#[utoipa::path(get, path = "/readyz", tag = "operations", security(()),
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

/// Measurements, in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "operations", security(()), responses((status = 200, body = String)))]
pub(super) async fn metrics(
    State(app): State<Arc<App>>,
) -> ([(header::HeaderName, &'static str); 1], String) {
    metrics::counter!("chatelaine_transactions_total").absolute(app.transactions());
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        recorder().render(),
    )
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "operations", security(()),
    responses((status = 200, body = Object, content_type = "application/json")))]
pub(super) async fn openapi() -> ([(header::HeaderName, &'static str); 1], Bytes) {
    (
        [(header::CONTENT_TYPE, "application/json")],
        DOCUMENT.clone(),
    )
}

/// The buckets of durations in seconds, from a cached answer to a slow model.
const BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 20.0, 60.0,
];
const UPKEEP: Duration = Duration::from_secs(5);

static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// The collected metrics.
pub(super) fn recorder() -> &'static PrometheusHandle {
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS);
        let recorder = builder.expect("the buckets are not empty").build_recorder();
        let handle = recorder.handle();
        // A program that embeds this one may have set its own recorder; then this one stays empty.
        let _ = metrics::set_global_recorder(recorder);
        handle
    })
}

/// Compacts the metrics regularly, so that they do not grow when nobody reads them.
pub(super) async fn run_upkeep() {
    loop {
        tokio::time::sleep(UPKEEP).await;
        recorder().run_upkeep();
    }
}
