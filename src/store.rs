//! Floor 1: Postgres. Truth is rows.
//!
//! [`Db`] is the only holder of the pool. Work happens in a [`Tx`], which names its tenant: row-level
//! security then shows it that tenant's rows and no others, whatever the SQL forgets. What must be found
//! before a tenant is known (a key's owner, work to claim) goes through [`Db::system`], a role that sees
//! a few columns of a few tables and no content.
//!
//! One file per noun; row structs stay private to it.

pub mod access_tokens;
pub mod api_keys;
pub mod approvals;
pub mod audit;
pub mod catalogs;
mod columns;
pub mod conversations;
pub mod credentials;
pub mod deliveries;
pub mod elicitations;
pub mod flows;
pub mod hints;
pub mod issuers;
pub mod keks;
pub mod messages;
pub mod registry;
pub mod request_keys;
pub mod resources;
pub mod runs;
pub mod sealed;
pub mod secrets;
pub mod sign_outs;
pub mod tenant_keys;
pub mod tenants;
pub mod trees;
pub mod usage;
pub mod users;
pub mod webhooks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Postgres, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::domain::{
    error::{Error, Result},
    ids::TenantId,
    secret::Secret,
};

/// A connection that was idle for no longer than this is taken without asking whether it still works.
const TRUSTED: Duration = Duration::from_secs(1);

/// The database. Cheap to clone.
#[derive(Clone)]
pub struct Db {
    pool: sqlx::PgPool,
    /// Transactions of tenants that were begun.
    begun: Arc<AtomicU64>,
}

/// A transaction that knows its tenant (or, from [`Db::system`], that it has none). Dropped without
/// [`Tx::commit`], it is rolled back. Never hold one across a network call.
pub struct Tx {
    inner: Transaction<'static, Postgres>,
    tenant: Option<TenantId>,
}

impl Db {
    /// Opens the pool and brings the schema up to date; safe when several replicas start at once.
    pub async fn connect(url: &Secret, connections: u32) -> anyhow::Result<Self> {
        let options: PgConnectOptions = url.expose().parse()?;
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(10))
            // A connection that was just used is there; asking each time would be a round trip per transaction.
            .test_before_acquire(false)
            .before_acquire(|connection, about| {
                Box::pin(async move {
                    if about.idle_for > TRUSTED {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_with(options.application_name("chatelaine"))
            .await?;
        migrate(&pool).await?;
        Ok(Self {
            pool,
            begun: Arc::default(),
        })
    }

    /// A transaction of one tenant, opened in one round trip.
    pub async fn tenant(&self, tenant: TenantId) -> Result<Tx> {
        let sql = format!(
            "begin; set local role chatelaine_tenant; set local app.tenant_id = '{tenant}'"
        );
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.begin(sql, Some(tenant)).await
    }

    /// Transactions of tenants that this process has begun.
    pub fn transactions(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// A transaction of the program itself, for what has no tenant yet.
    pub async fn system(&self) -> Result<Tx> {
        let sql = "begin; set local role chatelaine_system".to_owned();
        self.begin(sql, None).await
    }

    /// Safe SQL: the only thing ever formatted into it is a UUID. In a task of its own: whoever asks may give up at
    /// any moment, and a `begin` that is given up half-way would leave its connection in a transaction that nobody
    /// knows of, with the `now()` of that moment for whoever gets it next.
    async fn begin(&self, sql: String, tenant: Option<TenantId>) -> Result<Tx> {
        let pool = self.pool.clone();
        let begun = tokio::spawn(async move { pool.begin_with(AssertSqlSafe(sql)).await }).await;
        Ok(Tx {
            inner: begun.map_err(Error::internal)??,
            tenant,
        })
    }

    /// Whether the database answers, for readiness.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("select 1").execute(&self.pool).await?;
        Ok(())
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl Tx {
    /// The connection, for the files of this folder.
    fn conn(&mut self) -> &mut PgConnection {
        &mut self.inner
    }

    /// The tenant of this transaction. Every query on a tenant's table names it, so that row-level security is
    /// the second lock and not the first. A transaction of the program itself has none.
    fn tenant(&self) -> Result<TenantId> {
        self.tenant.ok_or_else(|| {
            Error::Internal(anyhow::anyhow!(
                "a tenant's rows are out of reach of a transaction without a tenant"
            ))
        })
    }

    /// Makes a transaction of the program itself one of this tenant, from here to its end: for what is done to a
    /// tenant and written down with it.
    pub async fn enter(&mut self, tenant: TenantId) -> Result<()> {
        // Safe SQL: the only thing formatted into it is a UUID.
        let sql = format!("set local role chatelaine_tenant; set local app.tenant_id = '{tenant}'");
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(self.conn())
            .await?;
        self.tenant = Some(tenant);
        Ok(())
    }

    /// The time by the database's clock, which is the same for all replicas.
    pub async fn now(&mut self) -> Result<time::OffsetDateTime> {
        let now = sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#);
        Ok(now.fetch_one(self.conn()).await?)
    }

    pub async fn commit(self) -> Result<()> {
        Ok(self.inner.commit().await?)
    }
}

/// Applies the embedded migrations. Without the advisory lock that Citus and YugabyteDB lack, replicas
/// that start together may collide; whoever loses finds the work done when it looks again.
async fn migrate(pool: &sqlx::PgPool) -> anyhow::Result<()> {
    let mut migrator = sqlx::migrate!();
    migrator.set_locking(false);
    let mut tries = 0;
    loop {
        match migrator.run(pool).await {
            Ok(()) => return Ok(()),
            Err(
                sqlx::migrate::MigrateError::Execute(_)
                | sqlx::migrate::MigrateError::ExecuteMigration(..),
            ) if tries < 5 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(200 * tries)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a transaction was undone since two waited for each other: it may be tried again as a whole.
pub fn deadlocked(error: &Error) -> bool {
    let Error::Internal(error) = error else {
        return false;
    };
    let error = error
        .downcast_ref::<sqlx::Error>()
        .and_then(sqlx::Error::as_database_error);
    error.is_some_and(|error| error.code().as_deref() == Some("40P01"))
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::RowNotFound => Self::not_found("row"),
            sqlx::Error::PoolTimedOut => Self::Busy {
                reason: "the database has no free connection; try again".to_owned(),
                retry_after: Duration::from_secs(1),
            },
            error => Self::Internal(error.into()),
        }
    }
}
