//! A schema as a graph. The nodes are schemas; an edge says which schema is applied to which part of the
//! value.

use std::{collections::HashMap, ptr};

use serde_json::{Map, Value};

use super::{MAX_CHAIN, MAX_EXPANSION, MAX_PATTERNS, MAX_QUICK_SCHEMAS, MAX_SUBSCHEMAS};

/// The part of the value that an inner schema is applied to, relative to the value of the outer schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppliesTo<'a> {
    /// The same value.
    Same,
    /// The same value, by a reference.
    Reference,
    Property(&'a str),
    EachProperty,
    EachPropertyName,
    Item(usize),
    EachItem,
    /// Nothing: a definition.
    Nowhere,
}

pub(super) type Edge<'a> = (AppliesTo<'a>, &'a Value);

/// A node is identified by its address in memory, within the document.
pub(super) type Node = *const Value;

pub(super) struct Graph<'a> {
    root: &'a Value,
    /// The address that the document gives itself.
    id: &'a str,
    anchors: HashMap<&'a str, &'a Value>,
    /// The number of schemas in it, itself included.
    schemas: usize,
    has_references: bool,
}

/// Keywords whose value is a schema, or a list or a map of schemas.
const SCHEMAS: [(&str, AppliesTo); 13] = [
    ("not", AppliesTo::Same),
    ("if", AppliesTo::Same),
    ("then", AppliesTo::Same),
    ("else", AppliesTo::Same),
    ("additionalProperties", AppliesTo::EachProperty),
    ("unevaluatedProperties", AppliesTo::EachProperty),
    ("propertyNames", AppliesTo::EachPropertyName),
    ("items", AppliesTo::EachItem),
    ("additionalItems", AppliesTo::EachItem),
    ("unevaluatedItems", AppliesTo::EachItem),
    ("contains", AppliesTo::EachItem),
    ("contentSchema", AppliesTo::Nowhere),
    ("propertyDependencies", AppliesTo::Nowhere),
];
const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const MAPS: [(&str, AppliesTo); 5] = [
    ("patternProperties", AppliesTo::EachProperty),
    ("dependentSchemas", AppliesTo::Same),
    ("dependencies", AppliesTo::Same),
    ("$defs", AppliesTo::Nowhere),
    ("definitions", AppliesTo::Nowhere),
];
const REFERENCES: [&str; 2] = ["$ref", "$dynamicRef"];

impl<'a> Graph<'a> {
    /// Refuses a document with too many schemas, or with parts that have an address of their own.
    pub(super) fn new(root: &'a Value) -> Result<Self, String> {
        let id = root.get("$id").and_then(Value::as_str).unwrap_or_default();
        let mut graph = Self {
            root,
            id: id.trim_end_matches('#'),
            anchors: HashMap::new(),
            schemas: 0,
            has_references: false,
        };
        let (mut waiting, mut patterns) = (vec![root], 0);
        while let Some(schema) = waiting.pop() {
            graph.schemas += 1;
            if graph.schemas > MAX_SUBSCHEMAS {
                return Err(too_many());
            }
            let Value::Object(members) = schema else {
                continue;
            };
            if members.contains_key("$id") && !ptr::eq(schema, root) {
                return Err("a part of it has a `$id` of its own".to_owned());
            }
            patterns += patterns_of(members);
            graph.has_references |= REFERENCES.iter().any(|name| members.contains_key(*name));
            for name in ["$anchor", "$dynamicAnchor"] {
                if let Some(anchor) = members.get(name).and_then(Value::as_str) {
                    graph.anchors.entry(anchor).or_insert(schema);
                }
            }
            waiting.extend(parts(members).map(|(_, part)| part));
        }
        if patterns > MAX_PATTERNS {
            return Err(too_many_patterns());
        }
        Ok(graph)
    }

    pub(super) fn root(&self) -> &'a Value {
        self.root
    }

    /// Whether no value is looked at by more than a few schemas.
    pub(super) fn is_small(&self) -> bool {
        self.schemas <= MAX_QUICK_SCHEMAS && !self.has_references
    }

    /// The schemas that are applied from a schema.
    pub(super) fn edges(&self, schema: &'a Value) -> Result<Vec<Edge<'a>>, String> {
        let Value::Object(members) = schema else {
            return Ok(Vec::new());
        };
        let mut edges: Vec<_> = parts(members)
            .filter(|(place, _)| *place != AppliesTo::Nowhere)
            .collect();
        for name in REFERENCES {
            if let Some(reference) = members.get(name).and_then(Value::as_str) {
                edges.push((AppliesTo::Reference, self.resolve(reference)?));
            }
        }
        Ok(edges)
    }

    pub(super) fn resolve(&self, reference: &str) -> Result<&'a Value, String> {
        let elsewhere = || {
            format!(
                "it refers to {reference:?}, which is not in it; nothing is fetched for a schema"
            )
        };
        let local = reference
            .strip_prefix(self.id)
            .filter(|_| !self.id.is_empty())
            .unwrap_or(reference);
        let Some(fragment) = local.strip_prefix('#') else {
            return if local.is_empty() {
                Ok(self.root)
            } else {
                Err(elsewhere())
            };
        };
        let found = if fragment.is_empty() || fragment.starts_with('/') {
            self.root.pointer(&decode_percent(fragment))
        } else {
            self.anchors.get(fragment).copied()
        };
        found.ok_or_else(elsewhere)
    }

    /// Refuses a schema that takes too long, or for ever, to apply. Returns the number of patterns.
    pub(super) fn check_limits(&self) -> Result<usize, String> {
        let mut walk = Walk::new(self);
        if walk.size(self.root)? > MAX_EXPANSION {
            return Err(format!(
                "its references expand to more than {MAX_EXPANSION} schemas"
            ));
        }
        Ok(walk.patterns)
    }
}

