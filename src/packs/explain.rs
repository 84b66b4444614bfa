//! `explain`: a pack in the native format, whatever it was written in, with where each value came from.
//! Literal secrets are masked; variables are named and their values never shown.

use std::path::Path;

use super::{
    dialect::servers_of,
    folder::{self, Outcome, Tree},
    made::{Made, given_plain, given_text},
    report::LoadError,
    sheet::Unset,
    written::{Hand, yaml},
    yaml::{Node, Origin, Value},
};
use crate::domain::{config::Environment, secret::Secret};

const MASK: &str = "••••";
const DEFAULT: &str = "default";

/// The packs below a path, each as YAML with a comment on every line. Variables may be unset, which is said.
pub fn explain(
    path: &Path,
    env: &Environment,
    mcp_servers: Option<&Secret>,
) -> Result<String, LoadError> {
    let reading = folder::read(path, env, mcp_servers, Unset::Allowed);
    if !reading.report.is_ok() {
        return Err(LoadError(reading.report));
    }
    let texts = reading
        .packs
        .into_iter()
        .filter_map(|outcome| explained(outcome, env));
    Ok(texts.collect::<Vec<_>>().join("---\n"))
}

fn explained(outcome: Outcome, env: &Environment) -> Option<String> {
    let Outcome {
        documents, tree, ..
    } = outcome;
    let Tree {
        mut root, files, ..
    } = tree?;
    fill(&mut root);
    let folder = format!("{}/", documents.folder.display());
    let files = files
        .iter()
        .map(|file| file.strip_prefix(&folder).unwrap_or(file).to_owned())
        .collect();
    let head = format!("# {} ({})\n", documents.name(), documents.dialect.name());
    Some(
        head + &yaml(
            &root,
            &Explaining {
                files,
                env,
                arguments: first_words(&root),
            },
        ),
    )
}

struct Explaining<'e> {
    /// By number.
    files: Vec<String>,
    env: &'e Environment,
    /// Where the arguments stand that are the name of what a program is to run.
    arguments: Vec<(usize, usize)>,
}

impl Hand for Explaining<'_> {
    fn is_silent(&self, _: &Node) -> bool {
        true
    }

    fn above(&self, node: &Node) -> Vec<String> {
        node.note
            .iter()
            .flat_map(|note| note.lines().map(str::to_owned))
            .collect()
    }

    fn beside(&self, node: &Node, _: &[&str]) -> Option<String> {
        let leaf = match &node.value {
            Value::Scalar { .. } => true,
            Value::List(items) => items.iter().all(|item| item.words().is_some()),
            Value::Map(entries) => entries.is_empty(),
        };
        let origin = match node.origin {
            Origin::Given(why) => why.to_owned(),
            Origin::Written | Origin::Translated(_) => {
                format!(
                    "{}:{}",
                    self.files.get(node.source).map_or("?", String::as_str),
                    node.at.line
                )
            }
        };
        let texts = node.items().iter().chain([node]).filter_map(Node::words);
        let mut names: Vec<&str> = texts.flat_map(variables).collect();
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

    fn text(&self, node: &Node, keys: &[&str]) -> Option<String> {
        let text = node.words()?;
        let below = |name: &str| keys.contains(&name);
        let server = below("mcp") || below("mcpServers");
        if below("apiKey") || (server && ["headers", "env", "config"].into_iter().any(below)) {
            return Some(masked(text));
        }
        if server && keys.last() == Some(&"args") {
            let known =
                self.arguments.contains(&place(node)) || matches!(node.origin, Origin::Given(_));
            let option = text.starts_with('-') && !text.contains('=');
            return (!known && !option).then(|| masked(text));
        }
        let cut = text.split_once('?').filter(|_| {
            ["url", "baseUrl"]
                .iter()
                .any(|name| keys.last() == Some(name))
        });
        cut.map(|(address, _)| format!("{address}?{MASK}"))
    }
}

fn place(node: &Node) -> (usize, usize) {
    (node.source, node.span.start)
}

