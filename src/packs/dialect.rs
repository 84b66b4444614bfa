//! The formats that load as a pack. The files in a folder decide the format. This module also supplies what
//! packs of other programs lack: an id, texts, a model.
//!
//! Each is a parser to the tree of a native pack, which [`native`](super::native) reads like any other. So
//! every rule holds for all of them, and nothing further on knows where a pack came from.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf, absolute},
};

use super::{
    aos,
    field::Field,
    holaos, holodeck,
    node_builder::{NodeBuilder, generated, generated_text},
    parse_context::ParseContext,
    report::{Position, Problem, Severity},
    server::Files,
    yaml::{EMPTY, Node, Value},
};
use crate::domain::ids::AgentId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Native,
    HolaOs,
    Aos,
    HoloDeck,
}

pub(super) const NATIVE_FILES: [&str; 2] = ["agent-pack.yaml", "agent-pack.yml"];
/// Beside a pack of another format: who may do what, in the native one.
pub(super) const ACCESS: &str = "access.yaml";
const WORKSPACE: &str = "workspace.yaml";
const AGENT: &str = "agent.yaml";
const AOS_FOLDERS: [&str; 2] = ["core/mcp", "core/skills"];
/// Files of one AOS project, and how deep they lie.
const MAX_FILES: usize = 500;
const MAX_DEPTH: usize = 8;

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
    /// At least one; `access.yaml` is the last one, if there is one.
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

    /// The file with the access rules.
    pub(super) fn access(&self) -> Option<usize> {
        let last = self.files.len() - 1;
        (last > 0 && self.files[last] == self.folder.join(ACCESS)).then_some(last)
    }
}

/// One file that was named.
pub(super) fn of_file(file: &Path) -> Result<Documents, Box<Problem>> {
    let folder = file
        .parent()
        .filter(|folder| *folder != Path::new(""))
        .unwrap_or(Path::new("."))
        .to_owned();
    let dialect = match file.file_name().and_then(|name| name.to_str()) {
        Some(WORKSPACE) => Dialect::HolaOs,
        Some(AGENT) => Dialect::HoloDeck,
        _ => Dialect::Native,
    };
    if dialect != Dialect::Native {
        check_access(&folder)?;
    }
    Ok(with_access(dialect, folder, vec![file.to_owned()]))
}

fn wrong(folder: &Path, message: String, hint: &str) -> Box<Problem> {
    let name = folder.display().to_string();
    Box::new(Problem::whole(Severity::Error, name, message, hint))
}

/// A file that says who may do what closes the pack when it cannot be read, and so does one with nearly its name.
fn check_access(folder: &Path) -> Result<(), Box<Problem>> {
    let unreadable = |error: io::Error| {
        let hint = "let the program read the folder, or remove it";
        wrong(folder, format!("cannot be read: {}", error.kind()), hint)
    };
    let entries = match fs::read_dir(folder) {
        // Files that are checked before they are written have no folder yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(unreadable)?,
    };
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        let name = name.to_string_lossy();
        let plain = name.to_lowercase().replace(".yml", ".yaml");
        if plain == ACCESS && name != ACCESS {
            let message = format!("{name} in this folder is not read");
            return Err(wrong(folder, message, &format!("rename it to {ACCESS}")));
        }
    }
    check_file(folder, ACCESS)
}

/// A broken mount must not read as a file that was taken away.
fn check_file(folder: &Path, name: &str) -> Result<(), Box<Problem>> {
    let file = folder.join(name);
    if fs::symlink_metadata(&file).is_err() || file.is_file() {
        return Ok(());
    }
    let link = if file.exists() {
        ""
    } else {
        " but a link to nothing"
    };
    let message = format!("{name} in this folder is not a file{link}");
    Err(wrong(folder, message, "put the file there, or remove it"))
}

fn with_access(dialect: Dialect, folder: PathBuf, mut files: Vec<PathBuf>) -> Documents {
    let standard = files[0]
        .file_name()
        .is_some_and(|name| NATIVE_FILES.iter().any(|file| name == *file));
    let access = folder.join(ACCESS);
    if (dialect != Dialect::Native || standard) && access.is_file() {
        files.push(access);
    }
    Documents {
        dialect,
        folder,
        files,
    }
}

