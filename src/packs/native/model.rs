//! The model of a pack (`llm`) and the parameters that a caller may send (`paramsSchema`).

use url::Url;

use super::{AZURE, MAX_STEPS, PROVIDERS};
use crate::{
    domain::{
        pack::{Llm, Provider},
        params::{Param, ParamKind, ParamsSchema},
        secret::Secret,
        template::is_variable_name,
    },
    packs::{field::Field, object::Object},
};

pub(super) fn required_llm(top: &mut Object) -> Option<Llm> {
    let field = top.required(
        "llm",
        "write `llm: { provider: none }` for an agent without a model",
    )?;
    llm_of(&field)
}

/// `baseUrl`, `apiKey` and `model` may be empty, which is how a variable says that there is none.
fn llm_of(field: &Field) -> Option<Llm> {
    let mut object = field.object()?;
    let named = object.optional("provider");
    let provider = named
        .as_ref()
        .map_or(Some(Provider::default()), |field| field.one_of(&PROVIDERS));
    let model = model(&mut object, provider);
    let at_azure = named
        .as_ref()
        .and_then(Field::try_text)
        .is_some_and(|word| word == AZURE);
    let base_url = object
        .optional("baseUrl")
        .and_then(|field| base_url(&field));
    if at_azure && object.is_absent("baseUrl") {
        object.missing("baseUrl", "write the address of the Azure resource");
    }
    let base_url = base_url.map(|url| if at_azure { azure_url(url) } else { url });
    let llm = Llm {
        provider: provider.unwrap_or_default(),
        model,
        api_key: api_key(&mut object, provider, base_url.is_some()),
        base_url,
        agent_prompt: object
            .optional("agentPrompt")
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        temperature: object
            .optional("temperature")
            .and_then(|field| field.number(&(0.0..=2.0))),
        max_tokens: object
            .optional("maxTokens")
            .and_then(|field| field.whole(&(1..=10_000_000)))
            .map(u64::from),
        max_steps: object
            .optional("maxSteps")
            .and_then(|field| field.whole(&(1..=100)))
            .unwrap_or(MAX_STEPS),
    };
    object.finish();
    Some(llm)
}

/// The key, with a warning when the provider wants one and there is none.
fn api_key(object: &mut Object, provider: Option<Provider>, has_base_url: bool) -> Option<Secret> {
    let key = object.optional("apiKey").and_then(|field| field.secret());
    let blank = key
        .as_ref()
        .is_some_and(|(_, text)| text.value.trim().is_empty());
    let hosted = match provider {
        Some(Provider::Anthropic | Provider::Gemini) => true,
        Some(Provider::Openai) => !has_base_url,
        _ => false,
    };
    if hosted && (blank || object.is_absent("apiKey")) {
        object.field.warn(
            "there is no `apiKey`, and this provider wants one",
            "write `apiKey: ${…}`",
        );
    }
    key.filter(|_| !blank).map(|(secret, _)| secret)
}

pub(super) fn model(object: &mut Object, provider: Option<Provider>) -> String {
    let field = object.optional("model");
    let text = field.as_ref().and_then(Field::text);
    let needed = provider.is_some_and(|provider| provider != Provider::None);
    match (&field, &text) {
        (None, _) if needed && object.is_absent("model") => {
            object.missing(
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

fn base_url(field: &Field) -> Option<Url> {
    let text = field.text()?;
    if text.value.trim().is_empty() {
        None
    } else {
        field.url()
    }
}

/// Where a resource of Azure has OpenAI's API. An address with a path is taken as it is.
fn azure_url(mut resource: Url) -> Url {
    if ["", "/openai"].contains(&resource.path().trim_end_matches('/')) {
        resource.set_path("/openai/v1");
    }
    resource
}

/// `paramsSchema`: a map of names, in the spelling of the registry document.
pub(super) fn params(field: &Field) -> Option<ParamsSchema> {
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
