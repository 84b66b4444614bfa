//! Pinned tools: what servers list is compared with what somebody accepted, and what differs waits.
//!
//! A list is looked at when it is discovered ([`record`]) and when the tools of an agent are put together from it
//! ([`of_lists`]), so that no list is used that nobody has looked at. Both happen when a list has changed, not at each turn.
//! Who has a server to themselves accepts for themselves; what serves all tenants is accepted for all by the operator, and
//! by the admins of a tenant for that tenant.
//!
//! What one replica has written, the others read within a second, as they read blocks: by a hint, or by the poll of
//! `runs::sign_outs`. Of one listing the admins are told in one line, and of a server once a minute, whatever it does; what
//! comes in between is told at the end of the minute ([`tell_due`]).

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use moka::future::Cache;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::app::{App, servers::registry};
use domain::{
    audit::SYSTEM,
    canonical::{self, Hash, Hex},
    error::{Error, ErrorCode, Result},
    ids::{AgentId, DefinitionId, ServerId, TenantId},
    owner::CatalogOwner,
    pack::Pack,
    pin::{self, KnownDefinition, Pin, Pins, Standing},
    principal::Admin,
    server::{AccessMode, ServerSpec},
    tool::{Catalog, Tool},
};
use store::{
    Tx,
    audit::AuditRow,
    hints::Hint,
    pins::{ListedDefinition, UntoldDefinition, WaitingDefinition, WaitingSelection},
};

/// The most tenants of which the accepted tools are in memory, and for how long.
const REMEMBERED: u64 = 10_000;
const KEPT: Duration = Duration::from_secs(60);
/// For how long what was read counts where changes may have been missed.
const UNWATCHED: time::Duration = time::Duration::seconds(1);
/// The most definitions whose rows this process has written, and for how long it does not write them again: of lists that
/// differ by user, because their rows are few, and two users could push each other's out in turn; of other lists, because
/// another replica may have seen a newer one.
const MOST_WRITTEN: u64 = 16_384;
const WRITTEN: Duration = Duration::from_secs(3600);
/// After so many definitions of one tool that nobody accepted, nobody is told of the next.
pub const TOLD: i32 = 3;
/// The least time between two lines about a server.
const PAUSE: time::Duration = time::Duration::minutes(1);
/// How often a process looks for lines that are due.
pub const TELLING: Duration = Duration::from_secs(5);
/// The most tools that a line names.
const NAMED: usize = 10;

pub struct PinCache {
    pins: Cache<TenantId, Arc<PinsOfAgents>>,
    written: Cache<Hash, ()>,
    /// The servers about which a line is due, and when.
    owed: Mutex<HashMap<Place, (Pin, OffsetDateTime)>>,
}

/// Of each agent that a tenant uses, with the time at which they were read.
type PinsOfAgents = Mutex<HashMap<AgentId, (Arc<Pins>, OffsetDateTime)>>;

/// A server of an agent, as it is known to all tenants (`owner: None`) or to one.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    owner: Option<TenantId>,
    agent: AgentId,
    server: ServerId,
}

impl Default for PinCache {
    fn default() -> Self {
        let pins = Cache::builder().max_capacity(REMEMBERED);
        let written = Cache::builder().max_capacity(MOST_WRITTEN);
        Self {
            pins: pins.time_to_live(KEPT).build(),
            written: written.time_to_live(WRITTEN).build(),
            owed: Mutex::default(),
        }
    }
}

