//! The form of an answer in the words of each provider. Where a provider has none for it, or refuses it, the model is told
//! in its prompt alone; whoever asks checks the answer either way.
//!
//! | Provider | Said as | Source |
//! |---|---|---|
//! | OpenAI and compatible | `response_format` | platform.openai.com, "Structured model outputs" |
//! | Anthropic | `output_config.format`, schemas only, every object closed, without limits of values | platform.claude.com, "Structured outputs" |
//! | Gemini | `responseMimeType` and `responseJsonSchema`; before Gemini 3 not beside tools | ai.google.dev, "Structured outputs" |
//! | Ollama | `format`, not beside tools: it would keep the model from calling them | docs.ollama.com, "Structured outputs" |

use serde_json::{Map, Value, json};

use domain::answer_format::{AnswerFormat, AnswerSchema};

/// Keywords of a schema that Anthropic takes.
const ANTHROPIC: [&str; 16] = [
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
/// Formats of strings that Anthropic takes.
const FORMATS: [&str; 10] = [
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

/// `response_format` of OpenAI.
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

/// `output_config` of Anthropic.
pub(super) fn anthropic(format: &AnswerFormat) -> Option<Value> {
    let mut schema = format.schema()?.clone();
    close(&mut schema)?;
    Some(json!({ "format": { "type": "json_schema", "schema": schema } }))
}

/// Makes a schema one that Anthropic takes: what it leaves out is checked here. `None` for one whose objects have members
/// of any name, which cannot be said there.
fn close(schema: &mut Value) -> Option<()> {
    let Value::Object(fields) = schema else {
        return Some(());
    };
    if let Some(branches) = fields.remove("oneOf") {
        fields.entry("anyOf").or_insert(branches);
    }
    fields.retain(|key, _| ANTHROPIC.contains(&key.as_str()));
    let format = fields.get("format").and_then(Value::as_str);
    if format.is_some_and(|format| !FORMATS.contains(&format)) {
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

/// Members of `generationConfig` of Gemini.
pub(super) fn gemini(format: &AnswerFormat) -> [(&'static str, Option<Value>); 2] {
    [
        ("responseMimeType", Some("application/json".into())),
        ("responseJsonSchema", format.schema().cloned()),
    ]
}

/// `format` of Ollama.
pub(super) fn ollama(format: &AnswerFormat) -> Value {
    format.schema().cloned().unwrap_or_else(|| "json".into())
}
