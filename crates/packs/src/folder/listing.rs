//! The packs below a folder, and the problems of the folder itself.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::CAPABILITIES;
use crate::{
    dialect::{self, Documents},
    report::{Problem, Severity},
};

/// The packs below a path in the order of their names, with warnings about the folder.
pub(crate) fn pack_documents(path: &Path) -> Result<(Vec<Documents>, Vec<Problem>), Box<Problem>> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if metadata.is_file() {
        return Ok((vec![dialect::of_file(path)?], Vec::new()));
    }
    if let Some(documents) = dialect::of_folder(path)? {
        return Ok((vec![documents], Vec::new()));
    }
    let (folders, mut problems) = subfolders(path)?;
    let found = documents_of(&folders, &mut problems);
    let is_warned_only = problems
        .iter()
        .all(|problem| problem.severity == Severity::Warning);
    if found.is_empty() && is_warned_only {
        problems.push(Problem::whole(
            Severity::Error,
            path.display().to_string(),
            "there are no packs in this folder".to_owned(),
            "put each one in a folder of its own: `<id>/agent-pack.yaml`",
        ));
    }
    Ok((found, problems))
}

fn unreadable(path: &Path, error: &io::Error) -> Box<Problem> {
    Box::new(Problem::whole(
        Severity::Error,
        path.display().to_string(),
        format!("cannot be read: {}", error.kind()),
        "name a folder of packs",
    ))
}

/// The folders in a folder of packs in the order of their names, and those that cannot be read.
fn subfolders(path: &Path) -> Result<(Vec<PathBuf>, Vec<Problem>), Box<Problem>> {
    let (mut folders, mut problems) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path).map_err(|error| unreadable(path, &error))? {
        let entry = entry.map_err(|error| unreadable(path, &error))?;
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
    Ok((folders, problems))
}

fn documents_of(folders: &[PathBuf], problems: &mut Vec<Problem>) -> Vec<Documents> {
    let mut found = Vec::new();
    for folder in folders {
        match dialect::of_folder(folder) {
            Ok(Some(documents)) => found.push(documents),
            Ok(None) => problems.push(Problem::whole(
                Severity::Warning,
                folder.display().to_string(),
                "there is no pack in this folder".to_owned(),
                &dialect::missing_pack_hint(folder),
            )),
            Err(problem) => problems.push(*problem),
        }
    }
    found
}
