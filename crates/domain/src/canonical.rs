//! JSON that has one spelling, so that what was approved can be named by a hash and compared byte by byte with what
//! runs: RFC 8785, but for numbers, which keep all their digits ([`Decimal::canonical`](super::json::Decimal::canonical)).
//! Text that two readers could understand differently has none: [`ambiguity`] finds it in the text, because a parsed
//! value no longer shows it.

use std::fmt;

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

use super::{
    json::{Json, Members, quoted},
    tool::Tool,
};

pub type Hash = [u8; 32];

/// The one spelling of a value: members sorted by UTF-16, each number as its decimal is written, no space. Values that
/// are equal as decimals (`1`, `1.0`, `10e-1`) have one spelling.
pub fn text(value: &Json) -> Result<String, String> {
    let mut text = String::new();
    write(value, &mut text)?;
    Ok(text)
}

fn write(value: &Json, text: &mut String) -> Result<(), String> {
    match value {
        Json::Number(number) => {
            let decimal = number.decimal().ok_or_else(|| {
                let number: String = number.as_str().chars().take(40).collect();
                format!("the exponent of the number {number} is too large; write it as text")
            })?;
            text.push_str(&decimal.canonical());
        }
        Json::List(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { "," });
                write(item, text)?;
            }
            text.push(']');
        }
        Json::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            text.push('{');
            for (at, (name, member)) in members.into_iter().enumerate() {
                text.push_str(if at == 0 { "" } else { "," });
                text.push_str(&quoted(name));
                text.push(':');
                write(member, text)?;
            }
            text.push('}');
        }
        Json::Null | Json::Bool(_) | Json::Text(_) => text.push_str(&value.to_string()),
    }
    Ok(())
}

/// SHA-256 of a text.
pub fn hash(text: &str) -> Hash {
    Sha256::digest(text.as_bytes()).into()
}

/// What a tool was when an approver consented to a call of it: SHA-256 over its whole description, with numbers as RFC 8785
/// writes them. An earlier release did so, too, and its requests may still wait.
pub fn fingerprint(tool: &Tool) -> Result<Hash, String> {
    let raw = |json: &RawValue| {
        serde_json::from_str::<Value>(json.get()).map_err(|error| error.to_string())
    };
    let or_null = |json: Option<&RawValue>| json.map_or(Ok(Value::Null), raw);
    let said = serde_json::json!({
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": raw(&tool.input_schema)?,
        "outputSchema": or_null(tool.output_schema.as_deref())?,
        "annotations": or_null(tool.annotations.as_deref())?,
    });
    let text = serde_json_canonicalizer::to_string(&said).map_err(|error| error.to_string())?;
    Ok(hash(&text))
}

/// Everything that a server says of a tool, in one spelling: what an admin accepts, and what the tool is held for when it
/// changes. JSON that has no one spelling stands as the text that the server sent.
pub fn definition(tool: &Tool) -> String {
    let raw = |json: &RawValue| {
        let parsed = Json::parse(json.get()).ok();
        parsed
            .filter(|parsed| text(parsed).is_ok() && ambiguity(json.get()).is_none())
            .unwrap_or_else(|| Json::Text(json.get().to_owned()))
    };
    let plain = |text: &str| Json::Text(text.to_owned());
    let optional = |json: &Option<Box<RawValue>>| json.as_deref().map(raw);
    let members = [
        ("name", Some(plain(&tool.name))),
        ("title", tool.title.as_deref().map(plain)),
        ("description", Some(plain(&tool.description))),
        ("inputSchema", Some(raw(&tool.input_schema))),
        ("outputSchema", optional(&tool.output_schema)),
        ("annotations", optional(&tool.annotations)),
        ("icons", optional(&tool.icons)),
        ("_meta", optional(&tool.meta)),
    ];
    let mut object = Members::default();
    for (name, value) in members {
        if let Some(value) = value {
            object.add(name, value);
        }
    }
    text(&Json::Object(object)).expect("each member has one spelling")
}

/// Puts the defaults that a schema names for members of the whole object where the arguments lack them.
pub fn with_defaults(schema: &RawValue, mut arguments: Json) -> Json {
    let schema = Json::parse(schema.get()).unwrap_or(Json::Null);
    let properties = schema.get("properties").and_then(Json::as_object);
    if let (Some(properties), Json::Object(arguments)) = (properties, &mut arguments) {
        for (name, schema) in properties.iter() {
            if let Some(default) = schema.get("default") {
                arguments.add(name, default.clone());
            }
        }
    }
    arguments
}

/// Why two readers could understand this JSON differently. `None` when they cannot, and for text that is not
/// JSON, which the parser reports.
pub fn ambiguity(text: &str) -> Option<String> {
    let name = Json::repeated_name(text)?;
    let name: String = name.chars().take(60).collect();
    Some(format!("the member {name:?} appears twice in one object"))
}

/// A hash as 64 hex digits, in either case.
pub fn parse_hash(text: &str) -> Option<Hash> {
    hex::decode(text.trim()).ok()?.try_into().ok()
}

/// Only for rows, which hold what [`hash`] made.
pub fn hash_of_row(bytes: Vec<u8>) -> Result<Hash, String> {
    bytes
        .try_into()
        .map_err(|_| "a hash of another length".to_owned())
}

/// For serde: a hash as hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex(pub Hash);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl serde::Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_hash(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom("must be 64 hex digits"))
    }
}
