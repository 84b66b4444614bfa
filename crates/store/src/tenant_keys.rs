//! Rows of the tenants' keys, which are stored wrapped. A version is never deleted, so that a value from an old
//! backup or a slow replica can still be opened.

use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{KekId, TenantId},
};

/// A version of a tenant's key.
pub struct WrappedKey {
    pub version: u32,
    /// The key of the ring that wraps it.
    pub kek: KekId,
    pub wrapped: Vec<u8>,
}

/// A query for versions of the tenant's key.
macro_rules! versions {
    ($condition:literal $(, $value:expr)* $(,)?) => {
        sqlx::query!(
            r#"select version, kek_id as "kek: KekId", wrapped from tenant_keys where tenant_id = $1 and "# + $condition
            $(, $value)*
        )
        .map(|row| WrappedKey {
            version: row.version.cast_unsigned(),
            kek: row.kek,
            wrapped: row.wrapped,
        })
    };
}

/// The sealing key of the ring.
pub async fn get_sealing_kek(tx: &mut Tx) -> Result<Option<KekId>> {
    let id = sqlx::query_scalar!(r#"select id as "id: KekId" from keks where state = 'sealing'"#);
    Ok(id.fetch_optional(tx.conn()).await?)
}

/// The version that seals the tenant's records.
pub async fn get_sealing(tx: &mut Tx, tenant: TenantId) -> Result<Option<WrappedKey>> {
    let key = versions!("state = 'sealing'", tenant.0);
    Ok(key.fetch_optional(tx.conn()).await?)
}

/// One version of the tenant's key.
pub async fn get(tx: &mut Tx, tenant: TenantId, version: u32) -> Result<Option<WrappedKey>> {
    let Ok(version) = i32::try_from(version) else {
        return Ok(None);
    };
    let key = versions!("version = $2", tenant.0, version);
    Ok(key.fetch_optional(tx.conn()).await?)
}

/// The tenant's versions that are not wrapped with this key of the ring.
pub async fn list_not_wrapped_with(
    tx: &mut Tx,
    tenant: TenantId,
    kek: &KekId,
) -> Result<Vec<WrappedKey>> {
    let keys = versions!("kek_id <> $2 order by version", tenant.0, kek.as_str());
    Ok(keys.fetch_all(tx.conn()).await?)
}

/// Adds a new version and makes it the sealing one. `false` if another replica was first, or the key of the ring is
/// not the sealing one any more: roll back and read again.
pub async fn insert(tx: &mut Tx, tenant: TenantId, key: &WrappedKey) -> Result<bool> {
    sqlx::query!(
        "update tenant_keys set state = 'opening' where tenant_id = $1 and state = 'sealing' and version < $2",
        tenant.0,
        key.version.cast_signed(),
    )
    .execute(tx.conn())
    .await?;
    // What Citus says of rows that were inserted counts those, too, that conflict.
    let added = sqlx::query_scalar!(
        "
        insert into tenant_keys as added (tenant_id, id, version, kek_id, wrapped, state)
        select $1, $2, $3, id, $5, 'sealing' from keks where id = $4 and state = 'sealing'
        on conflict do nothing returning added.version
        ",
        tenant.0,
        Uuid::now_v7(),
        key.version.cast_signed(),
        key.kek.as_str(),
        key.wrapped,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(added.is_some())
}

/// Replaces the wrapping of a version. `false` if it is not wrapped with `from` any more, or the new key is not the
/// sealing one.
pub async fn rewrap(tx: &mut Tx, tenant: TenantId, from: &KekId, key: &WrappedKey) -> Result<bool> {
    let changed = sqlx::query!(
        "
        update tenant_keys set kek_id = $4, wrapped = $5
        where tenant_id = $1 and version = $2 and kek_id = $3
          and exists (select from keks where id = $4 and state = 'sealing')
        ",
        tenant.0,
        key.version.cast_signed(),
        from.as_str(),
        key.kek.as_str(),
        key.wrapped,
    )
    .execute(tx.conn())
    .await?;
    Ok(changed.rows_affected() == 1)
}

/// The tenants that have a key. Needs the system role.
pub async fn list_tenants(tx: &mut Tx) -> Result<Vec<TenantId>> {
    let ids = sqlx::query_scalar!(
        r#"select distinct tenant_id as "id: TenantId" from tenant_keys order by 1"#
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// The keys of the ring that wrap any key of a tenant. Needs the system role.
pub async fn list_keks(tx: &mut Tx) -> Result<Vec<KekId>> {
    let ids =
        sqlx::query_scalar!(r#"select distinct kek_id as "id: KekId" from tenant_keys order by 1"#);
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// The numbers of values that a key of the ring protects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KekUsage {
    /// The versions of tenants' keys that it wraps.
    pub tenant_keys: u64,
    /// The records that are sealed with these versions.
    pub records: u64,
}

/// All versions of the tenant's key, each with the key of the ring that wraps it.
pub async fn list_versions(tx: &mut Tx, tenant: TenantId) -> Result<Vec<(u32, KekId)>> {
    let rows = sqlx::query!(
        r#"select version, kek_id as "kek: KekId" from tenant_keys where tenant_id = $1"#,
        tenant.0
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.version.cast_unsigned(), row.kek))
        .collect())
}
