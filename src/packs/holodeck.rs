//! HoloDeck: `agent.yaml`, of which the tools of `type: mcp` count, and who the agent is (its contract;
//! statements D1–D11).
//!
//! `${NAME}` is replaced in every text of a tool, and each one must be set when the pack is loaded. The
//! contract fixes the sentences.

mod tool;

use std::{fs, path::Path};

use super::{
    dialect::{Parts, assemble, key_of},
    env_file::resolve_inside,
    field::Field,
    node_builder::{NodeBuilder, copy_with, generated_text, literal, text},
    object::Object,
    parse_context::ParseContext,
    placeholder::dollar,
    server::Files,
    yaml::{EMPTY, Node},
};

const MAX_INSTRUCTIONS: usize = 256 * 1024;

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
    top.pass_over();
    Some(assemble(parts, context))
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
            Some(other) => item.warn(
                format!("a tool of type {other:?} is not offered by this program"),
                "",
            ),
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
    const KEY: &str = "the usual variable of this provider";
    let mut object = field.object()?;
    let provider = object.nullable("provider");
    let named = provider.as_ref().and_then(Field::raw).unwrap_or_default();
    let known = match named {
        "openai" | "anthropic" | "ollama" | "gemini" => Some(named),
        "google" => Some("gemini"),
        _ => None,
    };
    if known.is_none() {
        provider.as_ref().unwrap_or(field).error(
            format!("the provider {named:?} is not known here"),
            "write one of openai, anthropic, gemini, ollama",
        );
    }
    let mut llm = NodeBuilder::default();
    llm.put_some(
        "provider",
        provider
            .as_ref()
            .map(|field| text(field, known.unwrap_or_default())),
    );
    llm.put_some("model", replaced_of(&mut object, "name"));
    llm.put_some("baseUrl", replaced_of(&mut object, "endpoint"));
    let key = replaced_of(&mut object, "api_key");
    let usual = || key_of(known?).filter(|name| field.context.variable(name).is_some());
    llm.put_some(
        "apiKey",
        key.or_else(|| usual().map(|name| generated_text(KEY, format!("${{{name}}}")))),
    );
    llm.put_some(
        "temperature",
        object
            .nullable("temperature")
            .map(|field| super::node_builder::copy(&field)),
    );
    llm.put_some(
        "maxTokens",
        object
            .nullable("max_tokens")
            .map(|field| super::node_builder::copy(&field)),
    );
    object.pass_over();
    Some(llm.into_node(field))
}
