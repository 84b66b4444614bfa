//! One server of a holaOS workspace, as a server of a native pack.

use super::{LIST, RESERVED, UNKNOWN, name_of, unused};
use crate::{
    field::Field,
    node_builder::{NodeBuilder, generated_plain, generated_text, list, plain, text},
    object::Object,
    placeholder::{braces, escape_unreplaced},
    yaml::Node,
};

const TIMEOUT: &str = "default of holaOS: 10000 ms";

const PLACE: &str = "default of holaOS: the workspace";

/// A server that the allowlist may name.
pub(super) struct KnownServer<'a> {
    pub(super) id: String,
    pub(super) enabled: bool,
    pub(super) at: Field<'a>,
    /// Absent: it takes no part.
    pub(super) made: Option<NodeBuilder>,
}

pub(super) fn server<'a>(id: &str, field: &Field<'a>) -> Option<KnownServer<'a>> {
    let mut object = field.object()?;
    let enabled = object.nullable("enabled").is_none_or(|field| {
        field.flag().unwrap_or_else(|| {
            field.error("enabled must be true or false when provided", "");
            true
        })
    });
    let mut made = NodeBuilder::default();
    made.put("name", text(field, name_of(id, field)));
    let kind = object.nullable("type");
    let fields = EndpointFields {
        url: object.nullable("url"),
        command: object.nullable("command"),
        headers: object
            .nullable("headers")
            .map(|field| Mapping(mapping(&field, enabled))),
        environment: object
            .nullable("environment")
            .map(|field| Mapping(mapping(&field, enabled))),
    };
    let timeout = timeout(
        &mut object,
        kind.as_ref().and_then(Field::raw) == Some("local"),
    );
    // It tells clients how to reconnect.
    object.nullable("started_at");
    object.pass_over();
    let kind_name = kind.as_ref().and_then(Field::raw).unwrap_or_default();
    let is_reserved = id == RESERVED;
    if is_reserved {
        if kind_name != "local" {
            let at = kind.as_ref().unwrap_or(field);
            at.error("workspace MCP server must be local", "");
        }
    } else {
        match (kind_name, &kind) {
            ("remote", Some(kind)) => fields.put_remote(field, &mut made, kind),
            ("local", Some(kind)) => fields.put_local(field, &mut made, kind),
            (_, kind) => {
                let message = format!("{UNKNOWN}: server type must be 'local' or 'remote'");
                match kind {
                    Some(kind) => kind.error(message, ""),
                    None => field.error_at(field.at, "type", message, ""),
                }
            }
        }
        made.put("timeouts", timeout);
    }
    Some(KnownServer {
        id: id.to_owned(),
        enabled,
        at: field.clone(),
        made: (enabled && !is_reserved).then_some(made),
    })
}

/// A map of texts; without a node when its value is no map.
struct Mapping(Option<Node>);

/// The fields of which a remote and a local server have different ones.
struct EndpointFields<'a> {
    url: Option<Field<'a>>,
    command: Option<Field<'a>>,
    headers: Option<Mapping>,
    environment: Option<Mapping>,
}

impl EndpointFields<'_> {
    fn put_remote(self, field: &Field, made: &mut NodeBuilder, kind: &Field) {
        remote(field, made, self.url.as_ref(), kind);
        unused([(&self.command, "command")], "remote");
        made.put_some("headers", self.headers.and_then(|mapping| mapping.0));
        if let Some(field) = field
            .get_path(&["environment"])
            .filter(|_| self.environment.is_some())
        {
            field.warn("`environment` has no effect on a remote server", "");
        }
    }

    fn put_local(self, field: &Field, made: &mut NodeBuilder, kind: &Field) {
        made.put("transport", text(kind, "stdio"));
        local(field, made, self.command.as_ref());
        unused([(&self.url, "url")], "local");
        made.put_some("env", self.environment.and_then(|mapping| mapping.0));
        made.put("cwd", generated_text(PLACE, "."));
        if let Some(field) = field
            .get_path(&["headers"])
            .filter(|_| self.headers.is_some())
        {
            field.warn("`headers` has no effect on a local server", "");
        }
    }
}

