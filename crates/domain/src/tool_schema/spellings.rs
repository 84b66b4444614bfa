//! Names of members that another reader takes for one name. Readers in use ignore case (`encoding/json` of Go, the web
//! defaults of .NET, a setting of Jackson), fold Unicode while they do, or take `fromAccount` for `from_account`
//! (protojson); of several such members some take the first and some the last. A rule reads exactly the name that it
//! says, so a call whose members can be taken for each other is not judged at all.

use std::{
    collections::{BTreeMap, HashMap},
    ptr,
};

use serde_json::{Map, Value};
use unicode_normalization::UnicodeNormalization;

use super::graph::{AppliesTo, Graph};
use crate::{hidden, json::Json};

/// The most characters of a name in a message.
const MAX_NAME: usize = 60;

/// The members that rules name, at their places in the arguments: `args.lines.exists(line, line.price > 1)` names
/// `lines`, and `price` in each of them.
#[derive(Clone, Debug, Default)]
pub struct MemberNames {
    members: BTreeMap<String, MemberNames>,
    /// What is named in each item of a list, and in a member whose name only the call knows.
    each: Option<Box<MemberNames>>,
}

/// A step to a place in the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Member(String),
    Each,
}

impl MemberNames {
    pub fn insert(&mut self, path: impl IntoIterator<Item = Step>) {
        path.into_iter().fold(self, |place, step| match step {
            Step::Member(name) => place.members.entry(name).or_default(),
            Step::Each => place.each.get_or_insert_default(),
        });
    }

    /// The names in the whole object.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.members.keys()
    }
}

/// Why two readers could read different arguments, if they could: two members of one object have one name for a reader
/// that folds names, or a member has it with one that a rule or the schema names at its place. What neither names may
/// have any name. A rule that names several spellings knows of them.
pub(super) fn find_ambiguity(
    graph: Option<&Graph<'_>>,
    arguments: &Json,
    rules: &[&MemberNames],
) -> Option<String> {
    let root = graph.map(Graph::root).into_iter().collect();
    find(graph, arguments, &with_applied(graph, root), rules)
}

/// Whether a schema lets an object have members that it does not name.
pub(super) fn takes_unknown_members(graph: &Graph<'_>) -> bool {
    let is_closed = |schema: &&Value| {
        ["additionalProperties", "unevaluatedProperties"]
            .iter()
            .any(|keyword| schema.get(keyword) == Some(&Value::Bool(false)))
    };
    !with_applied(Some(graph), vec![graph.root()])
        .iter()
        .any(is_closed)
}

/// A name as the most lenient reader takes it: without case, in whatever form of Unicode, without `_`, `-` and control
/// characters, and up to the first NUL, where a text ends for readers in C.
fn fold(name: &str) -> String {
    let is_read = |c: &char| !matches!(c, '_' | '-') && !c.is_control();
    let name = name.split('\0').next().unwrap_or_default();
    if name.is_ascii() {
        return name
            .chars()
            .filter(is_read)
            .map(|c| c.to_ascii_lowercase())
            .collect();
    }
    let plain: String = hidden::fold(name).nfkc().collect();
    // By upper case, so that `ı` and `ß` are what other readers take them for.
    let cased = plain.to_lowercase().to_uppercase().to_lowercase();
    // What is left of the dot of `İ`.
    let cased = cased.replace('\u{307}', "");
    cased.nfkc().filter(is_read).collect()
}

fn find<'a>(
    graph: Option<&Graph<'a>>,
    value: &Json,
    schemas: &[&'a Value],
    rules: &[&MemberNames],
) -> Option<String> {
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => None,
        Json::List(items) => {
            let each = schemas_at(graph, schemas, AppliesTo::EachItem);
            let rules: Vec<_> = rules.iter().filter_map(|it| it.each.as_deref()).collect();
            let mut items = items.iter().enumerate().filter(|(_, item)| has_parts(item));
            items.find_map(|(at, item)| {
                let mut schemas = schemas_at(graph, schemas, AppliesTo::Item(at));
                schemas.extend(&each);
                find(graph, item, &schemas, &rules)
            })
        }
        Json::Object(members) => {
            let of_rules = by_folded(rules.iter().flat_map(|it| it.names().map(String::as_str)));
            let of_schema = by_folded(schemas.iter().flat_map(|schema| properties_of(schema)));
            let mut seen = HashMap::new();
            members.iter().find_map(|(name, value)| {
                if name == "__proto__" {
                    let why = "programs in JavaScript take what is in `__proto__` for members of the object around it";
                    return Some(why.to_owned());
                }
                let folded = fold(name);
                let named = [of_rules.get(&folded), of_schema.get(&folded)];
                if let Some(other) = seen.insert(folded, name) {
                    let [other, name] = [other, name].map(quote);
                    return Some(format!(
                        "some readers take the members {other} and {name} of one object for one"
                    ));
                }
                let meant = named.into_iter().flatten().next();
                if let Some(meant) = meant.filter(|names| !names.contains(&name)) {
                    let [name, meant] = [name, meant[0]].map(quote);
                    return Some(format!("some readers take the member {name} for {meant}"));
                }
                if !has_parts(value) {
                    return None;
                }
                let schemas = schemas_at(graph, schemas, AppliesTo::Property(name));
                let rules = rules.iter().flat_map(|it| {
                    let each = it.each.as_deref();
                    it.members.get(name).into_iter().chain(each)
                });
                find(graph, value, &schemas, &rules.collect::<Vec<_>>())
            })
        }
    }
}

fn has_parts(value: &Json) -> bool {
    matches!(value, Json::List(_) | Json::Object(_))
}

fn quote(name: &str) -> String {
    format!("{:?}", name.chars().take(MAX_NAME).collect::<String>())
}

fn by_folded<'n>(names: impl Iterator<Item = &'n str>) -> HashMap<String, Vec<&'n str>> {
    let mut folded: HashMap<_, Vec<_>> = HashMap::new();
    for name in names {
        folded.entry(fold(name)).or_default().push(name);
    }
    folded
}

fn properties_of(schema: &Value) -> impl Iterator<Item = &str> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties
        .into_iter()
        .flat_map(Map::keys)
        .map(String::as_str)
}

/// The schemas that apply to a part of the values of these schemas. What a schema says of all other members is not for
/// those that it names.
fn schemas_at<'a>(
    graph: Option<&Graph<'a>>,
    schemas: &[&'a Value],
    part: AppliesTo<'_>,
) -> Vec<&'a Value> {
    let Some(graph) = graph else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for schema in schemas.iter().copied() {
        let is_other = |name| properties_of(schema).all(|named| named != name);
        let edges = graph.edges(schema).unwrap_or_default().into_iter();
        let edges = edges.filter(|(place, _)| match (place, part) {
            (AppliesTo::EachProperty, AppliesTo::Property(name)) => is_other(name),
            (place, part) => *place == part,
        });
        found.extend(edges.map(|(_, schema)| schema));
    }
    with_applied(Some(graph), found)
}

/// These schemas and all that they apply to the same value.
fn with_applied<'a>(graph: Option<&Graph<'a>>, mut schemas: Vec<&'a Value>) -> Vec<&'a Value> {
    let Some(graph) = graph else {
        return schemas;
    };
    let mut at = 0;
    while let Some(schema) = schemas.get(at).copied() {
        for (place, applied) in graph.edges(schema).unwrap_or_default() {
            let is_same = matches!(place, AppliesTo::Same | AppliesTo::Reference);
            if is_same && !schemas.iter().any(|known| ptr::eq(*known, applied)) {
                schemas.push(applied);
            }
        }
        at += 1;
    }
    schemas
}
