//! Finds the packs below a path: which folder holds one, in which format, in which files. Refuses a folder with two
//! packs, and reports folders that cannot be read.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    dialect::{ACCESS, AGENT, Dialect, Documents, NATIVE_FILES, WORKSPACE},
    folder::CAPABILITIES,
    report::{Problem, Severity},
};

/// The folders of an AOS project: its servers, and its skills.
const AOS_FOLDERS: [&str; 2] = ["core/mcp", "core/skills"];
/// The largest number of files of one AOS project.
const MAX_AOS_FILES: usize = 500;
/// The largest depth of folders below `core/mcp`.
const MAX_AOS_DEPTH: usize = 8;

/// Finds the packs below a path, in the order of their names, with the problems of the folder. `Err` if the path itself
/// cannot be read.
pub(crate) fn find_packs(path: &Path) -> Result<(Vec<Documents>, Vec<Problem>), Box<Problem>> {
    let metadata = fs::metadata(path).map_err(|error| path_problem(path, &error))?;
    if metadata.is_file() {
        return Ok((vec![find_in_file(path)?], Vec::new()));
    }
    if let Some(documents) = find_in_folder(path)? {
        return Ok((vec![documents], Vec::new()));
    }
    let (folders, mut problems) = list_subfolders(path)?;
    let found = find_in_folders(&folders, &mut problems);
    let is_warned_only = problems
        .iter()
        .all(|problem| problem.severity == Severity::Warning);
    if found.is_empty() && is_warned_only {
        problems.push(Problem::of_file(
            Severity::Error,
            path.display().to_string(),
            "there are no packs in this folder".to_owned(),
            "put each one in a folder of its own: `<id>/agent-pack.yaml`",
        ));
    }
    Ok((found, problems))
}

fn path_problem(path: &Path, error: &io::Error) -> Box<Problem> {
    Box::new(Problem::of_file(
        Severity::Error,
        path.display().to_string(),
        format!("cannot be read: {}", error.kind()),
        "name a folder of packs",
    ))
}

/// Lists the folders in a folder of packs, in the order of their names, and a problem for each that cannot be read.
fn list_subfolders(path: &Path) -> Result<(Vec<PathBuf>, Vec<Problem>), Box<Problem>> {
    let (mut folders, mut problems) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path).map_err(|error| path_problem(path, &error))? {
        let entry = entry.map_err(|error| path_problem(path, &error))?;
        let name = entry.file_name();
        // Kubernetes swaps the content of a mounted folder through hidden folders.
        let skipped = name == CAPABILITIES || name.to_string_lossy().starts_with('.');
        if skipped {
            continue;
        }
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
            Ok(_) => {}
            // A broken mount must not look like a pack that was removed.
            Err(error) => {
                let name = entry.path().display().to_string();
                let message = format!("cannot be read: {}", error.kind());
                let hint = "let the program read it, or remove it";
                problems.push(Problem::of_file(Severity::Error, name, message, hint));
            }
        }
    }
    folders.sort();
    Ok((folders, problems))
}

fn find_in_folders(folders: &[PathBuf], problems: &mut Vec<Problem>) -> Vec<Documents> {
    let mut found = Vec::new();
    for folder in folders {
        match find_in_folder(folder) {
            Ok(Some(documents)) => found.push(documents),
            Ok(None) => problems.push(Problem::of_file(
                Severity::Warning,
                folder.display().to_string(),
                "there is no pack in this folder".to_owned(),
                &suggest_file(folder),
            )),
            Err(problem) => problems.push(*problem),
        }
    }
    found
}

/// The pack in one file. Its name decides the format.
pub(super) fn find_in_file(file: &Path) -> Result<Documents, Box<Problem>> {
    let folder = file
        .parent()
        .filter(|folder| *folder != Path::new(""))
        .unwrap_or(Path::new("."))
        .to_owned();
    let dialect = match file.file_name().and_then(|name| name.to_str()) {
        Some(WORKSPACE) => Dialect::HolaOs,
        Some(AGENT) => Dialect::HoloDeck,
        _ => Dialect::Native,
    };
    if dialect != Dialect::Native {
        check_access(&folder)?;
    }
    Ok(build_documents(dialect, folder, vec![file.to_owned()]))
}

fn folder_problem(folder: &Path, message: String, hint: &str) -> Box<Problem> {
    let name = folder.display().to_string();
    Box::new(Problem::of_file(Severity::Error, name, message, hint))
}

/// Refuses a folder whose `access.yaml` cannot be read, or has a slightly different name: without its rules the pack
/// would be open.
fn check_access(folder: &Path) -> Result<(), Box<Problem>> {
    let unreadable = |error: io::Error| {
        let hint = "let the program read the folder, or remove it";
        folder_problem(folder, format!("cannot be read: {}", error.kind()), hint)
    };
    let entries = match fs::read_dir(folder) {
        // Files that are checked before they are written have no folder yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(unreadable)?,
    };
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        let name = name.to_string_lossy();
        let plain = name.to_lowercase().replace(".yml", ".yaml");
        if plain == ACCESS && name != ACCESS {
            let message = format!("{name} in this folder is not read");
            return Err(folder_problem(
                folder,
                message,
                &format!("rename it to {ACCESS}"),
            ));
        }
    }
    check_file(folder, ACCESS)
}

