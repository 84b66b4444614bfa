//! Personal servers: what each user entered for them, and the connections that are made with it.
//!
//! Truth is the row. What is kept in memory is bounded and forgotten when nobody uses it: who has which
//! credential ([`Holdings`]), opened credentials, catalogs. A change is told to the other replicas at once
//! and looked for each second (`news`).
//!
//! Invariant: a connection is made only with a credential that is active in its present generation, and
//! every change of a credential is a new generation, so that nothing old is used after it.

mod catalogs;
mod change;
mod news;
mod view;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use moka::future::Cache;

pub use self::{
    catalogs::{catalog_changed_elsewhere, follow_changes},
    change::{Tested, put, put_checked, remove, remove_all, remove_by_id, test},
    news::{changed_elsewhere, close_all, close_tenant, find_news},
    view::{FieldView, ServerConnection, get, list, views},
};
use super::connections;
use crate::app::{App, platform::keys::OpenError};
use crate::{
    domain::{
        audit::{Fact, SYSTEM},
        connection::{Held, Trouble},
        credential::CredentialState,
        error::{Error, Result},
        ids::{AgentId, CredentialId, ServerId, TenantId, UserId},
        owner::{CatalogOwner, ConnectionOwner},
        pack::Pack,
        personal::{self, Values},
        principal::Principal,
        server::{AccessMode, CatalogScope, ServerSpec},
        tool::Catalog,
    },
    mcp::Key,
    store::{self, hints::Hint},
    vault::Context,
};

/// Users whose credentials are known without a query; one who is idle is forgotten.
const USERS: u64 = 20_000;
const USER_IDLE: Duration = Duration::from_secs(60);
/// Opened credentials: as long as a connection may be idle.
const OPENED: u64 = 4096;
const OPENED_IDLE: Duration = Duration::from_secs(600);
/// Catalogs of personal servers, looked up again after a while even if nobody says that they changed.
const CATALOGS: u64 = 4096;
const CATALOG_LIFE: Duration = Duration::from_secs(60);
/// A list that could not be refreshed is tried again after this time.
const REFRESH_PAUSE: Duration = Duration::from_secs(30);

type Whose = (TenantId, AgentId, UserId);
type Listing = (TenantId, AgentId, ServerId, CatalogOwner);

/// What this process knows of its users' credentials.
pub struct Credentials {
    holdings: Cache<Whose, Arc<Holdings>>,
    opened: Cache<(CredentialId, u64), Arc<Opened>>,
    catalogs: Cache<Listing, Arc<Catalog>>,
    /// Lists being refreshed, or not to be asked for again so soon.
    refreshing: Cache<Listing, ()>,
    /// One change of a credential at a time.
    changing: Cache<(Whose, ServerId), Arc<tokio::sync::Mutex<()>>>,
    /// Connections made to try what is no row yet.
    trials: Mutex<HashSet<Key>>,
}

/// A user's credentials at one agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Holdings(Vec<Held>);

/// A credential that was opened: the server as it is for its user.
struct Opened {
    /// The pack's server that it was made from.
    base: Arc<ServerSpec>,
    spec: Arc<ServerSpec>,
    values: Values,
}

/// How to reach a personal server for one user.
pub struct Connection {
    pub key: Key,
    pub spec: Arc<ServerSpec>,
}

/// What a user sees of one server: its catalog, and whether they may use it.
pub struct Seen {
    pub catalog: Option<Arc<Catalog>>,
    pub usable: bool,
    /// The catalog is this user's alone.
    pub own: bool,
}

impl Credentials {
    pub fn new() -> Self {
        let cache = |capacity| Cache::builder().max_capacity(capacity);
        Self {
            holdings: cache(USERS).time_to_idle(USER_IDLE).build(),
            opened: Cache::builder()
                .max_capacity(OPENED)
                .time_to_idle(OPENED_IDLE)
                .build(),
            catalogs: Cache::builder()
                .max_capacity(CATALOGS)
                .time_to_live(CATALOG_LIFE)
                .build(),
            refreshing: Cache::builder()
                .max_capacity(CATALOGS)
                .time_to_live(REFRESH_PAUSE)
                .build(),
            changing: Cache::builder()
                .max_capacity(OPENED)
                .time_to_idle(USER_IDLE)
                .build(),
            trials: Mutex::default(),
        }
    }

    fn trials(&self) -> std::sync::MutexGuard<'_, HashSet<Key>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Credentials {
    fn default() -> Self {
        Self::new()
    }
}

impl Holdings {
    pub fn of(&self, server: &ServerId) -> Option<&Held> {
        self.0
            .iter()
            .find(|credential| credential.server == server.as_str())
    }

    fn active(&self, server: &ServerId) -> Option<&Held> {
        self.of(server)
            .filter(|credential| credential.state == CredentialState::Active)
    }
}