impl PinCache {
    fn owed(&self) -> MutexGuard<'_, HashMap<Place, (Pin, OffsetDateTime)>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is accepted of an agent's tools, for a tenant: at most a second old.
pub async fn of_agent(app: &App, tenant: TenantId, agent: &AgentId) -> Result<Arc<Pins>> {
    // What is read after a change is put into a map that was made after it.
    let of_tenant = app.pins.pins.get_with(tenant, async { Arc::default() });
    let of_tenant = of_tenant.await;
    let lock = || of_tenant.lock().unwrap_or_else(PoisonError::into_inner);
    let now = app.clock.now();
    if let Some((known, read)) = lock().get(agent)
        && (app.accounts.knows_recent_changes() || now < *read + UNWATCHED)
    {
        return Ok(known.clone());
    }
    let mut tx = app.db.tenant(tenant).await?;
    let pins = Arc::new(store::pins::get(&mut tx, agent).await?);
    lock().insert(agent.clone(), (pins.clone(), now));
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
        let mut news = judged.filter(|(_, it)| *it != Standing::Known);
        let is_written = |(tool, standing): (&Arc<Tool>, Standing)| {
            let key = key_of(tenant, agent, server, tool);
            standing == Standing::Wait && app.pins.written.contains_key(&key)
        };
        if news.all(is_written) {
            continue;
        }
        record(app, tenant, agent, server, &list.tools, false).await?;
        // Another replica may have written it first.
        app.pins.pins.invalidate(&tenant).await;
        pins = of_agent(app, tenant, agent).await?;
    }
    Ok(pins)
}

fn key_of(tenant: TenantId, agent: &AgentId, server: &ServerSpec, tool: &Tool) -> Hash {
    let tenant = owner_of(tenant, server).unwrap_or(TenantId(Uuid::nil()));
    let hash = tool.hash.map(|hash| hash.to_string()).unwrap_or_default();
    let key = format!("{tenant} {agent} {} {} {hash}", server.id, tool.name);
    Sha256::digest(key.as_bytes()).into()
}

/// The tenant for which alone is known what is known of the server's tools; `None`: for all.
fn owner_of(tenant: TenantId, server: &ServerSpec) -> Option<TenantId> {
    let is_of_all = server.access_mode == AccessMode::AdminControlled && !server.per_tenant;
    (!is_of_all).then_some(tenant)
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
    let forgets = is_current && server.is_one_list();
    let known = of_agent(app, tenant, agent).await?;
    let is_new = |tool: &Arc<Tool>| known.judge(server, tool) != Standing::Known;
    let has_gone = forgets && known.has_unlisted(&server.id, tools);
    if !has_gone && !tools.iter().any(is_new) {
        return Ok(());
    }
    let place = Place {
        owner: owner_of(tenant, server),
        agent: agent.clone(),
        server: server.id.clone(),
    };
    let mut tx = place.begin(app).await?;
    let pins = match place.owner {
        Some(_) => store::pins::get(&mut tx, agent).await?,
        None => store::pins::get_of_all(&mut tx, agent).await?,
    };
    let is_first = !pins.has_server(&server.id);
    let news = find_news(&mut tx, agent, server, tools, &pins).await?;
    place.add(&mut tx, &news).await?;
    let has_forgotten = forgets && place.forget_unlisted(&mut tx, &pins, tools).await? > 0;
    for tool in tools.iter().filter(|tool| is_new(tool)) {
        let key = key_of(tenant, agent, server, tool);
        app.pins.written.insert(key, ()).await;
    }
    if news.is_empty() && !has_forgotten {
        return Ok(());
    }
    let told_at = place.note_change(&mut tx).await?;
    let accepted = describe_accepted(&news, is_first);
    if let Some(detail) = &accepted {
        place
            .audit(app, &mut tx, "tool.accepted", "", detail)
            .await?;
    }
    let now = tx.now().await?;
    let due = told_at.map_or(now, |told_at| told_at + PAUSE);
    let waits = |one: &ListedDefinition| {
        matches!(
            one.known,
            KnownDefinition::Held(_) | KnownDefinition::Told(_)
        )
    };
    if !news.iter().any(waits) {
        tx.commit().await?;
    } else if due <= now {
        place.tell(app, tx, server.pin).await?;
    } else {
        tx.commit().await?;
        let due = app.clock.now() + (due - now);
        app.pins.owed().insert(place.clone(), (server.pin, due));
    }
    if let Some(detail) = accepted {
        tracing::info!(server = %server.id, %agent, "tools are accepted as they are: {detail}");
    }
    announce(app, place.owner).await;
    Ok(())
}

