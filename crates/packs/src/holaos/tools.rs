//! The tools that a holaOS workspace allows, by server.

use std::collections::BTreeMap;

use super::{RESERVED, UNKNOWN, parts, server::KnownServer};
use crate::{field::Field, node_builder::literal, object::Object, yaml::Node};

/// The tools of the workspace's own code, which stays where it is.
pub(super) fn catalog(field: &Field) -> Vec<String> {
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
pub(super) fn allowed<'a>(
    mut object: Object<'a>,
    known: &[KnownServer],
    catalog: &[String],
) -> Allowed<'a> {
    let mut allowed = Allowed::new();
    let ids = object.nullable("tool_ids");
    object.pass_over();
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
        let Some((server, tool)) = parts(id) else {
            refuse_id(item, id, known);
            continue;
        };
        if seen.contains(&id) {
            item.error(format!("duplicate MCP tool id '{id}'"), "");
            continue;
        }
        seen.push(id);
        if is_of_known_server(item, (id, server), known, catalog) {
            let (_, tools) = allowed
                .entry(server.to_owned())
                .or_insert_with(|| (ids.clone(), Vec::new()));
            tools.push(literal(item, tool));
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

/// Whether the tool is one of a server that takes part. Reports a server that is unknown or disabled.
fn is_of_known_server(
    item: &Field,
    (id, server): (&str, &str),
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
