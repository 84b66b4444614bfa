//! The native format: `agent-pack.yaml` → [`Pack`].
//!
//! Every field is read here or by [`server`]; a field that nobody reads is unknown and refused.

mod flows;
mod head;
mod model;
mod texts;

use std::{cell::RefCell, collections::BTreeMap, path::Path};

pub(super) use self::head::tag;
use self::{
    flows::flows,
    head::words,
    model::{params, required_llm},
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
    pack::{Llm, Memory, Pack, Provider},
    server::ServerSpec,
};

/// Messages that the model is shown unless the pack says otherwise.
pub(super) const WINDOW: u32 = 40;
pub(super) const MAX_STEPS: u32 = 16;
/// The language of a pack that does not say which of several is its default.
pub(super) const ENGLISH: &str = "en";
/// OpenAI's models at a resource of Azure, whose address is the base address.
pub(super) const AZURE: &str = "azure-openai";
pub(super) const PROVIDERS: [(&str, Provider); 6] = [
    ("openai", Provider::Openai),
    (AZURE, Provider::Openai),
    ("anthropic", Provider::Anthropic),
    ("gemini", Provider::Gemini),
    ("ollama", Provider::Ollama),
    ("none", Provider::None),
];

/// Sections of published packs that this program has no use for, and what holds here instead.
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

/// Fields of sections that have an effect, which have none themselves.
const MEMORY_WITHOUT_EFFECT: [&str; 2] = ["backend", "redisUrl"];

/// Takes out what [`read`] passes over.
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
    /// Good only when no error was recorded.
    pub pack: Option<Pack>,
    pub files: Files,
    /// Problems of the files that it names, and the variables that were used in them.
    pub beside: (Vec<Problem>, BTreeMap<String, String>),
}

/// Reads a whole document. `servers` stands in for `mcp.servers`, which is then not looked at: its
/// variables may well be unset.
pub(super) fn read(document: &Field, folder: &Path, servers: Option<&Field>) -> PartialPack {
    let Some(mut top) = document.object() else {
        return PartialPack::default();
    };
    for (section, instead) in WITHOUT_EFFECT {
        top.pass_over_known(&[section], instead);
    }
    let greeting = document.get_path(&["flows", "welcome", "templateKey"]);
    let greeting = greeting.as_ref().and_then(Field::raw);
    let (languages, head) = words(&mut top, greeting);
    let llm = required_llm(&mut top);
    let memory = memory(&mut top);
    let flows = flows(&mut top, &head.language, &languages[&head.language]);
    texts::check(document, &flows);
    let pack = PackContext {
        folder,
        language: &head.language,
        authentication: &flows.authentication,
        files: RefCell::default(),
    };
    let listed = servers
        .cloned()
        .or_else(|| document.get_path(&["mcp", "servers"]));
    let named = server_names(listed.clone());
    let servers = read_servers(&mut top, servers, &pack);
    let params = params_field(&mut top).and_then(|field| params(&field));
    let RegistryReferences {
        references,
        prompts,
        entries,
        problems,
        used,
    } = references::read(&mut top, &pack, &servers);
    let skills = top
        .optional("skills")
        .map(|field| skills::read(&field, &servers, &references, &named));
    let skills = skills.unwrap_or_default();
    top.finish();
    if let Some(enabled) = flows::turned_off(document)
        && !flows.authentication.required
    {
        let servers = listed.as_ref().map(|field| field.node().items());
        let reached = summary::reach_of_guests(servers.unwrap_or_default(), &references);
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
            agent_prompt: joined(llm.agent_prompt, prompts),
            ..llm
        },
        memory,
        flows,
        servers,
        skills,
        params,
        references,
        entries,
        folder: folder.to_owned(),
        version: String::new(),
    });
    PartialPack {
        id,
        pack,
        files,
        beside: (problems, used),
    }
}

/// The servers that stand in for `mcp.servers`, or those of `mcp`.
fn read_servers(top: &mut Object, servers: Option<&Field>, pack: &PackContext) -> Vec<ServerSpec> {
    let own = top.optional("mcp");
    match servers {
        Some(servers) => server::read_all(servers, pack),
        None => own.and_then(|field| mcp(&field, pack)).unwrap_or_default(),
    }
}

/// The names of all servers, also of those with errors, which are reported elsewhere.
fn server_names(servers: Option<Field<'_>>) -> Vec<String> {
    let items = servers
        .filter(|field| !field.is_map())
        .and_then(|field| field.list())
        .unwrap_or_default();
    items
        .iter()
        .filter_map(|item| item.get_path(&["name"])?.try_text())
        .collect()
}

/// The agent's own prompt and those of its capabilities.
fn joined(own: Option<String>, others: Vec<String>) -> Option<String> {
    let all: Vec<String> = own.into_iter().chain(others).collect();
    if all.is_empty() {
        None
    } else {
        Some(all.join("\n\n"))
    }
}

/// The registry document spells it in another way.
fn params_field<'a>(top: &mut Object<'a>) -> Option<Field<'a>> {
    let (own, other) = (top.optional("paramsSchema"), top.optional("params_schema"));
    if let (Some(_), Some(other)) = (&own, &other) {
        other.error("there is a `paramsSchema`, too", "write one of the two");
    }
    own.or(other)
}

fn memory(top: &mut Object) -> Memory {
    let window = top.optional("memory").and_then(|field| window(&field));
    Memory {
        window: window.unwrap_or(WINDOW) as usize,
    }
}

fn window(field: &Field) -> Option<u32> {
    let mut object = field.object()?;
    let window = object
        .optional("window")
        .and_then(|field| field.whole_or_text(&(1..=1000)));
    object.pass_over_known(
        &MEMORY_WITHOUT_EFFECT,
        "conversations are kept in the database of the service",
    );
    object.finish();
    window
}

fn mcp(field: &Field, pack: &PackContext) -> Option<Vec<ServerSpec>> {
    let mut object = field.object()?;
    let servers = object
        .optional("servers")
        .map(|field| server::read_all(&field, pack))
        .unwrap_or_default();
    object.finish();
    Some(servers)
}
