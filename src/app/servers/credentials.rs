//! Personal servers: the credentials of users, and the connections that are made with them.
//!
//! The rows are the truth. The memory of a process is bounded and forgets what nobody uses: which user has which
//! credential ([`UserCredentials`]), decrypted credentials, catalogs. A change is announced to the other replicas at
//! once by a hint, and each process also polls for changes every second ([`poll_changes`]).
//!
//! Invariant: a connection is made only with the generation of a credential that is in force. Every change of a
//! credential is a new generation, so an old one is never used after a change.

mod catalogs;
mod change;
mod trial;
mod view;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use moka::future::Cache;

pub(super) use self::{
    catalogs::{find_shared_list, store_catalog},
    trial::ConnectionTrial,
};
pub use self::{
    catalogs::{follow_changes, forget_catalog},
    change::{
        NewSignIn, end_sign_ins, prove, put, put_checked, put_sign_in, remove, remove_all,
        remove_by_id, test,
    },
    trial::TestOutcome,
    view::{FieldView, ServerConnection, get, list, views},
};
use crate::app::{
    App,
    platform::keys::{OpenError, mark_credential},
    servers::{connections, oauth},
};
use domain::{
    connection::ConnectionTestError,
    credential::{CredentialMeta, CredentialRef, CredentialState},
    error::{Error, ErrorCode, Result},
    ids::{AgentId, CredentialId, ServerId, TenantId, UserId},
    oauth::{Authorization, OAuthConfig, from_sealable},
    owner::CatalogOwner,
    pack::Pack,
    personal::{self, Values},
    principal::Principal,
    scrub::Scrubber,
    server::{AccessMode, CatalogScope, ServerAuth, ServerSpec, UserSignIn},
    tool::Catalog,
};
use mcp::Key;
use store::hints::Hint;

/// The most users whose credentials are in memory. An idle user is forgotten.
const USERS: u64 = 20_000;
const USER_IDLE: Duration = Duration::from_secs(60);
/// The most decrypted credentials in memory. Each stays as long as a connection may be idle.
const DECRYPTED: u64 = 4096;
const DECRYPTED_IDLE: Duration = Duration::from_secs(600);
/// The most catalogs of personal servers in memory. Each is read again after a while, even without a hint that it
/// changed.
const CATALOGS: u64 = 4096;
const CATALOG_LIFE: Duration = Duration::from_secs(60);
/// A list that could not be refreshed is tried again after this time.
const REFRESH_PAUSE: Duration = Duration::from_secs(30);

type UserOfAgent = (TenantId, AgentId, UserId);
type CatalogKey = (TenantId, AgentId, ServerId, CatalogOwner);

/// The credentials of users that this process has in memory.
pub struct Credentials {
    users: Cache<UserOfAgent, Arc<UserCredentials>>,
    decrypted: Cache<(CredentialId, u64), Arc<DecryptedCredential>>,
    catalogs: Cache<CatalogKey, Arc<Catalog>>,
    /// Lists that are being refreshed, or were refreshed a moment ago.
    refreshing: Cache<CatalogKey, ()>,
    /// The locks by which one change of a credential runs at a time.
    change_locks: Cache<(UserOfAgent, ServerId), Arc<tokio::sync::Mutex<()>>>,
    /// The locks by which one test with a false credential runs at a time.
    test_locks: Cache<(TenantId, AgentId, ServerId), Arc<tokio::sync::Mutex<()>>>,
    /// Temporary connections that test a credential before it is stored.
    trials: Mutex<HashSet<CredentialRef>>,
}

/// A user's credentials at one agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UserCredentials(Vec<CredentialMeta>);

/// A server as it is reached for one user.
pub struct ResolvedConnection {
    pub key: Key,
    pub spec: Arc<ServerSpec>,
}

/// A server as one user sees it: its catalog, and whether the user may use it.
pub struct ServerAccess {
    pub catalog: Option<Arc<Catalog>>,
    pub usable: bool,
    /// Whether the catalog belongs to this user alone.
    pub own: bool,
}

