//! Personal servers: the credentials of users, and the connections that are made with them.
//!
//! The rows are the truth. The memory of a process is bounded and forgets what nobody uses: which user has which
//! credential ([`UserCredentials`]), decrypted credentials, catalogs. A change is announced to the other replicas at
//! once by a hint, and each process also polls for changes every second ([`find_news`]).
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

pub(super) use self::{catalogs::learn, trial::ConnectionTrial};
pub use self::{
    catalogs::{catalog_changed_elsewhere, follow_changes},
    change::{
        NewSignIn, end_sign_ins, prove, put, put_checked, put_sign_in, remove, remove_all,
        remove_by_id, test,
    },
    trial::TestOutcome,
    view::{FieldView, ServerConnection, get, list, views},
};
use crate::{
    app::{
        App,
        platform::keys::{OpenError, mark_credential},
        servers::{connections, oauth},
    },
    domain::{
        connection::ConnectionTestError,
        credential::{CredentialMeta, CredentialRef, CredentialState},
        error::{Error, ErrorCode, Result},
        ids::{AgentId, CredentialId, ServerId, TenantId, UserId},
        oauth::{Authorization, OAuthConfig, from_sealable},
        owner::{CatalogOwner, ConnectionOwner},
        pack::Pack,
        personal::{self, Values},
        principal::Principal,
        scrub::Scrubber,
        server::{AccessMode, CatalogScope, ServerAuth, ServerSpec, UserSignIn},
        tool::Catalog,
    },
    mcp::Key,
    store::{self, hints::Hint},
};

/// Users whose credentials are known without a query; one who is idle is forgotten.
const USERS: u64 = 20_000;
const USER_IDLE: Duration = Duration::from_secs(60);
/// Decrypted credentials in memory, for as long as a connection may be idle.
const DECRYPTED: u64 = 4096;
const DECRYPTED_IDLE: Duration = Duration::from_secs(600);
/// Catalogs of personal servers, looked up again after a while even if nobody says that they changed.
const CATALOGS: u64 = 4096;
const CATALOG_LIFE: Duration = Duration::from_secs(60);
/// A list that could not be refreshed is tried again after this time.
const REFRESH_PAUSE: Duration = Duration::from_secs(30);

type UserOfAgent = (TenantId, AgentId, UserId);
type CatalogKey = (TenantId, AgentId, ServerId, CatalogOwner);

/// What this process knows of its users' credentials.
pub struct Credentials {
    users: Cache<UserOfAgent, Arc<UserCredentials>>,
    decrypted: Cache<(CredentialId, u64), Arc<DecryptedCredential>>,
    catalogs: Cache<CatalogKey, Arc<Catalog>>,
    /// Lists being refreshed, or not to be asked for again so soon.
    refreshing: Cache<CatalogKey, ()>,
    /// One change of a credential at a time.
    changing: Cache<(UserOfAgent, ServerId), Arc<tokio::sync::Mutex<()>>>,
    /// One question at a time whether a server tells a false credential from a right one.
    judging: Cache<(TenantId, AgentId, ServerId), Arc<tokio::sync::Mutex<()>>>,
    /// Temporary connections that test a credential before it is stored.
    trials: Mutex<HashSet<Key>>,
}

/// A user's credentials at one agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UserCredentials(Vec<CredentialMeta>);

/// How to reach a personal server for one user.
pub struct ResolvedConnection {
    pub key: Key,
    pub spec: Arc<ServerSpec>,
}

/// A server as one user sees it: its catalog, and whether the user may use it.
pub struct ServerAccess {
    pub catalog: Option<Arc<Catalog>>,
    pub usable: bool,
    /// The catalog is this user's alone.
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
            changing: Cache::builder()
                .max_capacity(DECRYPTED)
                .time_to_idle(USER_IDLE)
                .build(),
            judging: Cache::builder()
                .max_capacity(CATALOGS)
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

impl UserCredentials {
    pub fn of(&self, server: &ServerId) -> Option<&CredentialMeta> {
        self.0
            .iter()
            .find(|credential| credential.server == server.as_str())
    }

