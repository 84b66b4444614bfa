//! Writes a pack in the native format, whatever format it was written in, with a comment on where each value came from.
//! Literal secrets are masked. Variables are named, and their values are never shown.

use std::{fmt::Display, path::Path};

use super::{
    dialect::servers_of,
    folder::{self, PackReadResult, PackTree},
    native,
    node_builder::{NodeBuilder, generate_plain, generate_text},
    parse_context::UnsetPolicy,
    redact,
    report::LoadError,
    server,
    yaml::{Node, Origin, Value},
    yaml_writer::{Annotator, write},
};
use domain::{
    config::Environment,
    pack::{Authentication, Welcome},
    policy::ToolAccess,
    registry::ServerRef,
    secret::Secret,
    server::Timeouts,
};

const MASK: &str = "••••";
const DEFAULT: &str = "default";

/// Writes the packs below a path, each as YAML with a comment beside every value. A variable may be unset; its comment
/// says so.
pub fn explain(
    path: &Path,
    env: &Environment,
    mcp_servers: Option<&Secret>,
) -> Result<String, LoadError> {
    let reading = folder::read(path, env, mcp_servers, UnsetPolicy::Allowed);
    if !reading.report.is_ok() {
        return Err(LoadError(reading.report));
    }
    let texts = reading
        .packs
        .into_iter()
        .filter_map(|outcome| explain_pack(outcome, env));
    Ok(texts.collect::<Vec<_>>().join("---\n"))
}

fn explain_pack(outcome: PackReadResult, env: &Environment) -> Option<String> {
    let PackReadResult {
        documents,
        tree,
        pack,
        ..
    } = outcome;
    let PackTree {
        mut root, files, ..
    } = tree?;
    native::remove_without_effect(&mut root);
    add_defaults(&mut root);
    add_reference_defaults(
        &mut root,
        &pack.map(|pack| pack.references).unwrap_or_default(),
    );
    let folder = format!("{}/", documents.folder.display());
    let files = files
        .iter()
        .map(|file| file.strip_prefix(&folder).unwrap_or(file).to_owned())
        .collect();
    let head = format!("# {} ({})\n", documents.name(), documents.dialect.name());
    Some(
        head + &write(
            &root,
            &SourceAnnotator {
                files,
                env,
                arguments: find_package_arguments(&root),
            },
        ),
    )
}

/// Where a node begins: the number of its file, and the byte.
fn start_of(node: &Node) -> (usize, usize) {
    (node.source, node.span.start)
}

/// The names in `${NAME}`.
fn variable_names(text: &str) -> Vec<&str> {
    let pieces = text.split("${").zip(text.split("${").skip(1));
    let names = pieces
        .filter(|(before, _)| !before.ends_with('$'))
        .filter_map(|(_, after)| after.split_once('}'));
    names
        .map(|(name, _)| name.strip_prefix("env.").unwrap_or(name))
        .filter(|name| !name.contains('.'))
        .collect()
}

/// Masks a text except for its references and a prefix such as `Bearer`.
fn mask_literals(text: &str) -> String {
    let hidden = |literal: &str| {
        if literal.trim().is_empty() {
            literal.to_owned()
        } else {
            MASK.to_owned()
        }
    };
    let words = ["Bearer ", "Basic ", "Token "];
    let (head, mut rest) = words
        .iter()
        .find_map(|word| Some((*word, text.strip_prefix(word)?)))
        .unwrap_or(("", text));
    let mut out = head.to_owned();
    while let Some((before, after)) = rest.split_once("${") {
        let reference = after.split_once('}').filter(|_| !before.ends_with('$'));
        let Some((name, after)) = reference else {
            break;
        };
        out.extend([hidden(before).as_str(), "${", name, "}"]);
        rest = after;
    }
    out + &hidden(rest)
}

