//! Pinned tools: a tool is what its server said of it when somebody accepted it. A server that says something else later,
//! or lists one more tool that only a wildcard lets in, has to wait until somebody accepts that, too.
//!
//! Pure: what is known of the tools of an agent's servers is passed in. [`Pins::judge`] says what becomes of a definition,
//! [`compare`] whether a changed one waits, and [`Pins::find_held`] which tools the policy denies ([`ServerSpec::held`]).
//!
//! Invariant: what the model reads and what arguments mean is as somebody accepted it, and so is every promise that the
//! program trusts. Whatever else changes is used at once, and told.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    canonical::{self, Hash, Hex},
    hidden::escape_hidden,
    ids::ServerId,
    json::{Json, Members, quoted},
    orchestrator,
    server::{AccessMode, ServerSpec},
    tool::{Catalog, Tool},
};

/// What becomes of a tool that is not as somebody accepted it: `pin` of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Pin {
    /// It is neither listed nor called until somebody accepts it.
    #[default]
    Hold,
    /// It is used, and the admins are told.
    Tell,
    /// Nobody looks.
    Off,
}

/// What is known of the tools of one agent's servers, as it counts for one tenant.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pins(HashMap<ServerId, HashMap<String, KnownDefinitions>>);

/// The hashes of a tool's definitions. Several count where users see different ones, or where a server is replaced bit by
/// bit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KnownDefinitions {
    accepted: BTreeSet<Hash>,
    others: BTreeMap<Hash, KnownDefinition>,
}

/// What is known of one definition of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownDefinition {
    Accepted,
    /// It waits, because it differs from what was accepted in these fields; without any, the tool is new.
    Held(Vec<String>),
    /// It waits and is used meanwhile: it differs in nothing that the model reads or that arguments mean. With the
    /// definition that was accepted last.
    Told(Option<Arc<str>>),
    /// Nobody but admins may use the tool, so that nobody needs to accept it. It is what the tool is compared with when a
    /// rule lets somebody in.
    Recorded,
}

/// Why a tool is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldTool {
    /// The fields that differ from what was accepted; empty for a new tool.
    pub changed: Vec<String>,
    /// No definition of it was accepted before.
    pub is_new: bool,
}

/// What becomes of a definition that a server lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is accepted already, waits already, or is not pinned.
    Known,
    /// It is accepted now: nobody has seen tools of the server before, or the pack names the tool and nobody has seen it
    /// before.
    Accept,
    /// It is new, and no rule lets anybody but admins use it.
    Record,
    /// It is to be compared with what was accepted. If it is another, it waits until somebody accepts it.
    Wait,
}

impl Pins {
    pub fn add(&mut self, server: ServerId, tool: String, hash: Hash, known: KnownDefinition) {
        let of_tool = self.0.entry(server).or_default().entry(tool).or_default();
        if known == KnownDefinition::Accepted {
            of_tool.accepted.insert(hash);
            of_tool.others.remove(&hash);
        } else if !of_tool.accepted.contains(&hash) {
            of_tool.others.insert(hash, known);
        }
    }

    /// Whether anything is known of the server's tools.
    pub fn has_server(&self, server: &ServerId) -> bool {
        self.0.contains_key(server)
    }

    /// Whether some definition of the tool was accepted.
    pub fn has_accepted(&self, server: &ServerId, tool: &str) -> bool {
        let known = self.known(server, tool);
        known.is_some_and(|known| !known.accepted.is_empty())
    }

    /// The hashes of a server's tools that are kept beside the accepted ones while it lists these: of the tools themselves,
    /// and what was recorded of them, which they are compared with when a rule lets somebody in.
    pub fn keep(&self, server: &ServerId, listed: &[Arc<Tool>]) -> BTreeSet<Hash> {
        let kept = listed.iter().flat_map(|tool| {
            let others = self.known(server, &tool.name).map(|known| &known.others);
            let recorded = others.into_iter().flatten();
            let recorded = recorded.filter(|(_, known)| **known == KnownDefinition::Recorded);
            let recorded = recorded.map(|(hash, _)| *hash);
            tool.hash.map(|Hex(hash)| hash).into_iter().chain(recorded)
        });
        kept.collect()
    }

