//! Text with references in it: `Bearer ${TOKEN}`.
//!
//! A template is parsed once, into literals and references `{source, key}`, and resolved in one pass.
//! Resolved text is never scanned again, so a value that happens to contain `${SECRET}` arrives as
//! those characters. Every format has its own spelling of a reference; all of them parse to the same
//! pieces, and whoever resolves decides what a missing reference means.

pub mod address;

use std::{collections::BTreeSet, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};

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

/// Where a referenced value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The environment of the process: `${NAME}` in a native pack.
    Env,
    /// A field that a user of a personal server fills in: `{name}` in a header of the pack.
    User,
    /// What a run was started with, visible to the model.
    Params,
    /// The same, invisible to the model.
    Scope,
    /// What the program knows of a run: `session_id`, `run_id`.
    Runtime,
    /// What only the process that works on the run knows: `orchestrator_mcp_url`.
    Runner,
    /// A file that the operator gave.
    File,
}

impl Source {
    const ALL: [Self; 7] = [
        Self::Env,
        Self::User,
        Self::Params,
        Self::Scope,
        Self::Runtime,
        Self::Runner,
        Self::File,
    ];

    /// The name in a reference, before the dot.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Env => "env",
            Self::User => "user",
            Self::Params => "params",
            Self::Scope => "scope",
            Self::Runtime => "runtime",
            Self::Runner => "runner",
            Self::File => "file",
        }
    }

    /// The keys of a source that has a fixed set of them.
    fn keys(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Runtime => Some(&["session_id", "run_id"]),
            Self::Runner => Some(&["orchestrator_mcp_url"]),
            _ => None,
        }
    }

    /// Whether the values exist only within a run and differ from run to run.
    pub fn is_of_run(self) -> bool {
        matches!(
            self,
            Self::Params | Self::Scope | Self::Runtime | Self::Runner
        )
    }

    /// Whether text with a value from here must not be shown.
    pub fn is_sensitive(self) -> bool {
        matches!(self, Self::Env | Self::User | Self::Scope | Self::File)
    }
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

    fn parse_with(
        text: &str,
        reference: impl Fn(&str) -> Result<Reference, TemplateError>,
    ) -> Result<Self, TemplateError> {
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

    /// Parses the spelling of a personal server's headers: `{value}` is what the user entered in the field
    /// `own`, `{name}` what they entered in another, `{base64(user:token)}` the base64 of two with a colon
    /// between them, and everything else itself.
    pub fn parse_user(text: &str, own: &str) -> Result<Self, TemplateError> {
        let field = |name: &str| match name.trim() {
            "value" => Ok(Reference {
                source: Source::User,
                key: own.to_owned(),
            }),
            name if is_variable_name(name) => Ok(Reference {
                source: Source::User,
                key: name.to_owned(),
            }),
            _ => Err(TemplateError::BadField),
        };
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            if !literal.is_empty() {
                pieces.push(Piece::Literal(literal.to_owned()));
            }
            let (inner, after) = after.split_once('}').ok_or(TemplateError::UnclosedField)?;
            let encoded = inner
                .strip_prefix("base64(")
                .and_then(|inner| inner.strip_suffix(')'));
            pieces.push(match encoded {
                Some(names) => {
                    Piece::Base64(names.split(':').map(field).collect::<Result<_, _>>()?)
                }
                None => Piece::Reference(field(inner)?),
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest.to_owned()));
        }
        Ok(Self { pieces })
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

/// `NAME`. A dotted name belongs to a source that is not there yet, which deserves its own sentence.
fn reference(name: &str) -> Result<Reference, TemplateError> {
    if is_variable_name(name) {
        return Ok(Reference {
            source: Source::Env,
            key: name.to_owned(),
        });
    }
    let dotted = name.contains('.') && name.split('.').all(is_variable_name);
    if dotted {
        return Err(TemplateError::UnknownSource(
            name.chars().take(40).collect(),
        ));
    }
    // The rest may be the secret itself.
    let end = name
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')
        .unwrap_or(name.len());
    let shown: String = name[..end].chars().take(40).collect();
    Err(TemplateError::BadName(if shown.len() < name.len() {
        shown + "…"
    } else {
        shown
    }))
}

/// `source.key`, where the source is one of these.
fn sourced(name: &str, sources: &[Source]) -> Result<Reference, TemplateError> {
    let shown = || name.chars().take(40).collect::<String>();
    let names = |of: &[Source]| {
        of.iter()
            .map(|source| source.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let Some((source, key)) = name.split_once('.') else {
        return Err(if is_variable_name(name) {
            TemplateError::NoSource(shown())
        } else {
            TemplateError::BadName(shown())
        });
    };
    let Some(source) = Source::ALL
        .into_iter()
        .find(|known| known.as_str() == source)
    else {
        return Err(TemplateError::StrangeSource(
            source.chars().take(40).collect(),
            names(sources),
        ));
    };
    if !sources.contains(&source) {
        return Err(TemplateError::Elsewhere(shown(), names(sources)));
    }
    let is_key = |key: &str| {
        (1..=128).contains(&key.len())
            && key
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    if !is_key(key) || (source == Source::Env && !is_variable_name(key)) {
        return Err(TemplateError::BadName(shown()));
    }
    match source.keys() {
        Some(keys) if !keys.contains(&key) => Err(TemplateError::StrangeKey(
            source.as_str(),
            key.to_owned(),
            keys.join(", "),
        )),
        _ => Ok(Reference {
            source,
            key: key.to_owned(),
        }),
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
        format!("{}.{}", self.source.as_str(), self.key)
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
