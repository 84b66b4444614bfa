//! Reads a tree field by field. Each reader returns the value, or records a problem and returns `None`; then
//! reading goes on. A problem names the position, the path, the value that was found and the value that was
//! expected.
//!
//! A resolved value never enters a message: problems quote what the author wrote.

mod structure;
mod text;
mod value;

use self::text::{Plain, plain_meaning};
pub(super) use self::value::{boolean_word, checked_url};
use super::{
    parse_context::{ParseContext, ProblemPlace},
    report::{Position, Severity},
    yaml::{Key, Node, Origin, Value, join},
};
use domain::template::Template;

/// One node with its path.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub context: &'a ParseContext<'a>,
    pub path: String,
    /// Where problems with it are shown: its value, or its key when the value starts further down.
    pub at: Position,
    node: &'a Node,
}

/// Text after its variables were `non_blank_text` in.
pub(super) struct Text {
    pub value: String,
    /// As the author wrote it, in quotes: what a message may show.
    pub shown: String,
    /// Whether a variable is part of it, so that the value is not the author's own.
    pub from_env: bool,
}

impl<'a> Field<'a> {
    pub(super) fn new(
        context: &'a ParseContext<'a>,
        node: &'a Node,
        path: impl Into<String>,
    ) -> Self {
        let path = match &node.origin {
            Origin::Translated(path) => path.clone(),
            _ => path.into(),
        };
        Self {
            context,
            path,
            at: node.at,
            node,
        }
    }

    /// The value of a key of this field.
    pub(super) fn entry(&self, (key, node): &'a (Key, Node)) -> Self {
        let below = node.at.line > key.at.line && !matches!(node.value, Value::Scalar { .. });
        let at = if below { key.at } else { node.at };
        Self {
            at,
            ..Self::new(self.context, node, join(&self.path, &key.text))
        }
    }

    /// The field below some keys. A missing key is not reported.
    pub(super) fn get_path(&self, keys: &[&str]) -> Option<Self> {
        let Some((first, rest)) = keys.split_first() else {
            return Some(self.clone());
        };
        let Value::Map(entries) = &self.node.value else {
            return None;
        };
        self.entry(entries.iter().find(|(key, _)| key.text == *first)?)
            .get_path(rest)
    }

    /// The text of this field, if it is valid. Problems are not reported.
    pub(super) fn try_text(&self) -> Option<String> {
        let Value::Scalar { text, .. } = &self.node.value else {
            return None;
        };
        self.context.resolve(&Template::parse(text).ok()?).ok()?
    }

    pub(super) fn error(&self, message: impl Into<String>, hint: &str) {
        let place = self.place();
        self.context
            .report(Severity::Error, place, message.into(), hint);
    }

    pub(super) fn warn(&self, message: impl Into<String>, hint: &str) {
        let place = self.place();
        self.context
            .report(Severity::Warning, place, message.into(), hint);
    }

    /// The same, shown at its key.
    pub(super) fn warn_of_key(&self, at: Position, message: String, hint: &str) {
        let place = ProblemPlace { at, ..self.place() };
        self.context.report(Severity::Warning, place, message, hint);
    }

    fn place(&self) -> ProblemPlace<'_> {
        ProblemPlace {
            source: self.node.source,
            at: self.at,
            path: &self.path,
        }
    }

    /// Reports an error of a key below this field, which may be missing.
    pub(super) fn error_at(&self, at: Position, key: &str, message: String, hint: &str) {
        let path = join(&self.path, key);
        let place = ProblemPlace {
            source: self.node.source,
            at,
            path: &path,
        };
        self.context.report(Severity::Error, place, message, hint);
    }

    fn wanted(&self, wanted: &str, hint: &str) {
        self.error(format!("expected {wanted}, found {}", self.found()), hint);
    }

    fn found(&self) -> &'static str {
        match &self.node.value {
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::Scalar { text, plain } => match plain_meaning(text, *plain) {
                Plain::Nothing => "nothing",
                Plain::Boolean(_) => "true or false",
                Plain::Number => "a number",
                Plain::Text => "text",
            },
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        matches!(&self.node.value, Value::Scalar { text, plain } if matches!(plain_meaning(text, *plain), Plain::Nothing))
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }

    /// Whether the author wrote this text, before any variable is `non_blank_text` in.
    pub(super) fn has_raw_text(&self, wanted: &str) -> bool {
        matches!(&self.node.value, Value::Scalar { text, .. } if text == wanted)
    }

    pub(super) fn node(&self) -> &'a Node {
        self.node
    }

    /// The value as JSON, with its variables.
    pub(super) fn resolved_json(&self) -> Option<serde_json::Value> {
        match &self.node.value {
            Value::List(_) => self.list()?.iter().map(Self::resolved_json).collect(),
            Value::Map(_) => {
                let entries = self.entries()?;
                entries
                    .iter()
                    .map(|(key, field)| Some(((*key).to_owned(), field.resolved_json()?)))
                    .collect()
            }
            Value::Scalar { text, .. } if self.raw().is_some() => {
                Some(self.resolved(text)?.value.into())
            }
            Value::Scalar { .. } => Some(self.json()),
        }
    }

    /// The value as JSON, with references left as they are. Literal texts are kept out of excerpts: they may be
    /// secret.
    pub(super) fn json(&self) -> serde_json::Value {
        json(self.context, self.node)
    }
}

fn json(context: &ParseContext, node: &Node) -> serde_json::Value {
    match &node.value {
        Value::List(items) => items.iter().map(|item| json(context, item)).collect(),
        Value::Map(entries) => entries
            .iter()
            .map(|(key, node)| (key.text.clone(), json(context, node)))
            .collect(),
        Value::Scalar { text, plain } => match plain_meaning(text, *plain) {
            Plain::Nothing => serde_json::Value::Null,
            Plain::Boolean(value) => value.into(),
            Plain::Number => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
            Plain::Text => {
                if !text.contains("${") {
                    context.mask(node.source, node.span.clone());
                }
                text.as_str().into()
            }
        },
    }
}

/// The word an author probably meant: the same letters in another case or with other separators, or a
/// slip or two away.
pub(super) fn nearest<'w>(word: &str, words: &[&'w str]) -> Option<&'w str> {
    let plain = |text: &str| text.to_lowercase().replace(['_', '-'], "");
    let distance = |other: &&'w str| {
        (
            strsim::damerau_levenshtein(&plain(word), &plain(other)),
            *other,
        )
    };
    let (distance, near) = words.iter().map(distance).min()?;
    (distance <= (near.len() / 3).clamp(1, 3)).then_some(near)
}

/// Whether text without quotes around it would still be text.
pub(super) fn is_text(text: &str) -> bool {
    matches!(plain_meaning(text, true), Plain::Text)
}
