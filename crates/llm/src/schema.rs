//! Rewrites the schema of a tool's arguments so that an endpoint accepts it. Servers write any JSON Schema; an endpoint that
//! refuses one detail refuses the whole request, with all other tools. Where a removed rule can be put into words, it is
//! added to the description. The server still checks every rule.
//!
//! | Repaired | Who refuses it, and the source |
//! |---|---|
//! | `allOf`, `anyOf`, `oneOf`, `$ref` at the top level; a top level that is not an object | OpenAI: "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"; Anthropic: "input_schema does not support oneOf, allOf, or anyOf at the top level" (`OmniRoute#13552`) |
//! | an array without `items` | OpenAI: "array schema missing items" (mcphost#35); Gemini: "items: missing field" (gemini-desktop#7) |
//! | values of `enum` that are not of the `type` | no argument can match them; Gemini: "enum only allowed for STRING type" (9router#380) |
//! | more than 10 levels | OpenAI, Structured Outputs, "up to 10 levels of nesting"; Gemini: "exceeds the maximum allowed nesting depth" (gemini-cli#5923) |
//! | names of properties outside `[a-zA-Z0-9_.-]{1,64}` | Anthropic: "Property keys should match pattern" (claude-code#34771) |
//! | names of properties outside `[a-zA-Z_][a-zA-Z0-9_]{0,63}` | Gemini, `FunctionDeclaration.parameters` of Vertex AI |
//! | names of tools that begin with a digit or a dash | Gemini, `FunctionDeclaration.name` |
//! | `$ref` beside other keywords | Gemini, `responseJsonSchema`: "If `$ref` is set on a sub-schema, no other properties, except for than those starting as a `$`, may be set"; OpenAI in strict mode |
//! | references that lead back to themselves, or to a place outside of `$defs` | Gemini, as above; Ollama, whose `ToolProperty` has no references |
//! | keywords that are not in `GEMINI_KEYWORDS`, values of `enum` other than strings and numbers, `format` | Gemini, `responseJsonSchema`: the list of keywords; "only 'enum' and 'date-time' are supported for STRING type" (gemini-cli#3178) |
//! | names in `required` that are not properties | Gemini: `required[0]: property is not defined` (AIStudioToAPI#154) |
//! | a schema without a type; `not` | llama.cpp: "Unrecognized schema" (BrowserOS#255, llama.cpp#14227); OpenAI in strict mode: "schema must have a 'type' key" (odoo-llm#212) |
//! | patterns, many repetitions | llama.cpp: "Pattern must start with '^' and end with '$'" (llama.cpp#26930), "number of repetitions exceeds sane defaults" |
//! | lists of types | Gemini's older `parameters`: "Proto field is not repeating, cannot start list"; only where a schema was refused |
//! | patterns that look ahead or behind, or refer back | OpenAI: "regex lookaround is not supported" (Dokploy/mcp#45, vercel/ai#21037) |
//! | `exclusiveMinimum: true`, `items: […]` of older drafts | Anthropic: "It must match JSON Schema draft 2020-12" (claude-code#63673) |

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Map, Value, json, value::RawValue};

use domain::{
    json::{self, Json},
    pack::{Llm, Provider},
    tool_schema::{References, modernize, parts_mut, parts_of},
};

/// Keywords that providers refuse at the top level, or that are of no use to a model there.
const NOT_AT_TOP: [&str; 9] = [
    "$schema", "$id", "oneOf", "anyOf", "allOf", "enum", "const", "not", "if",
];
/// Keywords whose subschemas apply to the same value.
const BRANCHES: [&str; 6] = [
    "allOf",
    "anyOf",
    "oneOf",
    "then",
    "else",
    "dependentSchemas",
];
/// The keywords that Gemini accepts in `responseJsonSchema` and `parametersJsonSchema`.
const GEMINI_KEYWORDS: [&str; 17] = [
    "type",
    "format",
    "title",
    "description",
    "enum",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "anyOf",
    "oneOf",
    "properties",
    "additionalProperties",
    "required",
    "propertyOrdering",
];
/// Keywords whose removal is reported as a change, since the model then knows less about the arguments.
const REPORTED_KEYWORDS: [&str; 7] = [
    "not",
    "if",
    "contains",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
];
/// The keywords of Ollama's `ToolProperty`.
const OLLAMA_KEYWORDS: [&str; 7] = [
    "type",
    "description",
    "enum",
    "items",
    "anyOf",
    "properties",
    "required",
];
/// The most subschemas of a tool, counted with those that replace references.
const MOST_SCHEMAS: usize = 2_000;
/// How often a recursive reference is replaced by its schema within that schema.
const MOST_NESTED_COPIES: usize = 1;
/// The most bytes of the name of a property.
const MAX_NAME: usize = 64;
/// The largest number of repetitions that the grammars of llama.cpp accept.
const MOST_REPETITIONS: u64 = 1_000;

