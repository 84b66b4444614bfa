//! The formats that load as a pack, and what packs of other programs lack: an id, texts, a model and access rules.
//!
//! The reader of each format makes the tree of a native pack, which [`native`](super::native) reads like any other. So
//! every rule holds for every format, and no later step knows where a pack came from.

use std::{
    fs,
    path::{Path, PathBuf, absolute},
};

use super::{
    aos,
    field::Field,
    holaos, holodeck,
    native::AZURE,
    node_builder::{NodeBuilder, copy, generate, generate_text},
    parse_context::{ParseContext, ProblemPlace},
    report::Severity,
    server::Files,
    yaml::{EMPTY, Key, Node, Value},
};
use domain::ids::AgentId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Native,
    HolaOs,
    Aos,
    HoloDeck,
}

pub(super) const NATIVE_FILES: [&str; 3] = ["agent-pack.yaml", "agent-pack.yml", "agent-pack.json"];
/// The file beside a pack of another format that says who may do what, in the words of the native format.
pub(super) const ACCESS: &str = "access.yaml";
/// The file of a holaOS pack.
pub(super) const WORKSPACE: &str = "workspace.yaml";
/// The file of a HoloDeck pack.
pub(super) const AGENT: &str = "agent.yaml";

impl Dialect {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Native => "agent-pack",
            Self::HolaOs => "holaOS",
            Self::Aos => "AOS",
            Self::HoloDeck => "HoloDeck",
        }
    }
}

/// The files of one pack.
#[derive(Debug)]
pub(super) struct Documents {
    pub dialect: Dialect,
    pub folder: PathBuf,
    /// At least one. If there is an `access.yaml`, it is the last one.
    pub files: Vec<PathBuf>,
}

impl Documents {
    /// The name of the pack in messages.
    pub(super) fn name(&self) -> String {
        let path = if self.dialect == Dialect::Aos {
            &self.folder
        } else {
            &self.files[0]
        };
        path.display().to_string()
    }

    /// The number of the file with the access rules.
    pub(super) fn access(&self) -> Option<usize> {
        let last = self.files.len() - 1;
        (last > 0 && self.files[last] == self.folder.join(ACCESS)).then_some(last)
    }
}

/// Reads the files of a pack into the tree of a native pack. Also returns the other files that were read. If there is
/// no tree, `context` has an error.
pub(super) fn read(documents: &Documents, context: &ParseContext) -> (Option<Node>, Files) {
    let mut files = Files::new();
    let mut root = match documents.dialect {
        Dialect::Native => {
            if let Some(at) = documents.access() {
                let message = "this file is for packs of other formats".to_owned();
                let hint = "write `toolAccess` and `flows.authentication` in the pack, and remove this file";
                context.report(Severity::Error, ProblemPlace::start_of(at), message, hint);
            }
            return (context.parse(), files);
        }
        Dialect::HolaOs => holaos::read(context),
        Dialect::Aos => Some(aos::read(context, documents)),
        Dialect::HoloDeck => holodeck::read(context, &documents.folder, &mut files),
    };
    if let (Some(root), Some(at)) = (&mut root, documents.access()) {
        apply_access_file(root, context, at);
    }
    if let Some(Err(reason)) = folder_name(&documents.folder).map(|id| AgentId::parse(&id)) {
        let message = format!("the name of the folder is the id of the pack: {reason}");
        context.report(
            Severity::Error,
            ProblemPlace::start_of(0),
            message,
            "rename the folder",
        );
    }
    let root = root.map(|root| with_id(root, &documents.folder));
    (root.filter(|_| !context.is_refused()), files)
}

fn folder_name(folder: &Path) -> Option<String> {
    let named = |path: PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    // A path such as `a/..` has no name of its own, but the folder that it leads to has one.
    absolute(folder)
        .ok()
        .and_then(named)
        .or_else(|| fs::canonicalize(folder).ok().and_then(named))
}

/// Sets `metadata.id` to the name of the folder.
fn with_id(mut root: Node, folder: &Path) -> Node {
    let id = generate_text(
        "the name of the folder",
        folder_name(folder).unwrap_or_default(),
    );
    if let Value::Map(entries) = &mut root.value
        && let Some((_, metadata)) = entries.iter_mut().find(|(key, _)| key.text == "metadata")
        && let Value::Map(fields) = &mut metadata.value
    {
        fields.insert(
            0,
            (
                Key {
                    text: "id".to_owned(),
                    at: id.at,
                },
                id,
            ),
        );
    }
    root
}

/// The items of `mcp.servers` of a native tree.
pub(super) fn servers_of(root: &Node) -> &[Node] {
    root.get_path(&["mcp", "servers"])
        .map(Node::items)
        .unwrap_or_default()
}

/// The parts of a pack that come from its format. The other parts have defaults.
#[derive(Default)]
pub(super) struct Parts {
    pub display_name: Option<Node>,
    pub description: Option<Node>,
    pub system_prompt: Option<Node>,
    pub llm: Option<Node>,
    pub servers: Vec<Node>,
    pub skills: Vec<Node>,
    /// A comment on the servers, for whoever reads the pack.
    pub note: Option<String>,
}

