//! Access tokens of users, from their first refresh to their revocation. One replica refreshes them for all before
//! they end: it holds a lease on the credential during the request, and the others take the result from Postgres.
//!
//! Invariant: a user loses a sign-in only by a definite refusal of its authorization server. When that server is
//! unreachable or fails, nothing changes: tokens that are still good are used until their end.
//!
//! A sign-in that ends here has its tokens revoked where they came from (RFC 7009). It stays deleted here whether the
//! authorization server answers or not.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use time::OffsetDateTime;
use tokio_util::task::TaskTracker;

use crate::app::{
    App,
    platform::keys::{Keys, OpenError, contexts},
    servers::oauth::{
        client_tokens::{ClientTokenRequest, TokenStore},
        clients,
    },
};
use domain::{
    clock::Clock,
    credential::CredentialRef,
    error::{Error, Result},
    oauth::{Authorization, ClientProof, from_sealable, to_sealable},
    server::{ServerAuth, UserSignIn},
};
use egress::Egress;
use mcp::{
    oauth::{self, OAuthError, RefreshRefusal},
    tokens::{NoToken, NoTokenKind, TokenGrant, TokenRequest, TokenSource, usable_life},
};
use store::{
    Db,
    authorizations::{RefreshClaim, StoredTokens},
};

/// How long a replica has the right to refresh tokens: longer than a token endpoint may take.
const LEASE: Duration = Duration::from_secs(15);
/// How long a process waits for tokens that another replica refreshes, and how often it polls.
const TIME_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// How long, and how often, a process tries to write tokens that the database did not take.
const WRITE_LIMIT: Duration = Duration::from_secs(600);
const WRITE_PAUSE: Duration = Duration::from_millis(200);
/// The assumed life of tokens that name no end.
const UNKNOWN_LIFE: Duration = Duration::from_secs(300);
/// How long tokens that could not be refreshed are used before the next try.
const RETRY: Duration = Duration::from_secs(5);
/// This many doubtful refusals within this time end an authorization. One alone may be the fault of its request.
const DOUBTFUL: i32 = 3;
const DOUBTFUL_WITHIN: Duration = Duration::from_secs(600);
/// Tokens are refreshed earlier by a random part of their life, up to this one, so that users who signed in at the
/// same time do not cause a burst.
const JITTER: f64 = 0.1;

struct UserTokens {
    db: Db,
    keys: Keys,
    egress: Egress,
    tasks: TaskTracker,
}

enum Lookup {
    Tokens(TokenGrant),
    /// This process may refresh the tokens.
    MayRefresh(Box<Authorization>, RefreshClaim),
    /// Another replica is refreshing them.
    BeingRefreshed,
    /// The credential was replaced, removed or marked.
    Gone,
}

/// The source from which this process's connections get their tokens.
pub fn source(db: Db, keys: Keys, egress: Egress, tasks: TaskTracker) -> TokenSource {
    let own = Arc::new(TokenStore::new(db.clone(), keys.clone(), egress.clone()));
    let users = Arc::new(UserTokens {
        db,
        keys,
        egress,
        tasks: tasks.clone(),
    });
    TokenSource::new(move |wanted| {
        let (own, users) = (own.clone(), users.clone());
        // This runs in a task of its own: a caller may give up at any moment, and then all others would wait for the
        // lease to end.
        let task = tasks.spawn(async move { get_token(&own, &users, wanted).await });
        Box::pin(async move {
            task.await.unwrap_or_else(|_| {
                Err(NoToken::new(NoTokenKind::Later, "asking for it broke off"))
            })
        })
    })
}

async fn get_token(
    own: &TokenStore,
    users: &Arc<UserTokens>,
    wanted: TokenRequest,
) -> Result<TokenGrant, NoToken> {
    let TokenRequest {
        tenant,
        auth,
        refused,
    } = wanted;
    match auth {
        ServerAuth::Client(credentials) => match tenant {
            Some(tenant) => {
                own.token(&ClientTokenRequest {
                    tenant,
                    credentials,
                    refused,
                })
                .await
            }
            // Rows belong to tenants, and this connection serves all of them.
            None => own.fetch(&credentials).await,
        },
        ServerAuth::User(sign_in) => users.token(&sign_in, refused).await,
    }
}

/// When new tokens should be refreshed; `None` when they name no end.
pub fn refresh_at(tokens: &Authorization) -> Option<OffsetDateTime> {
    let now = Clock::System.now();
    let life: Duration = (tokens.expires_at? - now).try_into().unwrap_or_default();
    let early = life.mul_f64(JITTER * rand::random::<f64>());
    Some(now + usable_life(life).saturating_sub(early))
}

