//! Reads a map whose keys the format defines. A key that no reader asks for is unknown, and the error lists the known
//! keys.

use super::{
    field::{Field, nearest},
    yaml::{Key, Node},
};

/// A map that is read. Ask for every field, then call [`Object::finish`], which reports the fields that were not asked
/// for.
pub(super) struct Object<'a> {
    pub field: Field<'a>,
    entries: &'a [(Key, Node)],
    known: Vec<&'a str>,
    /// Fields that are known but not listed in errors: older names, and fields that have no effect here.
    unlisted: Vec<&'static str>,
}

impl<'a> Object<'a> {
    pub(super) fn new(field: Field<'a>, entries: &'a [(Key, Node)]) -> Self {
        Self {
            field,
            entries,
            known: Vec::new(),
            unlisted: Vec::new(),
        }
    }

    /// A field that may be left out. A field without a value is an error: an allowlist whose items are all comments
    /// must not allow every tool.
    pub(super) fn optional(&mut self, name: &'a str) -> Option<Field<'a>> {
        self.known.push(name);
        self.with_value(name)
    }

    fn with_value(&self, name: &str) -> Option<Field<'a>> {
        let field = self.entry(name).map(|entry| self.field.entry(entry))?;
        if field.is_nothing() {
            field.error("has no value", "write one, or remove the line");
            return None;
        }
        Some(field)
    }

    /// A field that published packs write under an older name. The new name counts if both are present.
    pub(super) fn optional_or(
        &mut self,
        name: &'static str,
        older: &'static str,
    ) -> Option<Field<'a>> {
        let (new, old) = (self.optional(name), self.older(older));
        if let (Some(_), Some(old)) = (&new, &old) {
            old.warn(
                format!("has no effect beside `{name}`, which means the same"),
                "remove one of the two",
            );
        }
        new.or(old)
    }

    /// A field of published packs that errors do not list, because it is not recommended.
    pub(super) fn older(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.unlisted.push(name);
        self.with_value(name)
    }

    /// Accepts fields of published packs that have no effect here. They are not read: their variables may be unset, and
    /// their literals are kept out of excerpts. One warning names those that are present, with the hint `instead`.
    pub(super) fn warn_without_effect(&mut self, names: &[&'static str], instead: &str) {
        self.unlisted.extend(names);
        let found: Vec<_> = self
            .entries
            .iter()
            .filter(|(key, _)| names.contains(&key.text.as_str()))
            .collect();
        for (_, node) in &found {
            self.field.context.mask_all(node);
        }
        let Some(first) = found.first() else { return };
        let listed: Vec<_> = found
            .iter()
            .map(|(key, _)| format!("`{}`", key.text))
            .collect();
        let have = if found.len() == 1 { "has" } else { "have" };
        self.field.entry(first).warn_of_key(
            first.0.at,
            format!("{} {have} no effect here", listed.join(", ")),
            instead,
        );
    }

    /// A field that must be present. `hint` says what to write.
    pub(super) fn required(&mut self, name: &'a str, hint: &str) -> Option<Field<'a>> {
        if self.is_absent(name) {
            self.report_missing(name, hint);
        }
        self.optional(name)
    }

    /// Whether a reader has asked for the field.
    pub(super) fn is_known(&self, name: &str) -> bool {
        self.known.contains(&name) || self.unlisted.contains(&name)
    }

    /// Whether the author left the field out.
    pub(super) fn is_absent(&self, name: &str) -> bool {
        self.entry(name).is_none()
    }

    /// Reports that a field is missing.
    pub(super) fn report_missing(&self, name: &str, hint: &str) {
        self.field
            .error_at(self.field.at, name, "missing".to_owned(), hint);
    }

    /// A field that may be left out or have no value. Both mean the same.
    pub(super) fn nullable(&mut self, name: &'a str) -> Option<Field<'a>> {
        self.known.push(name);
        self.entry(name)
            .map(|entry| self.field.entry(entry))
            .filter(|field| !field.is_nothing())
    }

    /// The fields that no reader has asked for.
    fn others(&self) -> Vec<(&'a str, Field<'a>)> {
        let unknown = self
            .entries
            .iter()
            .filter(|(key, _)| !self.known.contains(&key.text.as_str()));
        unknown
            .map(|entry| (entry.0.text.as_str(), self.field.entry(entry)))
            .collect()
    }

    /// Ends the map in a format that allows unknown fields: warns of those that no reader has asked for.
    pub(super) fn finish_with_warnings(self) {
        for (name, field) in self.others() {
            field.warn(format!("`{name}` has no effect here"), "");
        }
    }

    /// Ends the map: reports the fields that no reader has asked for.
    pub(super) fn finish(self) {
        let all: Vec<_> = self.known.iter().chain(&self.unlisted).copied().collect();
        for (key, node) in self.entries {
            if self.is_known(&key.text) {
                continue;
            }
            // The value of an unknown field may be secret.
            self.field.context.mask_all(node);
            let near = nearest(&key.text, &all);
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
