//! A database per test, on one Postgres per test process.
//!
//! The server is a throwaway of [`PrivatePostgres`]: it starts with the first test that wants it, ends with the
//! process, and leaves nothing. `CHATELAINE_TEST_DATABASE_URL` names another one to use instead (its role needs
//! `createdb` and `createrole`; `DATABASE_URL` is not it, since that one serves the compile-time checks). The
//! schema is applied once, to a template, and each test gets a copy of that.
//!
//! `cargo test` runs all tests in one process. `cargo nextest` runs a process per test, each of which then
//! starts its own server (two seconds); name one with the variable to be faster.

use std::time::Duration;

use chatelaine::{
    cli::private_postgres::PrivatePostgres,
    domain::{config::Environment, ids::TenantId, secret::Secret},
    store::Db,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, migrate::Migrator};
use tokio::sync::OnceCell;
use url::Url;
use uuid::Uuid;

static MIGRATIONS: Migrator = sqlx::migrate!();
static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
/// Connections that a test's [`Db`] may open.
const CONNECTIONS: u32 = 8;

struct Cluster {
    /// A database to give orders from.
    url: Url,
    template: String,
    _server: Option<PrivatePostgres>,
}

/// A database of its own, with the schema and no rows, dropped with this value.
pub struct TestDb {
    pub db: Db,
    pub url: Secret,
    name: String,
}

impl TestDb {
    pub async fn new() -> Self {
        let cluster = CLUSTER.get_or_init(Cluster::start).await;
        let name = format!("chatelaine_test_{}", Uuid::now_v7().simple());
        order(
            &cluster.url,
            format!("create database {name} template {}", cluster.template),
        )
        .await
        .unwrap();
        let url = Secret::new(cluster.database(&name));
        let db = Db::connect(&url, CONNECTIONS).await.unwrap();
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
    /// On a thread of its own, since the test's runtime may be ending. A failure leaves a database behind, no more.
    fn drop(&mut self) {
        let Some(cluster) = CLUSTER.get() else { return };
        let (url, sql) = (
            cluster.url.clone(),
            format!("drop database if exists {} with (force)", self.name),
        );
        let sweep = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .ok()?;
            let order =
                async { tokio::time::timeout(Duration::from_secs(10), order(&url, sql)).await };
            runtime.block_on(order).ok()?.ok()
        };
        let _ = std::thread::spawn(sweep).join();
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
        let mut cluster = Self {
            url,
            template: template_name(),
            _server: server,
        };
        cluster.make_template().await;
        cluster
    }

    /// Makes the template unless it is there. Another process may be at it: who renames first wins.
    async fn make_template(&mut self) {
        let mut connection = PgConnection::connect(self.url.as_str()).await.unwrap();
        let exists: bool =
            sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
                .bind(&self.template)
                .fetch_one(&mut connection)
                .await
                .unwrap();
        connection.close().await.unwrap();
        if exists {
            return;
        }
        let new = format!("{}_{}", self.template, Uuid::now_v7().simple());
        order(&self.url, format!("create database {new}"))
            .await
            .unwrap();
        Db::connect(&Secret::new(self.database(&new)), 1)
            .await
            .unwrap()
            .close()
            .await;
        let renamed = order(
            &self.url,
            format!("alter database {new} rename to {}", self.template),
        )
        .await;
        if renamed.is_err() {
            order(&self.url, format!("drop database {new} with (force)"))
                .await
                .unwrap();
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

/// Runs one statement on a connection of its own.
async fn order(url: &Url, sql: String) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(url.as_str()).await?;
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await?;
    connection.close().await
}
