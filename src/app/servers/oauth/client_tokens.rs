//! Access tokens of the program itself (client credentials). One replica fetches a token from the token endpoint; the
//! others read it from Postgres, where it is sealed until shortly before its end. A program that restarts finds it
//! there and fetches none.
//!
//! No transaction is open during a request to a token endpoint. The fetching replica holds a lease, which another one
//! takes over when it dies. A replica that cannot share tokens, because there is no key ring or the database does not
//! answer in time, fetches its own: that costs one request, and calls that need no database work without it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::app::platform::keys::{Keys, contexts};
use domain::{
    error::{Error, Result},
    ids::TenantId,
    secret::Secret,
    server::ClientCredentials,
};
use egress::Egress;
use mcp::tokens::{NoToken, TokenGrant, fetch};
use store::{
    Db,
    access_tokens::{StoredToken, TokenClaim},
};

/// How long a replica has the right to fetch a token: longer than a token endpoint may take.
const LEASE: Duration = Duration::from_secs(15);
/// How long the database may take. After that, a process fetches a token of its own.
const DATABASE: Duration = Duration::from_secs(3);
/// How long a process waits for the token that another replica fetches, and how often it polls.
const TIME_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

/// The program's own tokens.
pub struct TokenStore {
    db: Db,
    keys: Keys,
    egress: Egress,
}

/// The sealed content. Two entries may name the same client with different secrets; neither gets the other's token.
#[derive(Serialize, Deserialize)]
struct SealedToken {
    token: String,
    /// Hex of the SHA-256 of the secret that the token was fetched with.
    secret_sha256: String,
}

enum TokenLookup {
    Token(TokenGrant),
    /// This process may fetch a token.
    MayFetch(TokenClaim),
    /// Another replica is fetching the token.
    BeingFetched,
}

/// A request for a token of the program itself.
pub struct ClientTokenRequest {
    pub tenant: TenantId,
    pub credentials: ClientCredentials,
    /// The version of the last token, when the server has refused it.
    pub refused: Option<i64>,
}

impl TokenStore {
    pub fn new(db: Db, keys: Keys, egress: Egress) -> Self {
        Self { db, keys, egress }
    }

    pub async fn token(&self, wanted: &ClientTokenRequest) -> Result<TokenGrant, NoToken> {
        if !self.keys.has_ring() {
            return fetch(&self.egress, &wanted.credentials).await;
        }
        match self.find_or_claim(wanted).await {
            Ok(TokenLookup::Token(granted)) => Ok(granted),
            Ok(TokenLookup::MayFetch(claim)) => self.fetch_for_all(wanted, &claim).await,
            Ok(TokenLookup::BeingFetched) => {
                tracing::warn!(tenant = %wanted.tenant, "no other replica got an access token in time; getting one alone");
                fetch(&self.egress, &wanted.credentials).await
            }
            Err(error) => {
                tracing::warn!(tenant = %wanted.tenant, error = error.with_cause(), "access tokens cannot be shared now; getting one alone");
                fetch(&self.egress, &wanted.credentials).await
            }
        }
    }

    /// A token for this process alone.
    pub async fn fetch(&self, credentials: &ClientCredentials) -> Result<TokenGrant, NoToken> {
        fetch(&self.egress, credentials).await
    }

