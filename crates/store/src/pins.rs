//! Rows of pinned tools: what servers said of them when somebody accepted it, and what waits. A server whose connection
//! serves every tenant has its rows once, in `pinned_tools_of_all`; what a tenant alone has accepted of it is a row of the
//! tenant.
//!
//! Whoever adds a definition of a server holds its lock, so that of two replicas that list it at the same time the second
//! sees what the first has found.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    canonical::{Hash, Hex, parse_hash},
    error::{Error, Result},
    ids::{AgentId, DefinitionId, ServerId, TenantId},
    pin::{KnownDefinition, Pins},
};

/// What becomes of a definition that is not accepted, as the rows say it.
const HELD: &str = "held";
const TOLD: &str = "told";
const RECORDED: &str = "recorded";

/// The most definitions of one tool that a tenant has accepted, that wait, and that wait of a whole server. The oldest go.
const MOST_ACCEPTED: i64 = 16;
const MOST_WAITING: i64 = 4;
const MOST_OF_SERVER: i64 = 2_000;

/// Locks what is known of a server until the end of the transaction. `tenant`: `None` where it serves all.
pub async fn lock(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    agent: &AgentId,
    server: &ServerId,
) -> Result<()> {
    let tenant = tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
    sqlx::query!(
        r#"select pg_advisory_xact_lock(hashtextextended($1, 96)) as "locked!: ()""#,
        format!("pins {tenant} {agent} {server}"),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

struct KnownRow {
    server: ServerId,
    tool: String,
    hash: String,
    is_accepted: bool,
    standing: String,
    changed: Vec<String>,
}

/// What is known, with the definitions that were accepted of tools that are used although they have changed.
async fn to_pins(tx: &mut Tx, agent: &AgentId, rows: Vec<KnownRow>) -> Result<Pins> {
    let told = rows
        .iter()
        .filter(|row| !row.is_accepted && row.standing == TOLD);
    let told: Vec<String> = told.map(|row| row.tool.clone()).collect();
    let accepted = if told.is_empty() {
        Vec::new()
    } else {
        list_accepted(tx, agent, &told).await?
    };
    let mut pins = Pins::default();
    for row in rows {
        let known = match row.standing.as_str() {
            _ if row.is_accepted => KnownDefinition::Accepted,
            TOLD => {
                let mut accepted = accepted.iter().rev();
                let last =
                    accepted.find(|one| (&one.server, &one.tool) == (&row.server, &row.tool));
                KnownDefinition::Told(last.map(|one| one.definition.as_str().into()))
            }
            RECORDED => KnownDefinition::Recorded,
            _ => KnownDefinition::Held(row.changed),
        };
        pins.add(row.server, row.tool, to_hash(&row.hash)?, known);
    }
    Ok(pins)
}

fn to_hash(text: &str) -> Result<Hash> {
    parse_hash(text).ok_or_else(|| Error::Internal(anyhow::anyhow!("a hash of another length")))
}

/// What is known of an agent's tools, as it counts for the tenant.
pub async fn get(tx: &mut Tx, agent: &AgentId) -> Result<Pins> {
    let rows = sqlx::query_as!(
        KnownRow,
        r#"select server as "server!: _", tool as "tool!", hash as "hash!", accepted_at is not null as "is_accepted!",
                  standing as "standing!", changed as "changed!"
           from (
             select server, tool, hash, accepted_at, standing, changed from pinned_tools
             where tenant_id = $1 and agent = $2
             union all
             select server, tool, hash, accepted_at, standing, changed from pinned_tools_of_all where agent = $2
           ) known"#,
        tx.tenant()?.0,
        agent.as_str(),
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    to_pins(tx, agent, rows).await
}

/// What is known of an agent's servers that serve all tenants. Needs the system role.
pub async fn get_of_all(tx: &mut Tx, agent: &AgentId) -> Result<Pins> {
    let rows = sqlx::query_as!(
        KnownRow,
        r#"select server as "server: _", tool, hash, accepted_at is not null as "is_accepted!", standing, changed
           from pinned_tools_of_all where agent = $1"#,
        agent.as_str(),
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    to_pins(tx, agent, rows).await
}

/// What a tool of a server is compared with.
pub struct AcceptedDefinition {
    pub server: ServerId,
    pub tool: String,
    pub definition: String,
}

/// The definitions of tools of these names that were accepted, or recorded because nobody but admins could use the tool.
/// The last one comes last. Without a tenant those of the servers that serve all.
pub async fn list_accepted(
    tx: &mut Tx,
    agent: &AgentId,
    tools: &[String],
) -> Result<Vec<AcceptedDefinition>> {
    let Ok(tenant) = tx.tenant() else {
        let rows = sqlx::query_as!(
            AcceptedDefinition,
            r#"select server as "server: _", tool, definition from pinned_tools_of_all
               where agent = $1 and tool = any($2) and (accepted_at is not null or standing = 'recorded')
               order by accepted_at nulls first, id"#,
            agent.as_str(),
            tools,
        );
        return Ok(rows.fetch_all(tx.conn()).await?);
    };
    let rows = sqlx::query_as!(
        AcceptedDefinition,
        r#"select server as "server!: _", tool as "tool!", definition as "definition!" from (
             select id, server, tool, definition, accepted_at from pinned_tools
             where tenant_id = $1 and agent = $2 and tool = any($3) and (accepted_at is not null or standing = 'recorded')
             union all
             select id, server, tool, definition, accepted_at from pinned_tools_of_all
             where agent = $2 and tool = any($3) and (accepted_at is not null or standing = 'recorded')
           ) accepted order by accepted_at nulls first, id"#,
        tenant.0,
        agent.as_str(),
        tools,
    );
    Ok(rows.fetch_all(tx.conn()).await?)
}

/// A definition that a server lists.
pub struct ListedDefinition {
    pub tool: String,
    pub hash: Hash,
    /// [`domain::canonical::definition`]
    pub definition: String,
    /// Nobody has seen the tool before, and it is accepted as it is.
    pub is_first: bool,
    pub known: KnownDefinition,
    /// The fields that differ from what was accepted.
    pub changed: Vec<String>,
}

/// The columns of definitions.
#[derive(Default)]
struct Columns {
    ids: Vec<Uuid>,
    tools: Vec<String>,
    hashes: Vec<String>,
    definitions: Vec<String>,
    accepted: Vec<Option<OffsetDateTime>>,
    standings: Vec<String>,
    /// The changed fields of each, with commas.
    changed: Vec<String>,
}

impl Columns {
    fn new(listed: &[ListedDefinition], now: OffsetDateTime) -> Self {
        let mut columns = Self::default();
        for one in listed {
            columns.ids.push(Uuid::now_v7());
            columns.tools.push(one.tool.clone());
            columns.hashes.push(Hex(one.hash).to_string());
            columns.definitions.push(one.definition.clone());
            let is_accepted = one.known == KnownDefinition::Accepted;
            columns.accepted.push(is_accepted.then_some(now));
            let standing = match &one.known {
                KnownDefinition::Accepted | KnownDefinition::Held(_) => HELD,
                KnownDefinition::Told(_) => TOLD,
                KnownDefinition::Recorded => RECORDED,
            };
            columns.standings.push(standing.to_owned());
            columns.changed.push(one.changed.join(","));
        }
        columns
    }
}

/// Adds definitions of a tenant's server, or accepts those that wait. Of those that are too many the oldest go.
pub async fn add(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    listed: &[ListedDefinition],
) -> Result<()> {
    let columns = Columns::new(listed, tx.now().await?);
    sqlx::query!(
        "insert into pinned_tools (tenant_id, id, agent, server, tool, hash, definition, accepted_at, standing, changed, changes)
         select $1, l.id, $2, $3, l.tool, l.hash, l.definition, l.accepted_at, l.standing, string_to_array(l.changed, ','),
                1 + coalesce((select max(changes) from pinned_tools p
                              where p.tenant_id = $1 and p.agent = $2 and p.server = $3 and p.tool = l.tool
                                and p.accepted_at is null), 0)
         from unnest($4::uuid[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::text[], $10::text[])
           l (id, tool, hash, definition, accepted_at, standing, changed)
         on conflict (tenant_id, agent, server, tool, hash) do update
         set accepted_at = coalesce(pinned_tools.accepted_at, excluded.accepted_at)",
        tx.tenant()?.0,
        agent.as_str(),
        server.as_str(),
        &columns.ids,
        &columns.tools,
        &columns.hashes,
        &columns.definitions,
        &columns.accepted as &[Option<OffsetDateTime>],
        &columns.standings,
        &columns.changed,
    )
    .execute(tx.conn())
    .await?;
    trim(tx, agent, server).await
}

async fn trim(tx: &mut Tx, agent: &AgentId, server: &ServerId) -> Result<()> {
    sqlx::query!(
        "delete from pinned_tools where tenant_id = $1 and id in (
           select id from (
             select id, accepted_at is null as waits,
                    row_number() over (partition by tool, accepted_at is null order by coalesce(accepted_at, seen_at) desc, id desc) as of_tool,
                    row_number() over (partition by accepted_at is null order by seen_at desc, id desc) as of_server
             from pinned_tools where tenant_id = $1 and agent = $2 and server = $3
           ) numbered
           where case when waits then of_tool > $4 or of_server > $5 else of_tool > $6 end
         )",
        tx.tenant()?.0,
        agent.as_str(),
        server.as_str(),
        MOST_WAITING,
        MOST_OF_SERVER,
        MOST_ACCEPTED,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Like [`add`], of a server that serves all tenants. Needs the system role.
pub async fn add_of_all(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    listed: &[ListedDefinition],
) -> Result<()> {
    let columns = Columns::new(listed, tx.now().await?);
    sqlx::query!(
        "insert into pinned_tools_of_all (id, agent, server, tool, hash, definition, accepted_at, standing, changed, changes)
         select l.id, $1, $2, l.tool, l.hash, l.definition, l.accepted_at, l.standing, string_to_array(l.changed, ','),
                1 + coalesce((select max(changes) from pinned_tools_of_all p
                              where p.agent = $1 and p.server = $2 and p.tool = l.tool and p.accepted_at is null), 0)
         from unnest($3::uuid[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::text[], $9::text[])
           l (id, tool, hash, definition, accepted_at, standing, changed)
         on conflict (agent, server, tool, hash) do update
         set accepted_at = coalesce(pinned_tools_of_all.accepted_at, excluded.accepted_at)",
        agent.as_str(),
        server.as_str(),
        &columns.ids,
        &columns.tools,
        &columns.hashes,
        &columns.definitions,
        &columns.accepted as &[Option<OffsetDateTime>],
        &columns.standings,
        &columns.changed,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Notes that what is known of a tenant's server has changed, for the other replicas. Returns when somebody was told last.
pub async fn note_change(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
) -> Result<Option<OffsetDateTime>> {
    let told_at = sqlx::query_scalar!(
        "insert into pinned_servers (tenant_id, id, agent, server, changed_at)
         values ($1, $2, $3, $4, statement_timestamp())
         on conflict (tenant_id, agent, server) do update set changed_at = excluded.changed_at
         returning told_at",
        tx.tenant()?.0,
        Uuid::now_v7(),
        agent.as_str(),
        server.as_str(),
    );
    Ok(told_at.fetch_one(tx.conn()).await?)
}

/// The same of a server that serves all tenants. Needs the system role.
pub async fn note_change_of_all(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
) -> Result<Option<OffsetDateTime>> {
    let told_at = sqlx::query_scalar!(
        "insert into pinned_servers_of_all (id, agent, server, changed_at)
         values ($1, $2, $3, statement_timestamp())
         on conflict (agent, server) do update set changed_at = excluded.changed_at
         returning told_at",
        Uuid::now_v7(),
        agent.as_str(),
        server.as_str(),
    );
    Ok(told_at.fetch_one(tx.conn()).await?)
}

/// A definition that waits and of which nobody was told.
#[derive(Debug)]
pub struct UntoldDefinition {
    pub id: DefinitionId,
    pub tool: String,
    /// In hex.
    pub hash: String,
    /// It is used meanwhile.
    pub is_told: bool,
    /// The fields that differ from what was accepted; none of a new tool.
    pub changed: Vec<String>,
}

/// Takes what waits of a tenant's server and was not told, with no more than so many definitions of one tool since one was
/// accepted.
pub async fn take_untold(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    most_changes: i32,
) -> Result<Vec<UntoldDefinition>> {
    let rows = sqlx::query_as!(
        UntoldDefinition,
        r#"select id as "id: _", tool, hash, standing = 'told' as "is_told!", changed from pinned_tools
           where tenant_id = $1 and agent = $2 and server = $3 and accepted_at is null and standing <> 'recorded'
             and changes <= $4
             and seen_at > coalesce((select told_at from pinned_servers s
                                     where s.tenant_id = $1 and s.agent = $2 and s.server = $3), '-infinity')
           order by id"#,
        tx.tenant()?.0,
        agent.as_str(),
        server.as_str(),
        most_changes,
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    let now = tx.now().await?;
    sqlx::query!(
        "update pinned_servers set told_at = $4 where tenant_id = $1 and agent = $2 and server = $3",
        tx.tenant()?.0,
        agent.as_str(),
        server.as_str(),
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(rows)
}

/// The same of a server that serves all tenants. Needs the system role.
pub async fn take_untold_of_all(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    most_changes: i32,
) -> Result<Vec<UntoldDefinition>> {
    let rows = sqlx::query_as!(
        UntoldDefinition,
        r#"select id as "id: _", tool, hash, standing = 'told' as "is_told!", changed from pinned_tools_of_all
           where agent = $1 and server = $2 and accepted_at is null and standing <> 'recorded' and changes <= $3
             and seen_at > coalesce((select told_at from pinned_servers_of_all s where s.agent = $1 and s.server = $2), '-infinity')
           order by id"#,
        agent.as_str(),
        server.as_str(),
        most_changes,
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    let now = tx.now().await?;
    sqlx::query!(
        "update pinned_servers_of_all set told_at = $3 where agent = $1 and server = $2",
        agent.as_str(),
        server.as_str(),
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(rows)
}

/// The servers that serve all tenants and of whose tools what is known has changed within the last ten seconds, with the
/// time of the change. Needs the system role.
pub async fn list_recent_of_all(tx: &mut Tx) -> Result<Vec<(AgentId, ServerId, OffsetDateTime)>> {
    let rows = sqlx::query!(
        r#"select agent as "agent: AgentId", server as "server: ServerId", changed_at from pinned_servers_of_all
           where changed_at > statement_timestamp() - interval '10 seconds'"#,
    );
    let rows = rows.fetch_all(tx.conn()).await?.into_iter();
    Ok(rows
        .map(|row| (row.agent, row.server, row.changed_at))
        .collect())
}

/// Forgets what waits of a tenant's server and is not among what it lists now. Returns how many that were.
pub async fn delete_unlisted(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    listed: &[Hash],
) -> Result<u64> {
    let listed: Vec<_> = listed.iter().map(|hash| Hex(*hash).to_string()).collect();
    let done = sqlx::query!(
        "delete from pinned_tools
         where tenant_id = $1 and agent = $2 and server = $3 and accepted_at is null and hash <> all($4)",
        tx.tenant()?.0,
        agent.as_str(),
        server.as_str(),
        &listed,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected())
}

/// The same of a server that serves all tenants. Needs the system role.
pub async fn delete_unlisted_of_all(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    listed: &[Hash],
) -> Result<u64> {
    let listed: Vec<_> = listed.iter().map(|hash| Hex(*hash).to_string()).collect();
    let done = sqlx::query!(
        "delete from pinned_tools_of_all
         where agent = $1 and server = $2 and accepted_at is null and hash <> all($3)",
        agent.as_str(),
        server.as_str(),
        &listed,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected())
}

/// A definition that waits.
#[derive(Clone, Debug)]
pub struct WaitingDefinition {
    pub id: DefinitionId,
    pub agent: AgentId,
    pub server: ServerId,
    pub tool: String,
    /// In hex.
    pub hash: String,
    /// As the server lists it.
    pub definition: String,
    /// The one that was accepted last; `None` for a new tool.
    pub accepted: Option<String>,
    /// It is used meanwhile, because it differs in nothing that is held.
    pub is_told: bool,
    /// The fields that differ from what was accepted; none of a new tool.
    pub changed: Vec<String>,
    pub seen_at: OffsetDateTime,
    /// How many definitions of the tool have waited since one was accepted.
    pub changes: i32,
    /// The server serves all tenants.
    pub of_all: bool,
}

/// Which of them are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitingSelection<'a> {
    /// Only of these agents; `None`: of all.
    pub agents: Option<&'a [String]>,
    pub server: Option<&'a str>,
    pub tool: Option<&'a str>,
    /// Only those with one of these ids.
    pub ids: Option<&'a [DefinitionId]>,
    pub before: Option<DefinitionId>,
    pub limit: i64,
}

/// What waits for the tenant, the newest first: of its own servers, and of those that serve all what it has not accepted
/// for itself.
pub async fn list_waiting(
    tx: &mut Tx,
    wanted: WaitingSelection<'_>,
) -> Result<Vec<WaitingDefinition>> {
    let rows = sqlx::query_as!(
        WaitingDefinition,
        r#"select id as "id!: _", agent as "agent!: _", server as "server!: _", tool as "tool!", hash as "hash!",
                  definition as "definition!", seen_at as "seen_at!", changes as "changes!", of_all as "of_all!",
                  standing = 'told' as "is_told!", changed as "changed!",
                  (select definition from (
                     select definition, accepted_at from pinned_tools p
                     where p.tenant_id = $1 and p.agent = w.agent and p.server = w.server and p.tool = w.tool
                       and (p.accepted_at is not null or p.standing = 'recorded')
                     union all
                     select definition, accepted_at from pinned_tools_of_all p
                     where p.agent = w.agent and p.server = w.server and p.tool = w.tool
                       and (p.accepted_at is not null or p.standing = 'recorded')
                   ) a order by accepted_at desc nulls last limit 1) as accepted
           from (
             select id, agent, server, tool, hash, definition, seen_at, changes, standing, changed, false as of_all
             from pinned_tools where tenant_id = $1 and accepted_at is null and standing <> 'recorded'
             union all
             select id, agent, server, tool, hash, definition, seen_at, changes, standing, changed, true
             from pinned_tools_of_all o
             where accepted_at is null and standing <> 'recorded' and not exists (
               select from pinned_tools p
               where p.tenant_id = $1 and p.agent = o.agent and p.server = o.server and p.tool = o.tool
                 and p.hash = o.hash and p.accepted_at is not null
             )
           ) w
           where ($2::text[] is null or agent = any($2)) and ($3::text is null or server = $3)
             and ($4::text is null or tool = $4) and ($5::uuid[] is null or id = any($5))
             and ($6::uuid is null or id < $6)
           order by id desc limit $7"#,
        tx.tenant()?.0,
        wanted.agents,
        wanted.server,
        wanted.tool,
        wanted.ids as Option<&[DefinitionId]>,
        wanted.before.map(|before| before.0),
        wanted.limit,
    );
    Ok(rows.fetch_all(tx.conn()).await?)
}

/// What waits of the servers that serve all tenants, the newest first. Needs the system role.
pub async fn list_waiting_of_all(
    tx: &mut Tx,
    wanted: WaitingSelection<'_>,
) -> Result<Vec<WaitingDefinition>> {
    let rows = sqlx::query_as!(
        WaitingDefinition,
        r#"select id as "id: _", agent as "agent: _", server as "server: _", tool, hash, definition, seen_at,
                  changes, true as "of_all!", standing = 'told' as "is_told!", changed,
                  (select definition from pinned_tools_of_all p
                   where p.agent = w.agent and p.server = w.server and p.tool = w.tool
                     and (p.accepted_at is not null or p.standing = 'recorded')
                   order by accepted_at desc nulls last limit 1) as accepted
           from pinned_tools_of_all w
           where accepted_at is null and standing <> 'recorded'
             and ($1::text[] is null or agent = any($1)) and ($2::text is null or server = $2)
             and ($3::text is null or tool = $3) and ($4::uuid[] is null or id = any($4))
             and ($5::uuid is null or id < $5)
           order by id desc limit $6"#,
        wanted.agents,
        wanted.server,
        wanted.tool,
        wanted.ids as Option<&[DefinitionId]>,
        wanted.before.map(|before| before.0),
        wanted.limit,
    );
    Ok(rows.fetch_all(tx.conn()).await?)
}

/// How many wait for the tenant.
pub async fn count_waiting(tx: &mut Tx, agents: Option<&[String]>) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from (
             select agent from pinned_tools where tenant_id = $1 and accepted_at is null and standing <> 'recorded'
             union all
             select agent from pinned_tools_of_all o
             where accepted_at is null and standing <> 'recorded' and not exists (
               select from pinned_tools p
               where p.tenant_id = $1 and p.agent = o.agent and p.server = o.server and p.tool = o.tool
                 and p.hash = o.hash and p.accepted_at is not null
             )
           ) w where $2::text[] is null or agent = any($2)"#,
        tx.tenant()?.0,
        agents,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Accepts a definition for the tenant, also one of a server that serves all: it counts for this tenant then. `false` when
/// it does not wait any more.
pub async fn accept(tx: &mut Tx, waiting: &WaitingDefinition) -> Result<bool> {
    let accepted = sqlx::query_scalar!(
        r#"with accepted as (
           insert into pinned_tools (tenant_id, id, agent, server, tool, hash, definition, accepted_at)
           select $1, $2, agent, server, tool, hash, definition, now() from (
             select agent, server, tool, hash, definition from pinned_tools
             where tenant_id = $1 and id = $3 and accepted_at is null
             union all
             select agent, server, tool, hash, definition from pinned_tools_of_all
             where id = $3 and accepted_at is null
           ) waiting
           on conflict (tenant_id, agent, server, tool, hash) do update
           set accepted_at = excluded.accepted_at where pinned_tools.accepted_at is null
           returning 1
         )
         select count(*) as "count!" from accepted"#,
        tx.tenant()?.0,
        Uuid::now_v7(),
        waiting.id.0,
    );
    Ok(accepted.fetch_one(tx.conn()).await? == 1)
}

/// Accepts a definition for all tenants. `false` when it does not wait any more. Needs the system role.
pub async fn accept_of_all(tx: &mut Tx, waiting: &WaitingDefinition) -> Result<bool> {
    let done = sqlx::query!(
        "update pinned_tools_of_all set accepted_at = now() where id = $1 and accepted_at is null",
        waiting.id.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}
