//! Reads the native format: `agent-pack.yaml` → [`Pack`].
//!
//! Every field is read here or by a module that this one calls. A field that no reader asks for is unknown and refused.

mod flows;
mod head;
mod model;

use std::{cell::RefCell, collections::BTreeMap, path::Path};

pub(super) use self::head::check_language_tag;
use self::{
    flows::{find_disabled_sign_in, read_flows},
    head::{check_strings, read_head},
    model::{read_llm, read_params},
};
use super::{
    field::Field,
    object::Object,
    references::{self, RegistryReferences},
    report::Problem,
    server::{self, Files, PackContext},
    skills, summary,
    yaml::Node,
};
use domain::{
    ids::AgentId,
    json::Members,
    pack::{Llm, Memory, Pack, Provider},
    policy::Vars,
    server::ServerSpec,
};

/// The default of `memory.window`: how many messages of a conversation the model gets.
pub(super) const WINDOW: u32 = 40;
/// The default of `llm.maxSteps`.
pub(super) const MAX_STEPS: u32 = 16;
/// The default language of a pack that has several languages and names none.
pub(super) const ENGLISH: &str = "en";
/// The provider of OpenAI's models at a resource of Azure. The address of the resource is the base address.
pub(super) const AZURE: &str = "azure-openai";
pub(super) const PROVIDERS: [(&str, Provider); 6] = [
    ("openai", Provider::Openai),
    (AZURE, Provider::Openai),
    ("anthropic", Provider::Anthropic),
    ("gemini", Provider::Gemini),
    ("ollama", Provider::Ollama),
    ("none", Provider::None),
];

/// Sections of published packs that this program has no use for, and a hint that says what holds instead.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    (
        "rag",
        "the model is given no documents; an MCP server that searches them can be added under `mcp.servers`",
    ),
    ("tools", "tools come from `mcp.servers` alone"),
    (
        "imageGeneration",
        "an MCP server that makes images can be added under `mcp.servers`",
    ),
    ("speechToText", "spoken messages are not taken"),
    (
        "vision",
        "images go to the model of `llm`, from everybody who may talk to the agent, whatever `requireAuth` says",
    ),
    (
        "integrations",
        "the database and the sign-in are settings of the service",
    ),
];

/// Fields of `memory` that have no effect.
const MEMORY_WITHOUT_EFFECT: [&str; 2] = ["backend", "redisUrl"];

/// Removes the sections and fields that have no effect.
pub(super) fn remove_without_effect(root: &mut Node) {
    for (section, _) in WITHOUT_EFFECT {
        root.remove(&[section]);
    }
    for field in MEMORY_WITHOUT_EFFECT {
        root.remove(&["memory", field]);
    }
    for field in flows::WITHOUT_EFFECT {
        root.remove(&["flows", "authentication", field]);
    }
}

/// A pack as far as it could be read.
#[derive(Default)]
pub(super) struct PartialPack {
    pub id: Option<AgentId>,
    /// To be used only if no error was recorded.
    pub pack: Option<Pack>,
    /// The files that the document names, with their content.
    pub files: Files,
    /// The problems of those files.
    pub problems: Vec<Problem>,
    /// The variables that were used in those files, with their values.
    pub used: BTreeMap<String, String>,
}

