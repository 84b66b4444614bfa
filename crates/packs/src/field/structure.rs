//! Reading the items of a list and the entries of a map.

use super::{Field, Text};
use crate::{
    object::Object,
    yaml::{Node, Value},
};

impl<'a> Field<'a> {
    pub(crate) fn list(&self) -> Option<Vec<Self>> {
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
    pub(crate) fn item(&self, at: usize, node: &'a Node) -> Self {
        Self::new(self.context, node, format!("{}[{at}]", self.path))
    }

    /// A list of texts that are not blank. A repeated text is reported and dropped.
    pub(crate) fn texts(&self) -> Vec<Text> {
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
    pub(crate) fn words(&self) -> Vec<String> {
        self.texts().into_iter().map(|text| text.value).collect()
    }

    /// The entries of a map whose keys the author chooses.
    pub(crate) fn entries(&self) -> Option<Vec<(&'a str, Self)>> {
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
    pub(crate) fn object(&self) -> Option<Object<'a>> {
        let Value::Map(entries) = &self.node.value else {
            self.wanted("a map", "write one `field: value` a line");
            return None;
        };
        Some(Object::new(self.clone(), entries))
    }
}
