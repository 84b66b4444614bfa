//! Rows of tenants. They are written by the operator only, so every function but [`get`] wants the
//! program's own transaction ([`super::Db::system`]).

use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use crate::domain::{
    account::Tenant,
    error::{Error, Result},
    ids::TenantId,
    usage::Limits,
};

struct Row {
    id: Uuid,
    name: String,
    display_name: Option<String>,
    agents: Option<Vec<String>>,
    guests: bool,
    suspended_at: Option<OffsetDateTime>,
    limits: Json<Limits>,
    created_at: OffsetDateTime,
}

impl From<Row> for Tenant {
    fn from(row: Row) -> Self {
        let Row {
            id,
            name,
            display_name,
            agents,
            guests,
            suspended_at,
            limits,
            created_at,
        } = row;
        Self {
            id: TenantId(id),
            name,
            display_name,
            agents,
            guests,
            suspended_at,
            limits: limits.0,
            created_at,
        }
    }
}

/// Adds a tenant; a name that is taken is a conflict.
pub async fn insert(tx: &mut Tx, tenant: &Tenant) -> Result<()> {
    let added = sqlx::query!(
        "
        insert into tenants (id, name, display_name, agents, guests, limits, created_at)
        values ($1, $2, $3, $4, $5, $6, $7)
        on conflict (name) do nothing
        ",
        tenant.id.0,
        tenant.name,
        tenant.display_name,
        tenant.agents.as_deref(),
        tenant.guests,
        Json(tenant.limits) as _,
        tenant.created_at,
    )
    .execute(tx.conn())
    .await?;
    if added.rows_affected() == 0 {
        return Err(Error::Conflict(format!(
            "there is a tenant {:?} already",
            tenant.name
        )));
    }
    Ok(())
}

/// Writes what may change of a tenant.
pub async fn update(tx: &mut Tx, tenant: &Tenant) -> Result<()> {
    sqlx::query!(
        "
        update tenants set display_name = $2, agents = $3, guests = $4, suspended_at = $5, limits = $6
        where id = $1
        ",
        tenant.id.0,
        tenant.display_name,
        tenant.agents.as_deref(),
        tenant.guests,
        tenant.suspended_at,
        Json(tenant.limits) as _,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

pub async fn get(tx: &mut Tx, id: TenantId) -> Result<Option<Tenant>> {
    let row = sqlx::query_as!(
        Row,
        r#"select id, name, display_name, agents, guests, suspended_at, limits as "limits: Json<Limits>", created_at
           from tenants where id = $1"#,
        id.0
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(Into::into))
}

pub async fn by_name(tx: &mut Tx, name: &str) -> Result<Option<Tenant>> {
    let row = sqlx::query_as!(
        Row,
        r#"select id, name, display_name, agents, guests, suspended_at, limits as "limits: Json<Limits>", created_at
           from tenants where name = $1"#,
        name
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(Into::into))
}

/// The same, and nobody else changes it until the end of the transaction.
pub async fn lock(tx: &mut Tx, name: &str) -> Result<Option<Tenant>> {
    let row = sqlx::query_as!(
        Row,
        r#"select id, name, display_name, agents, guests, suspended_at, limits as "limits: Json<Limits>", created_at
           from tenants where name = $1 for no key update"#,
        name
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(Into::into))
}

/// All tenants by name.
pub async fn list(tx: &mut Tx) -> Result<Vec<Tenant>> {
    page(tx, None, i64::MAX).await
}

/// Tenants by name, those after `after` only.
pub async fn page(tx: &mut Tx, after: Option<&str>, limit: i64) -> Result<Vec<Tenant>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select id, name, display_name, agents, guests, suspended_at, limits as "limits: Json<Limits>", created_at
           from tenants where $1::text is null or name > $1 order by name limit $2"#,
        after,
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// Removes a tenant with everything it has; says whether there was one.
pub async fn delete(tx: &mut Tx, id: TenantId) -> Result<bool> {
    let deleted = sqlx::query!("delete from tenants where id = $1", id.0)
        .execute(tx.conn())
        .await?;
    Ok(deleted.rows_affected() > 0)
}
