//! Tools that can be taken for one that a rule about calls names: `Send.Money`, `sendmoney` and `send_money_v2` beside
//! `send_money`. The rule guards them too, because a server may add a tool at any time, and a model calls whichever
//! it finds. A tool that the rules of its server name without a wildcard is what its author says, and no lookalike.

use std::{cell::OnceCell, sync::LazyLock};

use super::{ApprovalPolicy, DenyRule, Limit, ToolAccess, ToolPattern, any_matches};
use crate::{hidden::fold, lookalike::skeleton, server::ServerSpec};

/// Where a pack has its rules about calls.
pub(super) const APPROVAL: &str = "toolAccess.approval";
const CONFIRM: &str = "toolAccess.confirm";
const DENY: &str = "toolAccess.deny";
const LIMITS: &str = "toolAccess.limits";
const SEPARATORS: &[char] = &['_', '-', '.', ':', '/'];
/// What is added to the name of another version, beside a number.
const VERSIONS: [&str; 10] = [
    "new",
    "old",
    "beta",
    "alpha",
    "rc",
    "preview",
    "latest",
    "legacy",
    "deprecated",
    "experimental",
];

/// What the rules of a server say of the name of a tool; the last has the best claim to its plain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    Unnamed,
    /// A rule names it without a wildcard.
    Named,
    /// A rule about calls names it with a wildcard.
    Guarded,
    GuardedByName,
}

impl ServerSpec {
    pub fn standing(&self, tool: &str) -> Standing {
        let access = self.tool_access.iter();
        let guards = access
            .flat_map(ToolAccess::guards)
            .flat_map(|(_, names)| names);
        let guards: Vec<_> = guards.filter(|name| name.matches(tool)).collect();
        match guards.as_slice() {
            [] if self.names(tool) => Standing::Named,
            [] => Standing::Unnamed,
            guards if guards.iter().any(|name| !name.has_wildcard()) => Standing::GuardedByName,
            _ => Standing::Guarded,
        }
    }

    /// The approval policies that guard a tool, and the confirmations.
    pub(super) fn approval_policies(&self, tool: &str) -> impl Iterator<Item = &ApprovalPolicy> {
        let access = self.tool_access.iter();
        let guard = self.guard_of(tool);
        let policies = access.flat_map(|access| access.approval.iter().chain(&access.confirm));
        policies.filter(move |policy| guard(&policy.tools))
    }

    /// The rules that deny calls of a tool.
    pub(super) fn deny_rules(&self, tool: &str) -> impl Iterator<Item = &DenyRule> {
        let access = self.tool_access.iter();
        let guard = self.guard_of(tool);
        let rules = access.flat_map(|access| &access.deny);
        rules.filter(move |rule| guard(&rule.tools))
    }

    /// The limits over time of a tool, each with its place among those of the server.
    pub(super) fn limits(&self, tool: &str) -> impl Iterator<Item = (usize, &Limit)> {
        let access = self.tool_access.iter();
        let guard = self.guard_of(tool);
        let limits = access.flat_map(|access| access.limits.iter().enumerate());
        limits.filter(move |(_, limit)| guard(&limit.tools))
    }

    /// Whether a rule denies the tool whatever the call is.
    pub(super) fn denies_all_calls(&self, tool: &str) -> bool {
        self.deny_rules(tool).any(|rule| rule.when.is_none())
    }

    /// Whether a rule with some names guards the tool: it names the tool, or one that the tool can be taken for.
    fn guard_of(&self, tool: &str) -> impl Fn(&[ToolPattern]) -> bool {
        let lookalikes = OnceCell::new();
        move |names| {
            any_matches(names, tool)
                || lookalikes
                    .get_or_init(|| (!self.names(tool)).then(|| readings(tool)))
                    .as_ref()
                    .is_some_and(|readings| names.iter().any(|name| name.is_among(readings)))
        }
    }