/// Adds the defaults of fields that the author left out.
fn add_defaults(root: &mut Node) {
    let id = root
        .get_path(&["metadata", "id"])
        .and_then(Node::scalar_text)
        .unwrap_or_default()
        .to_owned();
    let language = match root.get("languages").map(Node::entries).unwrap_or_default() {
        [(only, _)] => only.text.clone(),
        _ => native::ENGLISH.to_owned(),
    };
    edit_map(root, "metadata", &mut |metadata| {
        set_default_text(metadata, "displayName", &id);
        set_default_text(metadata, "defaultLanguage", &language);
    });
    edit_map(root, "llm", &mut |llm| {
        set_default_text(llm, "provider", default_word(&native::PROVIDERS));
        set_default_plain(llm, "maxSteps", native::MAX_STEPS);
    });
    edit_map(root, "memory", &mut |memory| {
        set_default_plain(memory, "window", native::WINDOW);
    });
    edit_map(root, "flows", &mut |flows| {
        if flows.get("welcome").is_none() {
            edit_map(flows, "welcome", &mut |welcome| {
                set_default_plain(welcome, "enabled", Welcome::default().enabled);
            });
        }
        edit_map(flows, "authentication", &mut |authentication| {
            let default = Authentication::default();
            set_default_plain(authentication, "required", default.required);
            set_default_text(
                authentication,
                "userIdAttribute",
                &default.user_id_attribute,
            );
        });
    });
    edit_map(root, "mcp", &mut |mcp| {
        let Value::Map(fields) = &mut mcp.value else {
            return;
        };
        for (_, servers) in fields.iter_mut().filter(|(key, _)| key.text == "servers") {
            if let Value::List(servers) = &mut servers.value {
                servers.iter_mut().for_each(add_server_defaults);
            }
        }
    });
}

/// Adds the default `toolAccess` of servers from the registry, also of those that come from capabilities.
fn add_reference_defaults(root: &mut Node, references: &[ServerRef]) {
    const WHY: &str = "default of references: every user of the tenant, not guests";
    let open = Some(ToolAccess::for_users());
    for reference in references
        .iter()
        .filter(|reference| reference.tool_access == open)
    {
        edit_map(root, "mcpServers", &mut |servers| {
            edit_map(servers, reference.alias.as_str(), &mut |server| {
                insert_if_absent(server, "ref", || {
                    generate_text("a capability", reference.entry.as_str())
                });
                edit_map(server, "toolAccess", &mut |access| {
                    insert_if_absent(access, "default", || generate_text(WHY, "users"));
                });
            });
        });
    }
}

fn add_server_defaults(spec: &mut Node) {
    set_default_text(spec, "accessMode", default_word(&server::ACCESS_MODES));
    let is = |spec: &Node, key, word| spec.get(key).and_then(Node::scalar_text) == Some(word);
    let is_per_user = is(spec, "accessMode", "user-controlled") && is(spec, "catalog", "per-user");
    set_default_text(spec, "pin", if is_per_user { "tell" } else { "hold" });
    set_default_plain(spec, "required", server::REQUIRED);
    let is_child = is(spec, "transport", "stdio");
    edit_map(spec, "timeouts", &mut |timeouts| {
        let default = Timeouts::default();
        if !is_child {
            set_default_plain(timeouts, "connectSeconds", default.connect.as_secs_f64());
        }
        set_default_plain(timeouts, "requestSeconds", default.request.as_secs_f64());
    });
    set_default_plain(spec, "loadTools", server::LOAD);
    set_default_plain(spec, "loadPrompts", server::LOAD);
    if is(spec, "transport", "streamable-http") {
        set_default_plain(spec, "terminateOnClose", server::TERMINATE_ON_CLOSE);
    }
    if is(spec, "accessMode", "user-controlled") {
        set_default_text(spec, "catalog", default_word(&server::CATALOGS));
    } else {
        let instances = if is_child { "per-tenant" } else { "shared" };
        set_default_text(spec, "instances", instances);
        let at_start = !is_child && is(spec, "instances", "shared");
        let connect = if at_start { "start" } else { "first-use" };
        set_default_text(spec, "connect", connect);
    }
}

