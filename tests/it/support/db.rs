//! A database per test, on one Postgres per test process.
//!
//! The server is a throwaway of [`PrivatePostgres`]: it starts with the first test that wants it, ends with the
//! process, and leaves nothing. `CHATELAINE_TEST_DATABASE_URL` names another one to use instead (its role needs
//! `createdb` and `createrole`; `DATABASE_URL` is not it, since that one serves the compile-time checks). The
//! schema is applied once, to a template, and each test gets a copy of that.
//!
//! `CHATELAINE_TEST_CITUS` names the nodes of a Citus cluster, by the addresses of a superuser and with commas between,
//! the coordinator first (tests/citus/run.sh). The template is distributed then, and is copied at each node.
//!
//! `cargo test` runs all tests in one process. `cargo nextest` runs a process per test, each of which then
//! starts its own server (two seconds); name one with the variable to be faster.

use std::sync::mpsc;

use chatelaine::cli::private_postgres::PrivatePostgres;
use domain::{config::Environment, ids::TenantId, replica::Start, secret::Secret};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, migrate::Migrator, postgres::PgConnectOptions,
};
use store::{
    Db,
    roles::{self, Roles},
};
use tokio::sync::{OnceCell, oneshot, watch};
use url::Url;
use uuid::Uuid;

static MIGRATIONS: Migrator = sqlx::migrate!();
static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
/// Connections that a test's [`Db`] may open. Each new one reads the catalogs and plans its queries anew, but with four,
/// tests with dozens of runs at once wait for each other for too long on a busy machine.
pub const CONNECTIONS: u32 = 5;

/// For what a start does, where nobody asks.
pub fn start() -> watch::Sender<Start> {
    watch::Sender::new(Start::Connecting)
}

struct Cluster {
    url: Url,
    /// Where databases are made and dropped: `url`, or the nodes of Citus as their superuser.
    nodes: Vec<Url>,
    /// The database that each test gets a copy of.
    template: String,
    /// How a database is copied.
    options: String,
    orders: mpsc::Sender<Order>,
    server: Option<PrivatePostgres>,
}

/// The role of the service at the nodes of Citus.
const OWNER: &str = "chatelaine";

/// A statement for the server, and who waits for its result.
struct Order {
    sql: String,
    /// A statement that is executed with the next order that has such a one.
    later: Option<String>,
    done: oneshot::Sender<Result<(), sqlx::Error>>,
}

/// A database of its own, with the schema and no rows, dropped with this value.
pub struct TestDb {
    pub db: Db,
    pub url: Secret,
    /// Absent where another value keeps the database.
    name: Option<String>,
}

impl TestDb {
    pub async fn new() -> Self {
        let cluster = CLUSTER.get_or_init(Cluster::start).await;
        let name = cluster.copy(&cluster.template).await;
        let url = Secret::new(cluster.database(&name));
        let db = Db::connect(&url, CONNECTIONS).await.unwrap();
        Self {
            db,
            url,
            name: Some(name),
        }
    }

    /// The database of a world that is lent to a test. `closed` is a [`Db`] that was closed: the one at work belongs to
    /// another runtime than the test's.
    pub fn lent(url: Secret, closed: Db) -> Self {
        Self {
            db: closed,
            url,
            name: None,
        }
    }

    /// A database with the same rows, as a backup of this moment. Nobody may be connected to this one.
    pub async fn copy(&self) -> Self {
        let cluster = CLUSTER.get_or_init(Cluster::start).await;
        let own = self.name.as_deref().expect("its name is known");
        if cluster.is_citus() {
            cluster.shut(own).await;
        }
        let name = cluster.copy(own).await;
        if cluster.is_citus() {
            let open = format!("alter database {own} allow_connections true");
            cluster.order(open).await.unwrap().unwrap();
        }
        let url = Secret::new(cluster.database(&name));
        let db = self.db.clone();
        let name = Some(name);
        Self { db, url, name }
    }

    /// A new tenant.
    pub async fn tenant(&self, name: &str) -> TenantId {
        let tenant = TenantId::new();
        sqlx::query("insert into tenants (id, name) values ($1, $2)")
            .bind(tenant.0)
            .bind(name)
            .execute(&mut self.as_system().await)
            .await
            .unwrap();
        tenant
    }

