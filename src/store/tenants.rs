//! Rows of tenants. They are written by the operator only, so every function but [`get`] wants the
//! program's own transaction ([`super::Db::system`]).

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use crate::domain::{
    account::Tenant,
    error::{Error, Result},
    ids::TenantId,
};

struct Row {
    id: Uuid,
    name: String,
    agents: Option<Vec<String>>,
    guests: bool,
    created_at: OffsetDateTime,
}

impl From<Row> for Tenant {
    fn from(row: Row) -> Self {
        let Row { id, name, agents, guests, created_at } = row;
        Self { id: TenantId(id), name, agents, guests, created_at }
    }
}

/// Adds a tenant; a name that is taken is a conflict.
pub async fn insert(tx: &mut Tx, tenant: &Tenant) -> Result<()> {
    let added = sqlx::query!(
        "
        insert into tenants (id, name, agents, guests, created_at)
        values ($1, $2, $3, $4, $5)
        on conflict (name) do nothing
        ",
        tenant.id.0,
        tenant.name,
        tenant.agents.as_deref(),
        tenant.guests,
        tenant.created_at,
    )
    .execute(tx.conn())
    .await?;
    if added.rows_affected() == 0 {
        return Err(Error::Conflict(format!("there is a tenant {:?} already", tenant.name)));
    }
    Ok(())
}

pub async fn get(tx: &mut Tx, id: TenantId) -> Result<Option<Tenant>> {
    let row = sqlx::query_as!(Row, "select id, name, agents, guests, created_at from tenants where id = $1", id.0)
        .fetch_optional(tx.conn())
        .await?;
    Ok(row.map(Into::into))
}

pub async fn by_name(tx: &mut Tx, name: &str) -> Result<Option<Tenant>> {
    let row = sqlx::query_as!(Row, "select id, name, agents, guests, created_at from tenants where name = $1", name)
        .fetch_optional(tx.conn())
        .await?;
    Ok(row.map(Into::into))
}

/// All tenants by name.
pub async fn list(tx: &mut Tx) -> Result<Vec<Tenant>> {
    let rows = sqlx::query_as!(Row, "select id, name, agents, guests, created_at from tenants order by name")
        .fetch_all(tx.conn())
        .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// Removes a tenant with everything it has; says whether there was one.
pub async fn delete(tx: &mut Tx, id: TenantId) -> Result<bool> {
    let deleted = sqlx::query!("delete from tenants where id = $1", id.0).execute(tx.conn()).await?;
    Ok(deleted.rows_affected() > 0)
}
