//! The packs in force. The program starts with all of them or not at all. Later, a broken new version is reported and
//! the last good one stays. Readers take an immutable [`PackSnapshot`] and keep it as long as they like.
//!
//! What readers get is what the files say, and no more than the policies of other replicas allow, too
//! ([`PackStore::override_policies`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::broadcast,
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

use super::{
    finding::find_packs,
    folder::{self, PackReadResult, PacksReadResult},
    parse_context::UnsetPolicy,
    report::{LoadError, Report, Severity},
};
use domain::{
    config::Environment,
    ids::AgentId,
    pack::Pack,
    policy::{AgentPolicy, PolicyOverride},
    secret::Secret,
};

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
    /// What the files say.
    files: ArcSwap<PackSnapshot>,
    /// The same beside the policies of other replicas.
    snapshot: ArcSwap<PackSnapshot>,
    overrides: Mutex<BTreeMap<AgentId, PolicyOverride>>,
    /// Held while reading, so that one reload follows another.
    last_scan: Mutex<LastScan>,
    changes: broadcast::Sender<Arc<Change>>,
}

/// The result of the last check of the files.
struct LastScan {
    /// The fingerprint of the files before they were read. Empty if it is not known; then the next check reads the
    /// files again.
    fingerprint: String,
    /// The problems that are in the log already, so that they are not logged again.
    report: Report,
}

