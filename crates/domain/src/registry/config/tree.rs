//! Templates in a value that is a JSON tree.

use serde_json::Value;

use super::Unresolved;
use crate::{
    secret::Secret,
    template::{Missing, OnMissing, Reference, Resolved, Source, Template},
};

pub(super) fn template(text: &str, sources: &[Source]) -> Result<Template, String> {
    Template::parse_sourced(text, sources).map_err(|error| error.to_string())
}

/// A text of a tree that was checked when it was read.
pub(super) fn tree_template(text: &str) -> Template {
    Template::parse_sourced(
        text,
        &[
            Source::Env,
            Source::Params,
            Source::Scope,
            Source::Runtime,
            Source::Runner,
        ],
    )
    .expect("checked when the value was read")
}

pub(super) fn check_tree(value: &Value, sources: &[Source]) -> Result<(), String> {
    match value {
        Value::String(text) => template(text, sources).map(|_| ()),
        Value::Array(items) => items.iter().try_for_each(|item| check_tree(item, sources)),
        Value::Object(fields) if fields.contains_key("$secret") => {
            Err("`$secret` stands for a whole value, not for a part of one".to_owned())
        }
        Value::Object(fields) => fields
            .values()
            .try_for_each(|value| check_tree(value, sources)),
        _ => Ok(()),
    }
}

pub(super) fn walk(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| walk(item, see)),
        Value::Object(fields) => fields.values().for_each(|value| walk(value, see)),
        _ => {}
    }
}

/// A tree with its texts resolved, as JSON.
pub(super) fn tree<'v>(
    written: &Value,
    on_missing: OnMissing,
    value: &impl Fn(&Reference) -> Option<&'v str>,
) -> Result<Option<Resolved>, Unresolved> {
    let mut sensitive = false;
    match filled(written, value, &mut sensitive) {
        Ok(filled) => Ok(Some(Resolved {
            text: Secret::new(filled.to_string()),
            sensitive,
        })),
        Err(_) if on_missing == OnMissing::Omit => Ok(None),
        Err(missing) => Err(first(&missing)),
    }
}

fn filled<'v>(
    written: &Value,
    value: &impl Fn(&Reference) -> Option<&'v str>,
    sensitive: &mut bool,
) -> Result<Value, Missing> {
    Ok(match written {
        Value::String(text) => {
            let template = tree_template(text);
            *sensitive |= template
                .references()
                .any(|reference| reference.source.is_sensitive());
            Value::String(template.resolve(value)?)
        }
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| filled(item, value, sensitive))
                .collect::<Result<_, _>>()?,
        ),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, field)| Ok((name.clone(), filled(field, value, sensitive)?)));
            Value::Object(fields.collect::<Result<_, Missing>>()?)
        }
        other => other.clone(),
    })
}

pub(super) fn first(missing: &Missing) -> Unresolved {
    Unresolved::Missing(missing.0.first().map(Reference::dotted).unwrap_or_default())
}
