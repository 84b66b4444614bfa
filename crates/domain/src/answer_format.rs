//! The form in which a client wants an answer: JSON, perhaps with a schema. The model is told of it in words and, where its
//! provider can, by the provider's own means. Neither is trusted: what the model answers is checked.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json::Json;

/// The form of an answer that is not free text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnswerFormat {
    /// Any JSON object.
    JsonObject,
    /// A JSON object that fits a schema.
    JsonSchema(AnswerSchema),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnswerSchema {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub schema: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl AnswerFormat {
    pub fn schema(&self) -> Option<&Value> {
        match self {
            Self::JsonObject => None,
            Self::JsonSchema(schema) => Some(&schema.schema),
        }
    }

    /// What a model is told, at the end of its system prompt.
    pub fn instruction(&self) -> String {
        let object = "Your final answer must be one JSON object and nothing else: no words before or after it, no code \
                      fence.";
        match self {
            Self::JsonObject => object.to_owned(),
            Self::JsonSchema(AnswerSchema {
                name,
                description,
                schema,
                ..
            }) => {
                let about = description.as_deref().unwrap_or_default().trim();
                let about = if about.is_empty() {
                    String::new()
                } else {
                    format!(" ({about})")
                };
                format!("{object} It is {name:?}{about} and must fit this JSON Schema:\n{schema}")
            }
        }
    }
}

/// What a model is told whose answer is not in its format.
pub fn correction(why: &str) -> String {
    format!(
        "[Instructions of the program]\nThis answer cannot be used: {why}. Answer again, with the JSON object alone."
    )
}

/// The JSON object that an answer is, as text, or why it is none. A code fence around it is taken off, as models write one
/// whatever they are told.
pub fn object_in(answer: &str) -> Result<(Json, String), String> {
    let text = unfenced(answer.trim());
    match Json::parse(text) {
        Ok(json @ Json::Object(_)) => Ok((json, text.to_owned())),
        Ok(_) => Err("it is JSON but no object".to_owned()),
        Err(error) => Err(format!("it is no JSON ({error})")),
    }
}

fn unfenced(text: &str) -> &str {
    let inner = text
        .strip_prefix("```")
        .and_then(|text| text.strip_suffix("```"))
        .and_then(|text| text.split_once('\n'));
    match inner {
        Some(("" | "json" | "JSON", inner)) => inner.trim(),
        _ => text,
    }
}
