//! Keywords of older drafts, and what libraries write in place of nothing, as JSON Schema 2020-12 has them.

use serde_json::{Map, Value};

use super::graph::parts_of;

/// Levels of schemas that are looked at. A document that is deeper is not read at all.
const MAX_DEPTH: usize = 128;
/// Keywords that a library of Go writes as `null` when there is nothing to say.
const NEVER_NULL: [&str; 20] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "definitions",
    "description",
    "$defs",
    "enum",
    "format",
    "items",
    "maximum",
    "minimum",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "title",
    "type",
    "uniqueItems",
];

/// Rewrites a schema in place. What is neither of an older draft nor empty stays as it is.
pub fn modernize(schema: &mut Value) {
    walk(schema, 0);
}

fn walk(value: &mut Value, depth: usize) {
    let Value::Object(schema) = value else { return };
    if depth > MAX_DEPTH {
        return;
    }
    schema.retain(|keyword, value| !(value.is_null() && NEVER_NULL.contains(&keyword.as_str())));
    // Draft 3: whether this property is required.
    if schema.get("required").is_some_and(Value::is_boolean) {
        schema.remove("required");
    }
    exclusive(schema, "exclusiveMinimum", "minimum");
    exclusive(schema, "exclusiveMaximum", "maximum");
    tuple(schema);
    for (keyword, value) in schema.iter_mut() {
        for part in parts_of(keyword, value) {
            walk(part, depth + 1);
        }
    }
}

/// Draft 4: whether the limit itself is excluded.
fn exclusive(schema: &mut Map<String, Value>, exclusive: &str, limit: &str) {
    match schema.get(exclusive) {
        Some(Value::Bool(true)) => {
            schema.remove(exclusive);
            if let Some(limit) = schema.remove(limit) {
                schema.insert(exclusive.to_owned(), limit);
            }
        }
        Some(Value::Bool(false)) => drop(schema.remove(exclusive)),
        _ => {}
    }
}

/// Up to draft 2019-09: a schema for each item, and one for the rest.
fn tuple(schema: &mut Map<String, Value>) {
    if schema.contains_key("prefixItems") {
        return;
    }
    let Some(Value::Array(items)) = schema.get("items").cloned() else {
        return;
    };
    schema.remove("items");
    if !items.is_empty() {
        schema.insert("prefixItems".to_owned(), items.into());
    }
    if let Some(rest) = schema.remove("additionalItems") {
        schema.insert("items".to_owned(), rest);
    }
}