/// The first argument of each server that is no option: a package or an image, rather than a secret.
fn first_words(root: &Node) -> Vec<(usize, usize)> {
    let args = servers_of(root)
        .iter()
        .filter_map(|server| server.get("args"));
    let word = |item: &&Node| item.words().is_some_and(|text| !text.starts_with('-'));
    args.filter_map(|args| args.items().iter().find(word))
        .map(place)
        .collect()
}

/// The names in `${NAME}`.
fn variables(text: &str) -> Vec<&str> {
    let pieces = text.split("${").zip(text.split("${").skip(1));
    let names = pieces
        .filter(|(before, _)| !before.ends_with('$'))
        .filter_map(|(_, after)| after.split_once('}'));
    names
        .map(|(name, _)| name.strip_prefix("env.").unwrap_or(name))
        .filter(|name| !name.contains('.'))
        .collect()
}

/// Only references and the words that go before a token are left.
fn masked(text: &str) -> String {
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

/// Adds what holds where nobody wrote anything. The values are those that reading without them gives, which a
/// test compares.
fn fill(root: &mut Node) {
    let id = root
        .below(&["metadata", "id"])
        .and_then(Node::words)
        .unwrap_or_default()
        .to_owned();
    let language = match root.get("languages").map(Node::entries).unwrap_or_default() {
        [(only, _)] => only.text.clone(),
        _ => "en".to_owned(),
    };
    within(root, "metadata", &mut |metadata| {
        absent(metadata, "displayName", || given_text(DEFAULT, &id));
        absent(metadata, "defaultLanguage", || {
            given_text(DEFAULT, &language)
        });
    });
    within(root, "llm", &mut |llm| {
        absent(llm, "provider", || given_text(DEFAULT, "openai"));
        absent(llm, "maxSteps", || given_plain(DEFAULT, "16"));
    });
    within(root, "memory", &mut |memory| {
        absent(memory, "window", || given_plain(DEFAULT, "40"))
    });
    within(root, "flows", &mut |flows| {
        absent(flows, "welcome", || {
            let mut off = Made::default();
            off.put("enabled", given_plain(DEFAULT, "false"));
            off.given(DEFAULT)
        });
        within(flows, "authentication", &mut |authentication| {
            absent(authentication, "required", || given_plain(DEFAULT, "true"));
            absent(authentication, "userIdAttribute", || {
                given_text(DEFAULT, "sub")
            });
        });
    });
    within(root, "mcp", &mut |mcp| {
        let Value::Map(fields) = &mut mcp.value else {
            return;
        };
        for (_, servers) in fields.iter_mut().filter(|(key, _)| key.text == "servers") {
            if let Value::List(servers) = &mut servers.value {
                servers.iter_mut().for_each(fill_server);
            }
        }
    });
}

fn fill_server(server: &mut Node) {
    absent(server, "accessMode", || {
        given_text(DEFAULT, "admin-controlled")
    });
    absent(server, "required", || given_plain(DEFAULT, "false"));
    within(server, "timeouts", &mut |timeouts| {
        absent(timeouts, "connectSeconds", || given_plain(DEFAULT, "5"));
        absent(timeouts, "requestSeconds", || given_plain(DEFAULT, "60"));
    });
    absent(server, "loadTools", || given_plain(DEFAULT, "true"));
    absent(server, "loadPrompts", || given_plain(DEFAULT, "true"));
    if server.get("transport").and_then(Node::words) == Some("streamable-http") {
        absent(server, "terminateOnClose", || given_plain(DEFAULT, "true"));
    }
    if server.get("accessMode").and_then(Node::words) == Some("user-controlled") {
        absent(server, "catalog", || given_text(DEFAULT, "shared"));
    }
}

/// Works on the map below a key, which is made if it is not there.
fn within(node: &mut Node, key: &str, work: &mut dyn FnMut(&mut Node)) {
    absent(node, key, || Made::default().given(DEFAULT));
    let Value::Map(entries) = &mut node.value else {
        return;
    };
    if let Some((_, inner)) = entries.iter_mut().find(|(name, _)| name.text == key) {
        work(inner);
    }
}

fn absent(node: &mut Node, key: &str, make: impl FnOnce() -> Node) {
    if node.get(key).is_none() {
        node.set(key, make());
    }
}
