//! Text with references in it: `Bearer ${TOKEN}`.
//!
//! A template is parsed once, into literals and references `{source, key}`, and resolved in one pass.
//! Resolved text is never scanned again, so a value that happens to contain `${SECRET}` arrives as
//! those characters. Every format has its own spelling of a reference; all of them parse to the same
//! pieces, and whoever resolves decides what a missing reference means.

pub mod address;
mod parsing;
mod source;

use std::{collections::BTreeSet, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};

pub use self::source::Source;
use self::{parsing::reference, source::sourced};
use super::secret::Secret;

/// Parsed text. Equal templates have equal effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Reference(Reference),
    /// Base64 of the values with `:` between them.
    Base64(Vec<Reference>),
}

/// What stands between the braces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub source: Source,
    pub key: String,
}

/// What a missing value means for the text that refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissing {
    Error,
    /// The text is left out, without an error.
    Omit,
}

/// Text with its values. `sensitive`: it must not be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub text: Secret,
    pub sensitive: bool,
}

/// Why text is not a template. Holds text of the template only, never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("`${{` is never closed; write `${{NAME}}`, or `$${{` for a literal `${{`")]
    Unclosed,
    #[error(
        "`${{{0}}}` is not supported by this version yet; only `${{NAME}}` of the environment is"
    )]
    UnknownSource(String),
    #[error(
        "`${{{0}}}` does not name a variable; write `${{NAME}}` with letters, digits and `_`, or `$${{` for a literal `${{`"
    )]
    BadName(String),
    #[error(
        "`${{{0}}}` does not say where its value comes from; write `${{env.{0}}}` for a variable of the environment"
    )]
    NoSource(String),
    #[error("there is no source {0:?}; write one of {1}")]
    StrangeSource(String, String),
    #[error("`${{{0}}}` cannot be used here; what can is {1}")]
    Elsewhere(String, String),
    #[error("`{0}` has no key {1:?}; it has {2}")]
    StrangeKey(&'static str, String, String),
    #[error("a `{{` is never closed")]
    UnclosedField,
    #[error("what stands between `{{` and `}}` is not understood")]
    BadField,
}

/// The references without a value: each one once, in order of their names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no value for {}", listed(.0))]
pub struct Missing(pub BTreeSet<Reference>);

impl Template {
    /// Parses the spelling of native packs: `${NAME}` is a variable of the environment, `$${` a literal
    /// `${`, and every other `$` itself.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        Self::parse_with(text, reference)
    }

    /// Parses the spelling of the server registry: `${source.key}`, with these sources only, and `$${` for a
    /// literal `${`.
    pub fn parse_sourced(text: &str, sources: &[Source]) -> Result<Self, TemplateError> {
        Self::parse_with(text, |name| sourced(name, sources))
    }

    /// Replaces every reference by what `value` says, which is taken literally. The error names every
    /// reference without a value.
    pub fn resolve<'v>(
        &self,
        value: impl Fn(&Reference) -> Option<&'v str>,
    ) -> Result<String, Missing> {
        let mut text = String::new();
        let mut missing = BTreeSet::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Reference(reference) => match value(reference) {
                    Some(value) => text.push_str(value),
                    None => drop(missing.insert(reference.clone())),
                },
                Piece::Base64(references) => {
                    missing.extend(
                        references
                            .iter()
                            .filter(|reference| value(reference).is_none())
                            .cloned(),
                    );
                    let values: Vec<_> = references.iter().filter_map(&value).collect();
                    STANDARD.encode_string(values.join(":"), &mut text);
                }
            }
        }
        if missing.is_empty() {
            Ok(text)
        } else {
            Err(Missing(missing))
        }
    }

    /// The same for text that may be left out. A value from a sensitive source makes the whole text sensitive.
    pub fn resolve_or<'v>(
        &self,
        on_missing: OnMissing,
        value: impl Fn(&Reference) -> Option<&'v str>,
    ) -> Result<Option<Resolved>, Missing> {
        match (self.resolve(value), on_missing) {
            (Ok(text), _) => {
                let sensitive = self
                    .references()
                    .any(|reference| reference.source.is_sensitive());
                Ok(Some(Resolved {
                    text: Secret::new(text),
                    sensitive,
                }))
            }
            (Err(_), OnMissing::Omit) => Ok(None),
            (Err(missing), OnMissing::Error) => Err(missing),
        }
    }

    /// Whether this is one reference and nothing else.
    pub fn is_one_reference(&self) -> bool {
        matches!(&self.pieces[..], [Piece::Reference(_)])
    }

    /// What stands between the references.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(text) => Some(text.as_str()),
            Piece::Reference(_) | Piece::Base64(_) => None,
        })
    }

    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.pieces.iter().flat_map(|piece| match piece {
            Piece::Reference(reference) => std::slice::from_ref(reference),
            Piece::Base64(references) => references,
            Piece::Literal(_) => &[],
        })
    }
}

/// `[A-Za-z_][A-Za-z0-9_]*`: what a shell accepts as the name of a variable.
pub fn is_variable_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl Reference {
    /// `scope.context_id`, as messages name it.
    pub fn dotted(&self) -> String {
        format!("{}.{}", self.source.into_str(), self.key)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Env => write!(f, "${{{}}}", self.key),
            Source::User => write!(f, "{{{}}}", self.key),
            _ => write!(f, "${{{}}}", self.dotted()),
        }
    }
}

fn listed(references: &BTreeSet<Reference>) -> String {
    references
        .iter()
        .map(|reference| format!("`{reference}`"))
        .collect::<Vec<_>>()
        .join(", ")
}
