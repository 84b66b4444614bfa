//! holaOS: `workspace.yaml`, of which `mcp_registry` counts (its document says how).
//!
//! The codes and messages are those of the original program. A server that the allowlist names is limited to
//! the tools named there; every other server keeps all its tools.

use std::collections::BTreeMap;

use super::{
    dialect::{Parts, assemble, open_to_all},
    field::Field,
    node_builder::{NodeBuilder, generated_plain, generated_text, list, literal, plain, text},
    object::Object,
    parse_context::ParseContext,
    placeholder::{braces, escape_unreplaced},
    report::Severity,
    yaml::{EMPTY, Node, SyntaxError},
};

const MISSING: &str = "workspace_mcp_registry_missing";
const LIST: &str = "write `command: [<program>, <argument>]`";
const REGISTRY: &str = "write `mcp_registry: { servers: … }`";
const UNKNOWN: &str = "workspace_mcp_server_unknown";
/// The server that is the workspace's own code.
const RESERVED: &str = "workspace";
const TIMEOUT: &str = "default of holaOS: 10000 ms";
const PLACE: &str = "default of holaOS: the workspace";

pub(super) fn read(context: &ParseContext) -> Option<Node> {
    let root = context.parse_source(0, |fault| Some(translate_error(fault)))?;
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
    let registry = inner(&mut top, "mcp_registry");
    top.pass_over();
    let mut registry = registry?.object()?;
    let servers = inner(&mut registry, "servers");
    let catalog = registry
        .nullable("catalog")
        .map(|field| catalog(&field))
        .unwrap_or_default();
    let allowlist = registry
        .nullable("allowlist")
        .and_then(|field| field.object());
    registry.pass_over();
    let known: Vec<KnownServer> = servers?
        .entries()?
        .iter()
        .filter_map(|(id, field)| server(id, field))
        .collect();
    let allowed = allowlist
        .map(|object| allowed(object, &known, &catalog))
        .unwrap_or_default();
    let note = (!catalog.is_empty()).then(|| {
        format!(
            "code that this program does not run: {}",
            catalog.join(", ")
        )
    });
    let servers = known.into_iter().filter_map(|server| {
        let mut made = server.made?;
        if let Some((field, tools)) = allowed.get(&server.id) {
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

fn translate_error(fault: &SyntaxError) -> (String, &'static str) {
    const INVALID: &str = "workspace_config_invalid_yaml";
    match &fault.twice {
        Some(key) => (
            format!("{INVALID}: invalid YAML: duplicated mapping key {key:?}"),
            fault.hint,
        ),
        None if fault.message == EMPTY => (
            format!("{MISSING}: missing object field 'mcp_registry'"),
            REGISTRY,
        ),
        None => (format!("{INVALID}: {}", fault.message), fault.hint),
    }
}

/// A map that must be there.
fn inner<'a>(object: &mut Object<'a>, name: &'static str) -> Option<Field<'a>> {
    let field = object.nullable(name).filter(Field::is_map);
    if field.is_none() {
        let message = format!("{MISSING}: missing object field '{name}'");
        object
            .field
            .report_at(Severity::Error, object.field.at, name, message, REGISTRY);
    }
    field
}

/// A server that the allowlist may name.
struct KnownServer<'a> {
    id: String,
    enabled: bool,
    at: Field<'a>,
    /// Absent: it takes no part.
    made: Option<NodeBuilder>,
}

fn server<'a>(id: &str, field: &Field<'a>) -> Option<KnownServer<'a>> {
    let mut object = field.object()?;
    let enabled = object.nullable("enabled").is_none_or(|field| {
        field.flag().unwrap_or_else(|| {
            field.error("enabled must be true or false when provided", "");
            true
        })
    });
    let mut made = NodeBuilder::default();
    made.put("name", text(field, name_of(id, field)));
    let kind_field = object.nullable("type");
    let kind = kind_field.as_ref().and_then(Field::raw).unwrap_or_default();
    let url = object.nullable("url");
    let command = object.nullable("command");
    let headers = object
        .nullable("headers")
        .map(|field| mapping(&field, enabled));
    let environment = object
        .nullable("environment")
        .map(|field| mapping(&field, enabled));
    let timeout = timeout(&mut object);
    // It tells clients how to reconnect.
    object.nullable("started_at");
    object.pass_over();
    let at = field.clone();
    if id == RESERVED {
        if kind != "local" {
            kind_field
                .as_ref()
                .unwrap_or(field)
                .error("workspace MCP server must be local", "");
        }
        return Some(KnownServer {
            id: id.to_owned(),
            enabled,
            at,
            made: None,
        });
    }
    match kind {
        "remote" => {
            remote(field, &mut made, url.as_ref(), kind_field.as_ref()?);
            unused([(&command, "command")], "remote");
            made.put_some("headers", headers.flatten());
            if let Some(field) = field
                .get_path(&["environment"])
                .filter(|_| environment.is_some())
            {
                field.warn("`environment` has no effect on a remote server", "");
            }
        }
        "local" => {
            made.put("transport", text(kind_field.as_ref()?, "stdio"));
            local(field, &mut made, command.as_ref());
            unused([(&url, "url")], "local");
            made.put_some("env", environment.flatten());
            made.put("cwd", generated_text(PLACE, "."));
            if let Some(field) = field.get_path(&["headers"]).filter(|_| headers.is_some()) {
                field.warn("`headers` has no effect on a local server", "");
            }
        }
        _ => {
            let message = format!("{UNKNOWN}: server type must be 'local' or 'remote'");
            match &kind_field {
                Some(kind) => kind.error(message, ""),
                None => field.report_at(Severity::Error, field.at, "type", message, ""),
            }
        }
    }
    made.put("timeouts", timeout);
    Some(KnownServer {
        id: id.to_owned(),
        enabled,
        at,
        made: enabled.then_some(made),
    })
}

fn unused<const N: usize>(fields: [(&Option<Field>, &str); N], kind: &str) {
    for (field, name) in fields {
        if let Some(field) = field {
            field.warn(format!("`{name}` has no effect on a {kind} server"), "");
        }
    }
}

/// holaOS allows a dot in a name; a pack does not.
fn name_of(id: &str, field: &Field) -> String {
    let name = id.replace('.', "_");
    if name != id {
        field.warn(
            format!("the server is called {name} here"),
            "an id has no dots",
        );
    }
    name
}

fn remote(field: &Field, made: &mut NodeBuilder, url: Option<&Field>, kind: &Field) {
    let Some((url, address)) =
        url.and_then(|url| Some((url, url.raw().filter(|text| !text.trim().is_empty())?)))
    else {
        let message = "remote server requires non-empty string field 'url'".to_owned();
        return field.report_at(
            Severity::Error,
            url.map_or(field.at, |url| url.at),
            "url",
            message,
            "",
        );
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
        return field.report_at(
            Severity::Error,
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
fn mapping(field: &Field, enabled: bool) -> Option<Node> {
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

/// One value for connecting and for each request; the list of tools has no longer.
fn timeout(object: &mut Object) -> Node {
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

/// The tools of the workspace's own code, which stays where it is.
fn catalog(field: &Field) -> Vec<String> {
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

type Allowed<'a> = BTreeMap<String, (Field<'a>, Vec<Node>)>;

/// The tools by server, for the servers that are named.
fn allowed<'a>(mut object: Object<'a>, known: &[KnownServer], catalog: &[String]) -> Allowed<'a> {
    let mut allowed = Allowed::new();
    let ids = object.nullable("tool_ids");
    object.pass_over();
    let Some(ids) = ids else { return allowed };
    let Some(items) = Some(&ids)
        .filter(|field| field.is_list())
        .and_then(Field::list)
    else {
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
        let Some((server, tool)) = parts(id) else {
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
            continue;
        };
        if seen.contains(&id) {
            item.error(format!("duplicate MCP tool id '{id}'"), "");
            continue;
        }
        seen.push(id);
        let named = known.iter().find(|other| other.id == server);
        match named {
            _ if server == RESERVED && (named.is_some() || !catalog.is_empty()) => {
                if !catalog.iter().any(|other| other == id) {
                    let hint = "add it under mcp_registry.catalog";
                    item.error(
                        format!("workspace_mcp_catalog_missing: no catalog entry for tool '{id}'"),
                        hint,
                    );
                }
            }
            None => {
                let message = format!("{UNKNOWN}: unknown MCP server '{server}' for tool '{id}'");
                item.error(message, "add server config under mcp_registry.servers");
            }
            Some(other) if !other.enabled => {
                item.error(
                    format!("MCP server '{server}' is disabled for tool '{id}'"),
                    "",
                );
            }
            Some(_) => {
                let (_, tools) = allowed
                    .entry(server.to_owned())
                    .or_insert_with(|| (ids.clone(), Vec::new()));
                tools.push(literal(item, tool));
            }
        }
    }
    allowed
}

fn parts(id: &str) -> Option<(&str, &str)> {
    let shaped = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    id.split_once('.')
        .filter(|(server, tool)| shaped(server) && shaped(tool))
}
