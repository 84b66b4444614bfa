//! Writes a tree as YAML text, which parses as the same tree. `explain` writes for people and `import` writes files;
//! the two put different comments beside the values.

use super::{
    field::is_text,
    yaml::{Node, Value},
};

/// Gives the comments beside values, and other texts in place of values. `keys` is the path of a node, without list
/// items.
pub(super) trait Annotator {
    /// Whether an item of a list has no comment.
    fn is_uncommented(&self, item: &Node) -> bool;
    /// Comment lines above a node.
    fn comments_above(&self, node: &Node) -> Vec<String>;
    /// The comment on the line of a node.
    fn comment_beside(&self, node: &Node, keys: &[&str]) -> Option<String>;
    /// A text to write in place of a scalar.
    fn replacement(&self, node: &Node, keys: &[&str]) -> Option<String>;
}

/// The longest line for a list.
const WIDTH: usize = 100;

/// Writes a tree whose root is a map.
pub(super) fn write(root: &Node, annotator: &dyn Annotator) -> String {
    let mut writer = YamlWriter {
        out: String::new(),
        annotator,
    };
    writer.write_map(root, 0, &mut Vec::new());
    writer.out
}

struct YamlWriter<'a> {
    out: String,
    annotator: &'a dyn Annotator,
}

impl YamlWriter<'_> {
    fn write_line(&mut self, indent: usize, text: &str) {
        self.out.push_str(&" ".repeat(indent));
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn write_comments(&mut self, node: &Node, indent: usize) {
        for line in self.annotator.comments_above(node) {
            self.write_line(indent, format!("# {line}").trim_end());
        }
    }

    fn write_map<'n>(&mut self, node: &'n Node, indent: usize, keys: &mut Vec<&'n str>) {
        for (key, value) in node.entries() {
            keys.push(&key.text);
            self.write_comments(value, indent);
            self.write_value(value, indent, &format!("{}:", quote(&key.text)), keys);
            keys.pop();
        }
    }

    fn write_list<'n>(&mut self, node: &'n Node, indent: usize, keys: &mut Vec<&'n str>) {
        for item in node.items() {
            self.write_comments(item, indent);
            if item.entries().is_empty() {
                self.write_value(item, indent, "-", keys);
                continue;
            }
            let start = self.out.len();
            self.write_map(item, indent + 2, keys);
            // Move the comments above the first field to above the dash.
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

    /// Writes a value after its key or dash, which is `head`.
    fn write_value<'n>(
        &mut self,
        node: &'n Node,
        indent: usize,
        head: &str,
        keys: &mut Vec<&'n str>,
    ) {
        let beside = self
            .annotator
            .comment_beside(node, keys)
            .map(|text| format!(" # {text}"))
            .unwrap_or_default();
        let short = match &node.value {
            Value::Map(entries) if entries.is_empty() => Some("{}".to_owned()),
            Value::List(items) => self
                .format_flow(items, keys)
                .filter(|text| head.len() + text.len() < WIDTH - indent),
            Value::Map(_) => None,
            Value::Scalar { text, plain } => {
                let other = self.annotator.replacement(node, keys);
                let text = match (other, plain) {
                    (Some(other), _) => quote(&other),
                    (None, true) if text.is_empty() => "null".to_owned(),
                    (None, true) => text.clone(),
                    (None, false) if text.contains('\n') && is_block(text) => {
                        return self.write_block(text, indent, head, &beside);
                    }
                    (None, false) => quote(text),
                };
                Some(text)
            }
        };
        if let Some(text) = short {
            return self.write_line(indent, &format!("{head} {text}{beside}"));
        }
        self.write_line(indent, &format!("{head}{beside}"));
        if node.entries().is_empty() {
            self.write_list(node, indent + 2, keys);
        } else {
            self.write_map(node, indent + 2, keys);
        }
    }

    /// A list on one line. `None` if an item has a comment or is no scalar.
    fn format_flow(&self, items: &[Node], keys: &[&str]) -> Option<String> {
        let mut texts = Vec::new();
        for item in items {
            let Value::Scalar { text, plain } = &item.value else {
                return None;
            };
            if text.contains('\n') || !self.annotator.is_uncommented(item) {
                return None;
            }
            texts.push(match self.annotator.replacement(item, keys) {
                Some(other) => quote(&other),
                None if *plain => text.clone(),
                None => quote(text),
            });
        }
        Some(format!("[{}]", texts.join(", ")))
    }

    fn write_block(&mut self, text: &str, indent: usize, head: &str, beside: &str) {
        let mark = if text.ends_with('\n') { "|" } else { "|-" };
        self.write_line(indent, &format!("{head} {mark}{beside}"));
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            self.write_line(if line.is_empty() { 0 } else { indent + 2 }, line);
        }
    }
}

/// Whether a text, written as a block of lines, parses as the same text.
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

/// Writes a text, without quotes if no parser can take it for another value, also between brackets.
fn quote(text: &str) -> String {
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
