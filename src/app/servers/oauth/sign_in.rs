//! A sign-in from its beginning to its tokens. Its state in between is a row, so a user may come back to any replica.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use url::Url;
use uuid::Uuid;

use super::clients;
use crate::app::{
    App,
    platform::keys::contexts,
    servers::credentials::{self, ConnectionTrial},
};
use domain::{
    credential::CredentialRef,
    error::{Error, ErrorCode, Result},
    ids::{ConversationId, ServerId, TenantId},
    oauth::{
        Authorization, ClientAuthMethod, OAuthClient, OAuthConfig, PendingSignIn, add_scopes,
        from_sealable, scopes_of, to_sealable,
    },
    pack::Pack,
    principal::{Audience, Principal},
    secret::Secret,
    server::ServerSpec,
};
use mcp::{
    McpErrorKind,
    oauth::{
        self, CallbackParams, Challenge, ClientChoice, OAuthError, OAuthErrorKind, SignInRequest,
    },
};
use store::oauth_sign_ins::SignIn;

/// How long a user may take to sign in.
const LIFE: Duration = Duration::from_secs(600);
/// How long the row of a used or expired sign-in is kept.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Least time between two registrations of a client in place of an older one.
const REGISTER_PAUSE: Duration = Duration::from_secs(600);
/// The path of the document that describes the program as a client.
const DOCUMENT: &str = "/.well-known/oauth-client/chatelaine.json";

/// Where a sign-in began.
#[derive(Clone, Copy, Default)]
pub struct SignInOrigin {
    pub conversation: Option<ConversationId>,
    pub flow: Option<Uuid>,
}

/// A sign-in that has begun.
pub struct BegunSignIn {
    /// Where the user signs in.
    pub url: Url,
    /// The id of the sign-in in the cookie of the browser that asked for it.
    pub id: Uuid,
    /// The secret of that cookie.
    pub browser: Secret,
}

/// Why a sign-in cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The server accepts everybody, or wants something other than a sign-in.
    #[error("the server does not ask for a sign-in")]
    NotWanted,
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Unusable(String),
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<OAuthError> for BeginError {
    fn from(error: OAuthError) -> Self {
        match error.kind {
            OAuthErrorKind::Unavailable => Self::Unavailable(error.why),
            _ => Self::Unusable(error.why),
        }
    }
}

impl From<BeginError> for Error {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::Failed(error) => error,
            BeginError::Unavailable(why) => Self::Unavailable(why),
            other => Self::conflict(ErrorCode::NoSignIn, other.to_string()),
        }
    }
}

