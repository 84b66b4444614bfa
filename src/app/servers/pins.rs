//! Pinned tools: what servers list is compared with what somebody accepted, and what differs waits.
//!
//! A list is looked at when it is discovered ([`record`]) and when the tools of an agent are put together from it
//! ([`of_lists`]), so that no list is used that nobody has looked at. Both happen when a list has changed, not at each turn.
//! Who has a server to themselves accepts for themselves; what serves all tenants is accepted for all by the operator, and
//! by the admins of a tenant for that tenant. What was accepted stays so: a replica that has not heard of it holds too much,
//! never too little.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use moka::future::Cache;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::app::{App, servers::registry};
use domain::{
    audit::SYSTEM,
    canonical::{self, Hash, Hex},
    error::{Error, ErrorCode, Result},
    ids::{AgentId, DefinitionId, ServerId, TenantId},
    pack::Pack,
    pin::{self, Pin, Pins, Standing},
    principal::Admin,
    server::{AccessMode, ServerSpec},
    tool::{Catalog, Tool},
};
use store::{
    Tx,
    audit::AuditRow,
    hints::Hint,
    pins::{AddedDefinition, ListedDefinition, WaitingDefinition, WaitingSelection},
};

/// The most tenants of which the accepted tools are in memory, and for how long: a hint may be lost.
const REMEMBERED: u64 = 10_000;
const KEPT: Duration = Duration::from_secs(60);
/// The most definitions of lists that differ by user whose rows this process has written, and for how long it does not
/// write them again. Their rows are few, and two users could push each other's out in turn.
const MOST_WRITTEN: u64 = 16_384;
const WRITTEN: Duration = Duration::from_secs(3600);
/// After so many definitions of one tool that nobody accepted, nobody is told of the next.
pub const TOLD: i32 = 3;

pub struct PinCache {
    pins: Cache<TenantId, Arc<PinsOfAgents>>,
    written: Cache<Hash, ()>,
}

/// Of each agent that a tenant uses.
type PinsOfAgents = Mutex<HashMap<AgentId, Arc<Pins>>>;

impl Default for PinCache {
    fn default() -> Self {
        let pins = Cache::builder().max_capacity(REMEMBERED);
        let written = Cache::builder().max_capacity(MOST_WRITTEN);
        Self {
            pins: pins.time_to_live(KEPT).build(),
            written: written.time_to_live(WRITTEN).build(),
        }
    }
}

/// What is accepted of an agent's tools, for a tenant.
pub async fn of_agent(app: &App, tenant: TenantId, agent: &AgentId) -> Result<Arc<Pins>> {
    // What is read after a change is put into a map that was made after it.
    let of_tenant = app.pins.pins.get_with(tenant, async { Arc::default() });
    let of_tenant = of_tenant.await;
    let lock = || of_tenant.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().get(agent) {
        return Ok(known.clone());
    }
    let mut tx = app.db.tenant(tenant).await?;
    let pins = Arc::new(store::pins::get(&mut tx, agent).await?);
    lock().insert(agent.clone(), pins.clone());
    Ok(pins)
}

/// The same, after what these lists have that nobody has seen was written down. `lists`: of each server of the agent its
/// list, where it is known.
pub async fn of_lists<'a>(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    lists: impl Iterator<Item = (&'a ServerSpec, Option<&'a Catalog>)>,
) -> Result<Arc<Pins>> {
    let mut pins = of_agent(app, tenant, agent).await?;
    for (server, list) in lists {
        let Some(list) = list else { continue };
        let judged = list.tools.iter();
        let judged = judged.map(|tool| (tool, pins.judge(server, tool)));
        let news: Vec<_> = judged.filter(|(_, it)| *it != Standing::Known).collect();
        let is_written = |(tool, standing): &(&Arc<Tool>, Standing)| {
            let key = || key_of(tenant, agent, server, tool);
            *standing == Standing::Wait
                && !is_one_list(server)
                && app.pins.written.contains_key(&key())
        };
        if news.iter().all(is_written) {
            continue;
        }
        record(app, tenant, agent, server, &list.tools, false).await?;
        for (tool, _) in news {
            let key = key_of(tenant, agent, server, tool);
            app.pins.written.insert(key, ()).await;
        }
        // Another replica may have written it first.
        app.pins.pins.invalidate(&tenant).await;
        pins = of_agent(app, tenant, agent).await?;
    }
    Ok(pins)
}