    /// Whether a definition of the server's tools is known that is neither accepted nor kept while it lists these.
    pub fn has_unlisted(&self, server: &ServerId, listed: &[Arc<Tool>]) -> bool {
        let kept = self.keep(server, listed);
        let known = self.0.get(server).into_iter().flatten();
        let mut others = known.flat_map(|(_, known)| known.others.keys());
        others.any(|other| !kept.contains(other))
    }

    fn known(&self, server: &ServerId, tool: &str) -> Option<&KnownDefinitions> {
        self.0.get(server)?.get(tool)
    }

    /// Judges a tool that a server lists.
    pub fn judge(&self, server: &ServerSpec, tool: &Tool) -> Standing {
        let Some(Hex(hash)) = tool.hash.filter(|_| server.is_pinned()) else {
            return Standing::Known;
        };
        let Some(tools) = self.0.get(&server.id) else {
            return Standing::Accept;
        };
        let is_for_admins = !server.admits_anybody(&tool.name);
        let Some(known) = tools.get(&tool.name) else {
            return if is_for_admins {
                Standing::Record
            } else if server.grants_by_name(&tool.name) {
                Standing::Accept
            } else {
                Standing::Wait
            };
        };
        if is_for_admins || known.others.contains_key(&hash) || known.has_accepted(hash, tool) {
            Standing::Known
        } else {
            Standing::Wait
        }
    }

    /// Why the policy denies a tool as its server lists it; `None` when it does not.
    pub fn find_hold(&self, server: &ServerSpec, tool: &Tool) -> Option<HeldTool> {
        let Hex(hash) = tool.hash.filter(|_| server.is_pinned())?;
        if server.pin != Pin::Hold || !server.admits_anybody(&tool.name) {
            return None;
        }
        let Some(known) = self.known(&server.id, &tool.name) else {
            return Some(HeldTool {
                is_new: true,
                ..HeldTool::default()
            });
        };
        let held = |changed: &[String]| HeldTool {
            changed: changed.to_vec(),
            is_new: changed.is_empty() && known.accepted.is_empty(),
        };
        match known.others.get(&hash) {
            Some(KnownDefinition::Held(changed)) => return Some(held(changed)),
            None if !known.has_accepted(hash, tool) => return Some(held(&[])),
            _ => {}
        }
        // All who use the server see the same list. So what another replica has found in it counts before a list that is
        // older, and a definition that is not listed any more does not wait.
        let mut others = known.others.iter().filter(|(other, _)| {
            server.is_one_list() && **other != canonical::hash(&canonical::definition(tool))
        });
        others.find_map(|(_, other)| match other {
            KnownDefinition::Held(changed) => Some(held(changed)),
            _ => None,
        })
    }

    /// The tools of a server that the policy denies until somebody accepts them as they are.
    pub fn find_held(&self, server: &ServerSpec, catalog: &Catalog) -> BTreeMap<String, HeldTool> {
        let tools = catalog.tools.iter();
        let held =
            tools.filter_map(|tool| Some((tool.name.clone(), self.find_hold(server, tool)?)));
        held.collect()
    }

    /// The tool as somebody accepted it, where it is used although its server has changed it since.
    pub fn find_accepted_copy(&self, server: &ServerSpec, tool: &Tool) -> Option<Tool> {
        let Hex(hash) = tool.hash.filter(|_| server.pin == Pin::Hold)?;
        match self.known(&server.id, &tool.name)?.others.get(&hash)? {
            KnownDefinition::Told(accepted) => copy_of(accepted.as_deref()?, tool),
            _ => None,
        }
    }
}

impl KnownDefinitions {
    /// Whether the definition was accepted, by its hash or by the one that an earlier release gave it: that of the whole
    /// text.
    fn has_accepted(&self, hash: Hash, tool: &Tool) -> bool {
        self.accepted.contains(&hash)
            || self
                .accepted
                .contains(&canonical::hash(&canonical::definition(tool)))
    }
}

