//! The address or command of a server, with its headers, arguments and variables. All of these are secrets,
//! also when they are written in the pack.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    env_file,
    field::{Field, Text},
    object::Object,
    placeholder::refuse_braces,
    server::PackContext,
};
use crate::domain::{
    header, orchestrator,
    secret::Secret,
    server::{Endpoint, Remote},
    template::is_variable_name,
};

/// The variable that holds what `config` says.
const CONFIG: &str = "MCP_CONFIG";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Remote(Remote),
    Stdio,
}

pub(super) fn transport(field: &Field) -> Option<Transport> {
    field.one_of(&[
        ("streamable-http", Transport::Remote(Remote::StreamableHttp)),
        ("sse", Transport::Remote(Remote::Sse)),
        ("stdio", Transport::Stdio),
        ("websocket", Transport::Remote(Remote::WebSocket)),
    ])
}

/// What only a child process has.
const STDIO_FIELDS: [&str; 7] = [
    "command", "args", "env", "envFile", "cwd", "encoding", "config",
];

/// Reads the fields of both transports, so that a field of the other transport gets its own message.
pub(super) fn read(
    object: &mut Object,
    transport: Option<Transport>,
    pack: &PackContext,
) -> Option<Endpoint> {
    let remote = ["url", "headers"].map(|name| object.optional(name));
    let stdio = STDIO_FIELDS.map(|name| object.optional(name));
    match transport? {
        Transport::Remote(transport) => {
            refuse_fields(stdio.iter().flatten(), "stdio");
            address(object, transport, &remote)
        }
        Transport::Stdio => {
            refuse_fields(remote.iter().flatten(), "streamable-http");
            child(object, &stdio, pack)
        }
    }
}

fn refuse_fields<'f, 'a: 'f>(fields: impl Iterator<Item = &'f Field<'a>>, transport: &str) {
    for field in fields {
        refuse_field_of(field, transport);
    }
}

/// Says that a field is of another transport.
pub(super) fn refuse_field_of(field: &Field, transport: &str) {
    let hint = format!("remove it, or write `transport: {transport}`");
    field.error(
        format!("this field belongs to transport {transport}"),
        &hint,
    );
}

fn address(
    object: &Object,
    transport: Remote,
    [url, headers]: &[Option<Field>; 2],
) -> Option<Endpoint> {
    let (schemes, wanted) = match transport {
        Remote::WebSocket => (["ws", "wss"], "write `url: wss://…`"),
        Remote::StreamableHttp | Remote::Sse => (["http", "https"], "write `url: https://…`"),
    };
    if object.is_absent("url") {
        object.missing("url", wanted);
    }
    let headers = headers.as_ref().map(headers_of).unwrap_or_default();
    let url = url.as_ref()?;
    if !url.has_raw_text(orchestrator::REFERENCE) {
        return Some(Endpoint::Remote {
            transport,
            url: url.url_of(schemes)?,
            headers,
        });
    }
    if transport != Remote::StreamableHttp {
        object.field.error(
            "the orchestrator is this program itself",
            "write `transport: streamable-http`",
        );
    }
    if !headers.is_empty() {
        object.field.error(
            "the orchestrator is this program itself and takes no headers",
            "remove `headers`",
        );
    }
    Some(Endpoint::Remote {
        transport: Remote::StreamableHttp,
        url: orchestrator::address(),
        headers: Vec::new(),
    })
}

fn headers_of(field: &Field) -> Vec<(String, Secret)> {
    let mut headers: Vec<(String, Secret)> = Vec::new();
    for (name, field) in field.entries().unwrap_or_default() {
        if let Err(reason) = header::check_name(name) {
            field.error(reason, "");
        } else if headers
            .iter()
            .any(|(other, _)| other.eq_ignore_ascii_case(name))
        {
            field.error(
                "this header is there already, ignoring case",
                "write each header once",
            );
        }
        refuse_braces(&field);
        let Some((secret, text)) = field.secret() else {
            continue;
        };
        if !header::can_carry(&text.value) {
            field.error(
                "holds a line break or another character that a header cannot carry",
                "use printable ASCII; a variable read from a file often ends with a line break",
            );
        } else if text.value.trim().is_empty() {
            field.warn("this header is empty", "set its variable, or remove it");
        } else if ["Bearer", "Basic"].contains(&text.value.trim()) {
            let message = "this header has no credential behind its scheme";
            field.warn(message, "set its variable, or remove the header");
        }
        headers.push((name.to_owned(), secret));
    }
    headers
}

fn child(object: &Object, fields: &[Option<Field>; 7], pack: &PackContext) -> Option<Endpoint> {
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
    let args = args.as_ref().and_then(Field::list).unwrap_or_default();
    let args = args.iter().filter_map(without_nul).collect();
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

/// `config`: handed to the child as JSON in a variable.
fn config_json(field: &Field) -> Option<Secret> {
    if !field.is_map() {
        field.error("expected a map", "write one `key: value` a line");
        return None;
    }
    Some(Secret::new(field.resolved_json()?.to_string()))
}

/// The label of a text encoding, such as `latin1`. Whether it is known is seen when the child starts.
fn label(text: &str) -> Result<String, String> {
    let shaped = text.len() <= 40
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b));
    if shaped {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not the label of a text encoding"))
    }
}

fn is_utf8(label: &str) -> bool {
    ["utf-8", "utf8", "utf_8"]
        .iter()
        .any(|name| label.eq_ignore_ascii_case(name))
}

/// A name to look up in `PATH`, or an absolute path. Arguments have a field of their own: no shell
/// takes a line apart.
fn command(field: &Field) -> Option<String> {
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
