//! Where a server is and what is sent to reach it. Headers, arguments and variables are secrets,
//! wherever they came from.

use std::{collections::BTreeMap, path::PathBuf};

use super::{env_file, field::Field, object::Object, server::Around};
use crate::domain::{
    header, orchestrator,
    secret::Secret,
    server::{Endpoint, Remote},
    template::is_variable_name,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    StreamableHttp,
    Stdio,
}

pub(super) fn transport(field: &Field) -> Option<Transport> {
    let words = [
        ("streamable-http", Some(Transport::StreamableHttp)),
        ("stdio", Some(Transport::Stdio)),
        ("sse", None),
        ("websocket", None),
    ];
    if let Some(text) = field.text().filter(|text| !words.iter().any(|(word, _)| *word == text.value)) {
        let near = if text.from_env { None } else { super::field::nearest(&text.value, &["streamable-http", "stdio"]) };
        let near = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
        field.error(format!("unknown value {}", text.shown), &format!("{near}write one of streamable-http, stdio"));
        return None;
    }
    let known = field.one_of(&words)?;
    if known.is_none() {
        let shown = field.text()?.shown;
        let hint = "write `transport: streamable-http`, which most servers of that kind also speak";
        field.error(format!("the transport {shown} is not supported by this version yet"), hint);
    }
    known
}

/// Reads the fields of both transports, so that one of the other kind is not merely unknown.
pub(super) fn read(object: &mut Object, transport: Option<Transport>, around: &Around) -> Option<Endpoint> {
    let http = ["url", "headers"].map(|name| object.optional(name));
    let stdio = ["command", "args", "env", "envFile", "cwd"].map(|name| object.optional(name));
    match transport? {
        Transport::StreamableHttp => {
            foreign(stdio.iter().flatten(), "stdio");
            streamable_http(object, &http)
        }
        Transport::Stdio => {
            foreign(http.iter().flatten(), "streamable-http");
            child(object, &stdio, around)
        }
    }
}

fn foreign<'f, 'a: 'f>(fields: impl Iterator<Item = &'f Field<'a>>, transport: &str) {
    for field in fields {
        let hint = format!("remove it, or write `transport: {transport}`");
        field.error(format!("this field belongs to transport {transport}"), &hint);
    }
}

fn streamable_http(object: &Object, [url, headers]: &[Option<Field>; 2]) -> Option<Endpoint> {
    if object.lacks("url") {
        object.missing("url", "write `url: https://…`");
    }
    let headers = headers.as_ref().map(headers_of).unwrap_or_default();
    let url = url.as_ref()?;
    if !url.is_written(orchestrator::REFERENCE) {
        return Some(Endpoint::Remote { transport: Remote::StreamableHttp, url: url.url()?, headers });
    }
    if !headers.is_empty() {
        object.field.error("the orchestrator is this program itself and takes no headers", "remove `headers`");
    }
    Some(Endpoint::Remote { transport: Remote::StreamableHttp, url: orchestrator::placeholder(), headers: Vec::new() })
}

fn headers_of(field: &Field) -> Vec<(String, Secret)> {
    let mut headers: Vec<(String, Secret)> = Vec::new();
    for (name, field) in field.entries().unwrap_or_default() {
        if let Err(reason) = header::check_name(name) {
            field.error(reason, "");
        } else if headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            field.error("this header is there already, ignoring case", "write each header once");
        }
        let Some((secret, text)) = field.secret() else { continue };
        if !header::can_carry(&text.value) {
            field.error(
                "holds a line break or another character that a header cannot carry",
                "use printable ASCII; a variable read from a file often ends with a line break",
            );
        } else if text.value.trim().is_empty() {
            field.warn("this header is empty", "set its variable, or remove it");
        }
        headers.push((name.to_owned(), secret));
    }
    headers
}

fn child(object: &Object, fields: &[Option<Field>; 5], around: &Around) -> Option<Endpoint> {
    let [command_field, args, env, env_file, cwd] = fields;
    if object.lacks("command") {
        object.missing("command", "write `command: npx` or another program");
    }
    let mut variables = env_file.as_ref().and_then(|field| env_file::read(field, around)).unwrap_or_default();
    variables.extend(env.as_ref().map(variables_of).unwrap_or_default());
    let args = args.as_ref().and_then(Field::list).unwrap_or_default();
    let args = args.iter().filter_map(without_nul).collect();
    let cwd = cwd.as_ref().and_then(|field| folder(field, around));
    let command = command_field.as_ref().and_then(command)?;
    Some(Endpoint::Stdio { command, args, env: variables, cwd, encoding: None })
}

/// A name to look up in `PATH`, or an absolute path. Arguments have a field of their own: no shell
/// takes a line apart.
fn command(field: &Field) -> Option<String> {
    let text = field.filled()?;
    let absolute = text.value.starts_with('/');
    if text.value.contains('\0') {
        field.error("holds a NUL character", "remove it");
    } else if !absolute && text.value.contains(char::is_whitespace) {
        field.error(
            format!("{} is more than the name of a program", text.shown),
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

fn variables_of(field: &Field) -> BTreeMap<String, Secret> {
    let mut variables = BTreeMap::new();
    for (name, field) in field.entries().unwrap_or_default() {
        if !is_variable_name(name) {
            field.error(format!("{name:?} is not the name of a variable"), "use letters, digits and `_`");
        }
        variables.extend(without_nul(&field).map(|secret| (name.to_owned(), secret)));
    }
    variables
}

fn without_nul(field: &Field) -> Option<Secret> {
    let (secret, text) = field.secret()?;
    if text.value.contains('\0') {
        field.error("holds a NUL character, which a process cannot be given", "remove it");
        return None;
    }
    Some(secret)
}

/// `cwd`: relative to the folder of the pack.
fn folder(field: &Field, around: &Around) -> Option<PathBuf> {
    let text = field.filled()?;
    let folder = around.folder.join(&text.value);
    if folder.is_dir() {
        return Some(folder);
    }
    field.error(format!("{} is not a folder", text.shown), "write one relative to the folder of the pack");
    None
}
