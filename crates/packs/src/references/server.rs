//! One reference to a server of the registry: its configuration and its tools.

use std::collections::BTreeMap;

use super::ReferenceOwner;
use crate::{access, field::Field, object::Object, server::timeouts};
use domain::{
    ids::ServerId,
    registry::{ConfigValue, EntryId, Level, ServerRef},
    server::Timeouts,
    template::Source,
};

/// Reads one reference and merges it over earlier references to the same server. Returns the server's name if
/// the reference is valid.
pub(super) fn server(
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
    let at = reference_of(references, &alias, entry_id, &entry?)?;
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

fn refuse_inline(object: &mut Object) {
    for inline in ["url", "command", "transport", "type"] {
        if let Some(field) = object.optional(inline) {
            let hint =
                "define it in the registry and name it by `ref`, or write it under `mcp.servers`";
            field.error("a server is not written out here", hint);
        }
    }
}

/// The earlier reference to the same server, or a new one. `None` when the earlier one names another entry.
fn reference_of<'a>(
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
