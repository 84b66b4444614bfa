//! The files of an AOS project, which lie in several folders.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

const AOS_FOLDERS: [&str; 2] = ["core/mcp", "core/skills"];

/// Files of one AOS project, and how deep they lie.
const MAX_FILES: usize = 500;

const MAX_DEPTH: usize = 8;

/// `core/mcp/**.yaml`, then `core/skills/*/skill.yaml`, each in the order of their names.
pub(super) fn aos_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for (below, deepest) in AOS_FOLDERS.into_iter().zip([MAX_DEPTH, 1]) {
        let mut found = Vec::new();
        let root = folder.join(below);
        let above = fs::canonicalize(&root).unwrap_or_default();
        let mut seen = above.ancestors().skip(1).map(Path::to_owned).collect();
        walk(&root, deepest, &mut found, &mut seen)?;
        if below == AOS_FOLDERS[1] {
            found.retain(|file| file.file_stem().is_some_and(|name| name == "skill"));
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

/// `seen`: folders that were read already and the folders above, because a link may lead to them again.
fn walk(
    folder: &Path,
    deepest: usize,
    found: &mut Vec<PathBuf>,
    seen: &mut BTreeSet<PathBuf>,
) -> Result<(), String> {
    if fs::canonicalize(folder).is_ok_and(|real| !seen.insert(real)) {
        return Ok(());
    }
    let unreadable = |path: &Path, error: io::Error| {
        format!("{} cannot be read: {}", path.display(), error.kind())
    };
    // The root alone may be missing: then the pack has another format.
    if fs::symlink_metadata(folder).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, error))?;
    for entry in entries {
        let path = entry.map_err(|error| unreadable(folder, error))?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden {
            continue;
        }
        let yaml = path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml");
        let metadata = fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
        if metadata.is_dir() && deepest > 0 {
            walk(&path, deepest - 1, found, seen)?;
        } else if yaml && metadata.is_file() {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(format!(
                "there are more than {MAX_FILES} files in {}",
                folder.display()
            ));
        }
    }
    Ok(())
}