    /// A connection with the database owner's eyes: who sees no row, and may change the schema.
    pub async fn as_owner(&self) -> PgConnection {
        let mut options: PgConnectOptions = self.url.expose().parse().unwrap();
        if CLUSTER.get().is_some_and(Cluster::is_citus) {
            // Triggers of tests write nothing into other shards.
            options = options.options([("citus.enable_unsafe_triggers", "on")]);
        }
        PgConnection::connect_with(&options).await.unwrap()
    }

    /// A superuser's connection to this database, or to another one of the server.
    pub async fn as_superuser(&self, database: Option<&str>) -> PgConnection {
        let own = Url::parse(self.url.expose()).unwrap();
        let mut address = CLUSTER.get().expect("it made this database").nodes[0].clone();
        address.set_path(database.unwrap_or(own.path()));
        let mut options: PgConnectOptions = address.as_str().parse().unwrap();
        if CLUSTER.get().is_some_and(Cluster::is_citus) {
            // Triggers of tests write nothing into other shards.
            options = options.options([("citus.enable_unsafe_triggers", "on")]);
        }
        PgConnection::connect_with(&options).await.unwrap()
    }

    /// How many statements that begin so wait for a lock in this database, at all of its nodes.
    pub async fn awaited_locks(&self, begin: &str) -> usize {
        let cluster = CLUSTER.get().expect("it made this database");
        let own = Url::parse(self.url.expose()).unwrap();
        let mut awaited = 0;
        for node in &cluster.nodes {
            let mut address = node.clone();
            address.set_path(own.path());
            let mut connection = PgConnection::connect(address.as_str()).await.unwrap();
            let count = "select count(*) from pg_stat_activity
                         where wait_event_type = 'Lock' and datname = current_database()
                           and starts_with(lower(query), $1)";
            let count: i64 = sqlx::query_scalar(count)
                .bind(begin)
                .fetch_one(&mut connection)
                .await
                .unwrap();
            awaited += usize::try_from(count).unwrap();
        }
        awaited
    }

    /// The names of the roles of this database.
    pub async fn roles(&self) -> Roles {
        let mut owner = self.as_owner().await;
        roles::read(&mut owner).await.unwrap().unwrap_or_default()
    }

    /// Puts the names of this database's roles into SQL that names them as files of migrations do.
    pub async fn name_roles(&self, sql: &str) -> String {
        self.roles().await.name_in(sql)
    }

    /// A connection that sees what a transaction of `tenant` sees.
    pub async fn as_tenant(&self, tenant: TenantId) -> PgConnection {
        self.as_role(roles::TENANT, Some(tenant)).await
    }

    /// A connection that sees what a transaction of the program itself sees.
    pub async fn as_system(&self) -> PgConnection {
        self.as_role(roles::SYSTEM, None).await
    }

    /// A connection that sees what a transaction of this role sees, and of this tenant. At its nodes Citus logs in as the
    /// session did, and repeats nothing of what the session has set. So the session is one of a role with the rights of
    /// that one, among whose settings the tenant is.
    pub async fn as_role(&self, role: &str, tenant: Option<TenantId>) -> PgConnection {
        let cluster = CLUSTER.get().expect("it made this database");
        if !cluster.is_citus() {
            let tenant = tenant.map_or_else(String::new, |tenant| {
                format!("; set app.tenant_id = '{tenant}'")
            });
            let mut connection = self.as_owner().await;
            let role = self.roles().await.name(role);
            let enter = sqlx::raw_sql(AssertSqlSafe(format!("set role {role}{tenant}")));
            enter.execute(&mut connection).await.unwrap();
            return connection;
        }
        let own = self.roles().await.name(role);
        let mut name = own.clone();
        if let Some(tenant) = tenant {
            // Postgres cuts longer names.
            name = format!("{role}_{}", tenant.0.simple());
            let make = format!(
                "do $$ begin if not exists (select from pg_roles where rolname = '{name}') then \
                 create role {name} login in role {own}; \
                 alter role {name} set app.tenant_id = '{tenant}'; \
                 alter role {name} set citus.allow_nested_distributed_execution = on; end if; end $$"
            );
            cluster.order(make).await.unwrap().unwrap();
        }
        let mut url = Url::parse(self.url.expose()).unwrap();
        url.set_username(&name).unwrap();
        PgConnection::connect(url.as_str()).await.unwrap()
    }
}