impl ServerSpec {
    /// Whether anybody looks whether its tools change. Those of the program itself change with its release.
    pub fn is_pinned(&self) -> bool {
        self.pin != Pin::Off && !orchestrator::is_built_in(self)
    }

    /// Whether all who use the server see the same list.
    pub fn is_one_list(&self) -> bool {
        self.access_mode == AccessMode::AdminControlled && self.run_config.is_none()
    }
}

/// How a definition differs from an accepted one, by the names of fields and hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// What the model reads, what arguments mean, and hints that promise more.
    pub held: Vec<&'static str>,
    /// Anything else.
    pub told: Vec<&'static str>,
}

/// Compares a tool with a definition that was accepted ([`canonical::definition`]). Two that differ only in order, blanks,
/// `$schema` or in defaults that one of them writes out do not differ.
pub fn compare(accepted: &str, tool: &Tool) -> Difference {
    let now = canonical::definition(tool);
    let Ok(before) = Json::parse(accepted) else {
        let held = if accepted == now {
            vec![]
        } else {
            vec!["definition"]
        };
        return Difference { held, told: vec![] };
    };
    let Ok(now) = Json::parse(&now) else {
        return Difference {
            held: vec!["definition"],
            told: vec![],
        };
    };
    let (before, now) = (Reading::new(&before), Reading::new(&now));
    let mut found = Difference::default();
    for (name, was, is) in before
        .read
        .iter()
        .zip(&now.read)
        .map(|(a, b)| (a.0, &a.1, &b.1))
    {
        if was != is {
            found.held.push(name);
        }
    }
    if found.held.last() != Some(&SCHEMA) && before.closed != now.closed {
        // An object that takes no unknown members takes less than before.
        if before.closed.is_subset(&now.closed) {
            found.told.push(SCHEMA);
        } else {
            found.held.push(SCHEMA);
        }
    }
    found.held.extend(now.promises.difference(&before.promises));
    found.told.extend(before.promises.difference(&now.promises));
    for (name, was, is) in before
        .aside
        .iter()
        .zip(&now.aside)
        .map(|(a, b)| (a.0, &a.1, &b.1))
    {
        if was != is {
            found.told.push(name);
        }
    }
    found
}

/// The hash of a tool's definition, which is the same for all definitions that do not differ ([`compare`]).
pub fn fingerprint(tool: &Tool) -> Hash {
    let definition = canonical::definition(tool);
    let Ok(parsed) = Json::parse(&definition) else {
        return canonical::hash(&definition);
    };
    let reading = Reading::new(&parsed);
    let mut text = String::new();
    let fields = reading.read.iter().chain(&reading.aside);
    for (name, value) in fields {
        let _ = write!(text, "\n{name} {value}");
    }
    for name in reading
        .closed
        .iter()
        .map(String::as_str)
        .chain(reading.promises)
    {
        let _ = write!(text, "\n{}", quoted(name));
    }
    canonical::hash(&text)
}

const SCHEMA: &str = "inputSchema";

/// What the protocol says a hint is where a server does not say it, and what promises more.
const HINTS: [(&str, bool); 4] = [
    ("readOnlyHint", false),
    ("destructiveHint", true),
    ("idempotentHint", false),
    ("openWorldHint", true),
];

