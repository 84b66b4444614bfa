//! Builds a tree in the native format from a document in another format.
//!
//! Every node remembers the place that it was made of, so that problems, `explain` and comments find the
//! author's own line.

use super::{
    field::Field,
    report::Position,
    yaml::{Key, Node, Origin, Value},
};

/// Text as native packs write it, with `${NAME}` for variables.
pub(super) fn text(of: &Field, text: impl Into<String>) -> Node {
    of_field(
        of,
        Value::Scalar {
            text: text.into(),
            plain: false,
        },
    )
}

/// Literal text, without references.
pub(super) fn literal(of: &Field, text: &str) -> Node {
    self::text(of, escaped(text))
}

/// Escapes text in which nothing is a reference.
pub(super) fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// A number, or true or false.
pub(super) fn plain(of: &Field, text: &str) -> Node {
    of_field(
        of,
        Value::Scalar {
            text: text.to_owned(),
            plain: true,
        },
    )
}

pub(super) fn list(of: &Field, items: Vec<Node>) -> Node {
    of_field(of, Value::List(items))
}

fn of_field(of: &Field, value: Value) -> Node {
    Node {
        at: of.at,
        origin: Origin::Translated(of.path.clone()),
        note: None,
        value,
        ..of.node().clone()
    }
}

/// A generated node; `why` says where its value comes from.
pub(super) fn generated(why: &'static str, value: Value) -> Node {
    let at = Position { line: 1, column: 1 };
    Node {
        at,
        span: 0..0,
        source: 0,
        origin: Origin::Generated(why),
        note: None,
        value,
    }
}

pub(super) fn generated_text(why: &'static str, text: impl Into<String>) -> Node {
    generated(
        why,
        Value::Scalar {
            text: text.into(),
            plain: false,
        },
    )
}

pub(super) fn generated_plain(why: &'static str, text: &str) -> Node {
    generated(
        why,
        Value::Scalar {
            text: text.to_owned(),
            plain: true,
        },
    )
}

/// The field with all that is below it, to stand in another place of the tree.
pub(super) fn copy(field: &Field) -> Node {
    copy_with(field, &|_, text| Some(text.to_owned())).unwrap_or_else(|| field.node().clone())
}

/// Copies a field and replaces each text by the result of `say`; `None` when `say` refuses a text.
pub(super) fn copy_with(
    field: &Field,
    say: &dyn Fn(&Field, &str) -> Option<String>,
) -> Option<Node> {
    let value = match &field.node().value {
        Value::List(items) => {
            let fields = items
                .iter()
                .enumerate()
                .map(|(at, item)| field.item(at, item));
            Value::List(
                fields
                    .map(|field| copy_with(&field, say))
                    .collect::<Option<_>>()?,
            )
        }
        Value::Map(entries) => {
            let copy =
                |entry: &(Key, Node)| Some((entry.0.clone(), copy_with(&field.entry(entry), say)?));
            Value::Map(entries.iter().map(copy).collect::<Option<_>>()?)
        }
        Value::Scalar { .. } if field.raw().is_some() => Value::Scalar {
            text: say(field, field.raw().unwrap_or_default())?,
            plain: false,
        },
        Value::Scalar { text, plain } => Value::Scalar {
            text: text.clone(),
            plain: *plain,
        },
    };
    Some(of_field(field, value))
}

/// A map being made.
#[derive(Default)]
pub(super) struct NodeBuilder(Vec<(Key, Node)>);

impl NodeBuilder {
    pub(super) fn put(&mut self, key: impl Into<String>, node: Node) {
        self.0.push((
            Key {
                text: key.into(),
                at: node.at,
            },
            node,
        ));
    }

    pub(super) fn put_some(&mut self, key: &str, node: Option<Node>) {
        if let Some(node) = node {
            self.put(key, node);
        }
    }

    pub(super) fn into_node(self, of: &Field) -> Node {
        of_field(of, Value::Map(self.0))
    }

    pub(super) fn generated(self, why: &'static str) -> Node {
        generated(why, Value::Map(self.0))
    }
}

impl Node {
    #[must_use]
    pub(super) fn with_note(mut self, note: Option<String>) -> Self {
        self.note = note;
        self
    }

    /// The same, as if it stood in another text.
    #[must_use]
    pub(super) fn in_source(mut self, source: usize) -> Self {
        self.source = source;
        self.value = match self.value {
            Value::List(items) => Value::List(
                items
                    .into_iter()
                    .map(|item| item.in_source(source))
                    .collect(),
            ),
            Value::Map(entries) => Value::Map(
                entries
                    .into_iter()
                    .map(|(key, node)| (key, node.in_source(source)))
                    .collect(),
            ),
            scalar @ Value::Scalar { .. } => scalar,
        };
        self
    }

    /// The value of a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let Value::Map(entries) = &self.value else {
            return None;
        };
        entries
            .iter()
            .find(|(name, _)| name.text == key)
            .map(|(_, node)| node)
    }

    /// The value below some keys.
    pub(super) fn get_path(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter().try_fold(self, |node, key| node.get(key))
    }

    /// Takes a value below some keys out, if it is there.
    pub(super) fn remove(&mut self, keys: &[&str]) {
        let (Some((first, rest)), Value::Map(entries)) = (keys.split_first(), &mut self.value)
        else {
            return;
        };
        if rest.is_empty() {
            entries.retain(|(name, _)| name.text != *first);
        } else if let Some((_, node)) = entries.iter_mut().find(|(name, _)| name.text == *first) {
            node.remove(rest);
        }
    }

    /// Sets the value of a key of a map.
    pub(super) fn set(&mut self, key: &str, node: Node) {
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        match entries.iter_mut().find(|(name, _)| name.text == key) {
            Some((_, old)) => *old = node,
            None => entries.push((
                Key {
                    text: key.to_owned(),
                    at: node.at,
                },
                node,
            )),
        }
    }

    pub(super) fn items(&self) -> &[Node] {
        if let Value::List(items) = &self.value {
            items
        } else {
            &[]
        }
    }

    pub(super) fn entries(&self) -> &[(Key, Node)] {
        if let Value::Map(entries) = &self.value {
            entries
        } else {
            &[]
        }
    }

    /// The text of a scalar, as it stands there.
    pub(super) fn scalar_text(&self) -> Option<&str> {
        if let Value::Scalar { text, .. } = &self.value {
            Some(text)
        } else {
            None
        }
    }
}