    /// The name in a rule about calls that guards a tool only because the tool can be taken for what it names.
    pub(super) fn taken_for(&self, tool: &str) -> Option<(&'static str, &ToolPattern)> {
        let access = self.tool_access.as_ref().filter(|_| !self.names(tool))?;
        let mut guards = access.guards();
        guards.find_map(|(place, names)| {
            let found = names.iter().find(|name| name.can_be_taken_for(tool));
            Some((place, found.filter(|_| !any_matches(names, tool))?))
        })
    }

    /// Whether a rule names the tool, and not with a wildcard. A rule about some of its calls does not make it another
    /// tool than the one that it can be taken for.
    fn names(&self, tool: &str) -> bool {
        let access = self.tool_access.iter();
        let lists = access.flat_map(|access| {
            let roles = access.roles.iter().flat_map(|roles| roles.values());
            let policies = access.approval.iter();
            let policies = policies.filter(|policy| policy.when.is_none());
            let approval = policies.map(|policy| &policy.tools);
            std::iter::once(&access.public).chain(roles).chain(approval)
        });
        let mut names = self.tools.iter().chain(lists).flatten();
        names.any(|name| name.0 == tool && !name.has_wildcard())
    }
}

impl ToolAccess {
    /// The names in each rule about calls, with the place of the rule.
    pub fn guards(&self) -> impl Iterator<Item = (&'static str, &[ToolPattern])> {
        let approval = self.approval.iter().map(|rule| &rule.tools);
        let deny = self.deny.iter().map(|rule| &rule.tools);
        let approval = approval.map(|names| (APPROVAL, names.as_slice()));
        let confirm = self.confirm.iter().map(|rule| &rule.tools);
        let limits = self.limits.iter().map(|limit| &limit.tools);
        approval
            .chain(confirm.map(|names| (CONFIRM, names.as_slice())))
            .chain(deny.map(|names| (DENY, names.as_slice())))
            .chain(limits.map(|names| (LIMITS, names.as_slice())))
    }
}

impl ToolPattern {
    /// Whether a tool can be taken for one with this name: they differ in case, separators, letters that look alike or a
    /// version at most.
    pub fn can_be_taken_for(&self, tool: &str) -> bool {
        self.is_among(&readings(tool))
    }

    fn is_among(&self, tools: &[Spelling]) -> bool {
        if self.has_wildcard() {
            return tools.iter().any(|tool| self.fits(tool));
        }
        let names = without_versions(&self.0, false).into_iter();
        let mut names = names.map(|name| Spelling::new(name).letters);
        names.any(|name| tools.iter().any(|tool| tool.letters == name))
    }

    /// The same as a glob over letters. A separator beside a wildcard is the end of a word, so that `pay_*` is `payMoney`
    /// and `paymoney`, and not `payments_list`: that name shows where its own words end.
    fn fits(&self, tool: &Spelling) -> bool {
        let pieces: Vec<_> = self.0.split('*').collect();
        let (last, end) = (pieces.len() - 1, tool.letters.len());
        let (mut from, mut has_letters) = (0, false);
        for (at, piece) in pieces.into_iter().enumerate() {
            let wanted = Spelling::new(piece).letters;
            let begins_word = at > 0 && piece.starts_with(SEPARATORS);
            let ends_word = at < last && piece.ends_with(SEPARATORS);
            let is_at = |start: &usize| {
                let after = start + wanted.len();
                tool.letters.get(*start..after) == Some(&wanted[..])
                    && (!begins_word || (*start > 0 && tool.may_begin_word(*start)))
                    && (!ends_word || (after < end && tool.may_begin_word(after)))
            };
            let found = if at == 0 {
                Some(0).filter(is_at)
            } else if at == last {
                let start = end.checked_sub(wanted.len());
                start.filter(|start| *start >= from && is_at(start))
            } else {
                (from..=end).find(is_at)
            };
            let Some(start) = found else { return false };
            from = start + wanted.len();
            has_letters |= !wanted.is_empty();
        }
        has_letters
    }
}