/// Refuses a name that stands for no file: a broken mount must not look like a file that was removed.
fn check_file(folder: &Path, name: &str) -> Result<(), Box<Problem>> {
    let file = folder.join(name);
    if fs::symlink_metadata(&file).is_err() || file.is_file() {
        return Ok(());
    }
    let link = if file.exists() {
        ""
    } else {
        " but a link to nothing"
    };
    let message = format!("{name} in this folder is not a file{link}");
    Err(folder_problem(
        folder,
        message,
        "put the file there, or remove it",
    ))
}

fn build_documents(dialect: Dialect, folder: PathBuf, mut files: Vec<PathBuf>) -> Documents {
    let standard = files[0]
        .file_name()
        .is_some_and(|name| NATIVE_FILES.iter().any(|file| name == *file));
    let access = folder.join(ACCESS);
    if (dialect != Dialect::Native || standard) && access.is_file() {
        files.push(access);
    }
    Documents {
        dialect,
        folder,
        files,
    }
}

/// The pack in a folder, if there is one.
pub(super) fn find_in_folder(folder: &Path) -> Result<Option<Documents>, Box<Problem>> {
    for name in NATIVE_FILES.into_iter().chain([WORKSPACE, AGENT]) {
        check_file(folder, name)?;
    }
    check_access(folder)?;
    let native: Vec<PathBuf> = NATIVE_FILES
        .iter()
        .map(|name| folder.join(name))
        .filter(|file| file.is_file())
        .collect();
    if let [first, second, ..] = native.as_slice() {
        let name = |file: &Path| {
            file.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        let [first, second] = [first, second].map(|file| name(file).unwrap_or_default());
        let message = format!("there are both {first} and {second}");
        return Err(folder_problem(folder, message, "remove one of them"));
    }
    let one = |name: &str| {
        Some(folder.join(name))
            .filter(|file| file.is_file())
            .into_iter()
            .collect::<Vec<_>>()
    };
    let of_aos = list_aos_files(folder).map_err(|message| folder_problem(folder, message, ""))?;
    let all = [
        (Dialect::Native, native),
        (Dialect::HolaOs, one(WORKSPACE)),
        (Dialect::Aos, of_aos),
        (Dialect::HoloDeck, one(AGENT)),
    ];
    let mut there = all.into_iter().filter(|(_, files)| !files.is_empty());
    match (there.next(), there.next()) {
        (Some((first, files)), Some((second, others))) => {
            let shown = |file: &Path| {
                file.strip_prefix(folder)
                    .unwrap_or(file)
                    .display()
                    .to_string()
            };
            let message = format!(
                "there are two packs in this folder: {} ({}) and {} ({})",
                shown(&files[0]),
                first.name(),
                shown(&others[0]),
                second.name()
            );
            Err(folder_problem(
                folder,
                message,
                "keep one of them, or give each a folder of its own",
            ))
        }
        (Some((dialect, files)), None) => {
            Ok(Some(build_documents(dialect, folder.to_owned(), files)))
        }
        (None, _) => Ok(None),
    }
}

/// A hint for a folder without a pack. If a file has nearly the right name, it says how to rename that file.
pub(super) fn suggest_file(folder: &Path) -> String {
    let there = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let plain = |name: &str| {
        name.to_lowercase()
            .replace(".yml", ".yaml")
            .replace('_', "-")
    };
    let right = |name: &str| {
        [NATIVE_FILES[0], WORKSPACE, AGENT]
            .into_iter()
            .find(|file| *file == plain(name))
    };
    let near = there
        .filter_map(|name| Some(format!("rename {name} to {}", right(&name)?)))
        .min();
    near.unwrap_or_else(|| {
        let [native, ..] = NATIVE_FILES;
        format!("add {native} (or {WORKSPACE}, {AGENT}, core/mcp/*.yaml), or remove the folder")
    })
}

/// Lists the files of an AOS project: `core/mcp/**.yaml`, then `core/skills/*/skill.yaml`, each in the order of names.
fn list_aos_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for (below, deepest) in AOS_FOLDERS.into_iter().zip([MAX_AOS_DEPTH, 1]) {
        let mut found = Vec::new();
        let root = folder.join(below);
        let above = fs::canonicalize(&root).unwrap_or_default();
        let mut seen = above.ancestors().skip(1).map(Path::to_owned).collect();
        list_yaml_files(&root, deepest, &mut found, &mut seen)?;
        if below == AOS_FOLDERS[1] {
            found.retain(|file| file.file_stem().is_some_and(|name| name == "skill"));
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

/// Adds the YAML files below a folder, `deepest` levels down. `seen` holds the folders that were read and those above
/// them, because a link may lead to them again.
fn list_yaml_files(
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
    // Only the root may be missing. Then the pack has another format.
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
            list_yaml_files(&path, deepest - 1, found, seen)?;
        } else if yaml && metadata.is_file() {
            found.push(path);
        }
        if found.len() > MAX_AOS_FILES {
            return Err(format!(
                "there are more than {MAX_AOS_FILES} files in {}",
                folder.display()
            ));
        }
    }
    Ok(())
}
