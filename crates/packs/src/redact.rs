//! Finds the parts of a document that an excerpt must not show: literals that may be secret. They can be anywhere,
//! also in values that no reader reads (a repeated key, an unknown field, a list in place of a map).
//!
//! Only keys decide, because a broken document has no better sign. References are shown, because they are not the
//! value.

use std::ops::Range;

use super::yaml::{Node, Value};
use domain::template::{Template, is_variable_name};

/// Keys below which every literal may be secret. They are compared without case, `_` and `-`.
const SECRET_PARENTS: [&str; 12] = [
    "headers",
    "header",
    "env",
    "envs",
    "environ",
    "environment",
    "environmentvariables",
    "args",
    "arguments",
    "config",
    "authorization",
    "bearer",
];
/// Ends of keys below which every literal may be secret. `tokens` is not among them: `maxTokens` is a number.
const SECRET_SUFFIXES: [&str; 9] = [
    "token",
    "secret",
    "secrets",
    "password",
    "passwd",
    "apikey",
    "privatekey",
    "credential",
    "credentials",
];
/// The longest key that an excerpt shows of a line that is not valid YAML.
const LONGEST_KEY: usize = 64;

/// Whether a text refers to variables, in the native spelling or that of holaOS. Braces around anything but the name
/// of a variable are no reference: they may enclose the secret itself.
fn has_reference(text: &str) -> bool {
    let braced = || text.split("{env:").skip(1).map(|rest| rest.split_once('}'));
    let names = braced().all(|found| found.is_some_and(|(name, _)| is_variable_name(name)));
    Template::parse(text).is_ok_and(|template| template.references().next().is_some())
        || (names && braced().next().is_some())
}

fn holds_secrets(key: &str) -> bool {
    let plain = key.to_lowercase().replace(['_', '-'], "");
    SECRET_PARENTS.contains(&plain.as_str())
        || SECRET_SUFFIXES.iter().any(|end| plain.ends_with(end))
}

/// Whether any key of a path may hold secrets.
pub(super) fn is_below_secret_key(path: &str) -> bool {
    path.split(['.', '[', ']', '"']).any(holds_secrets)
}

/// The bytes of a tree that must not be shown. If `all`, every literal, whatever the keys are.
pub(super) fn secret_spans(node: &Node, text: &str, all: bool) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    collect_literals(node, text, all, &mut spans);
    spans
}

fn collect_literals(node: &Node, text: &str, secret: bool, spans: &mut Vec<Range<usize>>) {
    match &node.value {
        Value::Scalar { text: value, .. } => {
            if secret && !value.is_empty() && !has_reference(value) {
                spans.push(node.span.clone());
            }
        }
        Value::List(items) => items
            .iter()
            .for_each(|item| collect_literals(item, text, secret, spans)),
        Value::Map(entries) => {
            for (key, value) in entries {
                collect_literals(value, text, secret || holds_secrets(&key.text), spans);
                match key.text.to_lowercase().as_str() {
                    "command" => collect_arguments(value, spans),
                    key if key.ends_with("url") => {
                        spans.extend(secret_part_of_address(value, text));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Adds the arguments in a `command`, which may be a list with the program as its first word, or a line for a shell.
fn collect_arguments(command: &Node, spans: &mut Vec<Range<usize>>) {
    match &command.value {
        Value::Scalar { text, .. } if text.trim().contains(char::is_whitespace) => {
            spans.push(command.span.clone());
        }
        Value::List(words) => {
            let words = words
                .iter()
                .skip(1)
                .filter(|word| word.scalar_text().is_some_and(|text| !has_reference(text)));
            spans.extend(words.map(|word| word.span.clone()));
        }
        _ => {}
    }
}

/// The part of an address that may be secret: all of it if it has a user or password, else its query.
fn secret_part_of_address(address: &Node, text: &str) -> Option<Range<usize>> {
    let written = address.scalar_text()?;
    if public_part(written).is_none() {
        return Some(address.span.clone());
    }
    let at = text.get(address.span.clone())?.find('?')?;
    Some(address.span.start + at..address.span.end)
}

/// An address without its query. `None` if it has a user or password.
pub(super) fn public_part(address: &str) -> Option<&str> {
    let place = address.split(['?', '#']).next().unwrap_or_default();
    (!place.contains('@')).then_some(place)
}

/// The key at the start of a line that is not valid YAML. The rest of the line may be secret.
pub(super) fn key_of_line(line: &str) -> Option<String> {
    let start = line.find(|c: char| !c.is_whitespace() && c != '-')?;
    let (key, rest) = line[start..].split_once(':')?;
    let word = key.trim_matches(['"', '\'']);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_key = !word.is_empty() && word.len() <= LONGEST_KEY && word.chars().all(plain);
    if !is_key || !(rest.is_empty() || rest.starts_with(char::is_whitespace)) {
        return None;
    }
    let more = if rest.trim().is_empty() { "" } else { " …" };
    Some(format!("{}{key}:{more}", &line[..start]))
}
