//! JSON whose numbers keep their digits. As a double, the integer 12345678901234567890123 would be another one, so what a
//! tool is called with travels as text, and whoever has to look into it reads it with this.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    sync::LazyLock,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, IgnoredAny},
};
use serde_json::{Map, Value, value::RawValue};
use uuid::Uuid;

pub use super::decimal::Decimal;

/// The deepest nesting that is read, as in `serde_json`.
const MAX_DEPTH: usize = 127;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Object(Members),
}

/// A number as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number(String);

/// The members of an object in the order in which they were written, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members(Vec<(String, Json)>);

impl Json {
    /// Reads a text. Of members with the same name the last counts.
    pub fn parse(text: &str) -> Result<Self, String> {
        Reader::read(text).map(|reader| reader.0)
    }

    /// The first name that two members of one object have.
    pub fn repeated_name(text: &str) -> Option<String> {
        Reader::read(text).ok().and_then(|reader| reader.1)
    }

    /// Adds the texts in it, and the names of its members.
    pub fn collect_texts(&self, into: &mut BTreeSet<String>) {
        match self {
            Self::Null | Self::Bool(_) | Self::Number(_) => {}
            Self::Text(text) => _ = into.insert(text.clone()),
            Self::List(items) => items.iter().for_each(|item| item.collect_texts(into)),
            Self::Object(members) => {
                for (name, value) in members.iter() {
                    into.insert(name.to_owned());
                    value.collect_texts(into);
                }
            }
        }
    }

    /// The same with numbers as doubles, for what their last digits do not matter to.
    pub fn rounded(&self) -> Value {
        self.to_value_with(&|number| Value::Number(number.rounded()))
    }

    /// The same for what works on values. A number that no double holds is a marked text in it, which [`to_text`] and
    /// [`Json::from`] write as a number again.
    pub fn to_value(&self) -> Value {
        self.to_value_with(&|number| {
            if number.is_exact() {
                Value::Number(number.rounded())
            } else {
                Value::String(format!("{}{}", *MARK, number.0))
            }
        })
    }

    fn to_value_with(&self, number: &impl Fn(&Number) -> Value) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Number(digits) => number(digits),
            Self::Text(text) => Value::String(text.clone()),
            Self::List(items) => items
                .iter()
                .map(|item| item.to_value_with(number))
                .collect(),
            Self::Object(members) => {
                let members = members.iter();
                let members =
                    members.map(|(name, value)| (name.to_owned(), value.to_value_with(number)));
                Value::Object(members.collect())
            }
        }
    }

    pub fn to_raw(&self) -> Box<RawValue> {
        RawValue::from_string(self.to_string()).expect("it is written as JSON")
    }

    pub fn as_object(&self) -> Option<&Members> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    /// Gives members at any depth other names, where no other member has them.
    pub fn rename_members(&mut self, new_names: &BTreeMap<String, String>) {
        match self {
            Self::Object(members) => {
                for (old, new) in new_names {
                    members.rename(old, new);
                }
                for (_, value) in &mut members.0 {
                    value.rename_members(new_names);
                }
            }
            Self::List(items) => items
                .iter_mut()
                .for_each(|item| item.rename_members(new_names)),
            _ => {}
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether doubles and integers of 64 bits hold all of its numbers.
    pub fn is_exact(&self) -> bool {
        match self {
            Self::Null | Self::Bool(_) | Self::Text(_) => true,
            Self::Number(number) => number.is_exact(),
            Self::List(items) => items.iter().all(Self::is_exact),
            Self::Object(members) => members.iter().all(|(_, value)| value.is_exact()),
        }
    }

    /// With a line for each member and item.
    pub fn pretty(&self) -> String {
        let mut text = String::new();
        self.indent("\n", &mut text);
        text
    }

    fn indent(&self, line: &str, text: &mut String) {
        let inner = format!("{line}  ");
        match self {
            Self::List(items) if !items.is_empty() => {
                for (at, item) in items.iter().enumerate() {
                    text.push_str(if at == 0 { "[" } else { "," });
                    text.push_str(&inner);
                    item.indent(&inner, text);
                }
                text.push_str(line);
                text.push(']');
            }
            Self::Object(members) => members.indent(line, text),
            json => text.push_str(&json.to_string()),
        }
    }

    /// A member of an object.
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }
}

