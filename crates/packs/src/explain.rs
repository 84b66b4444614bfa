//! `explain`: a pack in the native format, whatever it was written in, with where each value came from.
//! Literal secrets are `mask_literals`; variables are named and their values never shown.

mod annotations;

use std::{fmt::Display, path::Path};

use self::annotations::{SourceAnnotator, first_words};
use super::{
    folder::{self, PackReadResult, PackTree},
    native,
    node_builder::{NodeBuilder, generated_plain, generated_text},
    parse_context::UnsetPolicy,
    report::LoadError,
    server,
    yaml::{Node, Value},
    yaml_writer::write,
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

/// The packs below a path, each as YAML with a comment on every line. Variables may be unset, which is said.
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
    fill(&mut root);
    fill_references(
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
                arguments: first_words(&root),
            },
        ),
    )
}

fn place(node: &Node) -> (usize, usize) {
    (node.source, node.span.start)
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

/// Keeps references and a prefix such as `Bearer`, and masks the rest.
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
fn fill(root: &mut Node) {
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
        fill_text(metadata, "displayName", &id);
        fill_text(metadata, "defaultLanguage", &language);
    });
    edit_map(root, "llm", &mut |llm| {
        fill_text(llm, "provider", default_word(&native::PROVIDERS));
        fill_plain(llm, "maxSteps", native::MAX_STEPS);
    });
    edit_map(root, "memory", &mut |memory| {
        fill_plain(memory, "window", native::WINDOW);
    });
    edit_map(root, "flows", &mut |flows| {
        if flows.get("welcome").is_none() {
            edit_map(flows, "welcome", &mut |welcome| {
                fill_plain(welcome, "enabled", Welcome::default().enabled);
            });
        }
        edit_map(flows, "authentication", &mut |authentication| {
            let default = Authentication::default();
            fill_plain(authentication, "required", default.required);
            fill_text(
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
                servers.iter_mut().for_each(fill_server);
            }
        }
    });
}

/// Writes out who may use the servers of the registry where nobody said so, also those that capabilities bring.
fn fill_references(root: &mut Node, references: &[ServerRef]) {
    const WHY: &str = "default of references: every user of the tenant, not guests";
    let open = Some(ToolAccess::for_users());
    for reference in references
        .iter()
        .filter(|reference| reference.tool_access == open)
    {
        edit_map(root, "mcpServers", &mut |servers| {
            edit_map(servers, reference.alias.as_str(), &mut |server| {
                insert_if_absent(server, "ref", || {
                    generated_text("a capability", reference.entry.as_str())
                });
                edit_map(server, "toolAccess", &mut |access| {
                    insert_if_absent(access, "default", || generated_text(WHY, "users"));
                });
            });
        });
    }
}

fn fill_server(spec: &mut Node) {
    fill_text(spec, "accessMode", default_word(&server::ACCESS_MODES));
    fill_plain(spec, "required", server::REQUIRED);
    let is = |spec: &Node, key, word| spec.get(key).and_then(Node::scalar_text) == Some(word);
    let is_child = is(spec, "transport", "stdio");
    edit_map(spec, "timeouts", &mut |timeouts| {
        let default = Timeouts::default();
        if !is_child {
            fill_plain(timeouts, "connectSeconds", default.connect.as_secs_f64());
        }
        fill_plain(timeouts, "requestSeconds", default.request.as_secs_f64());
    });
    fill_plain(spec, "loadTools", server::LOAD);
    fill_plain(spec, "loadPrompts", server::LOAD);
    if is(spec, "transport", "streamable-http") {
        fill_plain(spec, "terminateOnClose", server::TERMINATE_ON_CLOSE);
    }
    if is(spec, "accessMode", "user-controlled") {
        fill_text(spec, "catalog", default_word(&server::CATALOGS));
    }
}

/// The word for the default of a field that takes one of several.
fn default_word<T: Default + PartialEq>(words: &[(&'static str, T)]) -> &'static str {
    let default = words.iter().find(|(_, value)| *value == T::default());
    default.expect("the default has a word").0
}

fn fill_text(node: &mut Node, key: &str, text: &str) {
    insert_if_absent(node, key, || generated_text(DEFAULT, text));
}

fn fill_plain(node: &mut Node, key: &str, value: impl Display) {
    insert_if_absent(node, key, || generated_plain(DEFAULT, &value.to_string()));
}

/// Works on the map below a key, which is made if it is not there.
fn edit_map(node: &mut Node, key: &str, work: &mut dyn FnMut(&mut Node)) {
    insert_if_absent(node, key, || NodeBuilder::default().generated(DEFAULT));
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
