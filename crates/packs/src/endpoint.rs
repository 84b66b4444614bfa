//! Reads where a server is: the address with its headers, or the command with its arguments and variables. Headers,
//! arguments and variables are secrets, also if the pack writes them out.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    env_file,
    field::{Field, Text},
    object::Object,
    placeholder::refuse_braces,
    server::PackContext,
};
use domain::{
    header, orchestrator,
    secret::Secret,
    server::{AccessMode, Endpoint, Remote},
    template::is_variable_name,
};

/// The variable in which a child process finds the JSON of `config`.
const CONFIG: &str = "MCP_CONFIG";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Remote(Remote),
    Stdio,
}

pub(super) fn read_transport(field: &Field) -> Option<Transport> {
    // Other clients write it so, and one published pack does.
    if field.has_raw_text("streamableHttp") {
        field.warn("counts as `streamable-http`", "write that");
        return Some(Transport::Remote(Remote::StreamableHttp));
    }
    field.one_of(&[
        ("streamable-http", Transport::Remote(Remote::StreamableHttp)),
        ("sse", Transport::Remote(Remote::Sse)),
        ("stdio", Transport::Stdio),
        ("websocket", Transport::Remote(Remote::WebSocket)),
    ])
}

/// The endpoint of a server, and the headers that only discover its tools.
pub(super) struct ParsedEndpoint {
    pub(super) endpoint: Endpoint,
    /// The headers with which the operator discovers the tools of a personal server. They never go with a user's call.
    pub(super) operator_headers: Vec<(String, Secret)>,
}

/// The headers of a server.
#[derive(Default)]
struct Headers {
    /// Sent with every call.
    sent: Vec<(String, Secret)>,
    /// Sent only to discover the tools of a personal server.
    of_operator: Vec<(String, Secret)>,
}

/// The fields that only a child process has.
const STDIO_FIELDS: [&str; 7] = [
    "command", "args", "env", "envFile", "cwd", "encoding", "config",
];

/// Reads the fields of both transports, so that a field of the other transport gets its own message. `None` after an
/// error.
pub(super) fn read(
    object: &mut Object,
    transport: Option<Transport>,
    mode: Option<AccessMode>,
    pack: &PackContext,
) -> Option<ParsedEndpoint> {
    let remote = ["url", "headers"].map(|name| object.optional(name));
    let stdio = STDIO_FIELDS.map(|name| object.optional(name));
    match transport? {
        Transport::Remote(transport) => {
            refuse_fields(stdio.iter().flatten(), "stdio");
            read_remote(object, transport, mode, &remote)
        }
        Transport::Stdio => {
            refuse_fields(remote.iter().flatten(), "streamable-http");
            read_child(object, &stdio, pack).map(|endpoint| ParsedEndpoint {
                endpoint,
                operator_headers: Vec::new(),
            })
        }
    }
}

fn refuse_fields<'f, 'a: 'f>(fields: impl Iterator<Item = &'f Field<'a>>, transport: &str) {
    for field in fields {
        refuse_field_of(field, transport);
    }
}

/// Reports a field that belongs to another transport.
pub(super) fn refuse_field_of(field: &Field, transport: &str) {
    let hint = format!("remove it, or write `transport: {transport}`");
    field.error(
        format!("this field belongs to transport {transport}"),
        &hint,
    );
}

/// Reads the address and headers of a remote server. The orchestrator has a name in place of an address.
fn read_remote(
    object: &Object,
    transport: Remote,
    mode: Option<AccessMode>,
    [url, headers]: &[Option<Field>; 2],
) -> Option<ParsedEndpoint> {
    let (schemes, wanted) = match transport {
        Remote::WebSocket => (["ws", "wss"], "write `url: wss://…`"),
        Remote::StreamableHttp | Remote::Sse => (["http", "https"], "write `url: https://…`"),
    };
    if object.is_absent("url") {
        object.report_missing("url", wanted);
    }
    let headers = headers.as_ref().map(|field| read_headers(field, mode));
    let headers = headers.unwrap_or_default();
    let url = url.as_ref()?;
    if !url.has_raw_text(orchestrator::REFERENCE) {
        return Some(ParsedEndpoint {
            endpoint: Endpoint::Remote {
                transport,
                url: url.url_with_schemes(schemes)?,
                headers: headers.sent,
            },
            operator_headers: headers.of_operator,
        });
    }
    if transport != Remote::StreamableHttp {
        object.field.error(
            "the orchestrator is this program itself",
            "write `transport: streamable-http`",
        );
    }
    if !headers.sent.is_empty() || !headers.of_operator.is_empty() {
        object.field.error(
            "the orchestrator is this program itself and takes no headers",
            "remove `headers`",
        );
    }
    Some(ParsedEndpoint {
        endpoint: Endpoint::Remote {
            transport: Remote::StreamableHttp,
            url: orchestrator::address(),
            headers: Vec::new(),
        },
        operator_headers: Vec::new(),
    })
}

