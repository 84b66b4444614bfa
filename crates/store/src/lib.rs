//! Reads and writes the rows in Postgres. All SQL of the program is here, and no state of it lives anywhere else.
//!
//! Only [`Db`] has the pool. Work happens in a [`Tx`], which names its tenant: row-level security then shows it the
//! rows of that tenant and no others, even if a query forgets its condition. Rows that must be found before the
//! tenant is known (the owner of a key, work to claim) are read in [`Db::system`], a role that sees a few columns of
//! a few tables and no content.
//!
//! Most tables have a file of their own. Row structs are private to it.

pub mod access_tokens;
pub mod api_keys;
pub mod approvals;
pub mod attachments;
pub mod audit;
pub mod authorizations;
pub mod branches;
pub mod call_limits;
pub mod catalogs;
pub mod client_chats;
pub mod conversations;
pub mod credential_judges;
pub mod credentials;
pub mod data_identity;
pub mod deliveries;
pub mod diagnosis;
pub mod elicitations;
pub mod feedback;
pub mod flows;
pub mod hints;
pub mod issuers;
pub mod jobs;
pub mod keks;
pub mod kept_calls;
mod limits;
mod looks;
pub mod messages;
pub mod migrations;
pub mod oauth_clients;
pub mod oauth_sign_ins;
pub mod pins;
mod pool;
pub mod registry;
pub mod replicas;
pub mod request_answers;
pub mod request_keys;
pub mod resources;
pub mod responses;
pub mod retention;
pub mod roles;
pub mod runs;
pub mod sealed;
pub mod secrets;
pub mod server_settings;
pub mod shards;
pub mod sign_outs;
pub mod statistics;
pub mod tenant_keys;
pub mod tenants;
pub mod tickets;
pub mod trees;
pub mod usage;
pub mod user_data;
pub mod user_sources;
pub mod users;
pub mod vault;
pub mod webhooks;
pub mod words;

use std::{
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection,
    postgres::PgConnectOptions,
};
use tokio::{sync::watch, time::Instant};
use tracing::{Span, field::Empty};

use self::{
    limits::{Health, Limited, in_time, is_closed},
    migrations::Place,
    pool::{InUse, Pool},
    roles::Roles,
};
use domain::{
    config::DirectAddress,
    error::{Error, Result, database::is_away},
    ids::TenantId,
    replica::Start,
    secret::Secret,
    trace_context::TRACES,
};

/// The longest time of a statement, measured by Postgres.
const STATEMENT_MS: u32 = 10_000;
/// The longest time that a statement waits for a lock.
const LOCK_MS: u32 = 5_000;

/// How long readiness waits for an answer. A probe waits a second or a little more, and reads the reason only before.
const PROMPT: Duration = Duration::from_millis(800);

/// The roles that transactions take on.
#[derive(Clone, Copy)]
enum Role {
    /// Sees the rows of one tenant.
    Tenant,
    /// Finds work and callers across tenants.
    System,
    /// Both, one after the other ([`Tx::enter`]).
    SystemThenTenant,
    /// Deletes old lines of a tenant's trail.
    Retention,
    /// Sees what answers a search.
    Search,
}

/// The database. Cheap to clone.
#[derive(Clone)]
pub struct Db {
    pool: Pool,
    /// How to open a connection that stays one session of Postgres; `None` when only the pooler can be reached.
    direct: Option<Arc<PgConnectOptions>>,
    /// The number of transactions of tenants that this process has begun.
    begun: Arc<AtomicU64>,
    looks: Arc<looks::Waiting>,
    health: Arc<Health>,
    layout: Layout,
}

/// What a transaction must know of its database.
#[derive(Clone)]
struct Layout {
    roles: Roles,
    /// Whether Citus spreads the tables over nodes.
    is_sharded: bool,
}

