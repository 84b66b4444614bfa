//! The pool of connections.
//!
//! A connection whose transaction was committed goes back without a check, because a check would be a round trip for
//! each transaction. It is checked before its next use only if there is a reason for doubt: it was idle, or there was
//! trouble with the database since the last check. A connection whose transaction was dropped is rolled back and
//! checked before it goes back. A connection that does not answer, or accepts no writes since its server became a
//! standby, is closed.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use deadpool::{
    Runtime,
    managed::{self, Metrics, Object, PoolError, QueueMode, RecycleError, RecycleResult},
};
use sqlx::{
    Connection as _, Executor as _, PgConnection, PgPool, Row,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{runtime::Handle, time::Instant};

use super::limits::{Health, is_starting, within, without_session};

/// A connection that was last taken from the pool longer ago than this is checked before its next use.
const TRUSTED: Duration = Duration::from_secs(1);
/// The longest time of such a check.
const PROBE: Duration = Duration::from_secs(3);
/// The longest time to wait for a place in the pool, and the longest time to open a connection.
const ACQUIRE: Duration = Duration::from_secs(10);
/// The pause between two attempts to reach a database that cannot be reached yet.
pub const PAUSE: Duration = Duration::from_millis(200);
/// A connection that is older is closed, which frees the caches of its process in Postgres.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);
/// A connection that was not used for this time is closed.
const MAX_IDLE: Duration = Duration::from_secs(10 * 60);
/// How often the pool looks for idle connections.
const IDLE_CHECK: Duration = Duration::from_secs(60);
/// How often closing checks whether the connections in use were given back.
const CLOSE_CHECK: Duration = Duration::from_millis(10);

/// Connections to one database. Cheap to clone.
#[derive(Clone)]
pub struct Pool(managed::Pool<Connector>);

/// Opens and checks the connections of the pool.
struct Connector {
    options: PgConnectOptions,
    health: Arc<Health>,
}

/// A connection of the pool.
struct Pooled {
    connection: PgConnection,
    /// The value of [`Health::troubles`] before the connection was opened or last checked.
    troubles: u64,
}

/// A connection that is in use. If it is dropped without [`InUse::give_back`], it is rolled back and checked.
pub struct InUse(Option<Object<Connector>>);

impl Pool {
    /// A pool that opens up to `size` connections when they are needed.
    pub fn new(options: PgConnectOptions, size: u32, health: Arc<Health>) -> anyhow::Result<Self> {
        let pool = managed::Pool::builder(Connector { options, health })
            .max_size(usize::try_from(size)?)
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(ACQUIRE))
            .recycle_timeout(Some(PROBE))
            .build()?;
        tokio::spawn(close_idle(pool.weak()));
        Ok(Self(pool))
    }

    /// A login that has begun is finished although the caller gives up, and serves the next one. Otherwise logins that take
    /// longer than the callers wait, as after a failover, would never end.
    pub async fn get(&self) -> sqlx::Result<InUse> {
        let pool = self.0.clone();
        // Boxed, because it is large, and otherwise each future that waits for it would contain it.
        let getting = async move { Box::pin(pool.get()).await };
        let got = if self.0.status().available > 0 {
            getting.await
        } else {
            let login = tokio::spawn(getting);
            login.await.unwrap_or(Err(PoolError::Closed))
        };
        match got {
            Ok(connection) => Ok(InUse(Some(connection))),
            Err(PoolError::Backend(error)) => Err(error),
            Err(PoolError::Timeout(_)) => Err(sqlx::Error::PoolTimedOut),
            Err(_) => Err(sqlx::Error::PoolClosed),
        }
    }

    /// Opens a connection that does not belong to the pool.
    pub async fn connect_apart(&self) -> sqlx::Result<PgConnection> {
        connect(&self.0.manager().options, ACQUIRE, is_starting).await
    }

    pub fn status(&self) -> deadpool::Status {
        self.0.status()
    }

    /// Closes all connections, after those in use are given back.
    pub async fn close(&self) {
        let idle = self.0.retain(|_, _| false).removed;
        self.0.close();
        close_all(idle).await;
        while self.0.status().size > 0 {
            tokio::time::sleep(CLOSE_CHECK).await;
        }
    }
}

impl managed::Manager for Connector {
    type Type = Pooled;
    type Error = sqlx::Error;

    async fn create(&self) -> sqlx::Result<Pooled> {
        let troubles = self.health.troubles();
        let connection = connect(&self.options, ACQUIRE, is_starting).await?;
        Ok(Pooled {
            connection,
            troubles,
        })
    }