fn key_of(tenant: TenantId, agent: &AgentId, server: &ServerSpec, tool: &Tool) -> Hash {
    let hash = tool.hash.map(|hash| hash.to_string()).unwrap_or_default();
    let key = format!("{tenant} {agent} {} {} {hash}", server.id, tool.name);
    Sha256::digest(key.as_bytes()).into()
}

/// Whether all who use the server see the same list.
fn is_one_list(server: &ServerSpec) -> bool {
    server.access_mode == AccessMode::AdminControlled && server.run_config.is_none()
}

/// Whether what is known of the server's tools is known once for all tenants.
fn is_of_all(server: &ServerSpec) -> bool {
    server.access_mode == AccessMode::AdminControlled && !server.per_tenant
}

/// Writes down what a server lists: the first list is accepted, and so is a tool that the pack names and that nobody has
/// seen before; anything else that is not accepted waits, and the admins are told. `is_current`: the server has just
/// listed it, so what waited of it and is not among it is forgotten.
pub async fn record(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    server: &ServerSpec,
    tools: &[Arc<Tool>],
    is_current: bool,
) -> Result<()> {
    if !server.is_pinned() || tools.is_empty() {
        return Ok(());
    }
    let list = List {
        owner: (!is_of_all(server)).then_some(tenant),
        agent,
        server,
        tools,
    };
    let told = list.tenants(app).await?;
    let mut tx = list.begin(app).await?;
    let pins = list.known(&mut tx).await?;
    let added = list.add_news(&mut tx, &pins).await?;
    let forgets = is_current && is_one_list(server);
    let has_forgotten = forgets && list.forget_unlisted(&mut tx).await? > 0;
    if added.is_empty() && !has_forgotten {
        return Ok(());
    }
    let found = FoundDefinitions {
        agent,
        server,
        is_first: !pins.has_server(&server.id),
        pins: &pins,
        added: &added,
    };
    match list.owner {
        None => found.audit_for_operator(&mut tx).await?,
        Some(tenant) => found.audit(app, &mut tx, tenant).await?,
    }
    for tenant in told {
        if list.owner.is_none() {
            tx.enter(tenant).await?;
        }
        found.enqueue(app, &mut tx, tenant).await?;
    }
    tx.commit().await?;
    found.log();
    announce(app, list.owner).await;
    Ok(())
}

/// What a server lists for an agent.
struct List<'a> {
    /// The tenant that has the server to itself; `None`: it serves all.
    owner: Option<TenantId>,
    agent: &'a AgentId,
    server: &'a ServerSpec,
    tools: &'a [Arc<Tool>],
}

impl List<'_> {
    /// The tenants whose admins are told.
    async fn tenants(&self, app: &App) -> Result<Vec<TenantId>> {
        if let Some(tenant) = self.owner {
            return Ok(vec![tenant]);
        }
        let tenants = app.accounts.tenants().await?.into_iter();
        let serving = tenants.filter(|tenant| tenant.serves(self.agent));
        Ok(serving.map(|tenant| tenant.id).collect())
    }

    async fn begin(&self, app: &App) -> Result<Tx> {
        let mut tx = match self.owner {
            Some(tenant) => app.db.tenant(tenant).await?,
            None => app.db.system_then_tenant().await?,
        };
        store::pins::lock(&mut tx, self.owner, self.agent, &self.server.id).await?;
        Ok(tx)
    }

    async fn known(&self, tx: &mut Tx) -> Result<Pins> {
        match self.owner {
            Some(_) => store::pins::get(tx, self.agent).await,
            None => store::pins::get_of_all(tx, self.agent).await,
        }
    }

    async fn add_news(&self, tx: &mut Tx, pins: &Pins) -> Result<Vec<AddedDefinition>> {
        let news = self.tools.iter().filter_map(|tool| {
            let standing = pins.judge(self.server, tool);
            let hash = tool.hash.filter(|_| standing != Standing::Known)?;
            Some(ListedDefinition {
                tool: tool.name.clone(),
                hash: hash.0,
                definition: canonical::definition(tool),
                is_accepted: standing == Standing::Accept,
            })
        });
        let news: Vec<_> = news.collect();
        let server = &self.server.id;
        match self.owner {
            _ if news.is_empty() => Ok(Vec::new()),
            Some(_) => store::pins::add(tx, self.agent, server, &news).await,
            None => store::pins::add_of_all(tx, self.agent, server, &news).await,
        }
    }

    /// Returns how many that were.
    async fn forget_unlisted(&self, tx: &mut Tx) -> Result<u64> {
        let listed = self.tools.iter().filter_map(|tool| tool.hash);
        let listed: Vec<_> = listed.map(|Hex(hash)| hash).collect();
        let server = &self.server.id;
        match self.owner {
            Some(_) => store::pins::delete_unlisted(tx, self.agent, server, &listed).await,
            None => store::pins::delete_unlisted_of_all(tx, self.agent, server, &listed).await,
        }
    }
}

