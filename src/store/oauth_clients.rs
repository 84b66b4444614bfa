//! The program as authorization servers have registered it: one client for each tenant, issuer and address to come back
//! to.

use uuid::Uuid;

use super::Tx;
use crate::domain::error::Result;

/// The client of an issuer: its id, and what is sealed.
pub async fn get(tx: &mut Tx, issuer: &str, redirect_uri: &str) -> Result<Option<(Uuid, Vec<u8>)>> {
    let row = sqlx::query!(
        "select id, sealed from oauth_clients where tenant_id = $1 and issuer = $2 and redirect_uri = $3",
        tx.tenant()?.0,
        issuer,
        redirect_uri,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.id, row.sealed)))
}

/// Keeps a client in place of the one before.
pub async fn put(
    tx: &mut Tx,
    id: Uuid,
    issuer: &str,
    redirect_uri: &str,
    sealed: &[u8],
) -> Result<()> {
    sqlx::query!(
        "insert into oauth_clients (tenant_id, id, issuer, redirect_uri, sealed) values ($1, $2, $3, $4, $5)
         on conflict (tenant_id, issuer, redirect_uri) do update set id = excluded.id, sealed = excluded.sealed",
        tx.tenant()?.0,
        id,
        issuer,
        redirect_uri,
        sealed,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Forgets the clients of an issuer, which knows them no more.
pub async fn forget(tx: &mut Tx, issuer: &str) -> Result<()> {
    sqlx::query!(
        "delete from oauth_clients where tenant_id = $1 and issuer = $2",
        tx.tenant()?.0,
        issuer,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
