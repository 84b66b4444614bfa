//! The server as a child process: its command, its folder and its variables.

use std::{collections::BTreeMap, path::PathBuf};

use super::{CONFIG, label};
use crate::{
    env_file,
    field::{Field, Text},
    object::Object,
    placeholder::refuse_braces,
    server::PackContext,
};
use domain::{secret::Secret, server::Endpoint, template::is_variable_name};

pub(super) fn child(
    object: &Object,
    fields: &[Option<Field>; 7],
    pack: &PackContext,
) -> Option<Endpoint> {
    let [command_field, args, env, env_file, cwd, encoding, config] = fields;
    if object.is_absent("command") {
        object.missing("command", "write `command: npx` or another program");
    }
    let mut variables = env_file
        .as_ref()
        .and_then(|field| env_file::read(field, pack))
        .unwrap_or_default();
    variables.extend(env.as_ref().map(variables_of).unwrap_or_default());
    if let Some((field, json)) = config
        .as_ref()
        .and_then(|field| Some((field, config_json(field)?)))
    {
        if env
            .as_ref()
            .is_some_and(|env| env.get_path(&[CONFIG]).is_some())
        {
            field.error(format!("`env` sets {CONFIG}, too"), "write one of the two");
        }
        variables.insert(CONFIG.to_owned(), json);
    }
    let args = args.as_ref().map(arguments).unwrap_or_default();
    let cwd = cwd.as_ref().and_then(|field| folder(field, pack));
    let encoding = encoding
        .as_ref()
        .and_then(|field| field.parsed(label))
        .filter(|label| !is_utf8(label));
    let command = command_field.as_ref().and_then(command)?;
    Some(Endpoint::Stdio {
        command,
        args,
        env: variables,
        cwd,
        encoding,
    })
}

/// A list; or in one text, as published packs may write it, a list in JSON or words with blanks between them. A variable
/// stays one argument, whatever its value holds, unless it is all of the text and holds a list in JSON.
fn arguments(field: &Field) -> Vec<Secret> {
    let Some(line) = field.raw() else {
        let items = field.list().unwrap_or_default();
        return items.iter().filter_map(without_nul).collect();
    };
    field.mask();
    let only_variable = line.starts_with("${") && line.ends_with('}') && !line[2..].contains('$');
    if only_variable {
        let Some(text) = field.resolved(line) else {
            return Vec::new();
        };
        let listed = serde_json::from_str::<Vec<String>>(&text.value);
        let words = listed.unwrap_or_else(|_| vec![text.value]);
        return words.into_iter().map(Secret::new).collect();
    }
    let words: Vec<String> = if line.trim_start().starts_with('[') {
        match serde_json::from_str(line) {
            Ok(words) => words,
            Err(_) => {
                field.error("is not a list of texts in JSON", "write `args: [-y, …]`");
                return Vec::new();
            }
        }
    } else if line.contains(['"', '\'', '\\']) {
        field.error(
            "no shell takes quotes and backslashes apart here",
            "write a list: `args: [-y, …]`",
        );
        return Vec::new();
    } else {
        line.split_whitespace().map(str::to_owned).collect()
    };
    let words = words.iter().filter_map(|word| field.resolved(word));
    let words: Vec<Text> = words.collect();
    if words.iter().any(|word| word.value.contains('\0')) {
        field.error(
            "holds a NUL character, which a process cannot be given",
            "remove it",
        );
    }
    words
        .into_iter()
        .map(|word| Secret::new(word.value))
        .collect()
}

/// `config`: handed to the child as JSON in a variable.
fn config_json(field: &Field) -> Option<Secret> {
    if !field.is_map() {
        field.error("expected a map", "write one `key: value` a line");
        return None;
    }
    Some(Secret::new(field.resolved_json()?.to_string()))
}

fn is_utf8(label: &str) -> bool {
    ["utf-8", "utf8", "utf_8"]
        .iter()
        .any(|name| label.eq_ignore_ascii_case(name))
}

/// A name to look up in `PATH`, or an absolute path. Arguments have a field of their own: no shell
/// takes a line apart.
pub(super) fn command(field: &Field) -> Option<String> {
    let text = field.non_blank_text()?;
    let absolute = text.value.starts_with('/');
    if text.value.contains('\0') {
        field.error("holds a NUL character", "remove it");
    } else if !absolute && text.value.contains(char::is_whitespace) {
        field.error(
            format!("{} is more than the name of a program", first_word(&text)),
            "write the program alone, and its arguments in `args`",
        );
    } else if !absolute && text.value.contains('/') {
        field.error(
            format!("{} is a relative path", text.shown),
            "write an absolute path, or the name of a program in PATH",
        );
    } else {
        return Some(text.value);
    }
    None
}

/// The first word only, because the words after it may be secret.
fn first_word(text: &Text) -> String {
    let word = text
        .value
        .split_whitespace()
        .next()
        .filter(|_| !text.from_env);
    word.map_or_else(|| text.shown.clone(), |word| format!("\"{word} …\""))
}

fn variables_of(field: &Field) -> BTreeMap<String, Secret> {
    let mut variables = BTreeMap::new();
    for (name, field) in field.entries().unwrap_or_default() {
        if !is_variable_name(name) {
            field.error(
                format!("{name:?} is not the name of a variable"),
                "use letters, digits and `_`",
            );
        }
        refuse_braces(&field);
        variables.extend(without_nul(&field).map(|secret| (name.to_owned(), secret)));
    }
    variables
}

fn without_nul(field: &Field) -> Option<Secret> {
    let (secret, text) = field.secret()?;
    if text.value.contains('\0') {
        field.error(
            "holds a NUL character, which a process cannot be given",
            "remove it",
        );
        return None;
    }
    Some(secret)
}

/// `cwd`: relative to the folder of the pack.
fn folder(field: &Field, pack: &PackContext) -> Option<PathBuf> {
    let text = field.non_blank_text()?;
    let folder = pack.folder.join(&text.value);
    if folder.is_dir() {
        return Some(folder);
    }
    field.error(
        format!("{} is not a folder", text.shown),
        "write one relative to the folder of the pack",
    );
    None
}
