//! holaOS: `workspace.yaml`, of which `mcp_registry` counts (its document says how).
//!
//! The codes and messages are those of the original program. A server that the allowlist names is limited to
//! the tools named there; every other server keeps all its tools.

mod server;
mod tools;

use self::{
    server::{KnownServer, server},
    tools::{allowed, catalog},
};
use super::{
    dialect::{Parts, assemble, open_to_all},
    field::Field,
    node_builder::list,
    object::Object,
    parse_context::ParseContext,
    yaml::{DuplicateKey, EMPTY, Node, SyntaxError},
};

const MISSING: &str = "workspace_mcp_registry_missing";
const LIST: &str = "write `command: [<program>, <argument>]`";
const REGISTRY: &str = "write `mcp_registry: { servers: … }`";
const UNKNOWN: &str = "workspace_mcp_server_unknown";
/// The server that is the workspace's own code.
const RESERVED: &str = "workspace";

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
    match fault.twice.as_deref() {
        Some(DuplicateKey { key, .. }) => (
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
            .error_at(object.field.at, name, message, REGISTRY);
    }
    field
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
