//! Reads a HoloDeck agent: from `agent.yaml`, who the agent is, its model, and its tools of `type: mcp`, each of which
//! becomes a server. The rules are the statements D1–D11 of its contract, which also fixes the sentences.
//!
//! `${NAME}` is replaced in every text of a tool, and each variable must be set when the pack is loaded.

use std::{fs, path::Path};

use url::Url;

use super::{
    dialect::{Parts, address_variable_of, assemble, key_variable_of, open_to_all},
    env_file::resolve_inside,
    field::{Field, nearest},
    native::AZURE,
    node_builder::{
        NodeBuilder, copy, copy_with, generate, generate_plain, generate_text, list, literal,
        plain, text,
    },
    object::Object,
    parse_context::ParseContext,
    placeholder::translate_dollar,
    server::Files,
    yaml::{EMPTY, Node, Value},
};
use domain::template::Template;

const MAX_INSTRUCTIONS: usize = 256 * 1024;
/// Sections of HoloDeck that this program has no use for. Each gets a warning; a section that HoloDeck does not have
/// either is an error.
const SECTIONS: [&str; 13] = [
    "author",
    "claude",
    "deployment",
    "embedding_model",
    "embedding_provider",
    "evaluations",
    "execution",
    "observability",
    "openai",
    "response_format",
    "test_cases",
    "test_cases_file",
    "vectorstores",
];
/// Fields of a tool that HoloDeck uses for itself: for evaluations, for searching tools, and to say where an entry came
/// from.
const TOOL_FIELDS: [&str; 3] = ["is_retrieval", "defer_loading", "registry_name"];
/// The programs that may start a tool.
const COMMANDS: [&str; 3] = ["npx", "uvx", "docker"];
const PLACE: &str = "default of HoloDeck: the folder of the agent";
const DETECTED: &str = "taken from `server`, as for legacy entries";
const TIMEOUT: &str = "default of HoloDeck: 60 s";
/// Kinds of tools that HoloDeck runs itself.
const OWN_TOOLS: [&str; 5] = [
    "function",
    "hierarchical_document",
    "prompt",
    "vectorstore",
    "vector_search",
];

pub(super) fn read(context: &ParseContext, folder: &Path, files: &mut Files) -> Option<Node> {
    let root = context.parse_source(0, |error| {
        (error.message == EMPTY)
            .then(|| (EMPTY.to_owned(), "write `name`, `description` and `tools`"))
    })?;
    let document = Field::new(context, &root, "");
    let mut top = document.object()?;
    let parts = Parts {
        display_name: read_text(&mut top, "name"),
        description: read_text(&mut top, "description"),
        system_prompt: top
            .nullable("instructions")
            .and_then(|field| read_instructions(&field, folder, files)),
        llm: top.nullable("model").and_then(|field| read_model(&field)),
        servers: top
            .nullable("tools")
            .map(|field| read_tools(&field))
            .unwrap_or_default(),
        ..Parts::default()
    };
    for name in SECTIONS {
        if let Some(section) = warn_without_effect(&mut top, name) {
            check_tool_limits(name, &section);
        }
    }
    top.finish();
    Some(assemble(parts, context))
}

/// Warns of a field of HoloDeck that this program has no use for, and returns it if it is present.
fn warn_without_effect<'a>(object: &mut Object<'a>, name: &'static str) -> Option<Field<'a>> {
    let field = object.nullable(name)?;
    field.warn(format!("`{name}` has no effect here"), "");
    Some(field)
}

/// Warns of settings of an SDK that limit which tools an agent may use. They also name the SDK's built-in tools, so
/// they cannot be rules here, and the author must learn which rule holds instead.
fn check_tool_limits(section: &str, field: &Field) {
    for name in ["allowed_tools", "disallowed_tools"] {
        let limits = field.get_path(&[name]).filter(|limit| !limit.is_nothing());
        if let Some(limit) = limits {
            limit.warn(
                format!("`{section}.{name}` limits nothing here: every user may call every tool that is listed"),
                "write `toolAccess` for the server in access.yaml beside this file",
            );
        }
    }
}

/// The sentence of the contract for a variable that is not set.
fn missing_variable_message(name: &str) -> String {
    format!("ConfigError: Environment variable '{name}' not found")
}

/// A copy of a field in which each variable has its native spelling. `None` after an error.
fn replace_variables(field: &Field) -> Option<Node> {
    copy_with(field, &|field, text| {
        translate_dollar(field, text, missing_variable_message)
    })
}

