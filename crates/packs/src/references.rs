//! Servers that a pack takes from the registry: `mcpServers`, the `capabilities` that bring some along, and the
//! entries that lie beside the pack as `registry/*.json`.
//!
//! A capability is a file of its own, `capabilities/<name>.yaml` beside the packs. What it says of a server the
//! agent may say differently, key by key.

mod capability;
mod entries;
mod server;

use std::{collections::BTreeMap, sync::Arc};

use self::{
    capability::{bad_name, capability},
    entries::entries,
    server::server,
};
use super::{field::Field, object::Object, report::Problem, server::PackContext};
use domain::{
    ids::ServerId,
    policy::ToolAccess,
    registry::{AGENTS, Entry, Origin, ServerRef},
    server::ServerSpec,
    template::Source,
};

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
        places = capabilities(&field, pack, &mut found);
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
        check_reference(alias, place, &found.references, servers);
    }
    for reference in &mut found.references {
        reference
            .tool_access
            .get_or_insert_with(ToolAccess::for_users);
    }
    entries(pack, &mut found);
    found
}

/// Reads each capability once. Returns the servers that they refer to, with their places.
fn capabilities<'a>(
    field: &Field<'a>,
    pack: &PackContext,
    found: &mut RegistryReferences,
) -> Vec<(ServerId, Field<'a>)> {
    let mut places = Vec::new();
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
        capability(&item, name.as_str(), pack, found);
        places.extend(
            found.references[before..]
                .iter()
                .map(|new| (new.alias.clone(), item.clone())),
        );
        names.push(name.to_string());
    }
    places
}

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
