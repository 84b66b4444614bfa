//! The arguments of a call: what a sentence says, put where the tool's schema has a place for it.

use serde_json::{Map, Value, json};

use super::{
    conversation::{Tool, Turn},
    results,
    sentence::Facts,
    words::{fold, name_words, words},
};

/// What a property of a schema is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Amount,
    /// The only currency, or the one that somebody has.
    Currency,
    /// The currency that somebody wants.
    CurrencyTo,
    Recipient,
    Account,
    /// The only place, or the first of two.
    Zone,
    ZoneTo,
    Clock,
    Text,
    Query,
    Number,
    Other,
}

/// What the arguments still lack.
pub(super) enum Lack {
    /// Another tool knows the ids from which one is to be chosen.
    Lookup(String),
    Answer(Gap),
}

/// What only the user can say.
#[derive(Clone, Debug)]
pub(super) struct Gap {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) choices: Vec<String>,
    /// What the user said, which is none of the choices.
    pub(super) unfit: Option<String>,
}

/// Words of names, then words of descriptions, that tell what a property is for; the first that fits counts.
const NAMES: &[(Role, &[&str])] = &[
    (
        Role::Amount,
        &[
            "amount", "value", "sum", "quantity", "importe", "monto", "montant", "cents",
        ],
    ),
    (
        Role::Currency,
        &[
            "currency", "ccy", "moneda", "divisa", "devise", "base", "symbol",
        ],
    ),
    (Role::CurrencyTo, &["quote", "counter"]),
    (
        Role::Zone,
        &[
            "timezone", "tz", "zone", "city", "location", "place", "ciudad", "ville",
        ],
    ),
    (
        Role::Recipient,
        &[
            "recipient",
            "beneficiary",
            "payee",
            "receiver",
            "creditor",
            "destinatario",
            "beneficiario",
            "destinataire",
            "customer",
            "client",
            "vendor",
            "supplier",
        ],
    ),
    (
        Role::Account,
        &["account", "acct", "wallet", "cuenta", "compte", "debit"],
    ),
    (
        Role::Text,
        &[
            "text",
            "note",
            "content",
            "body",
            "message",
            "memo",
            "texto",
            "contenido",
            "texte",
            "contenu",
        ],
    ),
    (
        Role::Query,
        &[
            "query",
            "q",
            "search",
            "containing",
            "contains",
            "filter",
            "keyword",
            "keywords",
            "term",
        ],
    ),
    (Role::Clock, &["time", "hour", "clock", "hora", "heure"]),
];
const DESCRIPTIONS: &[(Role, &[&str])] = &[
    (Role::Currency, &["currency", "iso 4217"]),
    (Role::Zone, &["timezone", "time zone", "iana"]),
    (
        Role::Recipient,
        &[
            "recipient",
            "beneficiary",
            "payee",
            "who is to pay",
            "who gets",
        ],
    ),
    (Role::Account, &["account"]),
    (Role::Amount, &["amount", "how much"]),
    (Role::Query, &["words", "search"]),
    (Role::Text, &["text", "note"]),
];
const SECOND: &[&str] = &[
    "to",
    "target",
    "buy",
    "want",
    "dest",
    "destination",
    "into",
    "quote",
    "counter",
];

/// What a schema has places for, nested ones included.
pub(super) fn roles(schema: &Value) -> Vec<Role> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let roles = properties.flat_map(|(name, property)| {
        let property = resolve(property, schema);
        let inner = if property["properties"].is_object() {
            roles(property)
        } else {
            Vec::new()
        };
        inner.into_iter().chain([role(name, property)])
    });
    roles.collect()
}

/// The schema that a reference or alternatives with `null` stand for.
fn resolve<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return root
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or(schema);
    }
    let branches = ["anyOf", "oneOf", "allOf"]
        .iter()
        .find_map(|keyword| schema[*keyword].as_array());
    let branch =
        branches.and_then(|branches| branches.iter().find(|branch| branch["type"] != "null"));
    match branch {
        Some(branch) if schema["type"].is_null() => {
            let inner = resolve(branch, root);
            // What the property says of itself is often beside its branches.
            if inner["description"].is_null() && schema["description"].is_string() {
                schema
            } else {
                inner
            }
        }
        _ => schema,
    }
}

