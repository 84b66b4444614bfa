//! The comments that `explain` writes beside the lines of a pack.

use super::{MASK, mask_literals, place, variables};
use crate::{
    dialect::servers_of,
    redact,
    yaml::{Node, Origin, Value},
    yaml_writer::Annotator,
};
use domain::config::Environment;

pub(super) struct SourceAnnotator<'e> {
    /// By number.
    pub(super) files: Vec<String>,
    pub(super) env: &'e Environment,
    /// Where the arguments stand that are the name of what a program is to run.
    pub(super) arguments: Vec<(usize, usize)>,
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
            let known = self.arguments.contains(&place(node))
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

/// The first argument of each server that is no option: a package or an image, rather than a secret.
pub(super) fn first_words(root: &Node) -> Vec<(usize, usize)> {
    let args = servers_of(root)
        .iter()
        .filter_map(|server| server.get("args"));
    let word = |item: &&Node| {
        item.scalar_text()
            .is_some_and(|text| !text.starts_with('-'))
    };
    args.filter_map(|args| args.items().iter().find(word))
        .map(place)
        .collect()
}
