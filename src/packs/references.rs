//! Servers that a pack takes from the registry: `mcpServers`, the `capabilities` that bring some along, and the
//! entries that lie `capabilities_folder` the pack as `registry/*.json`.
//!
//! A capability is a file of its own, `capabilities/<name>.yaml` `capabilities_folder` the packs. What it says of a server the
//! agent may say differently, key by key.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    access,
    field::Field,
    object::Object,
    report::{Problem, Severity},
    server::{PackContext, timeouts},
};
use crate::domain::{
    ids::ServerId,
    registry::{
        AGENTS, CAPABILITIES, ConfigValue, Definition, Entry, EntryId, Level, Origin, Rules,
        ServerRef,
    },
    server::ServerSpec,
    template::Source,
};

const FOLDER: &str = "capabilities";
const MAX_BYTES: usize = 256 * 1024;

/// What was read.
#[derive(Default)]
pub(super) struct RegistryReferences {
    pub references: Vec<ServerRef>,
    /// What capabilities tell the model.
    pub prompts: Vec<String>,
    pub entries: Vec<Arc<Entry>>,
    /// Problems of the other files.
    pub problems: Vec<Problem>,
    /// Variables that were used there.
    pub used: BTreeMap<String, String>,
}

/// Where references come from: the agent itself or one of its capabilities.
struct ReferenceOwner<'a> {
    origin: Origin,
    sources: &'a [Source],
    pack: &'a PackContext<'a>,
}

pub(super) fn read(
    top: &mut Object,
    pack: &PackContext,
    servers: &[ServerSpec],
) -> RegistryReferences {
    let mut found = RegistryReferences::default();
    // The field of each server, for a warning when no role may use the server.
    let mut places: Vec<(ServerId, Field)> = Vec::new();
    if let Some(field) = top.optional("capabilities") {
        let mut names: Vec<String> = Vec::new();
        for item in field.list().unwrap_or_default() {
            let Some(name) = item.parsed(|text| ServerId::parse(text).map_err(|_| bad_name(text)))
            else {
                continue;
            };
            if names.iter().any(|other| other == name.as_str()) {
                item.warn(format!("{name} is listed twice"), "remove one of them");
                continue;
            }
            let before = found.references.len();
            capability(&item, name.as_str(), pack, &mut found);
            places.extend(
                found.references[before..]
                    .iter()
                    .map(|new| (new.alias.clone(), item.clone())),
            );
            names.push(name.to_string());
        }
    }
    if let Some(field) = top.optional("mcpServers") {
        let owner = ReferenceOwner {
            origin: Origin::Agent,
            sources: AGENTS,
            pack,
        };
        for (name, item) in field.entries().unwrap_or_default() {
            if let Some(alias) = server(name, &item, &owner, &mut found.references) {
                places.retain(|(other, _)| *other != alias);
                places.push((alias, item));
            }
        }
    }
    for (alias, place) in &places {
        let reference = found
            .references
            .iter()
            .find(|reference| reference.alias == *alias);
        if servers
            .iter()
            .any(|server| server.id.as_str().eq_ignore_ascii_case(alias.as_str()))
        {
            place.error(
                format!("there is a server {alias} under `mcp.servers`"),
                "give one of them another name",
            );
        } else if reference.is_some_and(|reference| reference.tool_access.is_none()) {
            place.warn(
                format!("there is no `toolAccess` for {alias}, so nobody but `adminUsers` may call its tools"),
                "`toolAccess: { default: public }` opens them to everyone",
            );
        }
    }
    entries(pack, &mut found);
    found
}

fn bad_name(text: &str) -> String {
    format!(
        "{text:?} is not the name of a capability; write that of a file in `{FOLDER}/`, without `.yaml`"
    )
}

/// Reads the file of a capability. Its problems are those of the pack.
fn capability(item: &Field, name: &str, pack: &PackContext, found: &mut RegistryReferences) {
    let path = capabilities_folder(pack.folder).join(format!("{name}.yaml"));
    let bytes = fs::read(&path);
    pack.files
        .borrow_mut()
        .insert(path.clone(), bytes.as_deref().unwrap_or_default().to_vec());
    let text = match bytes.map(String::from_utf8) {
        Ok(Ok(text)) if text.len() <= MAX_BYTES => text,
        Ok(_) => {
            item.error(
                format!("{} is not text, or larger than 256 KiB", path.display()),
                "",
            );
            return;
        }
        Err(error) => {
            let hint = format!("write it as {}", path.display());
            item.error(
                format!("the capability {name} cannot be read: {}", error.kind()),
                &hint,
            );
            return;
        }
    };
    let context = item.context.for_file(&path.display().to_string(), &text);
    if let Some(root) = context.parse()
        && let Some(mut object) = Field::new(&context, &root, "").object()
    {
        let owner = ReferenceOwner {
            origin: Origin::Capability(name.to_owned()),
            sources: CAPABILITIES,
            pack,
        };
        found.prompts.extend(
            object
                .optional("prompt")
                .and_then(|field| field.non_blank_text())
                .map(|text| text.value),
        );
        let servers = object.optional("mcpServers");
        for (name, item) in servers
            .as_ref()
            .and_then(Field::entries)
            .unwrap_or_default()
        {
            server(name, &item, &owner, &mut found.references);
        }
        object.finish();
    }
    let (problems, used) = context.finish();
    found.problems.extend(problems);
    found.used.extend(used);
}