impl Drop for TestDb {
    /// Waits only on a server that outlives the tests. A failure leaves a database behind, no more.
    fn drop(&mut self) {
        let (Some(cluster), Some(name)) = (CLUSTER.get(), &self.name) else {
            return;
        };
        let drop = format!("drop database if exists {name} with (force)");
        if cluster.server.is_none() {
            let dropped = cluster.order(drop);
            let _ = std::thread::spawn(move || dropped.blocking_recv()).join();
            return;
        }
        // Where connections are open, Postgres closes them, and then sleeps for a tenth of a second before it looks again.
        let close = format!(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        );
        cluster.order_both(close, Some(drop));
    }
}

impl Cluster {
    async fn start() -> Self {
        let env = Environment::from_process();
        let given = |name| env.get(name).filter(|value| !value.is_empty());
        let (url, nodes, server) = if let Some(nodes) = given("CHATELAINE_TEST_CITUS") {
            let nodes: Vec<Url> = nodes.split(',').map(|node| node.parse().unwrap()).collect();
            let mut url = nodes[0].clone();
            url.set_username(OWNER).unwrap();
            (url, nodes, None)
        } else if let Some(url) = given("CHATELAINE_TEST_DATABASE_URL") {
            let url = Url::parse(url).unwrap();
            (url.clone(), vec![url], None)
        } else {
            let server = PrivatePostgres::throwaway(&env).await.unwrap();
            let url = Url::parse(server.url().expose()).unwrap();
            (url.clone(), vec![url], Some(server))
        };
        let (template, (orders, inbox)) = (template_name(), mpsc::channel());
        let workers = nodes.clone();
        std::thread::spawn(move || execute_orders(&workers, &inbox));
        let mut cluster = Self {
            url,
            nodes,
            template,
            options: String::new(),
            orders,
            server,
        };
        Box::pin(cluster.make_template()).await;
        cluster
    }

    /// Whether the tables are sharded.
    fn is_citus(&self) -> bool {
        self.nodes[0] != self.url
    }

    /// Copies a database to which nobody is connected. Returns the name of the copy.
    async fn copy(&self, database: &str) -> String {
        let name = format!("chatelaine_test_{}", Uuid::now_v7().simple());
        let create = format!("create database {name} template {database}{}", self.options);
        self.order(create).await.unwrap().unwrap();
        name
    }

    /// Sees to it that nobody is connected to a database any more: Citus itself would be.
    async fn shut(&self, database: &str) {
        for sql in [
            format!("alter database {database} allow_connections false"),
            format!(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = '{database}'"
            ),
        ] {
            self.order(sql).await.unwrap().unwrap();
        }
    }

    /// Has a statement executed. Statements are executed in their order, one at a time.
    fn order(&self, sql: String) -> oneshot::Receiver<Result<(), sqlx::Error>> {
        self.order_both(sql, None)
    }

    fn order_both(
        &self,
        sql: String,
        later: Option<String>,
    ) -> oneshot::Receiver<Result<(), sqlx::Error>> {
        let (done, result) = oneshot::channel();
        // The worker never ends.
        let _ = self.orders.send(Order { sql, later, done });
        result
    }