/// Reads a text with its variables.
fn read_text(object: &mut Object, name: &'static str) -> Option<Node> {
    let field = object.nullable(name)?;
    if field.raw().is_none() {
        field.error("expected text", "put it in quotes");
        return None;
    }
    replace_variables(&field)
}

fn read_tools(field: &Field) -> Vec<Node> {
    let mut servers = Vec::new();
    for item in field.list().unwrap_or_default() {
        match item.get_path(&["type"]).as_ref().and_then(Field::raw) {
            Some("mcp") => servers.extend(read_tool(&item)),
            Some(other) if OWN_TOOLS.contains(&other) => {
                let name = item.get_path(&["name"]);
                let name = name.as_ref().and_then(Field::raw).unwrap_or_default();
                item.warn(
                    format!("the tool {name:?} of type {other:?} has no effect here"),
                    "",
                );
            }
            Some(other) => {
                let kinds: Vec<_> = OWN_TOOLS.into_iter().chain(["mcp"]).collect();
                let near = nearest(other, &kinds).map(|near| format!("did you mean {near:?}?"));
                item.error(
                    format!("ValidationError: 'type' {other:?} is not a type of tool"),
                    near.as_deref().unwrap_or("write `type: mcp`"),
                );
            }
            None => item.error("ValidationError: 'type' is required", "write `type: mcp`"),
        }
    }
    servers
}

/// Reads `instructions`: a text, or a map with either `inline` or `file`.
fn read_instructions(field: &Field, folder: &Path, files: &mut Files) -> Option<Node> {
    if field.raw().is_some() {
        return replace_variables(field);
    }
    let mut object = field.object()?;
    let inline = object.nullable("inline");
    let file = object.nullable("file");
    object.finish();
    match (inline, file) {
        (Some(inline), None) => replace_variables(&inline),
        (None, Some(file)) => {
            let name = file.raw()?;
            match read_instructions_file(name, folder, files) {
                Ok(content) => Some(literal(&file, &content)),
                Err(reason) => {
                    file.error(
                        format!("{name:?} {reason}"),
                        "name a text file in the folder of the pack",
                    );
                    None
                }
            }
        }
        _ => {
            field.error("expected one of `inline` and `file`", "");
            None
        }
    }
}

fn read_instructions_file(
    name: &str,
    folder: &Path,
    files: &mut Files,
) -> Result<String, &'static str> {
    let path = resolve_inside(folder, Path::new(name))?;
    let bytes = fs::read(&path).map_err(|_| "cannot be read")?;
    files.insert(path, bytes.clone());
    if bytes.len() > MAX_INSTRUCTIONS {
        return Err("is larger than 256 KiB");
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text")
}

/// Reads `model` as the `llm` of a native pack.
fn read_model(field: &Field) -> Option<Node> {
    const USUAL: &str = "the usual variable of this provider";
    const PROVIDERS: [(&str, &str); 6] = [
        ("openai", "openai"),
        ("azure_openai", AZURE),
        ("anthropic", "anthropic"),
        ("ollama", "ollama"),
        ("google", "gemini"),
        ("gemini", "gemini"),
    ];
    let mut object = field.object()?;
    let provider = object.nullable("provider");
    let named = provider.as_ref().and_then(Field::raw).unwrap_or_default();
    let known = PROVIDERS.iter().find(|(word, _)| *word == named);
    let known = known.map(|(_, native)| *native);
    if known.is_none() {
        let words = PROVIDERS.map(|(word, _)| word);
        let near = nearest(named, &words).map(|near| format!("did you mean {near:?}? "));
        let near = near.unwrap_or_default();
        provider.as_ref().unwrap_or(field).error(
            format!("the provider {named:?} is not known here"),
            &format!("{near}write one of {}", words.join(", ")),
        );
    }
    let usual = |name: Option<&'static str>| {
        let name = name.filter(|name| field.context.variable(name).is_some())?;
        Some(generate_text(USUAL, format!("${{{name}}}")))
    };
    let mut llm = NodeBuilder::default();
    llm.put_some(
        "provider",
        provider
            .as_ref()
            .map(|field| text(field, known.unwrap_or_default())),
    );
    let name = read_text(&mut object, "name");
    // Azure calls a model by the name of its deployment.
    let deployment = read_text(&mut object, "deployment_name");
    llm.put_some(
        "model",
        deployment.filter(|_| known == Some(AZURE)).or(name),
    );
    let endpoint = read_text(&mut object, "endpoint");
    let endpoint = endpoint.or_else(|| usual(known.and_then(address_variable_of)));
    if endpoint.is_none() && known == Some(AZURE) && object.is_absent("endpoint") {
        let sentence = "endpoint is required for azure_openai provider".to_owned();
        field.error_at(field.at, "endpoint", sentence, "");
        return None;
    }
    llm.put_some("baseUrl", endpoint);
    let key = read_text(&mut object, "api_key");
    llm.put_some(
        "apiKey",
        key.or_else(|| usual(known.and_then(key_variable_of))),
    );
    for (name, native) in [("temperature", "temperature"), ("max_tokens", "maxTokens")] {
        llm.put_some(native, object.nullable(name).map(|field| copy(&field)));
    }
    for name in ["top_p", "api_version", "auth_provider"] {
        warn_without_effect(&mut object, name);
    }
    object.finish();
    Some(llm.into_node(field))
}

