//! Toolboxes: the tools a principal may see in one run, discovered ∩ allowlist ∩ access.
//!
//! An agent's tools get their names once per (pack, catalogs); a toolbox is a selection of them by the same
//! decision that the gate asks again at call time. Both are cached; a user's toolbox costs a query only when
//! nobody has asked for it for a while. A personal server's tools are in it only with an active credential.

mod absent_tools;
pub mod access_matrix;
mod agent_tools;
mod listing;
mod missing_list;
mod search;
mod toolbox_prompts;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, OnceLock},
};

use moka::future::Cache;
use tokio::sync::OnceCell;

pub(in crate::app) use self::absent_tools::not_available;
use self::agent_tools::{FORGOTTEN_AFTER, REMEMBERED, Reachability};
pub use self::{
    agent_tools::{AgentTools, toolbox},
    listing::{DeniedTool, ServerTools, ToolView, explain, explain_for, list},
    missing_list::{MissingListReason, MissingToolList},
};
use crate::{
    domain::{
        error::Result,
        ids::{AgentId, TenantId, UserId},
        json::Json,
        orchestrator,
        pack::Pack,
        policy::{Decision, EffectiveAccess, decide},
        server::ServerSpec,
        tool::{Catalog, Tool},
        tool_schema::ToolSchema,
    },
    mcp::schemas,
};

/// One tool of an agent, with the name that the model knows it by.
pub struct NamedTool {
    pub name: String,
    /// The part of the name that says which tool of the server it is, before it was folded.
    pub shown: String,
    /// Position of its server in the pack.
    server: usize,
    pub tool: Arc<Tool>,
    schema: OnceCell<Result<Arc<ToolSchema>, String>>,
    /// Its JSON for clients, by the name in it: the model's, or the server's own.
    json: [OnceLock<Box<str>>; 2],
}

/// The tools of an agent that are visible with one access.
pub struct Toolbox {
    all: Arc<AgentTools>,
    access: EffectiveAccess,
    usable: Reachability,
    /// Positions in `all.tools`, ascending.
    allowed: Arc<[usize]>,
}

/// By agent; with a user where the catalogs are theirs alone.
pub struct Toolboxes {
    agents: Cache<(TenantId, AgentId, Option<UserId>), Arc<AgentTools>>,
}

impl Default for Toolboxes {
    fn default() -> Self {
        Self {
            agents: Cache::builder()
                .max_capacity(REMEMBERED)
                .time_to_idle(FORGOTTEN_AFTER)
                .build(),
        }
    }
}

impl NamedTool {
    /// Whether a name means this tool of its server.
    fn is(&self, server: &ServerSpec, name: &str) -> bool {
        self.tool.name == name
            || orchestrator::is_built_in(server) && self.tool.name == orchestrator::own_name(name)
    }

    /// The JSON of the tool for clients, written once for each kind of name.
    pub fn json(&self, own_name: bool, write: impl FnOnce() -> String) -> &str {
        self.json[usize::from(own_name)].get_or_init(|| write().into_boxed_str())
    }

    /// Why the arguments do not fit the tool's schema; at most five reasons, without a network look-up.
    pub async fn check(&self, arguments: &Json) -> Result<(), String> {
        let compile = || schemas::compile(self.tool.clone());
        let schema = self.schema.get_or_init(compile).await;
        let schema = schema.as_ref().map_err(|reason| {
            format!(
                "the server's schema of this tool cannot be used, so nothing was sent: {reason}"
            )
        })?;
        schemas::check(schema.clone(), arguments).await
    }
}

impl Toolbox {
    /// Decides about every tool.
    pub fn build(all: Arc<AgentTools>, access: EffectiveAccess, usable: Reachability) -> Self {
        let may = |tool: &NamedTool| {
            usable[tool.server]
                && !matches!(
                    decide(all.spec(tool), &access, &tool.tool.name),
                    Decision::Deny(_)
                )
        };
        let allowed = (0..all.tools.len())
            .filter(|at| !all.closed.contains(at) && may(&all.tools[*at]))
            .collect();
        Self {
            all,
            access,
            usable,
            allowed,
        }
    }

