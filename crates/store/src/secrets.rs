//! Rows of a tenant's secrets. Only the registry reads the sealed values.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{error::Result, ids::TenantId};

/// One secret.
#[derive(Clone)]
pub struct StoredSecret {
    pub id: Uuid,
    pub name: String,
    pub sealed: Vec<u8>,
    pub version: i64,
    pub updated_at: OffsetDateTime,
    /// The setting of a server that the secret was typed for.
    pub setting: Option<Uuid>,
}

/// The number of secrets.
pub async fn count(tx: &mut Tx) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from secrets where tenant_id = $1"#,
        tx.tenant()?.0,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// The id and version of a secret.
pub async fn find(tx: &mut Tx, name: &str) -> Result<Option<(Uuid, i64)>> {
    let row = sqlx::query!(
        "select id, version from secrets where tenant_id = $2 and name = $1",
        name,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.id, row.version)))
}

/// Adds a secret, or replaces the version before it. `false` if another writer was first.
pub async fn put(tx: &mut Tx, tenant: TenantId, row: &StoredSecret) -> Result<bool> {
    let done = sqlx::query!(
        "insert into secrets as s (tenant_id, id, name, sealed, version, created_at, updated_at, setting_id)
         values ($1, $2, $3, $4, $5, $6, $6, $7)
         on conflict (tenant_id, name) do update
         set sealed = excluded.sealed, version = excluded.version, updated_at = excluded.updated_at
         where s.id = excluded.id and s.version = excluded.version - 1",
        tenant.0,
        row.id,
        row.name,
        row.sealed,
        row.version,
        row.updated_at,
        row.setting,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// All secrets of the tenant, by name.
pub async fn list(tx: &mut Tx) -> Result<Vec<StoredSecret>> {
    let rows = sqlx::query_as!(
        StoredSecret,
        "select id, name, sealed, version, updated_at, setting_id as setting
         from secrets where tenant_id = $1 order by name",
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows)
}

/// The names of the secrets that were typed for a setting.
pub async fn list_names_of_setting(tx: &mut Tx, setting: Uuid) -> Result<Vec<String>> {
    let names = sqlx::query_scalar!(
        "select name from secrets where tenant_id = $1 and setting_id = $2 order by name",
        tx.tenant()?.0,
        setting,
    );
    Ok(names.fetch_all(tx.conn()).await?)
}

/// Deletes a secret. `false` if there is none with this name.
pub async fn delete(tx: &mut Tx, name: &str) -> Result<bool> {
    let done = sqlx::query!(
        "delete from secrets where tenant_id = $2 and name = $1",
        name,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}
