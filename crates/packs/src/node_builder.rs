//! Builds a tree in the native format from a document in another format.
//!
//! Every node remembers the place that it was made from, so that problems, `explain` and comments name the author's own
//! line. In these functions `of` is that place.

use super::{
    field::Field,
    report::Position,
    yaml::{Key, Node, Origin, Value},
};

/// A text as native packs write it, with `${NAME}` for variables.
pub(super) fn text(of: &Field, text: impl Into<String>) -> Node {
    node_at(
        of,
        Value::Scalar {
            text: text.into(),
            plain: false,
        },
    )
}

/// A text that refers to no variable.
pub(super) fn literal(of: &Field, text: &str) -> Node {
    self::text(of, escape(text))
}

/// Escapes `${` in a text that refers to no variable.
pub(super) fn escape(text: &str) -> String {
    text.replace("${", "$${")
}

/// A value without quotes: a number, or true or false.
pub(super) fn plain(of: &Field, text: &str) -> Node {
    node_at(
        of,
        Value::Scalar {
            text: text.to_owned(),
            plain: true,
        },
    )
}

pub(super) fn list(of: &Field, items: Vec<Node>) -> Node {
    node_at(of, Value::List(items))
}

fn node_at(of: &Field, value: Value) -> Node {
    Node {
        at: of.at,
        origin: Origin::Translated(of.path.clone()),
        note: None,
        value,
        ..of.node().clone()
    }
}

/// A node that stands in no file. `why` says where its value comes from.
pub(super) fn generate(why: &'static str, value: Value) -> Node {
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

pub(super) fn generate_text(why: &'static str, text: impl Into<String>) -> Node {
    generate(
        why,
        Value::Scalar {
            text: text.into(),
            plain: false,
        },
    )
}

pub(super) fn generate_plain(why: &'static str, text: &str) -> Node {
    generate(
        why,
        Value::Scalar {
            text: text.to_owned(),
            plain: true,
        },
    )
}

/// Copies a field with everything below it, to put it into another place of the tree.
pub(super) fn copy(field: &Field) -> Node {
    copy_with(field, &|_, text| Some(text.to_owned())).unwrap_or_else(|| field.node().clone())
}

/// Copies a field and replaces each text by the result of `replace`. `None` if `replace` refuses a text.
pub(super) fn copy_with(
    field: &Field,
    replace: &dyn Fn(&Field, &str) -> Option<String>,
) -> Option<Node> {
    let value = match &field.node().value {
        Value::List(items) => {
            let fields = items
                .iter()
                .enumerate()
                .map(|(at, item)| field.item(at, item));
            Value::List(
                fields
                    .map(|field| copy_with(&field, replace))
                    .collect::<Option<_>>()?,
            )
        }
        Value::Map(entries) => {
            let copy = |entry: &(Key, Node)| {
                Some((entry.0.clone(), copy_with(&field.entry(entry), replace)?))
            };
            Value::Map(entries.iter().map(copy).collect::<Option<_>>()?)
        }
        Value::Scalar { .. } if field.raw().is_some() => Value::Scalar {
            text: replace(field, field.raw().unwrap_or_default())?,
            plain: false,
        },
        Value::Scalar { text, plain } => Value::Scalar {
            text: text.clone(),
            plain: *plain,
        },
    };
    Some(node_at(field, value))
}

/// Collects the entries of a map.
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
        node_at(of, Value::Map(self.0))
    }

    pub(super) fn build_generated(self, why: &'static str) -> Node {
        generate(why, Value::Map(self.0))
    }
}

impl Node {
    #[must_use]
    pub(super) fn with_note(mut self, note: Option<String>) -> Self {
        self.note = note;
        self
    }

    /// The node with another number of its file, also in everything below it.
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

    /// The value below these keys.
    pub(super) fn get_path(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter().try_fold(self, |node, key| node.get(key))
    }

    /// Removes the value below these keys, if there is one.
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

    /// The text of a scalar, without its variables filled in.
    pub(super) fn scalar_text(&self) -> Option<&str> {
        if let Value::Scalar { text, .. } = &self.value {
            Some(text)
        } else {
            None
        }
    }
}