impl From<&Value> for Json {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(number) => Self::Number(Number(number.to_string())),
            Value::String(text) => match text.strip_prefix(MARK.as_str()) {
                Some(number) => Self::Number(Number(number.to_owned())),
                None => Self::Text(text.clone()),
            },
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(map) => Self::Object(Members::from(map)),
        }
    }
}

/// Begins a text that stands for a number. Random, so that no text of another can be taken for one.
static MARK: LazyLock<String> = LazyLock::new(|| format!("{}:", Uuid::now_v7().simple()));

/// Reads a value that keeps its numbers, as [`Json::to_value`] has them.
pub fn read_value(text: &str) -> Result<Value, String> {
    // Few texts have numbers of so many digits, or with an exponent.
    let digits = |run: &[u8]| {
        run.iter()
            .all(|byte| byte.is_ascii_digit() || *byte == b'.')
    };
    let is_long = text.as_bytes().windows(16).any(digits);
    let has_exponent = (text.as_bytes().windows(2))
        .any(|pair| pair[0].is_ascii_digit() && matches!(pair[1], b'e' | b'E'));
    if is_long || has_exponent {
        Json::parse(text).map(|json| json.to_value())
    } else {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// The text of a value that [`Json::to_value`] or [`read_value`] made.
pub fn to_text(value: &Value) -> String {
    let text = value.to_string();
    if text.contains(MARK.as_str()) {
        Json::from(value).to_string()
    } else {
        text
    }
}

/// As it was written, without white space.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Number(number) => f.write_str(&number.0),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Self::Object(members) => members.fmt(f),
        }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_raw().serialize(serializer)
    }
}

/// A text as JSON.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Number {
    /// `None` for another text than a number of JSON.
    pub fn parse(text: &str) -> Option<Self> {
        match Json::parse(text) {
            Ok(Json::Number(number)) => Some(number),
            _ => None,
        }
    }

    /// Whether a double or an integer of 64 bits holds it.
    pub fn is_exact(&self) -> bool {
        self.decimal() == Decimal::parse(&self.rounded().to_string())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `None` when its exponent is beyond everything that can be compared.
    pub fn decimal(&self) -> Option<Decimal> {
        Decimal::parse(&self.0)
    }

    /// The nearest number that a double or an integer of 64 bits holds.
    pub fn rounded(&self) -> serde_json::Number {
        if let Ok(number) = serde_json::from_str(&self.0) {
            return number;
        }
        let most = if self.0.starts_with('-') {
            f64::MIN
        } else {
            f64::MAX
        };
        serde_json::Number::from_f64(most).expect("it is finite")
    }
}

impl Members {
    /// With a line for each member and item.
    pub fn pretty(&self) -> String {
        let mut text = String::new();
        self.indent("\n", &mut text);
        text
    }

    fn indent(&self, line: &str, text: &mut String) {
        if self.is_empty() {
            text.push_str("{}");
            return;
        }
        let inner = format!("{line}  ");
        for (at, (name, value)) in self.iter().enumerate() {
            text.push_str(if at == 0 { "{" } else { "," });
            text.push_str(&inner);
            text.push_str(&quoted(name));
            text.push_str(": ");
            value.indent(&inner, text);
        }
        text.push_str(line);
        text.push('}');
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives a member another name, unless there is one of that name.
    pub fn rename(&mut self, old: &str, new: &str) {
        if self.get(new).is_none()
            && let Some((name, _)) = self.0.iter_mut().find(|(name, _)| name == old)
        {
            new.clone_into(name);
        }
    }

    pub fn get(&self, name: &str) -> Option<&Json> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value)
    }

    /// Adds a member if there is none of that name.
    pub fn add(&mut self, name: &str, value: Json) -> bool {
        let is_new = self.get(name).is_none();
        if is_new {
            self.0.push((name.to_owned(), value));
        }
        is_new
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (at, (name, value)) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}:{value}", quoted(name))?;
        }
        f.write_str("}")
    }
}