fn role(name: &str, schema: &Value) -> Role {
    let names: Vec<String> = name_words(name).iter().map(|word| fold(word)).collect();
    let description = schema["description"].as_str().unwrap_or_default();
    let described = words(description);
    let holds = |phrase: &&str| super::words::find_phrase(phrase, &described).is_some();
    let is_second = names.iter().any(|word| SECOND.contains(&word.as_str()))
        || ["buy ", "target ", "to "]
            .iter()
            .any(|word| description.to_lowercase().starts_with(word))
        || super::words::find_phrase("to buy", &described).is_some();
    let is_number = is_kind(schema, "integer");
    let found = if !codes(schema).is_empty() {
        Role::Currency
    } else if let Some((role, _)) = NAMES
        .iter()
        .find(|(_, known)| names.iter().any(|word| known.contains(&word.as_str())))
    {
        *role
    } else if is_number || names.iter().any(|word| word == "number" || word == "index") {
        Role::Number
    } else if let Some((role, _)) = DESCRIPTIONS
        .iter()
        .find(|(_, known)| known.iter().any(&holds))
    {
        *role
    } else if names == ["to"] {
        Role::Recipient
    } else {
        Role::Other
    };
    match found {
        Role::Currency if is_second => Role::CurrencyTo,
        Role::Zone if is_second => Role::ZoneTo,
        // An account that money goes to is a recipient.
        Role::Account if is_second => Role::Recipient,
        found => found,
    }
}

fn is_kind(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind
        || schema["type"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|known| known == kind))
}

/// The values that a property takes, if these are codes of currencies.
fn codes(schema: &Value) -> Vec<&str> {
    let values: Vec<&str> = choices(schema);
    let is_code = |value: &&str| value.len() == 3 && value.chars().all(|c| c.is_ascii_uppercase());
    if values.iter().all(is_code) {
        values
    } else {
        Vec::new()
    }
}

fn choices(schema: &Value) -> Vec<&str> {
    let values = schema["enum"].as_array().into_iter().flatten();
    values.filter_map(Value::as_str).collect()
}

/// Fills a schema with what is known. `turn` has the results of what was looked up for it.
pub(super) fn fill(tool: &Tool, facts: &Facts, tools: &[Tool], turn: &Turn) -> Result<Value, Lack> {
    let filling = Filling {
        facts,
        tools,
        turn,
        root: &tool.schema,
    };
    filling.fill_object(&tool.schema).map(Value::Object)
}

/// The tools that know the ids for a tool's arguments and were not asked yet.
pub(super) fn lookups(tool: &Tool, tools: &[Tool], turn: &Turn) -> Vec<String> {
    let properties = tool.schema["properties"].as_object().into_iter().flatten();
    let required = |name: &str| {
        let names = tool.schema["required"].as_array().into_iter().flatten();
        names.into_iter().any(|known| known == name)
    };
    let lists = properties.filter_map(|(name, written)| {
        let schema = resolve(written, &tool.schema);
        let is_id = matches!(role(name, schema), Role::Recipient | Role::Account);
        let is_open =
            is_id && required(name) && choices(schema).is_empty() && given(schema).is_none();
        let list = lookup(schema, tools).filter(|_| is_open)?;
        turn.result_of(&list.name)
            .is_none()
            .then(|| list.name.clone())
    });
    lists.collect()
}

/// A tool without arguments of its own that the description of a property names.
fn lookup<'a>(schema: &Value, tools: &'a [Tool]) -> Option<&'a Tool> {
    let described = words(schema["description"].as_str()?);
    let named = |tool: &&Tool| {
        described
            .iter()
            .any(|word| word.folded == fold(&tool.title))
    };
    let is_free = |tool: &&Tool| tool.schema["required"].as_array().is_none_or(Vec::is_empty);
    tools.iter().filter(named).find(is_free)
}

struct Filling<'a> {
    facts: &'a Facts,
    tools: &'a [Tool],
    turn: &'a Turn,
    root: &'a Value,
}