/// The pack in a folder, if there is one.
pub(super) fn of_folder(folder: &Path) -> Result<Option<Documents>, Box<Problem>> {
    for name in NATIVE_FILES.into_iter().chain([WORKSPACE, AGENT]) {
        check_file(folder, name)?;
    }
    check_access(folder)?;
    let native: Vec<PathBuf> = NATIVE_FILES
        .iter()
        .map(|name| folder.join(name))
        .filter(|file| file.is_file())
        .collect();
    if native.len() > 1 {
        let message = format!("there are both {} and {}", NATIVE_FILES[0], NATIVE_FILES[1]);
        return Err(wrong(folder, message, "remove one of them"));
    }
    let one = |name: &str| {
        Some(folder.join(name))
            .filter(|file| file.is_file())
            .into_iter()
            .collect::<Vec<_>>()
    };
    let of_aos = aos_files(folder).map_err(|message| wrong(folder, message, ""))?;
    let all = [
        (Dialect::Native, native),
        (Dialect::HolaOs, one(WORKSPACE)),
        (Dialect::Aos, of_aos),
        (Dialect::HoloDeck, one(AGENT)),
    ];
    let mut there = all.into_iter().filter(|(_, files)| !files.is_empty());
    match (there.next(), there.next()) {
        (Some((first, files)), Some((second, others))) => {
            let shown = |file: &Path| {
                file.strip_prefix(folder)
                    .unwrap_or(file)
                    .display()
                    .to_string()
            };
            let message = format!(
                "there are two packs in this folder: {} ({}) and {} ({})",
                shown(&files[0]),
                first.name(),
                shown(&others[0]),
                second.name()
            );
            Err(wrong(
                folder,
                message,
                "keep one of them, or give each a folder of its own",
            ))
        }
        (Some((dialect, files)), None) => Ok(Some(with_access(dialect, folder.to_owned(), files))),
        (None, _) => Ok(None),
    }
}

/// The hint for a folder without a pack, for example that a file has nearly the right name.
pub(super) fn missing_pack_hint(folder: &Path) -> String {
    let there = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let plain = |name: &str| {
        name.to_lowercase()
            .replace(".yml", ".yaml")
            .replace('_', "-")
    };
    let right = |name: &str| {
        [NATIVE_FILES[0], WORKSPACE, AGENT]
            .into_iter()
            .find(|file| *file == plain(name))
    };
    let near = there
        .filter_map(|name| Some(format!("rename {name} to {}", right(&name)?)))
        .min();
    near.unwrap_or_else(|| {
        let [native, _] = NATIVE_FILES;
        format!("add {native} (or {WORKSPACE}, {AGENT}, core/mcp/*.yaml), or remove the folder")
    })
}

/// `core/mcp/**.yaml`, then `core/skills/*/skill.yaml`, each in the order of their names.
fn aos_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for (below, deepest) in AOS_FOLDERS.into_iter().zip([MAX_DEPTH, 1]) {
        let mut found = Vec::new();
        let root = folder.join(below);
        let above = fs::canonicalize(&root).unwrap_or_default();
        let mut seen = above.ancestors().skip(1).map(Path::to_owned).collect();
        walk(&root, deepest, &mut found, &mut seen)?;
        if below == AOS_FOLDERS[1] {
            found.retain(|file| file.file_stem().is_some_and(|name| name == "skill"));
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

/// `seen`: folders that were read already and the folders above, because a link may lead to them again.
fn walk(
    folder: &Path,
    deepest: usize,
    found: &mut Vec<PathBuf>,
    seen: &mut BTreeSet<PathBuf>,
) -> Result<(), String> {
    if fs::canonicalize(folder).is_ok_and(|real| !seen.insert(real)) {
        return Ok(());
    }
    let unreadable = |path: &Path, error: io::Error| {
        format!("{} cannot be read: {}", path.display(), error.kind())
    };
    // The root alone may be missing: then the pack has another format.
    if fs::symlink_metadata(folder).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, error))?;
    for entry in entries {
        let path = entry.map_err(|error| unreadable(folder, error))?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden {
            continue;
        }
        let yaml = path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml");
        let metadata = fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
        if metadata.is_dir() && deepest > 0 {
            walk(&path, deepest - 1, found, seen)?;
        } else if yaml && metadata.is_file() {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(format!(
                "there are more than {MAX_FILES} files in {}",
                folder.display()
            ));
        }
    }
    Ok(())
}

