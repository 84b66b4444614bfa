//! A tree → YAML text that reads as the same tree. Used for people (`explain`) and for files (`import`), which
//! differ in what is said beside the values.

use super::{
    field::is_text,
    yaml::{Node, Value},
};

/// What stands beside values and in place of them. `keys` is the path of a node, without list items.
pub(super) trait Annotator {
    /// Whether an item of a list has no comment.
    fn is_uncommented(&self, item: &Node) -> bool;
    /// Comment lines above a node.
    fn comments_above(&self, node: &Node) -> Vec<String>;
    /// The comment on the line of a node.
    fn comment_beside(&self, node: &Node, keys: &[&str]) -> Option<String>;
    /// Another text for a scalar.
    fn replacement(&self, node: &Node, keys: &[&str]) -> Option<String>;
}

const WIDTH: usize = 100;

pub(super) fn write(root: &Node, annotator: &dyn Annotator) -> String {
    let mut writer = YamlWriter {
        out: String::new(),
        annotator,
    };
    writer.map(root, 0, &mut Vec::new());
    writer.out
}

struct YamlWriter<'a> {
    out: String,
    annotator: &'a dyn Annotator,
}

impl YamlWriter<'_> {
    fn line(&mut self, indent: usize, text: &str) {
        self.out.push_str(&" ".repeat(indent));
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn above(&mut self, node: &Node, indent: usize) {
        for line in self.annotator.comments_above(node) {
            self.line(indent, format!("# {line}").trim_end());
        }
    }

    fn map<'n>(&mut self, node: &'n Node, indent: usize, keys: &mut Vec<&'n str>) {
        for (key, value) in node.entries() {
            keys.push(&key.text);
            self.above(value, indent);
            self.value(value, indent, &format!("{}:", quoted(&key.text)), keys);
            keys.pop();
        }
    }

    fn list<'n>(&mut self, node: &'n Node, indent: usize, keys: &mut Vec<&'n str>) {
        for item in node.items() {
            self.above(item, indent);
            if item.entries().is_empty() {
                self.value(item, indent, "-", keys);
                continue;
            }
            let start = self.out.len();
            self.map(item, indent + 2, keys);
            // Comments above the first field stand above the dash.
            let lines = self.out.split_off(start);
            let first = lines
                .split_inclusive('\n')
                .take_while(|line| line.trim_start().starts_with('#'));
            let length: usize = first.map(str::len).sum();
            self.out.push_str(&lines[..length]);
            self.out.push_str(&" ".repeat(indent));
            self.out.push_str("- ");
            self.out.push_str(&lines[length + indent + 2..]);
        }
    }

    /// A value behind its key or dash.
    fn value<'n>(&mut self, node: &'n Node, indent: usize, head: &str, keys: &mut Vec<&'n str>) {
        let beside = self
            .annotator
            .comment_beside(node, keys)
            .map(|text| format!(" # {text}"))
            .unwrap_or_default();
        let short = match &node.value {
            Value::Map(entries) if entries.is_empty() => Some("{}".to_owned()),
            Value::List(items) => self
                .flow(items, keys)
                .filter(|text| head.len() + text.len() < WIDTH - indent),
            Value::Map(_) => None,
            Value::Scalar { text, plain } => {
                let other = self.annotator.replacement(node, keys);
                let text = match (other, plain) {
                    (Some(other), _) => quoted(&other),
                    (None, true) if text.is_empty() => "null".to_owned(),
                    (None, true) => text.clone(),
                    (None, false) if text.contains('\n') && is_block(text) => {
                        return self.block(text, indent, head, &beside);
                    }
                    (None, false) => quoted(text),
                };
                Some(text)
            }
        };
        if let Some(text) = short {
            return self.line(indent, &format!("{head} {text}{beside}"));
        }
        self.line(indent, &format!("{head}{beside}"));
        if node.entries().is_empty() {
            self.list(node, indent + 2, keys);
        } else {
            self.map(node, indent + 2, keys);
        }
    }

    /// A list on one line, when nothing is to be said about an item.
    fn flow(&self, items: &[Node], keys: &[&str]) -> Option<String> {
        let mut texts = Vec::new();
        for item in items {
            let Value::Scalar { text, plain } = &item.value else {
                return None;
            };
            if text.contains('\n') || !self.annotator.is_uncommented(item) {
                return None;
            }
            texts.push(match self.annotator.replacement(item, keys) {
                Some(other) => quoted(&other),
                None if *plain => text.clone(),
                None => quoted(text),
            });
        }
        Some(format!("[{}]", texts.join(", ")))
    }

    fn block(&mut self, text: &str, indent: usize, head: &str, beside: &str) {
        let mark = if text.ends_with('\n') { "|" } else { "|-" };
        self.line(indent, &format!("{head} {mark}{beside}"));
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            self.line(if line.is_empty() { 0 } else { indent + 2 }, line);
        }
    }
}

/// Whether text reads the same as a block of lines.
fn is_block(text: &str) -> bool {
    let body = text.strip_suffix('\n').unwrap_or(text);
    !body.ends_with('\n')
        && !body.starts_with([' ', '\n', '\t'])
        && body
            .chars()
            .all(|c| c == '\n' || (!c.is_control() && !is_break(c)))
}

fn is_break(c: char) -> bool {
    matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Writes a text: without quotes where it cannot be read as another value, also between brackets.
fn quoted(text: &str) -> String {
    let harmless = |c: char| {
        c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ' ' | '@' | '+' | '(' | ')')
    };
    let first = |c: char| c.is_alphanumeric() || matches!(c, '_' | '/' | '•');
    let plain = text.starts_with(first)
        && !text.ends_with(' ')
        && text.chars().all(|c| harmless(c) || c == '•')
        && is_text(text);
    let address = || {
        let rest = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"));
        rest.is_some_and(|rest| {
            !rest.is_empty()
                && rest
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        })
    };
    if plain || address() {
        return text.to_owned();
    }
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || is_break(c) => out.extend([format!("\\u{:04x}", u32::from(c))]),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