/// Builds the tree of a native pack without its id.
pub(super) fn assemble(parts: Parts, context: &ParseContext) -> Node {
    const NEUTRAL: &str = "default of imported packs";
    let mut metadata = NodeBuilder::default();
    metadata.put_some("displayName", parts.display_name);
    metadata.put_some("description", parts.description);
    metadata.put("defaultLanguage", generate_text(NEUTRAL, "en"));
    let mut english = NodeBuilder::default();
    english.put_some("systemPrompt", parts.system_prompt);
    let mut languages = NodeBuilder::default();
    languages.put("en", english.build_generated(NEUTRAL));
    let mut mcp = NodeBuilder::default();
    mcp.put("servers", generate(NEUTRAL, Value::List(parts.servers)));
    let mut root = NodeBuilder::default();
    root.put("metadata", metadata.build_generated(NEUTRAL));
    root.put("languages", languages.build_generated(NEUTRAL));
    root.put(
        "llm",
        parts
            .llm
            .unwrap_or_else(|| build_llm_from_environment(context)),
    );
    root.put("mcp", mcp.build_generated(NEUTRAL).with_note(parts.note));
    if !parts.skills.is_empty() {
        root.put("skills", generate(NEUTRAL, Value::List(parts.skills)));
    }
    root.build_generated(NEUTRAL)
}

/// The access rule of an imported server: everybody who may talk to the agent may call every tool.
pub(super) fn open_to_all() -> Node {
    const WHY: &str = "default of imported packs: every user of the tenant";
    let mut access = NodeBuilder::default();
    access.put("default", generate_text(WHY, "public"));
    access.build_generated(WHY)
}

/// The `llm` section for a pack whose format has no place for a model. It names the operator's variables, the same ones
/// that the demo uses; if they name no model, the agent has none.
fn build_llm_from_environment(context: &ParseContext) -> Node {
    const WHY: &str = "the environment";
    let set = |name: &&str| {
        context
            .variable(name)
            .is_some_and(|value| !value.trim().is_empty())
    };
    let reference = |name: &str| generate_text(WHY, format!("${{{name}}}"));
    let mut llm = NodeBuilder::default();
    let provider = context.variable("LLM_PROVIDER").unwrap_or_default().trim();
    let endpoint = ["OPENAI_BASE_URL", "OPENAI_API_KEY"].iter().any(set);
    if provider == "none" || (provider.is_empty() && !endpoint) {
        llm.put(
            "provider",
            generate_text(
                "default of imported packs: no variable names a model",
                "none",
            ),
        );
        return llm.build_generated(WHY);
    }
    let (model, url) = ("LLM_MODEL", "OPENAI_BASE_URL");
    let named = if provider.is_empty() {
        generate_text(WHY, "openai")
    } else {
        reference("LLM_PROVIDER")
    };
    llm.put("provider", named);
    llm.put(
        "model",
        if set(&model) {
            reference(model)
        } else {
            generate_text(WHY, "gpt-5-mini")
        },
    );
    if ["", "openai"].contains(&provider) && set(&url) {
        llm.put("baseUrl", reference(url));
    }
    llm.put_some(
        "apiKey",
        key_variable_of(provider).filter(set).map(reference),
    );
    llm.build_generated(WHY)
}

/// The variable that holds the key for a provider.
pub(super) fn key_variable_of(provider: &str) -> Option<&'static str> {
    match provider {
        "" | "openai" => Some("OPENAI_API_KEY"),
        "anthropic" => Some("ANTHROPIC_API_KEY"),
        "gemini" => Some("GEMINI_API_KEY"),
        AZURE => Some("AZURE_OPENAI_API_KEY"),
        _ => None,
    }
}

/// The variable that replaces a provider's own address.
pub(super) fn address_variable_of(provider: &str) -> Option<&'static str> {
    match provider {
        "openai" => Some("OPENAI_BASE_URL"),
        "anthropic" => Some("ANTHROPIC_BASE_URL"),
        "ollama" => Some("OLLAMA_ENDPOINT"),
        AZURE => Some("AZURE_OPENAI_ENDPOINT"),
        _ => None,
    }
}

/// Copies the rules of `access.yaml` into the tree: `authentication` as in `flows`, and `toolAccess` by server.
/// `source` is the number of that file.
fn apply_access_file(root: &mut Node, context: &ParseContext, source: usize) {
    let Some(document) = context.parse_source(source, |error| {
        (error.message == EMPTY).then(|| {
            (
                EMPTY.to_owned(),
                "write `toolAccess: { <server>: … }`, or remove it",
            )
        })
    }) else {
        return;
    };
    let document = Field::new(context, &document, "");
    let Some(mut top) = document.object() else {
        return;
    };
    if let Some(authentication) = top.optional("authentication") {
        let mut flows = NodeBuilder::default();
        flows.put("authentication", copy(&authentication));
        root.set("flows", flows.into_node(&authentication));
    }
    let access = top.optional("toolAccess");
    for (name, field) in access.as_ref().and_then(Field::entries).unwrap_or_default() {
        if !set_access(root, name, copy(&field)) {
            let known: Vec<_> = servers_of(root)
                .iter()
                .filter_map(|server| server.get("name")?.scalar_text())
                .collect();
            field.error(
                format!("there is no server {name:?}"),
                &format!("the servers are {}", known.join(", ")),
            );
        }
    }
    top.finish();
}

/// Replaces the access rule of a server. Returns `false` if there is no such server.
fn set_access(root: &mut Node, name: &str, access: Node) -> bool {
    let Value::Map(top) = &mut root.value else {
        return false;
    };
    let Some((_, mcp)) = top.iter_mut().find(|(key, _)| key.text == "mcp") else {
        return false;
    };
    let Value::Map(fields) = &mut mcp.value else {
        return false;
    };
    let Some((_, servers)) = fields.iter_mut().find(|(key, _)| key.text == "servers") else {
        return false;
    };
    let Value::List(servers) = &mut servers.value else {
        return false;
    };
    let named = |server: &&mut Node| server.get("name").and_then(Node::scalar_text) == Some(name);
    servers.iter_mut().find(named).is_some_and(|server| {
        server.set("toolAccess", access);
        true
    })
}
