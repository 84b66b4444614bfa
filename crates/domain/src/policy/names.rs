//! Names in a pack that fit no tool of their server. In an approval policy such a name was meant to guard something, so
//! a tool whose name is close to it is closed until the pack is mended. And tools that no name in a pack fits, which a
//! policy guards because they look like one that it names.

use std::collections::BTreeSet;

use super::{ToolAccess, ToolPattern, any_matches};
use crate::{orchestrator, pack::Pack, server::ServerSpec};

impl ToolAccess {
    /// The tools that a misspelt name of an approval policy was probably meant to guard, and that no policy guards.
    pub fn closed_tools<'t>(&self, tools: &[&'t str]) -> BTreeSet<&'t str> {
        let mut closed = BTreeSet::new();
        for policy in &self.approval {
            for name in unmatched(&policy.tools, tools) {
                closed.extend(self.closed_by(name, tools));
            }
        }
        closed
    }

    fn closed_by<'t>(&self, name: &ToolPattern, tools: &[&'t str]) -> Vec<&'t str> {
        let guards = |tool: &str| {
            self.approval
                .iter()
                .any(|policy| any_matches(&policy.tools, tool))
        };
        let close = tools
            .iter()
            .copied()
            .filter(|tool| !guards(tool) && is_close(&name.0, tool));
        close.collect()
    }
}

impl Pack {
    /// The names in the rules of a server, and in the skills that call it, that fit none of its tools, and the tools that
    /// are guarded for what they look like, each as a sentence.
    pub fn unmatched_names(&self, server: &ServerSpec, tools: &[&str]) -> Vec<String> {
        let skills = self.skills.iter().filter(|skill| skill.server == server.id);
        let of_skills = skills.flat_map(|skill| {
            let lacking = skill.tools.iter();
            let lacking = lacking.filter(|name| !tools.contains(&name.as_str()));
            lacking.map(|name| {
                format!(
                    "the skill `{}` names {name:?}, which the server does not have",
                    skill.id
                )
            })
        });
        let mut sentences = server.unmatched_names(tools);
        sentences.extend(of_skills);
        sentences
    }
}

impl ServerSpec {
    fn unmatched_names(&self, tools: &[&str]) -> Vec<String> {
        let aliases = orchestrator::aliases().filter(|_| orchestrator::is_built_in(self));
        let mut known = tools.to_vec();
        aliases.for_each(|alias| known.push(alias));
        let tools = known.as_slice();
        let sentence = |place: &str, name: &ToolPattern| {
            format!(
                "`{place}` names {:?}, which the server does not have",
                name.0
            )
        };
        let list = |place: &str, names: &[ToolPattern]| -> Vec<String> {
            let names = unmatched(names, tools);
            names.map(|name| sentence(place, name)).collect()
        };
        let mut sentences = list("tools", self.tools.as_deref().unwrap_or_default());
        let Some(access) = &self.tool_access else {
            return sentences;
        };
        sentences.extend(list("toolAccess.public", &access.public));
        for (role, names) in access.roles.iter().flatten() {
            sentences.extend(list(&format!("toolAccess.roles.{role}"), names));
        }
        for policy in &access.approval {
            for name in unmatched(&policy.tools, tools) {
                let mut said = sentence("toolAccess.approval", name);
                let closed = access.closed_by(name, tools);
                if !closed.is_empty() {
                    said += &format!("; {} is closed until it is corrected", closed.join(", "));
                }
                sentences.push(said);
            }
        }
        sentences.extend(tools.iter().filter_map(|tool| {
            let name = &self.taken_for(tool)?.0;
            Some(format!(
                "{tool:?} can be taken for {name:?} of `toolAccess.approval`, so its calls need the same approval; name \
                 it in the pack to give it a rule of its own"
            ))
        }));
        sentences
    }
}

fn unmatched<'p>(
    names: &'p [ToolPattern],
    tools: &[&str],
) -> impl Iterator<Item = &'p ToolPattern> {
    names
        .iter()
        .filter(move |name| !tools.iter().any(|tool| name.matches(tool)))
}

/// Whether two names differ in a letter or two (one where they are short), in case, or in `-` for `_`.
pub fn is_close(name: &str, tool: &str) -> bool {
    let folded = |text: &str| -> Vec<char> {
        let letters = text.chars().flat_map(char::to_lowercase);
        letters.map(|c| if c == '-' { '_' } else { c }).collect()
    };
    let (name, tool) = (folded(name), folded(tool));
    let most = if name.len().min(tool.len()) <= 4 {
        1
    } else {
        2
    };
    !name.contains(&'*')
        && name.len().abs_diff(tool.len()) <= most
        && distance(&name, &tool) <= most
}

/// How many letters have to be changed, added or removed (Levenshtein).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
