//! The JSON Schema of a tool's arguments, as a server wrote it.
//!
//! Invariant: neither compiling a schema nor checking arguments against it takes more time or stack than the limits
//! here allow, whatever the server wrote. Nothing is fetched from the network.
//!
//! A tool is not lost over a detail: keywords of older drafts are read as what they mean today, and a pattern that the
//! engine here cannot run is left to the server.

mod cost;
mod exact;
mod graph;
mod older;
mod patterns;
mod spellings;

use jsonschema::{Draft, PatternOptions, ValidationError, error::ValidationErrorKind};
use serde_json::{Map, Value, value::RawValue};

use self::{exact::Exact, graph::Graph};
pub use self::{
    older::modernize,
    spellings::{MemberNames, Step},
};
use super::json::Json;

/// Bytes of one schema.
pub const MAX_BYTES: usize = 64 * 1024;
/// Schemas in one schema, itself included.
const MAX_SUBSCHEMAS: usize = 500;
/// References one after the other that lead to one place in the arguments.
const MAX_CHAIN: usize = 16;
/// Schemas in one schema when each reference is replaced by what it refers to.
const MAX_EXPANSION: u64 = 10_000;
/// Patterns in one schema, and the bytes that all of them together may take when they are compiled.
const MAX_PATTERNS: usize = 100;
const MAX_PATTERN_BYTES: usize = 64 * 1024 * 1024;
/// The same of one pattern.
const MAX_ONE_PATTERN_BYTES: usize = 8 * 1024 * 1024;
/// Schemas in a schema without references, and bytes and values of the arguments, whose check takes microseconds.
const MAX_QUICK_SCHEMAS: usize = 64;
const MAX_QUICK_BYTES: usize = 4096;
/// Problems that are named, and characters of each. A validator quotes what it was given.
const MAX_PROBLEMS: usize = 5;
const MAX_REASON: usize = 300;

/// A schema that was compiled.
#[derive(Debug)]
pub struct ToolSchema {
    schema: Value,
    validator: jsonschema::Validator<Exact>,
    is_small: bool,
    unchecked: Vec<String>,
}

impl ToolSchema {
    /// Compiles a schema. The error says why no tool can be used with it.
    pub fn compile(raw: &RawValue) -> Result<Self, String> {
        let size = raw.get().len();
        if size > MAX_BYTES {
            return Err(format!("it has {size} bytes, more than {MAX_BYTES}"));
        }
        let mut schema = exact::schema(&Json::parse(raw.get()).map_err(|error| shorten(&error))?);
        modernize(&mut schema);
        if !takes_objects(&schema) {
            return Err("it is not a schema of an object".to_owned());
        }
        let graph = Graph::new(&schema)?;
        let (patterns, is_small) = (graph.check_limits()?, graph.is_small());
        let (validator, unchecked) = match build(&schema, patterns) {
            Ok(validator) => (validator, Vec::new()),
            Err(error) => {
                let runs = |pattern: &str| {
                    let alone = serde_json::json!({ "pattern": pattern });
                    build(&alone, patterns).is_ok()
                };
                let unchecked = patterns::leave_out(&mut schema, &runs);
                if unchecked.is_empty() {
                    return Err(why_unusable(&error));
                }
                let built = build(&schema, patterns).map_err(|error| why_unusable(&error))?;
                (built, unchecked)
            }
        };
        Ok(Self {
            schema,
            validator,
            is_small,
            unchecked,
        })
    }

    /// What of the schema is not checked here, and is left to the server.
    pub fn unchecked(&self) -> &[String] {
        &self.unchecked
    }

    /// Why two readers could read different arguments, if they could; `rules` has the members that rules name.
    pub fn find_ambiguity(&self, arguments: &Json, rules: &[&MemberNames]) -> Option<String> {
        let graph = Graph::new(&self.schema).ok();
        spellings::find_ambiguity(graph.as_ref(), arguments, rules)
    }

    /// Whether a check of these arguments takes so little time and stack that it needs no thread of its own.
    pub fn is_quick(&self, arguments: &Json) -> bool {
        self.is_small && size_within(arguments, MAX_QUICK_BYTES).is_some()
    }

