//! Finds the pack in a folder and its format, and refuses a folder with two packs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{ACCESS, AGENT, Dialect, Documents, NATIVE_FILES, WORKSPACE, aos_files::aos_files};
use crate::report::{Problem, Severity};

/// One file that was named.
pub(crate) fn of_file(file: &Path) -> Result<Documents, Box<Problem>> {
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
    Ok(with_access(dialect, folder, vec![file.to_owned()]))
}

fn wrong(folder: &Path, message: String, hint: &str) -> Box<Problem> {
    let name = folder.display().to_string();
    Box::new(Problem::whole(Severity::Error, name, message, hint))
}

/// A file that says who may do what closes the pack when it cannot be read, and so does one with nearly its name.
fn check_access(folder: &Path) -> Result<(), Box<Problem>> {
    let unreadable = |error: io::Error| {
        let hint = "let the program read the folder, or remove it";
        wrong(folder, format!("cannot be read: {}", error.kind()), hint)
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
            return Err(wrong(folder, message, &format!("rename it to {ACCESS}")));
        }
    }
    check_file(folder, ACCESS)
}

/// A broken mount must not read as a file that was taken away.
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
    Err(wrong(folder, message, "put the file there, or remove it"))
}

fn with_access(dialect: Dialect, folder: PathBuf, mut files: Vec<PathBuf>) -> Documents {
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
pub(crate) fn of_folder(folder: &Path) -> Result<Option<Documents>, Box<Problem>> {
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
        return Err(wrong(folder, message, "remove one of them"));
    }
    let one = |name: &str| {
        Some(folder.join(name))
            .filter(|file| file.is_file())
            .into_iter()
            .collect::<Vec<_>>()
    };
    let of_aos = aos_files(folder).map_err(|message| wrong(folder, message, ""))?;
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
            Err(wrong(
                folder,
                message,
                "keep one of them, or give each a folder of its own",
            ))
        }
        (Some((dialect, files)), None) => Ok(Some(with_access(dialect, folder.to_owned(), files))),
        (None, _) => Ok(None),
    }
}

/// The hint for a folder without a pack, for example that a file has nearly the right name.
pub(crate) fn missing_pack_hint(folder: &Path) -> String {
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
