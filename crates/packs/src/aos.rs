//! AOS: servers in `core/mcp/**.yaml`, skills in `core/skills/*/skill.yaml` (its document; statements A1–A14).
//!
//! A file holds one server or, as in the original's loader, a registry of several servers. The messages are
//! those of the original program.

mod server;

use std::cell::Cell;

use self::server::{DeclaredServer, SCHEMA, declare, shaped, tool};
use super::{
    dialect::{Documents, Parts, assemble},
    field::Field,
    node_builder::{NodeBuilder, list, literal},
    object::Object,
    parse_context::ParseContext,
    yaml::{DuplicateKey, Node, START},
};

const PLACE: &str = "default of AOS: the project";

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
        let root = context.parse_source(source, |fault| {
            if let Some(twice) = fault
                .twice
                .as_ref()
                .filter(|_| fault.path.is_empty() && !is_skill)
                && let Some(said) = two_servers(&file, &fault.message, twice, &holds_two)
            {
                return Some(said);
            }
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

/// The document shows two servers in one block; each is a file. `holds_two` remembers that the file has two ids.
fn two_servers(
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
        return Some((words(file, &message), "give each server a file of its own"));
    }
    let hint = "it belongs to the other server of this file";
    holds_two.get().then(|| (words(file, message), hint))
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