impl UserTokens {
    async fn token(
        self: &Arc<Self>,
        sign_in: &UserSignIn,
        refused: Option<i64>,
    ) -> Result<TokenGrant, NoToken> {
        let until = tokio::time::Instant::now() + TIME_LIMIT;
        loop {
            let later = |error: Error| NoToken::new(NoTokenKind::Later, error.to_string());
            match self
                .look_up(&sign_in.credential, refused)
                .await
                .map_err(later)?
            {
                Lookup::Tokens(granted) => return Ok(granted),
                Lookup::MayRefresh(tokens, claim) => {
                    return self.refresh(sign_in, *tokens, claim, refused).await;
                }
                Lookup::Gone => {
                    let why = "the sign-in has ended";
                    return Err(NoToken::new(NoTokenKind::Refused, why));
                }
                Lookup::BeingRefreshed if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(POLL).await;
                }
                Lookup::BeingRefreshed => {
                    let why = "no replica refreshed it in time";
                    return Err(NoToken::new(NoTokenKind::Later, why));
                }
            }
        }
    }

    async fn look_up(&self, credential: &CredentialRef, refused: Option<i64>) -> Result<Lookup> {
        let mut tx = self.db.tenant(credential.tenant).await?;
        let stored = store::authorizations::get(&mut tx, credential).await?;
        drop(tx);
        let Some(stored) = stored else {
            return Ok(Lookup::Gone);
        };
        let Some(tokens) = self.open(credential, &stored).await? else {
            return Ok(Lookup::Gone);
        };
        let is_refused = refused == Some(stored.version);
        let is_good = stored.refresh_in.is_none_or(|left| !left.is_zero());
        if is_good && !is_refused {
            return Ok(Lookup::Tokens(grant(&tokens, &stored)));
        }
        if stored.is_claimed {
            // The tokens are usually still good while another replica refreshes them.
            return Ok(match remaining_life(&tokens).filter(|_| !is_refused) {
                Some(life) if !life.is_zero() => Lookup::Tokens(TokenGrant {
                    ends_at: tokens.expires_at,
                    token: tokens.access_token,
                    life: life.min(POLL),
                    version: stored.version,
                }),
                _ => Lookup::BeingRefreshed,
            });
        }
        let mut tx = self.db.tenant(credential.tenant).await?;
        let claimed =
            store::authorizations::claim(&mut tx, credential, stored.version, LEASE).await?;
        tx.commit().await?;
        Ok(claimed.map_or(Lookup::BeingRefreshed, |claim| {
            Lookup::MayRefresh(Box::new(tokens), claim)
        }))
    }

    /// Decrypts stored tokens; `None` when they can no longer be opened.
    async fn open(
        &self,
        credential: &CredentialRef,
        stored: &StoredTokens,
    ) -> Result<Option<Authorization>> {
        let context = contexts::of_credential(credential);
        match self
            .keys
            .open(credential.tenant, &context, &stored.sealed)
            .await
        {
            Ok(text) => from_sealable(&text).map(Some).map_err(Error::internal),
            Err(OpenError::Unopenable(_)) => Ok(None),
            Err(OpenError::Failed(error)) => Err(error),
        }
    }

    /// Refreshes tokens under a claim and stores the new ones for all replicas.
    async fn refresh(
        self: &Arc<Self>,
        sign_in: &UserSignIn,
        mut tokens: Authorization,
        claim: RefreshClaim,
        refused: Option<i64>,
    ) -> Result<TokenGrant, NoToken> {
        if tokens.service.client.is_of_pack {
            // The operator may have changed the secret since the sign-in.
            let secret = sign_in.client_secret.clone();
            tokens.service.client.proof = secret.map(ClientProof::Secret);
        }
        match oauth::refresh(&self.egress, &tokens).await {
            Ok(set) => {
                metrics::counter!("chatelaine_oauth_refreshes_total", "outcome" => "refreshed")
                    .increment(1);
                let refresh_token = tokens.refresh_token.take();
                let tokens = set.into_authorization(tokens.service, tokens.scopes, refresh_token);
                self.keep(&sign_in.credential, claim, tokens).await
            }
            Err(error) => {
                let refusal = error.refresh_refusal();
                if refusal.is_some_and(|refusal| refusal != RefreshRefusal::UnknownClient)
                    && let Ok(Some(granted)) = self.find_newer(sign_in, &claim).await
                {
                    return Ok(granted);
                }
                let is_ended = self
                    .ends_authorization(&sign_in.credential, &tokens, refusal)
                    .await;
                let release = self.release(&sign_in.credential, &claim);
                if let Err(error) = release.await {
                    tracing::debug!(
                        error = error.with_cause(),
                        "the right to refresh tokens ends by itself"
                    );
                }
                fall_back(&tokens, &claim, refused, &error, is_ended)
            }
        }
    }

    /// Returns whether a refusal ends an authorization. A client that is no longer known is noted, so that the next
    /// sign-in registers another one.
    async fn ends_authorization(
        &self,
        of: &CredentialRef,
        tokens: &Authorization,
        refusal: Option<RefreshRefusal>,
    ) -> bool {
        match refusal {
            None => false,
            Some(RefreshRefusal::Ended) => true,
            Some(RefreshRefusal::UnknownClient) => {
                let (client, issuer) = (&tokens.service.client, &tokens.service.issuer);
                if !client.is_of_pack {
                    clients::note_unknown(&self.db, &self.keys, of.tenant, issuer, &client.id)
                        .await;
                }
                !client.is_of_pack
            }
            Some(RefreshRefusal::Unclear) => {
                let counted = async {
                    let mut tx = self.db.tenant(of.tenant).await?;
                    let within = DOUBTFUL_WITHIN;
                    let count = store::authorizations::count_doubtful(&mut tx, of, within).await?;
                    tx.commit().await?;
                    Ok::<_, Error>(count)
                };
                counted.await.is_ok_and(|count| count >= DOUBTFUL)
            }
        }
    }

    /// Finds tokens that another replica has written since the claim. That replica had the lease before and wrote its
    /// tokens late. Then the authorization server has refused a refresh token that is replaced already, and the sign-in
    /// goes on.
    async fn find_newer(
        &self,
        of: &UserSignIn,
        claim: &RefreshClaim,
    ) -> Result<Option<TokenGrant>> {
        let mut tx = self.db.tenant(of.credential.tenant).await?;
        let stored = store::authorizations::get(&mut tx, &of.credential).await?;
        drop(tx);
        let Some(stored) = stored.filter(|stored| stored.version > claim.version) else {
            return Ok(None);
        };
        let tokens = self.open(&of.credential, &stored).await?;
        Ok(tokens.map(|tokens| grant(&tokens, &stored)))
    }

    /// Writes the tokens of a refresh. No other copy of them exists, so writing goes on in the background while the
    /// database is unreachable.
    async fn keep(
        self: &Arc<Self>,
        credential: &CredentialRef,
        claim: RefreshClaim,
        tokens: Authorization,
    ) -> Result<TokenGrant, NoToken> {
        let refresh_at = refresh_at(&tokens);
        let refresh_in = refresh_at.map(|at| (at - Clock::System.now()).try_into());
        let granted = TokenGrant {
            ends_at: tokens.expires_at,
            token: tokens.access_token.clone(),
            life: refresh_in.map_or(UNKNOWN_LIFE, Result::unwrap_or_default),
            version: claim.version + 1,
        };
        match self.write(credential, &claim, &tokens, refresh_at).await {
            Ok(true) => {}
            Ok(false) => {
                return Err(NoToken::new(NoTokenKind::Refused, "the sign-in has ended"));
            }
            Err(error) => {
                tracing::error!(
                    error = error.with_cause(),
                    "tokens that were refreshed cannot be kept yet; the program goes on trying"
                );
                let (this, credential) = (self.clone(), credential.clone());
                self.tasks.spawn(async move {
                    this.write_later(&credential, &claim, &tokens, refresh_at)
                        .await;
                });
            }
        }
        Ok(granted)
    }

    async fn write_later(
        &self,
        credential: &CredentialRef,
        claim: &RefreshClaim,
        tokens: &Authorization,
        refresh_at: Option<OffsetDateTime>,
    ) {
        let until = tokio::time::Instant::now() + WRITE_LIMIT;
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(WRITE_PAUSE).await;
            match self.write(credential, claim, tokens, refresh_at).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(error = error.with_cause(), "tokens cannot be kept yet");
                }
            }
        }
        tracing::error!("tokens that were refreshed are lost; their user has to sign in again");
    }

    /// Writes refreshed tokens. `false` when the sign-in has ended meanwhile; then the new tokens are revoked.
    async fn write(
        &self,
        credential: &CredentialRef,
        claim: &RefreshClaim,
        tokens: &Authorization,
        refresh_at: Option<OffsetDateTime>,
    ) -> Result<bool> {
        let context = contexts::of_credential(credential);
        let text = to_sealable(tokens);
        let sealed = self.keys.seal(credential.tenant, &context, &text).await?;
        let mut tx = self.db.tenant(credential.tenant).await?;
        let is_kept =
            store::authorizations::put(&mut tx, credential, claim, &sealed, tokens, refresh_at)
                .await?;
        let still_exists = is_kept
            || store::authorizations::get_scopes(&mut tx, credential.id)
                .await?
                .is_some();
        tx.commit().await?;
        if !still_exists {
            revoke(&self.egress, tokens).await;
        } else if !is_kept {
            tracing::warn!("tokens were replaced while they were being refreshed");
        }
        Ok(still_exists)
    }

    async fn release(&self, credential: &CredentialRef, claim: &RefreshClaim) -> Result<()> {
        let mut tx = self.db.tenant(credential.tenant).await?;
        store::authorizations::release(&mut tx, credential, claim).await?;
        tx.commit().await
    }
}

