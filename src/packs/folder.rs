//! Where packs are: a folder of pack folders, one pack folder, or one file. Each is read on its own,
//! so that one broken pack hides nothing about the others.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    field::Field,
    native::{self, Draft},
    overlay::Overlay,
    report::{Problem, Report, Severity},
    server::Files,
    sheet::{Sheet, Unset},
};
use crate::domain::{config::Environment, ids::AgentId, pack::Pack, secret::Secret};

const FILES: [&str; 2] = ["agent-pack.yaml", "agent-pack.yml"];
/// A folder beside the packs that is not one.
const CAPABILITIES: &str = "capabilities";
const MAX_BYTES: usize = 1024 * 1024;

/// Looks at packs as a start would and tells everything that is wrong. `path` is a folder of packs, one
/// pack folder, or one file.
pub fn check(path: &Path, env: &Environment, mcp_servers: Option<&Secret>) -> Report {
    read(path, env, mcp_servers, Unset::Refused).report
}

/// The same for a machine without the variables: what is unset is left open.
pub fn check_allowing_unset(path: &Path, env: &Environment, mcp_servers: Option<&Secret>) -> Report {
    read(path, env, mcp_servers, Unset::Allowed).report
}

/// What was read.
pub(super) struct Reading {
    pub packs: Vec<Outcome>,
    /// Problems of the packs, of the folder and of `MCP_SERVERS_CONFIG`.
    pub report: Report,
    /// Whether the folder and `MCP_SERVERS_CONFIG` could be read at all.
    pub usable: bool,
}

/// One pack file.
pub(super) struct Outcome {
    pub file: PathBuf,
    /// Present when nothing is wrong.
    pub pack: Option<Pack>,
    /// Other files that it was made from.
    pub files: Vec<PathBuf>,
    id: Option<AgentId>,
    problems: Vec<Problem>,
}

pub(super) fn read(path: &Path, env: &Environment, mcp_servers: Option<&Secret>, unset: Unset) -> Reading {
    let mut report = Report::default();
    let (overlay, problems) = mcp_servers.map(Overlay::parse).unzip();
    report.add(problems.into_iter().flatten());
    let mut usable = report.is_ok();
    let files = match pack_files(path) {
        Ok((files, problems)) => {
            report.add(problems);
            files
        }
        Err(problem) => {
            usable = false;
            report.add([*problem]);
            Vec::new()
        }
    };
    let mut packs: Vec<_> = files.into_iter().map(|file| read_file(file, env, overlay.as_ref(), unset)).collect();
    same_ids(&mut packs);
    if let Some(overlay) = overlay {
        let ids: Vec<_> = packs.iter().filter_map(|pack| Some(pack.id.as_ref()?.to_string())).collect();
        // A pack whose id cannot be read may be the one that is meant.
        if ids.len() == packs.len() {
            let strangers = overlay.strangers(&ids);
            usable &= strangers.is_empty();
            report.add(strangers);
        }
    }
    report.packs = packs.len();
    for pack in &packs {
        report.add(pack.problems.clone());
    }
    report.sort();
    Reading { packs, report, usable }
}

/// The pack files below a path, in the order of their names, with what is odd about the folder.
pub(super) fn pack_files(path: &Path) -> Result<(Vec<PathBuf>, Vec<Problem>), Box<Problem>> {
    let unreadable = |error: &io::Error| {
        let message = format!("cannot be read: {}", error.kind());
        Box::new(Problem::whole(Severity::Error, path.display().to_string(), message, "name a folder of packs"))
    };
    if fs::metadata(path).map_err(|error| unreadable(&error))?.is_file() {
        return Ok((vec![path.to_owned()], Vec::new()));
    }
    if let Some(file) = pack_file(path)? {
        return Ok((vec![file], Vec::new()));
    }
    let mut folders = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| unreadable(&error))? {
        let entry = entry.map_err(|error| unreadable(&error))?;
        let name = entry.file_name();
        // Hidden folders are how Kubernetes swaps a mounted one.
        let skipped = name == CAPABILITIES || name.to_string_lossy().starts_with('.');
        if !skipped && entry.path().is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for folder in &folders {
        match pack_file(folder) {
            Ok(Some(file)) => files.push(file),
            Ok(None) => {
                let message = format!("there is no {} in this folder", FILES[0]);
                let name = folder.display().to_string();
                problems.push(Problem::whole(Severity::Warning, name, message, "add one, or remove the folder"));
            }
            Err(problem) => problems.push(*problem),
        }
    }
    if files.is_empty() && problems.iter().all(|problem| problem.severity == Severity::Warning) {
        let name = path.display().to_string();
        let hint = "put each one in a folder of its own: `<id>/agent-pack.yaml`";
        problems.push(Problem::whole(Severity::Error, name, "there are no packs in this folder".to_owned(), hint));
    }
    Ok((files, problems))
}

