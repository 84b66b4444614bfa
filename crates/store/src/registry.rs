//! Rows of the registry of servers. The `definition` of a row has no secrets; these are in `sealed`.

use std::collections::HashMap;

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{error::Result, ids::TenantId};

/// One entry.
#[derive(Clone)]
pub struct StoredEntry {
    pub id: Uuid,
    pub entry: String,
    pub name: String,
    /// The definition as JSON, without its secrets.
    pub definition: String,
    pub sealed: Option<Vec<u8>>,
    pub version: i64,
    pub updated_at: OffsetDateTime,
}

/// A query for whole entries, by a condition and its values.
macro_rules! entries {
    ($condition:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            StoredEntry,
            r#"select id, entry, name, definition::text as "definition!", sealed, version, updated_at
               from mcp_servers where tenant_id = $1 and "# + $condition
            $(, $value)*
        )
    };
}

/// Adds an entry. `false` if its id is taken.
pub async fn insert(tx: &mut Tx, tenant: TenantId, row: &StoredEntry) -> Result<bool> {
    let done = sqlx::query!(
        "insert into mcp_servers (tenant_id, id, entry, name, definition, sealed, version, created_at, updated_at)
         values ($1, $2, $3, $4, $5::text::json, $6, $7, $8, $8) on conflict (tenant_id, entry) do nothing",
        tenant.0,
        row.id,
        row.entry,
        row.name,
        row.definition,
        row.sealed,
        row.version,
        row.updated_at,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The number of entries.
pub async fn count(tx: &mut Tx) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from mcp_servers where tenant_id = $1"#,
        tx.tenant()?.0,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

pub async fn get(tx: &mut Tx, entry: &str) -> Result<Option<StoredEntry>> {
    let row = entries!("entry = $2", tx.tenant()?.0, entry);
    Ok(row.fetch_optional(tx.conn()).await?)
}

/// At most `limit` entries by name, after the one with this name and id.
pub async fn list(
    tx: &mut Tx,
    after: Option<(&str, &str)>,
    limit: i64,
) -> Result<Vec<StoredEntry>> {
    let (name, entry) = after.unzip();
    let rows = entries!(
        "($2::text is null or (name, entry) > ($2, $3::text)) order by name, entry limit $4",
        tx.tenant()?.0,
        name,
        entry,
        limit,
    );
    Ok(rows.fetch_all(tx.conn()).await?)
}

/// Replaces an entry by its next version. `false` if the version before does not exist any more.
pub async fn update(tx: &mut Tx, row: &StoredEntry) -> Result<bool> {
    let done = sqlx::query!(
        "update mcp_servers
         set name = $3, definition = $4::text::json, sealed = $5, version = $6, updated_at = $7
         where tenant_id = $8 and id = $1 and entry = $2 and version = $6::bigint - 1",
        row.id,
        row.entry,
        row.name,
        row.definition,
        row.sealed,
        row.version,
        row.updated_at,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Deletes an entry of this version. `false` if it has another version by now, or was deleted.
pub async fn delete(tx: &mut Tx, id: Uuid, version: i64) -> Result<bool> {
    let done = sqlx::query!(
        "delete from mcp_servers where tenant_id = $3 and id = $1 and version = $2",
        id,
        version,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A hash of all entries, secrets and settings of the tenant, to notice changes.
pub async fn get_stamp(tx: &mut Tx) -> Result<String> {
    let stamp = sqlx::query_scalar!(
        "select md5(string_agg(line, ',' order by line))
         from (select id || '.' || version as line from mcp_servers where tenant_id = $1
               union all select id || '.' || version from secrets where tenant_id = $1
               union all select id || '.' || version from server_settings where tenant_id = $1) lines",
        tx.tenant()?.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(stamp.unwrap_or_default())
}

/// Like [`get_stamp`], for many tenants in one query. A tenant without any of them is left out. Needs the system role.
pub async fn list_stamps(tx: &mut Tx, tenants: &[TenantId]) -> Result<HashMap<TenantId, String>> {
    let tenants: Vec<_> = tenants.iter().map(|tenant| tenant.0).collect();
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!: TenantId", md5(string_agg(line, ',' order by line)) as "stamp!"
           from (select tenant_id, id || '.' || version as line from mcp_servers where tenant_id = any($1)
                 union all select tenant_id, id || '.' || version from secrets where tenant_id = any($1)
                 union all select tenant_id, id || '.' || version from server_settings where tenant_id = any($1)) lines
           group by tenant_id"#,
        &tenants,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.tenant_id, row.stamp))
        .collect())
}
