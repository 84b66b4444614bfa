//! Reads a holaOS workspace: the section `mcp_registry` of `workspace.yaml`. The holaOS document has the rules.
//!
//! The codes and messages are those of the original program. A server that the allowlist names is limited to
//! the tools named there; every other server keeps all its tools.

use std::collections::BTreeMap;

use super::{
    dialect::{Parts, assemble, open_to_all},
    field::Field,
    node_builder::{NodeBuilder, generate_plain, generate_text, list, literal, plain, text},
    object::Object,
    parse_context::ParseContext,
    placeholder::{escape_unreplaced, translate_braces},
    yaml::{DuplicateKey, EMPTY, Node, SyntaxError},
};

const MISSING: &str = "workspace_mcp_registry_missing";
const LIST: &str = "write `command: [<program>, <argument>]`";
const REGISTRY: &str = "write `mcp_registry: { servers: … }`";
const UNKNOWN: &str = "workspace_mcp_server_unknown";
/// The id of the server that is the workspace's own code.
const RESERVED: &str = "workspace";
const TIMEOUT: &str = "default of holaOS: 10000 ms";
const PLACE: &str = "default of holaOS: the workspace";

/// Reads `workspace.yaml` into the tree of a native pack. `None` after an error.
pub(super) fn read(context: &ParseContext) -> Option<Node> {
    let root = context.parse_source(0, |error| Some(translate_error(error)))?;
    let document = Field::new(context, &root, "");
    if !document.is_map() {
        document.error(
            format!("{MISSING}: missing object field 'mcp_registry'"),
            REGISTRY,
        );
        return None;
    }
    let mut top = document.object()?;
    if let Some(old) = top.nullable("tool_registry").filter(Field::is_map) {
        let message = "workspace_tool_registry_unsupported: tool_registry is no longer supported; use mcp_registry";
        old.error(message, "");
    }
    let registry = required_map(&mut top, "mcp_registry");
    top.finish_with_warnings();
    let mut registry = registry?.object()?;
    let servers = required_map(&mut registry, "servers");
    let catalog = registry
        .nullable("catalog")
        .map(|field| read_catalog(&field))
        .unwrap_or_default();
    let allowlist = registry
        .nullable("allowlist")
        .and_then(|field| field.object());
    registry.finish_with_warnings();
    let known: Vec<KnownServer> = servers?
        .entries()?
        .iter()
        .filter_map(|(id, field)| read_server(id, field))
        .collect();
    let allowed = allowlist
        .map(|object| read_allowlist(object, &known, &catalog))
        .unwrap_or_default();
    let note = (!catalog.is_empty()).then(|| {
        format!(
            "code that this program does not run: {}",
            catalog.join(", ")
        )
    });
    let servers = known.into_iter().filter_map(|server| {
        let mut made = server.made?;
        if let Some(AllowedTools { field, tools }) = allowed.get(&server.id) {
            made.put("tools", list(field, tools.clone()));
        }
        made.put("toolAccess", open_to_all());
        Some(made.into_node(&server.at))
    });
    Some(assemble(
        Parts {
            servers: servers.collect(),
            note,
            ..Parts::default()
        },
        context,
    ))
}

/// The message and hint of the original program for a file that is not valid YAML.
fn translate_error(error: &SyntaxError) -> (String, &'static str) {
    const INVALID: &str = "workspace_config_invalid_yaml";
    match error.twice.as_deref() {
        Some(DuplicateKey { key, .. }) => (
            format!("{INVALID}: invalid YAML: duplicated mapping key {key:?}"),
            error.hint,
        ),
        None if error.message == EMPTY => (
            format!("{MISSING}: missing object field 'mcp_registry'"),
            REGISTRY,
        ),
        None => (format!("{INVALID}: {}", error.message), error.hint),
    }
}

/// A map that must be present.
fn required_map<'a>(object: &mut Object<'a>, name: &'static str) -> Option<Field<'a>> {
    let field = object.nullable(name).filter(Field::is_map);
    if field.is_none() {
        let message = format!("{MISSING}: missing object field '{name}'");
        object
            .field
            .error_at(object.field.at, name, message, REGISTRY);
    }
    field
}

