//! HoloDeck: `agent.yaml`, of which the tools of `type: mcp` count, and who the agent is (its contract;
//! statements D1–D11).
//!
//! `${NAME}` is replaced in every text of a tool, and each one must be set when the pack is loaded. The
//! contract fixes the sentences.

mod tool;

use std::{fs, path::Path};

use super::{
    dialect::{Parts, assemble, endpoint_of, key_of},
    env_file::resolve_inside,
    field::{Field, nearest},
    native::AZURE,
    node_builder::{NodeBuilder, copy, copy_with, generated_text, literal, text},
    object::Object,
    parse_context::ParseContext,
    placeholder::dollar,
    server::Files,
    yaml::{EMPTY, Node},
};

const MAX_INSTRUCTIONS: usize = 256 * 1024;
/// Sections of HoloDeck that this program has no use for. Each gets a warning; a section that HoloDeck does not have
/// either is an error.
const SECTIONS: [&str; 13] = [
    "author",
    "claude",
    "deployment",
    "embedding_model",
    "embedding_provider",
    "evaluations",
    "execution",
    "observability",
    "openai",
    "response_format",
    "test_cases",
    "test_cases_file",
    "vectorstores",
];
/// Kinds of tools that HoloDeck runs itself.
const OWN_TOOLS: [&str; 5] = [
    "function",
    "hierarchical_document",
    "prompt",
    "vectorstore",
    "vector_search",
];

pub(super) fn read(context: &ParseContext, folder: &Path, files: &mut Files) -> Option<Node> {
    let root = context.parse_source(0, |fault| {
        (fault.message == EMPTY)
            .then(|| (EMPTY.to_owned(), "write `name`, `description` and `tools`"))
    })?;
    let document = Field::new(context, &root, "");
    let mut top = document.object()?;
    let parts = Parts {
        display_name: replaced_of(&mut top, "name"),
        description: replaced_of(&mut top, "description"),
        system_prompt: top
            .nullable("instructions")
            .and_then(|field| instructions(&field, folder, files)),
        llm: top.nullable("model").and_then(|field| model(&field)),
        servers: top
            .nullable("tools")
            .map(|field| tools(&field))
            .unwrap_or_default(),
        ..Parts::default()
    };
    for name in SECTIONS {
        if let Some(section) = without_effect(&mut top, name) {
            check_tool_limits(name, &section);
        }
    }
    top.finish();
    Some(assemble(parts, context))
}

/// A field of HoloDeck that nothing here is made of.
fn without_effect<'a>(object: &mut Object<'a>, name: &'static str) -> Option<Field<'a>> {
    let field = object.nullable(name)?;
    field.warn(format!("`{name}` has no effect here"), "");
    Some(field)
}

/// Settings of one SDK that narrow which tools an agent may use. They name its built-in tools, too, so they are not
/// rules here, and whoever wrote them has to hear what holds instead.
fn check_tool_limits(section: &str, field: &Field) {
    for name in ["allowed_tools", "disallowed_tools"] {
        let limits = field.get_path(&[name]).filter(|limit| !limit.is_nothing());
        if let Some(limit) = limits {
            limit.warn(
                format!("`{section}.{name}` limits nothing here: every user may call every tool that is listed"),
                "write `toolAccess` for the server in access.yaml beside this file",
            );
        }
    }
}

/// The sentence of the contract for a variable that is not set.
fn not_found(name: &str) -> String {
    format!("ConfigError: Environment variable '{name}' not found")
}

/// Text with its variables, in native spelling.
fn replaced(field: &Field) -> Option<Node> {
    copy_with(field, &|field, text| dollar(field, text, not_found))
}

fn replaced_of(object: &mut Object, name: &'static str) -> Option<Node> {
    let field = object.nullable(name)?;
    if field.raw().is_none() {
        field.error("expected text", "put it in quotes");
        return None;
    }
    replaced(&field)
}

