//! Rows of what a tenant's admins set for the servers of an agent or of a capability.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{error::Result, ids::TenantId};

/// What is set for one server.
#[derive(Clone)]
pub struct StoredSetting {
    pub id: Uuid,
    /// `agent` or `capability`.
    pub level: String,
    /// The id of the agent, or the name of the capability.
    pub owner: String,
    pub server: String,
    /// The entry of the registry.
    pub entry: String,
    /// JSON.
    pub definition: String,
    pub version: i64,
    pub updated_at: OffsetDateTime,
}

/// A query that answers whole settings.
macro_rules! settings {
    ($condition:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            StoredSetting,
            r#"select id, level, owner, server, entry, definition::text as "definition!", version, updated_at
               from server_settings where tenant_id = $1 "# + $condition
            $(, $value)*
        )
    };
}

/// All of the tenant's.
pub async fn list(tx: &mut Tx) -> Result<Vec<StoredSetting>> {
    let rows = settings!("order by level, owner, server", tx.tenant()?.0);
    Ok(rows.fetch_all(tx.conn()).await?)
}

pub async fn get(
    tx: &mut Tx,
    level: &str,
    owner: &str,
    server: &str,
) -> Result<Option<StoredSetting>> {
    let row = settings!(
        "and level = $2 and owner = $3 and server = $4",
        tx.tenant()?.0,
        level,
        owner,
        server,
    );
    Ok(row.fetch_optional(tx.conn()).await?)
}

/// Those that refer to an entry.
pub async fn list_of_entry(tx: &mut Tx, entry: &str) -> Result<Vec<StoredSetting>> {
    let rows = settings!(
        "and entry = $2 order by level, owner, server",
        tx.tenant()?.0,
        entry,
    );
    Ok(rows.fetch_all(tx.conn()).await?)
}

/// How many there are.
pub async fn count(tx: &mut Tx) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from server_settings where tenant_id = $1"#,
        tx.tenant()?.0,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Adds a setting, or replaces the version before it; `false` when another writer was first.
pub async fn put(tx: &mut Tx, tenant: TenantId, row: &StoredSetting) -> Result<bool> {
    let done = sqlx::query!(
        "insert into server_settings as s
           (tenant_id, id, level, owner, server, entry, definition, version, created_at, updated_at)
         values ($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9, $9)
         on conflict (tenant_id, level, owner, server) do update
         set entry = excluded.entry, definition = excluded.definition, version = excluded.version,
             updated_at = excluded.updated_at
         where s.id = excluded.id and s.version = excluded.version - 1",
        tenant.0,
        row.id,
        row.level,
        row.owner,
        row.server,
        row.entry,
        row.definition,
        row.version,
        row.updated_at,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes one version of a setting; `false` when it is not there any more.
pub async fn delete(tx: &mut Tx, id: Uuid, version: i64) -> Result<bool> {
    let done = sqlx::query!(
        "delete from server_settings where tenant_id = $3 and id = $1 and version = $2",
        id,
        version,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The tenants that have any. Needs the system role.
pub async fn list_tenants(tx: &mut Tx) -> Result<Vec<TenantId>> {
    let tenants = sqlx::query_scalar!(
        r#"select distinct tenant_id as "tenant_id!: TenantId" from server_settings"#
    );
    Ok(tenants.fetch_all(tx.conn()).await?)
}