    /// The tools in it with their servers, in the pack's order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<ServerSpec>, &NamedTool)> {
        self.allowed
            .iter()
            .map(|at| &self.all.tools[*at])
            .map(|tool| (self.all.spec(tool), tool))
    }

    /// A tool by the name the model knows; a tool outside the toolbox is as unknown as one that is not there.
    pub fn by_name(&self, name: &str) -> Option<(&Arc<ServerSpec>, &NamedTool)> {
        let at = *self.all.by_name.get(name)?;
        self.allowed.binary_search(&at).ok()?;
        let tool = &self.all.tools[at];
        Some((self.all.spec(tool), tool))
    }

    /// The same by the server's own name, where the name is unique.
    pub(super) fn by_own_name(&self, name: &str) -> Option<(&Arc<ServerSpec>, &NamedTool)> {
        let at = *self.all.by_own_name.get(name)?;
        self.by_name(&self.all.tools[at].name)
    }

    /// Whether the server's own name means this tool and no other.
    pub(super) fn is_own_name_unique(&self, named: &NamedTool) -> bool {
        self.all.by_own_name.contains_key(&named.tool.name)
    }

    /// Whether both offer the same tools, described in the same way.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.all, &other.all) && self.allowed == other.allowed
    }

    /// A tool by its server and its own name.
    pub fn by_pair(&self, server: &str, tool: &str) -> Option<(&Arc<ServerSpec>, &NamedTool)> {
        self.iter()
            .find(|(spec, named)| spec.id.as_str() == server && named.is(spec, tool))
    }

    /// Server and tool behind a name, whoever may use it: for the audit trail, which says what was refused.
    pub(in crate::app) fn pair_of(&self, name: &str) -> Option<(&str, &str)> {
        let tool = &self.all.tools[*self.all.by_name.get(name)?];
        Some((self.all.spec(tool).id.as_str(), &tool.tool.name))
    }

    /// Server and tool that a name says, if nothing is known of the server's tools.
    pub fn unlisted_pair_of<'n>(&self, name: &'n str) -> Option<(&str, &'n str)> {
        let servers = self.all.specs.iter().zip(&self.all.catalogs);
        let mut unlisted = servers.filter(|(_, catalog)| catalog.is_none());
        unlisted.find_map(|(spec, _)| {
            let server = spec.id.as_str();
            Some((server, name.strip_prefix(server)?.strip_prefix("__")?))
        })
    }

    /// Whether the principal can reach a server: a shared one, or a personal one with a credential of theirs.
    pub fn reaches(&self, server: &str) -> bool {
        let at = self
            .all
            .specs
            .iter()
            .position(|spec| spec.id.as_str() == server);
        at.is_some_and(|at| self.usable[at])
    }

    pub fn access(&self) -> &EffectiveAccess {
        &self.access
    }

    pub fn agent(&self) -> &AgentId {
        self.all.pack.id()
    }

    pub fn len(&self) -> usize {
        self.allowed.len()
    }

    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty()
    }
}

/// Positions of tools by their servers' own names, without names that several servers have or that a model's name of
/// another tool equals.
fn positions_of_unique_names(tools: &[NamedTool]) -> HashMap<String, usize> {
    let mut positions: HashMap<String, Option<usize>> = HashMap::new();
    for (at, tool) in tools.iter().enumerate() {
        let known = positions.entry(tool.tool.name.clone());
        known.and_modify(|at| *at = None).or_insert(Some(at));
    }
    for tool in tools {
        positions.remove(&tool.name);
    }
    let unique = positions.into_iter();
    unique
        .filter_map(|(name, at)| at.map(|at| (name, at)))
        .collect()
}

/// Of each server, the tools that a misspelt name of an approval policy closes.
fn closed_tools<'c>(
    pack: &Pack,
    catalogs: &'c [Option<Arc<Catalog>>],
) -> Vec<Option<BTreeSet<&'c str>>> {
    let servers = pack.servers.iter().zip(catalogs);
    let closed = servers.map(|(server, catalog)| {
        let (access, catalog) = (server.tool_access.as_ref()?, catalog.as_ref()?);
        Some(access.closed_tools(&catalog.tool_names()))
    });
    closed.collect()
}

/// At most `most` characters of a text.
pub(in crate::app) fn truncate_text(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