/// What a list has that nobody has seen.
async fn find_news(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerSpec,
    tools: &[Arc<Tool>],
    pins: &Pins,
) -> Result<Vec<ListedDefinition>> {
    let judged = tools.iter().map(|tool| (tool, pins.judge(server, tool)));
    let news: Vec<_> = judged.filter(|(_, it)| *it != Standing::Known).collect();
    let compared = news.iter().filter(|(_, it)| *it == Standing::Wait);
    let compared: Vec<String> = compared.map(|(tool, _)| tool.name.clone()).collect();
    let accepted = if compared.is_empty() {
        Vec::new()
    } else {
        store::pins::list_accepted(tx, agent, &compared).await?
    };
    let listed = news.into_iter().filter_map(|(tool, standing)| {
        let before = accepted.iter();
        let before = before.filter(|one| one.server == server.id && one.tool == tool.name);
        let differences: Vec<_> = before
            .map(|one| pin::compare(&one.definition, tool))
            .collect();
        let is_told = differences.iter().any(|found| found.held.is_empty());
        let is_same = |found: &pin::Difference| found.held.is_empty() && found.told.is_empty();
        let last = match differences
            .iter()
            .rfind(|found| found.held.is_empty() == is_told)
        {
            Some(found) if is_told => found.told.clone(),
            Some(found) => found.held.clone(),
            None => Vec::new(),
        };
        let changed: Vec<String> = last.into_iter().map(str::to_owned).collect();
        let known = match standing {
            Standing::Known => return None,
            Standing::Accept => KnownDefinition::Accepted,
            Standing::Record => KnownDefinition::Recorded,
            Standing::Wait if differences.iter().any(is_same) => KnownDefinition::Accepted,
            Standing::Wait if is_told => KnownDefinition::Told(None),
            Standing::Wait => KnownDefinition::Held(changed.clone()),
        };
        Some(ListedDefinition {
            tool: tool.name.clone(),
            hash: tool.hash?.0,
            definition: canonical::definition(tool),
            is_first: standing == Standing::Accept,
            known,
            changed,
        })
    });
    Ok(listed.collect())
}

/// What is accepted without a question, for the trail; nothing of what is the same as before.
fn describe_accepted(news: &[ListedDefinition], is_first: bool) -> Option<String> {
    if is_first && !news.is_empty() {
        return Some(format!("the first list: {} tools", news.len()));
    }
    let named = news.iter().filter(|one| one.is_first);
    let named: Vec<_> = named.map(|one| one.tool.as_str()).collect();
    (!named.is_empty()).then(|| format!("named by the pack: {}", join_names(&named)))
}

/// Names in a line: the first ten.
fn join_names(names: &[&str]) -> String {
    let more = if names.len() > NAMED { ", …" } else { "" };
    names[..names.len().min(NAMED)].join(", ") + more
}

impl Place {
    async fn begin(&self, app: &App) -> Result<Tx> {
        let mut tx = match self.owner {
            Some(tenant) => app.db.tenant(tenant).await?,
            None => app.db.system_then_tenant().await?,
        };
        store::pins::lock(&mut tx, self.owner, &self.agent, &self.server).await?;
        Ok(tx)
    }

    async fn add(&self, tx: &mut Tx, news: &[ListedDefinition]) -> Result<()> {
        match self.owner {
            _ if news.is_empty() => Ok(()),
            Some(_) => store::pins::add(tx, &self.agent, &self.server, news).await,
            None => store::pins::add_of_all(tx, &self.agent, &self.server, news).await,
        }
    }