/// The kinds of endpoints, by the schemas that they accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI, a gateway, or a self-hosted model with OpenAI's API.
    Openai,
    Anthropic,
    Gemini,
    Ollama,
    /// An endpoint that has refused a schema before: the rules of all others together.
    Strict,
}

/// The rules for schemas at a kind of endpoint.
#[derive(Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a rule of its own, and some endpoint has it alone"
)]
struct Rules {
    /// Whether a character may stand at this index of a property name; `None`: any may.
    names: Option<fn(usize, char) -> bool>,
    /// The accepted keywords; `None`: all.
    keywords: Option<&'static [&'static str]>,
    /// References are replaced by what they refer to.
    without_references: bool,
    /// Patterns are moved to the description.
    without_patterns: bool,
    /// Each subschema needs a type.
    typed: bool,
    /// The values of an `enum` must be all strings or all numbers.
    plain_enums: bool,
    /// Most values of `format` are moved to the description.
    without_formats: bool,
    /// A `type` is one name, not a list.
    single_types: bool,
    /// The most levels of nested schemas.
    depth: usize,
}

const OPENAI: Rules = Rules {
    names: None,
    keywords: None,
    without_references: false,
    without_patterns: true,
    typed: true,
    plain_enums: false,
    without_formats: false,
    single_types: false,
    depth: 10,
};

impl Dialect {
    /// The dialect of a model. A model of Anthropic or Google has the rules of its maker, even behind a gateway.
    pub(super) fn for_model(llm: &Llm) -> Self {
        let model = llm.model.to_ascii_lowercase();
        match llm.provider {
            Provider::Anthropic => Self::Anthropic,
            Provider::Gemini => Self::Gemini,
            Provider::Ollama => Self::Ollama,
            Provider::Openai | Provider::None if model.contains("claude") => Self::Anthropic,
            Provider::Openai | Provider::None if model.contains("gemini") => Self::Gemini,
            Provider::Openai | Provider::None => Self::Openai,
        }
    }

    fn rules(self) -> Rules {
        match self {
            Self::Openai => OPENAI,
            Self::Anthropic => Rules {
                names: Some(is_anthropic_name_char),
                without_patterns: false,
                typed: false,
                ..OPENAI
            },
            Self::Gemini => Rules {
                names: Some(is_google_name_char),
                keywords: Some(&GEMINI_KEYWORDS),
                without_references: true,
                plain_enums: true,
                without_formats: true,
                ..OPENAI
            },
            Self::Ollama => Rules {
                keywords: Some(&OLLAMA_KEYWORDS),
                without_references: true,
                typed: false,
                ..OPENAI
            },
            Self::Strict => Rules {
                keywords: Some(&OLLAMA_KEYWORDS),
                single_types: true,
                depth: 4,
                ..Self::Gemini.rules()
            },
        }
    }

    /// The name of a tool as this endpoint accepts it.
    pub(super) fn tool_name(self, name: &str) -> String {
        let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if begins_well || !matches!(self, Self::Gemini | Self::Strict) {
            return name.to_owned();
        }
        format!("_{}", &name[..name.floor_char_boundary(MAX_NAME - 1)])
    }
}

fn is_anthropic_name_char(_: usize, c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

fn is_google_name_char(at: usize, c: char) -> bool {
    c == '_' || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit())
}

/// A rewritten schema.
#[derive(Debug, Default)]
pub(super) struct Repaired {
    pub(super) schema: Value,
    /// From the new names of properties to the server's names.
    pub(super) renamed: BTreeMap<String, String>,
    /// The differences from the server's schema, one short text for each.
    pub(super) changes: BTreeSet<String>,
}