    /// Finds the stored token, or claims the right to fetch one. Waits while another replica is fetching it.
    async fn find_or_claim(&self, wanted: &ClientTokenRequest) -> Result<TokenLookup> {
        let until = tokio::time::Instant::now() + TIME_LIMIT;
        loop {
            let looked = tokio::time::timeout(DATABASE, self.look_up(wanted)).await;
            match looked.map_err(|_| {
                Error::Unavailable("the database does not answer in time".to_owned())
            })?? {
                TokenLookup::BeingFetched if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(POLL).await;
                }
                found => return Ok(found),
            }
        }
    }

    async fn look_up(&self, wanted: &ClientTokenRequest) -> Result<TokenLookup> {
        let request = request_digest(&wanted.credentials);
        let mut tx = self.db.tenant(wanted.tenant).await?;
        let stored = store::access_tokens::get(&mut tx, &request).await?;
        drop(tx);
        let mut useless = wanted.refused;
        if let Some(stored) = stored.filter(|stored| Some(stored.version) != useless) {
            match self.open(wanted, &stored).await? {
                Some(token) => {
                    let StoredToken {
                        version,
                        good_for: life,
                        ..
                    } = stored;
                    return Ok(TokenLookup::Token(TokenGrant {
                        token,
                        life,
                        ends_at: None,
                        version,
                    }));
                }
                None => useless = Some(stored.version),
            }
        }
        let mut tx = self.db.tenant(wanted.tenant).await?;
        let claimed =
            store::access_tokens::claim(&mut tx, wanted.tenant, &request, useless, LEASE).await?;
        tx.commit().await?;
        Ok(claimed.map_or(TokenLookup::BeingFetched, TokenLookup::MayFetch))
    }

    /// Decrypts a stored token; `None` when it can no longer be opened, or was fetched with another secret.
    async fn open(
        &self,
        wanted: &ClientTokenRequest,
        stored: &StoredToken,
    ) -> Result<Option<Secret>> {
        let context = contexts::of_access_token(wanted.tenant, stored.id, stored.version);
        let text = match self
            .keys
            .open(wanted.tenant, &context, &stored.sealed)
            .await
            .map_err(Error::from)
        {
            Ok(text) => text,
            Err(Error::Conflict(..)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let kept: SealedToken = serde_json::from_str(text.expose()).map_err(Error::internal)?;
        Ok((kept.secret_sha256 == secret_sha256(&wanted.credentials))
            .then(|| Secret::new(kept.token)))
    }

    /// Fetches a token under a claim and stores it for all replicas.
    async fn fetch_for_all(
        &self,
        wanted: &ClientTokenRequest,
        claim: &TokenClaim,
    ) -> Result<TokenGrant, NoToken> {
        let granted = fetch(&self.egress, &wanted.credentials).await;
        let stored_in_time = match &granted {
            Ok(granted) => tokio::time::timeout(DATABASE, self.keep(wanted, claim, granted)).await,
            Err(_) => tokio::time::timeout(DATABASE, self.release(wanted.tenant, claim))
                .await
                .map(|done| done.map(|()| false)),
        };
        let kept = match stored_in_time {
            Ok(Ok(kept)) => kept,
            Ok(Err(error)) => {
                tracing::warn!(tenant = %wanted.tenant, error = error.with_cause(), "an access token is not shared with the other replicas");
                false
            }
            Err(_) => false,
        };
        let version = if kept { claim.version + 1 } else { 0 };
        granted.map(|granted| TokenGrant { version, ..granted })
    }

    async fn keep(
        &self,
        wanted: &ClientTokenRequest,
        claim: &TokenClaim,
        granted: &TokenGrant,
    ) -> Result<bool> {
        let token = granted.token.expose().to_owned();
        let kept = SealedToken {
            token,
            secret_sha256: secret_sha256(&wanted.credentials),
        };
        let text = Secret::new(serde_json::to_string(&kept).map_err(Error::internal)?);
        let context = contexts::of_access_token(wanted.tenant, claim.id, claim.version + 1);
        let sealed = self.keys.seal(wanted.tenant, &context, &text).await?;
        let mut tx = self.db.tenant(wanted.tenant).await?;
        let kept = store::access_tokens::put(&mut tx, claim, &sealed, granted.life).await?;
        tx.commit().await?;
        Ok(kept)
    }

    async fn release(&self, tenant: TenantId, claim: &TokenClaim) -> Result<()> {
        let mut tx = self.db.tenant(tenant).await?;
        store::access_tokens::release(&mut tx, claim).await?;
        tx.commit().await
    }
}

/// A digest of the token endpoint, the client and the requested scope. The secret is not in it.
fn request_digest(of: &ClientCredentials) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in of.identity() {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

fn secret_sha256(of: &ClientCredentials) -> String {
    hex::encode(Sha256::digest(of.secret().expose()))
}