    /// Returns how many that were.
    async fn forget_unlisted(&self, tx: &mut Tx, pins: &Pins, tools: &[Arc<Tool>]) -> Result<u64> {
        let (agent, server) = (&self.agent, &self.server);
        let listed: Vec<_> = pins.keep(server, tools).into_iter().collect();
        match self.owner {
            Some(_) => store::pins::delete_unlisted(tx, agent, server, &listed).await,
            None => store::pins::delete_unlisted_of_all(tx, agent, server, &listed).await,
        }
    }

    /// Returns when the admins were told last.
    async fn note_change(&self, tx: &mut Tx) -> Result<Option<OffsetDateTime>> {
        match self.owner {
            Some(_) => store::pins::note_change(tx, &self.agent, &self.server).await,
            None => store::pins::note_change_of_all(tx, &self.agent, &self.server).await,
        }
    }

    async fn audit(
        &self,
        app: &App,
        tx: &mut Tx,
        action: &'static str,
        tool: &str,
        detail: &str,
    ) -> Result<()> {
        let Some(tenant) = self.owner else {
            let detail = format!("{} {} {detail}", self.agent, self.server);
            return store::audit::record_for_operator(tx, SYSTEM, action, &detail).await;
        };
        let row = AuditRow {
            agent: self.agent.to_string(),
            server: self.server.to_string(),
            tool: tool.to_owned(),
            detail: Some(detail.to_owned()),
            ..AuditRow::new(tenant, app.clock.now(), SYSTEM, action)
        };
        store::audit::insert(tx, tenant, &[row]).await
    }

    /// The tenants whose admins are told.
    async fn tenants(&self, app: &App) -> Result<Vec<TenantId>> {
        if let Some(tenant) = self.owner {
            return Ok(vec![tenant]);
        }
        let tenants = app.accounts.tenants().await?.into_iter();
        let serving = tenants.filter(|tenant| tenant.serves(&self.agent));
        Ok(serving.map(|tenant| tenant.id).collect())
    }

    /// Tells of everything that waits and was not told: one line in the trail and in the log, and one event for each
    /// tenant's webhooks. Ends the transaction.
    async fn tell(&self, app: &App, mut tx: Tx, pin: Pin) -> Result<()> {
        let (agent, server) = (&self.agent, &self.server);
        let found = match self.owner {
            Some(_) => store::pins::take_untold(&mut tx, agent, server, TOLD).await?,
            None => store::pins::take_untold_of_all(&mut tx, agent, server, TOLD).await?,
        };
        if found.is_empty() {
            return tx.commit().await;
        }
        let tool = match found.as_slice() {
            [one] => one.tool.as_str(),
            _ => "",
        };
        let detail = describe(&found);
        self.audit(app, &mut tx, "tool.changed", tool, &detail)
            .await?;
        let payload = self.event(app, &found, pin);
        for tenant in self.tenants(app).await? {
            if self.owner.is_none() {
                tx.enter(tenant).await?;
            }
            store::webhooks::enqueue(&mut tx, tenant, "tool.changed", &payload).await?;
        }
        tx.commit().await?;
        tracing::warn!(%server, %agent, "tools wait until somebody accepts them; `chatelaine tools diff` shows them: {detail}");
        Ok(())
    }

    /// The event of a line: how many tools there are, and the first ten. Of one tool all that is said of it also stands at
    /// the top.
    fn event(&self, app: &App, found: &[UntoldDefinition], pin: Pin) -> Value {
        let base = app.config.public_url.trim_end_matches('/');
        let tools: Vec<Value> = found[..found.len().min(NAMED)]
            .iter()
            .map(|one| {
                json!({
                    "id": one.id,
                    "tool": one.tool,
                    "hash": one.hash,
                    "new": one.changed.is_empty(),
                    "changed": one.changed,
                    "held": pin == Pin::Hold && !one.is_told,
                    "link": format!("{base}/#/admin/tools/{}", one.id),
                })
            })
            .collect();
        let new = found.iter().filter(|one| one.changed.is_empty()).count();
        let mut event = match tools.as_slice() {
            [one] => one.clone(),
            _ => json!({ "link": format!("{base}/#/admin/tools") }),
        };
        event["agent"] = json!(self.agent.as_str());
        event["server"] = json!(self.server.as_str());
        event["counts"] = json!({ "new": new, "changed": found.len() - new });
        event["tools"] = Value::from(tools);
        event
    }
}

