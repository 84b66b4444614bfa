//! Reads a tree field by field. Each reader returns the value, or records a problem and returns `None`; then
//! reading goes on. A problem names the position, the path, the value that was found and the value that was
//! expected.
//!
//! A resolved value never enters a message: problems quote what the author wrote.

mod value;

use super::{
    object::Object,
    parse_context::ParseContext,
    report::{Position, Severity},
    yaml::{Key, Node, Origin, Value, join},
};
use crate::domain::{
    secret::Secret,
    template::{Missing, Template, TemplateError},
};

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

/// What a scalar without quotes means in YAML 1.2.
enum Plain {
    Nothing,
    Boolean(bool),
    Number,
    Text,
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
        self.context.report(
            Severity::Error,
            self.node.source,
            self.at,
            &self.path,
            message.into(),
            hint,
        );
    }

    pub(super) fn warn(&self, message: impl Into<String>, hint: &str) {
        self.context.report(
            Severity::Warning,
            self.node.source,
            self.at,
            &self.path,
            message.into(),
            hint,
        );
    }

    /// Reports a problem with a key below this field, which may be missing.
    pub(super) fn report_at(
        &self,
        severity: Severity,
        at: Position,
        key: &str,
        message: String,
        hint: &str,
    ) {
        self.context.report(
            severity,
            self.node.source,
            at,
            &join(&self.path, key),
            message,
            hint,
        );
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

    /// Any text. Numbers and booleans are not: `version: 1.10` would lose its zero elsewhere.
    pub(super) fn text(&self) -> Option<Text> {
        let Value::Scalar { text, plain } = &self.node.value else {
            self.wanted("text", "");
            return None;
        };
        match plain_meaning(text, *plain) {
            Plain::Text => self.resolved(text),
            Plain::Nothing => {
                self.wanted("text", "write it, or \"\" for none");
                None
            }
            Plain::Boolean(_) | Plain::Number => {
                self.wanted("text", "put it in quotes");
                None
            }
        }
    }

    fn resolved(&self, text: &str) -> Option<Text> {
        let template = match Template::parse(text) {
            Ok(template) => template,
            Err(error) => {
                let hint = match &error {
                    // As the server registry spells it.
                    TemplateError::UnknownSource(name) => name
                        .strip_prefix("env.")
                        .map(|name| format!("write `${{{name}}}`")),
                    _ => None,
                };
                self.error(error.to_string(), &hint.unwrap_or_default());
                return None;
            }
        };
        match self.context.resolve(&template) {
            Ok(value) => Some(Text {
                value: value?,
                shown: format!("{text:?}"),
                from_env: template.references().next().is_some(),
            }),
            Err(Missing(missing)) => {
                let names: Vec<_> = missing
                    .iter()
                    .map(|reference| format!("`{}`", reference.key))
                    .collect();
                let (nouns, them) = if names.len() == 1 {
                    ("variable", "it")
                } else {
                    ("variables", "them")
                };
                let are = if names.len() == 1 { "is" } else { "are" };
                let message = format!("the environment {nouns} {} {are} not set", names.join(", "));
                self.error(
                    message,
                    &format!("set {them}, or write `$${{` for a literal `${{`"),
                );
                None
            }
        }
    }

    /// Text with something in it, trimmed of nothing.
    pub(super) fn non_blank_text(&self) -> Option<Text> {
        let text = self.text()?;
        if text.value.trim().is_empty() {
            let found = if text.from_env {
                format!("{} is empty", text.shown)
            } else {
                "is empty".to_owned()
            };
            self.error(found, "write something, or remove the line");
            return None;
        }
        Some(text)
    }

    /// Text that must not be shown. A literal is also masked in excerpts.
    pub(super) fn secret(&self) -> Option<(Secret, Text)> {
        let text = self.secret_text()?;
        Some((Secret::new(text.value.clone()), text))
    }

    fn secret_text(&self) -> Option<Text> {
        let literal = |text: &str| {
            Template::parse(text).is_ok_and(|template| template.references().next().is_none())
        };
        if matches!(&self.node.value, Value::Scalar { text, .. } if literal(text)) {
            self.mask();
        }
        self.text()
    }

    /// Keeps it out of excerpts.
    pub(super) fn mask(&self) {
        self.context.mask(self.node.source, self.node.span.clone());
    }

    /// The text as written. A value of another type is not reported.
    pub(super) fn raw(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar { text, plain } if matches!(plain_meaning(text, *plain), Plain::Text) => {
                Some(text)
            }
            _ => None,
        }
    }

    /// The same for true and false.
    pub(super) fn flag(&self) -> Option<bool> {
        match &self.node.value {
            Value::Scalar { text, plain } => match plain_meaning(text, *plain) {
                Plain::Boolean(value) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// The same for a number, in the digits that were written.
    pub(super) fn digits(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar { text, plain }
                if matches!(plain_meaning(text, *plain), Plain::Number) =>
            {
                Some(text)
            }
            _ => None,
        }
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

    pub(super) fn list(&self) -> Option<Vec<Self>> {
        let Value::List(items) = &self.node.value else {
            self.wanted("a list", "write `[…]`, or one `- …` a line");
            return None;
        };
        Some(
            items
                .iter()
                .enumerate()
                .map(|(at, node)| self.item(at, node))
                .collect(),
        )
    }

    /// An item of this list.
    pub(super) fn item(&self, at: usize, node: &'a Node) -> Self {
        Self::new(self.context, node, format!("{}[{at}]", self.path))
    }

    /// A list of texts that are not blank. A repeated text is reported and dropped.
    pub(super) fn texts(&self) -> Vec<Text> {
        let mut texts: Vec<Text> = Vec::new();
        for item in self.list().unwrap_or_default() {
            let Some(text) = item.non_blank_text() else {
                continue;
            };
            if texts.iter().any(|other| other.value == text.value) {
                item.warn(
                    format!("{} is listed twice", text.shown),
                    "remove one of them",
                );
            } else {
                texts.push(text);
            }
        }
        texts
    }

    /// The same, when messages need not name them.
    pub(super) fn words(&self) -> Vec<String> {
        self.texts().into_iter().map(|text| text.value).collect()
    }

    /// The entries of a map whose keys the author chooses.
    pub(super) fn entries(&self) -> Option<Vec<(&'a str, Self)>> {
        let Value::Map(entries) = &self.node.value else {
            self.wanted("a map", "write one `key: value` a line");
            return None;
        };
        Some(
            entries
                .iter()
                .map(|entry| (entry.0.text.as_str(), self.entry(entry)))
                .collect(),
        )
    }

    /// A map whose keys the format chooses.
    pub(super) fn object(&self) -> Option<Object<'a>> {
        let Value::Map(entries) = &self.node.value else {
            self.wanted("a map", "write one `field: value` a line");
            return None;
        };
        Some(Object::new(self.clone(), entries))
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

/// The core schema of YAML 1.2. `yes` and `on` are text there, as in every current parser.
fn plain_meaning(text: &str, plain: bool) -> Plain {
    if !plain {
        return Plain::Text;
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Plain::Nothing,
        "true" | "True" | "TRUE" => Plain::Boolean(true),
        "false" | "False" | "FALSE" => Plain::Boolean(false),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
            && text.parse::<f64>().is_ok() =>
        {
            Plain::Number
        }
        _ => Plain::Text,
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