/// What a list had that nobody had seen.
struct FoundDefinitions<'a> {
    agent: &'a AgentId,
    server: &'a ServerSpec,
    /// Nobody had seen any tool of the server.
    is_first: bool,
    pins: &'a Pins,
    added: &'a [AddedDefinition],
}

impl FoundDefinitions<'_> {
    fn is_new(&self, tool: &str) -> bool {
        !self.pins.has_accepted(&self.server.id, tool)
    }

    /// What happened, as lines of a trail: the action, the tool and more.
    fn facts<'s>(&'s self) -> Vec<(&'static str, &'s str, String)> {
        if self.is_first && !self.added.is_empty() {
            let detail = format!("the first list: {} tools", self.added.len());
            return vec![("tool.accepted", "", detail)];
        }
        let fact = |one: &'s AddedDefinition| {
            let hash = &one.hash[..12];
            let (action, what) = if one.is_accepted {
                ("tool.accepted", "named by the pack")
            } else if self.is_new(&one.tool) {
                ("tool.changed", "new")
            } else {
                ("tool.changed", "changed")
            };
            (action, one.tool.as_str(), format!("{hash}: {what}"))
        };
        self.added.iter().map(fact).collect()
    }

    async fn audit(&self, app: &App, tx: &mut Tx, tenant: TenantId) -> Result<()> {
        let row = |(action, tool, detail): (_, &str, _)| AuditRow {
            agent: self.agent.to_string(),
            server: self.server.id.to_string(),
            tool: tool.to_owned(),
            detail: Some(detail),
            ..AuditRow::new(tenant, app.clock.now(), SYSTEM, action)
        };
        let rows: Vec<_> = self.facts().into_iter().map(row).collect();
        store::audit::insert(tx, tenant, &rows).await
    }

    async fn audit_for_operator(&self, tx: &mut Tx) -> Result<()> {
        for (action, tool, detail) in self.facts() {
            let detail = format!("{} {} {tool} {detail}", self.agent, self.server.id);
            store::audit::record_for_operator(tx, SYSTEM, action, &detail).await?;
        }
        Ok(())
    }

    /// Puts the events of what waits into the outbox of webhooks.
    async fn enqueue(&self, app: &App, tx: &mut Tx, tenant: TenantId) -> Result<()> {
        let waiting = self.added.iter().filter(|one| !one.is_accepted);
        for one in waiting.filter(|one| one.changes <= TOLD) {
            let payload = json!({
                "id": one.id,
                "agent": self.agent.as_str(),
                "server": self.server.id.as_str(),
                "tool": one.tool,
                "hash": one.hash,
                "new": self.is_new(&one.tool),
                "held": self.server.pin == Pin::Hold,
                "link": format!("{}/#/admin/tools/{}", app.config.public_url.trim_end_matches('/'), one.id),
            });
            store::webhooks::enqueue(tx, tenant, "tool.changed", &payload).await?;
        }
        Ok(())
    }

    fn log(&self) {
        let (agent, server) = (self.agent, &self.server.id);
        if self.is_first {
            let tools = self.added.len();
            tracing::info!(%server, %agent, tools, "the first list of tools is accepted as it is");
            return;
        }
        for one in self.added {
            let (tool, hash) = (&one.tool, &one.hash);
            if one.is_accepted {
                tracing::info!(%server, %agent, tool, hash, "a tool that the pack names is accepted as it is");
            } else if one.changes <= TOLD {
                let held = self.server.pin == Pin::Hold;
                tracing::warn!(%server, %agent, tool, hash, held, "a tool has changed or is new; `chatelaine tools diff` shows how");
            }
        }
    }
}

