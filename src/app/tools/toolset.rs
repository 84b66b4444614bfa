//! Toolsets: the tools that a principal may see in one run (discovered ∩ allowlist ∩ access), with the prompts of
//! their servers.
//!
//! The tools of an agent get their names once per (pack, catalogs). A toolset is a selection of them by the same
//! decision that the gate makes again at the call. Both are cached, so a user's toolset costs a query only after a
//! pause. The tools of a personal server are in it only with an active credential.
//!
//! Prompts have no access rules of their own, so the rules of their server's tools decide ([`offers_prompts`]).

mod absent_tools;
pub mod access_matrix;
mod listing;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use moka::future::Cache;
use tokio::sync::OnceCell;

pub(in crate::app::tools) use self::absent_tools::held_back;
pub(in crate::app) use self::absent_tools::not_available;
pub use self::{
    absent_tools::{MissingListReason, MissingToolList},
    listing::{DeniedTool, ServerTools, ToolView, explain, explain_for, list},
};
use crate::app::{
    App,
    servers::{
        connections,
        credentials::{self, ServerAccess},
        pins,
    },
};
use domain::{
    error::Result,
    ids::{AgentId, TenantId, UserId},
    json::Json,
    names::{self, Candidate},
    orchestrator,
    pack::Pack,
    pin::Pins,
    policy::{EffectiveAccess, Standing, is_offered, offers_prompts},
    principal::Principal,
    prompt::ServerPrompt,
    server::ServerSpec,
    tool::{Catalog, Tool},
    tool_schema::ToolSchema,
};
use mcp::schemas;

/// One tool of an agent, with its name for the model.
pub struct NamedTool {
    pub name: String,
    /// The tool's part of the name, before it was folded into the characters that models accept.
    pub shown: String,
    /// Position of its server in the pack.
    server: usize,
    pub tool: Arc<Tool>,
    /// What clients are shown of a tool that is used although its server has changed it: as somebody accepted it.
    accepted: Option<Box<Tool>>,
    schema: OnceCell<Result<Arc<ToolSchema>, String>>,
    /// The tool's JSON for clients, with the model's name and with the server's own.
    json: [OnceLock<Box<str>>; 2],
}

/// The tools of an agent that are visible with one access.
pub struct Toolset {
    all: Arc<AgentTools>,
    access: EffectiveAccess,
    usable: Reachability,
    /// Positions in `all.tools`, ascending.
    allowed: Arc<[usize]>,
}

/// The cached tools of agents. The key has a user where a catalog belongs to that user alone.
pub struct Toolsets {
    agents: Cache<(TenantId, AgentId, Option<UserId>), Arc<AgentTools>>,
}

impl Default for Toolsets {
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
    /// Whether a name of its server means this tool.
    fn is(&self, server: &ServerSpec, name: &str) -> bool {
        self.tool.name == name
            || orchestrator::is_built_in(server) && self.tool.name == orchestrator::own_name(name)
    }

    /// The tool as clients are shown it.
    pub fn shown_tool(&self) -> &Tool {
        self.accepted.as_deref().unwrap_or(&self.tool)
    }

    /// The JSON of the tool for clients, made once for each kind of name.
    pub fn json(&self, own_name: bool, write: impl FnOnce() -> String) -> &str {
        self.json[usize::from(own_name)].get_or_init(|| write().into_boxed_str())
    }

    /// Checks arguments against the tool's schema, without a network look-up. The error names at most five problems.
    pub async fn check(&self, arguments: &Json) -> Result<(), String> {
        schemas::check(self.schema().await?.clone(), arguments).await
    }

    /// The tool's schema, which is compiled once.
    pub(super) async fn schema(&self) -> Result<&Arc<ToolSchema>, String> {
        let compile = || schemas::compile(self.tool.clone());
        let schema = self.schema.get_or_init(compile).await;
        schema.as_ref().map_err(|reason| {
            format!(
                "the server's schema of this tool cannot be used, so nothing was sent: {reason}"
            )
        })
    }
}

