//! The servers of an AOS project: their endpoints, credentials and allowed tools.

use super::{Document, PLACE};
use crate::{
    dialect::open_to_all,
    field::Field,
    node_builder::{NodeBuilder, generated_plain, generated_text, list, literal, text},
    object::Object,
    placeholder::{dollar, escape_unreplaced},
    yaml::Node,
};
use domain::template::is_variable_name;

pub(super) const SCHEMA: &str = "aos/mcp/v1";

const TIMEOUT: &str = "default of AOS: 30 s";

/// A server with the registry that it is in.
pub(super) struct DeclaredServer {
    pub(super) id: String,
    pub(super) registry: Option<String>,
    pub(super) node: Node,
}

pub(super) fn shaped(document: &Document, field: &Field, id: &str) -> bool {
    let good = id.starts_with(|c: char| c.is_ascii_lowercase())
        && id
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !good {
        document.error(
            field,
            &format!("Invalid ID {id:?}: must be lowercase alphanumeric with hyphens"),
        );
    }
    good
}

pub(super) fn declare(
    document: &Document,
    field: &Field,
    registry: Option<String>,
    servers: &mut Vec<DeclaredServer>,
) {
    let Some(mut object) = field.object() else {
        return;
    };
    let Some(id_field) = object.nullable("id") else {
        return document.error(field, "MCP server entry missing required field: id");
    };
    let id = id_field.raw().unwrap_or_default().to_owned();
    shaped(document, &id_field, &id);
    if let Some(other) = servers.iter().find(|other| other.id == id) {
        let there = other
            .registry
            .as_ref()
            .map_or_else(String::new, |name| format!(" (also in registry {name:?})"));
        document.error(&id_field, &format!("Duplicate MCP server id {id:?}{there}"));
    }
    let description = object
        .nullable("description")
        .and_then(|field| Some(field.raw()?.to_owned()));
    let mut made = NodeBuilder::default();
    made.put("name", literal(&id_field, &id));
    read_endpoint(document, &mut object, &id, &mut made);
    made.put_some(
        "tools",
        object
            .nullable("tool_allowlist")
            .and_then(|field| allowlist(document, &field)),
    );
    object.finish();
    let mut timeouts = NodeBuilder::default();
    timeouts.put("requestSeconds", generated_plain(TIMEOUT, "30"));
    made.put("timeouts", timeouts.generated(TIMEOUT));
    made.put("toolAccess", open_to_all());
    servers.push(DeclaredServer {
        id,
        registry,
        node: made.into_node(field).with_note(description),
    });
}

/// Transport, and what belongs to it.
fn read_endpoint(document: &Document, object: &mut Object, id: &str, made: &mut NodeBuilder) {
    let transport = object.nullable("transport");
    let kind = transport
        .as_ref()
        .and_then(Field::raw)
        .unwrap_or("undefined");
    let [command, args, env] = ["command", "args", "env"].map(|name| object.nullable(name));
    let [url, auth] = ["url", "auth_ref"].map(|name| object.nullable(name));
    let at = transport.as_ref().unwrap_or(&object.field);
    match kind {
        "stdio" => match command.as_ref().zip(non_blank(command.as_ref())) {
            Some((command, program)) => {
                made.put("transport", text(at, "stdio"));
                made.put(
                    "command",
                    text(command, escape_unreplaced(command, &program, false)),
                );
                made.put_some("args", args.and_then(|field| arguments(document, &field)));
                made.put_some("env", env.and_then(|field| variables(document, &field)));
                made.put("cwd", generated_text(PLACE, "."));
                warn_unused(&[&url, &auth], kind);
            }
            None => document.error(
                &object.field,
                &format!("MCP server {id:?} (stdio) requires \"command\""),
            ),
        },
        "http" | "sse" => match url.as_ref().zip(non_blank(url.as_ref())) {
            Some((url, address)) => {
                let native = if kind == "sse" {
                    kind
                } else {
                    "streamable-http"
                };
                made.put("transport", text(at, native));
                made.put(
                    "url",
                    text(url, escape_unreplaced(url, address.trim(), true)),
                );
                made.put_some("headers", auth.and_then(|field| bearer(document, &field)));
                warn_unused(&[&command, &args, &env], kind);
            }
            None => document.error(
                &object.field,
                &format!("MCP server {id:?} ({kind}) requires \"url\""),
            ),
        },
        _ => document.error(
            at,
            &format!("MCP server {id:?} has invalid transport {kind:?} (stdio|http|sse)"),
        ),
    }
}

fn non_blank(field: Option<&Field>) -> Option<String> {
    field?
        .raw()
        .filter(|text| !text.trim().is_empty())
        .map(str::to_owned)
}

fn warn_unused(fields: &[&Option<Field>], kind: &str) {
    for field in fields.iter().copied().flatten() {
        field.warn(format!("has no effect on transport {kind}"), "");
    }
}

/// The arguments as an array, which no shell splits.
fn arguments(document: &Document, field: &Field) -> Option<Node> {
    let mut arguments = Vec::new();
    for item in field.list()? {
        match item.raw() {
            Some(argument) => {
                arguments.push(text(&item, escape_unreplaced(&item, argument, false)));
            }
            None => document.error(&item, "\"args\" must be strings"),
        }
    }
    Some(list(field, arguments))
}

fn variables(document: &Document, field: &Field) -> Option<Node> {
    let mut made = NodeBuilder::default();
    for (name, value) in field.entries()? {
        let Some(written) = value.raw() else {
            document.error(&value, "\"env\" values must be strings");
            continue;
        };
        if !written.contains("${") {
            value.mask();
        }
        let missing =
            |name: &str| document.words(&format!("environment variable {name:?} is not set"));
        made.put_some(
            name,
            dollar(&value, written, missing).map(|native| text(&value, native)),
        );
    }
    Some(made.into_node(field))
}

/// The name of the variable that holds the token.
fn bearer(document: &Document, field: &Field) -> Option<Node> {
    let name = field.raw().unwrap_or_default();
    if !is_variable_name(name) {
        // The text may be the token itself.
        field.mask();
        field.error(
            document.words("\"auth_ref\" is the name of a variable, not the secret"),
            "write `auth_ref: NAME`",
        );
        return None;
    }
    if field.context.is_unset(name) {
        let message = document.words(&format!(
            "environment variable {name:?} of \"auth_ref\" is not set"
        ));
        field.error(message, &format!("set {name}"));
    }
    let mut made = NodeBuilder::default();
    made.put("Authorization", text(field, format!("Bearer ${{{name}}}")));
    Some(made.into_node(field))
}

/// Exact names. An empty list means that there is no allowlist.
fn allowlist(document: &Document, field: &Field) -> Option<Node> {
    let items = field.list()?;
    if items.is_empty() {
        field.warn(
            "an empty list allows every tool",
            "name tools, or remove the line",
        );
        return None;
    }
    Some(list(
        field,
        items
            .iter()
            .filter_map(|item| tool(document, item))
            .collect(),
    ))
}

pub(super) fn tool(document: &Document, item: &Field) -> Option<Node> {
    match item.raw() {
        Some(name) if !name.contains('*') => Some(literal(item, name)),
        Some(name) => {
            document.error(item, &format!("{name:?} is not the name of one tool"));
            None
        }
        None => {
            document.error(item, "the name of a tool must be a string");
            None
        }
    }
}