/// Forgets what is accepted for a tenant, or for all, which has changed here or on another replica, and tells the pages
/// that are open.
pub async fn forget(app: &App, tenant: Option<TenantId>) {
    let told = match tenant {
        Some(tenant) => {
            app.pins.pins.invalidate(&tenant).await;
            vec![tenant]
        }
        None => {
            app.pins.pins.invalidate_all();
            app.live.watched_approvals()
        }
    };
    for tenant in told {
        app.live.notify_approval_listeners(tenant);
    }
}

async fn announce(app: &App, tenant: Option<TenantId>) {
    forget(app, tenant).await;
    let _ = app.hints.send(Hint::Tools { tenant });
}

/// A tool that waits until somebody accepts it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ChangedTool {
    pub id: DefinitionId,
    pub agent: String,
    pub server: String,
    pub tool: String,
    /// What is accepted: SHA-256 of all that the server says of the tool, in hex.
    pub hash: String,
    /// No definition of the tool was accepted before.
    pub is_new: bool,
    /// The server serves other tenants, too; what you accept counts for yours.
    pub is_shared: bool,
    /// What becomes of it meanwhile; absent when the agent does not have the server any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
    #[serde(with = "time::serde::rfc3339")]
    pub seen_at: OffsetDateTime,
    /// How many definitions of the tool have waited since one was accepted. With more than three, the tool changes at every
    /// listing or differs by user, and nobody is told any more.
    pub changes: i32,
}

/// A tool that waits, with what its server said of it before and says now.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ChangedToolDetails {
    #[serde(flatten)]
    pub tool: ChangedTool,
    /// What was accepted last, in lines for people. Characters that nobody sees stand as `\u202e`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    pub after: String,
}

/// What waits for the tenant, the newest first.
pub async fn list(
    app: &App,
    admin: &Admin,
    before: Option<DefinitionId>,
    limit: i64,
) -> Result<Vec<ChangedTool>> {
    let found = find(app, admin.tenant(), None, before, limit).await?;
    views(app, admin.tenant(), found).await
}

pub async fn get(app: &App, admin: &Admin, id: DefinitionId) -> Result<ChangedToolDetails> {
    let found = find(app, admin.tenant(), Some(&[id]), None, 1).await?;
    let found = found.into_iter().next();
    let found = found.ok_or_else(|| Error::not_found(format!("changed tool {id}")))?;
    let (before, after) = (found.accepted.clone(), found.definition.clone());
    let mut views = views(app, admin.tenant(), vec![found]).await?;
    Ok(ChangedToolDetails {
        tool: views.remove(0),
        before: before.as_deref().map(pin::to_lines),
        after: pin::to_lines(&after),
    })
}

/// The tools of an agent that wait, of servers whose changed tools are held.
pub async fn list_held(
    app: &App,
    tenant: TenantId,
    pack: &Pack,
) -> Result<HashSet<(ServerId, String)>> {
    let agents = [pack.id().to_string()];
    let wanted = WaitingSelection {
        agents: Some(&agents),
        limit: i64::MAX,
        ..WaitingSelection::default()
    };
    let mut tx = app.db.tenant(tenant).await?;
    let waiting = store::pins::list_waiting(&mut tx, wanted).await?;
    let holds = |server: &ServerId| {
        let server = pack.server(server.as_str());
        server.is_some_and(|server| server.pin == Pin::Hold)
    };
    let held = waiting.into_iter().filter(|one| holds(&one.server));
    Ok(held.map(|one| (one.server, one.tool)).collect())
}

