//! What is open: of a user, of those who came with a key, of a tenant. To stop it.

use crate::Tx;
use domain::{
    error::Result,
    ids::{ApiKeyId, RunId, UserId},
};

/// What a user has open, in every conversation.
pub async fn open_of_user(tx: &mut Tx, user: &UserId) -> Result<Vec<RunId>> {
    let ids = sqlx::query_scalar!(
        r#"select id as "id: RunId" from runs
           where tenant_id = $2 and user_id = $1 and status in ('queued', 'running')"#,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// What those who came with an API key have open.
pub async fn open_of_key(tx: &mut Tx, key: ApiKeyId) -> Result<Vec<(RunId, UserId)>> {
    let rows = sqlx::query!(
        r#"select id as "id: RunId", user_id as "user_id: UserId" from runs
           where tenant_id = $1 and principal->>'key' = $2 and status in ('queued', 'running')"#,
        tx.tenant()?.0,
        key.to_string(),
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.user_id)).collect())
}

/// What anybody of the tenant has open.
pub async fn open(tx: &mut Tx) -> Result<Vec<(RunId, UserId)>> {
    let rows = sqlx::query!(
        r#"select id as "id: RunId", user_id as "user_id: UserId" from runs
           where tenant_id = $1 and status in ('queued', 'running')"#,
        tx.tenant()?.0,
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.user_id)).collect())
}
