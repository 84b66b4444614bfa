//! Unions of the OpenAPI document as generators of clients need them: each variant is a schema with a name, and the
//! union names the member that tells the variants apart (its discriminator). The schemas of handlers have variants
//! without names, and objects composed of others (`allOf`); both are written out here.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

type Schemas = Map<String, Value>;

/// Writes out every schema that is a union of objects or composed of others.
pub(super) fn write_out(schemas: &mut Schemas) {
    name_items(schemas);
    let declared = schemas.clone();
    for (name, schema) in &declared {
        if schema.get("oneOf").is_none() && schema.get("allOf").is_none() {
            continue;
        }
        // No member tells other variants apart, such as a number and the word `unlimited`.
        let Some(variants) = variants(schema, &declared) else {
            continue;
        };
        match <[Value; 1]>::try_from(variants) {
            Ok([whole]) => drop(schemas.insert(name.clone(), whole)),
            Err(variants) => write_union(name, schema, variants, schemas),
        }
    }
}

/// Refers from a list to the schema of its items, where the derive has repeated it.
fn name_items(schemas: &mut Schemas) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let Some(item) = name.strip_prefix("List_") else {
            continue;
        };
        if schemas.contains_key(item) {
            schemas[&name]["properties"]["items"]["items"] = reference(item);
        }
    }
}

fn write_union(name: &str, declared: &Value, variants: Vec<Value>, schemas: &mut Schemas) {
    let Some(member) = discriminator(&variants) else {
        return;
    };
    let branches = declared["oneOf"].as_array();
    let branches = branches.filter(|branches| branches.len() == variants.len());
    let (mut one_of, mut mapping) = (Vec::new(), BTreeMap::new());
    for (at, variant) in variants.into_iter().enumerate() {
        let value = constant(&variant["properties"][&member])
            .unwrap_or_default()
            .to_owned();
        let named = branches.and_then(|branches| branches.get(at)?["$ref"].as_str());
        let reference_path = named.map_or_else(
            || {
                let variant_name = format!("{name}{}", camel(&value));
                let reference_path = format!("#/components/schemas/{variant_name}");
                schemas.insert(variant_name, variant);
                reference_path
            },
            str::to_owned,
        );
        one_of.push(json!({ "$ref": reference_path }));
        mapping.insert(value, reference_path);
    }
    let mut union = json!({
        "oneOf": one_of, "discriminator": { "propertyName": member, "mapping": mapping },
    });
    if let Some(description) = declared.get("description") {
        union["description"] = description.clone();
    }
    schemas.insert(name.to_owned(), union);
}

/// The objects that a schema allows; `None` when it allows other values too.
fn variants(schema: &Value, declared: &Schemas) -> Option<Vec<Value>> {
    if let Some(reference) = schema["$ref"].as_str() {
        return variants(declared.get(reference.rsplit('/').next()?)?, declared);
    }
    let described = |mut variants: Vec<Value>| {
        if let Some(description) = schema.get("description") {
            for variant in &mut variants {
                variant["description"] = description.clone();
            }
        }
        variants
    };
    if let Some(branches) = schema["oneOf"].as_array() {
        let of_branches: Option<Vec<_>> =
            branches.iter().map(|one| variants(one, declared)).collect();
        return of_branches.map(|of_branches| of_branches.into_iter().flatten().collect());
    }
    if let Some(parts) = schema["allOf"].as_array() {
        let mut whole = vec![json!({ "type": "object", "required": [], "properties": {} })];
        for part in parts {
            let of_part = variants(part, declared)?;
            let with_part = whole
                .iter()
                .flat_map(|one| of_part.iter().map(|other| join(one, other)));
            whole = with_part.collect();
        }
        return Some(described(whole));
    }
    (schema["type"] == "object").then(|| vec![schema.clone()])
}

/// An object with the members of both.
fn join(one: &Value, other: &Value) -> Value {
    let mut whole = one.clone();
    let properties = other["properties"].as_object().into_iter().flatten();
    for (name, property) in properties {
        whole["properties"][name] = property.clone();
    }
    let required = other["required"].as_array().into_iter().flatten();
    if let Some(all) = whole["required"].as_array_mut() {
        all.extend(required.cloned());
    }
    whole
}

/// The member that has a different constant in each variant.
fn discriminator(variants: &[Value]) -> Option<String> {
    let constants = |variant: &Value| -> BTreeMap<String, String> {
        let properties = variant["properties"].as_object().into_iter().flatten();
        let constants = properties
            .filter_map(|(name, property)| Some((name.clone(), constant(property)?.to_owned())));
        constants.collect()
    };
    let all: Vec<_> = variants.iter().map(constants).collect();
    let distinguishes = |name: &&String| {
        let mut values: Vec<_> = all
            .iter()
            .filter_map(|constants| constants.get(*name))
            .collect();
        values.sort();
        values.dedup();
        values.len() == variants.len()
    };
    all.first()?.keys().find(distinguishes).cloned()
}

fn constant(property: &Value) -> Option<&str> {
    match property["enum"].as_array()?.as_slice() {
        [value] => value.as_str(),
        _ => None,
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// `tool_call` and `TOOL_CALL` as `ToolCall`.
pub(super) fn camel(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty()).map(|word| {
        let (first, rest) = word.split_at(1);
        let rest = if rest.chars().any(|c| c.is_ascii_lowercase()) {
            rest.to_owned()
        } else {
            rest.to_ascii_lowercase()
        };
        first.to_ascii_uppercase() + &rest
    });
    words.collect()
}