/// Reads one tool of `type: mcp` as a server.
fn read_tool(field: &Field) -> Option<Node> {
    let mut object = field.object()?;
    object.nullable("type");
    let mut made = NodeBuilder::default();
    match object.nullable("name") {
        Some(name) => made.put_some("name", replace_variables(&name).map(to_server_id)),
        None => report_missing(field, "name", "ValidationError: 'name' is required"),
    }
    let server = object.nullable("server");
    let is_placed = ["command", "url"]
        .iter()
        .any(|name| !object.is_absent(name));
    let is_placed = is_placed && object.is_absent("server");
    let label = read_label(field, server.as_ref(), is_placed);
    let legacy = ["transport", "command", "url"]
        .iter()
        .all(|name| object.is_absent(name))
        && is_package(label);
    let description = object.nullable("description");
    if description.is_none() && !legacy {
        report_missing(
            field,
            "description",
            "ValidationError: 'description' is required",
        );
    }
    let transport = read_transport(&mut object);
    let kind = transport.as_ref().and_then(Field::raw).unwrap_or("stdio");
    let native = if kind == "http" {
        "streamable-http"
    } else {
        kind
    };
    let native = match &transport {
        Some(transport) => text(transport, native),
        None => generate_text("default of HoloDeck", native),
    };
    made.put("transport", native);
    if kind == "stdio" {
        let detected = server.as_ref().filter(|_| legacy);
        put_stdio(&mut object, &mut made, detected);
    } else {
        put_remote(&mut object, &mut made, kind);
    }
    put_config(&mut object, &mut made, kind);
    put_timeouts(&mut object, &mut made, kind);
    for (name, native) in [("load_tools", "loadTools"), ("load_prompts", "loadPrompts")] {
        made.put_some(
            native,
            object.nullable(name).and_then(|field| read_flag(&field)),
        );
    }
    for name in TOOL_FIELDS {
        warn_without_effect(&mut object, name);
    }
    object.finish();
    made.put("toolAccess", open_to_all());
    // A server of a pack has no description. A comment keeps the text for people.
    let note = description
        .as_ref()
        .and_then(replace_variables)
        .and_then(|node| Some(node.scalar_text()?.to_owned()));
    Some(made.into_node(field).with_note(note))
}

/// Reads `server`, which must not be empty. HoloDeck itself no longer has this field, so it may be missing if the entry
/// has a `command` or `url`.
fn read_label<'a>(field: &Field, server: Option<&Field<'a>>, is_placed: bool) -> &'a str {
    let label = server.and_then(Field::raw).unwrap_or_default().trim();
    if label.is_empty() {
        let sentence = "ValidationError: 'server' must be a non-empty identifier";
        match server {
            Some(server) => server.error(sentence, ""),
            None if is_placed => field.warn(
                "there is no `server`, so the server is called by its `name`",
                "write `server: <name>` for readers of the contract",
            ),
            None => report_missing(field, "server", sentence),
        }
    }
    label
}

/// The id of the server for the name of a tool. A name of HoloDeck may begin with `_`, an id may not.
fn to_server_id(mut name: Node) -> Node {
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

fn report_missing(field: &Field, name: &str, sentence: &str) {
    field.error_at(field.at, name, sentence.to_owned(), "");
}

fn read_transport<'a>(object: &mut Object<'a>) -> Option<Field<'a>> {
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

