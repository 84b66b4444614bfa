//! What the admins of a tenant set for the servers of an agent or of a capability, and how the settings join the files
//! of a pack: registry default, then each capability (its file, then its settings), then the agent (its file, then its
//! settings).
//!
//! Invariant: a setting never opens what the files closed or guard. The access to a server that a file refers to is the
//! file's. A server that a setting adds has an access of its own, and is no server that the pack has already.

use std::{collections::BTreeMap, net::IpAddr};

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::{ConfigValue, EntryId, Level, Origin, ServerRef};
use crate::{
    ids::{AgentId, ServerId},
    pack::Pack,
    pin::Pin,
    policy::{OtherPolicies, ServerPolicy, ToolAccess, ToolPattern},
    server::{Endpoint, ServerSpec, Timeouts},
};

/// Whose servers a setting is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingOwner {
    Agent(AgentId),
    Capability(String),
}

impl SettingOwner {
    /// The level of a setting of this owner.
    pub fn origin(&self) -> Origin {
        match self {
            Self::Agent(_) => Origin::AgentAdmin,
            Self::Capability(name) => Origin::CapabilityAdmin(name.clone()),
        }
    }

    /// Whether the owner's file gives the reference a level.
    pub fn refers_to(&self, reference: &ServerRef) -> bool {
        let is_of_file = |level: &Level| match (self, &level.origin) {
            // The file of an agent also lists its capabilities.
            (Self::Agent(_), origin) => !origin.is_of_admin(),
            (Self::Capability(name), Origin::Capability(other)) => name == other,
            (Self::Capability(_), _) => false,
        };
        reference.levels.iter().any(is_of_file)
    }
}

impl std::fmt::Display for SettingOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Agent(id) => write!(f, "agent {id}"),
            Self::Capability(name) => write!(f, "capability {name}"),
        }
    }
}

/// What is set for one server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSetting {
    pub owner: SettingOwner,
    pub server: ServerId,
    pub entry: EntryId,
    /// `None` takes a key away.
    pub config: BTreeMap<String, Option<ConfigValue>>,
    /// Only of a server that the setting adds.
    pub tool_access: Option<ToolAccess>,
    pub tools: Option<Vec<ToolPattern>>,
}

/// A setting that is left out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSetting {
    pub owner: SettingOwner,
    pub server: ServerId,
    /// The field to change.
    pub field: &'static str,
    pub reason: String,
}

/// The references of a pack with the settings that apply to it, and the settings that cannot apply. `address` is the
/// address of an entry of the tenant's registry, as it is written.
pub fn join<'a>(
    pack: &Pack,
    settings: &[ServerSetting],
    address: impl Fn(&EntryId) -> Option<&'a str>,
) -> (Vec<ServerRef>, Vec<RefusedSetting>) {
    let of_capabilities = pack.capabilities.iter().flat_map(|name| {
        settings
            .iter()
            .filter(move |it| matches!(&it.owner, SettingOwner::Capability(other) if other == name))
    });
    let of_agent = settings
        .iter()
        .filter(|it| matches!(&it.owner, SettingOwner::Agent(id) if id == pack.id()));
    let (mut references, mut refused) = (pack.references.clone(), Vec::new());
    for setting in of_capabilities.chain(of_agent) {
        if let Err((field, reason)) = add(&mut references, pack, setting, &address) {
            refused.push(RefusedSetting {
                owner: setting.owner.clone(),
                server: setting.server.clone(),
                field,
                reason,
            });
        }
    }
    (references, refused)
}

type Refusal = (&'static str, String);

fn add<'a>(
    references: &mut Vec<ServerRef>,
    pack: &Pack,
    setting: &ServerSetting,
    address: &impl Fn(&EntryId) -> Option<&'a str>,
) -> Result<(), Refusal> {
    let is_same = |other: &ServerId| other.as_str().eq_ignore_ascii_case(setting.server.as_str());
    if pack.servers.iter().any(|server| is_same(&server.id)) {
        let reason = format!(
            "the pack of {} has a server {} of its own; give this one another name",
            pack.id(),
            setting.server
        );
        return Err(("server", reason));
    }
    let level = Level {
        origin: setting.owner.origin(),
        config: setting.config.clone(),
    };
    let Some(known) = references.iter_mut().find(|known| is_same(&known.alias)) else {
        references.push(new_reference(pack, setting, level, address)?);
        return Ok(());
    };
    if known.alias != setting.server {
        let reason = format!("is called {} there; write it like that", known.alias);
        return Err(("server", reason));
    }
    if known.entry != setting.entry {
        let reason = format!(
            "{} refers to {} there; name that entry, or give the server another name",
            known.alias, known.entry
        );
        return Err(("ref", reason));
    }
    if !pack
        .references
        .iter()
        .any(|of_file| of_file.alias == known.alias)
    {
        known.tool_access = setting.tool_access.clone().or(known.tool_access.take());
        known.tools = setting.tools.clone().or(known.tools.take());
    }
    let later = |other: &Level| rank(pack, &other.origin) > rank(pack, &level.origin);
    let at = known.levels.iter().position(later);
    known.levels.insert(at.unwrap_or(known.levels.len()), level);
    Ok(())
}