/// Rewrites a schema for an endpoint.
pub(super) fn for_endpoint(raw: &RawValue, dialect: Dialect) -> Repaired {
    let rules = dialect.rules();
    // `read_value` keeps the digits of numbers as they are written.
    let mut root = json::read_value(raw.get()).unwrap_or_default();
    modernize(&mut root);
    let mut repair = Repair {
        rules,
        new_names: BTreeMap::new(),
        changes: BTreeSet::new(),
    };
    let expanded = match References::new(&root) {
        Some(references) => {
            let mut expansion = Expansion {
                references,
                rules,
                left: MOST_SCHEMAS,
                open: Vec::new(),
            };
            expansion.expand(root.clone(), true)
        }
        None => root,
    };
    let mut schema = match expanded {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    if flatten(&mut schema, &BRANCHES) {
        repair.note_change("what stands in its branches stands at the top");
    }
    schema.retain(|keyword, _| !NOT_AT_TOP.contains(&keyword.as_str()));
    schema.insert("type".to_owned(), json!("object"));
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".to_owned(), json!({}));
    }
    let mut schema = Value::Object(schema);
    remove_unused_definitions(&mut schema);
    let mut renamed = BTreeMap::new();
    if let Some(is_legal) = rules.names {
        let mut names = HashSet::new();
        collect_names(&schema, &mut names);
        renamed = new_names(&names, is_legal);
    }
    for (new, old) in &renamed {
        repair.note_change(format!("{old:?} is called {new:?}"));
        repair.new_names.insert(old.clone(), new.clone());
    }
    repair.repair(&mut schema, 0);
    Repaired {
        schema,
        renamed,
        changes: repair.changes,
    }
}

/// Gives the properties in a model's arguments the server's names again.
pub(super) fn rename_back(arguments: &str, renamed: &BTreeMap<String, String>) -> String {
    // The check of the arguments must still see that a name appears twice.
    if Json::repeated_name(arguments).is_some() {
        return arguments.to_owned();
    }
    let Ok(mut json) = Json::parse(arguments) else {
        return arguments.to_owned();
    };
    json.rename_members(renamed);
    json.to_string()
}

/// Replaces the references that an endpoint does not follow by what they refer to.
struct Expansion<'a> {
    references: References<'a>,
    rules: Rules,
    /// How many more subschemas may be read.
    left: usize,
    /// The references that are being replaced, outermost first.
    open: Vec<String>,
}

impl Expansion<'_> {
    /// The schema with its references replaced. `is_top`: it applies to the arguments object itself.
    fn expand(&mut self, mut value: Value, is_top: bool) -> Value {
        let Value::Object(schema) = &mut value else {
            return value;
        };
        if self.left == 0 {
            return outline(schema).into();
        }
        self.left -= 1;
        let reference = schema.get("$ref").and_then(Value::as_str);
        if let Some(reference) = reference.map(str::to_owned)
            && (is_top
                || self.rules.without_references
                || schema.len() > 1
                || !is_definition(&reference))
        {
            schema.remove("$ref");
            let repeated = self.open.iter().filter(|open| **open == reference).count();
            let target = self.references.resolve(&reference);
            if let Some(Value::Object(target)) = target {
                if repeated > MOST_NESTED_COPIES {
                    merge_into(schema, &outline(target));
                } else {
                    merge_into(schema, target);
                    self.open.push(reference);
                    let expanded = self.expand(value, is_top);
                    self.open.pop();
                    return expanded;
                }
            }
        }
        for (keyword, value) in schema.iter_mut() {
            let is_top = is_top && BRANCHES.contains(&keyword.as_str());
            for part in parts_of(keyword, value) {
                *part = self.expand(part.take(), is_top);
            }
        }
        value
    }
}

/// Whether a reference leads directly into `$defs` or `definitions`. All endpoints with references follow these.
fn is_definition(reference: &str) -> bool {
    ["#/$defs/", "#/definitions/"].iter().any(|place| {
        let name = reference.strip_prefix(place);
        name.is_some_and(|name| !name.contains(['/', '%', '~']))
    })
}