fn remote(field: &Field, made: &mut NodeBuilder, url: Option<&Field>, kind: &Field) {
    let Some((url, address)) =
        url.and_then(|url| Some((url, url.raw().filter(|text| !text.trim().is_empty())?)))
    else {
        let message = "remote server requires non-empty string field 'url'".to_owned();
        return field.error_at(url.map_or(field.at, |url| url.at), "url", message, "");
    };
    let path = address.split(['?', '#']).next().unwrap_or_default();
    let transport = if path.trim_end().ends_with("/sse") {
        "sse"
    } else {
        "streamable-http"
    };
    made.put("transport", text(kind, transport));
    made.put(
        "url",
        text(url, escape_unreplaced(url, address.trim(), true)),
    );
}

fn local(field: &Field, made: &mut NodeBuilder, command: Option<&Field>) {
    let Some((command, tokens)) = command
        .filter(|field| field.is_list())
        .and_then(|field| Some((field, field.list()?)))
    else {
        let at = command.map_or(field.at, |command| command.at);
        return field.error_at(
            at,
            "command",
            "expected non-empty list command".to_owned(),
            LIST,
        );
    };
    if tokens.is_empty() {
        command.error("command list must not be empty", LIST);
    }
    for token in &tokens {
        if token.raw().is_none_or(|text| text.trim().is_empty()) {
            token.error(
                "command tokens must be non-empty strings",
                "put it in quotes",
            );
        }
    }
    let mut tokens = tokens
        .iter()
        .filter_map(|token| Some((token, token.raw()?)));
    if let Some((token, program)) = tokens.next() {
        let relative = program.contains('/') && !program.starts_with('/');
        let plain = escape_unreplaced(token, program, false);
        made.put(
            "command",
            text(
                token,
                if relative {
                    format!("${{workspaceFolder}}/{plain}")
                } else {
                    plain
                },
            ),
        );
    }
    let args =
        tokens.map(|(token, argument)| text(token, escape_unreplaced(token, argument, false)));
    made.put("args", list(command, args.collect()));
}

/// `headers` and `environment`.
pub(super) fn mapping(field: &Field, enabled: bool) -> Option<Node> {
    let mut made = NodeBuilder::default();
    for (key, value) in field.entries()? {
        match value.raw() {
            Some(written) => {
                made.put_some(
                    key,
                    braces(&value, key, written, enabled).map(|native| text(&value, native)),
                );
            }
            None => value.error("mapping values must be strings", "put it in quotes"),
        }
    }
    Some(made.into_node(field))
}

/// One value for connecting and for each request; the list of tools has no longer. Where nothing is written, a child has
/// its own time to start, because it may have to be downloaded.
fn timeout(object: &mut Object, is_local: bool) -> Node {
    let field = object.nullable("timeout_ms");
    let milliseconds = field.as_ref().and_then(|field| {
        let value = field.digits().and_then(|digits| digits.parse::<i64>().ok());
        match value {
            None => field.error("timeout_ms must be an integer when provided", ""),
            Some(value) if value <= 0 => field.error("timeout_ms must be greater than 0", ""),
            Some(_) => {}
        }
        value.filter(|value| *value > 0)
    });
    let mut made = NodeBuilder::default();
    for name in ["connectSeconds", "requestSeconds"] {
        if is_local && field.is_none() && name == "connectSeconds" {
            continue;
        }
        made.put(
            name,
            match (&field, milliseconds) {
                (Some(field), Some(milliseconds)) => plain(field, &seconds(milliseconds)),
                _ => generated_plain(TIMEOUT, "10"),
            },
        );
    }
    match field {
        Some(field) => made.into_node(&field),
        None => made.generated(TIMEOUT),
    }
}

fn seconds(milliseconds: i64) -> String {
    let text = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
