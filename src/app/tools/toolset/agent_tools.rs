//! The tools of an agent that its users see, remembered while nothing changes.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::OnceCell;

use super::{NamedTool, Toolbox, closed_tools, positions_of_unique_names};
use crate::{
    app::{
        App,
        servers::credentials::{self, ServerAccess},
    },
    domain::{
        error::Result,
        names::{self, Candidate},
        orchestrator,
        pack::Pack,
        policy::{EffectiveAccess, Standing},
        principal::Principal,
        server::ServerSpec,
        tool::{Catalog, Tool},
    },
};

/// Agents, and users with catalogs of their own, whose named tools are remembered while they are used.
pub(super) const REMEMBERED: u64 = 4096;

pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The number of cached selections per agent. With more of them, a cached one is hardly ever used again.
const MAX_SELECTIONS: usize = 256;

/// All tools of an agent, whoever may use them.
pub struct AgentTools {
    pub pack: Arc<Pack>,
    /// The pack's servers, in its order.
    pub(super) specs: Vec<Arc<ServerSpec>>,
    pub(super) catalogs: Vec<Option<Arc<Catalog>>>,
    pub(super) tools: Vec<NamedTool>,
    pub(super) by_name: HashMap<String, usize>,
    /// By the servers' own names, where no two servers have the same.
    pub(super) by_own_name: HashMap<String, usize>,
    /// Positions of tools that a misspelt name of an approval policy closes, whoever asks.
    pub(super) closed: HashSet<usize>,
    /// The selection that is visible, by access. Not whole toolboxes: those hold this value, which then would never go.
    pub(super) allowed: Mutex<VisibilityCache>,
}

/// Positions of tools by who may see them.
type VisibilityCache = HashMap<(EffectiveAccess, Reachability), Arc<[usize]>>;

/// Of each server of the pack, whether the user can reach it: a shared one, or with a credential of theirs.
pub(super) type Reachability = Vec<bool>;

/// Positions of tools by their names for the model, and by the other name of one that has two.
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
    /// Names every tool of the catalogs; `catalogs[i]` belongs to `pack.servers[i]`.
    pub fn new(pack: Arc<Pack>, catalogs: Vec<Option<Arc<Catalog>>>) -> Self {
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
        let specs = pack.servers.iter().cloned().map(Arc::new).collect();
        Self {
            pack,
            specs,
            catalogs,
            tools,
            by_name,
            by_own_name,
            closed,
            allowed: Mutex::default(),
        }
    }

    pub(super) fn spec(&self, tool: &NamedTool) -> &Arc<ServerSpec> {
        &self.specs[tool.server]
    }

    /// The toolbox of whoever has this access, decided once.
    pub fn toolbox(
        self: &Arc<Self>,
        access: EffectiveAccess,
        usable: Reachability,
    ) -> Arc<Toolbox> {
        let mut known = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (access, usable);
        if let Some(allowed) = known.get(&key) {
            let (access, usable) = key;
            return Arc::new(Toolbox {
                all: self.clone(),
                access,
                usable,
                allowed: allowed.clone(),
            });
        }
        if known.len() >= MAX_SELECTIONS {
            known.clear();
        }
        let toolbox = Toolbox::build(self.clone(), key.0.clone(), key.1.clone());
        known.insert(key, toolbox.allowed.clone());
        Arc::new(toolbox)
    }

    /// Whether this was made of the same pack and catalogs.
    fn is_of(&self, pack: &Arc<Pack>, seen: &[ServerAccess]) -> bool {
        let pairs = self
            .catalogs
            .iter()
            .zip(seen.iter().map(|seen| &seen.catalog));
        Arc::ptr_eq(&self.pack, pack)
            && pairs.into_iter().all(|pair| match pair {
                (Some(known), Some(now)) => Arc::ptr_eq(known, now) || known.version == now.version,
                (None, None) => true,
                _ => false,
            })
    }
}

/// The toolbox of a principal now, by their newest claims: a run may have begun with older ones.
pub async fn toolbox(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Arc<Pack>,
) -> Result<Arc<Toolbox>> {
    app.accounts.require_unblocked(principal).await?;
    let principal = &app.accounts.newest(principal).await?;
    let seen = credentials::server_access(app, principal, pack).await?;
    let usable = seen.iter().map(|seen| seen.usable).collect();
    Ok(agent_tools(app, principal, pack, seen)
        .await
        .toolbox(principal.access(pack), usable))
}

/// The named tools of an agent, built again only when the pack or a catalog has changed.
pub(super) async fn agent_tools(
    app: &App,
    principal: &Principal,
    pack: &Arc<Pack>,
    seen: Vec<ServerAccess>,
) -> Arc<AgentTools> {
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
        .filter(|known| known.is_of(pack, &seen))
    {
        return known;
    }
    let catalogs = seen.into_iter().map(|seen| seen.catalog).collect();
    let tools = Arc::new(AgentTools::new(pack.clone(), catalogs));
    app.tools.agents.insert(key, tools.clone()).await;
    // What was replaced holds an old pack and its catalogs; let go of it now.
    app.tools.agents.run_pending_tasks().await;
    tools
}