/// A schema without its subschemas: type, title and description.
fn outline(schema: &Map<String, Value>) -> Map<String, Value> {
    let mut outline = Map::new();
    for keyword in ["type", "description", "title"] {
        if let Some(value) = schema.get(keyword) {
            outline.insert(keyword.to_owned(), value.clone());
        }
    }
    outline.entry("type").or_insert_with(|| json!("object"));
    if has_type(&outline, "array") {
        outline.insert("items".to_owned(), json!({}));
    }
    outline
}

/// Adds the rules of another schema for the same value.
fn merge_into(schema: &mut Map<String, Value>, other: &Map<String, Value>) {
    for (keyword, value) in other {
        match (schema.get_mut(keyword), value) {
            (Some(Value::Object(known)), Value::Object(more)) if keyword == "properties" => {
                for (name, property) in more {
                    known.entry(name).or_insert_with(|| property.clone());
                }
            }
            (Some(Value::Array(known)), Value::Array(more))
                if ["required", "allOf"].contains(&keyword.as_str()) =>
            {
                for item in more {
                    if !known.contains(item) {
                        known.push(item.clone());
                    }
                }
            }
            (Some(_), _) => {}
            (None, _) => {
                schema.insert(keyword.clone(), value.clone());
            }
        }
    }
}

/// Moves the rules in branches into the schema itself: from `allOf` all rules; from alternatives every property, and as
/// required only what all branches require. Whether the schema had such branches.
fn flatten(schema: &mut Map<String, Value>, keywords: &[&str]) -> bool {
    let mut is_changed = false;
    for keyword in keywords {
        let mut branches: Vec<Map<String, Value>> = match schema.remove(*keyword) {
            Some(Value::Array(branches)) => branches.into_iter().filter_map(into_object).collect(),
            Some(Value::Object(branches)) if *keyword == "dependentSchemas" => {
                let branches = branches.into_iter();
                branches
                    .filter_map(|(_, branch)| into_object(branch))
                    .collect()
            }
            Some(Value::Object(branch)) => vec![branch],
            _ => continue,
        };
        is_changed = true;
        for branch in &mut branches {
            flatten(branch, keywords);
        }
        match *keyword {
            "allOf" => branches
                .iter()
                .for_each(|branch| merge_into(schema, branch)),
            keyword => add_alternatives(schema, &branches, keyword),
        }
    }
    is_changed
}

fn into_object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

fn add_alternatives(
    schema: &mut Map<String, Value>,
    branches: &[Map<String, Value>],
    keyword: &str,
) {
    let required_of = |branch: &Map<String, Value>| match branch.get("required") {
        Some(Value::Array(names)) => names.clone(),
        _ => Vec::new(),
    };
    if ["anyOf", "oneOf"].contains(&keyword)
        && let Some((first, others)) = branches.split_first()
    {
        let mut required = required_of(schema);
        for name in required_of(first) {
            let by_all = others
                .iter()
                .all(|other| required_of(other).contains(&name));
            if by_all && !required.contains(&name) {
                required.push(name);
            }
        }
        if !required.is_empty() {
            schema.insert("required".to_owned(), required.into());
        }
    }
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    let Value::Object(properties) = properties else {
        return;
    };
    for branch in branches {
        let more = branch.get("properties").and_then(Value::as_object);
        for (name, property) in more.into_iter().flatten() {
            add_alternative(properties, name, property);
        }
    }
}

/// Adds a property. If the schema describes it differently already, either description may apply.
fn add_alternative(properties: &mut Map<String, Value>, name: &str, property: &Value) {
    let Some(known) = properties.get_mut(name) else {
        properties.insert(name.to_owned(), property.clone());
        return;
    };
    if known == property {
        return;
    }
    let is_alternative = known.as_object().is_some_and(|known| known.len() == 1);
    match known.get_mut("anyOf").and_then(Value::as_array_mut) {
        Some(branches) if is_alternative => {
            if !branches.contains(property) {
                branches.push(property.clone());
            }
        }
        _ => *known = json!({ "anyOf": [known.clone(), property] }),
    }
}

fn remove_unused_definitions(schema: &mut Value) {
    const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
    let Value::Object(members) = schema else {
        return;
    };
    let held: Vec<_> = DEFINITIONS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), members.remove(*name)?)))
        .collect();
    if contains_reference(schema) {
        let Value::Object(members) = schema else {
            return;
        };
        members.extend(held);
    }
}

