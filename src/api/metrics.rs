//! The metrics: what there is, what it means, and which values its labels have. Each series is there from the start with
//! zero, so that an alert can tell nothing from unknown; those of a pack's server begin with its first call. No label has
//! a value that a user, a tenant or a server can choose.
//!
//! Code counts with the macros of the crate `metrics`. They are collected from the first router on, once per process
//! (tests build several routers). What is a state and no event is measured when somebody asks
//! ([`crate::app::platform::measurements`]).

use std::{sync::OnceLock, time::Duration};

use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::app::platform::measurements;
use domain::{clock, credential::CredentialState, message::CallStatus, run::RunStatus};

/// One metric. Its kind is what its name ends with: `_total` is a counter, `_seconds` a histogram, unless it is in
/// [`AGES`], and the rest are gauges.
struct Metric {
    name: &'static str,
    help: &'static str,
    label: Option<Label>,
}

struct Label {
    name: &'static str,
    values: &'static [&'static str],
}

const fn metric(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        help,
        label: None,
    }
}

const fn by(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: &'static [&'static str],
) -> Metric {
    Metric {
        name,
        help,
        label: Some(Label {
            name: label,
            values,
        }),
    }
}

/// The metric whose labels are routes, so that its series begin with their first request.
const REQUESTS: Metric = metric(
    "chatelaine_request_seconds",
    "duration of requests, by `method`, `route` and `status`",
);

/// Gauges although their names end like those of histograms.
const AGES: [&str; 5] = [
    "chatelaine_approvals_oldest_seconds",
    "chatelaine_purge_age_seconds",
    "chatelaine_runs_oldest_waiting_seconds",
    "chatelaine_webhooks_oldest_seconds",
    "process_start_time_seconds",
];

const PROVIDERS: &[&str] = &["openai", "anthropic", "gemini", "ollama"];

const METRICS: &[Metric] = &[
    by(
        "chatelaine_runs_total",
        "runs that ended here",
        "status",
        &[
            RunStatus::Succeeded.into_str(),
            RunStatus::Failed.into_str(),
            RunStatus::Cancelled.into_str(),
        ],
    ),
    metric(
        "chatelaine_run_seconds",
        "how long this replica worked on a run until its end",
    ),
    metric(
        "chatelaine_run_takeovers_total",
        "runs that this replica took over from one that is gone",
    ),
    metric("chatelaine_runs_working", "runs that this replica works on"),
    metric(
        "chatelaine_runs_waiting",
        "runs in the queue of all replicas",
    ),
    metric(
        "chatelaine_runs_oldest_waiting_seconds",
        "age of the oldest run in the queue",
    ),
    by(
        "chatelaine_model_request_seconds",
        "duration of requests to models, answered or failed",
        "provider",
        PROVIDERS,
    ),
    by(
        "chatelaine_model_first_text_seconds",
        "time from the request to the first text of the answer",
        "provider",
        PROVIDERS,
    ),
    by(
        "chatelaine_model_failures_total",
        "requests to models that failed, also those that are tried again",
        "code",
        measurements::MODEL_FAILURES,
    ),
    metric(
        "chatelaine_model_fallbacks_total",
        "how often a model said nothing and another one was asked",
    ),
    metric(
        "chatelaine_models_paused",
        "endpoints of models, each of one tenant, that failed several times in a row; requests to them are paused",
    ),
    by(
        "chatelaine_model_tokens_total",
        "tokens of models; `cached_input` was kept by the provider, and is not in `input`",
        "kind",
        &["input", "cached_input", "output"],
    ),
    by(
        "chatelaine_tool_call_seconds",
        "duration of calls that were sent to a server of a pack; `registry` are those of tenants",
        "server",
        &[measurements::REGISTRY],
    ),
    by(
        "chatelaine_tool_calls_total",
        "calls of tools that ended",
        "outcome",
        &[
            CallStatus::Succeeded.into_str(),
            CallStatus::Failed.into_str(),
            CallStatus::Denied.into_str(),
            CallStatus::Cancelled.into_str(),
            CallStatus::OutcomeUnknown.into_str(),
            CallStatus::AwaitingApproval.into_str(),
            CallStatus::AwaitingInput.into_str(),
        ],
    ),
    by(
        "chatelaine_servers",
        "shared servers of this replica",
        "state",
        &["ready", "down"],
    ),
    metric(
        "chatelaine_personal_connections",
        "connections with a user's own credential",
    ),
    metric(
        "chatelaine_approvals_requested_total",
        "requests for consent",
    ),
    metric(
        "chatelaine_approvals_waiting",
        "calls that wait for the approval of others",
    ),
    metric(
        "chatelaine_approvals_oldest_seconds",
        "age of the oldest of them",
    ),
    metric(
        "chatelaine_approvals_time_used_ratio",
        "the largest part of its time, of 0 to 1, that one of them has waited",
    ),
    metric(
        "chatelaine_approvals_expiring",
        "of those that wait, those with less than a quarter of their time left",
    ),
    metric(
        "chatelaine_purge_age_seconds",
        "how long ago old rows were purged last, by any replica",
    ),
    metric(
        "chatelaine_changed_tools_waiting",
        "changed and new tools that wait until somebody accepts them",
    ),
    metric(
        "chatelaine_elicitations_total",
        "questions of servers to users",
    ),
    by(
        "chatelaine_oauth_refreshes_total",
        "refreshes of the tokens of users who signed in",
        "outcome",
        &["refreshed", "refused", "failed"],
    ),
    by(
        "chatelaine_credentials_marked_total",
        "credentials that were rejected or could not be decrypted",
        "state",
        &[
            CredentialState::Rejected.into_str(),
            CredentialState::Quarantined.into_str(),
        ],
    ),
    by(
        "chatelaine_webhook_tries_total",
        "attempts to deliver a webhook",
        "outcome",
        &["delivered", "again", "failed"],
    ),
    metric(
        "chatelaine_webhooks_waiting",
        "messages to webhooks that are not delivered yet",
    ),
    metric(
        "chatelaine_webhooks_oldest_seconds",
        "age of the oldest of them",
    ),
    metric("chatelaine_streams_open", "event streams that are open"),
    metric(
        "chatelaine_database_up",
        "1 when the database answers and accepts writes",
    ),
    by(
        "chatelaine_database_connections",
        "connections of this replica's pool; `waiting` is who waits for one",
        "state",
        &["idle", "in_use", "waiting"],
    ),
    metric(
        "chatelaine_database_troubles_total",
        "connections that were lost or accepted no writes",
    ),
    metric(
        "chatelaine_transactions_total",
        "transactions of tenants that this replica has begun",
    ),
    metric(
        "chatelaine_transaction_seconds",
        "duration of transactions, with the wait for a connection",
    ),
    metric(
        "chatelaine_keys_complete",
        "1 when this replica has all keys that the database uses",
    ),
    metric(
        "chatelaine_tenants_unreadable",
        "tenants whose key this replica could not read",
    ),
    metric("process_start_time_seconds", "when this process started"),
    metric(
        "process_cpu_seconds_total",
        "processor time of this process",
    ),
    metric("process_resident_memory_bytes", "memory of this process"),
    metric("process_open_fds", "files that this process has open"),
    metric("process_max_fds", "files that it may have open"),
];

