//! `envFile` of a stdio server: variables in a file of the pack folder, in dotenv format.
//!
//! The file stays inside of the folder, whatever links there are, and is taken literally: nothing in
//! it is replaced, so what a pack depends on can be seen in the pack.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
};

use super::{field::Field, server::PackContext};
use crate::domain::secret::Secret;

const MAX_BYTES: u64 = 64 * 1024;

/// The variables of the file. Values are never part of a problem.
pub(super) fn read(field: &Field, pack: &PackContext) -> Option<BTreeMap<String, Secret>> {
    let text = field.filled()?;
    let path = match confined(pack.folder, Path::new(&text.value)) {
        Ok(path) => path,
        Err(reason) => {
            field.error(
                format!("{} {reason}", text.shown),
                "name a file in the folder of the pack",
            );
            return None;
        }
    };
    let content = match content(&path) {
        Ok(content) => content,
        Err(reason) => {
            field.error(format!("{} {reason}", text.shown), "");
            return None;
        }
    };
    pack.files
        .borrow_mut()
        .insert(path, content.clone().into_bytes());
    match variables(content.strip_prefix('\u{feff}').unwrap_or(&content)) {
        Ok(variables) => Some(variables),
        Err((line, reason)) => {
            field.error(format!("{} line {line}: {reason}", text.shown), "");
            None
        }
    }
}

/// The real path of a file in the folder.
pub(super) fn confined(folder: &Path, path: &Path) -> Result<PathBuf, &'static str> {
    if !path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return Err("leads out of the folder of the pack");
    }
    let real = fs::canonicalize(folder.join(path)).map_err(|_| "cannot be found")?;
    let folder = fs::canonicalize(folder).map_err(|_| "cannot be found")?;
    if real.starts_with(folder) {
        Ok(real)
    } else {
        Err("leads out of the folder of the pack")
    }
}

fn content(path: &Path) -> Result<String, &'static str> {
    let metadata = fs::metadata(path).map_err(|_| "cannot be read")?;
    if !metadata.is_file() {
        return Err("is not a file");
    }
    if metadata.len() > MAX_BYTES {
        return Err("is larger than 64 KiB");
    }
    let bytes = fs::read(path).map_err(|_| "cannot be read")?;
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text")
}

/// `NAME=value` lines. The later of two wins, as when a shell reads them.
fn variables(content: &str) -> Result<BTreeMap<String, Secret>, (usize, &'static str)> {
    // The parser would fill in `$NAME` from the process environment, behind the pack's back.
    for (number, line) in content.lines().enumerate() {
        if substitutes(line) {
            return Err((
                number + 1,
                "`$` is not replaced in this file; write the value in '…', or `\\$`",
            ));
        }
    }
    let mut variables = BTreeMap::new();
    for item in dotenvy::from_read_iter(content.as_bytes()) {
        let (name, value) =
            item.map_err(|error| (line_of(content, &error), "is not `NAME=value`"))?;
        if value.contains('\0') {
            return Err((1, "a value holds a NUL character"));
        }
        variables.insert(name, Secret::new(value));
    }
    Ok(variables)
}

fn substitutes(line: &str) -> bool {
    let line = line.trim_start();
    let value = line
        .split_once('=')
        .map_or(line, |(_, value)| value.trim_start());
    if line.starts_with('#') || value.starts_with('\'') {
        return false;
    }
    let mut before = ' ';
    value.chars().any(|c| {
        let dollar = c == '$' && before != '\\';
        before = c;
        dollar
    })
}

/// The parser's error holds the line itself, which is looked up and not shown.
fn line_of(content: &str, error: &dotenvy::Error) -> usize {
    let dotenvy::Error::LineParse(text, _) = error else {
        return 1;
    };
    content
        .lines()
        .position(|line| line.contains(text.trim()))
        .map_or(1, |at| at + 1)
}
