//! The form of an answer as OpenAI's clients ask for it: `response_format` of chat completions, `text.format` of responses.

use serde_json::{Value, json};

use crate::{
    api::problem::Problem,
    domain::{
        answer_format::{AnswerFormat, AnswerSchema},
        error::ErrorCode,
    },
};

/// Characters of the name of a schema.
const MAX_NAME: usize = 64;

/// Reads a format; `None` is free text. What a schema says of itself stands in the member `inner` of the format, or in the
/// format.
pub(super) fn read(
    field: &str,
    format: Option<&Value>,
    inner: Option<&str>,
) -> Result<Option<AnswerFormat>, Problem> {
    let Some(format) = format.filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    let Some(kind) = format["type"].as_str() else {
        let field = format!("{field}.type");
        return Err(Problem::unfit(ErrorCode::MissingField, field, "is missing"));
    };
    match kind {
        "text" => Ok(None),
        "json_object" => Ok(Some(AnswerFormat::JsonObject)),
        "json_schema" => {
            let (about, field) = match inner {
                Some(inner) => (&format[inner], format!("{field}.{inner}")),
                None => (format, field.to_owned()),
            };
            Ok(Some(AnswerFormat::JsonSchema(schema(about, &field)?)))
        }
        other => {
            let reason = format!("must be `text`, `json_object` or `json_schema`, not {other:?}");
            let field = format!("{field}.type");
            Err(Problem::unfit(ErrorCode::Unsupported, field, reason))
        }
    }
}

fn schema(about: &Value, field: &str) -> Result<AnswerSchema, Problem> {
    let missing = |name: &str| {
        let field = format!("{field}.{name}");
        Problem::unfit(ErrorCode::MissingField, field, "is missing")
    };
    let name = about["name"].as_str().ok_or_else(|| missing("name"))?;
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_fit) {
        let reason = format!("must be 1 to {MAX_NAME} letters, digits, `_` or `-`");
        return Err(Problem::invalid(format!("{field}.name"), reason));
    }
    let schema = Some(&about["schema"]).filter(|schema| schema.is_object());
    Ok(AnswerSchema {
        name: name.to_owned(),
        description: about["description"].as_str().map(str::to_owned),
        schema: schema.ok_or_else(|| missing("schema"))?.clone(),
        strict: about["strict"].as_bool(),
    })
}

/// The format of a response as the response repeats it.
pub(super) fn write(format: Option<&AnswerFormat>) -> Value {
    match format {
        None => json!({ "type": "text" }),
        Some(AnswerFormat::JsonObject) => json!({ "type": "json_object" }),
        Some(AnswerFormat::JsonSchema(schema)) => json!({
            "type": "json_schema", "name": schema.name, "description": schema.description, "schema": schema.schema,
            "strict": schema.strict,
        }),
    }
}
