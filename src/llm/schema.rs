//! The schema of a tool's arguments as a provider takes it. Servers write any JSON Schema; a provider that refuses one
//! detail refuses the whole request, with all other tools. The server still checks what was taken out here.
//!
//! | What is repaired | Who refuses it |
//! |---|---|
//! | `allOf`, `anyOf`, `oneOf` at the top; a top that is no object | OpenAI ("schema must have type 'object' and not have 'oneOf'/… at the top level"), Anthropic ("input_schema does not support oneOf, allOf, or anyOf at the top level") |
//! | an array without `items` | OpenAI ("array schema missing items"), Gemini |
//! | property names outside `[a-zA-Z0-9_.-]{1,64}` | Anthropic ("Property keys should match pattern"), Gemini |
//! | `$ref` beside other keywords | Gemini |
//! | `exclusiveMinimum: true` of draft 4 | Anthropic, Gemini (they read draft 2020-12) |
//! | formats other than `date-time` and `enum` | Gemini ("only 'enum' and 'date-time' are supported for STRING type") |
//! | patterns that look ahead or behind | OpenAI, llama.cpp's grammars |

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json, value::RawValue};

use crate::domain::{
    json::{self, Json},
    pack::Provider,
};

/// Keywords that say nothing to a model at the top level, or that providers refuse there.
const NOT_AT_TOP: [&str; 7] = ["$schema", "$id", "oneOf", "anyOf", "allOf", "enum", "not"];
/// Keywords whose value is one schema.
const ONE: [&str; 9] = [
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedProperties",
];
/// Keywords whose value is a list of schemas.
const LIST: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const NAMED: [&str; 5] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
];
/// The longest name of a property.
const MAX_NAME: usize = 64;
/// Levels of schemas that are looked at; what is deeper stays as it is.
const MAX_DEPTH: usize = 64;

/// A schema that its provider takes.
#[derive(Debug, Default)]
pub(super) struct Repaired {
    pub(super) schema: Value,
    /// New names of properties, with the names that their server knows.
    pub(super) renamed: BTreeMap<String, String>,
}

/// The schema for a provider.
pub(super) fn for_provider(raw: &RawValue, provider: Provider) -> Repaired {
    // Limits and values to choose from keep their digits.
    let mut schema = match json::read_value(raw.get()) {
        Ok(Value::Object(schema)) => schema,
        _ => Map::new(),
    };
    flatten(&mut schema);
    schema.retain(|key, _| !NOT_AT_TOP.contains(&key.as_str()));
    schema.insert("type".to_owned(), json!("object"));
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".to_owned(), json!({}));
    }
    let mut schema = Value::Object(schema);
    let mut renamed = BTreeMap::new();
    if matches!(provider, Provider::Anthropic | Provider::Gemini) {
        let mut names = HashSet::new();
        collect_names(&schema, &mut names, 0);
        renamed = new_names(&names);
    }
    let by_old: BTreeMap<&str, &str> = renamed
        .iter()
        .map(|(new, old)| (old.as_str(), new.as_str()))
        .collect();
    repair(&mut schema, provider, &by_old, 0);
    Repaired { schema, renamed }
}

/// Arguments with the names that the server knows.
pub(super) fn rename_back(arguments: &str, renamed: &BTreeMap<String, String>) -> String {
    // Whoever checks them must still see that a name appears twice.
    if Json::repeated_name(arguments).is_some() {
        return arguments.to_owned();
    }
    let Ok(mut json) = Json::parse(arguments) else {
        return arguments.to_owned();
    };
    json.rename_members(renamed);
    json.to_string()
}

/// Arguments that stand below an `allOf`, `anyOf` or `oneOf` at the top become arguments of the top: all of them, with
/// what all branches of an alternative require.
fn flatten(schema: &mut Map<String, Value>) {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let Some(Value::Array(branches)) = schema.get(keyword).cloned() else {
            continue;
        };
        let branches: Vec<Map<String, Value>> = branches
            .iter()
            .filter_map(|branch| resolve(branch, schema))
            .map(|mut branch| {
                flatten(&mut branch);
                branch
            })
            .collect();
        let required_of = |branch: &Map<String, Value>| -> Vec<Value> {
            branch
                .get("required")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let mut required: Vec<Value> = Vec::new();
        for name in branches.iter().flat_map(required_of) {
            let by_all = keyword == "allOf"
                || branches
                    .iter()
                    .all(|branch| required_of(branch).contains(&name));
            if by_all && !required.contains(&name) {
                required.push(name);
            }
        }
        let mut properties = match schema.remove("properties") {
            Some(Value::Object(properties)) => properties,
            _ => Map::new(),
        };
        for branch in &branches {
            for (name, property) in branch
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                merge(&mut properties, name, property, keyword);
            }
        }
        schema.insert("properties".to_owned(), properties.into());
        let mut all = required_of(schema);
        all.extend(
            required
                .into_iter()
                .filter(|name| !all.contains(name))
                .collect::<Vec<_>>(),
        );
        if !all.is_empty() {
            schema.insert("required".to_owned(), all.into());
        }
        schema.remove(keyword);
    }
}