/// A transaction of one tenant, or of the program itself if it comes from [`Db::system`]. If it is dropped without
/// [`Tx::commit`], it is rolled back. Never hold one across a network call.
pub struct Tx {
    connection: InUse,
    tenant: Option<TenantId>,
    health: Arc<Health>,
    span: TxSpan,
    role: Role,
    layout: Layout,
}

/// The span of a transaction: from its begin, with the wait for a connection, to its end.
struct TxSpan {
    span: Span,
    began: Instant,
    statements: i64,
}

impl Db {
    /// Opens the database and brings its schema up to date. Several replicas may do so at once. `connections` is the
    /// largest number of connections, at least two: one of them is for [`Db::listen`].
    pub async fn connect(url: &Secret, connections: u32) -> anyhow::Result<Self> {
        let (direct, start) = (DirectAddress::Same, watch::Sender::new(Start::Connecting));
        Self::connect_within(Duration::ZERO, url, &direct, connections, &start).await
    }

    /// Like [`Db::connect`], but waits this long for a database that cannot be reached yet, and for locks that the
    /// migrations need. `url` may be the address of a pooler in transaction mode: nothing is sent there that outlives a
    /// transaction. `start` is told what is being done.
    pub async fn connect_within(
        wait: Duration,
        url: &Secret,
        direct: &DirectAddress,
        connections: u32,
        start: &watch::Sender<Start>,
    ) -> anyhow::Result<Self> {
        let addresses = Addresses::parse(url, direct)?;
        let layout = addresses.prepare_within(wait, false, start).await?;
        Self::open(addresses, connections, layout)
    }

    /// Brings the schema up to date. Waits like [`Db::connect_within`]. Through a pooler without a direct address the
    /// caller sees to it that no other process does the same.
    pub async fn migrate(
        wait: Duration,
        url: &Secret,
        direct: &DirectAddress,
    ) -> anyhow::Result<()> {
        let start = watch::Sender::new(Start::Connecting);
        let addresses = Addresses::parse(url, direct)?;
        addresses.prepare_within(wait, true, &start).await?;
        Ok(())
    }

    /// The migrations that [`Db::migrate`] would apply. Changes nothing.
    pub async fn plan_migrations(
        url: &Secret,
    ) -> anyhow::Result<Vec<migrations::PlannedMigration>> {
        let mut connection = pool::connect(&options(url)?, Duration::ZERO, is_away).await?;
        let planned = migrations::plan(&mut connection).await?;
        connection.close().await?;
        Ok(planned)
    }

    /// Opens a database that may belong to another version of the program, and leaves its schema as it is.
    pub async fn connect_to_read(url: &Secret) -> anyhow::Result<Self> {
        let addresses = Addresses::parse(url, &DirectAddress::Off)?;
        let mut connection = pool::connect(&addresses.pooled, Duration::ZERO, is_away).await?;
        let layout = Layout::read(&mut connection).await?;
        connection.close().await?;
        Self::open(addresses, 2, layout)
    }

    /// Takes from the roles that databases shared before what they may do in this one ([`roles::end_shared`]).
    pub async fn end_shared_roles(url: &Secret) -> anyhow::Result<()> {
        let mut connection = pool::connect(&options(url)?, Duration::ZERO, is_away).await?;
        roles::end_shared(&mut connection).await?;
        Ok(connection.close().await?)
    }

    fn open(addresses: Addresses, connections: u32, layout: Layout) -> anyhow::Result<Self> {
        let health = Arc::new(Health::default());
        Ok(Self {
            pool: Pool::new(addresses.pooled, connections.max(2) - 1, health.clone())?,
            direct: addresses.direct.map(Arc::new),
            begun: Arc::default(),
            looks: Arc::default(),
            health,
            layout,
        })
    }