    pub(in crate::app) fn active(&self, server: &ServerId) -> Option<&CredentialMeta> {
        self.of(server)
            .filter(|credential| credential.state == CredentialState::Active)
    }
}

/// A user's credentials at an agent. A query only after a while of not being asked.
pub async fn of_user(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
) -> Result<Arc<UserCredentials>> {
    let whose = whose(principal, agent);
    let load = async {
        let mut tx = app.db.tenant(principal.tenant).await?;
        Ok(Arc::new(UserCredentials(
            store::credentials::of_user(&mut tx, agent, &principal.user).await?,
        )))
    };
    app.credentials
        .users
        .try_get_with(whose, load)
        .await
        .map_err(|error| copy_of(&error))
}

/// What a principal sees of the servers of a pack, in its order.
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
    let held = |server: &ServerSpec| {
        credentials
            .as_ref()
            .and_then(|credentials| credentials.active(&server.id))
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
            let usable = held(server).is_some();
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

/// How to reach a personal server with the user's own credential; `None` without an active one.
pub async fn connection(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    spec: &Arc<ServerSpec>,
) -> Result<Option<ResolvedConnection>> {
    let credentials = of_user(app, principal, agent).await?;
    let Some(held) = credentials.active(&spec.id) else {
        return Ok(None);
    };
    let Some(decrypted) = decrypt(app, principal, agent, held, spec).await? else {
        return Ok(None);
    };
    Ok(Some(ResolvedConnection {
        key: key(&credential(principal, agent, &spec.id, held)),
        spec: decrypted.spec.clone(),
    }))
}

/// Asks the user of a connection for more scopes, at their next sign-in. `false` when that would change nothing, or the
/// connection was not made with a sign-in.
pub async fn want_scopes(
    app: &App,
    principal: &Principal,
    connection: &Key,
    scope: &str,
) -> Result<bool> {
    let credentials = of_user(app, principal, &connection.agent).await?;
    let held = credentials
        .active(&connection.server)
        .filter(|held| connection.owner == owner(held.id, held.current()));
    let Some(held) = held else {
        return Ok(false);
    };
    let credential = credential(principal, &connection.agent, &connection.server, held);
    oauth::step_up(app, &credential, scope).await
}

/// Marks a credential that the server has rejected for good: its tools leave the toolbox. Where it was a candidate, what
/// was there before it is in force again.
pub async fn reject(app: &App, principal: &Principal, connection: &Key) -> Result<()> {
    let credentials = of_user(app, principal, &connection.agent).await?;
    let Some(held) = credentials
        .active(&connection.server)
        .filter(|held| connection.owner == owner(held.id, held.current()))
    else {
        return Ok(());
    };
    let credential = credential(principal, &connection.agent, &connection.server, held);
    let reason = ConnectionTestError::Unauthorized.code().as_str();
    mark_credential(&app.db, &credential, CredentialState::Rejected, reason).await?;
    forget_marked(app, &credential).await;
    Ok(())
}

/// Nothing that was known of a credential before it was marked is used any more.
async fn forget_marked(app: &App, credential: &CredentialRef) {
    let CredentialRef {
        tenant,
        agent,
        user,
        ..
    } = credential;
    changed(app, *tenant, agent, user).await;
    let generation = (credential.id, credential.generation);
    app.credentials.decrypted.invalidate(&generation).await;
    app.mcp.close(&key(credential)).await;
}

/// What a user has to be told of their credentials.
pub struct CredentialReport {
    pub server: String,
    /// What was entered last is refused, and what was there before is in force again.
    pub keeps_old: bool,
}

/// The servers of which the principal has to be told that their credential needs attention. Whoever asks
/// first tells; the answer is empty from then on.
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
    if credentials.0.iter().all(|held| {
        !held.candidate_refused && (held.notified || held.state == CredentialState::Active)
    }) {
        return Ok(Vec::new());
    }
    let mut tx = app.db.tenant(principal.tenant).await?;
    let report = |keeps_old| move |server| CredentialReport { server, keeps_old };
    let (agent, user) = (pack.id(), &principal.user);
    let rejected = store::credentials::take_unnotified(&mut tx, agent, user).await?;
    let refused = store::credentials::take_refused_candidates(&mut tx, agent, user).await?;
    tx.commit().await?;
    changed(app, principal.tenant, pack.id(), &principal.user).await;
    let rejected = rejected.into_iter().map(report(false));
    Ok(rejected
        .chain(refused.into_iter().map(report(true)))
        .collect())
}

/// Forgets what is known of a user's credentials, here and on the other replicas.
async fn changed(app: &App, tenant: TenantId, agent: &AgentId, user: &UserId) {
    let (agent, user) = (agent.clone(), user.clone());
    let whose = (tenant, agent.clone(), user.clone());
    app.credentials.users.invalidate(&whose).await;
    let _ = app.hints.send(Hint::Credentials {
        tenant,
        agent,
        user,
    });
}

fn whose(principal: &Principal, agent: &AgentId) -> UserOfAgent {
    (principal.tenant, agent.clone(), principal.user.clone())
}

/// The generation of a credential that calls of a principal are made with.
fn credential(
    principal: &Principal,
    agent: &AgentId,
    server: &ServerId,
    held: &CredentialMeta,
) -> CredentialRef {
    CredentialRef {
        tenant: principal.tenant,
        user: principal.user.clone(),
        agent: agent.clone(),
        server: server.clone(),
        id: held.id,
        generation: held.current(),
    }
}

/// The key of a personal connection.
fn key(credential: &CredentialRef) -> Key {
    Key {
        tenant: credential.tenant,
        agent: credential.agent.clone(),
        server: credential.server.clone(),
        owner: owner(credential.id, credential.generation),
    }
}

fn owner(id: CredentialId, generation: u64) -> ConnectionOwner {
    ConnectionOwner::Credential { id, generation }
}

/// An error that several waited for.
fn copy_of(error: &Error) -> Error {
    match error {
        Error::NotFound(text) => Error::NotFound(text.clone()),
        Error::Conflict(code, text) => Error::Conflict(*code, text.clone()),
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

/// A decrypted credential: the server as it is for its user.
struct DecryptedCredential {
    /// The pack's server that it was made from.
    base: Arc<ServerSpec>,
    spec: Arc<ServerSpec>,
    content: Content,
}

/// What a credential holds. The tokens of a sign-in change without it and are looked up when they are needed.
#[derive(Clone)]
enum Content {
    Values(Values),
    SignIn(CredentialRef),
}

/// Decrypts a credential once for as long as it is used; `None` when it cannot be.
async fn decrypt(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    held: &CredentialMeta,
    spec: &Arc<ServerSpec>,
) -> Result<Option<Arc<DecryptedCredential>>> {
    let generation = (held.id, held.current());
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
    let credential = credential(principal, agent, &spec.id, held);
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
            OpenError::Failed(error) => Err(copy_of(error)),
        },
    }
}

impl DecryptedCredential {
    /// What was entered in fields; nothing for a sign-in.
    fn values(&self) -> Option<&Values> {
        match &self.content {
            Content::Values(values) => Some(values),
            Content::SignIn(_) => None,
        }
    }
}

/// Finds what a user has entered for the servers of a pack, wherever it is repeated.
pub async fn scrubber(app: &App, principal: &Principal, pack: &Pack) -> Result<Scrubber> {
    let personal = |spec: &&ServerSpec| spec.access_mode == AccessMode::UserControlled;
    let mut entered = Vec::new();
    for spec in pack.servers.iter().filter(personal) {
        let credentials = of_user(app, principal, pack.id()).await?;
        let Some(held) = credentials.active(&spec.id) else {
            continue;
        };
        let spec = Arc::new(spec.clone());
        // What does not fit its server any more, or cannot be decrypted, is no reason to refuse a conversation.
        if let Ok(Some(known)) = decrypt(app, principal, pack.id(), held, &spec).await {
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

/// Another replica changed a user's credentials.
pub async fn changed_elsewhere(app: &App, tenant: TenantId, agent: &AgentId, user: &UserId) {
    app.credentials
        .users
        .invalidate(&(tenant, agent.clone(), user.clone()))
        .await;
    let keys = app
        .mcp
        .personal_keys()
        .into_iter()
        .filter(|key| key.tenant == tenant && key.agent == *agent);
    if let Err(error) = close_outdated(app, keys.collect()).await {
        tracing::debug!(%error, "connections are looked at again within a second");
    }
}

/// Closes a user's connections; what they entered stays.
pub async fn close_all(app: &App, tenant: TenantId, user: &UserId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let ids = store::credentials::ids_of_user(&mut tx, user).await?;
    drop(tx);
    let ids: HashSet<CredentialId> = ids.into_iter().collect();
    for key in app.mcp.personal_keys() {
        let credential = key.owner.credential();
        if key.tenant == tenant && credential.is_some_and(|(id, _)| ids.contains(&id)) {
            close(app, &key).await;
        }
    }
    Ok(())
}

/// Closes the personal connections of everybody of a tenant.
pub async fn close_tenant(app: &App, tenant: TenantId) {
    for key in app.mcp.personal_keys() {
        if key.tenant == tenant {
            close(app, &key).await;
        }
    }
}

/// Closes a personal connection and forgets the credential that it was made with.
async fn close(app: &App, key: &Key) {
    app.mcp.close(key).await;
    if let Some(credential) = key.owner.credential() {
        app.credentials.decrypted.invalidate(&credential).await;
    }
}

/// Closes the connections that were made with other generations of a credential and are not in force any more.
async fn close_older(app: &App, of: &CredentialRef) {
    let keys = app.mcp.personal_keys().into_iter();
    let keys = keys.filter(|key| {
        let credential = key.owner.credential();
        key.tenant == of.tenant && credential.is_some_and(|(id, _)| id == of.id)
    });
    if let Err(error) = close_outdated(app, keys.collect()).await {
        tracing::debug!(%error, "connections are looked at again within a second");
    }
}

/// Looks for changed credentials as long as any are in memory: two queries for all tenants.
pub async fn find_news(app: &Arc<App>) -> Result<()> {
    for whose in outdated(app).await? {
        app.credentials.users.invalidate(&*whose).await;
    }
    close_outdated(app, app.mcp.personal_keys()).await
}

/// The users whose cached credentials differ from the rows.
async fn outdated(app: &App) -> Result<Vec<Arc<UserOfAgent>>> {
    let known: Vec<(Arc<UserOfAgent>, Arc<UserCredentials>)> =
        app.credentials.users.iter().collect();
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let mut tx = app.db.system().await?;
    let rows =
        store::credentials::of_users(&mut tx, known.iter().map(|(whose, _)| &**whose)).await?;
    drop(tx);
    let mut now: HashMap<UserOfAgent, Vec<CredentialMeta>> = HashMap::new();
    for (whose, credential) in rows {
        now.entry(whose).or_default().push(credential);
    }
    let differs = |(whose, credentials): &(Arc<UserOfAgent>, Arc<UserCredentials>)| {
        now.get(&**whose).map_or(&[][..], Vec::as_slice) != credentials.0
    };
    Ok(known
        .into_iter()
        .filter(differs)
        .map(|(whose, _)| whose)
        .collect())
}

/// Closes connections whose credential is not in force any more. One that is only being tried is left alone.
async fn close_outdated(app: &App, mut keys: Vec<Key>) -> Result<()> {
    // In this order: a trial that ends between the two is a row when the rows are read.
    keys.retain(|key| !app.credentials.trials().contains(key));
    let ids: HashSet<(TenantId, CredentialId)> = keys
        .iter()
        .filter_map(|key| Some((key.tenant, key.owner.credential()?.0)))
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = ids.into_iter().collect();
    let mut tx = app.db.system().await?;
    let rows = store::credentials::in_force(&mut tx, &ids).await?;
    drop(tx);
    let in_force: HashSet<(TenantId, ConnectionOwner)> = rows
        .into_iter()
        .map(|(tenant, id, generation)| (tenant, owner(id, generation)))
        .collect();
    for key in keys {
        if !in_force.contains(&(key.tenant, key.owner)) {
            close(app, &key).await;
        }
    }
    Ok(())
}
