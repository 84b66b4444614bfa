//! One tool of `type: mcp` → a server.

mod process;
mod settings;

use url::Url;

use self::{
    process::{is_package, stdio},
    settings::{config, flag, map, timeouts},
};
use super::{
    super::{
        dialect::open_to_all,
        field::Field,
        node_builder::{NodeBuilder, generated_text, list, text},
        object::Object,
        yaml::{Node, Value},
    },
    replaced,
};
use domain::template::Template;

const PLACE: &str = "default of HoloDeck: the folder of the agent";
const DETECTED: &str = "taken from `server`, as for legacy entries";
const TIMEOUT: &str = "default of HoloDeck: 60 s";
/// What HoloDeck uses for its own purposes: evaluations, searching tools, and where an entry came from.
const WITHOUT_EFFECT: [&str; 3] = ["is_retrieval", "defer_loading", "registry_name"];

pub(super) fn read(field: &Field) -> Option<Node> {
    let mut object = field.object()?;
    object.nullable("type");
    let mut made = NodeBuilder::default();
    match object.nullable("name") {
        Some(name) => made.put_some("name", replaced(&name).map(id_of)),
        None => missing(field, "name", "ValidationError: 'name' is required"),
    }
    let server = object.nullable("server");
    let is_placed = ["command", "url"]
        .iter()
        .any(|name| !object.is_absent(name));
    let is_placed = is_placed && object.is_absent("server");
    let label = label_of(field, server.as_ref(), is_placed);
    let legacy = ["transport", "command", "url"]
        .iter()
        .all(|name| object.is_absent(name))
        && is_package(label);
    let description = object.nullable("description");
    if description.is_none() && !legacy {
        missing(
            field,
            "description",
            "ValidationError: 'description' is required",
        );
    }
    let transport = transport(&mut object);
    let kind = transport.as_ref().and_then(Field::raw).unwrap_or("stdio");
    let native = if kind == "http" {
        "streamable-http"
    } else {
        kind
    };
    let native = match &transport {
        Some(transport) => text(transport, native),
        None => generated_text("default of HoloDeck", native),
    };
    made.put("transport", native);
    if kind == "stdio" {
        let detected = server.as_ref().filter(|_| legacy);
        stdio(&mut object, &mut made, detected);
    } else {
        remote(&mut object, &mut made, kind);
    }
    config(&mut object, &mut made, kind);
    timeouts(&mut object, &mut made, kind);
    for (name, native) in [("load_tools", "loadTools"), ("load_prompts", "loadPrompts")] {
        made.put_some(native, flag(&mut object, name));
    }
    for name in WITHOUT_EFFECT {
        if let Some(field) = object.nullable(name) {
            field.warn(format!("`{name}` has no effect here"), "");
        }
    }
    object.finish();
    made.put("toolAccess", open_to_all());
    // It has no place in a pack, and is kept for whoever reads one.
    let note = description
        .as_ref()
        .and_then(replaced)
        .and_then(|node| Some(node.scalar_text()?.to_owned()));
    Some(made.into_node(field).with_note(note))
}

/// The text of `server`, which may not be empty. HoloDeck itself has no such field any more, so it may be missing where
/// the entry says what is started or called.
fn label_of<'a>(field: &Field, server: Option<&Field<'a>>, is_placed: bool) -> &'a str {
    let label = server.and_then(Field::raw).unwrap_or_default().trim();
    if label.is_empty() {
        let sentence = "ValidationError: 'server' must be a non-empty identifier";
        match server {
            Some(server) => server.error(sentence, ""),
            None if is_placed => field.warn(
                "there is no `server`, so the server is called by its `name`",
                "write `server: <name>` for readers of the contract",
            ),
            None => missing(field, "server", sentence),
        }
    }
    label
}

/// The id of a server for the name of a tool. HoloDeck lets a name begin with `_`.
fn id_of(mut name: Node) -> Node {
    if let Value::Scalar { text, .. } = &mut name.value
        && text.starts_with('_')
    {
        let rest = text.trim_start_matches('_');
        if !rest.is_empty() {
            *text = rest.to_owned();
        }
    }
    name
}

fn missing(field: &Field, name: &str, sentence: &str) {
    field.error_at(field.at, name, sentence.to_owned(), "");
}

fn transport<'a>(object: &mut Object<'a>) -> Option<Field<'a>> {
    let field = object.nullable("transport")?;
    let known = ["stdio", "sse", "websocket", "http"];
    if field.raw().is_none_or(|word| !known.contains(&word)) {
        let word = field.as_written();
        let message = format!(
            "MCPConfigError: Invalid transport '{word}'. Supported transports: {}",
            known.join(", ")
        );
        field.error(message, "");
        return None;
    }
    Some(field)
}

fn remote(object: &mut Object, made: &mut NodeBuilder, kind: &str) {
    match object
        .nullable("url")
        .filter(|url| url.raw().is_some_and(|text| !text.trim().is_empty()))
    {
        Some(url) => {
            let node = replaced(&url);
            if let Some(written) = node.as_ref().and_then(Node::scalar_text) {
                check_url(&url, written, kind);
            }
            made.put_some("url", node);
        }
        None => {
            let sentence = format!("MCPConfigError: 'url' is required for {kind} transport");
            missing(&object.field, "url", &sentence);
        }
    }
    made.put_some(
        "headers",
        object.nullable("headers").and_then(|field| map(&field)),
    );
    others(
        object,
        ["command", "args", "env", "envFile", "env_file", "encoding"],
        kind,
    );
}

/// Fields of another transport: what they were to do would not be done.
fn others<const N: usize>(object: &mut Object, names: [&'static str; N], kind: &str) {
    for (name, field) in names
        .into_iter()
        .filter_map(|name| Some((name, object.nullable(name)?)))
    {
        field.error(
            format!("MCPConfigError: '{name}' does not go with {kind} transport"),
            "remove it",
        );
    }
}

fn check_url(field: &Field, written: &str, kind: &str) {
    let resolved = Template::parse(written)
        .ok()
        .and_then(|template| field.context.resolve(&template).ok().flatten());
    let Some(address) = resolved else { return };
    let url = Url::parse(address.trim()).ok().filter(Url::has_host);
    let local = |url: &Url| matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    let (good, sentence) = if kind == "websocket" {
        let good = url.is_some_and(|url| matches!(url.scheme(), "ws" | "wss"));
        (good, "MCPConfigError: 'url' must use wss:// or ws://")
    } else {
        let good = url
            .is_some_and(|url| url.scheme() == "https" || (url.scheme() == "http" && local(&url)));
        (
            good,
            "MCPConfigError: 'url' must use https:// (or http:// for localhost)",
        )
    };
    if !good {
        field.error(sentence, "");
    }
}

fn texts(field: &Field) -> Option<Node> {
    let mut nodes = Vec::new();
    for item in field.list()? {
        match item.raw() {
            Some(_) => nodes.extend(replaced(&item)),
            None => item.error("expected text", "put it in quotes"),
        }
    }
    Some(list(field, nodes))
}