    /// A transaction of one tenant, opened in one round trip, or two where the database is sharded.
    #[track_caller]
    pub fn tenant(&self, tenant: TenantId) -> BoxFuture<'_, Result<Tx>> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.begin(Role::Tenant, Some(tenant), "")
    }

    /// Like [`Db::tenant`], but the commit does not wait for the disk. For rows that may be lost: a crash of Postgres
    /// loses at most the commits of the last second. A crash of the program loses none.
    #[track_caller]
    pub fn tenant_unflushed(&self, tenant: TenantId) -> BoxFuture<'_, Result<Tx>> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.begin(
            Role::Tenant,
            Some(tenant),
            "set local synchronous_commit = off; ",
        )
    }

    /// Transactions of tenants that this process has begun.
    pub fn transactions(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// A transaction of the program itself, for rows whose tenant is not known yet.
    #[track_caller]
    pub fn system(&self) -> BoxFuture<'_, Result<Tx>> {
        self.begin(Role::System, None, "")
    }

    /// Like [`Db::system`], for what goes on with [`Tx::enter`].
    #[track_caller]
    pub fn system_then_tenant(&self) -> BoxFuture<'_, Result<Tx>> {
        self.begin(Role::SystemThenTenant, None, "")
    }

    /// A transaction that deletes old lines of a tenant's audit trail and writes the line that says so, and nothing else.
    #[track_caller]
    pub fn retention(&self, tenant: TenantId) -> BoxFuture<'_, Result<Tx>> {
        self.begin(Role::Retention, Some(tenant), "")
    }

    /// A transaction that looks words of a tenant up, and nothing else.
    #[track_caller]
    fn search(&self, tenant: TenantId) -> BoxFuture<'_, Result<Tx>> {
        self.begin(Role::Search, Some(tenant), "")
    }

    /// Begins a transaction. If the connection turns out to be closed, another one is used: nothing has been done in
    /// the transaction yet, and the pool checks the other connection first.
    #[track_caller]
    fn begin(&self, role: Role, tenant: Option<TenantId>, more: &str) -> BoxFuture<'_, Result<Tx>> {
        let caller = Location::caller();
        let sql = self.begin_sql(role, tenant, more);
        // Boxed, because otherwise each future that uses the database would contain it and be too large for a stack.
        Box::pin(async move {
            let span = TxSpan::new(caller);
            let mut connection = in_time(self.pool.get()).await?;
            if let Err(error) = self.execute(&mut connection, &sql, &span.span).await {
                if !is_closed(&error) {
                    return Err(error.into());
                }
                // The place of the closed connection must be free before the next one is taken.
                connection.discard();
                connection = in_time(self.pool.get()).await?;
                self.execute(&mut connection, &sql, &span.span).await?;
            }
            let mut tx = Tx {
                connection,
                tenant: None,
                health: self.health.clone(),
                span,
                role,
                layout: self.layout.clone(),
            };
            match tenant {
                Some(tenant) if self.layout.is_sharded => tx.name_tenant("", tenant).await?,
                _ => tx.tenant = tenant,
            }
            Ok(tx)
        })
    }

    /// The SQL that begins a transaction. It is safe: only a UUID and the name of a role of ours are formatted into it.
    fn begin_sql(&self, role: Role, tenant: Option<TenantId>, more: &str) -> String {
        let (limits, name) = (limits(), role.name(&self.layout));
        let begin = format!("begin; {limits}; {more}set local role {name}");
        // The policy of this role reads the days of the tenant.
        let nested = match role {
            Role::Retention => "set local citus.allow_nested_distributed_execution = on; ",
            _ => "",
        };
        match tenant {
            // At each node Citus logs in as the role, and is to repeat nothing there but the name of the tenant.
            _ if self.layout.is_sharded => {
                format!("{begin}; {nested}set local citus.propagate_set_commands = 'local'")
            }
            Some(tenant) => format!("{begin}; set local app.tenant_id = '{tenant}'"),
            None => begin,
        }
    }

    async fn execute(&self, connection: &mut InUse, sql: &str, span: &Span) -> sqlx::Result<()> {
        let limited = Limited::new(connection, &self.health, span);
        limited.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        Ok(())
    }

    /// Whether the database answers and accepts writes, said within a second. The readiness of the replica depends on it.
    pub async fn is_writable(&self) -> bool {
        let asked = tokio::time::timeout(PROMPT, async {
            let mut connection = self.pool.get().await?;
            let is_writable = pool::is_writable(&mut connection).await?;
            connection.give_back();
            Ok::<_, sqlx::Error>(is_writable)
        });
        match asked.await {
            Ok(answered) => self.health.set_answers(answered.unwrap_or(false)),
            // Every connection is at work, so what was known last holds.
            Err(_) if self.load().is_full => {}
            Err(_) => self.health.set_answers(false),
        }
        self.health.answers() && !self.health.is_unwritable()
    }

    /// Closes all connections, after those in use are given back.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl Role {
    /// The role of Postgres. Where tables are sharded, a transaction keeps the one with which it begins, since Citus has a
    /// connection of its own for each role to each node, and does not let one change what the other has read.
    fn name(self, layout: &Layout) -> String {
        layout.roles.name(match self {
            Self::Tenant => roles::TENANT,
            Self::SystemThenTenant if layout.is_sharded => shards::OPERATOR,
            Self::System | Self::SystemThenTenant => roles::SYSTEM,
            Self::Retention => roles::RETENTION,
            Self::Search => roles::SEARCH,
        })
    }
}

