//! The address or command of a server, with its headers, arguments and variables. All of these are secrets,
//! also when they are written in the pack.

mod child;

use self::child::child;
use super::{field::Field, object::Object, placeholder::refuse_braces, server::PackContext};
use crate::domain::{
    header, orchestrator,
    secret::Secret,
    server::{Endpoint, Remote},
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
