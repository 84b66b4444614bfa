//! The four providers: which one a pack names, how its key is sent, and who writes its requests and reads its answers.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use http::{HeaderName, HeaderValue, header::AUTHORIZATION};
use serde_json::Value;

use super::{
    ModelError, StepRequest, ToolDef, anthropic, gemini, history::Prepared, ollama, openai,
    reply::ReplyBuilder, schema::Dialect,
};
use domain::pack::{Llm, Provider};

/// Request fields that an endpoint does not accept, as its refusals have shown (`step`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each field is refused for itself"
)]
pub(super) struct UnsupportedParams {
    pub(super) temperature: bool,
    pub(super) reasoning_effort: bool,
    /// OpenAI's `stream_options`, which ask for the token counts.
    pub(super) stream_options: bool,
    /// Descriptions of tools with more than 1024 characters.
    pub(super) long_descriptions: bool,
    pub(super) images: bool,
}

/// What a model at an endpoint does not take, as its refusals have shown (`step`).
#[derive(Clone, Debug, Default)]
pub(super) struct Refused {
    pub(super) params: UnsupportedParams,
    /// Tools whose schemas it has refused once, hashed. They are written with every rule there is.
    pub(super) tools: HashSet<u64>,
    /// It has refused some schema without saying which.
    pub(super) schemas: bool,
}

impl Refused {
    /// The rules for the schema of a tool at an endpoint with rules of its own.
    pub(super) fn dialect(&self, tool: &ToolDef, own: Dialect) -> Dialect {
        if self.schemas || self.tools.contains(&fingerprint(tool)) {
            Dialect::Strict
        } else {
            own
        }
    }
}

/// What a tool is to a provider.
pub(super) fn fingerprint(tool: &ToolDef) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&tool.name, tool.schema.get()).hash(&mut hasher);
    hasher.finish()
}

/// One request in a provider's own words; the key is not in it.
pub(super) struct Request {
    pub(super) url: String,
    pub(super) headers: &'static [(&'static str, &'static str)],
    pub(super) body: Value,
}

/// The key of an endpoint's circuit breaker. It may hold a secret that an operator put into the address, so
/// it is never logged.
pub(super) fn endpoint(llm: &Llm) -> String {
    format!("{} {}", name(llm.provider), base(llm).unwrap_or_default())
}

pub(super) fn name(provider: Provider) -> &'static str {
    match provider {
        Provider::Openai => "openai",
        Provider::Anthropic => "anthropic",
        Provider::Gemini => "gemini",
        Provider::Ollama => "ollama",
        Provider::None => "none",
    }
}

pub(super) fn request(
    llm: &Llm,
    step: &StepRequest,
    refused: &Refused,
) -> Result<Request, ModelError> {
    let base = base(llm);
    let write = match llm.provider {
        Provider::Openai => openai::request,
        Provider::Anthropic => anthropic::request,
        Provider::Gemini => gemini::request,
        Provider::Ollama => ollama::request,
        Provider::None => return Err(ModelError::NoModel),
    };
    let prepared = Prepared::new(step, Dialect::of(llm), refused);
    Ok(write(llm, base.as_deref(), &prepared, refused.params))
}

/// The base address, without a path of the API that people often copy along with it.
fn base(llm: &Llm) -> Option<String> {
    let text = llm.base_url.as_ref()?.as_str().trim_end_matches('/');
    Some(
        text.strip_suffix("/chat/completions")
            .unwrap_or(text)
            .to_owned(),
    )
}

/// Reads the events of one answer.
pub(super) enum Reader {
    Openai,
    Anthropic,
    Gemini,
    Ollama(ollama::Reader),
}

impl Reader {
    pub(super) fn new(provider: Provider) -> Self {
        match provider {
            Provider::Openai | Provider::None => Self::Openai,
            Provider::Anthropic => Self::Anthropic,
            Provider::Gemini => Self::Gemini,
            Provider::Ollama => Self::Ollama(ollama::Reader::Start(String::new())),
        }
    }

    /// Reads one event; `true` when the answer is complete although the stream goes on.
    pub(super) fn read(
        &mut self,
        event: &Value,
        draft: &mut ReplyBuilder,
    ) -> Result<bool, ModelError> {
        match self {
            Self::Openai => {
                openai::read(event, draft);
                Ok(false)
            }
            Self::Anthropic => anthropic::read(event, draft),
            Self::Gemini => gemini::read(event, draft),
            Self::Ollama(reader) => Ok(reader.read(event, draft)),
        }
    }
}

/// The header that carries the operator's key. A local endpoint needs none.
pub(super) fn key(llm: &Llm) -> Result<Option<(HeaderName, HeaderValue)>, ModelError> {
    let Some(key) = llm
        .api_key
        .as_ref()
        .map(domain::secret::Secret::expose)
        .filter(|key| !key.is_empty())
    else {
        return Ok(None);
    };
    let (name, value) = match llm.provider {
        Provider::Anthropic => (
            HeaderName::from_static("x-api-key"),
            HeaderValue::from_str(key),
        ),
        Provider::Gemini => (
            HeaderName::from_static("x-goog-api-key"),
            HeaderValue::from_str(key),
        ),
        Provider::Openai | Provider::Ollama | Provider::None => (
            AUTHORIZATION,
            HeaderValue::from_str(&format!("Bearer {key}")),
        ),
    };
    let mut value = value.map_err(|_| {
        ModelError::Unauthorized("the key has characters that no header can carry".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}
