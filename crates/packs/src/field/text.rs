//! The text of a field: its placeholders, its secrets, and what it stands for.

use super::{Field, Text};
use crate::yaml::Value;
use domain::{
    secret::Secret,
    template::{Missing, Template, TemplateError},
};

/// What a scalar without quotes means in YAML 1.2.
pub(super) enum Plain {
    Nothing,
    Boolean(bool),
    Number,
    Text,
}

impl<'a> Field<'a> {
    /// Any text. Numbers and booleans are not: `version: 1.10` would lose its zero elsewhere.
    pub(crate) fn text(&self) -> Option<Text> {
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

    /// Part of the text, with its variables.
    pub(crate) fn resolved(&self, text: &str) -> Option<Text> {
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
    pub(crate) fn non_blank_text(&self) -> Option<Text> {
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
    pub(crate) fn secret(&self) -> Option<(Secret, Text)> {
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

    /// Whether a variable is part of it.
    pub(crate) fn has_variables(&self) -> bool {
        self.template()
            .is_some_and(|template| template.references().next().is_some())
    }

    /// The first of its variables that is missing, where that is a problem.
    pub(crate) fn unset_variable(&self) -> Option<String> {
        let template = self.template()?;
        let mut references = template.references();
        let unset = references.find(|reference| self.context.is_unset(&reference.key));
        unset.map(|reference| reference.key.clone())
    }

    /// The values of the variables of the environment in it, and in what is below it.
    pub(crate) fn variables(&self) -> Vec<Secret> {
        match &self.node.value {
            Value::List(items) => {
                let items = items.iter().enumerate();
                items
                    .flat_map(|(at, node)| self.item(at, node).variables())
                    .collect()
            }
            Value::Map(entries) => {
                let entries = entries.iter();
                entries
                    .flat_map(|entry| Field::variables(&self.entry(entry)))
                    .collect()
            }
            Value::Scalar { .. } => {
                let template = self.template();
                let references = template.iter().flat_map(Template::references);
                let values = references.filter_map(|it| self.context.environment(&it.key));
                values.map(Secret::new).collect()
            }
        }
    }

    fn template(&self) -> Option<Template> {
        Template::parse(self.raw()?).ok()
    }

    /// Keeps it out of excerpts.
    pub(crate) fn mask(&self) {
        self.context.mask(self.node.source, self.node.span.clone());
    }

    /// The text as written. A value of another type is not reported.
    pub(crate) fn raw(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar { text, plain } if matches!(plain_meaning(text, *plain), Plain::Text) => {
                Some(text)
            }
            _ => None,
        }
    }

    /// The value as the author wrote it, for messages; what kind of value it is, where that is more than a word.
    pub(crate) fn as_written(&self) -> &'a str {
        match &self.node.value {
            Value::Scalar { text, .. } => text,
            Value::List(_) | Value::Map(_) => self.found(),
        }
    }

    /// The same for true and false.
    pub(crate) fn flag(&self) -> Option<bool> {
        match &self.node.value {
            Value::Scalar { text, plain } => match plain_meaning(text, *plain) {
                Plain::Boolean(value) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// The same for a number, in the digits that were written.
    pub(crate) fn digits(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar { text, plain }
                if matches!(plain_meaning(text, *plain), Plain::Number) =>
            {
                Some(text)
            }
            _ => None,
        }
    }
}

/// The core schema of YAML 1.2. `yes` and `on` are text there, as in every current parser.
pub(super) fn plain_meaning(text: &str, plain: bool) -> Plain {
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
