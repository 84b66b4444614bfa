//! Reads an AOS project: servers from `core/mcp/**.yaml`, skills from `core/skills/*/skill.yaml`. The rules are the
//! statements A1–A14 of the AOS document, and the messages are those of the original program.
//!
//! A file holds one server or, as in the original's loader, a registry of several servers.

use std::cell::Cell;

use super::{
    dialect::{Documents, Parts, assemble, open_to_all},
    field::Field,
    node_builder::{NodeBuilder, generate_plain, generate_text, list, literal, text},
    object::Object,
    parse_context::ParseContext,
    placeholder::{escape_unreplaced, translate_dollar},
    yaml::{DuplicateKey, Node, START},
};
use domain::template::is_variable_name;

const SCHEMA: &str = "aos/mcp/v1";
const PLACE: &str = "default of AOS: the project";
const TIMEOUT: &str = "default of AOS: 30 s";

/// One file of the project. Its messages begin with the name of the file.
struct Document<'a> {
    file: &'a str,
    field: Field<'a>,
}

impl Document<'_> {
    fn error_text(&self, message: &str) -> String {
        error_text(self.file, message)
    }

    fn error(&self, field: &Field, message: &str) {
        field.error(self.error_text(message), "");
    }
}

fn error_text(file: &str, message: &str) -> String {
    format!("Config error in {file}: {message}")
}

/// Reads all files of a project into the tree of a native pack.
pub(super) fn read(context: &ParseContext, documents: &Documents) -> Node {
    let (mut servers, mut skills): (Vec<DeclaredServer>, Vec<Node>) = Default::default();
    for (source, path) in documents
        .files
        .iter()
        .enumerate()
        .filter(|(at, _)| Some(*at) != documents.access())
    {
        let file = path
            .strip_prefix(&documents.folder)
            .unwrap_or(path)
            .display()
            .to_string();
        let is_skill = file.starts_with("core/skills");
        let kind = if is_skill { "skill.yaml" } else { "mcp.yaml" };
        let holds_two = Cell::new(false);
        let root = context.parse_source(source, |error| {
            if let Some(twice) = error
                .twice
                .as_ref()
                .filter(|_| error.path.is_empty() && !is_skill)
                && let Some(said) = explain_two_servers(&file, &error.message, twice, &holds_two)
            {
                return Some(said);
            }
            let empty = format!("{kind} is empty or invalid ({})", error.message);
            let hint = match error.hint {
                START => {
                    if is_skill {
                        "write `id`, `name` and `mcp_binding`"
                    } else {
                        "write `id`, `transport` and `command` or `url`"
                    }
                }
                hint => hint,
            };
            Some((
                error_text(
                    &file,
                    error.twice.as_ref().map_or(&empty, |_| &error.message),
                ),
                hint,
            ))
        });
        let Some(root) = root else { continue };
        let document = Document {
            file: &file,
            field: Field::new(context, &root, ""),
        };
        if !document.field.is_map() {
            document.error(&document.field, &format!("{kind} is empty or invalid"));
        } else if is_skill {
            skills.extend(read_skill(&document));
        } else {
            read_servers(&document, &mut servers);
        }
    }
    let servers = servers.into_iter().map(|server| server.node).collect();
    assemble(
        Parts {
            servers,
            skills,
            ..Parts::default()
        },
        context,
    )
}

/// The message for a key that stands twice because two servers were written into one file, as the AOS document shows
/// them in one block. `holds_two` remembers that the file has two ids, for the other keys that stand twice.
fn explain_two_servers(
    file: &str,
    message: &str,
    twice: &DuplicateKey,
    holds_two: &Cell<bool>,
) -> Option<(String, &'static str)> {
    if let ("id", [Some(first), Some(second)]) = (twice.key.as_str(), &twice.values)
        && first != second
    {
        holds_two.set(true);
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let message = format!(
            "{message}: this file holds two servers; write {folder}/{first}.yaml and {folder}/{second}.yaml"
        );
        return Some((
            error_text(file, &message),
            "give each server a file of its own",
        ));
    }
    let hint = "it belongs to the other server of this file";
    holds_two.get().then(|| (error_text(file, message), hint))
}

/// Adds the server of a file, or the servers of a registry.
fn read_servers(document: &Document, servers: &mut Vec<DeclaredServer>) {
    let Some(mut object) = document.field.object() else {
        return;
    };
    let flat = ["schema", "servers"]
        .iter()
        .all(|name| object.is_absent(name))
        && ["transport", "command", "url"]
            .iter()
            .any(|name| !object.is_absent(name));
    if flat {
        return read_server(document, &document.field, None, servers);
    }
    let schema = object.nullable("schema");
    let found = schema.as_ref().and_then(Field::raw).unwrap_or("undefined");
    if found != SCHEMA {
        let at = schema.as_ref().unwrap_or(&document.field);
        document.error(
            at,
            &format!("Unknown schema {found:?}, expected {SCHEMA:?}"),
        );
    }
    let id = read_id(document, &mut object);
    object.nullable("description");
    let list = object.nullable("servers");
    object.finish();
    let Some(list) = list else {
        return document.error(&document.field, "Missing required field: servers");
    };
    let items = list.list().unwrap_or_default();
    if list.is_list() && items.is_empty() {
        document.error(&list, "MCP registry must declare at least one server");
    }
    for item in &items {
        read_server(document, item, id.clone(), servers);
    }
}

