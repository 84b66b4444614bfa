//! Names in a pack that fit no tool of their server. In a rule about calls such a name was meant to guard something, so
//! a tool whose name is close to it is closed until the pack is mended. And tools that no name in a pack fits, which a
//! rule guards because they look like one that it names.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::Map;
use time::OffsetDateTime;

use super::{
    CallFacts, Condition, Limit, Origin, ToolAccess, ToolPattern, Vars, any_matches,
    lookalikes::APPROVAL,
};
use crate::{
    json::{Json, Members, Number},
    orchestrator,
    pack::Pack,
    server::ServerSpec,
    tool::Tool,
    tool_schema::takes_unknown_members,
};

/// How deep a value is made to try conditions with.
const MAX_SAMPLE: usize = 6;

impl ToolAccess {
    /// The tools that a misspelt name of a rule about calls was probably meant to guard, and that no such rule guards.
    pub fn closed_tools<'t>(&self, tools: &[&'t str]) -> BTreeSet<&'t str> {
        let mut closed = BTreeSet::new();
        for (place, names) in self.guards() {
            for name in unmatched(names, tools) {
                closed.extend(self.closed_by(place, name, tools));
            }
        }
        closed
    }

    fn closed_by<'t>(&self, place: &str, name: &ToolPattern, tools: &[&'t str]) -> Vec<&'t str> {
        let is_guarded = |tool: &str| {
            let mut guards = self.guards().filter(|(other, _)| *other == place);
            guards.any(|(_, names)| any_matches(names, tool))
        };
        let close = tools
            .iter()
            .copied()
            .filter(|tool| !is_guarded(tool) && is_close(&name.0, tool));
        close.collect()
    }
}

impl Pack {
    /// The names in the rules of a server, and in the skills that call it, that fit none of its tools, and the tools that
    /// are guarded for what they look like, each as a sentence.
    /// Then what conditions and sums ask of arguments that the tools do not take.
    pub fn unmatched_names(&self, server: &ServerSpec, tools: &[Arc<Tool>]) -> Vec<String> {
        let known: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let skills = self.skills.iter().filter(|skill| skill.server == server.id);
        let of_skills = skills.flat_map(|skill| {
            let lacking = skill.tools.iter();
            let lacking = lacking.filter(|name| !known.contains(&name.as_str()));
            lacking.map(|name| {
                format!(
                    "the skill `{}` names {name:?}, which the server does not have",
                    skill.id
                )
            })
        });
        let mut sentences = server.unmatched_names(&known);
        sentences.extend(of_skills);
        sentences.extend(
            tools
                .iter()
                .flat_map(|tool| self.unfit_conditions(server, tool)),
        );
        sentences
    }
}

impl Pack {
    /// What the rules about a tool ask of arguments that it does not take, or that are of another type.
    fn unfit_conditions(&self, server: &ServerSpec, tool: &Tool) -> Vec<String> {
        let Some(sample) = SampleCall::new(tool) else {
            return Vec::new();
        };
        let conditions = server.conditions_of(&tool.name);
        let unfit = conditions.filter_map(|when| sample.find_unfit(when, &self.vars));
        let limits = server.limits(&tool.name);
        let unreadable = limits.filter_map(|(_, limit)| sample.find_unreadable(limit));
        unfit.chain(unreadable).collect()
    }
}

impl ServerSpec {
    /// The tools that rules guard and whose schema takes members that it does not name: a rule cannot tell what the server
    /// makes of those.
    pub fn list_open_tools<'t>(&self, tools: &'t [Arc<Tool>]) -> Vec<&'t str> {
        let tools = tools.iter();
        let open = tools.filter(|tool| {
            self.is_guarded(&tool.name) && takes_unknown_members(&tool.input_schema)
        });
        open.map(|tool| tool.name.as_str()).collect()
    }
}

/// What to say of such tools.
pub const TAKES_UNKNOWN: &str = "takes unknown members, of which the rules know nothing; its schema should say `additionalProperties: false`";

/// A call of a tool with arguments of the types that its schema says, to try rules with.
pub struct SampleCall<'a> {
    tool: &'a Tool,
    properties: Members,
    /// A value for each, without those whose type the schema leaves open.
    values: Json,
}

impl<'a> SampleCall<'a> {
    /// `None` where the schema names no arguments.
    pub fn new(tool: &'a Tool) -> Option<Self> {
        let schema = Json::parse(tool.input_schema.get()).ok()?;
        let properties = schema.get("properties").and_then(Json::as_object)?;
        let mut values = Members::default();
        for (name, schema) in properties.iter() {
            if let Some(value) = sample(schema, 1) {
                values.add(name, value);
            }
        }
        Some(Self {
            tool,
            properties: properties.clone(),
            values: Json::Object(values),
        })
    }

    /// The names of the tool's arguments.
    pub fn arguments(&self) -> Vec<&str> {
        self.properties.iter().map(|(name, _)| name).collect()
    }

    /// Why a condition cannot be evaluated for calls of the tool, as a sentence.
    pub fn find_unfit(&self, condition: &Condition, vars: &Vars) -> Option<String> {
        let facts = CallFacts {
            arguments: &self.values,
            claims: &Map::new(),
            origin: Origin::default(),
            now: OffsetDateTime::UNIX_EPOCH,
            vars,
            exceeded: &[],
            only_reads: false,
        };
        let problem = match self.find_missing(condition.arguments().names()) {
            Some(missing) => missing,
            None => condition.find_type_problem(&facts)?,
        };
        Some(format!(
            "the condition {:?} for {:?} cannot be evaluated, so its rule always applies: {problem}",
            condition.source(),
            self.tool.name
        ))
    }