impl Layout {
    async fn read(connection: &mut PgConnection) -> anyhow::Result<Self> {
        Ok(Self {
            roles: roles::read(connection).await?.unwrap_or_default(),
            is_sharded: shards::is_sharded(connection).await?,
        })
    }
}

impl Tx {
    /// The connection, for the queries of this crate.
    fn conn(&mut self) -> Limited<'_> {
        self.span.statements += 1;
        Limited::new(&mut self.connection, &self.health, &self.span.span)
    }

    /// The tenant of this transaction. Every query on a tenant's table names it, so that row-level security is only the
    /// second protection. `Err` in a transaction of the program itself.
    fn tenant(&self) -> Result<TenantId> {
        self.tenant.ok_or_else(|| {
            Error::Internal(anyhow::anyhow!(
                "a tenant's rows are out of reach of a transaction without a tenant"
            ))
        })
    }

    /// Turns a transaction of [`Db::system_then_tenant`] into one of this tenant, until its end. With it, a change of a
    /// tenant and the tenant's audit line are one transaction.
    pub async fn enter(&mut self, tenant: TenantId) -> Result<()> {
        debug_assert!(matches!(self.role, Role::SystemThenTenant));
        let take_role = if self.layout.is_sharded {
            String::new()
        } else {
            format!("set local role {}; ", Role::Tenant.name(&self.layout))
        };
        self.name_tenant(&take_role, tenant).await
    }

    /// Says whose rows the transaction sees. Where tables are sharded, nothing comes before: Citus repeats at each node the
    /// whole text in which it finds a `set local`.
    async fn name_tenant(&mut self, before: &str, tenant: TenantId) -> Result<()> {
        self.execute(&format!("{before}set local app.tenant_id = '{tenant}'"))
            .await?;
        self.tenant = Some(tenant);
        Ok(())
    }

    /// Executes SQL into which nothing is formatted but what the program or Postgres has quoted.
    async fn execute(&mut self, sql: &str) -> Result<()> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        self.conn().execute(sql).await?;
        Ok(())
    }

    /// The time by the database's clock, which is the same for all replicas.
    pub async fn now(&mut self) -> Result<time::OffsetDateTime> {
        let now = sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#);
        Ok(now.fetch_one(self.conn()).await?)
    }

    /// Returns `Ok` when the commit is kept. The limit of statements does not hold for it: with synchronous replication
    /// a commit waits for the standby, and one that is cut off while it waits succeeds without the standby, so that a
    /// failover would lose it. Whoever waits for too long hears that the database is away.
    pub async fn commit(mut self) -> Result<()> {
        // Citus would repeat this text at each node, and so commit there before here.
        let here = if self.layout.is_sharded {
            "set local citus.propagate_set_commands = 'none'; "
        } else {
            ""
        };
        self.execute(&format!("{here}set local statement_timeout = 0; commit"))
            .await?;
        self.connection.give_back();
        Ok(())
    }
}

