//! One tool of `type: mcp` → a server.

use url::Url;

use super::{
    super::{
        dialect::open_to_all,
        field::Field,
        node_builder::{
            NodeBuilder, copy, generated_plain, generated_text, list, literal, plain, text,
        },
        object::Object,
        report::Severity,
        yaml::{Node, Value},
    },
    replaced, replaced_of,
};
use crate::domain::template::Template;

const COMMANDS: [&str; 3] = ["npx", "uvx", "docker"];
const PLACE: &str = "default of HoloDeck: the folder of the agent";
const DETECTED: &str = "taken from `server`, as for legacy entries";
const TIMEOUT: &str = "default of HoloDeck: 60 s";

pub(super) fn read(field: &Field) -> Option<Node> {
    let mut object = field.object()?;
    object.nullable("type");
    let mut made = NodeBuilder::default();
    match object.nullable("name") {
        Some(name) => made.put_some("name", replaced(&name)),
        None => missing(field, "name", "ValidationError: 'name' is required"),
    }
    let server = object.nullable("server");
    let label = server
        .as_ref()
        .and_then(Field::raw)
        .unwrap_or_default()
        .trim();
    if label.is_empty() {
        let sentence = "ValidationError: 'server' must be a non-empty identifier";
        server.as_ref().map_or_else(
            || missing(field, "server", sentence),
            |server| server.error(sentence, ""),
        );
    }
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
    made.put(
        "transport",
        transport.as_ref().map_or_else(
            || generated_text("default of HoloDeck", native),
            |t| text(t, native),
        ),
    );
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
    object.finish();
    made.put("toolAccess", open_to_all());
    // It has no place in a pack, and is kept for whoever reads one.
    let note = description
        .as_ref()
        .and_then(replaced)
        .and_then(|node| Some(node.scalar_text()?.to_owned()));
    Some(made.into_node(field).with_note(note))
}

fn missing(field: &Field, name: &str, sentence: &str) {
    field.report_at(Severity::Error, field.at, name, sentence.to_owned(), "");
}

fn transport<'a>(object: &mut Object<'a>) -> Option<Field<'a>> {
    let field = object.nullable("transport")?;
    let known = ["stdio", "sse", "websocket", "http"];
    if field.raw().is_none_or(|word| !known.contains(&word)) {
        let word = field.raw().unwrap_or_default();
        let message = format!(
            "MCPConfigError: Invalid transport '{word}'. Supported transports: {}",
            known.join(", ")
        );
        field.error(message, "");
        return None;
    }
    Some(field)
}

/// `@scope/name`: a name with nothing else in it could be a package of anybody's.
fn is_package(server: &str) -> bool {
    let part = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let scoped = server
        .strip_prefix('@')
        .and_then(|rest| rest.split_once('/'));
    scoped.is_some_and(|(scope, name)| {
        part(scope) && part(name.split('@').next().unwrap_or_default())
    })
}

