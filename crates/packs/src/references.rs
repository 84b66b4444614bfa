//! Reads the servers that a pack takes from the registry: `mcpServers`, the `capabilities` that bring some along, and
//! the entries of the registry in `registry/*.json` beside the pack.
//!
//! A capability is a file of its own, `capabilities/<name>.yaml` beside the packs. The agent may change the settings
//! of its servers, key by key.

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
    folder::CAPABILITIES as FOLDER,
    object::Object,
    report::{Problem, Severity},
    server::{PINS, PackContext, read_timeouts},
};
use domain::{
    ids::ServerId,
    pin::Pin,
    policy::{OtherPolicies, ToolAccess},
    registry::{
        AGENTS, CAPABILITIES, ConfigValue, Definition, Entry, EntryId, Level, Origin, Rules,
        ServerRef,
    },
    server::{ServerSpec, Timeouts},
    template::Source,
};

/// The largest size of the file of a capability.
const MAX_BYTES: usize = 256 * 1024;

/// The references of a pack, and the content of the files that they name.
#[derive(Default)]
pub(super) struct RegistryReferences {
    pub references: Vec<ServerRef>,
    /// The names of the capabilities.
    pub capabilities: Vec<String>,
    /// The prompts of the capabilities.
    pub prompts: Vec<String>,
    /// The entries of the registry beside the pack.
    pub entries: Vec<Arc<Entry>>,
    /// The problems of those files.
    pub problems: Vec<Problem>,
    /// The variables that were used in those files, with their values.
    pub used: BTreeMap<String, String>,
}

/// Where references come from: the agent itself or one of its capabilities.
struct ReferenceOwner<'a> {
    origin: Origin,
    sources: &'a [Source],
    pack: &'a PackContext<'a>,
}

/// Reads all references of a pack. `servers` are those that the pack writes out.
pub(super) fn read(
    top: &mut Object,
    pack: &PackContext,
    servers: &[ServerSpec],
) -> RegistryReferences {
    let mut found = RegistryReferences::default();
    // The field of each server, for its problems.
    let mut places: Vec<(ServerId, Field)> = Vec::new();
    if let Some(field) = top.optional("capabilities") {
        places = read_capabilities(&field, pack, &mut found);
    }
    if let Some(field) = top.optional("mcpServers") {
        let owner = ReferenceOwner {
            origin: Origin::Agent,
            sources: AGENTS,
            pack,
        };
        for (name, item) in field.entries().unwrap_or_default() {
            if let Some(alias) = read_reference(name, &item, &owner, &mut found.references) {
                places.retain(|(other, _)| *other != alias);
                places.push((alias, item));
            }
        }
    }
    for (alias, place) in &places {
        check_reference(alias, place, &found.references, servers);
    }
    for reference in &mut found.references {
        reference
            .tool_access
            .get_or_insert_with(ToolAccess::for_users);
    }
    read_entries(pack, &mut found);
    found
}

/// Reads each capability once. Returns the servers that they refer to, with the places of the capabilities.
fn read_capabilities<'a>(
    field: &Field<'a>,
    pack: &PackContext,
    found: &mut RegistryReferences,
) -> Vec<(ServerId, Field<'a>)> {
    let mut places = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for item in field.list().unwrap_or_default() {
        let Some(name) =
            item.parse_with(|text| ServerId::parse(text).map_err(|_| bad_name_message(text)))
        else {
            continue;
        };
        if names.iter().any(|other| other == name.as_str()) {
            item.warn(format!("{name} is listed twice"), "remove one of them");
            continue;
        }
        let before = found.references.len();
        read_capability(&item, name.as_str(), pack, found);
        places.extend(
            found.references[before..]
                .iter()
                .map(|new| (new.alias.clone(), item.clone())),
        );
        names.push(name.to_string());
    }
    found.capabilities = names;
    places
}

/// Refuses a reference with the name of a server of the pack, and warns of one without `toolAccess`.
fn check_reference(
    alias: &ServerId,
    place: &Field,
    references: &[ServerRef],
    servers: &[ServerSpec],
) {
    let reference = references
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
            format!("there is no `toolAccess` for {alias}, so every user of the tenant may call its tools; guests may not"),
            "write `toolAccess: { default: users }` if that is meant, or name roles",
        );
    }
}

/// Reads one reference and merges it over earlier references to the same server. Returns the server's name if
/// the reference is valid.
fn read_reference(
    name: &str,
    item: &Field,
    owner: &ReferenceOwner,
    references: &mut Vec<ServerRef>,
) -> Option<ServerId> {
    let alias = ServerId::parse(name)
        .map_err(|reason| item.error(reason, ""))
        .ok();
    let mut object = item.object()?;
    refuse_inline(&mut object);
    let entry = object.required("ref", "name an entry of the registry: `ref: context-store`");
    let entry_id = entry
        .as_ref()
        .and_then(|field| field.parse_with(EntryId::parse));
    let config = object
        .optional("config")
        .map(|field| read_config(&field, owner.sources))
        .unwrap_or_default();
    let tools = object
        .optional("tools")
        .map(|field| access::read_patterns(&field));
    let access = object
        .optional("toolAccess")
        .and_then(|field| access::read(&field, tools.as_deref(), owner.pack.authentication));
    let pin = object.optional("pin").and_then(|field| field.one_of(&PINS));
    let required = object
        .optional("required")
        .and_then(|field| field.boolean());
    let timeouts = object
        .optional("timeouts")
        .and_then(|field| read_timeouts(&field));
    object.finish();
    let (alias, entry_id) = (alias?, entry_id?);
    let at = find_or_add(references, &alias, entry_id, &entry?)?;
    at.levels.push(Level {
        origin: owner.origin.clone(),
        config,
    });
    at.tool_access = access.or(at.tool_access.take());
    at.tools = tools
        .map(|tools| tools.into_iter().map(|listed| listed.pattern).collect())
        .or(at.tools.take());
    at.pin = pin.unwrap_or(at.pin);
    at.required = required.unwrap_or(at.required);
    at.timeouts = timeouts.unwrap_or(at.timeouts);
    Some(at.alias.clone())
}

