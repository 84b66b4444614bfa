//! The model that the operator's environment names, for a pack whose format has no place for one.

use crate::{
    native::AZURE,
    node_builder::{NodeBuilder, generated_text},
    parse_context::ParseContext,
    yaml::Node,
};

/// The model that the operator's environment names, in the variables that the demo uses.
pub(super) fn model_of_environment(context: &ParseContext) -> Node {
    const WHY: &str = "the environment";
    let set = |name: &&str| {
        context
            .variable(name)
            .is_some_and(|value| !value.trim().is_empty())
    };
    let reference = |name: &str| generated_text(WHY, format!("${{{name}}}"));
    let mut llm = NodeBuilder::default();
    let provider = context.variable("LLM_PROVIDER").unwrap_or_default().trim();
    let endpoint = ["OPENAI_BASE_URL", "OPENAI_API_KEY"].iter().any(set);
    if provider == "none" || (provider.is_empty() && !endpoint) {
        llm.put(
            "provider",
            generated_text(
                "default of imported packs: no variable names a model",
                "none",
            ),
        );
        return llm.generated(WHY);
    }
    let (model, url) = ("LLM_MODEL", "OPENAI_BASE_URL");
    let named = if provider.is_empty() {
        generated_text(WHY, "openai")
    } else {
        reference("LLM_PROVIDER")
    };
    llm.put("provider", named);
    llm.put(
        "model",
        if set(&model) {
            reference(model)
        } else {
            generated_text(WHY, "gpt-5-mini")
        },
    );
    if ["", "openai"].contains(&provider) && set(&url) {
        llm.put("baseUrl", reference(url));
    }
    llm.put_some("apiKey", key_of(provider).filter(set).map(reference));
    llm.generated(WHY)
}

/// The variable that holds the key for a provider.
pub(crate) fn key_of(provider: &str) -> Option<&'static str> {
    match provider {
        "" | "openai" => Some("OPENAI_API_KEY"),
        "anthropic" => Some("ANTHROPIC_API_KEY"),
        "gemini" => Some("GEMINI_API_KEY"),
        AZURE => Some("AZURE_OPENAI_API_KEY"),
        _ => None,
    }
}

/// The variable that holds another address of a provider than its own.
pub(crate) fn endpoint_of(provider: &str) -> Option<&'static str> {
    match provider {
        "openai" => Some("OPENAI_BASE_URL"),
        "anthropic" => Some("ANTHROPIC_BASE_URL"),
        "ollama" => Some("OLLAMA_ENDPOINT"),
        AZURE => Some("AZURE_OPENAI_ENDPOINT"),
        _ => None,
    }
}