fn grant(tokens: &Authorization, stored: &StoredTokens) -> TokenGrant {
    TokenGrant {
        ends_at: tokens.expires_at,
        token: tokens.access_token.clone(),
        life: stored.refresh_in.unwrap_or(UNKNOWN_LIFE),
        version: stored.version,
    }
}

/// How long an access token is still good; `None` when it names no end.
fn remaining_life(tokens: &Authorization) -> Option<Duration> {
    Some(
        (tokens.expires_at? - Clock::System.now())
            .try_into()
            .unwrap_or_default(),
    )
}

/// The result when tokens could not be refreshed: the present tokens while they are good, then the reason.
fn fall_back(
    tokens: &Authorization,
    claim: &RefreshClaim,
    refused: Option<i64>,
    error: &OAuthError,
    is_ended: bool,
) -> Result<TokenGrant, NoToken> {
    let outcome = if is_ended { "refused" } else { "failed" };
    metrics::counter!("chatelaine_oauth_refreshes_total", "outcome" => outcome).increment(1);
    tracing::warn!(
        issuer = tokens.service.issuer,
        error = error.to_string(),
        "tokens of a user cannot be refreshed"
    );
    let life = remaining_life(tokens).unwrap_or_default();
    if !is_ended && refused != Some(claim.version) && !life.is_zero() {
        return Ok(TokenGrant {
            ends_at: tokens.expires_at,
            token: tokens.access_token.clone(),
            life: life.min(RETRY),
            version: claim.version,
        });
    }
    let kind = match error.refresh_refusal() {
        _ if is_ended => NoTokenKind::Refused,
        // The client is the operator's, so nothing that the user does would help.
        Some(RefreshRefusal::UnknownClient) => NoTokenKind::Misconfigured,
        _ => NoTokenKind::Later,
    };
    Err(NoToken::new(kind, error.why.clone()))
}