impl Filling<'_> {
    fn fill_object(&self, schema: &Value) -> Result<Map<String, Value>, Lack> {
        let mut filled = Map::new();
        let (mut lookup, mut gaps) = (None, Vec::new());
        let required = schema["required"].as_array();
        for (name, written) in schema["properties"].as_object().into_iter().flatten() {
            let is_required = required.is_some_and(|names| names.iter().any(|known| known == name));
            match self.fill_property(name, resolve(written, self.root), is_required) {
                Ok(Some(value)) => {
                    filled.insert(name.clone(), value);
                }
                Ok(None) => {}
                Err(Lack::Lookup(name)) => lookup = lookup.or(Some(name)),
                Err(Lack::Answer(gap)) => gaps.push(gap),
            }
        }
        // What only the user can say is asked before anything is looked up.
        let is_id = |gap: &Gap| matches!(gap.role, Role::Recipient | Role::Account);
        if let Some(at) = gaps.iter().position(|gap| !is_id(gap)) {
            return Err(Lack::Answer(gaps.swap_remove(at)));
        }
        match (lookup, gaps.into_iter().next()) {
            (Some(name), _) => Err(Lack::Lookup(name)),
            (None, Some(gap)) => Err(Lack::Answer(gap)),
            (None, None) => Ok(filled),
        }
    }

    fn fill_property(
        &self,
        name: &str,
        schema: &Value,
        is_required: bool,
    ) -> Result<Option<Value>, Lack> {
        if schema["properties"].is_object() {
            return match self.fill_object(schema) {
                Ok(inner) if inner.is_empty() && !is_required => Ok(None),
                Ok(inner) => Ok(Some(inner.into())),
                Err(_) if !is_required => Ok(None),
                Err(lack) => Err(lack),
            };
        }
        let role = role(name, schema);
        let said = self.facts.get(name, role);
        let gap = |choices: Vec<String>, unfit: Option<String>| {
            let name = name.to_owned();
            Lack::Answer(Gap {
                name,
                role,
                choices,
                unfit,
            })
        };
        let is_id = matches!(role, Role::Recipient | Role::Account);
        if is_id
            && is_required
            && choices(schema).is_empty()
            && given(schema).is_none()
            && let Some(list) = lookup(schema, self.tools)
        {
            return match self.turn.result_of(&list.name) {
                None => Err(Lack::Lookup(list.name.clone())),
                Some(result) => match results::choose(result, role, self.facts) {
                    Ok(id) => Ok(Some(id.into())),
                    // Who cannot be looked up is called as the user called them.
                    Err(choices) if choices.is_empty() => match said {
                        Some(said) => Ok(Some(said.into())),
                        None => Err(gap(choices, None)),
                    },
                    Err(choices) => Err(gap(choices, said)),
                },
            };
        }
        if let Some(said) = said {
            let known = choices(schema);
            if !known.is_empty() {
                let fits = known.iter().find(|value| fold(value) == fold(&said));
                return match fits {
                    Some(value) => Ok(Some((*value).into())),
                    None => Err(gap(
                        known.iter().map(|value| (*value).to_owned()).collect(),
                        Some(said),
                    )),
                };
            }
            return match typed(&said, schema) {
                Some(value) => Ok(Some(value)),
                None => Err(gap(Vec::new(), Some(said))),
            };
        }
        let unread = self.facts.unread_amount.clone();
        if let Some(unread) = unread.filter(|_| role == Role::Amount) {
            return Err(gap(Vec::new(), Some(unread)));
        }
        if !is_required {
            return Ok(None);
        }
        if let Some(value) = given(schema) {
            return Ok(Some(value));
        }
        Err(gap(
            choices(schema).into_iter().map(str::to_owned).collect(),
            None,
        ))
    }
}

/// The value that a schema itself gives: the only one, its default, or the one that its description names for users who say
/// nothing.
fn given(schema: &Value) -> Option<Value> {
    if let Some(value) = schema.get("const").or_else(|| schema.get("default")) {
        return Some(value.clone()).filter(|value| !value.is_null());
    }
    if let Some([only]) = schema["enum"].as_array().map(Vec::as_slice) {
        return Some(only.clone());
    }
    let description = schema["description"].as_str()?;
    let (_, rest) = description.split_once("Use '")?;
    let (value, rest) = rest.split_once('\'')?;
    rest.contains(" if no ").then(|| value.into())
}

/// A text as the type that a schema wants.
fn typed(said: &str, schema: &Value) -> Option<Value> {
    if is_kind(schema, "string") || schema["type"].is_null() {
        return Some(said.into());
    }
    if is_kind(schema, "number") {
        return serde_json::from_str::<serde_json::Number>(said)
            .ok()
            .map(Value::Number);
    }
    if is_kind(schema, "integer") {
        let description = schema["description"]
            .as_str()
            .unwrap_or_default()
            .to_lowercase();
        if ["cents", "minor unit"]
            .iter()
            .any(|word| description.contains(word))
        {
            let (whole, part) = said.split_once('.').unwrap_or((said, ""));
            let minor = (part.len() <= 2).then(|| format!("{whole}{part:0<2}"))?;
            return minor.parse::<u64>().ok().map(|minor| json!(minor));
        }
        return said.parse::<u64>().ok().map(|number| json!(number));
    }
    None
}
