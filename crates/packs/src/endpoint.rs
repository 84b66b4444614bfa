//! The address or command of a server, with its headers, arguments and variables. All of these are secrets,
//! also when they are written in the pack.

mod child;

use self::child::child;
use super::{field::Field, object::Object, placeholder::refuse_braces, server::PackContext};
use domain::{
    header, orchestrator,
    secret::Secret,
    server::{AccessMode, Endpoint, Remote},
};

/// The variable that holds what `config` says.
const CONFIG: &str = "MCP_CONFIG";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Remote(Remote),
    Stdio,
}

pub(super) fn transport(field: &Field) -> Option<Transport> {
    // As other clients write it, and one published pack.
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

/// Where a server is, and what is sent there.
pub(super) struct Reach {
    pub(super) endpoint: Endpoint,
    /// Of a personal server: what the operator sends to discover its tools, and never with a user's call.
    pub(super) operator_headers: Vec<(String, Secret)>,
}

/// The headers of a server.
#[derive(Default)]
struct Headers {
    sent: Vec<(String, Secret)>,
    of_operator: Vec<(String, Secret)>,
}

/// What only a child process has.
const STDIO_FIELDS: [&str; 7] = [
    "command", "args", "env", "envFile", "cwd", "encoding", "config",
];

/// Reads the fields of both transports, so that a field of the other transport gets its own message.
pub(super) fn read(
    object: &mut Object,
    transport: Option<Transport>,
    mode: Option<AccessMode>,
    pack: &PackContext,
) -> Option<Reach> {
    let remote = ["url", "headers"].map(|name| object.optional(name));
    let stdio = STDIO_FIELDS.map(|name| object.optional(name));
    match transport? {
        Transport::Remote(transport) => {
            refuse_fields(stdio.iter().flatten(), "stdio");
            address(object, transport, mode, &remote)
        }
        Transport::Stdio => {
            refuse_fields(remote.iter().flatten(), "streamable-http");
            child(object, &stdio, pack).map(|endpoint| Reach {
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
    mode: Option<AccessMode>,
    [url, headers]: &[Option<Field>; 2],
) -> Option<Reach> {
    let (schemes, wanted) = match transport {
        Remote::WebSocket => (["ws", "wss"], "write `url: wss://…`"),
        Remote::StreamableHttp | Remote::Sse => (["http", "https"], "write `url: https://…`"),
    };
    if object.is_absent("url") {
        object.missing("url", wanted);
    }
    let headers = headers.as_ref().map(|field| headers_of(field, mode));
    let headers = headers.unwrap_or_default();
    let url = url.as_ref()?;
    if !url.has_raw_text(orchestrator::REFERENCE) {
        return Some(Reach {
            endpoint: Endpoint::Remote {
                transport,
                url: url.url_of(schemes)?,
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
    Some(Reach {
        endpoint: Endpoint::Remote {
            transport: Remote::StreamableHttp,
            url: orchestrator::address(),
            headers: Vec::new(),
        },
        operator_headers: Vec::new(),
    })
}

/// The headers of a server. With a user's call to a personal server go those that hold no variable, and those that the
/// pack marks as shared. The others are the operator's: they discover the tools. Where a variable of theirs is not set,
/// the server waits for its first user.
fn headers_of(field: &Field, mode: Option<AccessMode>) -> Headers {
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
        let Some((field, is_shared)) = value_of(&field, mode) else {
            continue;
        };
        refuse_braces(&field);
        let is_operators = is_personal && !is_shared && field.has_variables();
        if is_operators && let Some(unset) = field.unset_variable() {
            warn_of_waiting(&field, &format!("the variable `{unset}` is not set"));
            is_complete = false;
            continue;
        }
        let Some((secret, text)) = field.secret() else {
            continue;
        };
        let value = text.value.trim();
        if is_operators && (value.is_empty() || ["Bearer", "Basic"].contains(&value)) {
            warn_of_waiting(&field, "this header has no credential in it");
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

fn warn_of_waiting(field: &Field, why: &str) {
    field.warn(
        format!(
            "{why}, so this server waits for its first user, and nobody knows its tools before"
        ),
        "set it to discover the tools at the start, or remove the header",
    );
}

/// The value of a header, and whether the operator shares it with the users of a personal server:
/// `X-Tenant: { value: "${TENANT}", shared: true }`.
fn value_of<'a>(field: &Field<'a>, mode: Option<AccessMode>) -> Option<(Field<'a>, bool)> {
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
