//! Reads a map whose keys the format defines. A key that no reader asks for is unknown; the error lists the
//! known keys.

use super::{
    field::{Field, nearest},
    yaml::{Key, Node},
};

/// A map being read. Ask for every field, then [`Object::finish`]: what nobody asked for is unknown.
pub(super) struct Object<'a> {
    pub field: Field<'a>,
    entries: &'a [(Key, Node)],
    known: Vec<&'static str>,
}

impl<'a> Object<'a> {
    pub(super) fn new(field: Field<'a>, entries: &'a [(Key, Node)]) -> Self {
        Self {
            field,
            entries,
            known: Vec::new(),
        }
    }

    /// A field that may be left out. A field without a value is a problem: an allowlist whose items
    /// were all commented out must not open everything.
    pub(super) fn optional(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.known.push(name);
        let field = self.entry(name).map(|entry| self.field.entry(entry))?;
        if field.is_nothing() {
            field.error("has no value", "write one, or remove the line");
            return None;
        }
        Some(field)
    }

    /// A field that must be there; `hint` says what to write.
    pub(super) fn required(&mut self, name: &'static str, hint: &str) -> Option<Field<'a>> {
        if self.is_absent(name) {
            self.missing(name, hint);
        }
        self.optional(name)
    }

    /// Whether the author left the field out.
    pub(super) fn is_absent(&self, name: &str) -> bool {
        self.entry(name).is_none()
    }

    pub(super) fn missing(&self, name: &str, hint: &str) {
        self.field
            .error_at(self.field.at, name, "missing".to_owned(), hint);
    }

    /// A field that may be left out or have no value, which is the same.
    pub(super) fn nullable(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.known.push(name);
        self.entry(name)
            .map(|entry| self.field.entry(entry))
            .filter(|field| !field.is_nothing())
    }

    /// The fields that nobody asked for, in formats that pass over those.
    pub(super) fn others(&self) -> Vec<(&'a str, Field<'a>)> {
        let unknown = self
            .entries
            .iter()
            .filter(|(key, _)| !self.known.contains(&key.text.as_str()));
        unknown
            .map(|entry| (entry.0.text.as_str(), self.field.entry(entry)))
            .collect()
    }

    /// Warns of them.
    pub(super) fn pass_over(self) {
        for (name, field) in self.others() {
            field.warn(format!("`{name}` has no effect here"), "");
        }
    }

    /// Reports the fields that nobody asked for.
    pub(super) fn finish(self) {
        for (key, node) in self.entries {
            if self.known.contains(&key.text.as_str()) {
                continue;
            }
            // Nobody knows what it is.
            self.field.context.mask_all(node);
            let near = nearest(&key.text, &self.known);
            let near = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
            let hint = format!("{near}valid fields: {}", self.known.join(", "));
            let message = format!("unknown field {:?}", key.text);
            self.field.error_at(key.at, &key.text, message, &hint);
        }
    }

    fn entry(&self, name: &str) -> Option<&'a (Key, Node)> {
        self.entries.iter().find(|(key, _)| key.text == name)
    }
}