/// The most revocations at once, when the sign-ins of many users end.
const AT_ONCE: usize = 8;

/// Revokes tokens that were never put in force.
pub fn revoke_unused(app: &App, tokens: Authorization) {
    let egress = app.egress.clone();
    app.tasks
        .spawn(async move { revoke(&egress, &tokens).await });
}

/// Revokes the tokens of deleted credentials. They are decrypted before this returns, because their tenant's key may
/// be deleted a moment later.
pub async fn revoke_in_background(app: &App, deleted: Vec<(CredentialRef, Vec<u8>)>) {
    let mut opened: Vec<Authorization> = Vec::new();
    for (credential, sealed) in deleted {
        let context = contexts::of_credential(&credential);
        let text = app.keys.open(credential.tenant, &context, &sealed).await;
        opened.extend(text.ok().and_then(|text| from_sealable(&text).ok()));
    }
    if opened.is_empty() {
        return;
    }
    let egress = app.egress.clone();
    app.tasks.spawn(async move {
        let each = |tokens| async { revoke(&egress, &{ tokens }).await };
        stream::iter(opened)
            .for_each_concurrent(AT_ONCE, each)
            .await;
    });
}

pub(super) async fn revoke(egress: &Egress, tokens: &Authorization) {
    if let Err(error) = oauth::revoke(egress, tokens).await {
        let issuer = &tokens.service.issuer;
        tracing::warn!(
            issuer,
            error = error.to_string(),
            "tokens that were deleted here are not revoked at their authorization server"
        );
    }
}