/// What the name of a tool can be taken for: itself, and what it is a version of.
fn readings(tool: &str) -> Vec<Spelling> {
    let names = without_versions(tool, true).into_iter();
    names.map(Spelling::new).collect()
}

/// A name as a reader takes it: without case and separators, letters that look alike as one.
struct Spelling {
    letters: Vec<char>,
    /// Of each letter, whether a word begins with it.
    begins: Vec<bool>,
    has_words: bool,
}

impl Spelling {
    fn new(name: &str) -> Self {
        let (mut letters, mut begins) = (Vec::new(), Vec::new());
        let (mut has_words, mut separated, mut before) = (false, false, None::<char>);
        for c in name.chars() {
            if SEPARATORS.contains(&c) {
                separated = true;
                continue;
            }
            let is_hump = before.is_some_and(|before| before.is_lowercase() && c.is_uppercase());
            let is_number = before.is_some_and(|before| before.is_numeric() != c.is_numeric());
            let is_word = is_hump || (separated && before.is_some());
            has_words |= is_word;
            let first = letters.len();
            with_looks(c, |looks| letters.extend(looks.chars()));
            begins.extend((first..letters.len()).map(|at| at == first && (is_word || is_number)));
            (separated, before) = (false, Some(c));
        }
        Self {
            letters,
            begins,
            has_words,
        }
    }

    fn may_begin_word(&self, at: usize) -> bool {
        let begins = at == 0 || self.begins.get(at).is_none_or(|begins| *begins);
        begins || !self.has_words
    }
}

/// What a letter looks like, in whatever case. `i`, `l` and `1` are one.
fn with_looks(c: char, read: impl FnOnce(&str)) {
    static ASCII: LazyLock<Vec<String>> = LazyLock::new(|| ('\0'..='\x7f').map(looks_of).collect());
    match usize::try_from(u32::from(c))
        .ok()
        .and_then(|c| ASCII.get(c))
    {
        Some(looks) => read(looks),
        None => read(&looks_of(c)),
    }
}

fn looks_of(c: char) -> String {
    let lower: String = c.to_lowercase().collect();
    skeleton(&fold(&lower)).to_lowercase().replace('i', "l")
}

/// A name, and what is left of it without the versions at its ends. `numbers`: a number alone is a version, too; the
/// tool `tier2` is another version of `tier`, and `tier1` is not for a pack that names `tier2`.
fn without_versions(name: &str, numbers: bool) -> Vec<&str> {
    let mut found = vec![name.trim_matches(SEPARATORS)];
    let mut at = 0;
    while let Some(name) = found.get(at).copied() {
        at += 1;
        let words = VERSIONS.iter().flat_map(|version| {
            let front = name.get(..version.len());
            let front = front.filter(|front| front.eq_ignore_ascii_case(version));
            [
                without_end(name, version),
                front.map(|front| &name[front.len()..]),
            ]
        });
        let numbered =
            name.trim_end_matches(|c: char| c.is_ascii_digit() || SEPARATORS.contains(&c));
        let is_numbered = numbered.len() < name.len();
        let versioned = ["version", "ver", "v"]
            .iter()
            .map(|version| without_end(numbered, version).filter(|_| is_numbered));
        let front = name
            .strip_prefix(['v', 'V'])
            .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let front = front.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
        let shorter: Vec<_> = words
            .chain(versioned)
            .chain([Some(numbered).filter(|_| numbers), front])
            .flatten()
            .map(|name| name.trim_matches(SEPARATORS))
            .filter(|name| !name.is_empty())
            .collect();
        for name in shorter {
            if !found.contains(&name) {
                found.push(name);
            }
        }
    }
    found
}

fn without_end<'n>(name: &'n str, version: &str) -> Option<&'n str> {
    let (rest, end) = name.split_at_checked(name.len().checked_sub(version.len())?)?;
    end.eq_ignore_ascii_case(version).then_some(rest)
}
