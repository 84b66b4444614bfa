//! Reads the model of a pack (`llm`) and the parameters that a caller may send (`paramsSchema`).

use url::Url;

use super::{AZURE, MAX_STEPS, PROVIDERS};
use crate::{
    dialect::{address_variable_of, key_variable_of},
    field::{Field, parse_server_url},
    object::Object,
};
use domain::{
    pack::{Llm, Provider, ReasoningEffort},
    params::{Param, ParamKind, ParamsSchema},
    secret::Secret,
    template::is_variable_name,
};

/// The largest number of models in `fallback`.
const MAX_FALLBACKS: usize = 8;

/// Reads `llm`, which every pack has, with its fallbacks. `None` after an error.
pub(super) fn read_llm(top: &mut Object) -> Option<Llm> {
    let field = top.required(
        "llm",
        "write `llm: { provider: none }` for an agent without a model",
    )?;
    let mut object = field.object()?;
    let mut llm = read_model(&mut object, true);
    if let Some(fallback) = object.optional("fallback") {
        let others = fallback.list().unwrap_or_default();
        if others.len() > MAX_FALLBACKS {
            fallback.error(
                format!("names {} models", others.len()),
                &format!("name {MAX_FALLBACKS} at most"),
            );
        }
        let (temperature, max_tokens) = (llm.temperature, llm.max_tokens);
        let others = others.iter().filter_map(read_fallback);
        llm.fallback = others
            .map(|other| Llm {
                temperature: other.temperature.or(temperature),
                max_tokens: other.max_tokens.or(max_tokens),
                ..other
            })
            .collect();
        if llm.provider == Provider::None {
            fallback.warn("has no effect here", "an agent without a model asks none");
            llm.fallback.clear();
        }
    }
    object.finish();
    Some(llm)
}

/// Reads a model that is asked when those before it do not answer.
fn read_fallback(field: &Field) -> Option<Llm> {
    let mut object = field.object()?;
    let llm = read_model(&mut object, false);
    if llm.provider == Provider::None {
        field.error("names no model", "name a provider that has models");
    }
    object.finish();
    Some(llm)
}

/// Reads the fields of one model. `is_own`: it is not a fallback, so it also has the fields about the agent. `baseUrl`,
/// `apiKey` and `model` may be empty, so that a variable can leave them out.
fn read_model(object: &mut Object, is_own: bool) -> Llm {
    let named = object.optional("provider");
    let provider = named
        .as_ref()
        .map_or(Some(Provider::default()), |field| field.one_of(&PROVIDERS));
    let model = read_model_name(object, provider);
    let at_azure = named
        .as_ref()
        .and_then(Field::try_text)
        .is_some_and(|word| word == AZURE);
    if at_azure && object.is_absent("baseUrl") {
        object.report_missing("baseUrl", "write the address of the Azure resource");
    }
    // The variables of OpenAI hold nothing for Azure.
    let own = provider.filter(|_| !at_azure);
    let base_url = match read_base_url(object, own) {
        BaseUrl::Written(Some(url)) if at_azure => BaseUrl::Written(Some(complete_azure_url(url))),
        other => other,
    };
    let effort = object.optional("reasoningEffort");
    let effort = effort.and_then(|field| read_reasoning_effort(&field, provider));
    if let Some(verbose) = object.older("verbose")
        && verbose.boolean_or_word() == Some(true)
    {
        verbose.warn(
            "has no effect here",
            "what people and the model say is never logged",
        );
    }
    Llm {
        provider: provider.unwrap_or_default(),
        model,
        api_key: read_api_key(object, own, &base_url),
        base_url: base_url.url(),
        agent_prompt: is_own
            .then(|| object.optional("agentPrompt"))
            .flatten()
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        temperature: object
            .optional("temperature")
            .and_then(|field| field.number_or_text(&(0.0..=2.0))),
        reasoning_effort: effort,
        max_tokens: object
            .optional("maxTokens")
            .and_then(|field| field.whole_or_text(&(1..=10_000_000)))
            .map(u64::from),
        max_steps: is_own
            .then(|| object.optional("maxSteps"))
            .flatten()
            .and_then(|field| field.whole_number(&(1..=100)))
            .unwrap_or(MAX_STEPS),
        fallback: Vec::new(),
    }
}

/// Reads `reasoningEffort`. Published packs turn it off with `none`.
fn read_reasoning_effort(field: &Field, provider: Option<Provider>) -> Option<ReasoningEffort> {
    let mut words = vec![("none", None)];
    words.extend(ReasoningEffort::ALL.map(|(word, effort)| (word, Some(effort))));
    let effort = field.one_of(&words)??;
    if provider.is_some_and(|provider| provider != Provider::Openai) {
        field.warn("has no effect with this provider", "remove it");
        return None;
    }
    Some(effort)
}

/// The address of the model.
enum BaseUrl {
    /// The address that the pack writes. `None` after an error.
    Written(Option<Url>),
    /// The address in the variable that the provider's own programs read.
    OfEnvironment(Url),
    /// The provider's own address.
    OfProvider,
}

impl BaseUrl {
    fn url(self) -> Option<Url> {
        match self {
            Self::Written(url) => url,
            Self::OfEnvironment(url) => Some(url),
            Self::OfProvider => None,
        }
    }

    /// Whether the key in the environment may be sent to this address. An address without TLS does not get it, because
    /// others could read the key on the way; such an address usually is the operator's own model.
    fn takes_default_key(&self) -> bool {
        match self {
            Self::Written(url) => url.as_ref().is_some_and(|url| url.scheme() == "https"),
            Self::OfEnvironment(_) | Self::OfProvider => true,
        }
    }
}

