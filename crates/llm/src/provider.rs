//! Chooses between the four providers: the functions that write a request and read an answer, and the header of the key.

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

/// Fields and parts of a request that an endpoint has refused. They are not sent again.
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
    /// Descriptions of tools longer than 1024 characters.
    pub(super) long_descriptions: bool,
    pub(super) images: bool,
}

/// How requests to a model at an endpoint must be written, learned from its refusals.
#[derive(Clone, Debug, Default)]
pub(super) struct Restrictions {
    pub(super) params: UnsupportedParams,
    /// Fingerprints of the tools whose schemas are written by the strictest rules, because they were refused once.
    pub(super) strict_tools: HashSet<u64>,
    /// All schemas are written by the strictest rules, because a refusal did not say which one it is about.
    pub(super) all_tools_strict: bool,
}

impl Restrictions {
    /// The rules for the schema of a tool; `own` are those of the endpoint without restrictions.
    pub(super) fn dialect(&self, tool: &ToolDef, own: Dialect) -> Dialect {
        if self.all_tools_strict || self.strict_tools.contains(&fingerprint(tool)) {
            Dialect::Strict
        } else {
            own
        }
    }
}

/// A hash by which a tool (name and schema) is remembered as refused.
pub(super) fn fingerprint(tool: &ToolDef) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&tool.name, tool.schema.get()).hash(&mut hasher);
    hasher.finish()
}

/// A request in a provider's own format, without the key.
pub(super) struct Request {
    pub(super) url: String,
    pub(super) headers: &'static [(&'static str, &'static str)],
    pub(super) body: Value,
}

/// A text that identifies an endpoint. It is never logged, since an operator may have put a secret into the address.
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

/// Writes the request of a step for the provider that the pack names.
pub(super) fn write_request(
    llm: &Llm,
    step: &StepRequest,
    restrictions: &Restrictions,
) -> Result<Request, ModelError> {
    let base = base(llm);
    let write = match llm.provider {
        Provider::Openai => openai::write_request,
        Provider::Anthropic => anthropic::write_request,
        Provider::Gemini => gemini::write_request,
        Provider::Ollama => ollama::write_request,
        Provider::None => return Err(ModelError::NoModel),
    };
    let prepared = Prepared::new(step, Dialect::for_model(llm), restrictions);
    Ok(write(llm, base.as_deref(), &prepared, restrictions.params))
}

/// Where the endpoint of a pack lists its models, and what the request carries besides the key; `None` without a model.
pub(super) fn models_request(
    llm: &Llm,
) -> Option<(String, &'static [(&'static str, &'static str)])> {
    let base = base(llm);
    let base = base.as_deref();
    Some(match llm.provider {
        Provider::Openai => (openai::models_url(base), &[]),
        Provider::Anthropic => (anthropic::models_url(base), anthropic::HEADERS),
        Provider::Gemini => (gemini::models_url(base), &[]),
        Provider::Ollama => (ollama::models_url(base), &[]),
        Provider::None => return None,
    })
}

/// The base URL of the pack, without `/chat/completions`, which people often copy along with it.
fn base(llm: &Llm) -> Option<String> {
    let text = llm.base_url.as_ref()?.as_str().trim_end_matches('/');
    Some(
        text.strip_suffix("/chat/completions")
            .unwrap_or(text)
            .to_owned(),
    )
}

/// Reads the events of one answer, with the state that this needs.
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

    /// Adds one event to the reply; `true` when the answer is complete although the stream goes on.
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

/// The header with the operator's key; `None` when the pack has no key, as for a local endpoint.
pub(super) fn key_header(llm: &Llm) -> Result<Option<(HeaderName, HeaderValue)>, ModelError> {
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
