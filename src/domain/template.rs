//! Text with references in it: `Bearer ${TOKEN}`.
//!
//! A template is parsed once, into literals and references `{source, key}`, and resolved in one pass.
//! Resolved text is never scanned again, so a value that happens to contain `${SECRET}` arrives as
//! those characters. Every format has its own spelling of a reference; all of them parse to the same
//! pieces, and whoever resolves decides what a missing reference means.

use std::{collections::BTreeSet, fmt};

/// Parsed text. Equal templates have equal effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Reference(Reference),
}

/// What stands between `${` and `}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub source: Source,
    pub key: String,
}

/// Where a referenced value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The environment of the process: `${NAME}` in a native pack.
    Env,
}

/// Why text is not a template. Holds text of the template only, never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("`${{` is never closed; write `${{NAME}}`, or `$${{` for a literal `${{`")]
    Unclosed,
    #[error("`${{{0}}}` is not supported by this version yet; only `${{NAME}}` of the environment is")]
    UnknownSource(String),
    #[error(
        "`${{{0}}}` does not name a variable; write `${{NAME}}` with letters, digits and `_`, or `$${{` for a literal `${{`"
    )]
    BadName(String),
}

/// The references that nobody has a value for: each one once, in order of their names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no value for {}", listed(.0))]
pub struct Missing(pub BTreeSet<Reference>);

impl Template {
    /// Parses the spelling of native packs: `${NAME}` is a variable of the environment, `$${` a literal
    /// `${`, and every other `$` itself.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix("$${") {
                literal.push_str("${");
                rest = after;
            } else if let Some(after) = rest.strip_prefix("${") {
                let (name, after) = after.split_once('}').ok_or(TemplateError::Unclosed)?;
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Reference(reference(name)?));
                rest = after;
            } else {
                literal.push('$');
                rest = &rest[1..];
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Self { pieces })
    }

    /// Replaces every reference by what `value` says, which is taken literally. The error names every
    /// reference without a value.
    pub fn resolve<'v>(&self, value: impl Fn(&Reference) -> Option<&'v str>) -> Result<String, Missing> {
        let mut text = String::new();
        let mut missing = BTreeSet::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Reference(reference) => match value(reference) {
                    Some(value) => text.push_str(value),
                    None => drop(missing.insert(reference.clone())),
                },
            }
        }
        if missing.is_empty() { Ok(text) } else { Err(Missing(missing)) }
    }

    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Reference(reference) => Some(reference),
            Piece::Literal(_) => None,
        })
    }
}

/// `NAME`. A dotted name belongs to a source that is not there yet, which deserves its own sentence.
fn reference(name: &str) -> Result<Reference, TemplateError> {
    if is_variable_name(name) {
        return Ok(Reference { source: Source::Env, key: name.to_owned() });
    }
    let dotted = name.contains('.') && name.split('.').all(is_variable_name);
    let shown = name.chars().take(40).collect();
    Err(if dotted { TemplateError::UnknownSource(shown) } else { TemplateError::BadName(shown) })
}

/// `[A-Za-z_][A-Za-z0-9_]*`: what a shell accepts as the name of a variable.
pub fn is_variable_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Env => write!(f, "${{{}}}", self.key),
        }
    }
}

fn listed(references: &BTreeSet<Reference>) -> String {
    references.iter().map(|reference| format!("`{reference}`")).collect::<Vec<_>>().join(", ")
}