fn warn_unused<const N: usize>(fields: [(&Option<Field>, &str); N], kind: &str) {
    for (field, name) in fields {
        if let Some(field) = field {
            field.warn(format!("`{name}` has no effect on a {kind} server"), "");
        }
    }
}

/// The name of a server in a pack. holaOS allows a dot in it; a pack does not.
fn to_server_name(id: &str, field: &Field) -> String {
    let name = id.replace('.', "_");
    if name != id {
        field.warn(
            format!("the server is called {name} here"),
            "an id has no dots",
        );
    }
    name
}

/// Splits `server.tool`. `None` if the text has another form.
fn split_tool_id(id: &str) -> Option<(&str, &str)> {
    let shaped = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    id.split_once('.')
        .filter(|(server, tool)| shaped(server) && shaped(tool))
}

/// A server that the allowlist may name.
struct KnownServer<'a> {
    id: String,
    enabled: bool,
    at: Field<'a>,
    /// The server as a native pack writes it. Absent if it is disabled or the workspace's own code.
    made: Option<NodeBuilder>,
}

/// Reads one server. `None` if it is no map.
fn read_server<'a>(id: &str, field: &Field<'a>) -> Option<KnownServer<'a>> {
    let mut object = field.object()?;
    let enabled = object.nullable("enabled").is_none_or(|field| {
        field.flag().unwrap_or_else(|| {
            field.error("enabled must be true or false when provided", "");
            true
        })
    });
    let mut made = NodeBuilder::default();
    made.put("name", text(field, to_server_name(id, field)));
    let kind = object.nullable("type");
    let fields = EndpointFields {
        url: object.nullable("url"),
        command: object.nullable("command"),
        headers: object
            .nullable("headers")
            .map(|field| Mapping(read_mapping(&field, enabled))),
        environment: object
            .nullable("environment")
            .map(|field| Mapping(read_mapping(&field, enabled))),
    };
    let timeout = read_timeouts(
        &mut object,
        kind.as_ref().and_then(Field::raw) == Some("local"),
    );
    // Only clients of holaOS use it, to reconnect.
    object.nullable("started_at");
    object.finish_with_warnings();
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

/// A map of texts. Without a node if its value is no map.
struct Mapping(Option<Node>);

/// The fields that only a remote server or only a local server has.
struct EndpointFields<'a> {
    url: Option<Field<'a>>,
    command: Option<Field<'a>>,
    headers: Option<Mapping>,
    environment: Option<Mapping>,
}

impl EndpointFields<'_> {
    fn put_remote(self, field: &Field, made: &mut NodeBuilder, kind: &Field) {
        put_address(field, made, self.url.as_ref(), kind);
        warn_unused([(&self.command, "command")], "remote");
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
        put_command(field, made, self.command.as_ref());
        warn_unused([(&self.url, "url")], "local");
        made.put_some("env", self.environment.and_then(|mapping| mapping.0));
        made.put("cwd", generate_text(PLACE, "."));
        if let Some(field) = field
            .get_path(&["headers"])
            .filter(|_| self.headers.is_some())
        {
            field.warn("`headers` has no effect on a local server", "");
        }
    }
}

fn put_address(field: &Field, made: &mut NodeBuilder, url: Option<&Field>, kind: &Field) {
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

fn put_command(field: &Field, made: &mut NodeBuilder, command: Option<&Field>) {
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

/// Reads `headers` or `environment`. The variables of an enabled server must be set.
fn read_mapping(field: &Field, enabled: bool) -> Option<Node> {
    let mut made = NodeBuilder::default();
    for (key, value) in field.entries()? {
        match value.raw() {
            Some(written) => {
                made.put_some(
                    key,
                    translate_braces(&value, key, written, enabled)
                        .map(|native| text(&value, native)),
                );
            }
            None => value.error("mapping values must be strings", "put it in quotes"),
        }
    }
    Some(made.into_node(field))
}

/// Reads `timeout_ms`, the longest time to connect and the longest time of one request, also of the list of tools.
/// Without it, a local server starts within the program's own default, because its package may have to be downloaded
/// first.
fn read_timeouts(object: &mut Object, is_local: bool) -> Node {
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
                (Some(field), Some(milliseconds)) => plain(field, &to_seconds(milliseconds)),
                _ => generate_plain(TIMEOUT, "10"),
            },
        );
    }
    match field {
        Some(field) => made.into_node(&field),
        None => made.build_generated(TIMEOUT),
    }
}