/// The tree of a native pack, and other files that it was made of. Without a tree there is a problem.
pub(super) fn read(documents: &Documents, context: &ParseContext) -> (Option<Node>, Files) {
    let mut files = Files::new();
    let mut root = match documents.dialect {
        Dialect::Native => {
            if let Some(at) = documents.access() {
                let message = "this file is for packs of other formats".to_owned();
                let hint = "write `toolAccess` and `flows.authentication` in the pack, and remove this file";
                context.report(
                    Severity::Error,
                    at,
                    Position { line: 1, column: 1 },
                    "",
                    message,
                    hint,
                );
            }
            return (context.parse(), files);
        }
        Dialect::HolaOs => holaos::read(context),
        Dialect::Aos => Some(aos::read(context, documents)),
        Dialect::HoloDeck => holodeck::read(context, &documents.folder, &mut files),
    };
    if let (Some(root), Some(at)) = (&mut root, documents.access()) {
        tighten(root, context, at);
    }
    if let Some(Err(reason)) = id_of(&documents.folder).map(|id| AgentId::parse(&id)) {
        let message = format!("the name of the folder is the id of the pack: {reason}");
        context.report(
            Severity::Error,
            0,
            Position { line: 1, column: 1 },
            "",
            message,
            "rename the folder",
        );
    }
    let root = root.map(|root| named(root, &documents.folder));
    (root.filter(|_| !context.is_refused()), files)
}

fn id_of(folder: &Path) -> Option<String> {
    let named = |path: PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    // A folder may be named by the way out of another one.
    absolute(folder)
        .ok()
        .and_then(named)
        .or_else(|| fs::canonicalize(folder).ok().and_then(named))
}

/// Puts the id in front.
fn named(mut root: Node, folder: &Path) -> Node {
    let id = generated_text("the name of the folder", id_of(folder).unwrap_or_default());
    if let Value::Map(entries) = &mut root.value
        && let Some((_, metadata)) = entries.iter_mut().find(|(key, _)| key.text == "metadata")
        && let Value::Map(fields) = &mut metadata.value
    {
        fields.insert(
            0,
            (
                super::yaml::Key {
                    text: "id".to_owned(),
                    at: id.at,
                },
                id,
            ),
        );
    }
    root
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
    /// What is worth knowing about the servers.
    pub note: Option<String>,
}

/// The tree of a native pack, but for its id.
pub(super) fn assemble(parts: Parts, context: &ParseContext) -> Node {
    const NEUTRAL: &str = "default of imported packs";
    let mut metadata = NodeBuilder::default();
    metadata.put_some("displayName", parts.display_name);
    metadata.put_some("description", parts.description);
    metadata.put("defaultLanguage", generated_text(NEUTRAL, "en"));
    let mut english = NodeBuilder::default();
    english.put_some("systemPrompt", parts.system_prompt);
    let mut languages = NodeBuilder::default();
    languages.put("en", english.generated(NEUTRAL));
    let mut mcp = NodeBuilder::default();
    mcp.put("servers", generated(NEUTRAL, Value::List(parts.servers)));
    let mut root = NodeBuilder::default();
    root.put("metadata", metadata.generated(NEUTRAL));
    root.put("languages", languages.generated(NEUTRAL));
    root.put(
        "llm",
        parts.llm.unwrap_or_else(|| model_of_environment(context)),
    );
    root.put("mcp", mcp.generated(NEUTRAL).with_note(parts.note));
    if !parts.skills.is_empty() {
        root.put("skills", generated(NEUTRAL, Value::List(parts.skills)));
    }
    root.generated(NEUTRAL)
}

/// The access rule of an imported server: any user of the tenant may call any tool.
pub(super) fn open_to_all() -> Node {
    const WHY: &str = "default of imported packs: every user of the tenant";
    let mut access = NodeBuilder::default();
    access.put("default", generated_text(WHY, "public"));
    access.generated(WHY)
}

/// The model that the operator's environment names, in the variables that the demo uses.
fn model_of_environment(context: &ParseContext) -> Node {
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
pub(super) fn key_of(provider: &str) -> Option<&'static str> {
    match provider {
        "" | "openai" => Some("OPENAI_API_KEY"),
        "anthropic" => Some("ANTHROPIC_API_KEY"),
        "gemini" => Some("GEMINI_API_KEY"),
        _ => None,
    }
}

/// `access.yaml`: `authentication` as in `flows`, and `toolAccess` by server.
fn tighten(root: &mut Node, context: &ParseContext, source: usize) {
    let Some(document) = context.parse_source(source, |fault| {
        (fault.message == EMPTY).then(|| {
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
        flows.put("authentication", super::node_builder::copy(&authentication));
        root.set("flows", flows.into_node(&authentication));
    }
    let access = top.optional("toolAccess");
    for (name, field) in access.as_ref().and_then(Field::entries).unwrap_or_default() {
        if !set_access(root, name, super::node_builder::copy(&field)) {
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

pub(super) fn servers_of(root: &Node) -> &[Node] {
    root.get_path(&["mcp", "servers"])
        .map(Node::items)
        .unwrap_or_default()
}

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
