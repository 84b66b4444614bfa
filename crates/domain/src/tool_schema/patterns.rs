//! Patterns that the engine here cannot run. JSON Schema's are those of ECMA-262, with look-around and back-references,
//! which take more than linear time. Such a pattern is left to the server; so is what would refuse arguments without it.

use serde_json::{Map, Value};

use super::{graph::parts_of, shorten};

/// Keywords that refuse what their schemas accept: without a pattern in them, they would refuse more than the server does.
const NEGATIVE: [&str; 7] = [
    "not",
    "if",
    "then",
    "else",
    "maxContains",
    "unevaluatedProperties",
    "unevaluatedItems",
];

/// Leaves out the patterns that do not run, and says which.
pub(super) fn leave_out(schema: &mut Value, runs: &impl Fn(&str) -> bool) -> Vec<String> {
    let mut unchecked = Vec::new();
    remove(schema, runs, &mut unchecked);
    if !unchecked.is_empty() {
        loosen(schema, &mut unchecked);
    }
    unchecked
}

fn note(unchecked: &mut Vec<String>, what: String) {
    if !unchecked.contains(&what) {
        unchecked.push(what);
    }
}

fn remove(value: &mut Value, runs: &impl Fn(&str) -> bool, unchecked: &mut Vec<String>) {
    let Value::Object(schema) = value else { return };
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && !runs(pattern)
    {
        note(unchecked, format!("the pattern {}", shorten(&pattern)));
        schema.remove("pattern");
    }
    remove_names(schema, runs, unchecked);
    for (keyword, value) in schema.iter_mut() {
        for part in parts_of(keyword, value) {
            remove(part, runs, unchecked);
        }
    }
}

/// The same for names of properties: without a pattern, what it names must not count as additional.
fn remove_names(
    schema: &mut Map<String, Value>,
    runs: &impl Fn(&str) -> bool,
    unchecked: &mut Vec<String>,
) {
    let Some(Value::Object(names)) = schema.get_mut("patternProperties") else {
        return;
    };
    let before = names.len();
    names.retain(|pattern, _| {
        let is_kept = runs(pattern);
        if !is_kept {
            note(
                unchecked,
                format!("properties named like {}", shorten(pattern)),
            );
        }
        is_kept
    });
    if names.len() < before {
        schema.remove("additionalProperties");
    }
}

fn loosen(value: &mut Value, unchecked: &mut Vec<String>) {
    let Value::Object(schema) = value else { return };
    for keyword in NEGATIVE {
        if schema.remove(keyword).is_some() {
            note(unchecked, format!("`{keyword}`"));
        }
    }
    // Two branches may fit when a pattern no longer tells them apart.
    if let Some(branches) = schema.remove("oneOf") {
        schema.entry("anyOf").or_insert(branches);
    }
    for (keyword, value) in schema.iter_mut() {
        for part in parts_of(keyword, value) {
            loosen(part, unchecked);
        }
    }
}