/// Reads `baseUrl`. If the field is absent, the environment may name the address; an empty field stands for the
/// provider's own address.
fn read_base_url(object: &mut Object, provider: Option<Provider>) -> BaseUrl {
    if let Some(field) = object.optional("baseUrl") {
        return match field.text() {
            Some(text) if text.value.trim().is_empty() => BaseUrl::OfProvider,
            Some(_) => BaseUrl::Written(field.url()),
            None => BaseUrl::Written(None),
        };
    }
    let Some(variable) = provider
        .and_then(provider_word)
        .and_then(address_variable_of)
    else {
        return BaseUrl::OfProvider;
    };
    let Some(value) = object.field.context.default_variable(variable) else {
        return BaseUrl::OfProvider;
    };
    match parse_server_url(value.trim(), ["http", "https"]) {
        Ok(url) => BaseUrl::OfEnvironment(url),
        Err(problem) => {
            object.field.error(
                format!(
                    "there is no `baseUrl`, and the value of {variable} {}",
                    problem.message()
                ),
                "correct the variable, or write `baseUrl`",
            );
            BaseUrl::OfProvider
        }
    }
}

/// Reads `apiKey`. If the field is absent, the key comes from the variable that the provider's own programs read.
/// Warns if the provider wants a key and there is none.
fn read_api_key(object: &mut Object, provider: Option<Provider>, base: &BaseUrl) -> Option<Secret> {
    if let Some(field) = object.optional("apiKey") {
        let (key, text) = field.secret()?;
        if !text.value.trim().is_empty() {
            return Some(key);
        }
    } else if object.is_absent("apiKey")
        && let Some(variable) = provider.and_then(key_variable)
        && base.takes_default_key()
        && let Some(key) = object.field.context.default_variable(variable)
    {
        if let BaseUrl::Written(Some(url)) = base {
            object.field.warn(
                format!(
                    "there is no `apiKey`, so {} is sent the key in {variable}",
                    url.host_str().unwrap_or_default()
                ),
                "write `apiKey: ${…}`, or `apiKey: \"\"` for none",
            );
        }
        return Some(Secret::new(key));
    }
    let hosted = match provider {
        Some(Provider::Anthropic | Provider::Gemini) => true,
        Some(Provider::Openai) => matches!(base, BaseUrl::OfProvider),
        _ => false,
    };
    if hosted {
        let variable = provider.and_then(key_variable).unwrap_or_default();
        object.field.warn(
            "there is no `apiKey`, and this provider wants one",
            &format!("write `apiKey: ${{…}}`, or set {variable}"),
        );
    }
    None
}

/// The variable that holds the key for a provider.
fn key_variable(provider: Provider) -> Option<&'static str> {
    key_variable_of(provider_word(provider)?)
}

/// The name of a provider in packs.
fn provider_word(provider: Provider) -> Option<&'static str> {
    let named = PROVIDERS.iter().find(|(_, other)| *other == provider)?;
    Some(named.0)
}

/// Reads `model`. If the field is absent, the variable of the provider may name one.
fn read_model_name(object: &mut Object, provider: Option<Provider>) -> String {
    let field = object.optional("model");
    let text = field.as_ref().and_then(Field::text);
    let needed = provider.is_some_and(|provider| provider != Provider::None);
    let variable = match provider {
        Some(Provider::Openai) => Some("OPENAI_MODEL"),
        Some(Provider::Ollama) => Some("OLLAMA_MODEL"),
        _ => None,
    };
    if object.is_absent("model")
        && let Some(model) = variable.and_then(|name| object.field.context.default_variable(name))
    {
        return model.trim().to_owned();
    }
    match (&field, &text) {
        (None, _) if needed && object.is_absent("model") => {
            object.report_missing(
                "model",
                "name a model such as `model: gpt-5-mini`, or write `provider: none`",
            );
        }
        (Some(field), Some(text)) if needed && text.value.trim().is_empty() => {
            let found = if text.from_env {
                format!("{} is empty", text.shown)
            } else {
                "is empty".to_owned()
            };
            field.error(found, "name a model, or write `provider: none`");
        }
        _ => {}
    }
    text.map(|text| text.value.trim().to_owned())
        .unwrap_or_default()
}

/// Adds the path of OpenAI's API to the address of an Azure resource. An address with another path stays as it is.
fn complete_azure_url(mut resource: Url) -> Url {
    if ["", "/openai"].contains(&resource.path().trim_end_matches('/')) {
        resource.set_path("/openai/v1");
    }
    resource
}

/// Reads `paramsSchema`, a map from the name of each parameter to its rules.
pub(super) fn read_params(field: &Field) -> Option<ParamsSchema> {
    let mut params = ParamsSchema::new();
    for (name, field) in field.entries()? {
        if !is_variable_name(name) {
            field.error(
                format!("{name:?} is not the name of a parameter"),
                "use letters, digits and `_`",
            );
        }
        let Some(mut object) = field.object() else {
            continue;
        };
        let kinds = [
            ("string", ParamKind::String),
            ("json", ParamKind::Json),
            ("boolean", ParamKind::Boolean),
            ("number", ParamKind::Number),
        ];
        let param = Param {
            kind: object
                .optional("type")
                .and_then(|field| field.one_of(&kinds))
                .unwrap_or_default(),
            required: object
                .optional("required")
                .and_then(|field| field.boolean())
                .unwrap_or_default(),
            description: object
                .optional("description")
                .and_then(|field| field.text())
                .map(|text| text.value),
        };
        object.finish();
        params.insert(name.to_owned(), param);
    }
    Some(params)
}
