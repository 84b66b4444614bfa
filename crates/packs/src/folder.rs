//! Reads the packs below a path: a folder of pack folders, one pack folder, or one file. Each pack is read alone, so
//! that a broken one hides nothing about the others.
//!
//! Whatever its format, a pack becomes the tree of a native one first, and is read from that tree.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    dialect::{self, Dialect, Documents, NATIVE_FILES},
    field::Field,
    finding::find_packs,
    native::{self, PartialPack},
    node_builder::NodeBuilder,
    overlay::{self, Overlay},
    parse_context::{ParseContext, Source, UnsetPolicy},
    report::{Problem, Report, Severity},
    server::Files,
    summary,
    yaml::{Comment, Node},
};
use domain::{config::Environment, ids::AgentId, pack::Pack, secret::Secret};

/// The folder of capabilities beside the packs. It is not a pack.
pub(super) const CAPABILITIES: &str = "capabilities";
/// The largest size of a file.
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

/// All packs below a path.
pub(super) struct PacksReadResult {
    pub packs: Vec<PackReadResult>,
    /// Problems of the packs, of the folder and of `MCP_SERVERS_CONFIG`.
    pub report: Report,
    /// Whether the folder and `MCP_SERVERS_CONFIG` could be read. If not, a missing pack does not mean that it was
    /// removed.
    pub usable: bool,
}

/// One pack, as far as it could be read.
pub(super) struct PackReadResult {
    pub documents: Documents,
    /// Present if there is no error.
    pub pack: Option<Pack>,
    /// Present if the files are valid YAML.
    pub tree: Option<PackTree>,
    /// The files that the pack was made from, other than its first document.
    pub files: Vec<PathBuf>,
    id: Option<AgentId>,
    problems: Vec<Problem>,
}

/// The tree of a pack in the native format, whatever format it was written in.
pub(super) struct PackTree {
    pub root: Node,
    /// The names of its files. A node names its file by the number in this list.
    pub files: Vec<String>,
    pub comments: Vec<Comment>,
}

/// Reads all packs below a path. `mcp_servers` is the value of `MCP_SERVERS_CONFIG`.
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
    let found = match find_packs(path) {
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
        // If an id cannot be read, that pack may be the one that the overlay means.
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
        report.understood.extend(understood.map(|tree| {
            summary::summarize(pack.documents.dialect, &tree.root, pack.pack.as_ref())
        }));
    }
    report.sort();
    PacksReadResult {
        packs,
        report,
        usable,
    }
}

