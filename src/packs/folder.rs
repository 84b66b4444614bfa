//! Where packs are: a folder of pack folders, one pack folder, or one file. Each is read on its own,
//! so that one broken pack hides nothing about the others.
//!
//! Whatever the format, a pack becomes a tree in the native one first, and is read from that.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    dialect::{self, Dialect, Documents, NATIVE_FILES},
    field::Field,
    native::{self, PartialPack},
    node_builder::NodeBuilder,
    overlay::{self, Overlay},
    parse_context::{ParseContext, Source, UnsetPolicy},
    report::{Problem, Report, Severity},
    server::Files,
    summary,
    yaml::{Comment, Node},
};
use crate::domain::{config::Environment, ids::AgentId, pack::Pack, secret::Secret};

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
    fn is_refused(&self) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }
}

/// The packs below a path in the order of their names, with warnings about the folder.
pub(super) fn pack_documents(path: &Path) -> Result<(Vec<Documents>, Vec<Problem>), Box<Problem>> {
    let unreadable = |error: &io::Error| {
        let message = format!("cannot be read: {}", error.kind());
        Box::new(Problem::whole(
            Severity::Error,
            path.display().to_string(),
            message,
            "name a folder of packs",
        ))
    };
    if fs::metadata(path)
        .map_err(|error| unreadable(&error))?
        .is_file()
    {
        return Ok((vec![dialect::of_file(path)?], Vec::new()));
    }
    if let Some(documents) = dialect::of_folder(path)? {
        return Ok((vec![documents], Vec::new()));
    }
    let (mut folders, mut problems) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path).map_err(|error| unreadable(&error))? {
        let entry = entry.map_err(|error| unreadable(&error))?;
        let name = entry.file_name();
        // Hidden folders are how Kubernetes swaps a mounted one.
        let skipped = name == CAPABILITIES || name.to_string_lossy().starts_with('.');
        if skipped {
            continue;
        }
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
            Ok(_) => {}
            // A broken mount must not read as a pack that was taken away.
            Err(error) => {
                let name = entry.path().display().to_string();
                let message = format!("cannot be read: {}", error.kind());
                let hint = "let the program read it, or remove it";
                problems.push(Problem::whole(Severity::Error, name, message, hint));
            }
        }
    }
    folders.sort();
    let mut found = Vec::new();
    for folder in &folders {
        match dialect::of_folder(folder) {
            Ok(Some(documents)) => found.push(documents),
            Ok(None) => {
                let message = "there is no pack in this folder".to_owned();
                let name = folder.display().to_string();
                problems.push(Problem::whole(
                    Severity::Warning,
                    name,
                    message,
                    &dialect::missing_pack_hint(folder),
                ));
            }
            Err(problem) => problems.push(*problem),
        }
    }
    if found.is_empty()
        && problems
            .iter()
            .all(|problem| problem.severity == Severity::Warning)
    {
        let name = path.display().to_string();
        let hint = "put each one in a folder of its own: `<id>/agent-pack.yaml`";
        problems.push(Problem::whole(
            Severity::Error,
            name,
            "there are no packs in this folder".to_owned(),
            hint,
        ));
    }
    Ok((found, problems))
}