/// A user's credentials at an agent. A query only after a while of not being asked.
pub async fn holdings(app: &App, principal: &Principal, agent: &AgentId) -> Result<Arc<Holdings>> {
    let whose = whose(principal, agent);
    let load = async {
        let mut tx = app.db.tenant(principal.tenant).await?;
        Ok(Arc::new(Holdings(
            store::holdings::of_user(&mut tx, agent, &principal.user).await?,
        )))
    };
    app.credentials
        .holdings
        .try_get_with(whose, load)
        .await
        .map_err(|error| copy_of(&error))
}

/// What a principal sees of the servers of a pack, in its order.
pub async fn seen(app: &Arc<App>, principal: &Principal, pack: &Pack) -> Result<Vec<Seen>> {
    let personal = pack
        .servers
        .iter()
        .any(|server| server.access_mode == AccessMode::UserControlled);
    let holdings = if personal {
        Some(holdings(app, principal, pack.id()).await?)
    } else {
        None
    };
    let held = |server: &ServerSpec| {
        holdings
            .as_ref()
            .and_then(|holdings| holdings.active(&server.id))
    };
    let of_users = |server: &&ServerSpec| server.access_mode == AccessMode::UserControlled;
    let personal: Vec<_> = pack
        .servers
        .iter()
        .filter(of_users)
        .map(|server| (server, held(server)))
        .collect();
    let mut catalogs = catalogs::of(app, principal, pack, &personal)
        .await?
        .into_iter();
    let mut all = Vec::with_capacity(pack.servers.len());
    for server in &pack.servers {
        all.push(if app.orchestrator.is(server) {
            Seen {
                catalog: Some(app.orchestrator.catalog(&server.id)),
                usable: true,
                own: false,
            }
        } else if server.access_mode == AccessMode::AdminControlled {
            let catalog = connections::catalog_of(app, principal.tenant, pack.id(), server).await;
            Seen {
                catalog,
                usable: true,
                own: false,
            }
        } else {
            let usable = held(server).is_some();
            let own = server.catalog == CatalogScope::PerUser && usable;
            Seen {
                catalog: catalogs.next().flatten(),
                usable,
                own,
            }
        });
    }
    Ok(all)
}

/// How to reach a personal server with the user's own credential; `None` without an active one.
pub async fn connection(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    spec: &Arc<ServerSpec>,
) -> Result<Option<Connection>> {
    let holdings = holdings(app, principal, agent).await?;
    let Some(held) = holdings.active(&spec.id) else {
        return Ok(None);
    };
    let Some(opened) = opened(app, principal, agent, held, spec).await? else {
        return Ok(None);
    };
    let key = key(principal.tenant, agent, &spec.id, held.id, held.generation);
    Ok(Some(Connection {
        key,
        spec: opened.spec.clone(),
    }))
}

/// Opens a credential once for as long as it is used. One that cannot be opened is quarantined.
async fn opened(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    held: &Held,
    spec: &Arc<ServerSpec>,
) -> Result<Option<Arc<Opened>>> {
    let place = (held.id, held.generation);
    if let Some(known) = app.credentials.opened.get(&place).await {
        if Arc::ptr_eq(&known.base, spec) || known.base == *spec {
            return Ok(Some(known));
        }
        // The pack has changed since.
        let Ok(effective) = personal::effective(spec, &known.values) else {
            return Ok(None);
        };
        let opened = Opened {
            base: spec.clone(),
            spec: Arc::new(effective),
            values: known.values.clone(),
        };
        app.credentials.opened.insert(place, Arc::new(opened)).await;
        return Ok(app.credentials.opened.get(&place).await);
    }
    let load = async {
        let mut tx = app.db.tenant(principal.tenant).await?;
        let sealed = store::holdings::sealed(&mut tx, held.id, held.generation).await?;
        drop(tx);
        let gone = || Error::Conflict("the credential has changed meanwhile; try again".to_owned());
        let context = context(principal, agent, &spec.id, held.id, held.generation);
        let text = app
            .keys
            .open(principal.tenant, &context, &sealed.ok_or_else(gone)?)
            .await?;
        let values = Values::from_sealable(&text).map_err(Error::internal)?;
        let effective = personal::effective(spec, &values).map_err(|unfit| {
            Error::Conflict(format!(
                "what was entered for {} does not fit it any more: {}",
                spec.id, unfit.fault
            ))
        })?;
        Ok::<_, OpenError>(Arc::new(Opened {
            base: spec.clone(),
            spec: Arc::new(effective),
            values,
        }))
    };
    match app.credentials.opened.try_get_with(place, load).await {
        Ok(opened) => Ok(Some(opened)),
        Err(error) => match &*error {
            OpenError::Unopenable(why) => {
                tracing::error!(credential = %held.id, %why, "a credential cannot be opened; it is put aside");
                let (state, reason) = (CredentialState::Quarantined, why.to_string());
                mark(app, principal, agent, &spec.id, held, state, &reason).await?;
                Ok(None)
            }
            OpenError::Failed(error) => Err(copy_of(error)),
        },
    }
}