/// `2 new, 1 changed: a, b (description)`, with up to ten names.
fn describe(found: &[UntoldDefinition]) -> String {
    let new = found.iter().filter(|one| one.changed.is_empty()).count();
    let used = found.iter().filter(|one| one.is_told).count();
    let counts = [
        (new, "new"),
        (found.len() - new - used, "changed"),
        (used, "changed in what is not held"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let named = found.iter().take(NAMED + 1).map(|one| {
        if one.changed.is_empty() {
            return one.tool.clone();
        }
        format!("{} ({})", one.tool, one.changed.join(", "))
    });
    let named: Vec<_> = named.collect();
    let named: Vec<_> = named.iter().map(String::as_str).collect();
    format!("{}: {}", counts.join(", "), join_names(&named))
}

/// Tells what was found within a minute after a line about the same server.
pub async fn tell_due(app: &Arc<App>) -> Result<()> {
    let now = app.clock.now();
    let due: Vec<_> = {
        let owed = app.pins.owed();
        let due = owed.iter().filter(|(_, (_, due))| *due <= now);
        due.map(|(place, (pin, _))| (place.clone(), *pin)).collect()
    };
    for (place, pin) in due {
        let tx = place.begin(app).await?;
        place.tell(app, tx, pin).await?;
        app.pins.owed().remove(&place);
    }
    Ok(())
}

/// Why a tool that its server has just listed is not called; `None` when somebody has accepted it, or nobody needs to.
pub async fn find_hold(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    server: &ServerSpec,
    tool: &Tool,
) -> Result<Option<pin::HeldTool>> {
    if server.pin != Pin::Hold {
        return Ok(None);
    }
    let pins = of_agent(app, tenant, agent).await?;
    Ok(pins.find_hold(server, tool))
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

/// Applies what another replica has written of the tools of a server, found by the poll. The tenant is nil for a server
/// that serves all.
pub async fn apply_change(app: &App, tenant: TenantId, agent: &AgentId, server: &ServerId) {
    let owner = Some(tenant).filter(|tenant| !tenant.0.is_nil());
    if let Some(tenant) = owner {
        // Of a personal server it was written with its list.
        let listing = (agent.clone(), server.clone(), CatalogOwner::Shared);
        let (agent, server, owner) = listing;
        super::credentials::forget_catalog(app, tenant, agent, server, owner).await;
    }
    forget(app, owner).await;
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
    /// What is accepted, in hex: SHA-256 of all that the server says of the tool, in one spelling.
    pub hash: String,
    /// The fields that differ from what was accepted; empty for a new tool.
    pub changed: Vec<String>,
    /// It is neither listed nor called until somebody accepts it. Else it is used meanwhile: the agent does not hold
    /// changes, or it differs in nothing that the model reads or that arguments mean.
    pub is_held: bool,
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
    let held = waiting.into_iter();
    let held = held.filter(|one| !one.is_told && holds(&one.server));
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
            is_held: pin == Some(Pin::Hold) && !one.is_told,
            changed: one.changed,
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
    let mut places = BTreeSet::new();
    for one in waiting {
        if !store::pins::accept(&mut tx, one).await? {
            return Err(changed_again());
        }
        places.insert((&one.agent, &one.server));
        rows.push(AuditRow {
            agent: one.agent.to_string(),
            server: one.server.to_string(),
            tool: one.tool.clone(),
            detail: Some(one.hash.clone()),
            ..AuditRow::new(tenant, now, actor, "tool.accepted")
        });
    }
    for (agent, server) in places {
        store::pins::note_change(&mut tx, agent, server).await?;
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
        store::pins::note_change_of_all(&mut tx, &one.agent, &one.server).await?;
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
