//! Rows of tenants. Only the operator writes them, so every function except [`get`] needs the system role.

use std::collections::HashMap;

use sqlx::types::Json;
use uuid::Uuid;

use super::Tx;
use domain::{
    account::Tenant,
    error::{Error, ErrorCode, Result},
    ids::TenantId,
    retention::Retention,
    usage::Limits,
};

/// A query for tenants.
macro_rules! tenants {
    ($after:literal $(, $value:expr)*) => {
        sqlx::query_as!(
            Tenant,
            r#"select id as "id: _", name, display_name, agents, guests, suspended_at, limits as "limits: Json<Limits>",
                      retention as "retention: Json<Retention>", created_at
               from tenants "# + $after
            $(, $value)*
        )
    };
}

/// Adds a tenant. `Conflict` if the name is taken.
pub async fn insert(tx: &mut Tx, tenant: &Tenant) -> Result<()> {
    let added = sqlx::query!(
        "
        insert into tenants (id, name, display_name, agents, guests, limits, retention, created_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8)
        on conflict (name) do nothing
        ",
        tenant.id.0,
        tenant.name,
        tenant.display_name,
        tenant.agents.as_deref(),
        tenant.guests,
        Json(tenant.limits) as _,
        Json(tenant.retention) as _,
        tenant.created_at,
    )
    .execute(tx.conn())
    .await?;
    if added.rows_affected() == 0 {
        return Err(Error::conflict(
            ErrorCode::DuplicateName,
            format!("there is a tenant {:?} already", tenant.name),
        ));
    }
    Ok(())
}

/// Writes the fields of a tenant that can change.
pub async fn update(tx: &mut Tx, tenant: &Tenant) -> Result<()> {
    sqlx::query!(
        "
        update tenants set display_name = $2, agents = $3, guests = $4, suspended_at = $5, limits = $6, retention = $7
        where id = $1
        ",
        tenant.id.0,
        tenant.display_name,
        tenant.agents.as_deref(),
        tenant.guests,
        tenant.suspended_at,
        Json(tenant.limits) as _,
        Json(tenant.retention) as _,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

pub async fn get(tx: &mut Tx, id: TenantId) -> Result<Option<Tenant>> {
    let tenant = tenants!("where id = $1", id.0);
    Ok(tenant.fetch_optional(tx.conn()).await?)
}

pub async fn find_by_name(tx: &mut Tx, name: &str) -> Result<Option<Tenant>> {
    let tenant = tenants!("where name = $1", name);
    Ok(tenant.fetch_optional(tx.conn()).await?)
}

/// Reads a tenant and locks it until the end of the transaction.
pub async fn lock(tx: &mut Tx, name: &str) -> Result<Option<Tenant>> {
    let tenant = tenants!("where name = $1 for no key update", name);
    Ok(tenant.fetch_optional(tx.conn()).await?)
}

/// All tenants by name.
pub async fn list(tx: &mut Tx) -> Result<Vec<Tenant>> {
    list_page(tx, None, i64::MAX).await
}

/// At most `limit` tenants by name, after the one named `after`.
pub async fn list_page(tx: &mut Tx, after: Option<&str>, limit: i64) -> Result<Vec<Tenant>> {
    let page = tenants!(
        "where $1::text is null or name > $1 order by name limit $2",
        after,
        limit
    );
    Ok(page.fetch_all(tx.conn()).await?)
}

/// Deletes a tenant with everything in it. `false` if there is none with this id.
pub async fn delete(tx: &mut Tx, id: TenantId) -> Result<bool> {
    let deleted = sqlx::query!("delete from tenants where id = $1", id.0)
        .execute(tx.conn())
        .await?;
    Ok(deleted.rows_affected() > 0)
}

/// A hash of the row of each of these tenants, to notice changes. Needs the system role.
pub async fn list_stamps(tx: &mut Tx, tenants: &[TenantId]) -> Result<HashMap<TenantId, String>> {
    let ids: Vec<Uuid> = tenants.iter().map(|tenant| tenant.0).collect();
    let rows = sqlx::query!(
        r#"select id as "id: TenantId", md5(t::text) as "stamp!" from tenants t where id = any($1)"#,
        &ids
    )
    .fetch_all(tx.conn())
    .await?;
    let stamps = rows.into_iter().map(|row| (row.id, row.stamp));
    Ok(stamps.collect())
}
