//! Arguments as a validator reads them: their numbers are compared by their digits and never rounded. A limit of the
//! schema is exact, too, because its text is carried along where a double would not hold it.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use jsonschema::{
    JsonType, Keyword, Retrieve, ValidationError, ValidationOptions,
    json::{self, Array, JsonNumber, Node, NodeIdentity, Object},
};
use serde_json::{Map, Value};

use crate::domain::{
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

    /// A number that no double holds equals one that is rounded to the same: `const` and `enum` hold doubles.
    fn equals_value(&self, expected: &Value) -> bool {
        match (self, expected) {
            (Json::Number(number), Value::Number(expected)) if number.is_exact() => {
                let expected = Number::parse(&expected.to_string());
                number.decimal() == expected.and_then(|expected| expected.decimal())
            }
            (Json::List(items), Value::Array(expected)) => {
                items.len() == expected.len()
                    && items
                        .iter()
                        .zip(expected)
                        .all(|(item, expected)| item.equals_value(expected))
            }
            (Json::Object(members), Value::Object(expected)) => {
                let equals = |(name, value): (&str, &Json)| {
                    expected
                        .get(name)
                        .is_some_and(|expected| value.equals_value(expected))
                };
                members.len() == expected.len() && members.iter().all(equals)
            }
            _ => self.rounded() == *expected,
        }
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
        self.iter()
            .all(|item| seen.insert(canonical::text(item).unwrap_or_else(|_| item.to_string())))
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
    let options = jsonschema::options_for::<Exact>();
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

/// A schema for the validator, with the text of each limit that a double would round beside it.
pub(super) fn schema(json: &Json) -> Value {
    match json {
        Json::Object(members) => {
            let mut schema = Map::new();
            for (name, value) in members.iter() {
                schema.insert(name.to_owned(), self::schema(value));
                let is_limit = COMPARISONS.iter().any(|known| known.keyword == name);
                if let (true, Json::Number(number)) = (is_limit, value)
                    && !number.is_exact()
                {
                    schema.insert(as_written(name), number.as_str().into());
                }
            }
            Value::Object(schema)
        }
        Json::List(items) => items.iter().map(schema).collect(),
        json => json.rounded(),
    }
}

fn as_written(keyword: &str) -> String {
    format!("{keyword} as written")
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
