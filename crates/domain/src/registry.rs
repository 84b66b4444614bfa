//! The registry of servers: what an MCP server is and which configuration it takes, said once and referred to
//! by name (the registry document).
//!
//! An [`Entry`] is a definition that can be used: every template is parsed, every value fits its schema. A pack
//! refers to entries ([`ServerRef`]); [`merge`] puts the levels on top of each other and remembers where each
//! final key came from, [`resolve`] fills in values and makes a server of it. All of it is pure.

mod config;
mod definition;
mod entry;
pub mod merge;
pub mod resolve;
pub mod settings;

use std::{collections::BTreeMap, fmt, sync::Arc};

pub use self::{
    config::{ConfigValue, KeySchema, Kind, SecretName},
    definition::{Auth, AuthKind, Definition, ScopeKey, SensitiveValues},
    entry::{
        AGENTS, CAPABILITIES, ClientCredentialsConfig, Entry, Grants, InvalidDefinition, Rules,
        granted, host_of,
    },
};
use super::{
    ids::ServerId,
    pin::Pin,
    policy::{OtherPolicies, ToolAccess, ToolPattern},
    server::Timeouts,
};

/// `[a-z][a-z0-9_-]{1,59}`: how references name an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(Arc<str>);

impl EntryId {
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
        let shaped = (2..=60).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.bytes().all(rest);
        if shaped {
            return Ok(Self(text.into()));
        }
        let shown: String = text.chars().take(80).collect();
        Err(format!(
            "{shown:?} is not the id of an MCP server: use 2 to 60 lower-case letters, digits, `_` or `-`, starting with a letter"
        ))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A server that a pack takes from the registry.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerRef {
    /// What the agent calls it; the id of its server.
    pub alias: ServerId,
    pub entry: EntryId,
    /// What capabilities and the agent set, in order: later wins.
    pub levels: Vec<Level>,
    /// Who may call which tool.
    pub tool_access: Option<ToolAccess>,
    pub tools: Option<Vec<ToolPattern>>,
    pub pin: Pin,
    /// What other replicas say of it that have another policy; no pack says it.
    pub elsewhere: OtherPolicies,
    pub required: bool,
    pub timeouts: Timeouts,
}

/// What one level sets. `None` takes a key away.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    pub origin: Origin,
    pub config: BTreeMap<String, Option<ConfigValue>>,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Registry,
    Capability(String),
    /// What the tenant's admins set for the capability.
    CapabilityAdmin(String),
    Agent,
    /// What the tenant's admins set for the agent.
    AgentAdmin,
    /// The program fills it in.
    Framework,
}

impl Origin {
    /// Whether the tenant's admins set it, rather than a file or the registry.
    pub fn is_of_admin(&self) -> bool {
        matches!(self, Self::CapabilityAdmin(_) | Self::AgentAdmin)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry => f.write_str("registry default"),
            Self::Capability(name) => write!(f, "capability {name}"),
            Self::CapabilityAdmin(name) => write!(f, "an admin for capability {name}"),
            Self::Agent => f.write_str("agent"),
            Self::AgentAdmin => f.write_str("an admin for the agent"),
            Self::Framework => f.write_str("framework"),
        }
    }
}