fn too_many() -> String {
    format!("it has more than {MAX_SUBSCHEMAS} schemas in it")
}

fn too_many_patterns() -> String {
    format!("it has more than {MAX_PATTERNS} patterns")
}

fn patterns_of(members: &Map<String, Value>) -> usize {
    let properties = members.get("patternProperties").and_then(Value::as_object);
    usize::from(members.contains_key("pattern")) + properties.map_or(0, Map::len)
}

/// The schemas that stand in a schema.
fn parts<'a>(members: &'a Map<String, Value>) -> impl Iterator<Item = Edge<'a>> {
    let is_schema = |(_, part): &Edge<'a>| part.is_object() || part.is_boolean();
    let schemas = SCHEMAS
        .iter()
        .filter_map(|(name, place)| Some((*place, members.get(*name)?)));
    let lists = LISTS
        .iter()
        .filter_map(|name| members.get(*name)?.as_array())
        .flatten()
        .map(|part| (AppliesTo::Same, part));
    let maps = MAPS
        .iter()
        .filter_map(|(name, place)| Some((*place, members.get(*name)?.as_object()?)))
        .flat_map(|(place, map)| map.values().map(move |part| (place, part)));
    let properties = members.get("properties").and_then(Value::as_object);
    let properties = properties
        .into_iter()
        .flatten()
        .map(|(name, part)| (AppliesTo::Property(name.as_str()), part));
    let items = members.get("prefixItems").and_then(Value::as_array);
    let items = items
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(at, part)| (AppliesTo::Item(at), part));
    schemas
        .chain(lists)
        .chain(maps)
        .chain(properties)
        .chain(items)
        .filter(is_schema)
}

/// The schemas that are the value of a keyword, to be changed.
pub(super) fn parts_of<'a>(keyword: &str, value: &'a mut Value) -> Vec<&'a mut Value> {
    let is_map = keyword == "properties" || MAPS.iter().any(|(name, _)| *name == keyword);
    let is_list = keyword == "prefixItems" || LISTS.contains(&keyword);
    let is_one = SCHEMAS.iter().any(|(name, _)| *name == keyword);
    let mut parts: Vec<&mut Value> = if is_one {
        vec![value]
    } else {
        match value {
            Value::Object(map) if is_map => map.values_mut().collect(),
            Value::Array(list) if is_list => list.iter_mut().collect(),
            _ => Vec::new(),
        }
    };
    parts.retain(|part| part.is_object() || part.is_boolean());
    parts
}

/// A fragment of a URL without its escapes.
fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A walk through the schemas of a tool that counts what their references expand to. One walk computes each of the two values, so that a schema with many references is walked once.
struct Walk<'g, 'a> {
    graph: &'g Graph<'a>,
    /// References one after the other from here on; absent while they are being counted.
    steps: HashMap<Node, Option<usize>>,
    /// Schemas from here on; absent while they are being counted.
    sizes: HashMap<Node, Option<u64>>,
    patterns: usize,
}

impl<'g, 'a> Walk<'g, 'a> {
    fn new(graph: &'g Graph<'a>) -> Self {
        Self {
            graph,
            steps: HashMap::new(),
            sizes: HashMap::new(),
            patterns: 0,
        }
    }

    /// The number of schemas here when every reference is replaced by its target. A reference back to an
    /// outer schema counts as one: how often it is applied depends on the arguments.
    fn size(&mut self, schema: &'a Value) -> Result<u64, String> {
        let node = ptr::from_ref(schema);
        if let Some(known) = self.sizes.get(&node) {
            return Ok(known.unwrap_or(1));
        }
        self.sizes.insert(node, None);
        // References may lead to where no schema is looked for.
        if self.sizes.len() > MAX_SUBSCHEMAS {
            return Err(too_many());
        }
        self.patterns += schema.as_object().map_or(0, patterns_of);
        if self.patterns > MAX_PATTERNS {
            return Err(too_many_patterns());
        }
        if self.chain(schema)? > MAX_CHAIN {
            return Err(format!(
                "more than {MAX_CHAIN} references follow one another in it"
            ));
        }
        let mut size = 1_u64;
        for (_, part) in self.graph.edges(schema)? {
            size = size.saturating_add(self.size(part)?);
        }
        self.sizes.insert(node, Some(size));
        Ok(size)
    }

    /// The longest chain of references that is applied to one value.
    fn chain(&mut self, schema: &'a Value) -> Result<usize, String> {
        let node = ptr::from_ref(schema);
        match self.steps.get(&node) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => {
                return Err("a reference in it leads back to itself on the same value".to_owned());
            }
            None => {}
        }
        self.steps.insert(node, None);
        let mut longest = 0;
        for (place, part) in self.graph.edges(schema)? {
            let step = match place {
                AppliesTo::Same => 0,
                AppliesTo::Reference => 1,
                _ => continue,
            };
            longest = longest.max(step + self.chain(part)?);
        }
        self.steps.insert(node, Some(longest));
        Ok(longest)
    }
}
