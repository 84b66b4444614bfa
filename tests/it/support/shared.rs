//! Worlds that serve one test after the other. A test that changes no setting needs people and rows of its own, but no
//! process and no database of its own: it is lent a world at work, with two new tenants, a new model and a new bank. One
//! test at a time has it, so that what the model is told and what the bank has done are that test's alone; all that
//! earlier tests left there belongs to other tenants, as in production.
//!
//! The service runs on a thread of its own, since the runtime of a test ends with the test. The world is kept for the next
//! test when this one has passed, nothing of it is at work any more, and its model has refused nothing, which the product
//! would remember. Its tenants are removed then. Otherwise it ends, and the next test gets another one.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use chatelaine::app::{App, accounts, servers::registry};
use domain::{
    account::Tenant,
    clock::Clock,
    config::{Config, Environment},
    ids::{AgentId, TenantId},
    secret::Secret,
};
use sqlx::PgConnection;
use store::Db;
use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot},
};

use super::{
    bank::Bank,
    model::ScriptedModel,
    world::{Setup, World},
};

/// So many are kept while no test has them. Each looks for news once a second, which costs time too.
const KEPT: usize = 6;
/// More than any test asks, in a process that many tests ask.
const REQUESTS_PER_MINUTE: u32 = 100_000;

/// Those that no test has, the longest unused first.
static IDLE: Mutex<VecDeque<SharedWorld>> = Mutex::new(VecDeque::new());
/// How many tenants were made of each name.
static TENANTS: AtomicUsize = AtomicUsize::new(0);

/// A world at work on its own thread, and how to reach it. It ends when this is dropped.
pub struct SharedWorld {
    kind: &'static str,
    runtime: Handle,
    app: Arc<App>,
    db: Db,
    returns: mpsc::UnboundedSender<Returned>,
    pub model: ScriptedModel,
    pub bank: Bank,
    pub url: String,
    pub config: Config,
    pub env: Environment,
    pub database: Secret,
    /// A [`Db`] that was closed, for those who should not use the one at work.
    pub closed: Db,
}

/// A world whose test has ended.
struct Returned {
    world: SharedWorld,
    tenants: [TenantId; 2],
}

/// An idle world of this kind, or a new one made with `change`, with new tenants.
pub async fn lend(kind: &'static str, change: impl FnOnce(&mut Setup) + Send + 'static) -> World {
    let idle = {
        let mut idle = IDLE.lock().unwrap();
        let newest = idle.iter().rposition(|world| world.kind == kind);
        newest.and_then(|at| idle.remove(at))
    };
    let world = match idle {
        Some(world) => world,
        None => start(kind, change).await,
    };
    let made = world.run(|app, db| async move {
        let number = TENANTS.fetch_add(1, Ordering::Relaxed);
        let (name, other) = (format!("acme-{number}"), format!("globex-{number}"));
        let bank = vec![AgentId::parse("bank").unwrap()];
        let tenant = accounts::add_tenant(&db, &Clock::System, &name, None, true).await;
        let other = accounts::add_tenant(&db, &Clock::System, &other, Some(bank), false).await;
        let (tenant, other) = (tenant.unwrap(), other.unwrap());
        // Their servers are connected now, and not when somebody looks for new tenants.
        registry::forget(&app, tenant.id).await;
        (tenant, other)
    });
    let (tenant, other) = made.await;
    World::lent(world, tenant, other)
}

/// Starts a world on a thread of its own.
async fn start(
    kind: &'static str,
    change: impl FnOnce(&mut Setup) + Send + 'static,
) -> SharedWorld {
    let (tell, told) = oneshot::channel();
    let work = move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let world = World::with(|setup| {
                setup.config.requests_per_minute = REQUESTS_PER_MINUTE;
                change(setup);
            })
            .await;
            let closed = Db::connect(&world.db.url, 2).await.unwrap();
            closed.close().await;
            let (returns, inbox) = mpsc::unbounded_channel();
            let lent = SharedWorld {
                kind,
                runtime: Handle::current(),
                app: world.app().clone(),
                db: world.db.db.clone(),
                returns,
                model: world.model.renewed(),
                bank: world.bank.clone(),
                url: world.url.clone(),
                config: world.config.clone(),
                env: world.env.clone(),
                database: world.db.url.clone(),
                closed,
            };
            let looking = world.db.as_system().await;
            let _ = tell.send(lent);
            take_back(looking, inbox).await;
        });
    };
    std::thread::Builder::new()
        .name("shared world".to_owned())
        .spawn(work)
        .unwrap();
    told.await.expect("a world does not start")
}

/// Keeps each world that comes back for the next test, until one comes that is still at work, or the world was dropped.
async fn take_back(mut looking: PgConnection, mut inbox: mpsc::UnboundedReceiver<Returned>) {
    while let Some(Returned { world, tenants }) = inbox.recv().await {
        if is_at_work(&mut looking, tenants).await {
            return;
        }
        let db = world.db.clone();
        let unused = {
            let mut idle = IDLE.lock().unwrap();
            idle.push_back(world);
            if idle.len() > KEPT {
                idle.pop_front()
            } else {
                None
            }
        };
        drop(unused);
        for tenant in tenants {
            // The test may have removed it.
            let _ = accounts::remove_tenant(&db, tenant).await;
        }
    }
}

/// Whether something of these tenants may still call the model or a server.
async fn is_at_work(looking: &mut PgConnection, tenants: [TenantId; 2]) -> bool {
    let tenants = tenants.map(|tenant| tenant.0);
    for at_work in [
        "select count(*) from runs where tenant_id = any($1) and status in ('queued', 'running')",
        "select count(*) from approvals where tenant_id = any($1) and state in ('approved', 'executing')",
    ] {
        let count = sqlx::query_scalar(at_work).bind(&tenants[..]);
        let count: i64 = count.fetch_one(&mut *looking).await.unwrap();
        if count > 0 {
            return true;
        }
    }
    false
}

impl SharedWorld {
    /// Does something on the thread of the service.
    pub async fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<App>, Db) -> F,
    ) -> T {
        let work = work(self.app.clone(), self.db.clone());
        self.runtime.spawn(work).await.unwrap()
    }

    /// Whether the tools of the bank are known.
    pub fn knows_bank(&self, tenant: &Tenant) -> bool {
        let bank = AgentId::parse("bank").unwrap();
        let pack = self.app.packs.get(&bank).unwrap();
        let server = pack.server("bank").unwrap();
        let connections = &self.app.connections;
        connections.catalog(tenant.id, &bank, server).is_some()
    }

    /// What was lent goes back, to be kept or to end.
    pub fn give_back(self, tenants: [TenantId; 2]) {
        if !std::thread::panicking() && !self.model.has_refused() {
            let returns = self.returns.clone();
            // A world that has ended is not kept.
            let _ = returns.send(Returned {
                world: self,
                tenants,
            });
        }
    }
}