/// A server that only the setting has.
fn new_reference<'a>(
    pack: &Pack,
    setting: &ServerSetting,
    level: Level,
    address: &impl Fn(&EntryId) -> Option<&'a str>,
) -> Result<ServerRef, Refusal> {
    let agent = pack.id();
    if let Some(used) = pack
        .references
        .iter()
        .find(|used| used.entry == setting.entry)
    {
        let reason = format!(
            "the pack of {agent} has {} already, as {}; set its keys there",
            setting.entry, used.alias
        );
        return Err(("ref", reason));
    }
    if pack.entries.iter().any(|entry| entry.id == setting.entry) {
        let reason = format!(
            "{} is an entry beside the pack of {agent}, and only the pack can take it",
            setting.entry
        );
        return Err(("ref", reason));
    }
    let same = address(&setting.entry)
        .map(place)
        .and_then(|place| server_at(pack, &place, address));
    if let Some(same) = same {
        let reason =
            format!("the pack of {agent} has the server at this address already, as {same}");
        return Err(("ref", reason));
    }
    if setting.tool_access.is_none() {
        let reason = "is missing: say who may call which tool of a server that you add, as `{\"default\": \"users\"}`";
        return Err(("toolAccess", reason.to_owned()));
    }
    Ok(ServerRef {
        alias: setting.server.clone(),
        entry: setting.entry.clone(),
        levels: vec![level],
        tool_access: setting.tool_access.clone(),
        tools: setting.tools.clone(),
        pin: Pin::default(),
        elsewhere: OtherPolicies::default(),
        required: false,
        timeouts: Timeouts::default(),
    })
}

/// The server that the files of a pack have at this place.
fn server_at<'a>(
    pack: &Pack,
    wanted: &str,
    address: &impl Fn(&EntryId) -> Option<&'a str>,
) -> Option<ServerId> {
    let own = pack.servers.iter().find(|server| match &server.endpoint {
        Endpoint::Remote { url, .. } => place(url.as_str()) == wanted,
        Endpoint::Stdio { .. } => false,
    });
    let of_reference = |used: &&ServerRef| {
        let beside = pack.entries.iter().find(|entry| entry.id == used.entry);
        let written = beside
            .map(|entry| entry.definition.url.as_str())
            .or_else(|| address(&used.entry));
        written.is_some_and(|written| place(written) == wanted)
    };
    own.map(|server| server.id.clone()).or_else(|| {
        let used = pack.references.iter().find(of_reference)?;
        Some(used.alias.clone())
    })
}

/// Gives a server that a tenant defined the rules under which packs have the server at the same address: who may call
/// what, what is denied, what needs consent, and limits. Of all rules the strictest that applies to a call decides. The
/// address is the one that would be requested, with the values of the configuration in it.
pub fn add_rules_of_address<'p>(spec: &mut ServerSpec, packs: impl IntoIterator<Item = &'p Pack>) {
    let Some(wanted) = spec.url().map(|url| place(url.as_str())) else {
        return;
    };
    for pack in packs {
        let own = pack.servers.iter().filter(|server| {
            let url = server.url();
            url.is_some_and(|url| place(url.as_str()) == wanted)
        });
        let of_references = pack.references.iter().filter(|used| {
            let mut beside = pack.entries.iter();
            beside.any(|entry| {
                entry.id == used.entry && place(entry.definition.url.as_str()) == wanted
            })
        });
        let theirs = own.map(ServerPolicy::of);
        let theirs = theirs.chain(of_references.map(ServerPolicy::of_reference));
        for policy in theirs.filter(|policy| policy.tool_access.is_some()) {
            spec.restrict(policy.bound_to(&pack.vars));
        }
    }
}

/// Host, port and path of an address, however they are written. A server reads `%6d` as `m` (RFC 3986, section 6.2.2), and
/// some read `//` as `/`, ignore case, or leave out what stands behind a `;`: two addresses that one server could take for
/// one are one here.
fn place(address: &str) -> String {
    let Ok(url) = Url::parse(address.trim()) else {
        return address.trim().trim_end_matches('/').to_ascii_lowercase();
    };
    let mut path = url.path().to_owned();
    // Some decode twice.
    for _ in 0..2 {
        path = percent_decode_str(&path).decode_utf8_lossy().into_owned();
    }
    let segments = path.split('/').map(|segment| {
        let segment = segment.split([';', '\0']).next().unwrap_or_default();
        let letters = segment.chars().filter(|c| c.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect::<String>()
    });
    let path: Vec<_> = segments.filter(|segment| !segment.is_empty()).collect();
    let ip = match url.host() {
        Some(Host::Ipv4(ip)) => Some(IpAddr::V4(ip)),
        Some(Host::Ipv6(ip)) => Some(IpAddr::V6(ip).to_canonical()),
        Some(Host::Domain(_)) | None => None,
    };
    let host = match ip {
        // A connection to `0.0.0.0` arrives at this machine, too.
        Some(ip) if ip.is_loopback() || ip.is_unspecified() => "localhost".to_owned(),
        Some(ip) => ip.to_string(),
        None => {
            let name = url.host_str().unwrap_or_default();
            name.trim_end_matches('.').to_owned()
        }
    };
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{host}:{port}/{}", path.join("/"))
}

/// The place of a level in the chain.
fn rank(pack: &Pack, origin: &Origin) -> (usize, bool) {
    let of = |name: &String| {
        let found = pack.capabilities.iter().position(|other| other == name);
        found.unwrap_or_default() + 1
    };
    match origin {
        Origin::Registry => (0, false),
        Origin::Capability(name) => (of(name), false),
        Origin::CapabilityAdmin(name) => (of(name), true),
        Origin::Agent => (usize::MAX - 1, false),
        Origin::AgentAdmin => (usize::MAX - 1, true),
        Origin::Framework => (usize::MAX, false),
    }
}