/// The buckets of durations in seconds, from a cached answer to a slow model.
const BUCKETS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0,
    60.0, 300.0,
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
        metrics::describe_histogram!(REQUESTS.name, REQUESTS.help);
        METRICS.iter().for_each(Metric::begin);
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds fit for millions of years"
        )]
        let now = clock::machine_time().unix_timestamp() as f64;
        gauge!("process_start_time_seconds").set(now);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        metrics::describe_gauge!("chatelaine_build_info", "1, with the `version`");
        gauge!("chatelaine_build_info", &version).set(1.0);
        metrics::describe_gauge!(
            "chatelaine_packs_info",
            "1 for the `digest` of an `agent`'s rules in this replica's packs, 0 for one before"
        );
        handle
    })
}

impl Metric {
    /// Describes the metric, and makes each of its series.
    fn begin(&self) {
        let Self { name, help, .. } = self;
        if name.ends_with("_total") {
            metrics::describe_counter!(*name, *help);
            for labels in self.series() {
                counter!(*name, labels).increment(0);
            }
        } else if name.ends_with("_seconds") && !AGES.contains(name) {
            metrics::describe_histogram!(*name, *help);
            for labels in self.series() {
                drop(histogram!(*name, labels));
            }
        } else {
            metrics::describe_gauge!(*name, *help);
            for labels in self.series() {
                gauge!(*name, labels).increment(0.0);
            }
        }
    }

    /// The labels of each series.
    fn series(&self) -> Vec<Vec<metrics::Label>> {
        let Some(Label { name, values }) = &self.label else {
            return vec![Vec::new()];
        };
        values
            .iter()
            .map(|value| vec![metrics::Label::from_static_parts(name, value)])
            .collect()
    }
}

/// Compacts the metrics regularly, so that they do not grow when nobody reads them.
pub(super) async fn run_upkeep() {
    loop {
        tokio::time::sleep(UPKEEP).await;
        recorder().run_upkeep();
    }
}