/// The word for the default value of a field that takes one of several words.
fn default_word<T: Default + PartialEq>(words: &[(&'static str, T)]) -> &'static str {
    let default = words.iter().find(|(_, value)| *value == T::default());
    default.expect("the default has a word").0
}

fn set_default_text(node: &mut Node, key: &str, text: &str) {
    insert_if_absent(node, key, || generate_text(DEFAULT, text));
}

fn set_default_plain(node: &mut Node, key: &str, value: impl Display) {
    insert_if_absent(node, key, || generate_plain(DEFAULT, &value.to_string()));
}

/// Edits the map below a key. If there is none, an empty map is added first.
fn edit_map(node: &mut Node, key: &str, work: &mut dyn FnMut(&mut Node)) {
    insert_if_absent(node, key, || {
        NodeBuilder::default().build_generated(DEFAULT)
    });
    let Value::Map(entries) = &mut node.value else {
        return;
    };
    if let Some((_, inner)) = entries.iter_mut().find(|(name, _)| name.text == key) {
        work(inner);
    }
}

fn insert_if_absent(node: &mut Node, key: &str, make: impl FnOnce() -> Node) {
    if node.get(key).is_none() {
        node.set(key, make());
    }
}

/// Says beside each value where it came from, and masks literal secrets.
struct SourceAnnotator<'e> {
    /// The names of the files; a node has a number of this list.
    files: Vec<String>,
    env: &'e Environment,
    /// The positions of the arguments that name a package or an image. They are shown.
    arguments: Vec<(usize, usize)>,
}

impl Annotator for SourceAnnotator<'_> {
    fn is_uncommented(&self, _: &Node) -> bool {
        true
    }

    fn comments_above(&self, node: &Node) -> Vec<String> {
        node.note
            .iter()
            .flat_map(|note| note.lines().map(str::to_owned))
            .collect()
    }

    fn comment_beside(&self, node: &Node, _: &[&str]) -> Option<String> {
        let leaf = match &node.value {
            Value::Scalar { .. } => true,
            Value::List(items) => items.iter().all(|item| item.scalar_text().is_some()),
            Value::Map(entries) => entries.is_empty(),
        };
        let origin = match node.origin {
            Origin::Generated(why) => why.to_owned(),
            Origin::Written | Origin::Translated(_) => {
                format!(
                    "{}:{}",
                    self.files.get(node.source).map_or("?", String::as_str),
                    node.at.line
                )
            }
        };
        let texts = node
            .items()
            .iter()
            .chain([node])
            .filter_map(Node::scalar_text);
        let mut names: Vec<&str> = texts.flat_map(variable_names).collect();
        names.dedup();
        let environment = names.iter().map(|name| {
            let unset = if self.env.get(name).is_none() && *name != "workspaceFolder" {
                " (not set)"
            } else {
                ""
            };
            format!(", environment {name}{unset}")
        });
        leaf.then(|| origin + &environment.collect::<String>())
    }

    fn replacement(&self, node: &Node, keys: &[&str]) -> Option<String> {
        let text = node.scalar_text()?;
        let below = |name: &str| keys.contains(&name);
        let server = below("mcp") || below("mcpServers");
        if below("auth")
            && keys
                .last()
                .is_some_and(|key| redact::is_below_secret_key(key))
        {
            return Some(mask_literals(text));
        }
        if below("apiKey") || (server && ["headers", "env", "config"].into_iter().any(below)) {
            return Some(mask_literals(text));
        }
        if server && keys.last() == Some(&"args") {
            let known = self.arguments.contains(&start_of(node))
                || matches!(node.origin, Origin::Generated(_));
            let option = text.starts_with('-') && !text.contains(['=', ' ', '\t', '\n']);
            return (!known && !option).then(|| mask_literals(text));
        }
        let cut = text.split_once('?').filter(|_| {
            ["url", "baseUrl"]
                .iter()
                .any(|name| keys.last() == Some(name))
        });
        cut.map(|(address, _)| format!("{address}?{MASK}"))
    }
}

/// The positions of the first argument of each server that is no option: it names a package or an image, so it is no
/// secret.
fn find_package_arguments(root: &Node) -> Vec<(usize, usize)> {
    let args = servers_of(root)
        .iter()
        .filter_map(|server| server.get("args"));
    let word = |item: &&Node| {
        item.scalar_text()
            .is_some_and(|text| !text.starts_with('-'))
    };
    args.filter_map(|args| args.items().iter().find(word))
        .map(start_of)
        .collect()
}
