//! AOS: servers in `core/mcp/**.yaml`, skills in `core/skills/*/skill.yaml` (its document; statements A1–A14).
//!
//! A file holds one server or, as in the original's loader, a registry of several servers. The messages are
//! those of the original program.

use super::{
    dialect::{Documents, Parts, assemble, open_to_all},
    field::Field,
    node_builder::{NodeBuilder, generated_plain, generated_text, list, literal, text},
    object::Object,
    parse_context::ParseContext,
    placeholder::{dollar, escape_unreplaced},
    yaml::{Node, START},
};
use crate::domain::template::is_variable_name;

const SCHEMA: &str = "aos/mcp/v1";
const PLACE: &str = "default of AOS: the project";
const TIMEOUT: &str = "default of AOS: 30 s";

/// One file, and how its problems begin.
struct Document<'a> {
    file: &'a str,
    field: Field<'a>,
}

impl Document<'_> {
    fn words(&self, message: &str) -> String {
        words(self.file, message)
    }

    fn error(&self, field: &Field, message: &str) {
        field.error(self.words(message), "");
    }
}

fn words(file: &str, message: &str) -> String {
    format!("Config error in {file}: {message}")
}

/// A server with the registry that it is in.
struct DeclaredServer {
    id: String,
    registry: Option<String>,
    node: Node,
}

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
        let root = context.parse_source(source, |fault| {
            let empty = format!("{kind} is empty or invalid ({})", fault.message);
            let hint = match fault.hint {
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
                words(
                    &file,
                    fault.twice.as_ref().map_or(&empty, |_| &fault.message),
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
            skills.extend(skill(&document));
        } else {
            servers_of(&document, &mut servers);
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

fn servers_of(document: &Document, servers: &mut Vec<DeclaredServer>) {
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
        return declare(document, &document.field, None, servers);
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
        declare(document, item, id.clone(), servers);
    }
}

/// The `id` of a registry or skill.
fn read_id(document: &Document, object: &mut Object) -> Option<String> {
    let Some(field) = object.nullable("id") else {
        document.error(&object.field, "Missing required field: id");
        return None;
    };
    let id = field.raw().unwrap_or_default();
    shaped(document, &field, id).then(|| id.to_owned())
}

fn shaped(document: &Document, field: &Field, id: &str) -> bool {
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

fn declare(
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
    let non_blank_text = |field: &Option<Field>| {
        field
            .as_ref()?
            .raw()
            .filter(|text| !text.trim().is_empty())
            .map(str::to_owned)
    };
    let unused = |fields: [&Option<Field>; 3]| {
        for field in fields.into_iter().flatten() {
            field.warn(format!("has no effect on transport {kind}"), "");
        }
    };
    match (kind, non_blank_text(&command), non_blank_text(&url)) {
        ("stdio", Some(program), _) => {
            made.put("transport", text(at, "stdio"));
            made.put_some(
                "command",
                command.map(|field| text(&field, escape_unreplaced(&field, &program, false))),
            );
            made.put_some("args", args.and_then(|field| arguments(document, &field)));
            made.put_some("env", env.and_then(|field| variables(document, &field)));
            made.put("cwd", generated_text(PLACE, "."));
            unused([&url, &auth, &None]);
        }
        ("stdio", None, _) => document.error(
            &object.field,
            &format!("MCP server {id:?} (stdio) requires \"command\""),
        ),
        ("http" | "sse", _, Some(address)) => {
            made.put(
                "transport",
                text(
                    at,
                    if kind == "sse" {
                        "sse"
                    } else {
                        "streamable-http"
                    },
                ),
            );
            made.put_some(
                "url",
                url.map(|field| text(&field, escape_unreplaced(&field, address.trim(), true))),
            );
            made.put_some("headers", auth.and_then(|field| bearer(document, &field)));
            unused([&command, &args, &env]);
        }
        ("http" | "sse", _, None) => {
            document.error(
                &object.field,
                &format!("MCP server {id:?} ({kind}) requires \"url\""),
            );
        }
        _ => document.error(
            at,
            &format!("MCP server {id:?} has invalid transport {kind:?} (stdio|http|sse)"),
        ),
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

fn tool(document: &Document, item: &Field) -> Option<Node> {
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

/// A skill that is bound to a tool. Other skills would need the original program's own model path.
fn skill(document: &Document) -> Option<Node> {
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
    object.pass_over();
    let mut bound = binding.object()?;
    let [server, tools] = ["server", "tools"].map(|name| bound.nullable(name));
    bound.finish();
    let (Some(server), Some(tools)) = (server, tools) else {
        let message = document.words("\"mcp_binding\" requires \"server\" and \"tools\"");
        binding.error(message, "");
        return None;
    };
    let names: Vec<Node> = tools
        .list()?
        .iter()
        .filter_map(|item| tool(document, item))
        .collect();
    let mut inner = NodeBuilder::default();
    inner.put("server", literal(&server, server.raw()?));
    inner.put("tools", list(&tools, names));
    made.put("mcpBinding", inner.into_node(&binding));
    Some(made.into_node(&document.field))
}
