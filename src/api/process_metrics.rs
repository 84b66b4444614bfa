//! Metrics of the process, for `/metrics`. Code records them with the macros of `metrics`. They are collected
//! from the first router on, once per process (tests build several routers).

use std::{sync::OnceLock, time::Duration};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Seconds, from a cached answer to a slow model.
const BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 20.0, 60.0,
];
const UPKEEP: Duration = Duration::from_secs(5);

static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// The collected measurements.
pub(super) fn recorder() -> &'static PrometheusHandle {
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS);
        let recorder = builder.expect("the buckets are not empty").build_recorder();
        let handle = recorder.handle();
        // Another recorder belongs to a program that embeds this one; then ours stays empty.
        let _ = metrics::set_global_recorder(recorder);
        handle
    })
}

/// Compacts the metrics now and then, so that they do not grow when no client reads them.
pub(super) async fn run_upkeep() {
    loop {
        tokio::time::sleep(UPKEEP).await;
        recorder().run_upkeep();
    }
}