/// A property that several branches describe differently may be any of these.
fn merge(properties: &mut Map<String, Value>, name: &str, property: &Value, keyword: &str) {
    let Some(known) = properties.get_mut(name) else {
        properties.insert(name.to_owned(), property.clone());
        return;
    };
    if known == property || keyword == "allOf" {
        return;
    }
    match known.get_mut("anyOf").and_then(Value::as_array_mut) {
        Some(branches) if !branches.contains(property) => branches.push(property.clone()),
        Some(_) => {}
        None => *known = json!({ "anyOf": [known.clone(), property] }),
    }
}

/// A branch, or what it refers to in the same schema.
fn resolve(branch: &Value, root: &Map<String, Value>) -> Option<Map<String, Value>> {
    let branch = branch.as_object()?;
    let Some(reference) = branch.get("$ref").and_then(Value::as_str) else {
        return Some(branch.clone());
    };
    let mut steps = reference.strip_prefix("#/")?.split('/');
    let first = root.get(steps.next()?)?;
    let found = steps.try_fold(first, |at, step| at.get(step))?;
    let mut found = found.as_object()?.clone();
    // One level: what refers on is left to the provider.
    found.remove("$ref");
    Some(found)
}

fn children<'a>(schema: &'a mut Map<String, Value>) -> impl Iterator<Item = &'a mut Value> {
    schema.iter_mut().flat_map(|(key, value)| {
        let key = key.as_str();
        let found: Vec<&'a mut Value> = if ONE.contains(&key) && value.is_object() {
            vec![value]
        } else {
            match value {
                Value::Object(named) if NAMED.contains(&key) => named.values_mut().collect(),
                Value::Array(list) if LIST.contains(&key) || key == "items" => {
                    list.iter_mut().collect()
                }
                _ => Vec::new(),
            }
        };
        found
    })
}

fn repair(value: &mut Value, provider: Provider, new: &BTreeMap<&str, &str>, depth: usize) {
    let Value::Object(schema) = value else { return };
    if depth > MAX_DEPTH {
        return;
    }
    let is = |schema: &Map<String, Value>, name: &str| match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(many)) => many.iter().any(|one| one == name),
        _ => false,
    };
    if is(schema, "array") && !schema.contains_key("items") && !schema.contains_key("prefixItems") {
        schema.insert("items".to_owned(), json!({}));
    }
    for (exclusive, bound) in [
        ("exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "maximum"),
    ] {
        match schema.get(exclusive) {
            Some(Value::Bool(true)) => match schema.remove(bound) {
                Some(limit) => drop(schema.insert(exclusive.to_owned(), limit)),
                None => drop(schema.remove(exclusive)),
            },
            Some(Value::Bool(false)) => drop(schema.remove(exclusive)),
            _ => {}
        }
    }
    let looks_around = |pattern: &str| {
        ["(?=", "(?!", "(?<"]
            .iter()
            .any(|part| pattern.contains(part))
    };
    if schema
        .get("pattern")
        .and_then(Value::as_str)
        .is_some_and(looks_around)
    {
        schema.remove("pattern");
    }
    if provider == Provider::Gemini {
        if schema.contains_key("$ref") {
            schema.retain(|key, _| key.starts_with('$'));
        }
        let format = schema.get("format").and_then(Value::as_str);
        if format.is_some_and(|format| !["date-time", "enum"].contains(&format))
            && is(schema, "string")
        {
            schema.remove("format");
        }
    }
    if !new.is_empty() {
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            let old = std::mem::take(properties);
            for (name, property) in old {
                let name = new
                    .get(name.as_str())
                    .map_or(name.clone(), |new| (*new).to_owned());
                properties.insert(name, property);
            }
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            for name in required {
                if let Some(new) = name.as_str().and_then(|name| new.get(name)) {
                    *name = json!(new);
                }
            }
        }
    }
    children(schema).for_each(|child| repair(child, provider, new, depth + 1));
}

fn collect_names(value: &Value, names: &mut HashSet<String>, depth: usize) {
    let Value::Object(schema) = value else { return };
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(Value::Object(properties)) = schema.get("properties") {
        names.extend(properties.keys().cloned());
    }
    children(&mut schema.clone()).for_each(|child| collect_names(child, names, depth + 1));
}

/// New names for those that are not legal, each unlike all others.
fn new_names(names: &HashSet<String>) -> BTreeMap<String, String> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let mut illegal: Vec<&String> = names
        .iter()
        .filter(|name| name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_legal))
        .collect();
    illegal.sort();
    let mut renamed = BTreeMap::new();
    for name in illegal {
        let folded: String = name
            .chars()
            .map(|c| if is_legal(c) { c } else { '_' })
            .take(MAX_NAME - 4)
            .collect();
        let base = if folded.is_empty() {
            "_".to_owned()
        } else {
            folded
        };
        let is_free = |new: &String| !names.contains(new) && !renamed.contains_key(new);
        let numbered = (2..1000).map(|number| format!("{base}_{number}"));
        let new = std::iter::once(base.clone()).chain(numbered).find(is_free);
        if let Some(new) = new {
            renamed.insert(new, name.clone());
        }
    }
    renamed
}