impl Credentials {
    pub fn new() -> Self {
        let cache = |capacity| Cache::builder().max_capacity(capacity);
        Self {
            users: cache(USERS).time_to_idle(USER_IDLE).build(),
            decrypted: Cache::builder()
                .max_capacity(DECRYPTED)
                .time_to_idle(DECRYPTED_IDLE)
                .build(),
            catalogs: Cache::builder()
                .max_capacity(CATALOGS)
                .time_to_live(CATALOG_LIFE)
                .build(),
            refreshing: Cache::builder()
                .max_capacity(CATALOGS)
                .time_to_live(REFRESH_PAUSE)
                .build(),
            change_locks: Cache::builder()
                .max_capacity(DECRYPTED)
                .time_to_idle(USER_IDLE)
                .build(),
            test_locks: Cache::builder()
                .max_capacity(CATALOGS)
                .time_to_idle(USER_IDLE)
                .build(),
            trials: Mutex::default(),
        }
    }

    fn trials(&self) -> std::sync::MutexGuard<'_, HashSet<CredentialRef>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Credentials {
    fn default() -> Self {
        Self::new()
    }
}

impl UserCredentials {
    pub fn get(&self, server: &ServerId) -> Option<&CredentialMeta> {
        self.0
            .iter()
            .find(|credential| credential.server == server.as_str())
    }

    pub(in crate::app) fn active(&self, server: &ServerId) -> Option<&CredentialMeta> {
        self.get(server)
            .filter(|credential| credential.state == CredentialState::Active)
    }

    /// The row of a credential, if it is active and this generation of it is in force.
    fn in_force(&self, credential: &CredentialRef) -> Option<&CredentialMeta> {
        self.active(&credential.server).filter(|stored| {
            (stored.id, stored.current()) == (credential.id, credential.generation)
        })
    }
}

/// A user's credentials at an agent, from memory or from their rows.
pub async fn of_user(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
) -> Result<Arc<UserCredentials>> {
    let user_key = user_of_agent(principal, agent);
    let load = async {
        let mut tx = app.db.tenant(principal.tenant).await?;
        Ok(Arc::new(UserCredentials(
            store::credentials::list_of_user(&mut tx, agent, &principal.user).await?,
        )))
    };
    app.credentials
        .users
        .try_get_with(user_key, load)
        .await
        .map_err(|error: Arc<Error>| error.share())
}

/// The servers of a pack as a principal sees them, in the pack's order.
pub async fn server_access(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Pack,
) -> Result<Vec<ServerAccess>> {
    let personal = pack
        .servers
        .iter()
        .any(|server| server.access_mode == AccessMode::UserControlled);
    let credentials = if personal {
        Some(of_user(app, principal, pack.id()).await?)
    } else {
        None
    };
    let active = |server: &ServerSpec| {
        credentials
            .as_ref()
            .and_then(|credentials| credentials.active(&server.id))
    };
    let of_users = |server: &&ServerSpec| server.access_mode == AccessMode::UserControlled;
    let personal: Vec<_> = pack
        .servers
        .iter()
        .filter(of_users)
        .map(|server| (server, active(server)))
        .collect();
    let mut catalogs = catalogs::load_all(app, principal, pack, &personal)
        .await?
        .into_iter();
    let mut all = Vec::with_capacity(pack.servers.len());
    for server in &pack.servers {
        all.push(if app.orchestrator.is(server) {
            ServerAccess {
                catalog: Some(app.orchestrator.catalog(&server.id)),
                usable: true,
                own: false,
            }
        } else if server.access_mode == AccessMode::AdminControlled {
            let catalog = connections::catalog_of(app, principal.tenant, pack.id(), server).await;
            ServerAccess {
                catalog,
                usable: true,
                own: false,
            }
        } else {
            let usable = active(server).is_some();
            let own = server.catalog == CatalogScope::PerUser && usable;
            ServerAccess {
                catalog: catalogs.next().flatten(),
                usable,
                own,
            }
        });
    }
    Ok(all)
}

/// The connection to a personal server with the user's own credential; `None` without an active one.
pub async fn resolve_connection(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    spec: &Arc<ServerSpec>,
) -> Result<Option<ResolvedConnection>> {
    let credentials = of_user(app, principal, agent).await?;
    let Some(stored) = credentials.active(&spec.id) else {
        return Ok(None);
    };
    let Some(decrypted) = decrypt(app, principal, agent, stored, spec).await? else {
        return Ok(None);
    };
    Ok(Some(ResolvedConnection {
        key: Key::Personal(credential_ref(principal, agent, &spec.id, stored)),
        spec: decrypted.spec.clone(),
    }))
}

