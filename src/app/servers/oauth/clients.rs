//! The OAuth clients that the program has registered at authorization servers. When an authorization server no longer
//! knows a client, that is noted, and the next sign-in registers another one. Earlier sign-ins keep the client they
//! were made with.

use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::app::{
    App,
    platform::keys::{Keys, OpenError, contexts},
};
use domain::{
    audit::{Fact, OPERATOR},
    error::{Error, Missing, Result},
    ids::TenantId,
    oauth::{OAuthClient, from_sealable},
    principal::Admin,
};
use store::Db;

/// A client that the program registered at an authorization server.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct RegisteredClient {
    pub id: Uuid,
    pub issuer: String,
    /// Where users come back to.
    pub redirect_uri: String,
    #[serde(with = "time::serde::rfc3339")]
    pub registered_at: OffsetDateTime,
    /// When a user came back last.
    #[serde(with = "time::serde::rfc3339::option")]
    pub came_back_at: Option<OffsetDateTime>,
    /// Since when the authorization server no longer knows it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub unknown_since: Option<OffsetDateTime>,
}

/// The clients that are registered for an admin's tenant.
pub async fn list_clients(app: &App, admin: &Admin) -> Result<Vec<RegisteredClient>> {
    list_clients_of(&app.db, admin.tenant()).await
}

/// Forgets a client, so that the next sign-in registers another one. Earlier sign-ins keep the client.
pub async fn forget_client(app: &App, admin: &Admin, id: &str) -> Result<()> {
    let unknown = || Error::NotFound(Missing::from(format!("OAuth client {id:?}")));
    let row = id.parse().map_err(|_| unknown())?;
    let mut tx = app.db.tenant(admin.tenant()).await?;
    if store::oauth_clients::delete(&mut tx, Some(row), None).await? == 0 {
        return Err(unknown());
    }
    let fact = Fact::new(admin.user().as_str(), "oauth_client.forgotten");
    store::audit::record(&mut tx, admin.tenant(), &fact.detail(id)).await?;
    tx.commit().await
}

/// The clients of a tenant, for an operator.
pub async fn list_clients_of(db: &Db, tenant: TenantId) -> Result<Vec<RegisteredClient>> {
    let mut tx = db.tenant(tenant).await?;
    let rows = store::oauth_clients::list(&mut tx).await?;
    let view = |row: store::oauth_clients::ClientRow| RegisteredClient {
        id: row.id,
        issuer: row.issuer,
        redirect_uri: row.redirect_uri,
        registered_at: row.created_at,
        came_back_at: row.came_back_at,
        unknown_since: row.unknown_since,
    };
    Ok(rows.into_iter().map(view).collect())
}

/// Forgets the clients of a tenant at an issuer, for an operator, and returns their number.
pub async fn forget_clients_of(db: &Db, tenant: TenantId, issuer: &str) -> Result<u64> {
    let mut tx = db.tenant(tenant).await?;
    let count = store::oauth_clients::delete(&mut tx, None, Some(issuer)).await?;
    if count > 0 {
        let fact = Fact::new(OPERATOR, "oauth_client.forgotten");
        store::audit::record(&mut tx, tenant, &fact.detail(issuer)).await?;
    }
    tx.commit().await?;
    Ok(count)
}

/// Decrypts a client; `None` when it can no longer be opened.
pub(super) async fn open(
    keys: &Keys,
    tenant: TenantId,
    id: Uuid,
    sealed: &[u8],
) -> Result<Option<OAuthClient>> {
    let context = contexts::of_oauth_client(tenant, id);
    match keys.open(tenant, &context, sealed).await {
        Ok(text) => Ok(from_sealable(&text).ok()),
        Err(OpenError::Unopenable(_)) => Ok(None),
        Err(OpenError::Failed(error)) => Err(error),
    }
}

/// Notes that an issuer no longer knows the client with this id. Its other clients stay.
pub(super) async fn note_unknown(db: &Db, keys: &Keys, tenant: TenantId, issuer: &str, id: &str) {
    let found = async {
        let mut tx = db.tenant(tenant).await?;
        let stored = store::oauth_clients::list_of_issuer(&mut tx, issuer).await?;
        drop(tx);
        for (row, sealed) in stored {
            let client = open(keys, tenant, row, &sealed).await?;
            if client.is_some_and(|client| client.id == id) {
                note_row_unknown(db, tenant, row).await;
            }
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = found.await {
        tracing::warn!(
            error = error.with_cause(),
            issuer,
            "a client that is known no more cannot be noted"
        );
    }
}

/// Notes that an issuer no longer knows the client of a row.
pub(super) async fn note_row_unknown(db: &Db, tenant: TenantId, row: Uuid) {
    let noted = async {
        let mut tx = db.tenant(tenant).await?;
        store::oauth_clients::mark_unknown(&mut tx, row).await?;
        tx.commit().await
    };
    if let Err(error) = noted.await {
        tracing::warn!(
            error = error.with_cause(),
            "a client that is known no more cannot be noted"
        );
    }
}
