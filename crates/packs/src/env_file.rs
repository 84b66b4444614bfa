//! Reads `envFile` of a stdio server: variables in a file of the pack folder, in dotenv format.
//!
//! The file must be inside the folder, also after links are followed. No variable is replaced in its text, so that the
//! pack itself names every variable that it depends on.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
};

use super::{field::Field, server::PackContext};
use domain::secret::Secret;

const MAX_BYTES: u64 = 64 * 1024;
const NOT_REPLACED: &str = "`$` is not replaced in this file; write the value in '…', or `\\$`";

/// Reads the file that a field names. Values are never part of a problem.
pub(super) fn read(field: &Field, pack: &PackContext) -> Option<BTreeMap<String, Secret>> {
    let text = field.non_blank_text()?;
    let path = match resolve_inside(pack.folder, Path::new(&text.value)) {
        Ok(path) => path,
        Err(reason) => {
            field.error(
                format!("{} {reason}", text.shown),
                "name a file in the folder of the pack",
            );
            return None;
        }
    };
    let content = match read_text(&path) {
        Ok(content) => content,
        Err(reason) => {
            field.error(format!("{} {reason}", text.shown), "");
            return None;
        }
    };
    pack.files
        .borrow_mut()
        .insert(path, content.clone().into_bytes());
    match parse_variables(content.strip_prefix('\u{feff}').unwrap_or(&content)) {
        Ok(variables) => {
            for (name, value) in &variables {
                let name = format!("`{name}` of {}", text.shown);
                let refused = field.context.refuse_own_value(&name, value.expose());
                if let Some((message, hint)) = refused {
                    field.error(message, &hint);
                }
            }
            Some(variables)
        }
        Err((line, reason)) => {
            field.error(format!("{} line {line}: {reason}", text.shown), "");
            None
        }
    }
}

/// The real path of a file in the folder. `Err` has the end of a sentence about `path`.
pub(super) fn resolve_inside(folder: &Path, path: &Path) -> Result<PathBuf, &'static str> {
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

fn read_text(path: &Path) -> Result<String, &'static str> {
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

/// Parses `NAME=value` lines by the rules on which python-dotenv and Node agree. The last value of a name counts, as
/// in a shell. `Err` has the number of the line, from 1, and the reason.
fn parse_variables(content: &str) -> Result<BTreeMap<String, Secret>, (usize, &'static str)> {
    let mut variables = BTreeMap::new();
    let mut lines = content.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let here = |reason| (number + 1, reason);
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, rest) = line.split_once('=').ok_or(here("is not `NAME=value`"))?;
        let name = name.trim_end();
        let usable = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if name.is_empty() || !name.chars().all(usable) {
            return Err(here("is not `NAME=value`"));
        }
        let rest = rest.trim_start();
        let value = match rest.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                let mut text = rest[1..].to_owned();
                // A value in quotes may have several lines.
                while find_closing_quote(&text, quote).is_none() {
                    let (_, next) = lines.next().ok_or(here("a quote is not closed"))?;
                    text.push('\n');
                    text.push_str(next);
                }
                unquote(&text, quote).map_err(here)?
            }
            _ => parse_unquoted(rest).map_err(here)?,
        };
        if value.contains('\0') {
            return Err(here("a value holds a NUL character"));
        }
        variables.insert(name.to_owned(), Secret::new(value));
    }
    Ok(variables)
}

/// The position of the quote that ends a text.
fn find_closing_quote(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices()
        .find(|(_, c)| {
            let ends = *c == quote && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        })
        .map(|(at, _)| at)
}

/// The value of a quoted text, up to its end. Only a comment may follow.
fn unquote(text: &str, quote: char) -> Result<String, &'static str> {
    let end = find_closing_quote(text, quote).ok_or("a quote is not closed")?;
    let after = text[end + 1..].trim_start();
    if !after.is_empty() && !after.starts_with('#') {
        return Err("something follows the closing quote");
    }
    let (mut value, mut rest) = (String::new(), text[..end].chars());
    while let Some(c) = rest.next() {
        match c {
            '$' if quote == '"' => return Err(NOT_REPLACED),
            '\\' => match (rest.next(), quote) {
                (Some(c @ ('\\' | '\'')), '\'') | (Some(c @ ('\\' | '\'' | '"' | '$')), '"') => {
                    value.push(c);
                }
                (Some('n'), '"') => value.push('\n'),
                (Some('r'), '"') => value.push('\r'),
                (Some('t'), '"') => value.push('\t'),
                (next, _) => {
                    value.push('\\');
                    value.extend(next);
                }
            },
            c => value.push(c),
        }
    }
    Ok(value)
}

/// The value of a text without quotes around it: everything up to a comment.
fn parse_unquoted(text: &str) -> Result<String, &'static str> {
    let comment = text
        .char_indices()
        .find(|(at, c)| *c == '#' && (*at == 0 || text[..*at].ends_with(char::is_whitespace)));
    let text = text[..comment.map_or(text.len(), |(at, _)| at)].trim_end();
    let mut before = ' ';
    for c in text.chars() {
        if c == '$' && before != '\\' {
            return Err(NOT_REPLACED);
        }
        before = c;
    }
    Ok(text.replace("\\$", "$"))
}