    /// Why a limit cannot read what it adds up, as a sentence.
    pub fn find_unreadable(&self, limit: &Limit) -> Option<String> {
        let path = limit.sum.as_ref()?;
        let problem = match self.find_missing(path.first()) {
            Some(missing) => missing,
            None if limit.amount(&self.values).is_some() => return None,
            None => {
                let mut value = Some(&self.values);
                for name in path {
                    value = value.and_then(|value| value.get(name));
                }
                // Where the type is open, a call may have an amount.
                value?;
                "it is no number".to_owned()
            }
        };
        Some(format!(
            "the sum `args.{}` for {:?} cannot be read, so each call is too much: {problem}",
            path.join("."),
            self.tool.name
        ))
    }

    fn find_missing<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Option<String> {
        let mut names = names.into_iter();
        let missing = names.find(|name| self.properties.get(name).is_none());
        missing.map(|name| format!("the tool has no argument `{name}`"))
    }
}

/// A value that fits a schema in its type; `None` where the schema leaves the type open.
fn sample(schema: &Json, depth: usize) -> Option<Json> {
    let number = |text: &str| Number::parse(text).map(Json::Number);
    if let Some(Json::List(choices)) = schema.get("enum") {
        return choices.first().cloned();
    }
    let kind = match schema.get("type")? {
        Json::List(kinds) => {
            let mut kinds = kinds.iter().filter_map(Json::as_text);
            let kind = kinds.find(|kind| *kind != "null");
            kind.filter(|_| kinds.all(|kind| kind == "null"))
        }
        kind => kind.as_text(),
    };
    match kind? {
        "integer" => number("1"),
        "number" => number("1.5"),
        "boolean" => Some(Json::Bool(true)),
        // A text that can be read as a number, since `double(args.amount)` is written for those.
        "string" => Some(Json::Text("1".to_owned())),
        "array" => {
            let items = schema.get("items").filter(|_| depth < MAX_SAMPLE);
            let item = items.and_then(|items| sample(items, depth + 1));
            Some(Json::List(item.into_iter().collect()))
        }
        "object" if depth < MAX_SAMPLE => {
            let mut members = Members::default();
            let properties = schema.get("properties").and_then(Json::as_object);
            for (name, schema) in properties.iter().flat_map(|properties| properties.iter()) {
                if let Some(value) = sample(schema, depth + 1) {
                    members.add(name, value);
                }
            }
            Some(Json::Object(members))
        }
        _ => None,
    }
}

impl ServerSpec {
    fn unmatched_names(&self, tools: &[&str]) -> Vec<String> {
        let aliases = orchestrator::aliases().filter(|_| orchestrator::is_built_in(self));
        let mut known = tools.to_vec();
        aliases.for_each(|alias| known.push(alias));
        let tools = known.as_slice();
        let sentence = |place: &str, name: &ToolPattern| {
            format!(
                "`{place}` names {:?}, which the server does not have",
                name.0
            )
        };
        let list = |place: &str, names: &[ToolPattern]| -> Vec<String> {
            let names = unmatched(names, tools);
            names.map(|name| sentence(place, name)).collect()
        };
        let mut sentences = list("tools", self.tools.as_deref().unwrap_or_default());
        let Some(access) = &self.tool_access else {
            return sentences;
        };
        sentences.extend(list("toolAccess.public", &access.public));
        for (role, names) in access.roles.iter().flatten() {
            sentences.extend(list(&format!("toolAccess.roles.{role}"), names));
        }
        for (place, names) in access.guards() {
            for name in unmatched(names, tools) {
                let mut said = sentence(place, name);
                let closed = access.closed_by(place, name, tools);
                if !closed.is_empty() {
                    said += &format!("; {} is closed until it is corrected", closed.join(", "));
                }
                sentences.push(said);
            }
        }
        sentences.extend(tools.iter().filter_map(|tool| {
            let (place, name) = self.taken_for(tool)?;
            let same = if place == APPROVAL {
                "its calls need the same approval"
            } else {
                "the same rule holds for its calls"
            };
            Some(format!(
                "{tool:?} can be taken for {:?} of `{place}`, so {same}; name it in the pack to give it a rule of its own",
                name.0
            ))
        }));
        sentences
    }
}

fn unmatched<'p>(
    names: &'p [ToolPattern],
    tools: &[&str],
) -> impl Iterator<Item = &'p ToolPattern> {
    names
        .iter()
        .filter(move |name| !tools.iter().any(|tool| name.matches(tool)))
}

/// Whether two names differ in a letter or two (one where they are short), in case, or in `-` for `_`.
pub fn is_close(name: &str, tool: &str) -> bool {
    let folded = |text: &str| -> Vec<char> {
        let letters = text.chars().flat_map(char::to_lowercase);
        letters.map(|c| if c == '-' { '_' } else { c }).collect()
    };
    let (name, tool) = (folded(name), folded(tool));
    let most = if name.len().min(tool.len()) <= 4 {
        1
    } else {
        2
    };
    !name.contains(&'*')
        && name.len().abs_diff(tool.len()) <= most
        && distance(&name, &tool) <= most
}

/// How many letters have to be changed, added or removed (Levenshtein).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