impl TxSpan {
    /// It is named by the place in the sources that begins the transaction. Statements have no names, and their values
    /// are nobody else's business.
    fn new(caller: &Location<'_>) -> Self {
        let span = tracing::error_span!(
            target: TRACES,
            "transaction",
            file = caller.file(),
            line = i64::from(caller.line()),
            statements = Empty,
            sqlstate = Empty,
            code = Empty,
        );
        Self {
            span,
            began: Instant::now(),
            statements: 0,
        }
    }
}

impl Drop for TxSpan {
    fn drop(&mut self) {
        self.span.record("statements", self.statements);
        metrics::histogram!("chatelaine_transaction_seconds")
            .record(self.began.elapsed().as_secs_f64());
    }
}

/// How to connect to the database.
struct Addresses {
    /// Perhaps a pooler's.
    pooled: PgConnectOptions,
    /// For what needs a session of Postgres; `None` when only the pooler can be reached.
    direct: Option<PgConnectOptions>,
}

impl Addresses {
    fn parse(url: &Secret, direct: &DirectAddress) -> anyhow::Result<Self> {
        let pooled = options(url)?;
        let direct = match direct {
            DirectAddress::Same => Some(pooled.clone()),
            DirectAddress::At(url) => Some(options(url)?),
            DirectAddress::Off => None,
        };
        Ok(Self { pooled, direct })
    }

    /// Prepares the database, also if it goes away in the middle and comes back within this time.
    async fn prepare_within(
        &self,
        wait: Duration,
        is_alone: bool,
        start: &watch::Sender<Start>,
    ) -> anyhow::Result<Layout> {
        let end = Instant::now() + wait;
        loop {
            // Boxed, because otherwise the future of each caller would contain it.
            match Box::pin(self.prepare(is_alone, end, start)).await {
                Err(error) if was_away(&error) && Instant::now() < end => {
                    start.send_replace(Start::Connecting);
                    tokio::time::sleep(pool::PAUSE).await;
                }
                prepared => return prepared,
            }
        }
    }

    /// Brings the schema up to date, and sees to it that both addresses lead to it.
    async fn prepare(
        &self,
        is_alone: bool,
        end: Instant,
        start: &watch::Sender<Start>,
    ) -> anyhow::Result<Layout> {
        let wait = || end.saturating_duration_since(Instant::now());
        // Otherwise a migration that takes a second would be logged as a warning with its whole text.
        let migrating = self.direct.as_ref().unwrap_or(&self.pooled);
        let migrating = migrating.clone().disable_statement_logging();
        let place = Place {
            options: &migrating,
            has_session: self.direct.is_some(),
            is_alone,
        };
        let mut connection = pool::connect(&migrating, wait(), is_away).await?;
        let all = migrations::embedded();
        migrations::apply(&all, &mut connection, &place, end, start).await?;
        connection.close().await?;
        let mut connection = pool::connect(&self.pooled, wait(), is_away).await?;
        migrations::require_applied(&mut connection).await?;
        let layout = Layout::read(&mut connection).await?;
        connection.close().await?;
        Ok(layout)
    }
}

fn was_away(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    causes.any(is_away)
}

/// How to connect to this address. A pooler refuses a parameter of the start that it does not know, and floats are
/// exact without the one that is left out since Postgres 12.
fn options(url: &Secret) -> anyhow::Result<PgConnectOptions> {
    let options: PgConnectOptions = url.expose().parse()?;
    Ok(options
        .application_name("chatelaine")
        .extra_float_digits(None))
}

/// The SQL that limits the time of each statement of a transaction. It uses `set local`, which also works behind a
/// pooler.
fn limits() -> String {
    format!("set local statement_timeout = {STATEMENT_MS}; set local lock_timeout = {LOCK_MS}")
}