/// The server said no to this credential for good: its tools leave the toolbox.
pub async fn reject(app: &App, principal: &Principal, connection: &Key) -> Result<()> {
    let holdings = holdings(app, principal, &connection.agent).await?;
    let Some(held) = holdings
        .active(&connection.server)
        .filter(|held| connection.owner == owner(held.id, held.generation))
    else {
        return Ok(());
    };
    let (agent, server) = (&connection.agent, &connection.server);
    mark(
        app,
        principal,
        agent,
        server,
        held,
        CredentialState::Rejected,
        Trouble::Unauthorized.code(),
    )
    .await
}

async fn mark(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    server: &ServerId,
    held: &Held,
    state: CredentialState,
    reason: &str,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let marked = store::holdings::mark(&mut tx, held.id, held.generation, state, reason).await?;
    if marked {
        let fact = match state {
            CredentialState::Rejected => Fact::new(principal.user.as_str(), "credential.rejected"),
            _ => Fact::new(SYSTEM, "credential.quarantined"),
        };
        let fact = fact.at(agent.as_str(), server.as_str()).detail(reason);
        store::audit::record(&mut tx, principal.tenant, &fact).await?;
    }
    tx.commit().await?;
    if marked {
        tracing::warn!(%agent, %server, reason, "a user's credential needs their attention");
        metrics::counter!("chatelaine_credentials_marked_total", "state" => state.as_str())
            .increment(1);
    }
    changed(app, principal, agent).await;
    app.mcp
        .close(&key(
            principal.tenant,
            agent,
            server,
            held.id,
            held.generation,
        ))
        .await;
    Ok(())
}

/// The servers of which the principal has to be told that their credential needs attention. Whoever asks
/// first tells; the answer is empty from then on.
pub async fn untold(app: &App, principal: &Principal, pack: &Pack) -> Result<Vec<String>> {
    if pack
        .servers
        .iter()
        .all(|server| server.access_mode == AccessMode::AdminControlled)
    {
        return Ok(Vec::new());
    }
    let holdings = holdings(app, principal, pack.id()).await?;
    if holdings
        .0
        .iter()
        .all(|held| held.told || held.state == CredentialState::Active)
    {
        return Ok(Vec::new());
    }
    let mut tx = app.db.tenant(principal.tenant).await?;
    let servers = store::holdings::take_untold(&mut tx, pack.id(), &principal.user).await?;
    tx.commit().await?;
    changed(app, principal, pack.id()).await;
    Ok(servers)
}

/// Forgets what is known of a principal's credentials, here and on the other replicas.
async fn changed(app: &App, principal: &Principal, agent: &AgentId) {
    app.credentials
        .holdings
        .invalidate(&whose(principal, agent))
        .await;
    let (tenant, agent, user) = (principal.tenant, agent.clone(), principal.user.clone());
    let _ = app.hints.send(Hint::Credentials {
        tenant,
        agent,
        user,
    });
}

fn whose(principal: &Principal, agent: &AgentId) -> Whose {
    (principal.tenant, agent.clone(), principal.user.clone())
}

/// The key of a personal connection.
fn key(
    tenant: TenantId,
    agent: &AgentId,
    server: &ServerId,
    credential: CredentialId,
    generation: u64,
) -> Key {
    Key {
        tenant,
        agent: agent.clone(),
        server: server.clone(),
        owner: owner(credential, generation),
    }
}

fn owner(id: CredentialId, generation: u64) -> ConnectionOwner {
    ConnectionOwner::Credential { id, generation }
}

fn context(
    principal: &Principal,
    agent: &AgentId,
    server: &ServerId,
    credential: CredentialId,
    generation: u64,
) -> Context {
    let scope = format!("{agent}/{server}");
    Context {
        tenant: principal.tenant,
        user: principal.user.clone(),
        scope,
        credential: credential.0,
        generation,
    }
}

/// An error that several waited for.
fn copy_of(error: &Error) -> Error {
    match error {
        Error::NotFound(text) => Error::NotFound(text.clone()),
        Error::Conflict(text) => Error::Conflict(text.clone()),
        Error::Unavailable(text) => Error::Unavailable(text.clone()),
        Error::Busy {
            reason,
            retry_after,
        } => Error::Busy {
            reason: reason.clone(),
            retry_after: *retry_after,
        },
        other => Error::Internal(anyhow::anyhow!("{other:?}")),
    }
}
