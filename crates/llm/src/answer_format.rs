//! Writes an answer format for each provider. The prompt describes the format too, for providers that have no such field or
//! refuse it; the caller checks every answer.
//!
//! | Provider | Field | Source |
//! |---|---|---|
//! | OpenAI and compatible | `response_format` | platform.openai.com, "Structured model outputs" |
//! | Anthropic | `output_config.format`, JSON Schema only, every object closed, without limits of values | platform.claude.com, "Structured outputs" |
//! | Gemini | `responseMimeType` and `responseJsonSchema`; before Gemini 3 not beside tools | ai.google.dev, "Structured outputs" |
//! | Ollama | `format`, not beside tools, which the model would then not call | docs.ollama.com, "Structured outputs" |

use serde_json::{Map, Value, json};

use domain::answer_format::{AnswerFormat, AnswerSchema};

/// The keywords that Anthropic accepts in the schema of an answer.
const ANTHROPIC_KEYWORDS: [&str; 16] = [
    "$defs",
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "definitions",
    "description",
    "enum",
    "format",
    "items",
    "properties",
    "required",
    "title",
    "type",
];
/// The values of `format` that Anthropic accepts.
const ANTHROPIC_FORMATS: [&str; 10] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];

/// The value of `response_format` for OpenAI.
pub(super) fn openai(format: &AnswerFormat) -> Value {
    let AnswerFormat::JsonSchema(AnswerSchema {
        name,
        description,
        schema,
        strict,
    }) = format
    else {
        return json!({ "type": "json_object" });
    };
    let mut about = json!({ "name": name, "schema": schema });
    if let Some(description) = description {
        about["description"] = description.as_str().into();
    }
    if let Some(strict) = strict {
        about["strict"] = (*strict).into();
    }
    json!({ "type": "json_schema", "json_schema": about })
}

/// The value of `output_config` for Anthropic; `None` when its schemas cannot express the format.
pub(super) fn anthropic(format: &AnswerFormat) -> Option<Value> {
    let mut schema = format.schema()?.clone();
    close(&mut schema)?;
    Some(json!({ "format": { "type": "json_schema", "schema": schema } }))
}

/// Changes a schema into one that Anthropic accepts: every object is closed, and unknown keywords are removed, since the
/// caller checks them. `None` when an object may have members of any name, which Anthropic cannot express.
fn close(schema: &mut Value) -> Option<()> {
    let Value::Object(fields) = schema else {
        return Some(());
    };
    if let Some(branches) = fields.remove("oneOf") {
        fields.entry("anyOf").or_insert(branches);
    }
    fields.retain(|key, _| ANTHROPIC_KEYWORDS.contains(&key.as_str()));
    let format = fields.get("format").and_then(Value::as_str);
    if format.is_some_and(|format| !ANTHROPIC_FORMATS.contains(&format)) {
        fields.remove("format");
    }
    if fields.get("type").is_some_and(|kind| kind == "object") || fields.contains_key("properties")
    {
        fields.get("properties")?;
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    let named = |fields: &mut Map<String, Value>, key: &str| -> Option<()> {
        let schemas = fields.get_mut(key).and_then(Value::as_object_mut);
        schemas
            .into_iter()
            .flatten()
            .try_for_each(|(_, schema)| close(schema))
    };
    for key in ["$defs", "definitions", "properties"] {
        named(fields, key)?;
    }
    for key in ["allOf", "anyOf"] {
        let branches = fields.get_mut(key).and_then(Value::as_array_mut);
        branches.into_iter().flatten().try_for_each(close)?;
    }
    fields.get_mut("items").map_or(Some(()), close)
}

/// The members of `generationConfig` for Gemini.
pub(super) fn gemini(format: &AnswerFormat) -> [(&'static str, Option<Value>); 2] {
    [
        ("responseMimeType", Some("application/json".into())),
        ("responseJsonSchema", format.schema().cloned()),
    ]
}

/// The value of `format` for Ollama.
pub(super) fn ollama(format: &AnswerFormat) -> Value {
    format.schema().cloned().unwrap_or_else(|| "json".into())
}
