//! The parameters that an agent takes besides words: `paramsSchema` of its pack. They are checked before a
//! run is created, and the model reads them in the message that it answers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::json::{Json, Members};

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Param {
    #[serde(rename = "type")]
    pub kind: ParamKind,
    pub required: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ParamKind {
    #[default]
    String,
    /// Any JSON.
    Json,
    Boolean,
    Number,
}

/// The parameters of an agent by their names. Absent in a pack: it takes whatever it is given.
pub type ParamsSchema = BTreeMap<String, Param>;

impl ParamKind {
    fn admits(self, value: &Json) -> bool {
        match self {
            Self::String => matches!(value, Json::Text(_)),
            Self::Json => true,
            Self::Boolean => matches!(value, Json::Bool(_)),
            Self::Number => matches!(value, Json::Number(_)),
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Json => "JSON",
            Self::Boolean => "true or false",
            Self::Number => "a number",
        }
    }
}

/// Why parameters cannot be used: which one, and a sentence. Values are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidParam {
    pub name: String,
    pub reason: String,
}

/// Checks the parameters of a run. `null` counts as absent.
pub fn check(schema: Option<&ParamsSchema>, params: &Members) -> Result<(), InvalidParam> {
    let Some(schema) = schema else { return Ok(()) };
    let unfit = |name: &str, reason: String| {
        Err(InvalidParam {
            name: name.to_owned(),
            reason,
        })
    };
    for (name, param) in schema {
        match params.get(name).filter(|value| **value != Json::Null) {
            None if param.required => {
                return unfit(name, format!("Missing required value: params.{name}"));
            }
            Some(value) if !param.kind.admits(value) => {
                return unfit(
                    name,
                    format!("Invalid value: params.{name} must be {}", param.kind.noun()),
                );
            }
            _ => {}
        }
    }
    match params.iter().find(|(name, _)| !schema.contains_key(*name)) {
        Some((name, _)) => {
            let shown: String = name.chars().take(64).collect();
            let known: Vec<_> = schema.keys().map(String::as_str).collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            unfit(
                &shown,
                format!("Unknown value: params.{shown}. The agent takes: {known}"),
            )
        }
        None => Ok(()),
    }
}

/// The message that a run answers: the prompt, and the parameters as JSON.
pub fn message(prompt: &str, params: &Members) -> String {
    if params.is_empty() {
        return prompt.to_owned();
    }
    let params = params.pretty();
    let prompt = prompt.trim_end();
    let gap = if prompt.is_empty() { "" } else { "\n\n" };
    format!("{prompt}{gap}Parameters:\n{params}")
}
