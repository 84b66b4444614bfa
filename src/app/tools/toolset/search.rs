//! Tools by words, for toolboxes with more tools than a model takes at once.

use std::{cmp::Reverse, sync::Arc};

use super::{NamedTool, Toolbox};
use crate::domain::server::ServerSpec;

/// Words of a query that count, and characters of a description that are searched.
const WORDS: usize = 16;
const SEARCHED: usize = 1_000;

impl Toolbox {
    /// The tools that fit the words best, the best first. A word in a name counts more than one in a description.
    pub(in crate::app) fn search(
        &self,
        query: &str,
        most: usize,
    ) -> Vec<(&Arc<ServerSpec>, &NamedTool)> {
        let query = query.to_lowercase();
        let words: Vec<&str> = query
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .take(WORDS)
            .collect();
        let mut found: Vec<_> = self
            .iter()
            .map(|(spec, named)| (rank(named, &words), spec, named))
            .filter(|(rank, ..)| *rank > 0)
            .collect();
        // Stable: of equals the first in the pack's order comes first.
        found.sort_by_key(|(rank, ..)| Reverse(*rank));
        found.truncate(most);
        found
            .into_iter()
            .map(|(_, spec, named)| (spec, named))
            .collect()
    }
}

fn rank(named: &NamedTool, words: &[&str]) -> usize {
    let title = named.tool.title.as_deref().unwrap_or_default();
    let name = format!("{} {title}", named.name).to_lowercase();
    let description = super::truncate_text(&named.tool.description, SEARCHED).to_lowercase();
    let rank_of = |word: &&str| match (name.contains(*word), description.contains(*word)) {
        (true, _) => 3,
        (false, true) => 1,
        (false, false) => 0,
    };
    words.iter().map(rank_of).sum()
}
