//! What is a state and no event, for `/metrics`: of this process, and of the queues of all replicas.

use std::time::Duration;

use metrics::{counter, gauge};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};

use crate::app::App;
use domain::error::Result;
use store::statistics::Backlog;

/// The codes of requests to models that failed.
pub const MODEL_FAILURES: &[&str] = llm::ModelError::CODES;

/// The label `server` of every server that a tenant named.
pub const REGISTRY: &str = "registry";

/// How long the database is waited for. A scraper gives up after some seconds, and then nothing is known at all.
const PATIENCE: Duration = Duration::from_millis(800);

/// Measures everything. Without a database the queues stay as they were known last.
pub async fn measure(app: &App) {
    let load = app.db.load();
    let (is_up, backlog) = tokio::join!(
        app.db.is_writable(),
        tokio::time::timeout(PATIENCE, read_backlog(app)),
    );
    set("chatelaine_database_up", is_up);
    set("chatelaine_keys_complete", app.keys.is_complete());
    set(
        "chatelaine_tenants_unreadable",
        to_u32(app.keys.unreadable_tenants()),
    );
    let working = app.running.count();
    set("chatelaine_runs_working", to_u32(working));
    let personal = to_u32(app.mcp.personal_connections().len());
    set("chatelaine_personal_connections", personal);
    let (ready, down) = app.connections.count();
    for (state, number) in [("ready", ready), ("down", down)] {
        gauge!("chatelaine_servers", "state" => state).set(f64::from(to_u32(number)));
    }
    set("chatelaine_models_paused", to_u32(app.models.paused()));
    for (state, number) in [
        ("idle", load.idle),
        ("in_use", load.in_use),
        ("waiting", load.waiting),
    ] {
        gauge!("chatelaine_database_connections", "state" => state).set(f64::from(to_u32(number)));
    }
    counter!("chatelaine_database_troubles_total").absolute(load.troubles);
    counter!("chatelaine_transactions_total").absolute(app.transactions());
    if let Ok(Ok(backlog)) = backlog {
        set("chatelaine_runs_waiting", backlog.runs);
        set("chatelaine_runs_oldest_waiting_seconds", backlog.oldest_run);
        set("chatelaine_approvals_waiting", backlog.approvals);
        set(
            "chatelaine_approvals_oldest_seconds",
            backlog.oldest_approval,
        );
        set(
            "chatelaine_approvals_time_used_ratio",
            backlog.approvals_time_used,
        );
        set("chatelaine_approvals_expiring", backlog.expiring_approvals);
        set("chatelaine_purge_age_seconds", backlog.purge_age);
        set("chatelaine_changed_tools_waiting", backlog.changed_tools);
        set("chatelaine_webhooks_waiting", backlog.deliveries);
        set(
            "chatelaine_webhooks_oldest_seconds",
            backlog.oldest_delivery,
        );
    }
    measure_process();
}

async fn read_backlog(app: &App) -> Result<Backlog> {
    let mut tx = app.db.system().await?;
    store::statistics::get_backlog(&mut tx).await
}

/// What the system says of this process. What it does not say stays zero.
fn measure_process() {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let seconds = usage.user_time().tv_sec() + usage.system_time().tv_sec();
        counter!("process_cpu_seconds_total").absolute(u64::try_from(seconds).unwrap_or(0));
    }
    if let Ok((most, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        set("process_max_fds", most);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        set("process_open_fds", to_u32(open.count()));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    if let Some(kib) = kib {
        set("process_resident_memory_bytes", kib * 1024.0);
    }
}

fn set(name: &'static str, value: impl Into<f64>) {
    gauge!(name).set(value.into());
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
