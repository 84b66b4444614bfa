//! Names the model sees. `<server>__<tool>`, folded to what every provider accepts (some want no digit in front)
//! and at most 64 long.
//! The way back is the map that is built here, never string splitting; policy and audit use the pair.

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
};

use sha2::{Digest, Sha256};

use super::policy::Standing;

/// The longest function name that the common providers accept.
const MAX: usize = 64;

/// The name of one tool: folded; with a hash of the pair when it had to be cut or `clash` says that
/// another pair folds to the same text. Depends on the pair alone, never on listing order.
fn name(server: &str, tool: &str, clash: bool) -> String {
    let plain = folded(server, tool);
    if plain.len() <= MAX && !clash {
        return plain;
    }
    let mut digest = Sha256::new();
    digest.update(
        u64::try_from(server.len())
            .unwrap_or(u64::MAX)
            .to_be_bytes(),
    );
    digest.update(server);
    digest.update(tool);
    let hash = hex::encode(&digest.finalize()[..5]);
    let keep = plain.len().min(MAX - hash.len() - 1);
    format!("{}_{hash}", &plain[..keep])
}

fn folded(server: &str, tool: &str) -> String {
    let fold = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' || c == '-' {
            c
        } else {
            '_'
        }
    };
    let front = server
        .starts_with(|c: char| c.is_ascii_digit() || c == '-')
        .then_some('_');
    front
        .into_iter()
        .chain(server.chars().map(fold))
        .chain("__".chars())
        .chain(tool.chars().map(fold))
        .collect()
}

/// A tool, and what the rules of its server say of its name.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub server: &'a str,
    pub tool: &'a str,
    pub standing: Standing,
}

impl Candidate<'_> {
    /// The claim to the plain name where several fold to it: what the pack names before what it does not, then what is
    /// spelt like that. A server can add neither, so that a new tool never renames the one that a policy guards.
    fn claim(&self) -> (Standing, bool) {
        let is_spelt_so =
            folded(self.server, self.tool) == format!("{}__{}", self.server, self.tool);
        (self.standing, is_spelt_so)
    }
}

/// Names for all tools of an agent at once; result `i` belongs to candidate `i`. No two are of one server and tool.
///
/// Pass every tool of the agent, not only those one user sees, so that a user's rights cannot change a
/// name.
pub fn assign<'a>(candidates: impl Iterator<Item = Candidate<'a>> + Clone) -> Vec<String> {
    // Of each plain name, the best claim to it, and how many have that.
    let mut best: HashMap<String, ((Standing, bool), usize)> = HashMap::new();
    for candidate in candidates.clone() {
        let claim = candidate.claim();
        let known = best.entry(folded(candidate.server, candidate.tool));
        let (known, count) = known.or_insert((claim, 0));
        match claim.cmp(known) {
            Ordering::Greater => (*known, *count) = (claim, 1),
            Ordering::Equal => *count += 1,
            Ordering::Less => {}
        }
    }
    let keeps = |candidate: &Candidate| {
        best[&folded(candidate.server, candidate.tool)] == (candidate.claim(), 1)
    };
    let named = candidates
        .clone()
        .map(|one| name(one.server, one.tool, !keeps(&one)));
    let plain = candidates.clone().map(|one| folded(one.server, one.tool));
    let hashed = named.zip(plain).filter(|(name, plain)| name != plain);
    let hashed: HashSet<_> = hashed.map(|(name, _)| name).collect();
    let candidates = candidates.map(|candidate| {
        let Candidate { server, tool, .. } = candidate;
        // A plain name may be spelt like the hashed one of another.
        let is_taken = || hashed.contains(&folded(server, tool));
        name(server, tool, !keeps(&candidate) || is_taken())
    });
    candidates.collect()
}