fn tools(field: &Field) -> Vec<Node> {
    let mut servers = Vec::new();
    for item in field.list().unwrap_or_default() {
        match item.get_path(&["type"]).as_ref().and_then(Field::raw) {
            Some("mcp") => servers.extend(tool::read(&item)),
            Some(other) if OWN_TOOLS.contains(&other) => {
                let name = item.get_path(&["name"]);
                let name = name.as_ref().and_then(Field::raw).unwrap_or_default();
                item.warn(
                    format!("the tool {name:?} of type {other:?} has no effect here"),
                    "",
                );
            }
            Some(other) => {
                let kinds: Vec<_> = OWN_TOOLS.into_iter().chain(["mcp"]).collect();
                let near = nearest(other, &kinds).map(|near| format!("did you mean {near:?}?"));
                item.error(
                    format!("ValidationError: 'type' {other:?} is not a type of tool"),
                    near.as_deref().unwrap_or("write `type: mcp`"),
                );
            }
            None => item.error("ValidationError: 'type' is required", "write `type: mcp`"),
        }
    }
    servers
}

/// `inline`, `file`, or text right here.
fn instructions(field: &Field, folder: &Path, files: &mut Files) -> Option<Node> {
    if field.raw().is_some() {
        return replaced(field);
    }
    let mut object = field.object()?;
    let inline = object.nullable("inline");
    let file = object.nullable("file");
    object.finish();
    match (inline, file) {
        (Some(inline), None) => replaced(&inline),
        (None, Some(file)) => {
            let name = file.raw()?;
            match content(name, folder, files) {
                Ok(content) => Some(literal(&file, &content)),
                Err(reason) => {
                    file.error(
                        format!("{name:?} {reason}"),
                        "name a text file in the folder of the pack",
                    );
                    None
                }
            }
        }
        _ => {
            field.error("expected one of `inline` and `file`", "");
            None
        }
    }
}

fn content(name: &str, folder: &Path, files: &mut Files) -> Result<String, &'static str> {
    let path = resolve_inside(folder, Path::new(name))?;
    let bytes = fs::read(&path).map_err(|_| "cannot be read")?;
    files.insert(path, bytes.clone());
    if bytes.len() > MAX_INSTRUCTIONS {
        return Err("is larger than 256 KiB");
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text")
}

/// `model`, in the words of that program.
fn model(field: &Field) -> Option<Node> {
    const USUAL: &str = "the usual variable of this provider";
    const PROVIDERS: [(&str, &str); 6] = [
        ("openai", "openai"),
        ("azure_openai", AZURE),
        ("anthropic", "anthropic"),
        ("ollama", "ollama"),
        ("google", "gemini"),
        ("gemini", "gemini"),
    ];
    let mut object = field.object()?;
    let provider = object.nullable("provider");
    let named = provider.as_ref().and_then(Field::raw).unwrap_or_default();
    let known = PROVIDERS.iter().find(|(word, _)| *word == named);
    let known = known.map(|(_, native)| *native);
    if known.is_none() {
        let words = PROVIDERS.map(|(word, _)| word);
        let near = nearest(named, &words).map(|near| format!("did you mean {near:?}? "));
        let near = near.unwrap_or_default();
        provider.as_ref().unwrap_or(field).error(
            format!("the provider {named:?} is not known here"),
            &format!("{near}write one of {}", words.join(", ")),
        );
    }
    let usual = |name: Option<&'static str>| {
        let name = name.filter(|name| field.context.variable(name).is_some())?;
        Some(generated_text(USUAL, format!("${{{name}}}")))
    };
    let mut llm = NodeBuilder::default();
    llm.put_some(
        "provider",
        provider
            .as_ref()
            .map(|field| text(field, known.unwrap_or_default())),
    );
    let name = replaced_of(&mut object, "name");
    // Azure calls a model by the name of its deployment.
    let deployment = replaced_of(&mut object, "deployment_name");
    llm.put_some(
        "model",
        deployment.filter(|_| known == Some(AZURE)).or(name),
    );
    let endpoint = replaced_of(&mut object, "endpoint");
    let endpoint = endpoint.or_else(|| usual(known.and_then(endpoint_of)));
    if endpoint.is_none() && known == Some(AZURE) && object.is_absent("endpoint") {
        let sentence = "endpoint is required for azure_openai provider".to_owned();
        field.error_at(field.at, "endpoint", sentence, "");
        return None;
    }
    llm.put_some("baseUrl", endpoint);
    let key = replaced_of(&mut object, "api_key");
    llm.put_some("apiKey", key.or_else(|| usual(known.and_then(key_of))));
    for (name, native) in [("temperature", "temperature"), ("max_tokens", "maxTokens")] {
        llm.put_some(native, object.nullable(name).map(|field| copy(&field)));
    }
    for name in ["top_p", "api_version", "auth_provider"] {
        without_effect(&mut object, name);
    }
    object.finish();
    Some(llm.into_node(field))
}