/// The folder of capabilities `capabilities_folder` a pack's.
fn capabilities_folder(folder: &Path) -> PathBuf {
    match folder
        .parent()
        .filter(|parent| parent.components().next().is_some())
    {
        Some(parent) => parent.join(FOLDER),
        None => folder.join("..").join(FOLDER),
    }
}

/// Reads one reference and merges it over earlier references to the same server. Returns the server's name if
/// the reference is valid.
fn server(
    name: &str,
    item: &Field,
    owner: &ReferenceOwner,
    references: &mut Vec<ServerRef>,
) -> Option<ServerId> {
    let alias = ServerId::parse(name)
        .map_err(|reason| item.error(reason, ""))
        .ok();
    let mut object = item.object()?;
    for inline in ["url", "command", "transport", "type"] {
        if let Some(field) = object.optional(inline) {
            let hint =
                "define it in the registry and name it by `ref`, or write it under `mcp.servers`";
            field.error("a server is not written out here", hint);
        }
    }
    let entry = object.required("ref", "name an entry of the registry: `ref: context-store`");
    let entry_id = entry
        .as_ref()
        .and_then(|field| field.parsed(EntryId::parse));
    let config = object
        .optional("config")
        .map(|field| config(&field, owner.sources))
        .unwrap_or_default();
    let tools = object
        .optional("tools")
        .map(|field| access::patterns(&field));
    let access = object
        .optional("toolAccess")
        .and_then(|field| access::read(&field, tools.as_deref(), owner.pack.authentication));
    let required = object
        .optional("required")
        .and_then(|field| field.boolean());
    let timeouts = object
        .optional("timeouts")
        .and_then(|field| timeouts(&field));
    object.finish();
    let (alias, entry_id) = (alias?, entry_id?);
    let same = |other: &&mut ServerRef| other.alias.as_str().eq_ignore_ascii_case(alias.as_str());
    let at = match references.iter_mut().find(same) {
        Some(known) if known.entry != entry_id => {
            let message = format!("{} refers to {} elsewhere", known.alias, known.entry);
            entry?.error(
                message,
                "refer to the same entry, or give the server another name",
            );
            return None;
        }
        Some(known) => known,
        None => {
            references.push(ServerRef {
                alias: alias.clone(),
                entry: entry_id,
                levels: Vec::new(),
                tool_access: None,
                tools: None,
                required: false,
                timeouts: timeouts.unwrap_or_default(),
            });
            references.last_mut()?
        }
    };
    at.levels.push(Level {
        origin: owner.origin.clone(),
        config,
    });
    at.tool_access = access.or(at.tool_access.take());
    at.tools = tools
        .map(|tools| tools.into_iter().map(|listed| listed.pattern).collect())
        .or(at.tools.take());
    at.required = required.unwrap_or(at.required);
    at.timeouts = timeouts.unwrap_or(at.timeouts);
    Some(at.alias.clone())
}

/// `null` takes a key away; anything else is a value.
fn config(field: &Field, sources: &[Source]) -> BTreeMap<String, Option<ConfigValue>> {
    let mut config = BTreeMap::new();
    for (key, field) in field.entries().unwrap_or_default() {
        if field.is_nothing() {
            config.insert(key.to_owned(), None);
            continue;
        }
        match ConfigValue::parse(&field.json(), sources) {
            Ok(value) => drop(config.insert(key.to_owned(), Some(value))),
            Err(reason) => field.error(reason, ""),
        }
    }
    config
}

/// The entries `capabilities_folder` the pack, in the order of their files.
fn entries(pack: &PackContext, found: &mut RegistryReferences) {
    let path = pack.folder.join("registry");
    if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return;
    }
    let listed =
        fs::read_dir(&path).and_then(|folder| folder.map(|file| Ok(file?.path())).collect());
    let mut files: Vec<PathBuf> = match listed {
        Ok(files) => files,
        Err(error) => {
            let (name, message) = (
                path.display().to_string(),
                format!("cannot be read: {}", error.kind()),
            );
            found
                .problems
                .push(Problem::whole(Severity::Error, name, message, ""));
            return;
        }
    };
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    for file in files {
        let bytes = fs::read(&file);
        pack.files
            .borrow_mut()
            .insert(file.clone(), bytes.as_deref().unwrap_or_default().to_vec());
        let name = file.display().to_string();
        let problem = |message: String| Problem::whole(Severity::Error, name.clone(), message, "");
        let read = bytes
            .map_err(|error| format!("cannot be read: {}", error.kind()))
            .and_then(|bytes| entry(&bytes));
        match read {
            Ok(entry) if found.entries.iter().any(|other| other.id == entry.id) => {
                found.problems.push(problem(format!(
                    "there is an entry {} in another file",
                    entry.id
                )));
            }
            Ok(entry) => found.entries.push(Arc::new(entry)),
            Err(message) => found.problems.push(problem(message)),
        }
    }
}

fn entry(json: &[u8]) -> Result<Entry, String> {
    let definition: Definition = serde_json::from_slice(json).map_err(|error| {
        let place = format!("line {} column {}", error.line(), error.column());
        let text = error.to_string();
        // Other sentences quote what they found, which may be secret.
        let harmless = ["unknown field", "missing field", "unknown variant"]
            .iter()
            .any(|it| text.starts_with(it));
        if harmless {
            text
        } else {
            format!("is not an entry of the registry ({place})")
        }
    })?;
    let definition = definition
        .keep_sensitive(None)
        .map_err(|fault| fault.to_string())?;
    Entry::parse(definition, Rules::Operator).map_err(|fault| fault.to_string())
}