    /// Why the arguments do not fit, at most five reasons.
    pub fn check(&self, arguments: &Json) -> Result<(), String> {
        if !self.is_quick(arguments)
            && !cost::is_bounded(&Graph::new(&self.schema)?, &arguments.rounded())
        {
            return Err(
                "they take too long to check against the tool's schema; send fewer or simpler ones"
                    .to_owned(),
            );
        }
        let problems: Vec<String> = self
            .validator
            .iter_errors(arguments)
            .take(MAX_PROBLEMS)
            .map(|error| {
                let reason = match error.kind() {
                    // The expression says nothing to a person who typed the value.
                    ValidationErrorKind::Pattern { .. } => shorten(&format!(
                        "{} does not have the form that is wanted",
                        error.instance()
                    )),
                    _ => shorten(&error),
                };
                match error.instance_path().as_str() {
                    "" => reason,
                    path => format!("at {}: {reason}", shorten(&path)),
                }
            })
            .collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems.join("; "))
        }
    }
}

/// The same as [`ToolSchema::find_ambiguity`] where no schema is known.
pub fn find_ambiguity(arguments: &Json, rules: &[&MemberNames]) -> Option<String> {
    spellings::find_ambiguity(None, arguments, rules)
}

/// Whether the arguments of a tool may have members that its schema does not name.
pub fn takes_unknown_members(raw: &RawValue) -> bool {
    let Ok(schema) = serde_json::from_str::<Value>(raw.get()) else {
        return false;
    };
    Graph::new(&schema).is_ok_and(|graph| spellings::takes_unknown_members(&graph))
}

/// Where the references of a schema lead.
pub struct References<'a>(Graph<'a>);

impl<'a> References<'a> {
    /// `None` for a schema that is not within the limits.
    pub fn new(schema: &'a Value) -> Option<Self> {
        Graph::new(schema).ok().map(Self)
    }

    /// What a reference stands for; `None` when it is not in the schema.
    pub fn resolve(&self, reference: &str) -> Option<&'a Value> {
        self.0.resolve(reference).ok()
    }
}

/// The schemas that stand in a schema, to be changed.
pub fn parts_mut(schema: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    schema
        .iter_mut()
        .flat_map(|(keyword, value)| graph::parts_of(keyword, value))
}

/// The schemas that are the value of one keyword, to be changed.
pub fn parts_of<'a>(keyword: &str, value: &'a mut Value) -> Vec<&'a mut Value> {
    graph::parts_of(keyword, value)
}

/// The pattern of a text that a person writes.
pub(crate) struct TextPattern(jsonschema::Validator<Exact>);

impl TextPattern {
    /// `None` for a pattern that does not run here, which is left to the server.
    pub(crate) fn compile(pattern: &str) -> Option<Self> {
        let schema = serde_json::json!({ "pattern": pattern });
        build(&schema, MAX_PATTERNS).ok().map(Self)
    }

    pub(crate) fn admits(&self, text: &str) -> bool {
        self.0.is_valid(&Json::Text(text.to_owned()))
    }
}

fn build(
    schema: &Value,
    patterns: usize,
) -> Result<jsonschema::Validator<Exact>, ValidationError<'static>> {
    // This engine runs in linear time; it has neither look-around nor back-references.
    let patterns = PatternOptions::regex()
        .size_limit((MAX_PATTERN_BYTES / patterns.max(1)).min(MAX_ONE_PATTERN_BYTES));
    exact::options()
        .with_draft(Draft::Draft202012)
        .with_pattern_options(patterns)
        .build(schema)
}

/// What is left of `bytes` after a value, which takes one and those of its strings; `None` when that is not enough.
fn size_within(value: &Json, bytes: usize) -> Option<usize> {
    let left = bytes.checked_sub(1)?;
    match value {
        Json::Text(text) => left.checked_sub(text.len()),
        Json::Number(number) => left.checked_sub(number.as_str().len()),
        Json::List(items) => items
            .iter()
            .try_fold(left, |left, item| size_within(item, left)),
        Json::Object(members) => members.iter().try_fold(left, |left, (name, member)| {
            size_within(member, left.checked_sub(name.len())?)
        }),
        Json::Null | Json::Bool(_) => Some(left),
    }
}

/// Arguments are an object, so that another schema fits none.
fn takes_objects(schema: &Value) -> bool {
    match schema.get("type") {
        None => schema.is_object(),
        Some(Value::Array(types)) => types.iter().any(|kind| kind == "object"),
        // One that is no type at all is for the compiler to name.
        Some(Value::String(kind)) => !matches!(
            kind.as_str(),
            "array" | "string" | "number" | "integer" | "boolean" | "null"
        ),
        Some(_) => true,
    }
}

fn why_unusable(error: &ValidationError) -> String {
    match error.kind() {
        ValidationErrorKind::Format { format } if format == "regex" => {
            format!(
                "its pattern {} is no regular expression",
                shorten(error.instance())
            )
        }
        _ => shorten(error),
    }
}

fn shorten(text: &impl ToString) -> String {
    let text = text.to_string();
    match text.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