fn stdio(object: &mut Object, made: &mut NodeBuilder, legacy: Option<&Field>) {
    let command = object.nullable("command");
    match (&command, legacy) {
        (Some(field), _) => match field.raw().filter(|word| COMMANDS.contains(word)) {
            Some(word) => made.put("command", text(field, word)),
            None => {
                let word = field.raw().unwrap_or_default();
                let names = COMMANDS.join(", ");
                let message = format!(
                    "MCPConfigError: Invalid command '{word}'. Supported commands: {names}"
                );
                field.error(message, "");
            }
        },
        (None, Some(server)) => {
            let package = server.raw().unwrap_or_default();
            let hint = format!("write `command: npx` and `args: [\"-y\", {package:?}]`");
            object.field.warn(
                "an entry without `command` is deprecated; npx is taken from `server`",
                &hint,
            );
            made.put("command", generated_text(DETECTED, "npx"));
            if object.is_absent("args") {
                let args = [generated_text(DETECTED, "-y"), literal(server, package)];
                made.put(
                    "args",
                    super::super::node_builder::generated(DETECTED, Value::List(args.into())),
                );
            }
        }
        (None, None) => {
            missing(
                &object.field,
                "command",
                "MCPConfigError: 'command' is required for stdio transport",
            );
        }
    }
    let args = object.nullable("args");
    if args.is_none() && command.is_some() {
        object.field.warn(
            "there are no `args`, so the command has nothing to run",
            "write `args: [-y, <package>]`",
        );
    }
    made.put_some("args", args.and_then(|field| texts(&field)));
    made.put_some("env", object.nullable("env").and_then(|field| map(&field)));
    let files = ["envFile", "env_file"].map(|name| object.nullable(name));
    if let [Some(_), Some(second)] = &files {
        second.error("there is an `envFile`, too", "write one of the two");
    }
    made.put_some("envFile", files.iter().flatten().next().and_then(replaced));
    made.put_some("encoding", replaced_of(object, "encoding"));
    made.put("cwd", generated_text(PLACE, "."));
    others(object, ["url", "headers"], "stdio");
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

/// Headers and variables: secrets, unless they name a variable.
fn map(field: &Field) -> Option<Node> {
    let mut made = NodeBuilder::default();
    for (name, value) in field.entries()? {
        match value.raw() {
            Some(written) => {
                if !written.contains("${") {
                    value.mask();
                }
                made.put_some(name, replaced(&value));
            }
            None => value.error("expected text", "put it in quotes"),
        }
    }
    Some(made.into_node(field))
}

/// For the server itself. Its tools can be narrowed there.
fn config(object: &mut Object, made: &mut NodeBuilder, kind: &str) {
    let Some(field) = object.nullable("config") else {
        return;
    };
    if !field.is_map() {
        return field.error("expected a map", "write one `key: value` a line");
    }
    if let Some(allowed) = field.get_path(&["allowed_tools"])
        && let Some(items) = Some(&allowed)
            .filter(|field| field.is_list())
            .and_then(Field::list)
        && items
            .iter()
            .all(|item| item.raw().is_some_and(|name| !name.contains('*')))
    {
        let names = items
            .iter()
            .filter_map(|item| Some(literal(item, item.raw()?)));
        made.put("tools", list(&allowed, names.collect()));
    }
    if kind == "stdio" {
        made.put_some("config", replaced(&field));
    } else {
        field.warn(format!("`config` has no effect on {kind}"), "");
    }
}

/// Seconds.
fn timeouts(object: &mut Object, made: &mut NodeBuilder, kind: &str) {
    let mut timeouts = NodeBuilder::default();
    for (name, native) in [
        ("timeout", "connectSeconds"),
        ("sse_read_timeout", "streamIdleSeconds"),
    ] {
        let Some(field) = object.nullable(name) else {
            continue;
        };
        if kind == "stdio" {
            field.warn(format!("`{name}` has no effect on stdio"), "");
        } else {
            timeouts.put_some(native, positive(&field, name));
        }
    }
    let request = object.nullable("request_timeout").and_then(|field| {
        if field
            .digits()
            .is_some_and(|digits| digits.parse::<i64>().is_err())
        {
            field.error("request_timeout must be an integer", "");
            return None;
        }
        positive(&field, "request_timeout")
    });
    timeouts.put(
        "requestSeconds",
        request.unwrap_or_else(|| generated_plain(TIMEOUT, "60")),
    );
    made.put("timeouts", timeouts.into_node(&object.field));
    if let Some(field) = object.nullable("terminate_on_close") {
        if kind == "http" {
            made.put_some("terminateOnClose", boolean(&field));
        } else {
            field.warn(format!("`terminate_on_close` has no effect on {kind}"), "");
        }
    }
}

fn positive(field: &Field, name: &str) -> Option<Node> {
    match field.digits().and_then(|digits| digits.parse::<f64>().ok()) {
        Some(seconds) if seconds > 0.0 => Some(copy(field)),
        Some(_) => {
            field.error(format!("{name} must be positive"), "");
            None
        }
        None => {
            field.error(
                format!("{name} must be a number"),
                "write it in digits, without quotes",
            );
            None
        }
    }
}

fn flag(object: &mut Object, name: &'static str) -> Option<Node> {
    object.nullable(name).and_then(|field| boolean(&field))
}

fn boolean(field: &Field) -> Option<Node> {
    let value = field.flag();
    if value.is_none() {
        field.error("expected true or false", "write it without quotes");
    }
    value.map(|value| plain(field, &value.to_string()))
}