/// Notes that the next sign-in of a credential's user should ask for more scopes. `false` when that would change
/// nothing, or when the credential is no sign-in.
pub async fn request_scopes(
    app: &App,
    principal: &Principal,
    used: &CredentialRef,
    scope: &str,
) -> Result<bool> {
    let credentials = of_user(app, principal, &used.agent).await?;
    if credentials.in_force(used).is_none() {
        return Ok(false);
    }
    oauth::step_up(app, used, scope).await
}

/// Marks a credential that its server has rejected for good: its tools leave the toolset. When it was a candidate, the
/// credential before it is in force again.
pub async fn reject(app: &App, principal: &Principal, refused: &CredentialRef) -> Result<()> {
    let credentials = of_user(app, principal, &refused.agent).await?;
    if credentials.in_force(refused).is_none() {
        return Ok(());
    }
    let reason = ConnectionTestError::Unauthorized.code().as_str();
    mark_credential(&app.db, refused, CredentialState::Rejected, reason).await?;
    forget_marked(app, refused).await;
    Ok(())
}

/// Forgets a credential that was marked: its user's list, its decrypted content and its connection.
async fn forget_marked(app: &App, credential: &CredentialRef) {
    let CredentialRef {
        tenant,
        agent,
        user,
        ..
    } = credential;
    announce_change(app, *tenant, agent, user).await;
    let generation = (credential.id, credential.generation);
    app.credentials.decrypted.invalidate(&generation).await;
    app.mcp.close(&Key::Personal(credential.clone())).await;
}