fn contains_reference(value: &mut Value) -> bool {
    let Value::Object(schema) = value else {
        return false;
    };
    schema.contains_key("$ref") || parts_mut(schema).any(contains_reference)
}

fn has_type(schema: &Map<String, Value>, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(many)) => many.iter().any(|one| one == name),
        _ => false,
    }
}

/// Adds words to the description of a schema.
fn add_to_description(schema: &mut Map<String, Value>, words: &str) {
    let known = schema.get("description").and_then(Value::as_str);
    let text = match known.filter(|known| !known.trim().is_empty()) {
        Some(known) => format!("{known} ({words})"),
        None => words.to_owned(),
    };
    schema.insert("description".to_owned(), text.into());
}

/// Changes a schema so that it follows the rules of an endpoint.
struct Repair {
    rules: Rules,
    /// From the server's names of properties to the new names.
    new_names: BTreeMap<String, String>,
    changes: BTreeSet<String>,
}

impl Repair {
    fn note_change(&mut self, what: impl Into<String>) {
        self.changes.insert(what.into());
    }

    /// Changes a schema and its subschemas. `depth` is the level of the schema; that of the arguments is 0.
    fn repair(&mut self, value: &mut Value, depth: usize) {
        if value.is_boolean() {
            *value = json!({});
        }
        let Value::Object(schema) = value else { return };
        let rules = self.rules;
        if depth + 1 >= rules.depth && parts_mut(schema).next().is_some() {
            self.note_change(format!("it ends at {} levels", rules.depth));
            *schema = outline(schema);
        }
        self.repair_combinators(schema);
        self.repair_properties(schema);
        self.repair_constants(schema);
        self.repair_patterns(schema);
        if rules.without_formats
            && let Some(Value::String(format)) = schema.get("format").cloned()
            && (rules
                .keywords
                .is_some_and(|known| !known.contains(&"format"))
                || !["date-time", "enum"].contains(&format.as_str()))
        {
            schema.remove("format");
            add_to_description(schema, &format!("format: {format}"));
        }
        if rules.typed {
            self.add_type(schema, depth);
        }
        if has_type(schema, "array") && !schema.contains_key("items") {
            self.note_change("arrays say what their items are");
            schema.insert("items".to_owned(), json!({}));
        }
        if rules.single_types {
            split_types(schema);
        }
        if let Some(known) = rules.keywords {
            for keyword in REPORTED_KEYWORDS {
                if schema.contains_key(keyword) {
                    self.note_change(format!("`{keyword}` is left out"));
                }
            }
            schema.retain(|keyword, _| known.contains(&keyword.as_str()));
        }
        for (keyword, value) in schema.iter_mut() {
            // All endpoints accept a boolean for these keywords.
            let may_be_boolean = ["additionalProperties", "unevaluatedProperties", "items"]
                .contains(&keyword.as_str())
                && value.is_boolean()
                && !(rules.typed && keyword == "items");
            for part in parts_of(keyword, value) {
                if !may_be_boolean {
                    self.repair(part, depth + 1);
                }
            }
        }
    }

    /// `allOf`, `oneOf` and `not`.
    fn repair_combinators(&mut self, schema: &mut Map<String, Value>) {
        let Some(known) = self.rules.keywords else {
            if self.rules.typed && schema.remove("not").is_some() {
                self.note_change("`not` is left out");
            }
            return;
        };
        if flatten(schema, &["allOf"]) {
            self.note_change("`allOf` is one schema");
        }
        if !known.contains(&"oneOf")
            && let Some(branches) = schema.remove("oneOf")
        {
            schema.entry("anyOf").or_insert(branches);
        }
    }