    async fn recycle(&self, pooled: &mut Pooled, about: &Metrics) -> RecycleResult<sqlx::Error> {
        if about.age() > MAX_AGE {
            return Err(RecycleError::message("too old"));
        }
        let troubles = self.health.troubles();
        let is_trusted = about.last_used() <= TRUSTED
            && pooled.troubles == troubles
            && !self.health.is_unwritable();
        if !is_trusted && !is_writable(&mut pooled.connection).await? {
            return Err(RecycleError::message("read-only"));
        }
        pooled.troubles = troubles;
        Ok(())
    }
}

impl InUse {
    /// Gives a connection back that works and is in no transaction.
    pub fn give_back(mut self) {
        if let Some(object) = self.0.take() {
            give_back(object);
        }
    }

    /// Closes the connection, which frees its place at once.
    pub fn discard(mut self) {
        drop(self.0.take().map(Doubtful::new));
    }
}

impl Deref for InUse {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0.as_ref().expect("only `drop` takes it").connection
    }
}

impl DerefMut for InUse {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0.as_mut().expect("only `drop` takes it").connection
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let Some(mut doubtful) = self.0.take().map(Doubtful::new) else {
            return;
        };
        // There is no runtime only when the process ends.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let is_usable = within(PROBE, roll_back(&mut doubtful.object_mut().connection)).await;
            if is_usable.unwrap_or(false) {
                doubtful.trust();
            }
        });
    }
}

/// A connection that may be in a transaction. It is closed when it is dropped, unless [`Doubtful::trust`] was called.
struct Doubtful(Option<Object<Connector>>);

impl Doubtful {
    fn new(object: Object<Connector>) -> Self {
        Self(Some(object))
    }

    fn object_mut(&mut self) -> &mut Object<Connector> {
        self.0.as_mut().expect("only `trust` and `drop` take it")
    }

    /// Gives the connection back to the pool.
    fn trust(mut self) {
        if let Some(object) = self.0.take() {
            give_back(object);
        }
    }
}

impl Drop for Doubtful {
    fn drop(&mut self) {
        let _ = self.0.take().map(Object::take);
    }
}

/// Gives a connection back to the pool, without the buffers that grew with the longest answer or text it ever carried:
/// each connection would keep megabytes for good.
fn give_back(mut object: Object<Connector>) {
    object.connection.shrink_buffers();
}

/// A pool of one connection, for the parts of `sqlx` that need a pool. It is opened at its first use.
pub fn single(options: PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_lazy_with(options)
}

/// Opens a connection. After an error that `may_pass` accepts, tries again, for as long as `wait`.
pub async fn connect(
    options: &PgConnectOptions,
    wait: Duration,
    may_pass: fn(&sqlx::Error) -> bool,
) -> sqlx::Result<PgConnection> {
    let end = Instant::now() + wait;
    let mut is_first = true;
    loop {
        let connecting = PgConnection::connect_with(options);
        match within(ACQUIRE, connecting).await.map_err(without_session) {
            Err(error) if may_pass(&error) && Instant::now() < end => {
                if std::mem::take(&mut is_first) {
                    tracing::warn!(%error, "waiting for the database");
                }
                tokio::time::sleep(PAUSE).await;
            }
            connected => return connected,
        }
    }
}

/// Whether a connection accepts writes.
pub async fn is_writable(connection: &mut PgConnection) -> sqlx::Result<bool> {
    is_off("show transaction_read_only", connection).await
}

/// Ends the transaction that a connection may be in. Returns whether the connection accepts writes.
async fn roll_back(connection: &mut PgConnection) -> sqlx::Result<bool> {
    is_off("rollback; show transaction_read_only", connection).await
}

async fn is_off(sql: &'static str, connection: &mut PgConnection) -> sqlx::Result<bool> {
    let row = connection.fetch_one(sqlx::raw_sql(sql)).await?;
    Ok(row.try_get::<String, _>(0)? == "off")
}

/// Closes connections that were idle for long, until the pool is gone.
async fn close_idle(pool: managed::WeakPool<Connector>) {
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let Some(pool) = pool.upgrade() else { return };
        let idle = pool.retain(|_, about| about.last_used() <= MAX_IDLE);
        close_all(idle.removed).await;
    }
}

/// Closes connections properly. A connection that does not answer is only dropped.
async fn close_all(connections: Vec<Pooled>) {
    for pooled in connections {
        let _ = within(PROBE, pooled.connection.close()).await;
    }
}
