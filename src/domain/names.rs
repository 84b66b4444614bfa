//! Names the model sees. `<server>__<tool>`, folded to what every provider accepts (some want no digit in front)
//! and at most 64 long.
//! The way back is the map that is built here, never string splitting; policy and audit use the pair.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

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

/// Names for all tools of an agent at once; result `i` belongs to pair `i`. Pairs are distinct.
///
/// Pass every tool of the agent, not only those one user sees, so that a user's rights cannot change a
/// name.
pub fn assign<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Vec<String> {
    let mut count: HashMap<String, usize> = HashMap::new();
    for (server, tool) in pairs.clone() {
        *count.entry(folded(server, tool)).or_default() += 1;
    }
    pairs
        .map(|(server, tool)| name(server, tool, count[&folded(server, tool)] > 1))
        .collect()
}