fn to_seconds(milliseconds: i64) -> String {
    let text = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The ids of the tools of the workspace's own code, each with a warning: this program does not run them.
fn read_catalog(field: &Field) -> Vec<String> {
    let mut ids = Vec::new();
    for (id, entry) in field.entries().unwrap_or_default() {
        let id = id.strip_prefix("workspace.").unwrap_or(id);
        let part = |name: &str| {
            entry
                .get_path(&[name])
                .and_then(|field| Some(field.raw()?.to_owned()))
                .unwrap_or_default()
        };
        let symbol = format!("{} in {}", part("symbol"), part("module_path"));
        entry.warn(
            format!("the tool {RESERVED}.{id} ({symbol}) is code of the workspace, which this program does not run"),
            "serve it by an MCP server of its own",
        );
        ids.push(format!("{RESERVED}.{id}"));
    }
    ids
}

/// The tools of one server that the allowlist names.
struct AllowedTools<'a> {
    /// The allowlist.
    field: Field<'a>,
    tools: Vec<Node>,
}

/// Reads the allowlist. Returns the tools by the id of their server.
fn read_allowlist<'a>(
    mut object: Object<'a>,
    known: &[KnownServer],
    catalog: &[String],
) -> BTreeMap<String, AllowedTools<'a>> {
    let mut allowed = BTreeMap::new();
    let ids = object.nullable("tool_ids");
    object.finish_with_warnings();
    let Some(ids) = ids else { return allowed };
    let list = Some(&ids).filter(|field| field.is_list());
    let Some(items) = list.and_then(Field::list) else {
        ids.error(
            "expected list field 'tool_ids'",
            "write `tool_ids: [<server>.<tool>]`",
        );
        return allowed;
    };
    if items.is_empty() {
        ids.warn(
            "an empty list allows every tool",
            "name tools, or remove the line",
        );
    }
    let mut seen: Vec<&str> = Vec::new();
    for item in &items {
        let id = item.raw().unwrap_or_default();
        let Some((server, tool)) = split_tool_id(id) else {
            refuse_id(item, id, known);
            continue;
        };
        if seen.contains(&id) {
            item.error(format!("duplicate MCP tool id '{id}'"), "");
            continue;
        }
        seen.push(id);
        if is_of_known_server(item, id, server, known, catalog) {
            let of_server = allowed
                .entry(server.to_owned())
                .or_insert_with(|| AllowedTools {
                    field: ids.clone(),
                    tools: Vec::new(),
                });
            of_server.tools.push(literal(item, tool));
        }
    }
    allowed
}

fn refuse_id(item: &Field, id: &str, known: &[KnownServer]) {
    let dotted = known
        .iter()
        .find(|other| other.id.contains('.') && id.starts_with(&other.id));
    let hint = dotted.map(|other| {
        format!(
            "the id of the server {} has a dot, so it cannot be named",
            other.id
        )
    });
    let message = format!(
        "workspace_mcp_tool_id_invalid: tool id '{id}' must match strict 'server.tool' format"
    );
    item.error(message, &hint.unwrap_or_default());
}

/// Whether the tool `id` is one of a server that this program connects to. Reports a server that is unknown or
/// disabled.
fn is_of_known_server(
    item: &Field,
    id: &str,
    server: &str,
    known: &[KnownServer],
    catalog: &[String],
) -> bool {
    let named = known.iter().find(|other| other.id == server);
    let is_catalog = server == RESERVED && (named.is_some() || !catalog.is_empty());
    let (message, hint) = match named {
        _ if is_catalog && catalog.iter().any(|other| other == id) => return false,
        _ if is_catalog => (
            format!("workspace_mcp_catalog_missing: no catalog entry for tool '{id}'"),
            "add it under mcp_registry.catalog",
        ),
        None => (
            format!("{UNKNOWN}: unknown MCP server '{server}' for tool '{id}'"),
            "add server config under mcp_registry.servers",
        ),
        Some(other) if !other.enabled => (
            format!("MCP server '{server}' is disabled for tool '{id}'"),
            "",
        ),
        Some(_) => return true,
    };
    item.error(message, hint);
    false
}