/// Refuses fields that write a server out.
fn refuse_inline(object: &mut Object) {
    for inline in ["url", "command", "transport", "type"] {
        if let Some(field) = object.optional(inline) {
            let hint =
                "define it in the registry and name it by `ref`, or write it under `mcp.servers`";
            field.error("a server is not written out here", hint);
        }
    }
}

/// The earlier reference to the same server, or a new one. `None` if the earlier one names another entry, which is an
/// error.
fn find_or_add<'a>(
    references: &'a mut Vec<ServerRef>,
    alias: &ServerId,
    entry_id: EntryId,
    entry: &Field,
) -> Option<&'a mut ServerRef> {
    let same = |other: &ServerRef| other.alias.as_str().eq_ignore_ascii_case(alias.as_str());
    let Some(index) = references.iter().position(same) else {
        references.push(ServerRef {
            alias: alias.clone(),
            entry: entry_id,
            levels: Vec::new(),
            tool_access: None,
            tools: None,
            pin: Pin::default(),
            elsewhere: OtherPolicies::default(),
            required: false,
            timeouts: Timeouts::default(),
        });
        return references.last_mut();
    };
    let known = &mut references[index];
    if known.entry != entry_id {
        let message = format!("{} refers to {} elsewhere", known.alias, known.entry);
        entry.error(
            message,
            "refer to the same entry, or give the server another name",
        );
        return None;
    }
    Some(known)
}

/// Reads `config`. `null` removes a key that a capability sets.
fn read_config(field: &Field, sources: &[Source]) -> BTreeMap<String, Option<ConfigValue>> {
    let mut config = BTreeMap::new();
    for (key, field) in field.entries().unwrap_or_default() {
        if field.is_nothing() {
            config.insert(key.to_owned(), None);
            continue;
        }
        match ConfigValue::parse(&field.to_json(), sources) {
            Ok(value) => drop(config.insert(key.to_owned(), Some(value))),
            Err(reason) => field.error(reason, ""),
        }
    }
    config
}

fn bad_name_message(text: &str) -> String {
    format!(
        "{text:?} is not the name of a capability; write that of a file in `{FOLDER}/`, without `.yaml`"
    )
}

/// Reads the file of a capability. `item` is the field that names it.
fn read_capability(item: &Field, name: &str, pack: &PackContext, found: &mut RegistryReferences) {
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
            read_reference(name, &item, &owner, &mut found.references);
        }
        object.finish();
    }
    let (problems, used) = context.finish();
    found.problems.extend(problems);
    found.used.extend(used);
}

/// The folder of capabilities, which is beside the folder of the pack.
fn capabilities_folder(folder: &Path) -> PathBuf {
    match folder
        .parent()
        .filter(|parent| parent.components().next().is_some())
    {
        Some(parent) => parent.join(FOLDER),
        None => folder.join("..").join(FOLDER),
    }
}

/// Reads the entries of the registry beside the pack, in the order of their files.
fn read_entries(pack: &PackContext, found: &mut RegistryReferences) {
    let path = pack.folder.join("registry");
    if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return;
    }
    let listed =
        fs::read_dir(&path).and_then(|folder| folder.map(|file| Ok(file?.path())).collect());
    let mut files: Vec<PathBuf> = match listed {
        Ok(files) => files,
        Err(error) => {
            found.problems.push(Problem::of_file(
                Severity::Error,
                path.display().to_string(),
                format!("cannot be read: {}", error.kind()),
                "",
            ));
            return;
        }
    };
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    for file in files {
        add_entry(file, pack, found);
    }
}

fn add_entry(file: PathBuf, pack: &PackContext, found: &mut RegistryReferences) {
    let bytes = fs::read(&file);
    let name = file.display().to_string();
    let content = bytes.as_deref().unwrap_or_default().to_vec();
    pack.files.borrow_mut().insert(file, content);
    let problem = |message: String| Problem::of_file(Severity::Error, name, message, "");
    let read = bytes
        .map_err(|error| format!("cannot be read: {}", error.kind()))
        .and_then(|bytes| parse_entry(&bytes));
    match read {
        Ok(entry) if found.entries.iter().any(|other| other.id == entry.id) => {
            let message = format!("there is an entry {} in another file", entry.id);
            found.problems.push(problem(message));
        }
        Ok(entry) => found.entries.push(Arc::new(entry)),
        Err(message) => found.problems.push(problem(message)),
    }
}

fn parse_entry(json: &[u8]) -> Result<Entry, String> {
    let definition: Definition = serde_json::from_slice(json).map_err(|error| {
        let place = format!("line {} column {}", error.line(), error.column());
        let text = error.to_string();
        // Other messages quote a value, which may be secret.
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
        .map_err(|error| error.to_string())?;
    Entry::parse(definition, Rules::Operator).map_err(|error| error.to_string())
}