    /// Names of properties, and `required`.
    fn repair_properties(&mut self, schema: &mut Map<String, Value>) {
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            // No value matches a property whose schema is `false`, so the property is removed.
            properties.retain(|_, property| *property != json!(false));
            for (name, property) in std::mem::take(properties) {
                let Some(new) = self.new_names.get(&name) else {
                    properties.insert(name, property);
                    continue;
                };
                let mut property = property;
                if let Value::Object(property) = &mut property {
                    add_to_description(property, &format!("its server calls it {name:?}"));
                }
                properties.insert(new.clone(), property);
            }
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            for name in required.iter_mut() {
                if let Some(new) = name.as_str().and_then(|name| self.new_names.get(name)) {
                    *name = json!(new);
                }
            }
        }
        if self.rules.keywords.is_none() {
            return;
        }
        // A required property without a schema gets one that accepts anything.
        let required = schema.get("required").and_then(Value::as_array).cloned();
        match schema.get_mut("properties") {
            Some(Value::Object(properties)) => {
                for name in required.iter().flatten().filter_map(Value::as_str) {
                    properties.entry(name).or_insert_with(|| json!({}));
                }
            }
            _ => drop(schema.remove("required")),
        }
    }

    /// `enum` and `const`.
    fn repair_constants(&mut self, schema: &mut Map<String, Value>) {
        let rules = self.rules;
        if let Some(known) = rules.keywords
            && !known.contains(&"const")
            && let Some(constant) = schema.remove("const")
        {
            schema.insert("enum".to_owned(), json!([constant]));
        }
        let Some(Value::Array(values)) = schema.get("enum").cloned() else {
            return;
        };
        let typed = |value: &Value| match value {
            Value::Null => has_type(schema, "null"),
            Value::Bool(_) => has_type(schema, "boolean"),
            Value::String(_) => has_type(schema, "string"),
            Value::Array(_) => has_type(schema, "array"),
            Value::Object(_) => has_type(schema, "object"),
            Value::Number(_) => has_type(schema, "number") || has_type(schema, "integer"),
        };
        let has_type = schema.contains_key("type");
        let fit: Vec<Value> = values
            .iter()
            .filter(|value| !has_type || typed(value))
            .cloned()
            .collect();
        let is_plain = fit.iter().all(Value::is_string) || fit.iter().all(Value::is_number);
        if fit.is_empty() {
            schema.remove("enum");
        } else if rules.plain_enums && !is_plain {
            self.note_change("values of different kinds are told in words");
            schema.remove("enum");
            add_to_description(schema, &format!("one of {}", Value::Array(fit)));
        } else {
            if rules.plain_enums && !has_type {
                let kind = if fit[0].is_string() {
                    "string"
                } else {
                    "number"
                };
                schema.insert("type".to_owned(), json!(kind));
            }
            schema.insert("enum".to_owned(), fit.into());
        }
    }

    /// `pattern`, and limits of length and value.
    fn repair_patterns(&mut self, schema: &mut Map<String, Value>) {
        if let Some(Value::String(pattern)) = schema.get("pattern").cloned()
            && (self.rules.without_patterns || !is_regular(&pattern))
        {
            self.note_change("patterns are told in words");
            schema.remove("pattern");
            add_to_description(schema, &format!("pattern: {pattern}"));
        }
        if !self.rules.without_patterns {
            return;
        }
        for limit in ["minLength", "maxLength", "minItems", "maxItems"] {
            let most = schema.get(limit).and_then(Value::as_u64);
            if let Some(most) = most.filter(|most| *most > MOST_REPETITIONS) {
                schema.remove(limit);
                add_to_description(schema, &format!("{limit}: {most}"));
            }
        }
        // For a model, an inclusive limit is close enough to an exclusive one.
        if self.rules.keywords.is_some() {
            for (exclusive, limit) in [
                ("exclusiveMinimum", "minimum"),
                ("exclusiveMaximum", "maximum"),
            ] {
                if let Some(value) = schema.remove(exclusive) {
                    schema.entry(limit).or_insert(value);
                }
            }
        }
    }

    /// Gives a schema without a type the type that its keywords imply, or all types.
    fn add_type(&mut self, schema: &mut Map<String, Value>, depth: usize) {
        const GIVES_TYPE: [&str; 6] = ["type", "$ref", "anyOf", "oneOf", "allOf", "const"];
        if GIVES_TYPE
            .iter()
            .any(|keyword| schema.contains_key(*keyword))
            || schema.contains_key("enum")
        {
            return;
        }
        let has = |keywords: &[&str]| keywords.iter().any(|name| schema.contains_key(*name));
        let kind = if has(&["properties", "required", "additionalProperties"]) {
            json!("object")
        } else if has(&["items", "prefixItems"]) {
            json!("array")
        } else if has(&["pattern", "minLength", "maxLength", "format"]) {
            json!("string")
        } else {
            let simple = json!(["string", "number", "boolean", "object", "null"]);
            if depth >= self.rules.depth {
                simple
            } else {
                schema.insert("items".to_owned(), json!({ "type": simple }));
                json!(["string", "number", "boolean", "object", "array", "null"])
            }
        };
        self.note_change("what may be anything says so");
        schema.insert("type".to_owned(), kind);
    }
}