/// A definition as it is compared: each part in one spelling, with nothing that means the same when it is left out.
struct Reading {
    /// What the model reads and what arguments mean, in the order of the definition.
    read: [(&'static str, String); 5],
    /// Where the input schema takes no unknown members.
    closed: BTreeSet<String>,
    /// The hints that promise more than a server that says nothing.
    promises: BTreeSet<&'static str>,
    aside: [(&'static str, String); 4],
}

impl Reading {
    fn new(definition: &Json) -> Self {
        let text = |name: &str| {
            let text = definition.get(name).and_then(Json::as_text);
            without_blanks(text.unwrap_or_default())
        };
        let mut closed = BTreeSet::new();
        let schema = definition.get(SCHEMA).map(|schema| {
            let mut schema = normalise(schema, Some(&mut closed), "");
            if let Json::Object(members) = &mut schema {
                members.add("type", Json::Text("object".to_owned()));
            }
            schema
        });
        let output = definition
            .get("outputSchema")
            .map(|schema| normalise(schema, None, ""));
        let spell = |json: Option<&Json>| match json {
            None | Some(Json::Null) => String::new(),
            Some(Json::Object(members)) if members.is_empty() => String::new(),
            Some(Json::List(items)) if items.is_empty() => String::new(),
            Some(json) => canonical::text(json).unwrap_or_else(|_| json.to_string()),
        };
        let hints = definition.get("annotations").and_then(Json::as_object);
        let hint = |name: &str| hints.and_then(|hints| hints.get(name));
        let promises = HINTS.iter().filter(
            |(name, default)| matches!(hint(name), Some(Json::Bool(value)) if value != default),
        );
        let rest = hints.iter().flat_map(|hints| hints.iter());
        let rest = rest
            .filter(|(name, _)| *name != "title" && HINTS.iter().all(|(hint, _)| hint != name))
            .map(|(name, value)| (name.to_owned(), value.clone()));
        let rest: Members = rest.collect();
        let hint_title = hint("title").and_then(Json::as_text).unwrap_or_default();
        Self {
            read: [
                ("name", text("name")),
                ("title", text("title")),
                ("description", text("description")),
                ("annotations.title", without_blanks(hint_title)),
                (SCHEMA, spell(schema.as_ref())),
            ],
            promises: promises.map(|(name, _)| *name).collect(),
            aside: [
                ("outputSchema", spell(output.as_ref())),
                ("annotations", spell(Some(&Json::Object(rest)))),
                ("icons", spell(definition.get("icons"))),
                ("_meta", spell(definition.get("_meta"))),
            ],
            closed,
        }
    }
}

/// A text with one blank wherever there are some, and none at its ends.
fn without_blanks(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ")
}

/// The keywords whose value is a schema, a list of schemas, or an object of schemas by name.
const SCHEMAS: [&str; 13] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
];
const SCHEMAS_BY_NAME: [&str; 5] = [
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
];
/// The keywords below which a stricter schema may let more in.
const INVERTING: [&str; 3] = ["if", "not", "oneOf"];

/// Whether a keyword with this value says nothing.
fn is_default(name: &str, value: &Json) -> bool {
    let is_zero = |number: &super::json::Number| {
        number
            .decimal()
            .is_some_and(|number| number.canonical() == "0")
    };
    match (name, value) {
        ("$schema", _)
        | ("additionalProperties" | "additionalItems" | "items", Json::Bool(true))
        | (
            "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" | "nullable"
            | "exclusiveMinimum" | "exclusiveMaximum",
            Json::Bool(false),
        ) => true,
        ("minItems" | "minLength" | "minProperties", Json::Number(number)) => is_zero(number),
        ("required", Json::List(items)) => items.is_empty(),
        (
            "additionalProperties" | "additionalItems" | "items" | "dependentRequired",
            Json::Object(members),
        ) => members.is_empty(),
        (name, Json::Object(members)) => SCHEMAS_BY_NAME.contains(&name) && members.is_empty(),
        _ => false,
    }
}

/// A schema in one spelling. Where it takes no unknown members, the place goes into `closed`, and not into the schema.
fn normalise(schema: &Json, mut closed: Option<&mut BTreeSet<String>>, place: &str) -> Json {
    let Json::Object(members) = schema else {
        return schema.clone();
    };
    let mut spelt = Vec::new();
    for (name, value) in members
        .iter()
        .filter(|(name, value)| !is_default(name, value))
    {
        if let ("additionalProperties", Json::Bool(false), Some(closed)) =
            (name, value, &mut closed)
        {
            closed.insert(place.to_owned());
            continue;
        }
        let mut below = closed.as_deref_mut().filter(|_| !INVERTING.contains(&name));
        let place = format!("{place}/{name}");
        let value = match value {
            Json::Text(text) if name == "description" || name == "title" => {
                Json::Text(without_blanks(text))
            }
            Json::List(items) if name == "type" && items.len() == 1 => items[0].clone(),
            Json::List(items) if ["enum", "required", "type"].contains(&name) => sort(items),
            Json::List(items) if SCHEMAS.contains(&name) => {
                let items = items.iter().enumerate();
                let items = items.map(|(at, item)| {
                    normalise(item, below.as_deref_mut(), &format!("{place}/{at}"))
                });
                Json::List(items.collect())
            }
            value if SCHEMAS.contains(&name) => normalise(value, below, &place),
            Json::Object(named) if SCHEMAS_BY_NAME.contains(&name) => {
                let spelt = named.iter().map(|(member, schema)| {
                    let member_place = member.replace('~', "~0").replace('/', "~1");
                    let place = format!("{place}/{member_place}");
                    let schema = normalise(schema, below.as_deref_mut(), &place);
                    (member.to_owned(), schema)
                });
                Json::Object(spelt.collect())
            }
            value => value.clone(),
        };
        spelt.push((name.to_owned(), value));
    }
    Json::Object(spelt.into_iter().collect())
}

/// A list whose order says nothing.
fn sort(items: &[Json]) -> Json {
    let spelt = items.iter().map(|item| {
        (
            canonical::text(item).unwrap_or_else(|_| item.to_string()),
            item,
        )
    });
    let sorted: BTreeMap<_, _> = spelt.collect();
    Json::List(sorted.into_values().cloned().collect())
}

/// A tool with what its accepted definition says in the fields that clients read.
fn copy_of(accepted: &str, tool: &Tool) -> Option<Tool> {
    let accepted = Json::parse(accepted).ok()?;
    let raw = |name: &str| accepted.get(name).map(Json::to_raw);
    Some(Tool {
        input_schema: raw(SCHEMA)?,
        output_schema: raw("outputSchema"),
        annotations: raw("annotations"),
        icons: raw("icons"),
        meta: raw("_meta"),
        ..tool.clone()
    })
}

/// The members of a definition as people read them.
const IN_ORDER: [&str; 8] = [
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
    "annotations",
    "icons",
    "_meta",
];

/// A definition in lines for people, so that two of them can be compared: texts as they are, JSON with one member a line.
/// Characters that nobody sees stand as `\u202e`. Unlike the definition it is not for machines. What cannot be read, because
/// it is nested too deeply, stands as it is, after a line that says so.
pub fn to_lines(definition: &str) -> String {
    let mut lines = String::new();
    let parsed = match Json::parse(definition) {
        Ok(parsed) => parsed,
        Err(why) => {
            let text = format!("(not in lines, because {why})\n{definition}\n");
            return escape_hidden(&text);
        }
    };
    for name in IN_ORDER {
        let Some(value) = parsed.get(name) else {
            continue;
        };
        match value {
            Json::Text(text) if text.contains('\n') => {
                let text = text.replace('\n', "\n  ");
                let _ = write!(lines, "{name}:\n  {text}");
            }
            Json::Text(text) => {
                let _ = write!(lines, "{name}: {text}");
            }
            value => {
                let _ = write!(lines, "{name}: ");
                push_json(&mut lines, value, 0);
            }
        }
        lines.push('\n');
    }
    escape_hidden(&lines)
}

fn push_json(lines: &mut String, value: &Json, depth: usize) {
    let new_line = |lines: &mut String, depth: usize| {
        lines.push('\n');
        lines.push_str(&"  ".repeat(depth));
    };
    match value {
        Json::Object(members) if members.iter().next().is_some() => {
            lines.push('{');
            for (at, (name, member)) in members.iter().enumerate() {
                lines.push_str(if at == 0 { "" } else { "," });
                new_line(lines, depth + 1);
                let _ = write!(lines, "{}: ", quoted(name));
                push_json(lines, member, depth + 1);
            }
            new_line(lines, depth);
            lines.push('}');
        }
        Json::List(items) if !items.is_empty() => {
            lines.push('[');
            for (at, item) in items.iter().enumerate() {
                lines.push_str(if at == 0 { "" } else { "," });
                new_line(lines, depth + 1);
                push_json(lines, item, depth + 1);
            }
            new_line(lines, depth);
            lines.push(']');
        }
        value => lines.push_str(&value.to_string()),
    }
}
