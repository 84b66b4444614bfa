//! Reads a tree field by field. Each reader returns the value, or records a problem and returns `None`; then reading
//! goes on with the next field. A problem names the position, the path, the value that was found and the one that was
//! expected.
//!
//! The value of a variable never enters a message: problems quote what the author wrote.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use url::Url;

use super::{
    object::Object,
    parse_context::{ParseContext, ProblemPlace},
    redact,
    report::{Position, Severity},
    yaml::{Key, Node, Origin, Value, join_path},
};
use domain::{
    policy::Vars,
    secret::Secret,
    template::{Missing, Template, TemplateError},
};

/// One node with its path.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub context: &'a ParseContext<'a>,
    pub path: String,
    /// Where problems with the field are shown: at its value, or at its key if the value begins on a later line.
    pub at: Position,
    node: &'a Node,
}

/// Text after its variables were filled in.
pub(super) struct Text {
    pub value: String,
    /// The text as the author wrote it, in quotes. A message may show it.
    pub shown: String,
    /// Whether a variable is part of the text. Then no message may show `value`.
    pub from_env: bool,
}

/// What a scalar without quotes means in YAML 1.2.
enum Plain {
    Nothing,
    Boolean(bool),
    Number,
    Text,
}

/// Why text is not the address of a server.
pub(super) enum UrlProblem<'w> {
    Scheme { wanted: [&'w str; 2] },
    User,
    NoAddress,
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
            ..Self::new(self.context, node, join_path(&self.path, &key.text))
        }
    }

    /// The field below these keys. A missing key is not reported.
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

    /// The text with its variables, if it is valid. Problems are not reported.
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

    /// Like [`Self::warn`], but shown at another place of the document: the key of the field.
    pub(super) fn warn_of_key(&self, at: Position, message: String, hint: &str) {
        let place = ProblemPlace { at, ..self.place() };
        self.context.report(Severity::Warning, place, message, hint);
    }

    /// Reports what lets a pack load and makes `check` fail.
    pub(super) fn fault(&self, message: impl Into<String>, hint: &str) {
        let place = self.place();
        self.context
            .report(Severity::Fault, place, message.into(), hint);
    }

    /// See [`ParseContext::set_vars`].
    pub(super) fn set_vars(&self, vars: Vars) {
        self.context.set_vars(vars);
    }

    pub(super) fn vars(&self) -> Option<Vars> {
        self.context.vars()
    }

    fn place(&self) -> ProblemPlace<'_> {
        ProblemPlace {
            source: self.node.source,
            at: self.at,
            path: &self.path,
        }
    }

    /// Reports an error of a key below this field. The key may be missing.
    pub(super) fn error_at(&self, at: Position, key: &str, message: String, hint: &str) {
        let path = join_path(&self.path, key);
        let place = ProblemPlace {
            source: self.node.source,
            at,
            path: &path,
        };
        self.context.report(Severity::Error, place, message, hint);
    }

    /// Reports a value of the wrong kind.
    fn report_kind(&self, wanted: &str, hint: &str) {
        self.error(format!("expected {wanted}, found {}", self.kind()), hint);
    }

    fn kind(&self) -> &'static str {
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

    /// Whether the author wrote exactly this text. Variables are not filled in before the comparison.
    pub(super) fn has_raw_text(&self, wanted: &str) -> bool {
        matches!(&self.node.value, Value::Scalar { text, .. } if text == wanted)
    }

    pub(super) fn node(&self) -> &'a Node {
        self.node
    }

    /// The value as JSON, with its variables.
    pub(super) fn resolve_json(&self) -> Option<serde_json::Value> {
        match &self.node.value {
            Value::List(_) => self.list()?.iter().map(Self::resolve_json).collect(),
            Value::Map(_) => {
                let entries = self.entries()?;
                entries
                    .iter()
                    .map(|(key, field)| Some(((*key).to_owned(), field.resolve_json()?)))
                    .collect()
            }
            Value::Scalar { text, .. } if self.raw().is_some() => {
                Some(self.resolve(text)?.value.into())
            }
            Value::Scalar { .. } => Some(self.to_json()),
        }
    }

    /// The value as JSON, with references left as they are. Literal texts are kept out of excerpts: they may be
    /// secret.
    pub(super) fn to_json(&self) -> serde_json::Value {
        node_to_json(self.context, self.node)
    }

    pub(super) fn list(&self) -> Option<Vec<Self>> {
        let Value::List(items) = &self.node.value else {
            self.report_kind("a list", "write `[…]`, or one `- …` a line");
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

    /// Like [`Self::texts`], without the form in which the author wrote each text.
    pub(super) fn text_values(&self) -> Vec<String> {
        self.texts().into_iter().map(|text| text.value).collect()
    }

    /// The entries of a map whose keys the author chooses.
    pub(super) fn entries(&self) -> Option<Vec<(&'a str, Self)>> {
        let Value::Map(entries) = &self.node.value else {
            self.report_kind("a map", "write one `key: value` a line");
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
            self.report_kind("a map", "write one `field: value` a line");
            return None;
        };
        Some(Object::new(self.clone(), entries))
    }

    /// The text of the field. Numbers and booleans are no text: in another program `version: 1.10` would lose its zero.
    pub(super) fn text(&self) -> Option<Text> {
        let Value::Scalar { text, plain } = &self.node.value else {
            self.report_kind("text", "");
            return None;
        };
        match plain_meaning(text, *plain) {
            Plain::Text => self.resolve(text),
            Plain::Nothing => {
                self.report_kind("text", "write it, or \"\" for none");
                None
            }
            Plain::Boolean(_) | Plain::Number => {
                self.report_kind("text", "put it in quotes");
                None
            }
        }
    }

    /// Fills the variables of `text` in, which is the text of this field or a part of it.
    pub(super) fn resolve(&self, text: &str) -> Option<Text> {
        if self.refuse_own_variables(text) {
            return None;
        }
        let template = match Template::parse(text) {
            Ok(template) => template,
            Err(error) => {
                let hint = match &error {
                    // The server registry spells a variable so.
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
            Ok(value) => {
                let (value, shown) = (value?, format!("{text:?}"));
                let from_env = template.references().next().is_some();
                // A literal may be the secret itself.
                let what = if from_env { &shown } else { "it" };
                if let Some((message, hint)) = self.context.refuse_own_value(what, &value) {
                    self.mask();
                    self.error(message, &hint);
                    return None;
                }
                Some(Text {
                    value,
                    shown,
                    from_env,
                })
            }
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

    /// Refuses a text that refers to a variable with a secret of the service itself, in whatever spelling.
    pub(super) fn refuse_own_variables(&self, text: &str) -> bool {
        let begins = text.match_indices("${").chain(text.match_indices("{env:"));
        // `$${` is a literal.
        let begins = begins.filter(|(at, _)| !text[..*at].ends_with('$'));
        let mut names = begins.map(|(at, opening)| {
            let name = &text[at + opening.len()..];
            let name = name.strip_prefix("env.").unwrap_or(name);
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &name[..end.unwrap_or(name.len())]
        });
        let refused = names.find_map(|name| self.context.why_withheld(name));
        if let Some((message, hint)) = &refused {
            self.error(message, hint);
        }
        refused.is_some()
    }

    /// Text that is not empty and not only blanks. Blanks around it are kept.
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

    /// Text that must not be shown. If the author wrote it out, it is also masked in excerpts.
    pub(super) fn secret(&self) -> Option<(Secret, Text)> {
        let text = self.secret_text()?;
        Some((Secret::new(text.value.clone()), text))
    }

    fn secret_text(&self) -> Option<Text> {
        let is_literal = |text: &str| {
            Template::parse(text).is_ok_and(|template| template.references().next().is_none())
        };
        if matches!(&self.node.value, Value::Scalar { text, .. } if is_literal(text)) {
            self.mask();
        }
        self.text()
    }

    /// Whether a variable is part of the text.
    pub(super) fn has_variables(&self) -> bool {
        self.template()
            .is_some_and(|template| template.references().next().is_some())
    }

    /// The first variable of the text that is not set, if unset variables are refused.
    pub(super) fn find_unset_variable(&self) -> Option<String> {
        let template = self.template()?;
        let mut references = template.references();
        let unset = references.find(|reference| self.context.is_unset(&reference.key));
        unset.map(|reference| reference.key.clone())
    }

    /// The values of all variables of the environment in this field and in the fields below it.
    pub(super) fn variable_values(&self) -> Vec<Secret> {
        match &self.node.value {
            Value::List(items) => {
                let items = items.iter().enumerate();
                items
                    .flat_map(|(at, node)| self.item(at, node).variable_values())
                    .collect()
            }
            Value::Map(entries) => {
                let entries = entries.iter();
                entries
                    .flat_map(|entry| Field::variable_values(&self.entry(entry)))
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

    /// Keeps the value out of excerpts.
    pub(super) fn mask(&self) {
        self.context.mask(self.node.source, self.node.span.clone());
    }

    /// The text as the author wrote it. `None` for another kind of value, without a problem.
    pub(super) fn raw(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar { text, plain } if matches!(plain_meaning(text, *plain), Plain::Text) => {
                Some(text)
            }
            _ => None,
        }
    }

    /// The value as the author wrote it, for messages. For a list or map, the name of its kind.
    pub(super) fn as_written(&self) -> &'a str {
        match &self.node.value {
            Value::Scalar { text, .. } => text,
            Value::List(_) | Value::Map(_) => self.kind(),
        }
    }

    /// The value, if it is true or false. `None` for another kind of value, without a problem.
    pub(super) fn flag(&self) -> Option<bool> {
        match &self.node.value {
            Value::Scalar { text, plain } => match plain_meaning(text, *plain) {
                Plain::Boolean(value) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// The digits of a number as the author wrote them. `None` for another kind of value, without a problem.
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

    /// Text that `parse` accepts. The error of `parse` may quote the text; it is shown only if no variable is part of
    /// the text.
    pub(super) fn parse_with<T>(&self, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = self.non_blank_text()?;
        match parse(&text.value) {
            Ok(value) => Some(value),
            Err(_) if text.from_env => {
                self.error(
                    format!("the value of {} cannot be used here", text.shown),
                    "correct the variable",
                );
                None
            }
            Err(reason) => {
                self.error(reason, "");
                None
            }
        }
    }

    /// The address of a server: http or https, without a user or password.
    pub(super) fn url(&self) -> Option<Url> {
        self.url_with_schemes(["http", "https"])
    }

    /// Like [`Self::url`], with two other schemes.
    pub(super) fn url_with_schemes(&self, [plain, safe]: [&str; 2]) -> Option<Url> {
        let text = self.non_blank_text()?;
        let problem = match parse_server_url(text.value.trim(), [plain, safe]) {
            Ok(url) => return Some(url),
            Err(problem) => problem,
        };
        let message = problem.message();
        let hint = match problem {
            UrlProblem::Scheme { .. } => "",
            UrlProblem::NoAddress => "write one such as `https://mcp.example.org/mcp`",
            UrlProblem::User => {
                self.mask();
                self.error(
                    "the address holds a user or password",
                    "send them in a header",
                );
                return None;
            }
        };
        let said = match redact::public_part(&text.shown) {
            Some(place) if place.len() < text.shown.len() => format!("{place}?…\" {message}"),
            Some(_) => format!("{} {message}", text.shown),
            None => format!("what stands here {message}"),
        };
        self.error(said, hint);
        None
    }

    /// The value of one of these words.
    pub(super) fn one_of<T: Clone>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return Some(value.clone());
        }
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let near = if text.from_env {
            None
        } else {
            nearest(&text.value, &names)
        };
        let near = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
        let many = if names.len() == 1 { "" } else { "one of " };
        self.error(
            format!("unknown value {}", text.shown),
            &format!("{near}write {many}{}", names.join(", ")),
        );
        None
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        self.read_boolean(|value| match plain_meaning(value, true) {
            Plain::Boolean(value) => Some(value),
            _ => None,
        })
    }

    /// Like [`Self::boolean`], but also takes the words of published packs: `"true"`, `yes`, `"0"`.
    pub(super) fn boolean_or_word(&self) -> Option<bool> {
        if let Some(word) = self.raw().filter(|text| !text.contains("${"))
            && let Some(value) = boolean_word(word)
        {
            return Some(value);
        }
        self.read_boolean(boolean_word)
    }

    /// Reads true or false. `of_variable` reads the value of a variable.
    fn read_boolean(&self, of_variable: impl FnOnce(&str) -> Option<bool>) -> Option<bool> {
        let wanted = "true or false";
        if let Value::Scalar { text, plain } = &self.node.value {
            if let Plain::Boolean(value) = plain_meaning(text, *plain) {
                return Some(value);
            }
            if text.contains("${") {
                return self.read_variable(text, wanted, of_variable);
            }
        }
        self.report_kind(wanted, "write `true` or `false`, without quotes");
        None
    }

    pub(super) fn whole_number(&self, bounds: &RangeInclusive<u32>) -> Option<u32> {
        self.numeric(bounds, "a whole number", false)
    }

    pub(super) fn number(&self, bounds: &RangeInclusive<f64>) -> Option<f64> {
        self.numeric(bounds, "a number", false)
    }

    /// Like [`Self::whole_number`], but also takes a number in quotes, as published packs write it: `"20"`.
    pub(super) fn whole_or_text(&self, bounds: &RangeInclusive<u32>) -> Option<u32> {
        self.numeric(bounds, "a whole number", true)
    }

    /// Like [`Self::number`], but also takes a number in quotes.
    pub(super) fn number_or_text(&self, bounds: &RangeInclusive<f64>) -> Option<f64> {
        self.numeric(bounds, "a number", true)
    }

    fn numeric<T: FromStr + PartialOrd + Display>(
        &self,
        bounds: &RangeInclusive<T>,
        noun: &str,
        takes_text: bool,
    ) -> Option<T> {
        let wanted = format!("{noun} from {} to {}", bounds.start(), bounds.end());
        let fits = |text: &str| {
            text.trim()
                .parse::<T>()
                .ok()
                .filter(|value| bounds.contains(value))
        };
        if let Value::Scalar { text, plain } = &self.node.value {
            if text.contains("${") {
                return self.read_variable(text, &wanted, fits);
            }
            let digits = text.trim();
            let is_number = match plain_meaning(text, *plain) {
                Plain::Number => true,
                Plain::Text => takes_text && digits.parse::<f64>().is_ok(),
                Plain::Nothing | Plain::Boolean(_) => false,
            };
            if is_number {
                let value = fits(digits);
                if value.is_none() {
                    self.error(format!("{digits} is not {wanted}"), "");
                }
                return value;
            }
        }
        self.report_kind(&wanted, "write it in digits, without quotes");
        None
    }

    /// Reads a number or boolean that a variable holds.
    fn read_variable<T>(
        &self,
        text: &str,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.resolve(text)?;
        let value = read(&text.value);
        if value.is_none() {
            self.error(
                format!("the value of {} is not {wanted}", text.shown),
                "correct the variable",
            );
        }
        value
    }
}

impl UrlProblem<'_> {
    pub(super) fn message(&self) -> String {
        match self {
            Self::Scheme {
                wanted: [plain, safe],
            } => format!("has another scheme than {plain} or {safe}"),
            Self::User => "holds a user or password".to_owned(),
            Self::NoAddress => "is not an address".to_owned(),
        }
    }
}

fn node_to_json(context: &ParseContext, node: &Node) -> serde_json::Value {
    match &node.value {
        Value::List(items) => items
            .iter()
            .map(|item| node_to_json(context, item))
            .collect(),
        Value::Map(entries) => entries
            .iter()
            .map(|(key, node)| (key.text.clone(), node_to_json(context, node)))
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

/// The meaning of a scalar in the core schema of YAML 1.2. `yes` and `on` are text there, as in every current parser.
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

/// Whether text without quotes around it would still be text.
pub(super) fn is_text(text: &str) -> bool {
    matches!(plain_meaning(text, true), Plain::Text)
}

/// The meaning of the words that published packs write for true and false.
pub(super) fn boolean_word(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" => Some(true),
        "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// Parses the address of a server with one of two schemes. A user or password in it is refused.
pub(super) fn parse_server_url<'w>(
    text: &str,
    wanted: [&'w str; 2],
) -> Result<Url, UrlProblem<'w>> {
    match Url::parse(text) {
        Ok(url) if !wanted.contains(&url.scheme()) => Err(UrlProblem::Scheme { wanted }),
        Ok(url) if !url.username().is_empty() || url.password().is_some() => Err(UrlProblem::User),
        Ok(url) if url.has_host() => Ok(url),
        _ => Err(UrlProblem::NoAddress),
    }
}

/// The word that an author probably meant: one with the same letters in another case or with other separators, or
/// with at most three letters that differ.
pub fn nearest<'w>(word: &str, words: &[&'w str]) -> Option<&'w str> {
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