    /// Makes the template unless it is there. Another process may be at it: who renames first wins.
    async fn make_template(&mut self) {
        let mut connection = PgConnection::connect(self.nodes[0].as_str()).await.unwrap();
        let (exists, has_strategies): (bool, bool) = sqlx::query_as(
            "select exists (select from pg_database where datname = $1), \
             current_setting('server_version_num')::int >= 150000",
        )
        .bind(&self.template)
        .fetch_one(&mut connection)
        .await
        .unwrap();
        connection.close().await.unwrap();
        if self.is_citus() {
            self.options.push_str(&format!(" owner {OWNER}"));
        }
        // Older servers know only this one. The other writes each page to the log, too.
        if has_strategies {
            self.options.push_str(" strategy file_copy");
        }
        if exists {
            return;
        }
        let template = &self.template;
        let new = format!("{template}_{}", Uuid::now_v7().simple());
        if self.is_citus() {
            let role = format!(
                "do $$ begin create role {OWNER} login createrole createdb; \
                 exception when duplicate_object then null; end $$"
            );
            self.order(role).await.unwrap().unwrap();
            let create = self.order(format!("create database {new} owner {OWNER}"));
            create.await.unwrap().unwrap();
        } else {
            let create = self.order(format!("create database {new}"));
            create.await.unwrap().unwrap();
        }
        let url = Secret::new(self.database(&new));
        Db::connect(&url, 1).await.unwrap().close().await;
        if self.is_citus() {
            // Boxed, because otherwise each future that makes a database would contain it.
            Box::pin(self.distribute(&new, &url)).await;
            self.shut(&new).await;
        }
        let rename = self.order(format!("alter database {new} rename to {template}"));
        if rename.await.unwrap().is_err() {
            let drop = self.order(format!("drop database {new} with (force)"));
            drop.await.unwrap().unwrap();
        }
    }

    /// Distributes a database.
    async fn distribute(&self, name: &str, url: &Secret) {
        let execute = async |node: &Url, sql: String| {
            let mut address = node.clone();
            address.set_path(name);
            let mut connection = PgConnection::connect(address.as_str()).await.unwrap();
            let sql = sqlx::raw_sql(AssertSqlSafe(sql));
            sql.execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        };
        for node in &self.nodes {
            execute(node, "create extension citus".to_owned()).await;
        }
        let (coordinator, workers) = self.nodes.split_first().unwrap();
        let place =
            |node: &Url| format!("'{}', {}", node.host_str().unwrap(), node.port().unwrap());
        let this = place(coordinator);
        execute(
            coordinator,
            format!("select citus_set_coordinator_host({this})"),
        )
        .await;
        for worker in workers {
            execute(
                coordinator,
                format!("select citus_add_node({})", place(worker)),
            )
            .await;
        }
        if workers.is_empty() {
            let keeps = format!("select citus_set_node_property({this}, 'shouldhaveshards', true)");
            execute(coordinator, keeps).await;
        }
        let plan = store::shards::distribute(url, 4).await.unwrap();
        assert_eq!(plan.obstacles, [""; 0]);
    }

    fn database(&self, name: &str) -> String {
        let mut url = self.url.clone();
        url.set_path(name);
        url.into()
    }
}

/// Changes with every migration, so that a server that outlives the tests never hands out an old schema.
fn template_name() -> String {
    let mut hash = 0_u64;
    for byte in MIGRATIONS
        .iter()
        .flat_map(|migration| migration.checksum.iter())
    {
        hash = hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte);
    }
    format!("chatelaine_template_{hash:016x}")
}

/// Executes what is ordered at each node, all of it on one connection to each. A thread of its own does this, since a
/// connection belongs to the runtime that opened it, and the runtime of a test ends with the test.
fn execute_orders(nodes: &[Url], inbox: &mpsc::Receiver<Order>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut kept: Vec<Option<PgConnection>> = nodes.iter().map(|_| None).collect();
    let mut waiting = None;
    let mut execute = |sql: String| {
        for (node, kept) in nodes.iter().zip(&mut kept) {
            let sql = sql.clone();
            runtime.block_on(async {
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => PgConnection::connect(node.as_str()).await?,
                };
                let executed = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection);
                executed.await?;
                *kept = Some(connection);
                Ok::<_, sqlx::Error>(())
            })?;
        }
        Ok(())
    };
    for Order { sql, later, done } in inbox {
        // A test that was stopped waits no more.
        let _ = done.send(execute(sql));
        if later.is_some()
            && let Some(sql) = std::mem::replace(&mut waiting, later)
        {
            let _ = execute(sql);
        }
    }
}