async fn find(
    app: &App,
    tenant: TenantId,
    ids: Option<&[DefinitionId]>,
    before: Option<DefinitionId>,
    limit: i64,
) -> Result<Vec<WaitingDefinition>> {
    let known = app.accounts.tenant(tenant).await?;
    let wanted = WaitingSelection {
        agents: known.agents.as_deref(),
        ids,
        before,
        limit,
        ..WaitingSelection::default()
    };
    let mut tx = app.db.tenant(tenant).await?;
    store::pins::list_waiting(&mut tx, wanted).await
}

async fn views(
    app: &App,
    tenant: TenantId,
    found: Vec<WaitingDefinition>,
) -> Result<Vec<ChangedTool>> {
    let mut views = Vec::with_capacity(found.len());
    for one in found {
        let pin = pin_of(app, tenant, &one.agent, &one.server).await?;
        views.push(ChangedTool {
            id: one.id,
            agent: one.agent.to_string(),
            server: one.server.to_string(),
            is_new: one.accepted.is_none(),
            is_shared: one.of_all,
            tool: one.tool,
            hash: one.hash,
            pin,
            seen_at: one.seen_at,
            changes: one.changes,
        });
    }
    Ok(views)
}

async fn pin_of(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    server: &ServerId,
) -> Result<Option<Pin>> {
    let packs = app.packs.snapshot();
    let Some(pack) = packs.packs().find(|pack| pack.id() == agent) else {
        return Ok(None);
    };
    let pack = registry::pack_for(app, tenant, pack).await?;
    Ok(pack.server(server.as_str()).map(|server| server.pin))
}

/// Accepts tools for the tenant, each with the hash of what was seen: all of them, or `Conflict` when one has changed again.
pub async fn accept(app: &App, admin: &Admin, seen: &[(DefinitionId, Hash)]) -> Result<()> {
    let tenant = admin.tenant();
    let ids: Vec<_> = seen.iter().map(|(id, _)| *id).collect();
    let limit = i64::try_from(seen.len()).unwrap_or(i64::MAX);
    let found = find(app, tenant, Some(&ids), None, limit).await?;
    let hashes: HashSet<_> = seen
        .iter()
        .map(|(id, hash)| (*id, Hex(*hash).to_string()))
        .collect();
    let is_seen = |one: &WaitingDefinition| hashes.contains(&(one.id, one.hash.clone()));
    if found.len() != hashes.len() || !found.iter().all(is_seen) {
        return Err(changed_again());
    }
    accept_in_database(&app.db, tenant, admin.user().as_str(), &found).await?;
    announce(app, Some(tenant)).await;
    Ok(())
}

/// [`accept`] without telling the replicas.
pub async fn accept_in_database(
    db: &store::Db,
    tenant: TenantId,
    actor: &str,
    waiting: &[WaitingDefinition],
) -> Result<()> {
    let mut tx = db.tenant(tenant).await?;
    let now = tx.now().await?;
    let mut rows = Vec::with_capacity(waiting.len());
    for one in waiting {
        if !store::pins::accept(&mut tx, one).await? {
            return Err(changed_again());
        }
        rows.push(AuditRow {
            agent: one.agent.to_string(),
            server: one.server.to_string(),
            tool: one.tool.clone(),
            detail: Some(one.hash.clone()),
            ..AuditRow::new(tenant, now, actor, "tool.accepted")
        });
    }
    store::audit::insert(&mut tx, tenant, &rows).await?;
    tx.commit().await
}

/// Accepts tools of servers that serve all tenants, for all of them.
pub async fn accept_of_all(
    db: &store::Db,
    actor: &str,
    waiting: &[WaitingDefinition],
) -> Result<()> {
    let mut tx = db.system().await?;
    for one in waiting {
        if !store::pins::accept_of_all(&mut tx, one).await? {
            return Err(changed_again());
        }
        let detail = format!("{} {} {} {}", one.agent, one.server, one.tool, one.hash);
        store::audit::record_for_operator(&mut tx, actor, "tool.accepted", &detail).await?;
    }
    tx.commit().await
}

fn changed_again() -> Error {
    Error::conflict(
        ErrorCode::Conflict,
        "a tool has changed again, or somebody has accepted it; look at the list again",
    )
}