impl PackTree {
    /// Replaces `mcp.servers` by those of `MCP_SERVERS_CONFIG`.
    fn replace_servers(&mut self, servers: Node) {
        let mut mcp = NodeBuilder::default();
        mcp.put("servers", servers.in_source(self.files.len()));
        self.root.set("mcp", mcp.build_generated(overlay::NAME));
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

/// Warns of a native pack whose folder has another name than its id: people look for a pack by its id.
fn check_folder_name(document: &Field, file: &Path, id: Option<&AgentId>) {
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

/// Refuses both packs if two have the same id, because neither is known to be the right one.
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
        pack.problems.push(Problem::of_file(
            Severity::Error,
            ids[index].1.clone(),
            message,
            hint,
        ));
        pack.pack = None;
    }
}

/// Reads one pack: its files, the servers of the overlay, and the checks that need both.
fn read_pack(
    documents: Documents,
    env: &Environment,
    overlay: Option<&Overlay>,
    unset: UnsetPolicy,
) -> PackReadResult {
    let files: Vec<PathBuf> = documents.files.iter().skip(1).cloned().collect();
    let texts = match read_texts(&documents.files) {
        Ok(texts) => texts,
        Err(problems) => return PackReadResult::without_pack(documents, files, problems),
    };
    let named = documents.files.iter().zip(&texts);
    let sources = named
        .map(|(file, text)| Source {
            file: file.display().to_string(),
            text,
        })
        .collect();
    let context = ParseContext::for_sources(sources, env, unset).in_folder(&documents.folder);
    let (root, more_files) = dialect::read(&documents, &context);
    let (draft, of_overlay) = root.as_ref().map_or_else(Default::default, |root| {
        let document = Field::new(&context, root, "");
        let draft = read_document(&document, &documents.folder, overlay, env, unset);
        if documents.dialect == Dialect::Native {
            check_folder_name(&document, &documents.files[0], draft.0.id.as_ref());
        }
        draft
    });
    let tree = root.map(|root| build_tree(root, &context, overlay, draft.id.as_ref()));
    let (problems, used) = context.finish();
    let mut outcome = PackReadResult {
        tree,
        id: draft.id,
        ..PackReadResult::without_pack(documents, files, problems)
    };
    outcome.problems.extend(of_overlay.problems);
    outcome.problems.extend(draft.problems);
    let mut others = draft.files;
    others.extend(more_files);
    let overlay = overlay.map_or("", Overlay::text);
    let used = [&used, &of_overlay.used, &draft.used];
    let version = hash_version(&texts, overlay, used, &others);
    outcome.pack = draft
        .pack
        .filter(|_| !outcome.is_refused())
        .map(|pack| Pack { version, ..pack });
    outcome.files.extend(others.into_keys());
    outcome
}

/// Reads the texts of all files. `Err` has a problem for each file that cannot be read.
fn read_texts(files: &[PathBuf]) -> Result<Vec<String>, Vec<Problem>> {
    let (mut texts, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        match read_text(file) {
            Ok(text) => texts.push(text),
            Err((reason, hint)) => {
                let name = file.display().to_string();
                problems.push(Problem::of_file(Severity::Error, name, reason, hint));
            }
        }
    }
    if problems.is_empty() {
        Ok(texts)
    } else {
        Err(problems)
    }
}

/// The tree of a pack, with the servers of the overlay if it has any for this pack.
fn build_tree(
    root: Node,
    context: &ParseContext,
    overlay: Option<&Overlay>,
    id: Option<&AgentId>,
) -> PackTree {
    let mut tree = PackTree {
        root,
        files: context.files(),
        comments: context.comments(),
    };
    let replaced = overlay
        .zip(id)
        .and_then(|(overlay, id)| overlay.servers(id.as_str()));
    if let Some((servers, _)) = replaced {
        tree.replace_servers(servers.clone());
    }
    tree
}

/// The result of reading the servers of `MCP_SERVERS_CONFIG` for one pack.
#[derive(Default)]
struct OverlayResult {
    problems: Vec<Problem>,
    /// The variables that were used, with their values.
    used: BTreeMap<String, String>,
}

/// Reads a document. The servers of the overlay replace its own, if the overlay has any for this pack.
fn read_document(
    document: &Field,
    folder: &Path,
    overlay: Option<&Overlay>,
    env: &Environment,
    unset: UnsetPolicy,
) -> (PartialPack, OverlayResult) {
    let id = document
        .get_path(&["metadata", "id"])
        .and_then(|field| field.try_text())
        .unwrap_or_default();
    let servers = overlay.and_then(|overlay| Some((overlay, overlay.servers(&id)?)));
    let Some((overlay, (node, path))) = servers else {
        return (
            native::read(document, folder, None),
            OverlayResult::default(),
        );
    };
    let context = overlay.context(env, unset).in_folder(folder);
    let draft = native::read(document, folder, Some(&Field::new(&context, node, path)));
    let (problems, used) = context.finish();
    (draft, OverlayResult { problems, used })
}

/// Reads a file. `Err` has the reason and a hint.
fn read_text(file: &Path) -> Result<String, (String, &'static str)> {
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

/// The version of a pack: SHA-256 in hex of everything that it was made from. Each part is hashed with its length, so
/// that two different lists of parts never give the same bytes.
fn hash_version(
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
