//! Arguments as a validator reads them: their numbers are compared by their digits and never rounded. A limit of the
//! schema is exact, too, because its text is carried along where a double would not hold it.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use jsonschema::{
    JsonType, Keyword, Retrieve, ValidationError, ValidationOptions,
    json::{self, Array, JsonNumber, Node, NodeIdentity, Object},
};
use serde_json::{Map, Value};

use crate::{
    canonical,
    json::{Decimal, Json, Members, Number},
};

/// The representation of [`Json`].
pub(super) struct Exact;

impl json::Json for Exact {
    type Node<'a> = &'a Json;
    type PreparedKey = String;
    type StringBuffer = Option<Json>;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(
        buffer: &mut Option<Json>,
        text: &str,
        read: impl FnOnce(&Json) -> T,
    ) -> T {
        read(buffer.insert(Json::Text(text.to_owned())))
    }
}

impl<'a> Node<'a, Exact> for &'a Json {
    type Object = &'a Members;
    type Array = &'a [Json];
    type Number = &'a Number;

    fn as_object(&self) -> Option<&'a Members> {
        Json::as_object(self)
    }

    fn as_array(&self) -> Option<&'a [Json]> {
        match self {
            Json::List(items) => Some(items),
            _ => None,
        }
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        self.as_text().map(Cow::Borrowed)
    }

    fn as_number(&self) -> Option<&'a Number> {
        match self {
            Json::Number(number) => Some(number),
            _ => None,
        }
    }

    fn as_boolean(&self) -> Option<bool> {
        match self {
            Json::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Json::Null)
    }

    fn json_type(&self) -> JsonType {
        match self {
            Json::Null => JsonType::Null,
            Json::Bool(_) => JsonType::Boolean,
            Json::Number(_) => JsonType::Number,
            Json::Text(_) => JsonType::String,
            Json::List(_) => JsonType::Array,
            Json::Object(_) => JsonType::Object,
        }
    }

    fn equals_value(&self, expected: &Value) -> bool {
        spelling(self) == spelling(&Json::from(expected))
    }

    fn to_value(&self) -> Cow<'a, Value> {
        Cow::Owned(self.rounded())
    }

    fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(std::ptr::from_ref::<Json>(self).addr()))
    }
}

impl<'a> Object<'a, Exact> for &'a Members {
    type Node = &'a Json;
    type MemberName = &'a str;
    type MembersIter = Box<dyn Iterator<Item = (&'a str, &'a Json)> + 'a>;

    fn len(&self) -> usize {
        Members::len(self)
    }

    fn get(&self, name: &String) -> Option<&'a Json> {
        Members::get(self, name)
    }

    fn members(&self) -> Self::MembersIter {
        Box::new(Members::iter(self))
    }
}

impl<'a> Array<'a, Exact> for &'a [Json] {
    type Node = &'a Json;
    type ElementsIter = std::slice::Iter<'a, Json>;

    fn len(&self) -> usize {
        <[Json]>::len(self)
    }

    fn elements(&self) -> Self::ElementsIter {
        self.iter()
    }

    fn is_unique(&self) -> bool {
        let mut seen = HashSet::new();
        self.iter().all(|item| seen.insert(spelling(item)))
    }
}

impl JsonNumber for &Number {
    fn as_u64(&self) -> Option<u64> {
        self.as_str().parse().ok()
    }

    fn as_i64(&self) -> Option<i64> {
        self.as_str().parse().ok()
    }

    fn as_f64(&self) -> Option<f64> {
        let number = self.as_str().parse().ok();
        number.filter(|number: &f64| number.is_finite())
    }

    fn as_str(&self) -> Cow<'_, str> {
        Cow::Borrowed(Number::as_str(self))
    }

    fn to_number(&self) -> Cow<'_, serde_json::Number> {
        Cow::Owned(self.rounded())
    }

    fn is_integer(&self) -> bool {
        self.decimal().is_none_or(|number| number.is_integer())
    }
}

/// The one text of a value and of all that equal it. Numbers that cannot be compared equal those of the same digits.
fn spelling(json: &Json) -> String {
    canonical::text(json).unwrap_or_else(|_| json.to_string())
}

/// A keyword that compares a number with a limit.
struct Comparison {
    keyword: &'static str,
    /// What does not fit a limit, in words.
    unfit: &'static str,
    fits: fn(&Decimal, &Decimal) -> bool,
}

