//! Rows of OAuth clients: the registrations of this program at authorization servers, one for each tenant, issuer and
//! redirect address.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{error::Result, ids::UserId};

/// A stored client.
pub struct StoredClient {
    pub id: Uuid,
    pub sealed: Vec<u8>,
    /// Whether the authorization server may not know the client any more: the server said so, or a user was sent
    /// there and did not come back.
    pub is_doubtful: bool,
}

/// The client of an issuer. It is doubtful if `user` begins again before coming back, or if the last sign-in took
/// longer than its `life`.
pub async fn get(
    tx: &mut Tx,
    issuer: &str,
    redirect_uri: &str,
    user: &UserId,
    life: Duration,
) -> Result<Option<StoredClient>> {
    let row = sqlx::query!(
        r#"select c.id, c.sealed,
                  (c.unknown_since is not null
                   or coalesce(c.begun_at > coalesce(c.came_back_at, '-infinity')
                               and c.begun_at < now() - make_interval(secs => $5), false)
                   or exists (select from oauth_sign_ins s
                              where s.tenant_id = $1 and s.client_id = c.id and s.user_id = $4
                                and s.used_at is null and s.begun_at > coalesce(c.came_back_at, '-infinity'))
                  ) as "is_doubtful!"
           from oauth_clients c where c.tenant_id = $1 and c.issuer = $2 and c.redirect_uri = $3"#,
        tx.tenant()?.0,
        issuer,
        redirect_uri,
        user.as_str(),
        life.as_secs_f64(),
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| StoredClient {
        id: row.id,
        sealed: row.sealed,
        is_doubtful: row.is_doubtful,
    }))
}

/// The ids and sealed data of the clients of an issuer.
pub async fn list_of_issuer(tx: &mut Tx, issuer: &str) -> Result<Vec<(Uuid, Vec<u8>)>> {
    let rows = sqlx::query!(
        "select id, sealed from oauth_clients where tenant_id = $1 and issuer = $2",
        tx.tenant()?.0,
        issuer,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.sealed)).collect())
}

/// Stores a client in place of the one before. Sign-ins that were made with the old client keep it.
pub async fn put(
    tx: &mut Tx,
    id: Uuid,
    issuer: &str,
    redirect_uri: &str,
    sealed: &[u8],
) -> Result<()> {
    sqlx::query!(
        "insert into oauth_clients (tenant_id, id, issuer, redirect_uri, sealed, created_at)
         values ($1, $2, $3, $4, $5, now())
         on conflict (tenant_id, issuer, redirect_uri) do update
         set id = excluded.id, sealed = excluded.sealed, created_at = excluded.created_at, begun_at = null,
             came_back_at = null, unknown_since = null",
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

/// Claims the right to register another client in place of one. `false` if it was claimed less than `pause` ago.
pub async fn claim_another(tx: &mut Tx, id: Uuid, pause: Duration) -> Result<bool> {
    let done = sqlx::query!(
        "update oauth_clients set registered_again_at = now()
         where tenant_id = $1 and id = $2
           and (registered_again_at is null or registered_again_at < now() - make_interval(secs => $3))",
        tx.tenant()?.0,
        id,
        pause.as_secs_f64(),
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Releases that right, because no other client was registered.
pub async fn release_claim(tx: &mut Tx, id: Uuid) -> Result<()> {
    sqlx::query!(
        "update oauth_clients set registered_again_at = null where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Records that a user was sent to sign in with a client.
pub async fn mark_begun(tx: &mut Tx, id: Uuid) -> Result<()> {
    sqlx::query!(
        "update oauth_clients set begun_at = now() where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Records that a user came back, so the authorization server knows the client.
pub async fn mark_returned(tx: &mut Tx, id: Uuid) -> Result<()> {
    sqlx::query!(
        "update oauth_clients set came_back_at = now() where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Records that the authorization server does not know a client any more, or refuses its request.
pub async fn mark_unknown(tx: &mut Tx, id: Uuid) -> Result<()> {
    sqlx::query!(
        "update oauth_clients set unknown_since = now() where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// A client without its sealed data.
pub struct ClientRow {
    pub id: Uuid,
    pub issuer: String,
    pub redirect_uri: String,
    pub created_at: OffsetDateTime,
    pub came_back_at: Option<OffsetDateTime>,
    pub unknown_since: Option<OffsetDateTime>,
}

/// The clients of the tenant, by issuer.
pub async fn list(tx: &mut Tx) -> Result<Vec<ClientRow>> {
    let rows = sqlx::query_as!(
        ClientRow,
        "select id, issuer, redirect_uri, created_at, came_back_at, unknown_since
         from oauth_clients where tenant_id = $1 order by issuer, redirect_uri",
        tx.tenant()?.0,
    );
    Ok(rows.fetch_all(tx.conn()).await?)
}

/// Deletes a client, or the clients of an issuer. Returns how many. Sign-ins that were made with a client keep it.
pub async fn delete(tx: &mut Tx, id: Option<Uuid>, issuer: Option<&str>) -> Result<u64> {
    let done = sqlx::query!(
        "delete from oauth_clients
         where tenant_id = $1 and (id = $2 or issuer = $3)",
        tx.tenant()?.0,
        id,
        issuer,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected())
}