fn pack_file(folder: &Path) -> Result<Option<PathBuf>, Box<Problem>> {
    let mut there = FILES.iter().map(|name| folder.join(name)).filter(|file| file.is_file());
    match (there.next(), there.next()) {
        (Some(_), Some(_)) => {
            let message = format!("there are both {} and {}", FILES[0], FILES[1]);
            let name = folder.display().to_string();
            Err(Box::new(Problem::whole(Severity::Error, name, message, "remove one of them")))
        }
        (file, _) => Ok(file),
    }
}

fn read_file(file: PathBuf, env: &Environment, overlay: Option<&Overlay>, unset: Unset) -> Outcome {
    let name = file.display().to_string();
    let text = match text_of(&file) {
        Ok(text) => text,
        Err(reason) => {
            let problems = vec![Problem::whole(Severity::Error, name, reason, "")];
            return Outcome { file, pack: None, files: Vec::new(), id: None, problems };
        }
    };
    let sheet = Sheet::new(&name, &text, env, unset);
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    let (draft, over) = sheet.parse().map_or_else(Default::default, |root| {
        let document = Field::new(&sheet, &root, "");
        let draft = with_overlay(&document, &folder, overlay, env, unset);
        name_matches(&document, &file, draft.0.id.as_ref());
        draft
    });
    let (mut problems, used) = sheet.finish();
    let (more, used_there) = over.unwrap_or_default();
    let (beside, used_beside) = draft.beside;
    problems.extend(more.into_iter().chain(beside));
    let good = problems.iter().all(|problem| problem.severity == Severity::Warning);
    let version = version(&text, overlay.map_or("", Overlay::text), [&used, &used_there, &used_beside], &draft.files);
    let pack = draft.pack.filter(|_| good).map(|pack| Pack { version, ..pack });
    Outcome { file, pack, files: draft.files.into_keys().collect(), id: draft.id, problems }
}

type Over = Option<(Vec<Problem>, BTreeMap<String, String>)>;

/// Reads a document with the servers that stand in for its own, if there are any.
fn with_overlay(
    document: &Field,
    folder: &Path,
    overlay: Option<&Overlay>,
    env: &Environment,
    unset: Unset,
) -> (Draft, Over) {
    let id = document.below(&["metadata", "id"]).and_then(|field| field.quiet()).unwrap_or_default();
    let servers = overlay.and_then(|overlay| Some((overlay, overlay.servers(&id)?)));
    let Some((overlay, (node, path))) = servers else { return (native::read(document, folder, None), None) };
    let sheet = overlay.sheet(env, unset);
    let draft = native::read(document, folder, Some(&Field::new(&sheet, node, path)));
    (draft, Some(sheet.finish()))
}

fn text_of(file: &Path) -> Result<String, String> {
    let bytes = fs::read(file).map_err(|error| format!("cannot be read: {}", error.kind()))?;
    if bytes.len() > MAX_BYTES {
        return Err("is larger than 1 MiB".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        format!("is not UTF-8 text (line {})", good.split(|byte| *byte == b'\n').count())
    })
}

/// A pack is looked for by its id, so its folder should have the same name.
fn name_matches(document: &Field, file: &Path, id: Option<&AgentId>) {
    let standard = file.file_name().is_some_and(|name| FILES.iter().any(|standard| name == *standard));
    let folder = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let field = document.below(&["metadata", "id"]);
    if let (true, Some(folder), Some(id), Some(field)) = (standard, folder, id, field)
        && folder != id.as_str()
    {
        let message = format!("the folder has another name, {folder:?}");
        field.warn(message, "give both the same name, so that people find the pack");
    }
}

/// Refuses an id that two packs have: both of them, since nobody knows which one is meant.
fn same_ids(packs: &mut [Outcome]) {
    let ids: Vec<_> = packs.iter().map(|pack| (pack.id.clone(), pack.file.display().to_string())).collect();
    for (index, pack) in packs.iter_mut().enumerate() {
        let same = |(at, (id, _)): &(usize, &(Option<AgentId>, String))| *at != index && id.is_some() && *id == pack.id;
        let Some((_, (_, other))) = ids.iter().enumerate().find(same) else { continue };
        let message = format!("`metadata.id` is the same as in {other}");
        let hint = "give every pack an id of its own";
        pack.problems.push(Problem::whole(Severity::Error, ids[index].1.clone(), message, hint));
        pack.pack = None;
    }
}

/// SHA-256 of everything that went in, in hex. Parts carry their length, so that none runs into the
/// next.
fn version(text: &str, overlay: &str, used: [&BTreeMap<String, String>; 3], files: &Files) -> String {
    let mut digest = Sha256::new();
    let mut part = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    part(text.as_bytes());
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
