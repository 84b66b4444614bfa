//! Where packs are: a folder of pack folders, one pack folder, or one file. Each is read on its own,
//! so that one broken pack hides nothing about the others.
//!
//! Whatever the format, a pack becomes a tree in the native one first, and is read from that.

mod listing;
mod reading;

use std::path::{Path, PathBuf};

pub(super) use self::listing::pack_documents;
use self::reading::read_pack;
use super::{
    dialect::{Documents, NATIVE_FILES},
    field::Field,
    node_builder::NodeBuilder,
    overlay::{self, Overlay},
    parse_context::UnsetPolicy,
    report::{Problem, Report, Severity},
    summary,
    yaml::{Comment, Node},
};
use domain::{config::Environment, ids::AgentId, pack::Pack, secret::Secret};

/// A folder beside the packs that is not one.
const CAPABILITIES: &str = "capabilities";
const MAX_BYTES: usize = 1024 * 1024;

/// Checks packs as at start-up and reports every problem. `path` is a folder of packs, one pack folder, or
/// one file.
pub fn check(path: &Path, env: &Environment, mcp_servers: Option<&Secret>) -> Report {
    read(path, env, mcp_servers, UnsetPolicy::Refused).report
}

/// Like [`check`], for a machine without the variables: a text with an unset variable is not checked.
pub fn check_allowing_unset(
    path: &Path,
    env: &Environment,
    mcp_servers: Option<&Secret>,
) -> Report {
    read(path, env, mcp_servers, UnsetPolicy::Allowed).report
}

/// What was read.
pub(super) struct PacksReadResult {
    pub packs: Vec<PackReadResult>,
    /// Problems of the packs, of the folder and of `MCP_SERVERS_CONFIG`.
    pub report: Report,
    /// Whether the folder and `MCP_SERVERS_CONFIG` could be read at all.
    pub usable: bool,
}

/// One pack.
pub(super) struct PackReadResult {
    pub documents: Documents,
    /// Present when nothing is wrong.
    pub pack: Option<Pack>,
    /// What it was made from, and its files by number: present when the files could be understood.
    pub tree: Option<PackTree>,
    /// Other files that it was made from.
    pub files: Vec<PathBuf>,
    id: Option<AgentId>,
    problems: Vec<Problem>,
}

/// A pack in the native format, whatever it was written in.
pub(super) struct PackTree {
    pub root: Node,
    pub files: Vec<String>,
    pub comments: Vec<Comment>,
}

pub(super) fn read(
    path: &Path,
    env: &Environment,
    mcp_servers: Option<&Secret>,
    unset: UnsetPolicy,
) -> PacksReadResult {
    let mut report = Report::default();
    let (overlay, problems) = mcp_servers.map(Overlay::parse).unzip();
    report.add(problems.into_iter().flatten());
    let mut usable = report.is_ok();
    let found = match pack_documents(path) {
        Ok((found, problems)) => {
            report.add(problems);
            found
        }
        Err(problem) => {
            usable = false;
            report.add([*problem]);
            Vec::new()
        }
    };
    let read = |documents| read_pack(documents, env, overlay.as_ref(), unset);
    let mut packs: Vec<_> = found.into_iter().map(read).collect();
    refuse_duplicate_ids(&mut packs);
    if let Some(overlay) = overlay {
        let ids: Vec<_> = packs
            .iter()
            .filter_map(|pack| Some(pack.id.as_ref()?.to_string()))
            .collect();
        // A pack whose id cannot be read may be the one that is meant.
        if ids.len() == packs.len() {
            let unknown_packs = overlay.unknown_packs(&ids);
            usable &= unknown_packs.is_empty();
            report.add(unknown_packs);
        }
    }
    report.packs = packs.len();
    for pack in &packs {
        report.add(pack.problems.clone());
        let understood = pack.tree.as_ref().filter(|_| !pack.is_refused());
        report.understood.extend(
            understood
                .map(|tree| summary::of(pack.documents.dialect, &tree.root, pack.pack.as_ref())),
        );
    }
    report.sort();
    PacksReadResult {
        packs,
        report,
        usable,
    }
}

impl PackTree {
    fn replace_servers(&mut self, servers: Node) {
        let mut mcp = NodeBuilder::default();
        mcp.put("servers", servers.in_source(self.files.len()));
        self.root.set("mcp", mcp.generated(overlay::NAME));
        self.files.push(overlay::NAME.to_owned());
    }
}

impl PackReadResult {
    fn without_pack(documents: Documents, files: Vec<PathBuf>, problems: Vec<Problem>) -> Self {
        Self {
            documents,
            pack: None,
            tree: None,
            files,
            id: None,
            problems,
        }
    }

    fn is_refused(&self) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }
}

/// A pack is looked for by its id, so its folder should have the same name.
fn name_matches(document: &Field, file: &Path, id: Option<&AgentId>) {
    let standard = file
        .file_name()
        .is_some_and(|name| NATIVE_FILES.iter().any(|standard| name == *standard));
    let folder = file
        .parent()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str());
    let field = document.get_path(&["metadata", "id"]);
    if let (true, Some(folder), Some(id), Some(field)) = (standard, folder, id, field)
        && folder != id.as_str()
    {
        let message = format!("the folder has another name, {folder:?}");
        field.warn(
            message,
            "give both the same name, so that people find the pack",
        );
    }
}

/// Refuses both packs when two have the same id, because neither is known to be the right one.
fn refuse_duplicate_ids(packs: &mut [PackReadResult]) {
    let ids: Vec<_> = packs
        .iter()
        .map(|pack| (pack.id.clone(), pack.documents.name()))
        .collect();
    for (index, pack) in packs.iter_mut().enumerate() {
        let same = |(at, (id, _)): &(usize, &(Option<AgentId>, String))| {
            *at != index && id.is_some() && *id == pack.id
        };
        let Some((_, (_, other))) = ids.iter().enumerate().find(same) else {
            continue;
        };
        let message = format!("`metadata.id` is the same as in {other}");
        let hint = "give every pack an id of its own";
        pack.problems.push(Problem::whole(
            Severity::Error,
            ids[index].1.clone(),
            message,
            hint,
        ));
        pack.pack = None;
    }
}