impl PackStore {
    /// Reads all packs below `folder` (a folder of packs, one pack folder, or one file). Warnings are logged. Any error
    /// refuses all packs; `LoadError` has every problem.
    pub fn load(
        folder: &Path,
        env: &Environment,
        mcp_servers: Option<&Secret>,
    ) -> Result<Self, LoadError> {
        let before = compute_fingerprint(folder, &BTreeSet::new());
        let PacksReadResult { packs, report, .. } =
            folder::read(folder, env, mcp_servers, UnsetPolicy::Refused);
        if !report.is_ok() {
            return Err(LoadError(report));
        }
        log_new_problems(&report, &Report::default());
        let snapshot = PackSnapshot {
            files: packs
                .iter()
                .flat_map(|outcome| outcome.files.clone())
                .collect(),
            packs: packs
                .into_iter()
                .filter_map(|outcome| outcome.pack)
                .map(with_id)
                .collect(),
            policies: OnceLock::new(),
        };
        let fingerprint = if snapshot.files.is_empty() {
            before
        } else {
            String::new()
        };
        let snapshot = Arc::new(snapshot);
        Ok(Self(Arc::new(Inner {
            folder: folder.to_owned(),
            env: env.clone(),
            mcp_servers: mcp_servers.cloned(),
            files: ArcSwap::new(snapshot.clone()),
            snapshot: ArcSwap::new(snapshot),
            overrides: Mutex::default(),
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

    /// The packs as they are now. A run keeps the pack that it started with.
    pub fn snapshot(&self) -> Arc<PackSnapshot> {
        self.0.snapshot.load_full()
    }

    /// The packs as the files of this replica say them, whatever the policies of others are.
    pub fn files(&self) -> Arc<PackSnapshot> {
        self.0.files.load_full()
    }

    /// Whether policies of other replicas differ from those of the files, so that they count.
    pub fn is_overridden(&self) -> bool {
        let (files, snapshot) = (self.0.files.load(), self.0.snapshot.load());
        let differs = |pack: &Arc<Pack>| {
            let used = snapshot.get(pack.id());
            used.is_none_or(|used| used.version != pack.version)
        };
        files.packs().any(differs)
    }

    /// Lets the policies of all replicas count for these agents, and for no others, from the next reader on.
    pub fn override_policies(&self, overrides: BTreeMap<AgentId, PolicyOverride>) {
        let mut known = self
            .0
            .overrides
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let differs = |id: &&AgentId| known.get(*id) != overrides.get(*id);
        let ids: BTreeSet<_> = known.keys().chain(overrides.keys()).collect();
        let mut changed: Vec<_> = ids.into_iter().filter(differs).cloned().collect();
        *known = overrides;
        let mut next = self.0.snapshot.load().copy();
        let files = self.0.files.load();
        changed.retain(|id| {
            let Some(pack) = files.get(id) else {
                return false;
            };
            let pack = with_override(pack, known.get(id));
            let before = next.packs.insert(id.clone(), pack.clone());
            before.is_none_or(|before| before.version != pack.version)
        });
        if changed.is_empty() {
            return;
        }
        self.0.snapshot.store(Arc::new(next));
        drop(known);
        let change = Change {
            changed,
            ..Change::default()
        };
        // There may be no receiver.
        let _ = self.0.changes.send(Arc::new(change));
    }

    /// A receiver of every reload that adds, changes or removes a pack.
    pub fn changes(&self) -> broadcast::Receiver<Arc<Change>> {
        self.0.changes.subscribe()
    }

    /// Reads the files again. A broken pack keeps its last good version; a pack whose folder is gone is removed.
    /// Blocks the thread while it reads.
    pub fn reload(&self) -> Arc<Change> {
        let inner = &*self.0;
        let mut last_scan = inner
            .last_scan
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = inner.files.load_full();
        last_scan.fingerprint = compute_fingerprint(&inner.folder, &before.files);
        let reading = folder::read(
            &inner.folder,
            &inner.env,
            inner.mcp_servers.as_ref(),
            UnsetPolicy::Refused,
        );
        log_new_problems(&reading.report, &last_scan.report);
        last_scan.report = reading.report.clone();
        let change = if reading.usable {
            let (next, change) = build_snapshot(&before, reading);
            if next.files != before.files {
                last_scan.fingerprint.clear();
            }
            inner.put(next);
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
                added = %join_ids(&change.added),
                changed = %join_ids(&change.changed),
                removed = %join_ids(&change.removed),
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

    /// Reloads when a file changes, until cancelled. Compares the content of the files, so that it also notices the
    /// links that Kubernetes swaps.
    pub async fn reload_on_change(&self, cancel: CancellationToken) {
        let mut ticks = tokio::time::interval(SCAN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pending: Option<String> = None;
        while cancel.run_until_cancelled(ticks.tick()).await.is_some() {
            let last = pending.take();
            pending = self
                .run_blocking(move |store| store.scan(last.as_ref()))
                .await
                .flatten();
        }
    }

    /// Reloads on SIGHUP, even if no file has changed, until cancelled.
    pub async fn reload_on_hangup(&self, cancel: CancellationToken) {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => return tracing::warn!(%error, "SIGHUP will not reload the packs"),
        };
        while let Some(Some(())) = cancel.run_until_cancelled(hangup.recv()).await {
            self.run_blocking(Self::reload).await;
        }
    }

    /// Checks the files for changes. Returns their fingerprint if they have changed since they were read. If that
    /// fingerprint equals `last`, which the check before returned, the change is complete: reloads and returns
    /// `None`.
    fn scan(&self, last: Option<&String>) -> Option<String> {
        let now = compute_fingerprint(&self.0.folder, &self.0.files.load().files);
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
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.inspect_err(|error| tracing::error!(%error, "looking at the packs failed"))
            .ok()
    }
}

impl Inner {
    /// Puts into force what the files say now.
    fn put(&self, files: PackSnapshot) {
        let overrides = self
            .overrides
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (before, known) = (self.files.load(), self.snapshot.load());
        let mut next = files.copy();
        for (id, pack) in &mut next.packs {
            let is_same = before.get(id).is_some_and(|old| Arc::ptr_eq(old, pack));
            // Readers compare packs by their pointers.
            let kept = known.get(id).filter(|_| is_same);
            *pack = match kept {
                Some(kept) => kept.clone(),
                None => with_override(pack, overrides.get(id)),
            };
        }
        self.files.store(Arc::new(files));
        self.snapshot.store(Arc::new(next));
    }
}

fn with_override(pack: &Arc<Pack>, by: Option<&PolicyOverride>) -> Arc<Pack> {
    let by = by.and_then(|by| by.beside(AgentPolicy::of(pack).digest()));
    by.map_or_else(|| pack.clone(), |by| Arc::new(pack.overridden(&by)))
}

/// All packs at one moment.
#[derive(Default)]
pub struct PackSnapshot {
    packs: BTreeMap<AgentId, Arc<Pack>>,
    /// Files that the packs were made from, other than their first documents.
    files: BTreeSet<PathBuf>,
    policies: OnceLock<BTreeMap<AgentId, AgentPolicy>>,
}

impl PackSnapshot {
    fn copy(&self) -> Self {
        Self {
            packs: self.packs.clone(),
            files: self.files.clone(),
            policies: OnceLock::new(),
        }
    }

    pub fn get(&self, id: &AgentId) -> Option<&Arc<Pack>> {
        self.packs.get(id)
    }

    /// The policy of each agent.
    pub fn policies(&self) -> &BTreeMap<AgentId, AgentPolicy> {
        self.policies.get_or_init(|| {
            let packs = self.packs();
            packs
                .map(|pack| (pack.id().clone(), AgentPolicy::of(pack)))
                .collect()
        })
    }

    /// All packs, in the order of their ids.
    pub fn packs(&self) -> impl ExactSizeIterator<Item = &Arc<Pack>> {
        self.packs.values()
    }
}

/// The result of a reload.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub added: Vec<AgentId>,
    pub changed: Vec<AgentId>,
    pub removed: Vec<AgentId>,
    /// The problems of the files as they are now.
    pub report: Report,
}

/// Builds the next snapshot from the files that were read and the snapshot before. A broken pack keeps the version of
/// that snapshot.
fn build_snapshot(before: &PackSnapshot, reading: PacksReadResult) -> (PackSnapshot, Change) {
    let mut snapshot = PackSnapshot::default();
    let mut broken: Vec<PathBuf> = Vec::new();
    for PackReadResult {
        documents,
        pack,
        files,
        ..
    } in reading.packs
    {
        snapshot.files.extend(files);
        match pack {
            Some(pack) => {
                let same =
                    |old: &&Arc<Pack>| old.version == pack.version && old.folder == pack.folder;
                let kept = before.get(pack.id()).filter(same).cloned();
                snapshot
                    .packs
                    .insert(pack.id().clone(), kept.unwrap_or_else(|| Arc::new(pack)));
            }
            None => broken.push(documents.folder),
        }
    }
    for old in before.packs() {
        let named = |file: &str| Path::new(file) == old.folder;
        let problem = reading
            .report
            .problems
            .iter()
            .any(|p| p.severity == Severity::Error && named(&p.file));
        if broken.contains(&old.folder) || problem {
            snapshot
                .packs
                .entry(old.id().clone())
                .or_insert_with(|| Arc::clone(old));
        }
    }
    // Files of a broken pack still count: mending one of them is a change.
    snapshot
        .files
        .extend(before.files.iter().filter(|_| !broken.is_empty()).cloned());
    let change = compare_snapshots(before, &snapshot, reading.report);
    (snapshot, change)
}

fn compare_snapshots(before: &PackSnapshot, after: &PackSnapshot, report: Report) -> Change {
    let ids = |from: &PackSnapshot, wanted: &dyn Fn(&Arc<Pack>) -> bool| {
        from.packs()
            .filter(|pack| wanted(pack))
            .map(|pack| pack.id().clone())
            .collect()
    };
    Change {
        added: ids(after, &|pack| before.get(pack.id()).is_none()),
        changed: ids(after, &|pack| {
            before
                .get(pack.id())
                .is_some_and(|old| !Arc::ptr_eq(old, pack))
        }),
        removed: ids(before, &|pack| after.get(pack.id()).is_none()),
        report,
    }
}

fn with_id(pack: Pack) -> (AgentId, Arc<Pack>) {
    (pack.id().clone(), Arc::new(pack))
}

fn join_ids(ids: &[AgentId]) -> String {
    ids.iter()
        .map(AgentId::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

/// SHA-256 in hex over the names and contents of all files of packs and of `others`.
fn compute_fingerprint(folder: &Path, others: &BTreeSet<PathBuf>) -> String {
    let (packs, problems) =
        find_packs(folder).unwrap_or_else(|problem| (Vec::new(), vec![*problem]));
    let mut digest = Sha256::new();
    for file in packs.iter().flat_map(|pack| &pack.files).chain(others) {
        let content = fs::read(file).map(|bytes| Sha256::digest(&bytes));
        digest.update(file.as_os_str().as_encoded_bytes());
        digest.update(content.map_or([0; 33], |hash| {
            std::array::from_fn(|at| if at == 0 { 1 } else { hash[at - 1] })
        }));
    }
    for problem in problems {
        digest.update(problem.to_string());
    }
    hex::encode(digest.finalize())
}

/// Logs the problems that `logged` does not have yet.
fn log_new_problems(report: &Report, logged: &Report) {
    for problem in report
        .problems
        .iter()
        .filter(|problem| !logged.problems.contains(problem))
    {
        let line = problem.at.map_or(0, |at| at.line);
        let (file, path, message) = (&problem.file, &problem.path, &problem.message);
        let hint = problem.hint.as_deref().unwrap_or_default();
        match problem.severity {
            Severity::Error => tracing::error!(file, line, path, hint, "pack: {message}"),
            Severity::Fault | Severity::Warning => {
                tracing::warn!(file, line, path, hint, "pack: {message}");
            }
        }
    }
}