/// From JSON text only: another source has read the numbers already.
impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(source)?;
        match Json::parse(raw.get()) {
            Ok(Json::Object(members)) => Ok(members),
            Ok(_) => Err(de::Error::custom("it is not an object")),
            Err(error) => Err(de::Error::custom(error)),
        }
    }
}

impl From<&Map<String, Value>> for Members {
    fn from(map: &Map<String, Value>) -> Self {
        let members = map.iter().map(|(name, value)| (name.clone(), value.into()));
        Self(members.collect())
    }
}

/// Of members with the same name the first counts. A schema may have tens of thousands: no name is looked for in a row.
impl FromIterator<(String, Json)> for Members {
    fn from_iter<I: IntoIterator<Item = (String, Json)>>(members: I) -> Self {
        let mut known = HashSet::new();
        let members = members.into_iter();
        Self(
            members
                .filter(|(name, _)| known.insert(name.clone()))
                .collect(),
        )
    }
}

/// Reads a text that is known to be JSON.
struct Reader<'t> {
    text: &'t str,
    at: usize,
    repeated: Option<String>,
}

impl<'t> Reader<'t> {
    fn read(text: &'t str) -> Result<(Json, Option<String>), String> {
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| error.to_string())?;
        let mut reader = Self {
            text,
            at: 0,
            repeated: None,
        };
        let json = reader.value(0)?;
        Ok((json, reader.repeated))
    }

    /// The first byte behind white space.
    fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied().unwrap_or_default()
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        match self.peek() {
            b'{' => self.object(depth).map(Json::Object),
            b'[' => self.list(depth).map(Json::List),
            b'"' => self.string().map(Json::Text),
            b'n' => Ok(self.literal("null", Json::Null)),
            b't' => Ok(self.literal("true", Json::Bool(true))),
            b'f' => Ok(self.literal("false", Json::Bool(false))),
            _ => {
                let rest = &self.text[self.at..];
                let is_part = |c: char| matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9');
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                self.at += end;
                Ok(Json::Number(Number(rest[..end].to_owned())))
            }
        }
    }

    fn literal(&mut self, word: &str, json: Json) -> Json {
        self.at += word.len();
        json
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Json>, String> {
        let mut items = Vec::new();
        self.at += 1;
        while self.peek() != b']' {
            items.push(self.value(depth + 1)?);
            self.at += usize::from(self.peek() == b',');
        }
        self.at += 1;
        Ok(items)
    }

    fn object(&mut self, depth: usize) -> Result<Members, String> {
        let (mut members, mut known) = (Vec::new(), HashMap::new());
        self.at += 1;
        while self.peek() != b'}' {
            let name = self.string()?;
            self.peek();
            self.at += 1;
            let value = self.value(depth + 1)?;
            self.at += usize::from(self.peek() == b',');
            if let Some(at) = known.get(&name) {
                members[*at] = (name.clone(), value);
                self.repeated.get_or_insert(name);
            } else {
                known.insert(name.clone(), members.len());
                members.push((name, value));
            }
        }
        self.at += 1;
        Ok(Members(members))
    }

    fn string(&mut self) -> Result<String, String> {
        let (bytes, start) = (self.text.as_bytes(), self.at);
        self.at += 1;
        while bytes[self.at] != b'"' {
            self.at += if bytes[self.at] == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        serde_json::from_str(&self.text[start..self.at]).map_err(|error| error.to_string())
    }
}
