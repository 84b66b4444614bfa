//! The steps from the files of one folder to one pack: its tree, its overlay, and the checks that need both.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{MAX_BYTES, PackReadResult, PackTree, name_matches};
use crate::{
    dialect::{self, Dialect, Documents},
    field::Field,
    native::{self, PartialPack},
    overlay::Overlay,
    parse_context::{ParseContext, Source, UnsetPolicy},
    report::{Problem, Severity},
    server::Files,
    yaml::Node,
};
use domain::{config::Environment, ids::AgentId, pack::Pack};

pub(super) fn read_pack(
    documents: Documents,
    env: &Environment,
    overlay: Option<&Overlay>,
    unset: UnsetPolicy,
) -> PackReadResult {
    let files: Vec<PathBuf> = documents.files.iter().skip(1).cloned().collect();
    let texts = match texts_of(&documents.files) {
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
    let tree = root.map(|root| tree_of(root, &context, overlay, draft.id.as_ref()));
    let (problems, used) = context.finish();
    let mut outcome = PackReadResult {
        tree,
        id: draft.id,
        ..PackReadResult::without_pack(documents, files, problems)
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

/// The texts of all files, or a problem for each file that cannot be read.
fn texts_of(files: &[PathBuf]) -> Result<Vec<String>, Vec<Problem>> {
    let (mut texts, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        match text_of(file) {
            Ok(text) => texts.push(text),
            Err((reason, hint)) => {
                let name = file.display().to_string();
                problems.push(Problem::whole(Severity::Error, name, reason, hint));
            }
        }
    }
    if problems.is_empty() {
        Ok(texts)
    } else {
        Err(problems)
    }
}

/// The tree with the servers that the overlay puts in place of its own.
fn tree_of(
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