/// Puts the address and headers of a remote server.
fn put_remote(object: &mut Object, made: &mut NodeBuilder, kind: &str) {
    match object
        .nullable("url")
        .filter(|url| url.raw().is_some_and(|text| !text.trim().is_empty()))
    {
        Some(url) => {
            let node = replace_variables(&url);
            if let Some(written) = node.as_ref().and_then(Node::scalar_text) {
                check_address(&url, written, kind);
            }
            made.put_some("url", node);
        }
        None => {
            let sentence = format!("MCPConfigError: 'url' is required for {kind} transport");
            report_missing(&object.field, "url", &sentence);
        }
    }
    made.put_some(
        "headers",
        object
            .nullable("headers")
            .and_then(|field| read_map(&field)),
    );
    refuse_fields(
        object,
        ["command", "args", "env", "envFile", "env_file", "encoding"],
        kind,
    );
}

/// Refuses fields of another transport: the author expects something from them that would not happen.
fn refuse_fields<const N: usize>(object: &mut Object, names: [&'static str; N], kind: &str) {
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

fn check_address(field: &Field, written: &str, kind: &str) {
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

fn read_texts(field: &Field) -> Option<Node> {
    let mut nodes = Vec::new();
    for item in field.list()? {
        match item.raw() {
            Some(_) => nodes.extend(replace_variables(&item)),
            None => item.error("expected text", "put it in quotes"),
        }
    }
    Some(list(field, nodes))
}

/// Whether a text has the form `@scope/name` of an npm package. A name without a scope is no package here: anybody
/// could publish one under that name.
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

/// Puts the command, arguments and variables of a server that is a child process.
fn put_stdio(object: &mut Object, made: &mut NodeBuilder, legacy: Option<&Field>) {
    let command = object.nullable("command");
    match (&command, legacy) {
        (Some(field), _) => match field.raw().filter(|word| COMMANDS.contains(word)) {
            Some(word) => made.put("command", text(field, word)),
            None => {
                let word = field.as_written();
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
            made.put("command", generate_text(DETECTED, "npx"));
            if object.is_absent("args") {
                let args = [generate_text(DETECTED, "-y"), literal(server, package)];
                made.put("args", generate(DETECTED, Value::List(args.into())));
            }
        }
        (None, None) => {
            report_missing(
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
    made.put_some("args", args.and_then(|field| read_texts(&field)));
    made.put_some(
        "env",
        object.nullable("env").and_then(|field| read_map(&field)),
    );
    let files = ["envFile", "env_file"].map(|name| object.nullable(name));
    if let [Some(_), Some(second)] = &files {
        second.error("there is an `envFile`, too", "write one of the two");
    }
    made.put_some(
        "envFile",
        files.iter().flatten().next().and_then(replace_variables),
    );
    made.put_some("encoding", read_text(object, "encoding"));
    made.put("cwd", generate_text(PLACE, "."));
    refuse_fields(object, ["url", "headers"], "stdio");
}

/// Reads headers or variables. They are secrets, unless they name a variable.
fn read_map(field: &Field) -> Option<Node> {
    let mut made = NodeBuilder::default();
    for (name, value) in field.entries()? {
        match value.raw() {
            Some(written) => {
                if !written.contains("${") {
                    value.mask();
                }
                made.put_some(name, replace_variables(&value));
            }
            None => value.error("expected text", "put it in quotes"),
        }
    }
    Some(made.into_node(field))
}

/// Puts `config`, which is for the server itself. Its `allowed_tools` become the allowlist.
fn put_config(object: &mut Object, made: &mut NodeBuilder, kind: &str) {
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
        made.put_some("config", replace_variables(&field));
    } else {
        field.warn(format!("`config` has no effect on {kind}"), "");
    }
}

/// Puts the timeouts, in seconds, and `terminateOnClose`.
fn put_timeouts(object: &mut Object, made: &mut NodeBuilder, kind: &str) {
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
            timeouts.put_some(native, read_positive(&field, name));
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
        read_positive(&field, "request_timeout")
    });
    timeouts.put(
        "requestSeconds",
        request.unwrap_or_else(|| generate_plain(TIMEOUT, "60")),
    );
    made.put("timeouts", timeouts.into_node(&object.field));
    if let Some(field) = object.nullable("terminate_on_close") {
        if kind == "http" {
            made.put_some("terminateOnClose", read_flag(&field));
        } else {
            field.warn(format!("`terminate_on_close` has no effect on {kind}"), "");
        }
    }
}

/// Reads a positive number.
fn read_positive(field: &Field, name: &str) -> Option<Node> {
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

/// Reads true or false.
fn read_flag(field: &Field) -> Option<Node> {
    let value = field.flag();
    if value.is_none() {
        field.error("expected true or false", "write it without quotes");
    }
    value.map(|value| plain(field, &value.to_string()))
}
