//! A snapshot of all packs: how the next one is made from the folders, and what changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use sha2::{Digest, Sha256};

use crate::{
    folder::{self, PackReadResult, PacksReadResult},
    report::{Report, Severity},
};
use domain::{ids::AgentId, pack::Pack};

/// The packs at one moment.
#[derive(Default)]
pub struct PackSnapshot {
    pub(super) packs: BTreeMap<AgentId, Arc<Pack>>,
    /// Files beside the packs that they were made from.
    pub(super) files: BTreeSet<PathBuf>,
}

impl PackSnapshot {
    pub fn get(&self, id: &AgentId) -> Option<&Arc<Pack>> {
        self.packs.get(id)
    }

    /// In the order of their ids.
    pub fn packs(&self) -> impl ExactSizeIterator<Item = &Arc<Pack>> {
        self.packs.values()
    }
}

/// What a reload did.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub added: Vec<AgentId>,
    pub changed: Vec<AgentId>,
    pub removed: Vec<AgentId>,
    /// What is wrong with the files as they are now.
    pub report: Report,
}

/// The snapshot after a reading, from the one before.
pub(super) fn next_snapshot(
    before: &PackSnapshot,
    reading: PacksReadResult,
) -> (PackSnapshot, Change) {
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
    let change = change_between(before, &snapshot, reading.report);
    (snapshot, change)
}

fn change_between(before: &PackSnapshot, after: &PackSnapshot, report: Report) -> Change {
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

pub(super) fn by_id(pack: Pack) -> (AgentId, Arc<Pack>) {
    (pack.id().clone(), Arc::new(pack))
}

pub(super) fn listed(ids: &[AgentId]) -> String {
    ids.iter()
        .map(AgentId::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

/// SHA-256 of every file that matters, by name and content.
pub(super) fn fingerprint(folder: &Path, others: &BTreeSet<PathBuf>) -> String {
    let (packs, problems) =
        folder::pack_documents(folder).unwrap_or_else(|problem| (Vec::new(), vec![*problem]));
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

/// New problems in the log: a broken pack is an error, an odd one a warning.
pub(super) fn log(report: &Report, said: &Report) {
    for problem in report
        .problems
        .iter()
        .filter(|problem| !said.problems.contains(problem))
    {
        let line = problem.at.map_or(0, |at| at.line);
        let (file, path, message) = (&problem.file, &problem.path, &problem.message);
        let hint = problem.hint.as_deref().unwrap_or_default();
        match problem.severity {
            Severity::Error => tracing::error!(file, line, path, hint, "pack: {message}"),
            Severity::Warning => tracing::warn!(file, line, path, hint, "pack: {message}"),
        }
    }
}