/// Reads the `id` of a registry or skill.
fn read_id(document: &Document, object: &mut Object) -> Option<String> {
    let Some(field) = object.nullable("id") else {
        document.error(&object.field, "Missing required field: id");
        return None;
    };
    let id = field.raw().unwrap_or_default();
    check_id(document, &field, id).then(|| id.to_owned())
}

/// Reads a skill that is bound to a tool. A skill without a tool is left out with a warning: only the original program
/// can run it.
fn read_skill(document: &Document) -> Option<Node> {
    let mut object = document.field.object()?;
    read_id(document, &mut object)?;
    let mut made = NodeBuilder::default();
    for name in ["id", "name", "description"] {
        made.put_some(
            name,
            object
                .nullable(name)
                .and_then(|field| Some(literal(&field, field.raw()?))),
        );
    }
    let Some(binding) = object.nullable("mcp_binding") else {
        document.field.warn(
            "a skill without `mcp_binding` is not offered: this program has no other way to run it",
            "",
        );
        return None;
    };
    object.finish_with_warnings();
    let mut bound = binding.object()?;
    let [server, tools] = ["server", "tools"].map(|name| bound.nullable(name));
    bound.finish();
    let (Some(server), Some(tools)) = (server, tools) else {
        let message = document.error_text("\"mcp_binding\" requires \"server\" and \"tools\"");
        binding.error(message, "");
        return None;
    };
    let names: Vec<Node> = tools
        .list()?
        .iter()
        .filter_map(|item| read_tool(document, item))
        .collect();
    let mut inner = NodeBuilder::default();
    inner.put("server", literal(&server, server.raw()?));
    inner.put("tools", list(&tools, names));
    made.put("mcpBinding", inner.into_node(&binding));
    Some(made.into_node(&document.field))
}

/// A server, and the id of the registry that lists it.
struct DeclaredServer {
    id: String,
    registry: Option<String>,
    node: Node,
}

/// Reports an id that AOS would refuse, and returns whether it is good.
fn check_id(document: &Document, field: &Field, id: &str) -> bool {
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

/// Reads one server and adds it to `servers`. `registry` is the id of the registry that lists it.
fn read_server(
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
    check_id(document, &id_field, &id);
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
            .and_then(|field| read_allowlist(document, &field)),
    );
    object.finish();
    let mut timeouts = NodeBuilder::default();
    timeouts.put("requestSeconds", generate_plain(TIMEOUT, "30"));
    made.put("timeouts", timeouts.build_generated(TIMEOUT));
    made.put("toolAccess", open_to_all());
    servers.push(DeclaredServer {
        id,
        registry,
        node: made.into_node(field).with_note(description),
    });
}

/// Reads the transport and the fields that belong to it. Fields of the other transport are warnings.
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
                made.put_some(
                    "args",
                    args.and_then(|field| read_arguments(document, &field)),
                );
                made.put_some(
                    "env",
                    env.and_then(|field| read_variables(document, &field)),
                );
                made.put("cwd", generate_text(PLACE, "."));
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
                made.put_some(
                    "headers",
                    auth.and_then(|field| read_auth_ref(document, &field)),
                );
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

/// Reads the arguments. They are a list, and no shell splits them.
fn read_arguments(document: &Document, field: &Field) -> Option<Node> {
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

fn read_variables(document: &Document, field: &Field) -> Option<Node> {
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
            |name: &str| document.error_text(&format!("environment variable {name:?} is not set"));
        made.put_some(
            name,
            translate_dollar(&value, written, missing).map(|native| text(&value, native)),
        );
    }
    Some(made.into_node(field))
}

/// Reads `auth_ref`, the name of the variable that holds a bearer token, as a header.
fn read_auth_ref(document: &Document, field: &Field) -> Option<Node> {
    let name = field.raw().unwrap_or_default();
    if !is_variable_name(name) {
        // The text may be the token itself.
        field.mask();
        field.error(
            document.error_text("\"auth_ref\" is the name of a variable, not the secret"),
            "write `auth_ref: NAME`",
        );
        return None;
    }
    if field.context.is_unset(name) {
        let message = document.error_text(&format!(
            "environment variable {name:?} of \"auth_ref\" is not set"
        ));
        field.error(message, &format!("set {name}"));
    }
    let mut made = NodeBuilder::default();
    made.put("Authorization", text(field, format!("Bearer ${{{name}}}")));
    Some(made.into_node(field))
}

/// Reads a list of exact tool names. An empty list means that there is no allowlist.
fn read_allowlist(document: &Document, field: &Field) -> Option<Node> {
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
            .filter_map(|item| read_tool(document, item))
            .collect(),
    ))
}

/// Reads the name of one tool, without `*`.
fn read_tool(document: &Document, item: &Field) -> Option<Node> {
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
