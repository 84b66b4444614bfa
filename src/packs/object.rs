//! Reading a map whose keys the format chooses. What nobody asks for is unknown, and refused with the
//! fields that would be right.

use super::{
    field::{Field, nearest},
    report::Severity,
    yaml::{Key, Node, join},
};

/// A map being read. Ask for every field, then [`Object::finish`]: what nobody asked for is unknown.
pub(super) struct Object<'a> {
    pub field: Field<'a>,
    entries: &'a [(Key, Node)],
    known: Vec<&'static str>,
}

impl<'a> Object<'a> {
    pub(super) fn new(field: Field<'a>, entries: &'a [(Key, Node)]) -> Self {
        Self { field, entries, known: Vec::new() }
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
        if self.lacks(name) {
            self.missing(name, hint);
        }
        self.optional(name)
    }

    /// Whether the author left the field out.
    pub(super) fn lacks(&self, name: &str) -> bool {
        self.entry(name).is_none()
    }

    pub(super) fn missing(&self, name: &str, hint: &str) {
        let path = join(&self.field.path, name);
        self.field.sheet.report(Severity::Error, self.field.at, &path, "missing".to_owned(), hint);
    }

    /// Reports the fields that nobody asked for.
    pub(super) fn finish(self) {
        for (key, _) in self.entries {
            if self.known.contains(&key.text.as_str()) {
                continue;
            }
            let near = nearest(&key.text, &self.known);
            let near = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
            let hint = format!("{near}valid fields: {}", self.known.join(", "));
            let path = join(&self.field.path, &key.text);
            let message = format!("unknown field {:?}", key.text);
            self.field.sheet.report(Severity::Error, key.at, &path, message, &hint);
        }
    }

    fn entry(&self, name: &str) -> Option<&'a (Key, Node)> {
        self.entries.iter().find(|(key, _)| key.text == name)
    }
}