fn read_pack(
    documents: Documents,
    env: &Environment,
    overlay: Option<&Overlay>,
    unset: UnsetPolicy,
) -> PackReadResult {
    let mut texts = Vec::new();
    let mut problems = Vec::new();
    for file in &documents.files {
        match text_of(file) {
            Ok(text) => texts.push(text),
            Err((reason, hint)) => {
                problems.push(Problem::whole(
                    Severity::Error,
                    file.display().to_string(),
                    reason,
                    hint,
                ));
            }
        }
    }
    let files: Vec<PathBuf> = documents.files.iter().skip(1).cloned().collect();
    if !problems.is_empty() {
        return PackReadResult {
            documents,
            pack: None,
            tree: None,
            files,
            id: None,
            problems,
        };
    }
    let named = documents.files.iter().zip(&texts);
    let sources = named
        .map(|(file, text)| Source {
            file: file.display().to_string(),
            text,
        })
        .collect();
    let context = ParseContext::of(sources, env, unset).in_folder(&documents.folder);
    let (root, more_files) = dialect::read(&documents, &context);
    let (draft, over) = root.as_ref().map_or_else(Default::default, |root| {
        let document = Field::new(&context, root, "");
        let draft = with_overlay(&document, &documents.folder, overlay, env, unset);
        if documents.dialect == Dialect::Native {
            name_matches(&document, &documents.files[0], draft.0.id.as_ref());
        }
        draft
    });
    let mut tree = root.map(|root| PackTree {
        root,
        files: context.files(),
        comments: context.comments(),
    });
    let replaced = overlay
        .zip(draft.id.as_ref())
        .and_then(|(overlay, id)| overlay.servers(id.as_str()));
    if let (Some((servers, _)), Some(tree)) = (replaced, &mut tree) {
        tree.replace_servers(servers.clone());
    }
    let (problems, used) = context.finish();
    let mut outcome = PackReadResult {
        documents,
        pack: None,
        tree,
        files,
        id: draft.id,
        problems,
    };
    let (more, used_there) = over.unwrap_or_default();
    let (beside, used_beside) = draft.beside;
    outcome.problems.extend(more.into_iter().chain(beside));
    let mut others = draft.files;
    others.extend(more_files);
    let said = overlay.map_or("", Overlay::text);
    let version = version(&texts, said, [&used, &used_there, &used_beside], &others);
    outcome.pack = draft
        .pack
        .filter(|_| !outcome.is_refused())
        .map(|pack| Pack { version, ..pack });
    outcome.files.extend(others.into_keys());
    outcome
}

type OverlayFindings = Option<(Vec<Problem>, BTreeMap<String, String>)>;

/// Reads a document with the servers that stand in for its own, if there are any.
fn with_overlay(
    document: &Field,
    folder: &Path,
    overlay: Option<&Overlay>,
    env: &Environment,
    unset: UnsetPolicy,
) -> (PartialPack, OverlayFindings) {
    let id = document
        .get_path(&["metadata", "id"])
        .and_then(|field| field.try_text())
        .unwrap_or_default();
    let servers = overlay.and_then(|overlay| Some((overlay, overlay.servers(&id)?)));
    let Some((overlay, (node, path))) = servers else {
        return (native::read(document, folder, None), None);
    };
    let context = overlay.context(env, unset).in_folder(folder);
    let draft = native::read(document, folder, Some(&Field::new(&context, node, path)));
    (draft, Some(context.finish()))
}

/// The text of a file; else why not, and what to do.
fn text_of(file: &Path) -> Result<String, (String, &'static str)> {
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    let read = fs::File::open(file).and_then(|open| open.take(limit).read_to_end(&mut bytes));
    read.map_err(|error| {
        (
            format!("cannot be read: {}", error.kind()),
            "let the user of this program read it",
        )
    })?;
    if bytes.len() > MAX_BYTES {
        return Err(("is larger than 1 MiB".to_owned(), "make it smaller"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        (
            format!("is not UTF-8 text (line {line})"),
            "save it as UTF-8",
        )
    })
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

/// SHA-256 of everything that went in, in hex. Parts carry their length, so that none runs into the
/// next.
fn version(
    texts: &[String],
    overlay: &str,
    used: [&BTreeMap<String, String>; 3],
    files: &Files,
) -> String {
    let mut digest = Sha256::new();
    let mut part = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    for text in texts {
        part(text.as_bytes());
    }
    part(overlay.as_bytes());
    for (name, value) in used.into_iter().flatten() {
        part(name.as_bytes());
        part(value.as_bytes());
    }
    for content in files.values() {
        part(content);
    }
    hex::encode(digest.finalize())
}