/// Sends a user to the sign-in of a server.
pub async fn begin(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &ServerSpec,
    origin: SignInOrigin,
) -> Result<BegunSignIn, BeginError> {
    let Some(address) = spec.url() else {
        return Err(BeginError::NotWanted);
    };
    let challenge = challenge_of(app, principal, pack, spec).await?;
    let found = oauth::discover(&app.egress, address, &challenge).await?;
    let config = spec.oauth.clone().unwrap_or_default();
    let found = found.for_sign_in(&config)?;
    let before = scopes_so_far(app, principal, pack, &spec.id).await?;
    let scopes = found.scopes_to_request(&config.scopes, &before);
    let server = &found.authorization_server;
    let ChosenClient { client, row } =
        choose_client(app, principal, &config, server, &scopes).await?;
    let request = SignInRequest {
        at: &found,
        client,
        redirect_uri: &redirect_uri(app),
        scopes,
        parameters: &BTreeMap::new(),
    };
    let started = oauth::start(&app.egress, request).await?;
    let id = Uuid::now_v7();
    let browser = Secret::new(hex::encode(rand::random::<[u8; 32]>()));
    let context = contexts::of_sign_in(principal.tenant, &principal.user, id);
    let sealed = to_sealable(&started.pending);
    let sign_in = SignIn {
        id,
        user: principal.user.clone(),
        locale: principal.locale.clone(),
        agent: pack.id().clone(),
        server: spec.id.clone(),
        conversation: origin.conversation,
        flow: origin.flow,
        browser_hash: hash(&browser),
        client: row,
        sealed: app.keys.seal(principal.tenant, &context, &sealed).await?,
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::oauth_sign_ins::begin(&mut tx, &sign_in, &hash(&started.state), LIFE).await?;
    if let Some(row) = row {
        store::oauth_clients::mark_begun(&mut tx, row).await?;
    }
    tx.commit().await?;
    Ok(BegunSignIn {
        url: started.url,
        id,
        browser,
    })
}

/// Asks the server for its OAuth challenge, with a request that has no credential.
async fn challenge_of(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &ServerSpec,
) -> Result<Challenge, BeginError> {
    let trial = ConnectionTrial::begin_without(app, principal, pack.id(), &spec.id);
    let asked = trial.list(&Arc::new(spec.asking_for_sign_in())).await;
    trial.give_up().await;
    let Err(error) = asked else {
        return Err(BeginError::NotWanted);
    };
    match error.kind {
        McpErrorKind::Unreachable | McpErrorKind::TimedOut | McpErrorKind::RateLimited => {
            Err(BeginError::Unavailable(error.to_string()))
        }
        // The server gave any other answer to a caller without a credential, with a challenge or without one.
        _ => Ok(error
            .challenge
            .map(|challenge| *challenge)
            .unwrap_or_default()),
    }
}

/// The OAuth client that a sign-in uses.
struct ChosenClient {
    client: OAuthClient,
    /// The id of the row of the client, if the client was registered.
    row: Option<Uuid>,
}

/// Chooses the client of a sign-in. A newly registered client is stored for the next users. A client that the
/// authorization server may have forgotten, or whose secret ends soon, is registered again.
async fn choose_client(
    app: &App,
    principal: &Principal,
    config: &OAuthConfig,
    server: &oauth::AuthorizationServer,
    scopes: &[String],
) -> Result<ChosenClient, BeginError> {
    let (tenant, redirect_uri) = (principal.tenant, redirect_uri(app));
    let document = document_url(app);
    let choice = |registered| ClientChoice {
        config,
        redirect_uri: &redirect_uri,
        document: document.as_ref(),
        registered,
        scopes,
    };
    if !oauth::uses_registration(server, config, document.as_ref()) {
        let client = oauth::choose_client(&app.egress, server, choice(None)).await?;
        return Ok(ChosenClient { client, row: None });
    }
    let issuer = &server.issuer;
    let mut tx = app.db.tenant(tenant).await?;
    let user = &principal.user;
    let stored = store::oauth_clients::get(&mut tx, issuer, &redirect_uri, user, LIFE).await?;
    drop(tx);
    let known = match &stored {
        Some(stored) => clients::open(&app.keys, tenant, stored.id, &stored.sealed).await?,
        None => None,
    };
    if let (Some(client), Some(stored)) = (known, stored) {
        let known = ChosenClient {
            client,
            row: Some(stored.id),
        };
        let is_wanted = stored.is_doubtful || ends_soon(&known.client, app.clock.now());
        if !is_wanted {
            return Ok(known);
        }
        let mut tx = app.db.tenant(tenant).await?;
        let may_register =
            store::oauth_clients::claim_another(&mut tx, stored.id, REGISTER_PAUSE).await?;
        tx.commit().await?;
        if !may_register {
            return Ok(known);
        }
        return match oauth::choose_client(&app.egress, server, choice(None)).await {
            Ok(client) => Ok(store_client(app, tenant, issuer, &redirect_uri, client).await?),
            Err(error) => {
                tracing::warn!(
                    issuer,
                    error = error.to_string(),
                    "a client could not be registered again; the one before is used"
                );
                let mut tx = app.db.tenant(tenant).await?;
                store::oauth_clients::release_claim(&mut tx, stored.id).await?;
                tx.commit().await?;
                Ok(known)
            }
        };
    }
    let client = oauth::choose_client(&app.egress, server, choice(None)).await?;
    Ok(store_client(app, tenant, issuer, &redirect_uri, client).await?)
}

/// Stores a newly registered client.
async fn store_client(
    app: &App,
    tenant: TenantId,
    issuer: &str,
    redirect_uri: &str,
    client: OAuthClient,
) -> Result<ChosenClient> {
    let id = Uuid::now_v7();
    let context = contexts::of_oauth_client(tenant, id);
    let sealed = app
        .keys
        .seal(tenant, &context, &to_sealable(&client))
        .await?;
    let mut tx = app.db.tenant(tenant).await?;
    store::oauth_clients::put(&mut tx, id, issuer, redirect_uri, &sealed).await?;
    tx.commit().await?;
    Ok(ChosenClient {
        client,
        row: Some(id),
    })
}

/// Whether a client's secret ends before a user who signs in now would be back.
fn ends_soon(client: &OAuthClient, now: OffsetDateTime) -> bool {
    client.secret_ends_at.is_some_and(|end| end < now + LIFE)
}

/// The scopes that the user allowed so far and those that the server asked for since; empty when it asked for none.
async fn scopes_so_far(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    server: &ServerId,
) -> Result<Vec<String>> {
    let credentials = credentials::of_user(app, principal, pack.id()).await?;
    let Some(stored) = credentials.get(server) else {
        return Ok(Vec::new());
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    let so_far = store::authorizations::get_scopes(&mut tx, stored.id).await?;
    // Without a request for more, the user may now allow less than before.
    let Some(so_far) = so_far.filter(|so_far| !so_far.wanted.is_empty()) else {
        return Ok(Vec::new());
    };
    let mut scopes = so_far.granted;
    add_scopes(&mut scopes, so_far.wanted.iter().map(String::as_str));
    Ok(scopes)
}

/// A sign-in whose browser came back, so that its state is used up.
pub struct TakenSignIn {
    pub principal: Principal,
    pub sign_in: SignIn,
    pending: PendingSignIn,
}

/// Why a state no longer leads to a sign-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    Unknown,
    Used,
    Expired,
}

/// The sign-in of a state, or why there is none.
pub enum SignInLookup {
    Taken(Box<TakenSignIn>),
    Stale(Stale),
}

/// Uses up the sign-in that a state belongs to.
pub async fn take(app: &App, state: &Secret) -> Result<SignInLookup> {
    let mut tx = app.db.system().await?;
    let found = store::oauth_sign_ins::find_by_state(&mut tx, &hash(state)).await?;
    drop(tx);
    let Some((tenant, id)) = found else {
        return Ok(SignInLookup::Stale(Stale::Unknown));
    };
    let mut tx = app.db.tenant(tenant).await?;
    let Some(sign_in) = store::oauth_sign_ins::take(&mut tx, id).await? else {
        let is_used = store::oauth_sign_ins::is_used(&mut tx, id).await?;
        let stale = if is_used { Stale::Used } else { Stale::Expired };
        return Ok(SignInLookup::Stale(stale));
    };
    if let Some(client) = sign_in.client {
        store::oauth_clients::mark_returned(&mut tx, client).await?;
    }
    tx.commit().await?;
    let context = contexts::of_sign_in(tenant, &sign_in.user, id);
    let text = app.keys.open(tenant, &context, &sign_in.sealed).await?;
    let principal = Principal {
        tenant,
        user: sign_in.user.clone(),
        claims: Arc::default(),
        locale: sign_in.locale.clone(),
        authenticated: true,
        key: None,
        audience: Audience::default(),
    };
    Ok(SignInLookup::Taken(Box::new(TakenSignIn {
        principal,
        sign_in,
        pending: from_sealable(&text).map_err(Error::internal)?,
    })))
}

impl TakenSignIn {
    /// Whether the browser is the one that asked for the sign-in.
    pub fn is_of_browser(&self, given: Option<&Secret>) -> bool {
        given.is_some_and(|given| hash(given) == self.sign_in.browser_hash)
    }
}

/// Exchanges what came back for tokens.
pub async fn redeem(
    app: &App,
    taken: &TakenSignIn,
    params: &CallbackParams,
) -> Result<Authorization, OAuthError> {
    let pending = &taken.pending;
    let redeemed = oauth::redeem(&app.egress, pending, params).await;
    if let Err(error) = &redeemed {
        tracing::warn!(server = %taken.sign_in.server, issuer = pending.service.issuer, error = error.to_string(), "a sign-in brought no tokens");
        // Codes that say that the client is unknown or not allowed.
        let codes = [
            "invalid_client",
            "incorrect_client_credentials",
            "unauthorized_client",
            "invalid_scope",
        ];
        let is_of_client = codes.iter().any(|code| error.is_refusal(code));
        if let Some(client) = taken.sign_in.client.filter(|_| is_of_client) {
            clients::note_row_unknown(&app.db, taken.principal.tenant, client).await;
        }
    }
    let (service, scopes) = (pending.service.clone(), pending.scopes.clone());
    Ok(redeemed?.into_authorization(service, scopes, None))
}

/// Notes the scopes that a server asks for. `false` when the user has already allowed them: then another sign-in would
/// change nothing.
pub async fn step_up(app: &App, credential: &CredentialRef, scope: &str) -> Result<bool> {
    let mut tx = app.db.tenant(credential.tenant).await?;
    let Some(so_far) = store::authorizations::get_scopes(&mut tx, credential.id).await? else {
        return Ok(false);
    };
    let asked = scopes_of(scope);
    if asked.iter().all(|scope| so_far.granted.contains(scope)) {
        return Ok(false);
    }
    let mut wanted = so_far.wanted;
    add_scopes(&mut wanted, asked.iter().map(String::as_str));
    store::authorizations::put_wanted_scopes(&mut tx, credential.id, &wanted).await?;
    tx.commit().await?;
    Ok(true)
}

/// Forgets the sign-ins that ended an hour ago.
pub async fn purge_old(app: &Arc<App>) -> Result<()> {
    let mut tx = app.db.system().await?;
    let tenants = store::oauth_sign_ins::list_tenants_with_old(&mut tx, REMEMBERED).await?;
    drop(tx);
    for tenant in tenants {
        let mut tx = app.db.tenant(tenant).await?;
        store::oauth_sign_ins::delete_old(&mut tx, REMEMBERED).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// The document that describes the program as an OAuth client.
pub fn client_document(app: &App) -> serde_json::Value {
    let id = Url::parse(&format!("{}{DOCUMENT}", base_url(app))).ok();
    oauth::client_metadata(id.as_ref(), &redirect_uri(app), ClientAuthMethod::None)
}

/// The address where authorization servers read the document; `None` unless it is https, since they may not reach it.
fn document_url(app: &App) -> Option<Url> {
    let url = Url::parse(&format!("{}{DOCUMENT}", base_url(app))).ok()?;
    (url.scheme() == "https").then_some(url)
}

/// The address to which users come back.
fn redirect_uri(app: &App) -> String {
    format!("{}/oauth/callback", base_url(app))
}

fn base_url(app: &App) -> &str {
    app.config.public_url.trim_end_matches('/')
}

fn hash(secret: &Secret) -> Vec<u8> {
    Sha256::digest(secret.expose()).to_vec()
}