/// One credential that needs its user's attention.
pub struct CredentialReport {
    pub server: String,
    pub what: CredentialTrouble,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialTrouble {
    /// The server refuses it.
    Refused,
    /// The server refused the newest one, and the one before it is in force again.
    NewestRefused,
    /// What is stored of it cannot be opened; the server was not asked.
    Unreadable,
}

/// Takes the credentials of a principal that need attention and were not reported yet. The first caller gets them and
/// reports them; later callers get none.
pub async fn credentials_to_report(
    app: &App,
    principal: &Principal,
    pack: &Pack,
) -> Result<Vec<CredentialReport>> {
    if pack
        .servers
        .iter()
        .all(|server| server.access_mode == AccessMode::AdminControlled)
    {
        return Ok(Vec::new());
    }
    let credentials = of_user(app, principal, pack.id()).await?;
    if credentials.0.iter().all(|stored| {
        !stored.candidate_refused && (stored.notified || stored.state == CredentialState::Active)
    }) {
        return Ok(Vec::new());
    }
    let mut tx = app.db.tenant(principal.tenant).await?;
    let (agent, user) = (pack.id(), &principal.user);
    let unusable = store::credentials::take_unnotified(&mut tx, agent, user).await?;
    let refused = store::credentials::take_refused_candidates(&mut tx, agent, user).await?;
    tx.commit().await?;
    announce_change(app, principal.tenant, pack.id(), &principal.user).await;
    let unusable = unusable.into_iter().map(|(server, state)| {
        let what = match state {
            CredentialState::Quarantined => CredentialTrouble::Unreadable,
            CredentialState::Active | CredentialState::Rejected => CredentialTrouble::Refused,
        };
        CredentialReport { server, what }
    });
    let refused = refused.into_iter().map(|server| CredentialReport {
        server,
        what: CredentialTrouble::NewestRefused,
    });
    Ok(unusable.chain(refused).collect())
}

/// Makes every replica read a user's credentials again.
async fn announce_change(app: &App, tenant: TenantId, agent: &AgentId, user: &UserId) {
    let (agent, user) = (agent.clone(), user.clone());
    let user_key = (tenant, agent.clone(), user.clone());
    app.credentials.users.invalidate(&user_key).await;
    let _ = app.hints.send(Hint::Credentials {
        tenant,
        agent,
        user,
    });
}

fn user_of_agent(principal: &Principal, agent: &AgentId) -> UserOfAgent {
    (principal.tenant, agent.clone(), principal.user.clone())
}

/// The generation of a credential that is in force for a principal.
fn credential_ref(
    principal: &Principal,
    agent: &AgentId,
    server: &ServerId,
    stored: &CredentialMeta,
) -> CredentialRef {
    CredentialRef {
        tenant: principal.tenant,
        user: principal.user.clone(),
        agent: agent.clone(),
        server: server.clone(),
        id: stored.id,
        generation: stored.current(),
    }
}

/// A decrypted credential, and the server as it is reached with the credential.
struct DecryptedCredential {
    /// The server as its pack defines it.
    base: Arc<ServerSpec>,
    spec: Arc<ServerSpec>,
    content: Content,
}

/// The content of a credential. The tokens of a sign-in are not kept here: they are refreshed elsewhere and read when
/// they are needed.
#[derive(Clone)]
enum Content {
    Values(Values),
    SignIn(CredentialRef),
}

/// Decrypts a credential, once while it is in use; `None` when it cannot be decrypted.
async fn decrypt(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    stored: &CredentialMeta,
    spec: &Arc<ServerSpec>,
) -> Result<Option<Arc<DecryptedCredential>>> {
    let generation = (stored.id, stored.current());
    if let Some(known) = app.credentials.decrypted.get(&generation).await {
        if Arc::ptr_eq(&known.base, spec) || known.base == *spec {
            return Ok(Some(known));
        }
        // The pack has changed since.
        let Ok(effective) = known.content.effective(spec) else {
            return Ok(None);
        };
        let decrypted = Arc::new(DecryptedCredential {
            base: spec.clone(),
            spec: Arc::new(effective),
            content: known.content.clone(),
        });
        app.credentials
            .decrypted
            .insert(generation, decrypted.clone())
            .await;
        return Ok(Some(decrypted));
    }
    let credential = credential_ref(principal, agent, &spec.id, stored);
    let load = async {
        let text = app.keys.open_credential(&credential).await?;
        let content = match from_sealable::<Authorization>(&text) {
            Ok(_) => Content::SignIn(credential.clone()),
            Err(_) => Content::Values(Values::from_sealable(&text).map_err(Error::internal)?),
        };
        let effective = content.effective(spec)?;
        Ok::<_, OpenError>(Arc::new(DecryptedCredential {
            base: spec.clone(),
            spec: Arc::new(effective),
            content,
        }))
    };
    match app
        .credentials
        .decrypted
        .try_get_with(generation, load)
        .await
    {
        Ok(decrypted) => Ok(Some(decrypted)),
        Err(error) => match &*error {
            OpenError::Unopenable(_) => {
                forget_marked(app, &credential).await;
                Ok(None)
            }
            OpenError::Failed(error) => Err(error.share()),
        },
    }
}

impl DecryptedCredential {
    /// The values of the fields; `None` for a sign-in.
    fn values(&self) -> Option<&Values> {
        match &self.content {
            Content::Values(values) => Some(values),
            Content::SignIn(_) => None,
        }
    }
}

/// Makes a scrubber that removes the values a user has entered for the servers of a pack from any text.
pub async fn scrubber(app: &App, principal: &Principal, pack: &Pack) -> Result<Scrubber> {
    let personal = |spec: &&ServerSpec| spec.access_mode == AccessMode::UserControlled;
    let mut entered = Vec::new();
    for spec in pack.servers.iter().filter(personal) {
        let credentials = of_user(app, principal, pack.id()).await?;
        let Some(stored) = credentials.active(&spec.id) else {
            continue;
        };
        let spec = Arc::new(spec.clone());
        // A credential that no longer fits its server, or cannot be decrypted, must not stop the conversation.
        if let Ok(Some(known)) = decrypt(app, principal, pack.id(), stored, &spec).await {
            entered.extend(known.spec.entered.iter().cloned());
        }
    }
    Ok(Scrubber::new(&entered))
}

impl Content {
    /// The server as it is reached with this content.
    fn effective(&self, spec: &ServerSpec) -> Result<ServerSpec> {
        match self {
            Self::Values(values) => personal::effective(spec, values).map_err(|unfit| {
                Error::conflict(
                    ErrorCode::CredentialUnusable,
                    format!(
                        "what was entered for {} does not fit it any more: {}",
                        spec.id, unfit.fault
                    ),
                )
            }),
            Self::SignIn(credential) => {
                let secret = |oauth: &OAuthConfig| oauth.client_secret.clone();
                Ok(ServerSpec {
                    auth: Some(ServerAuth::User(UserSignIn {
                        credential: credential.clone(),
                        client_secret: spec.oauth.as_ref().and_then(secret),
                    })),
                    ..spec.clone()
                })
            }
        }
    }
}

/// Forgets a user's credentials that another replica has changed, and closes the connections of old generations.
pub async fn forget_user(app: &App, tenant: TenantId, agent: &AgentId, user: &UserId) {
    app.credentials
        .users
        .invalidate(&(tenant, agent.clone(), user.clone()))
        .await;
    let connected = app.mcp.personal_connections().into_iter();
    let of_agent = connected.filter(|of| of.tenant == tenant && of.agent == *agent);
    if let Err(error) = close_outdated(app, of_agent.collect()).await {
        tracing::debug!(
            error = error.with_cause(),
            "connections are looked at again within a second"
        );
    }
}

/// Closes a user's connections; their credentials stay.
pub async fn close_all(app: &App, tenant: TenantId, user: &UserId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let ids = store::credentials::list_ids_of_user(&mut tx, user).await?;
    drop(tx);
    let ids: HashSet<CredentialId> = ids.into_iter().collect();
    for credential in app.mcp.personal_connections() {
        if credential.tenant == tenant && ids.contains(&credential.id) {
            close(app, credential).await;
        }
    }
    Ok(())
}

/// Closes the personal connections of everybody of a tenant.
pub async fn close_tenant(app: &App, tenant: TenantId) {
    for credential in app.mcp.personal_connections() {
        if credential.tenant == tenant {
            close(app, credential).await;
        }
    }
}

/// Closes a personal connection and forgets the credential that it was made with.
async fn close(app: &App, credential: CredentialRef) {
    let generation = (credential.id, credential.generation);
    app.mcp.close(&Key::Personal(credential)).await;
    app.credentials.decrypted.invalidate(&generation).await;
}

/// Closes the connections of a credential's generations that are no longer in force.
async fn close_older(app: &App, of: &CredentialRef) {
    let connected = app.mcp.personal_connections().into_iter();
    let generations = connected.filter(|it| (it.tenant, it.id) == (of.tenant, of.id));
    if let Err(error) = close_outdated(app, generations.collect()).await {
        tracing::debug!(
            error = error.with_cause(),
            "connections are looked at again within a second"
        );
    }
}

/// Polls for changed credentials while any are in memory: two queries for all tenants.
pub async fn poll_changes(app: &Arc<App>) -> Result<()> {
    for user_key in find_outdated(app).await? {
        app.credentials.users.invalidate(&*user_key).await;
    }
    close_outdated(app, app.mcp.personal_connections()).await
}

/// The users whose cached credentials differ from the rows.
async fn find_outdated(app: &App) -> Result<Vec<Arc<UserOfAgent>>> {
    let known: Vec<(Arc<UserOfAgent>, Arc<UserCredentials>)> =
        app.credentials.users.iter().collect();
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let users: Vec<_> = known.iter().map(|(user_key, _)| user_key.clone()).collect();
    let rows = app.db.look(move |tx| {
        Box::pin(async move {
            store::credentials::list_of_users(tx, users.iter().map(|user_key| &**user_key)).await
        })
    });
    let rows = rows.await?;
    let mut now: HashMap<UserOfAgent, Vec<CredentialMeta>> = HashMap::new();
    for (user_key, credential) in rows {
        now.entry(user_key).or_default().push(credential);
    }
    let differs = |(user_key, credentials): &(Arc<UserOfAgent>, Arc<UserCredentials>)| {
        now.get(&**user_key).map_or(&[][..], Vec::as_slice) != credentials.0
    };
    Ok(known
        .into_iter()
        .filter(differs)
        .map(|(user_key, _)| user_key)
        .collect())
}

/// Closes connections whose credential is no longer in force. A connection of a [`ConnectionTrial`] stays.
async fn close_outdated(app: &App, mut connected: Vec<CredentialRef>) -> Result<()> {
    // Trials are left out before the rows are read: a trial that ends in between has its row by then.
    connected.retain(|credential| !app.credentials.trials().contains(credential));
    let ids: HashSet<(TenantId, CredentialId)> = connected
        .iter()
        .map(|credential| (credential.tenant, credential.id))
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = ids.into_iter().collect();
    let rows = app
        .db
        .look(move |tx| Box::pin(async move { store::credentials::list_active(tx, &ids).await }));
    let rows = rows.await?;
    let in_force: HashSet<(TenantId, CredentialId, u64)> = rows.into_iter().collect();
    for credential in connected {
        if !in_force.contains(&(credential.tenant, credential.id, credential.generation)) {
            close(app, credential).await;
        }
    }
    Ok(())
}