/// Reads the headers of a server. A user's call to a personal server carries the headers without a variable and those
/// that the pack marks as shared. The other headers are the operator's and only discover the tools. If one of their
/// variables is not set, none of them is used, and the tools are discovered when the first user connects.
fn read_headers(field: &Field, mode: Option<AccessMode>) -> Headers {
    let is_personal = mode == Some(AccessMode::UserControlled);
    let mut headers = Headers::default();
    let mut names: Vec<&str> = Vec::new();
    let mut is_complete = true;
    for (name, field) in field.entries().unwrap_or_default() {
        if let Err(reason) = header::check_name(name) {
            field.error(reason, "");
        } else if names.iter().any(|other| other.eq_ignore_ascii_case(name)) {
            field.error(
                "this header is there already, ignoring case",
                "write each header once",
            );
        }
        names.push(name);
        let Some((field, is_shared)) = read_header_value(&field, mode) else {
            continue;
        };
        refuse_braces(&field);
        let is_operators = is_personal && !is_shared && field.has_variables();
        if is_operators && let Some(unset) = field.find_unset_variable() {
            warn_waits_for_user(&field, &format!("the variable `{unset}` is not set"));
            is_complete = false;
            continue;
        }
        let Some((secret, text)) = field.secret() else {
            continue;
        };
        let value = text.value.trim();
        if is_operators && (value.is_empty() || ["Bearer", "Basic"].contains(&value)) {
            warn_waits_for_user(&field, "this header has no credential in it");
            is_complete = false;
            continue;
        }
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
        if is_operators {
            headers.of_operator.push((name.to_owned(), secret));
        } else {
            headers.sent.push((name.to_owned(), secret));
        }
    }
    if !is_complete {
        headers.of_operator.clear();
    }
    headers
}

fn warn_waits_for_user(field: &Field, why: &str) {
    field.warn(
        format!(
            "{why}, so this server waits for its first user, and nobody knows its tools before"
        ),
        "set it to discover the tools at the start, or remove the header",
    );
}

/// Reads the value of a header, and whether the operator shares it with the users of a personal server, as in
/// `X-Tenant: { value: "${TENANT}", shared: true }`.
fn read_header_value<'a>(field: &Field<'a>, mode: Option<AccessMode>) -> Option<(Field<'a>, bool)> {
    if !field.is_map() {
        return Some((field.clone(), false));
    }
    let mut object = field.object()?;
    let value = object.required("value", "write `{ value: \"${NAME}\", shared: true }`");
    let shared = object.optional("shared");
    object.finish();
    if let (Some(shared), Some(AccessMode::AdminControlled)) = (&shared, mode) {
        shared.warn(
            "has no effect on a shared server, whose headers go with every call",
            "remove it",
        );
    }
    let is_shared = shared.and_then(|field| field.boolean());
    Some((value?, is_shared.unwrap_or(false)))
}

/// Checks the form of the label of a text encoding, such as `latin1`. An unknown label is an error when the child
/// starts.
fn check_encoding_label(text: &str) -> Result<String, String> {
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

/// Reads a server that is a child process. `fields` are those of `STDIO_FIELDS`, in that order.
fn read_child(
    object: &Object,
    fields: &[Option<Field>; 7],
    pack: &PackContext,
) -> Option<Endpoint> {
    let [command_field, args, env, env_file, cwd, encoding, config] = fields;
    if object.is_absent("command") {
        object.report_missing("command", "write `command: npx` or another program");
    }
    let mut variables = env_file
        .as_ref()
        .and_then(|field| env_file::read(field, pack))
        .unwrap_or_default();
    variables.extend(env.as_ref().map(read_variables).unwrap_or_default());
    if let Some((field, json)) = config
        .as_ref()
        .and_then(|field| Some((field, read_config(field)?)))
    {
        if env
            .as_ref()
            .is_some_and(|env| env.get_path(&[CONFIG]).is_some())
        {
            field.error(format!("`env` sets {CONFIG}, too"), "write one of the two");
        }
        variables.insert(CONFIG.to_owned(), json);
    }
    let args = args.as_ref().map(read_arguments).unwrap_or_default();
    let cwd = cwd.as_ref().and_then(|field| read_folder(field, pack));
    let encoding = encoding
        .as_ref()
        .and_then(|field| field.parse_with(check_encoding_label))
        .filter(|label| !is_utf8(label));
    let command = command_field.as_ref().and_then(read_command)?;
    Some(Endpoint::Stdio {
        command,
        args,
        env: variables,
        cwd,
        encoding,
    })
}

/// Reads `args`: a list or, as some published packs write it, one text with a list in JSON or with words between
/// blanks. The value of a variable stays one argument, unless the variable is the whole text and holds a list in
/// JSON.
fn read_arguments(field: &Field) -> Vec<Secret> {
    let Some(line) = field.raw() else {
        let items = field.list().unwrap_or_default();
        return items.iter().filter_map(read_secret).collect();
    };
    field.mask();
    let only_variable = line.starts_with("${") && line.ends_with('}') && !line[2..].contains('$');
    if only_variable {
        let Some(text) = field.resolve(line) else {
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
    let words = words.iter().filter_map(|word| field.resolve(word));
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

/// Reads `config`, which the child gets as JSON in a variable.
fn read_config(field: &Field) -> Option<Secret> {
    if !field.is_map() {
        field.error("expected a map", "write one `key: value` a line");
        return None;
    }
    Some(Secret::new(field.resolve_json()?.to_string()))
}

fn is_utf8(label: &str) -> bool {
    ["utf-8", "utf8", "utf_8"]
        .iter()
        .any(|name| label.eq_ignore_ascii_case(name))
}

/// Reads `command`: a name to look up in `PATH`, or an absolute path. Arguments have a field of their own, because no
/// shell splits the line.
fn read_command(field: &Field) -> Option<String> {
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

fn read_variables(field: &Field) -> BTreeMap<String, Secret> {
    let mut variables = BTreeMap::new();
    for (name, field) in field.entries().unwrap_or_default() {
        if !is_variable_name(name) {
            field.error(
                format!("{name:?} is not the name of a variable"),
                "use letters, digits and `_`",
            );
        }
        refuse_braces(&field);
        variables.extend(read_secret(&field).map(|secret| (name.to_owned(), secret)));
    }
    variables
}

/// Reads a secret that a process can be given: text without NUL.
fn read_secret(field: &Field) -> Option<Secret> {
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

/// Reads `cwd`, a path relative to the folder of the pack.
fn read_folder(field: &Field, pack: &PackContext) -> Option<PathBuf> {
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