static COMPARISONS: [Comparison; 5] = [
    Comparison {
        keyword: "minimum",
        unfit: "is less than the minimum of",
        fits: |number, limit| number >= limit,
    },
    Comparison {
        keyword: "maximum",
        unfit: "is greater than the maximum of",
        fits: |number, limit| number <= limit,
    },
    Comparison {
        keyword: "exclusiveMinimum",
        unfit: "is less than or equal to the minimum of",
        fits: |number, limit| number > limit,
    },
    Comparison {
        keyword: "exclusiveMaximum",
        unfit: "is greater than or equal to the maximum of",
        fits: |number, limit| number < limit,
    },
    Comparison {
        keyword: "multipleOf",
        unfit: "is not a multiple of",
        fits: Decimal::is_multiple_of,
    },
];

/// Options of a validator that reads numbers by their digits.
pub(super) fn options<'i>() -> ValidationOptions<'i, Arc<dyn Retrieve>, Exact> {
    let options = jsonschema::options_for::<Exact>()
        .with_keyword("const", |_, value, _| Ok(Box::new(OneOf::new([value]))))
        .with_keyword("enum", |_, value, _| {
            let values = value.as_array().map(Vec::as_slice).unwrap_or_default();
            Ok(Box::new(OneOf::new(values)))
        });
    COMPARISONS.iter().fold(options, |options, comparison| {
        options.with_keyword(comparison.keyword, |parent, value, _| {
            let written = parent.get(&as_written(comparison.keyword));
            let text = written
                .and_then(Value::as_str)
                .map_or_else(|| value.to_string(), str::to_owned);
            let number = Number::parse(&text);
            Ok(Box::new(Limit {
                comparison,
                number: number.and_then(|number| number.decimal()),
                text,
            }))
        })
    })
}

/// A schema for the validator. The text of each limit that a double would round stands beside it, and values to compare
/// with keep their digits.
pub(super) fn schema(json: &Json) -> Value {
    let Json::Object(members) = json else {
        return json.rounded();
    };
    let mut schema = Map::new();
    for (name, value) in members.iter() {
        let read = match (name, value) {
            ("const" | "enum", value) => value.to_value(),
            ("default" | "examples", value) => value.rounded(),
            (
                "properties" | "patternProperties" | "dependentSchemas" | "dependencies" | "$defs"
                | "definitions",
                Json::Object(named),
            ) => {
                let named = named
                    .iter()
                    .map(|(name, part)| (name.to_owned(), self::schema(part)));
                Value::Object(named.collect())
            }
            (_, Json::List(items)) => items.iter().map(self::schema).collect(),
            (_, value) => self::schema(value),
        };
        schema.insert(name.to_owned(), read);
        let is_limit = COMPARISONS.iter().any(|known| known.keyword == name);
        if let (true, Json::Number(number)) = (is_limit, value)
            && !number.is_exact()
        {
            schema.insert(as_written(name), number.as_str().into());
        }
    }
    Value::Object(schema)
}

fn as_written(keyword: &str) -> String {
    format!("{keyword} as written")
}

/// `const` or `enum`: the spellings of the values that fit, and their texts for people.
struct OneOf {
    spellings: Vec<String>,
    texts: Vec<String>,
}

impl OneOf {
    fn new<'v>(values: impl IntoIterator<Item = &'v Value>) -> Self {
        let values: Vec<_> = values.into_iter().map(Json::from).collect();
        Self {
            spellings: values.iter().map(spelling).collect(),
            texts: values.iter().map(Json::to_string).collect(),
        }
    }
}

impl<'i> Keyword<'i, Exact> for OneOf {
    fn validate(&self, value: &'i Json) -> Result<(), ValidationError<'i>> {
        if self.is_valid(value) {
            return Ok(());
        }
        Err(ValidationError::custom(match &self.texts[..] {
            [one] => format!("{value} is not {one}"),
            texts => format!("{value} is not one of {}", texts.join(", ")),
        }))
    }

    fn is_valid(&self, value: &'i Json) -> bool {
        self.spellings.contains(&spelling(value))
    }
}

/// A keyword of a schema, with its limit.
struct Limit {
    comparison: &'static Comparison,
    /// `None` where it cannot be compared; then every number fits, and the server judges.
    number: Option<Decimal>,
    text: String,
}

impl<'i> Keyword<'i, Exact> for Limit {
    fn validate(&self, value: &'i Json) -> Result<(), ValidationError<'i>> {
        if self.is_valid(value) {
            return Ok(());
        }
        let (unfit, limit) = (self.comparison.unfit, &self.text);
        Err(ValidationError::custom(format!("{value} {unfit} {limit}")))
    }

    fn is_valid(&self, value: &'i Json) -> bool {
        let Json::Number(number) = value else {
            return true;
        };
        match (number.decimal(), &self.number) {
            (Some(number), Some(limit)) => (self.comparison.fits)(&number, limit),
            _ => true,
        }
    }
}
