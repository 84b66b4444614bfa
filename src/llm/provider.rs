//! The four wires: what differs between providers, and nothing else.

use http::{HeaderName, HeaderValue, header::AUTHORIZATION};
use rig_core::{
    completion::CompletionRequest,
    driver::Model,
    providers::{
        anthropic::{self, wire::ToolInputStreaming},
        gemini::{self, completion::GenerateContent},
        ollama,
        openai::{
            OpenAIConfig,
            wire::{Auth, BodyRewrite, Chat, OPENAI},
        },
    },
    streaming::CompletionStream,
};

use super::{
    error::{Failure, ModelError},
    transport::Guarded,
};
use crate::domain::pack::{Llm, Provider};

/// Answers are this long at most when a pack does not say and Anthropic's wire, which must, does not know the model.
const ANTHROPIC_MAX_TOKENS: u64 = 8192;

/// What an endpoint turned out not to take; learned from its refusals (`step`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Without {
    pub(super) temperature: bool,
    /// OpenAI's `stream_options`, which ask for the token counts.
    pub(super) stream_options: bool,
}

/// What shares a fate, for the breaker: may hold what an operator put into an address, so never logged.
pub(super) fn endpoint(llm: &Llm) -> String {
    let base = llm.base_url.as_ref().map(root).unwrap_or_default();
    format!("{} {base}", name(llm.provider))
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

/// Opens the stream of one request; nothing is sent until it is polled.
pub(super) fn open(
    llm: &Llm,
    http: Guarded,
    mut request: CompletionRequest,
    without: Without,
) -> Result<CompletionStream, Failure> {
    if without.temperature {
        request.temperature = None;
    }
    let model = llm.model.as_str();
    let base = llm.base_url.as_ref().map(root);
    let opened = match llm.provider {
        Provider::None => return Err(ModelError::NoModel.into()),
        Provider::Openai => {
            Model::new(Chat::new(openai(base, without), model), http).stream(request)
        }
        Provider::Anthropic => {
            let mut claude = anthropic(base).connect(http).completion(model);
            claude
                .wire
                .default_max_tokens
                .get_or_insert(ANTHROPIC_MAX_TOKENS);
            // Nobody watches arguments being written, and gateways refuse the field that asks for it.
            claude.wire.tool_input_streaming = ToolInputStreaming::Off;
            claude.stream(request)
        }
        Provider::Gemini => {
            Model::new(GenerateContent::new(gemini(base), model), http).stream(request)
        }
        Provider::Ollama => {
            Model::new(ollama::Chat::new(ollama(base), model), http).stream(request)
        }
    };
    opened.map_err(|error| Failure::of(&error, llm.api_key.as_ref()))
}

fn openai(base: Option<String>, without: Without) -> OpenAIConfig {
    let mut dialect = OPENAI;
    // Text as a plain string: many compatible endpoints do not take a list of parts. (The library names the
    // rewrite after the first provider that needed it.)
    dialect.quirks.rewrite = BodyRewrite::Perplexity;
    dialect.quirks.stream_include_usage = !without.stream_options;
    let config = OpenAIConfig::with_key(&dialect, "").with_auth(Auth::OptionalBearer);
    match base {
        Some(base) => config.with_base_url(base),
        None => config,
    }
}

fn anthropic(base: Option<String>) -> anthropic::AnthropicConfig {
    let config = anthropic::AnthropicConfig::new("");
    match base {
        Some(base) => config.with_base_url(base),
        None => config,
    }
}

fn gemini(base: Option<String>) -> gemini::GeminiConfig {
    let config = gemini::GeminiConfig::new("");
    match base {
        Some(base) => config.with_base_url(base.strip_suffix("/v1beta").unwrap_or(&base)),
        None => config,
    }
}

/// The daemon's own API, which takes `num_predict` and says why it stopped.
fn ollama(base: Option<String>) -> ollama::OllamaConfig {
    let config = ollama::OllamaConfig::new();
    match base {
        Some(base) => config.with_base_url(base.strip_suffix("/v1").unwrap_or(&base)),
        None => config,
    }
}

/// The address without what people copy along with it.
fn root(url: &url::Url) -> String {
    let text = url.as_str().trim_end_matches('/');
    text.strip_suffix("/chat/completions")
        .unwrap_or(text)
        .to_owned()
}

/// The header that carries the operator's key. A local endpoint needs none.
pub(super) fn key(llm: &Llm) -> Result<Option<(HeaderName, HeaderValue)>, ModelError> {
    let Some(key) = llm.api_key.as_ref().filter(|key| !key.expose().is_empty()) else {
        return Ok(None);
    };
    let (name, text) = match llm.provider {
        Provider::Anthropic => (
            HeaderName::from_static("x-api-key"),
            key.expose().to_owned(),
        ),
        Provider::Gemini => (
            HeaderName::from_static("x-goog-api-key"),
            key.expose().to_owned(),
        ),
        Provider::Openai | Provider::Ollama | Provider::None => {
            (AUTHORIZATION, format!("Bearer {}", key.expose()))
        }
    };
    let mut value = HeaderValue::from_str(&text).map_err(|_| {
        ModelError::Unauthorized("the key has characters that no header can carry".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}
