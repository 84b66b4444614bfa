//! The packs in force. A start takes all of them or none; later, a broken new version is reported and
//! the last good one stays. Readers take an immutable [`PackSnapshot`] and keep it as long as they like.

mod snapshot;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::broadcast,
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

pub use self::snapshot::{Change, PackSnapshot};
use self::snapshot::{by_id, fingerprint, listed, log, next_snapshot};
use super::{
    folder::{self, PacksReadResult},
    parse_context::UnsetPolicy,
    report::{LoadError, Report},
};
use domain::{config::Environment, ids::AgentId, pack::Pack, secret::Secret};

/// How often the files are checked for changes. A change counts when two checks in a row see it, so that a
/// half-written file is not read.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// The packs of this process; cheap to clone.
#[derive(Clone)]
pub struct PackStore(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    env: Environment,
    mcp_servers: Option<Secret>,
    snapshot: ArcSwap<PackSnapshot>,
    /// Held while reading, so that one reload follows another.
    last_scan: Mutex<LastScan>,
    changes: broadcast::Sender<Arc<Change>>,
}

/// The result of the last check of the files.
struct LastScan {
    /// Their fingerprint before they were read. Empty when it is not known; then the next check reads them
    /// again.
    fingerprint: String,
    /// The problems that were logged, so that they are not logged again.
    report: Report,
}

impl PackStore {
    /// Reads all packs below `folder` (a folder of packs, one pack folder, or one file). Any error
    /// refuses the start, with everything that is wrong; warnings are logged.
    pub fn load(
        folder: &Path,
        env: &Environment,
        mcp_servers: Option<&Secret>,
    ) -> Result<Self, LoadError> {
        let before = fingerprint(folder, &BTreeSet::new());
        let PacksReadResult { packs, report, .. } =
            folder::read(folder, env, mcp_servers, UnsetPolicy::Refused);
        if !report.is_ok() {
            return Err(LoadError(report));
        }
        log(&report, &Report::default());
        let snapshot = PackSnapshot {
            files: packs
                .iter()
                .flat_map(|outcome| outcome.files.clone())
                .collect(),
            packs: packs
                .into_iter()
                .filter_map(|outcome| outcome.pack)
                .map(by_id)
                .collect(),
        };
        let fingerprint = if snapshot.files.is_empty() {
            before
        } else {
            String::new()
        };
        Ok(Self(Arc::new(Inner {
            folder: folder.to_owned(),
            env: env.clone(),
            mcp_servers: mcp_servers.cloned(),
            snapshot: ArcSwap::from_pointee(snapshot),
            last_scan: Mutex::new(LastScan {
                fingerprint,
                report,
            }),
            changes: broadcast::Sender::new(16),
        })))
    }

    pub fn get(&self, id: &AgentId) -> Option<Arc<Pack>> {
        self.0.snapshot.load().get(id).cloned()
    }

    /// The packs as they are now. A run keeps the pack it started with.
    pub fn snapshot(&self) -> Arc<PackSnapshot> {
        self.0.snapshot.load_full()
    }

    /// Receives every reload that added, changed or removed a pack.
    pub fn changes(&self) -> broadcast::Receiver<Arc<Change>> {
        self.0.changes.subscribe()
    }

    /// Reads the files again. A broken pack keeps its last good version; one whose folder is gone is
    /// removed. Blocks on the disk.
    pub fn reload(&self) -> Arc<Change> {
        let inner = &*self.0;
        let mut last_scan = inner
            .last_scan
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = inner.snapshot.load_full();
        last_scan.fingerprint = fingerprint(&inner.folder, &before.files);
        let reading = folder::read(
            &inner.folder,
            &inner.env,
            inner.mcp_servers.as_ref(),
            UnsetPolicy::Refused,
        );
        log(&reading.report, &last_scan.report);
        last_scan.report = reading.report.clone();
        let change = if reading.usable {
            let (next, change) = next_snapshot(&before, reading);
            if next.files != before.files {
                last_scan.fingerprint.clear();
            }
            inner.snapshot.store(Arc::new(next));
            change
        } else {
            Change {
                report: reading.report,
                ..Change::default()
            }
        };
        let change = Arc::new(change);
        if !(change.added.is_empty() && change.changed.is_empty() && change.removed.is_empty()) {
            tracing::info!(
                added = %listed(&change.added),
                changed = %listed(&change.changed),
                removed = %listed(&change.removed),
                "packs reloaded"
            );
            // There may be no receiver.
            let _ = inner.changes.send(Arc::clone(&change));
        }
        change
    }

    /// Reloads when a file changes and on SIGHUP, until cancelled.
    pub async fn watch(&self, cancel: CancellationToken) {
        tokio::join!(
            self.reload_on_change(cancel.clone()),
            self.reload_on_hangup(cancel)
        );
    }

    /// Looks at the content of the files, so that links which Kubernetes swaps are `last_scan` too.
    pub async fn reload_on_change(&self, cancel: CancellationToken) {
        let mut ticks = tokio::time::interval(SCAN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pending: Option<String> = None;
        while cancel.run_until_cancelled(ticks.tick()).await.is_some() {
            let last = pending.take();
            pending = self
                .run_blocking(move |library| library.scan(last.as_ref()))
                .await
                .flatten();
        }
    }

    /// Reloads on SIGHUP, changed or not.
    pub async fn reload_on_hangup(&self, cancel: CancellationToken) {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => return tracing::warn!(%error, "SIGHUP will not reload the packs"),
        };
        while let Some(Some(())) = cancel.run_until_cancelled(hangup.recv()).await {
            self.run_blocking(Self::reload).await;
        }
    }

    /// Compares the fingerprint of the files with the one that was read. `last` is a new fingerprint that the
    /// check before found. Reloads when it is unchanged; else returns the new fingerprint, if there is one.
    fn scan(&self, last: Option<&String>) -> Option<String> {
        let now = fingerprint(&self.0.folder, &self.0.snapshot.load().files);
        if now
            == self
                .0
                .last_scan
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .fingerprint
        {
            return None;
        }
        if last != Some(&now) {
            return Some(now);
        }
        self.reload();
        None
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let library = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&library)).await;
        done.inspect_err(|error| tracing::error!(%error, "looking at the packs failed"))
            .ok()
    }
}