impl Toolset {
    /// Selects the tools that this access may see.
    pub fn build(all: Arc<AgentTools>, access: EffectiveAccess, usable: Reachability) -> Self {
        let may = |tool: &NamedTool| {
            usable[tool.server] && is_offered(all.spec(tool), &access, &tool.tool.name)
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

    /// The tools with their servers, in the pack's order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<ServerSpec>, &NamedTool)> {
        self.allowed
            .iter()
            .map(|at| &self.all.tools[*at])
            .map(|tool| (self.all.spec(tool), tool))
    }

    /// A tool by its name for the model. A tool outside the toolset is as unknown as one that does not exist.
    pub fn by_name(&self, name: &str) -> Option<(&Arc<ServerSpec>, &NamedTool)> {
        let at = *self.all.by_name.get(name)?;
        self.allowed.binary_search(&at).ok()?;
        let tool = &self.all.tools[at];
        Some((self.all.spec(tool), tool))
    }

    /// A tool by the server's own name for it, if that name is unique.
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

    /// The server and the tool of a name, also outside the toolset: the audit trail names refused tools.
    pub(in crate::app) fn pair_of(&self, name: &str) -> Option<(&str, &str)> {
        let tool = &self.all.tools[*self.all.by_name.get(name)?];
        Some((self.all.spec(tool).id.as_str(), &tool.tool.name))
    }

    /// The server and the tool in a name `<server>__<tool>`, for a server whose tools are not known.
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

    pub fn pack(&self) -> &Pack {
        &self.all.pack
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

/// Positions of tools by their servers' own names. A name that several servers have, or that equals another tool's
/// name for the model, is left out.
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

/// The tools of each server that are closed because a rule about calls has a misspelt name.
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

/// Cuts a text to at most `most` characters.
pub(in crate::app) fn truncate_text(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The most agents, and users with catalogs of their own, whose named tools are cached.
const REMEMBERED: u64 = 4096;

const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The most cached selections per agent. With more of them, a cached one is hardly ever used again.
const MAX_SELECTIONS: usize = 256;

/// All tools of an agent, for all its users.
pub struct AgentTools {
    pub pack: Arc<Pack>,
    /// The pack's servers, in its order, with the tools that are held of them.
    specs: Vec<Arc<ServerSpec>>,
    catalogs: Vec<Option<Arc<Catalog>>>,
    pins: Arc<Pins>,
    tools: Vec<NamedTool>,
    by_name: HashMap<String, usize>,
    /// By the servers' own names, if no two servers have the same name.
    by_own_name: HashMap<String, usize>,
    /// Positions of tools that a misspelt name of a rule about calls closes for everybody.
    closed: HashSet<usize>,
    /// The visible tools, by access. Whole toolsets are not kept here, because each would keep this value alive for
    /// ever.
    allowed: Mutex<VisibilityCache>,
}

/// Positions of visible tools, by access and reachable servers.
type VisibilityCache = HashMap<(EffectiveAccess, Reachability), Arc<[usize]>>;

/// For each server of the pack, whether the user can reach it: a shared one, or a personal one with a credential of
/// theirs.
type Reachability = Vec<bool>;

/// Positions of tools by their names for the model. A tool of the built-in server has more than one name.
fn positions_by_name(pack: &Pack, tools: &[NamedTool]) -> HashMap<String, usize> {
    let names = tools.iter().enumerate();
    let mut positions: HashMap<_, _> = names.map(|(at, tool)| (tool.name.clone(), at)).collect();
    let built_in = |tool: &NamedTool| orchestrator::is_built_in(&pack.servers[tool.server]);
    for (at, tool) in tools.iter().enumerate().filter(|(_, tool)| built_in(tool)) {
        let server = pack.servers[tool.server].id.as_str();
        let candidate = |tool| Candidate {
            server,
            tool,
            standing: Standing::Unnamed,
        };
        let mut others = vec![candidate(tool.tool.name.as_str())];
        for alias in orchestrator::aliases() {
            if orchestrator::own_name(alias) == tool.tool.name {
                others.push(candidate(alias));
            }
        }
        for name in names::assign(others.into_iter()) {
            positions.entry(name).or_insert(at);
        }
    }
    positions
}

impl AgentTools {
    /// Names every tool of the catalogs; `catalogs[i]` belongs to `pack.servers[i]`. `pins`: what is accepted of them.
    pub fn new(pack: Arc<Pack>, catalogs: Vec<Option<Arc<Catalog>>>, pins: Arc<Pins>) -> Self {
        let discovered = || {
            let servers = pack.servers.iter().zip(&catalogs).enumerate();
            servers.flat_map(|(at, (server, catalog))| {
                let tools = catalog.iter().flat_map(|catalog| &catalog.tools);
                tools.map(move |tool| (at, server, tool))
            })
        };
        let shown = |server: &ServerSpec, tool: &Tool| {
            let tool = tool.name.as_str();
            if orchestrator::is_built_in(server) {
                orchestrator::shown_name(server, tool).to_owned()
            } else {
                tool.to_owned()
            }
        };
        let shown: Vec<_> = discovered()
            .map(|(_, server, tool)| shown(server, tool))
            .collect();
        let candidates = discovered().zip(&shown);
        let candidates: Vec<_> = candidates
            .map(|((_, server, tool), shown)| Candidate {
                server: server.id.as_str(),
                tool: shown,
                standing: server.standing(&tool.name),
            })
            .collect();
        let names = names::assign(candidates.iter().copied());
        drop(candidates);
        let tools: Vec<_> = discovered()
            .zip(names.into_iter().zip(&shown))
            .map(|((server, _, tool), (name, shown))| NamedTool {
                name,
                shown: shown.clone(),
                server,
                accepted: pins
                    .find_accepted_copy(&pack.servers[server], tool)
                    .map(Box::new),
                tool: tool.clone(),
                schema: OnceCell::new(),
                json: Default::default(),
            })
            .collect();
        let by_name = positions_by_name(&pack, &tools);
        let by_own_name = positions_of_unique_names(&tools);
        let closed = closed_tools(&pack, &catalogs);
        let is_closed = |tool: &NamedTool| {
            closed[tool.server]
                .as_ref()
                .is_some_and(|closed| closed.contains(tool.tool.name.as_str()))
        };
        let positions = tools.iter().enumerate();
        let closed = positions
            .filter(|(_, tool)| is_closed(tool))
            .map(|(at, _)| at);
        let closed = closed.collect();
        let held = |(server, catalog): (&ServerSpec, &Option<Arc<Catalog>>)| {
            let held = catalog
                .as_ref()
                .map(|catalog| pins.find_held(server, catalog));
            Arc::new(ServerSpec {
                held: held.unwrap_or_default(),
                ..server.clone()
            })
        };
        let specs = pack.servers.iter().zip(&catalogs).map(held).collect();
        Self {
            pack,
            specs,
            catalogs,
            pins,
            tools,
            by_name,
            by_own_name,
            closed,
            allowed: Mutex::default(),
        }
    }

    fn spec(&self, tool: &NamedTool) -> &Arc<ServerSpec> {
        &self.specs[tool.server]
    }

    /// The toolset of an access. The selection is made once and then kept.
    pub fn select(self: &Arc<Self>, access: EffectiveAccess, usable: Reachability) -> Arc<Toolset> {
        let mut known = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (access, usable);
        if let Some(allowed) = known.get(&key) {
            let (access, usable) = key;
            return Arc::new(Toolset {
                all: self.clone(),
                access,
                usable,
                allowed: allowed.clone(),
            });
        }
        if known.len() >= MAX_SELECTIONS {
            known.clear();
        }
        let toolset = Toolset::build(self.clone(), key.0.clone(), key.1.clone());
        known.insert(key, toolset.allowed.clone());
        Arc::new(toolset)
    }

    /// Whether these tools were built from the same pack, catalogs and accepted definitions.
    fn is_built_from(&self, pack: &Arc<Pack>, seen: &[ServerAccess], pins: &Arc<Pins>) -> bool {
        let pairs = self
            .catalogs
            .iter()
            .zip(seen.iter().map(|seen| &seen.catalog));
        Arc::ptr_eq(&self.pack, pack)
            && (Arc::ptr_eq(&self.pins, pins) || self.pins == *pins)
            && pairs.into_iter().all(|pair| match pair {
                (Some(known), Some(now)) => Arc::ptr_eq(known, now) || known.version == now.version,
                (None, None) => true,
                _ => false,
            })
    }
}

/// Selects the present toolset of a principal, by their newest claims: a run may have begun with older ones.
/// `Forbidden` for a blocked user.
pub async fn select(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Arc<Pack>,
) -> Result<Arc<Toolset>> {
    app.accounts.require_unblocked(principal).await?;
    let principal = &app.accounts.newest(principal).await?;
    let seen = credentials::server_access(app, principal, pack).await?;
    let usable = seen.iter().map(|seen| seen.usable).collect();
    let tools = load_agent_tools(app, principal, pack, seen).await?;
    for spec in tools.specs.iter().filter(|spec| !spec.held.is_empty()) {
        connections::list_held_again(app, principal.tenant, pack.id(), spec).await;
    }
    Ok(tools.select(principal.access(pack), usable))
}

/// The named tools of an agent, built again only when the pack, a catalog or what is accepted of them has changed.
async fn load_agent_tools(
    app: &App,
    principal: &Principal,
    pack: &Arc<Pack>,
    seen: Vec<ServerAccess>,
) -> Result<Arc<AgentTools>> {
    let pins = pins::of_agent(app, principal.tenant, pack.id()).await?;
    let user = seen
        .iter()
        .any(|seen| seen.own)
        .then(|| principal.user.clone());
    let key = (principal.tenant, pack.id().clone(), user);
    if let Some(known) = app
        .tools
        .agents
        .get(&key)
        .await
        .filter(|known| known.is_built_from(pack, &seen, &pins))
    {
        return Ok(known);
    }
    let lists = seen.iter().map(|seen| seen.catalog.as_deref());
    let lists = pack.servers.iter().zip(lists);
    let pins = pins::of_lists(app, principal.tenant, pack.id(), lists).await?;
    let catalogs = seen.into_iter().map(|seen| seen.catalog).collect();
    let tools = Arc::new(AgentTools::new(pack.clone(), catalogs, pins));
    app.tools.agents.insert(key, tools.clone()).await;
    // The replaced value holds an old pack and its catalogs, so it is dropped now.
    app.tools.agents.run_pending_tasks().await;
    Ok(tools)
}

/// The most words of a query that count, and the most characters of a description that are searched.
const WORDS: usize = 16;
const SEARCHED: usize = 1_000;

impl Toolset {
    /// The tools that match a query best, best first. A word in a name counts more than one in a description.
    pub(in crate::app) fn search(
        &self,
        query: &str,
        most: usize,
    ) -> Vec<(&Arc<ServerSpec>, &NamedTool)> {
        let query = query.to_lowercase();
        let words: Vec<&str> = query
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .take(WORDS)
            .collect();
        let mut found: Vec<_> = self
            .iter()
            .map(|(spec, named)| (rank(named, &words), spec, named))
            .filter(|(rank, ..)| *rank > 0)
            .collect();
        // A stable sort keeps the pack's order among equals.
        found.sort_by_key(|(rank, ..)| Reverse(*rank));
        found.truncate(most);
        found
            .into_iter()
            .map(|(_, spec, named)| (spec, named))
            .collect()
    }
}

fn rank(named: &NamedTool, words: &[&str]) -> usize {
    let title = named.tool.title.as_deref().unwrap_or_default();
    let name = format!("{} {title}", named.name).to_lowercase();
    let description = truncate_text(&named.tool.description, SEARCHED).to_lowercase();
    let rank_of = |word: &&str| match (name.contains(*word), description.contains(*word)) {
        (true, _) => 3,
        (false, true) => 1,
        (false, false) => 0,
    };
    words.iter().map(rank_of).sum()
}

impl Toolset {
    /// The prompts that the principal may use with their servers, in the pack's order.
    pub fn prompts(&self) -> impl Iterator<Item = (&Arc<ServerSpec>, &Arc<ServerPrompt>)> {
        let servers = self
            .all
            .specs
            .iter()
            .zip(&self.all.catalogs)
            .zip(&self.usable);
        let offering = servers.filter_map(|((spec, catalog), usable)| {
            let catalog = catalog.as_deref().filter(|_| *usable)?;
            let tools = catalog.tools.iter().map(|tool| tool.name.as_str());
            offers_prompts(spec, &self.access, tools).then_some((spec, catalog))
        });
        offering
            .flat_map(|(spec, catalog)| catalog.prompts.iter().map(move |prompt| (spec, prompt)))
    }

    /// The prompts with their names for clients: `<server>__<prompt>` as for tools, or the server's own name with
    /// `own_names` if no other server of the agent has the same.
    pub fn named_prompts(
        &self,
        own_names: bool,
    ) -> Vec<(String, &Arc<ServerSpec>, &Arc<ServerPrompt>)> {
        // All prompts of the agent get names, so that no name depends on a user's rights.
        let all = self.all.specs.iter().zip(&self.all.catalogs);
        let all = all.flat_map(|(spec, catalog)| {
            let prompts = catalog.iter().flat_map(|catalog| &catalog.prompts);
            prompts.map(move |prompt| (spec.id.as_str(), prompt.name.as_str()))
        });
        let candidates = all.clone().map(|(server, tool)| Candidate {
            server,
            tool,
            standing: Standing::Unnamed,
        });
        let names = names::assign(candidates);
        let names: HashMap<_, _> = all.clone().zip(names).collect();
        let is_unique = |name: &str| all.clone().filter(|(_, other)| *other == name).count() == 1;
        let named = self.prompts().map(|(spec, prompt)| {
            let name = if own_names && is_unique(&prompt.name) {
                prompt.name.clone()
            } else {
                names[&(spec.id.as_str(), prompt.name.as_str())].clone()
            };
            (name, spec, prompt)
        });
        named.collect()
    }

    /// A prompt by its name or as a command spells it; `None` also when the spelling means several prompts.
    pub fn prompt(
        &self,
        server: &str,
        name: &str,
    ) -> Option<(&Arc<ServerSpec>, &Arc<ServerPrompt>)> {
        let of_server = || {
            self.prompts()
                .filter(|(spec, _)| spec.id.as_str().eq_ignore_ascii_case(server))
        };
        of_server()
            .find(|(_, prompt)| prompt.name == name)
            .or_else(|| {
                let mut spelt =
                    of_server().filter(|(_, prompt)| domain::prompt::word(&prompt.name) == name);
                spelt.next().filter(|_| spelt.next().is_none())
            })
    }
}
