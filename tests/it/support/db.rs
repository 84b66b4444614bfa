//! A database per test, on one Postgres per test process.
//!
//! The server is a throwaway of [`PrivatePostgres`]: it starts with the first test that wants it, ends with the
//! process, and leaves nothing. `CHATELAINE_TEST_DATABASE_URL` names another one to use instead (its role needs
//! `createdb` and `createrole`; `DATABASE_URL` is not it, since that one serves the compile-time checks). The
//! schema is applied once, to a template, and each test gets a copy of that.
//!
//! `cargo test` runs all tests in one process. `cargo nextest` runs a process per test, each of which then
//! starts its own server (two seconds); name one with the variable to be faster.

use std::sync::mpsc;

use chatelaine::cli::private_postgres::PrivatePostgres;
use domain::{config::Environment, ids::TenantId, replica::Start, secret::Secret};
use sqlx::{AssertSqlSafe, Connection, PgConnection, migrate::Migrator};
use store::Db;
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
    /// `create database … template …` but for the name.
    options: String,
    orders: mpsc::Sender<Order>,
    server: Option<PrivatePostgres>,
}

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
        let name = format!("chatelaine_test_{}", Uuid::now_v7().simple());
        let create = format!("create database {name} {}", cluster.options);
        cluster.order(create).await.unwrap().unwrap();
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
        let name = format!("chatelaine_test_{}", Uuid::now_v7().simple());
        let own = self.name.as_deref().expect("its name is known");
        let create = format!("create database {name} template {own}");
        cluster.order(create).await.unwrap().unwrap();
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
        PgConnection::connect(self.url.expose()).await.unwrap()
    }

    /// A connection that sees what a transaction of `tenant` sees.
    pub async fn as_tenant(&self, tenant: TenantId) -> PgConnection {
        self.with(format!(
            "set role chatelaine_tenant; set app.tenant_id = '{tenant}'"
        ))
        .await
    }

    /// A connection that sees what a transaction of the program itself sees.
    pub async fn as_system(&self) -> PgConnection {
        self.with("set role chatelaine_system".to_owned()).await
    }

    async fn with(&self, sql: String) -> PgConnection {
        let mut connection = self.as_owner().await;
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .unwrap();
        connection
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
        let (url, server) = match env
            .get("CHATELAINE_TEST_DATABASE_URL")
            .filter(|url| !url.is_empty())
        {
            Some(url) => (Url::parse(url).unwrap(), None),
            None => {
                let server = PrivatePostgres::throwaway(&env).await.unwrap();
                (Url::parse(server.url().expose()).unwrap(), Some(server))
            }
        };
        let (template, (orders, inbox)) = (template_name(), mpsc::channel());
        let worker = url.clone();
        std::thread::spawn(move || execute_orders(&worker, &inbox));
        let mut cluster = Self {
            url,
            options: format!("template {template}"),
            orders,
            server,
        };
        cluster.make_template(&template).await;
        cluster
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
    async fn make_template(&mut self, template: &str) {
        let mut connection = PgConnection::connect(self.url.as_str()).await.unwrap();
        let (exists, has_strategies): (bool, bool) = sqlx::query_as(
            "select exists (select from pg_database where datname = $1), \
             current_setting('server_version_num')::int >= 150000",
        )
        .bind(template)
        .fetch_one(&mut connection)
        .await
        .unwrap();
        connection.close().await.unwrap();
        // Older servers know only this one. The other writes each page to the log, too.
        if has_strategies {
            self.options.push_str(" strategy file_copy");
        }
        if exists {
            return;
        }
        let new = format!("{template}_{}", Uuid::now_v7().simple());
        let create = self.order(format!("create database {new}"));
        create.await.unwrap().unwrap();
        Db::connect(&Secret::new(self.database(&new)), 1)
            .await
            .unwrap()
            .close()
            .await;
        let rename = self.order(format!("alter database {new} rename to {template}"));
        if rename.await.unwrap().is_err() {
            let drop = self.order(format!("drop database {new} with (force)"));
            drop.await.unwrap().unwrap();
        }
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

/// Executes what is ordered, all of it on one connection. A thread of its own does this, since a connection belongs to
/// the runtime that opened it, and the runtime of a test ends with the test.
fn execute_orders(url: &Url, inbox: &mpsc::Receiver<Order>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (mut kept, mut waiting) = (None, None);
    let mut execute = |sql| {
        runtime.block_on(async {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => PgConnection::connect(url.as_str()).await?,
            };
            let executed = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection);
            executed.await?;
            kept = Some(connection);
            Ok(())
        })
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