/// Reads a whole document. If `servers` is given, it replaces `mcp.servers`, which is then not read: its variables
/// may be unset.
pub(super) fn read(document: &Field, folder: &Path, servers: Option<&Field>) -> PartialPack {
    let Some(mut top) = document.object() else {
        return PartialPack::default();
    };
    for (section, instead) in WITHOUT_EFFECT {
        top.warn_without_effect(&[section], instead);
    }
    let greeting = document.get_path(&["flows", "welcome", "templateKey"]);
    let greeting = greeting.as_ref().and_then(Field::raw);
    let (languages, head) = read_head(&mut top, greeting);
    let llm = read_llm(&mut top);
    let memory = read_memory(&mut top);
    let flows = read_flows(&mut top, &head.language, &languages[&head.language]);
    check_strings(document, &flows);
    let pack = PackContext {
        folder,
        language: &head.language,
        authentication: &flows.authentication,
        files: RefCell::default(),
    };
    let listed = servers
        .cloned()
        .or_else(|| document.get_path(&["mcp", "servers"]));
    let named = list_server_names(listed.clone());
    if document.get_path(&["vars"]).is_none() {
        document.set_vars(Vars::default());
    }
    let vars = read_vars(&mut top).unwrap_or_default();
    if let (Some(servers), Some(vars)) = (servers, document.vars()) {
        servers.set_vars(vars);
    }
    let servers = read_servers(&mut top, servers, &pack);
    let params = params_field(&mut top).and_then(|field| read_params(&field));
    let RegistryReferences {
        references,
        capabilities,
        prompts,
        entries,
        problems,
        used,
    } = references::read(&mut top, &pack, &servers);
    let skills = top
        .optional("skills")
        .map(|field| skills::read(&field, &servers, &references, &named, pack.language));
    let skills = skills.unwrap_or_default();
    top.finish();
    if let Some(enabled) = find_disabled_sign_in(document)
        && !flows.authentication.required
    {
        let servers = listed.as_ref().map(|field| field.node().items());
        let reached = summary::describe_guest_access(servers.unwrap_or_default(), &references);
        enabled.warn(
            format!("everybody is let in without a sign-in and may call: {reached}"),
            "",
        );
    }
    let files = pack.files.into_inner();
    let id = head.id.clone();
    let pack = id.clone().zip(llm).map(|(id, llm)| Pack {
        metadata: head.metadata(id),
        languages,
        llm: Llm {
            agent_prompt: join_prompts(llm.agent_prompt, prompts),
            ..llm
        },
        memory,
        flows,
        servers,
        skills,
        vars,
        params,
        references,
        capabilities,
        entries,
        folder: folder.to_owned(),
        version: String::new(),
    });
    PartialPack {
        id,
        pack,
        files,
        problems,
        used,
    }
}

/// Reads `vars`, the values that conditions of rules may name.
pub(super) fn read_vars(top: &mut Object) -> Option<Vars> {
    let field = top.optional("vars")?;
    let values = field.object().and_then(|_| field.resolve_json());
    let values = values.as_ref().and_then(serde_json::Value::as_object);
    let is_known = values.is_some();
    let vars = Vars::new(values.map(Members::from).unwrap_or_default());
    if let (Ok(vars), true) = (&vars, is_known) {
        field.set_vars(vars.clone());
    }
    let refuse = |problem| {
        field.error(
            format!("conditions cannot use it: {problem}"),
            "make it smaller",
        );
    };
    vars.map_err(refuse).ok()
}

/// Reads `servers` if it is given, else those of `mcp`.
fn read_servers(top: &mut Object, servers: Option<&Field>, pack: &PackContext) -> Vec<ServerSpec> {
    let own = top.optional("mcp");
    match servers {
        Some(servers) => server::read_all(servers, pack),
        None => own
            .and_then(|field| read_mcp(&field, pack))
            .unwrap_or_default(),
    }
}

/// The names of all servers, also of those with errors. Other readers report the errors.
fn list_server_names(servers: Option<Field<'_>>) -> Vec<String> {
    let items = servers
        .filter(|field| !field.is_map())
        .and_then(|field| field.list())
        .unwrap_or_default();
    items
        .iter()
        .filter_map(|item| item.get_path(&["name"])?.try_text())
        .collect()
}

/// Joins the agent's own prompt and those of its capabilities.
fn join_prompts(own: Option<String>, others: Vec<String>) -> Option<String> {
    let all: Vec<String> = own.into_iter().chain(others).collect();
    if all.is_empty() {
        None
    } else {
        Some(all.join("\n\n"))
    }
}

/// The field `paramsSchema`, or `params_schema`, which is its spelling in the registry document.
fn params_field<'a>(top: &mut Object<'a>) -> Option<Field<'a>> {
    let (own, other) = (top.optional("paramsSchema"), top.optional("params_schema"));
    if let (Some(_), Some(other)) = (&own, &other) {
        other.error("there is a `paramsSchema`, too", "write one of the two");
    }
    own.or(other)
}

fn read_memory(top: &mut Object) -> Memory {
    let window = top.optional("memory").and_then(|field| read_window(&field));
    Memory {
        window: window.unwrap_or(WINDOW) as usize,
    }
}

fn read_window(field: &Field) -> Option<u32> {
    let mut object = field.object()?;
    let window = object
        .optional("window")
        .and_then(|field| field.whole_or_text(&(1..=1000)));
    object.warn_without_effect(
        &MEMORY_WITHOUT_EFFECT,
        "conversations are kept in the database of the service",
    );
    object.finish();
    window
}

fn read_mcp(field: &Field, pack: &PackContext) -> Option<Vec<ServerSpec>> {
    let mut object = field.object()?;
    let servers = object
        .optional("servers")
        .map(|field| server::read_all(&field, pack))
        .unwrap_or_default();
    object.finish();
    Some(servers)
}