/// Replaces a list of types by one type, or by `anyOf` with a schema for each type.
fn split_types(schema: &mut Map<String, Value>) {
    let Some(Value::Array(kinds)) = schema.get("type").cloned() else {
        return;
    };
    let is_null = |kind: &&Value| **kind == "null";
    if kinds.iter().any(|kind| is_null(&kind)) {
        add_to_description(schema, "or null");
    }
    let kinds: Vec<&Value> = kinds.iter().filter(|kind| !is_null(kind)).collect();
    let several = kinds.len() > 1 && !schema.contains_key("anyOf");
    schema.remove("type");
    match kinds.first() {
        Some(_) if several => {
            schema.remove("items");
            let one = |kind: &&Value| match kind.as_str() {
                Some("array") => json!({ "type": "array", "items": { "type": "string" } }),
                _ => json!({ "type": kind }),
            };
            schema.insert("anyOf".to_owned(), kinds.iter().map(one).collect());
        }
        Some(first) => drop(schema.insert("type".to_owned(), (*first).clone())),
        None => drop(schema.insert("type".to_owned(), json!("string"))),
    }
}

/// Whether a pattern has neither look-around nor a back reference.
fn is_regular(pattern: &str) -> bool {
    let mut rest = pattern;
    while let Some(at) = rest.find(['\\', '(']) {
        let after = &rest[at + 1..];
        if rest[at..].starts_with('(') {
            if ["?=", "?!", "?<=", "?<!"]
                .iter()
                .any(|look| after.starts_with(look))
            {
                return false;
            }
            rest = after;
        } else {
            if after.starts_with(|c: char| c == 'k' || ('1'..='9').contains(&c)) {
                return false;
            }
            rest = after
                .get(after.chars().next().map_or(0, char::len_utf8)..)
                .unwrap_or_default();
        }
    }
    true
}

fn collect_names(value: &Value, names: &mut HashSet<String>) {
    let Value::Object(schema) = value else { return };
    if let Some(Value::Object(properties)) = schema.get("properties") {
        names.extend(properties.keys().cloned());
    }
    if let Some(Value::Array(required)) = schema.get("required") {
        names.extend(required.iter().filter_map(Value::as_str).map(str::to_owned));
    }
    for part in parts_mut(&mut schema.clone()) {
        collect_names(part, names);
    }
}

/// Unique new names for the names that are not legal: from the new names to the old ones.
fn new_names(
    names: &HashSet<String>,
    is_legal: fn(usize, char) -> bool,
) -> BTreeMap<String, String> {
    let fits = |name: &str| {
        let mut characters = name.chars().enumerate();
        !name.is_empty() && name.len() <= MAX_NAME && characters.all(|(at, c)| is_legal(at, c))
    };
    let mut illegal: Vec<&String> = names.iter().filter(|name| !fits(name)).collect();
    illegal.sort();
    let mut renamed = BTreeMap::new();
    for name in illegal {
        let mut folded = String::new();
        for c in name.chars() {
            // A digit may be wrong only as the first character.
            if folded.is_empty() && !is_legal(0, c) && is_legal(1, c) {
                folded.push('_');
            }
            let is_kept = is_legal(folded.len(), c);
            folded.push(if is_kept { c } else { '_' });
            if folded.len() >= MAX_NAME - 4 {
                break;
            }
        }
        if folded.is_empty() {
            folded.push('_');
        }
        let is_free = |new: &String| !names.contains(new) && !renamed.contains_key(new);
        let numbered = (2..1000).map(|number| format!("{folded}_{number}"));
        let new = std::iter::once(folded.clone())
            .chain(numbered)
            .find(is_free);
        if let Some(new) = new {
            renamed.insert(new, name.clone());
        }
    }
    renamed
}
