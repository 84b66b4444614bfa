//! Tenants, as the operator manages them.

use crate::{
    domain::{
        account::Tenant,
        audit::{Fact, OPERATOR},
        clock::Clock,
        error::{Error, Result},
        ids::{AgentId, TenantId},
    },
    store::{self, Db},
};

/// Adds a tenant. `agents`: those that serve it; absent: every one.
pub async fn add_tenant(
    db: &Db,
    clock: &Clock,
    name: &str,
    agents: Option<Vec<AgentId>>,
    guests: bool,
) -> Result<Tenant> {
    check_name(name)?;
    let agents = agents.map(|agents| agents.iter().map(ToString::to_string).collect());
    let tenant = Tenant { id: TenantId::new(), name: name.to_owned(), agents, guests, created_at: clock.now() };
    let mut tx = db.system().await?;
    store::tenants::insert(&mut tx, &tenant).await?;
    let detail = format!("{name} ({})", tenant.id);
    store::audit::record_for_operator(&mut tx, OPERATOR, "tenant.created", &detail).await?;
    tx.enter(tenant.id).await?;
    store::audit::record(&mut tx, tenant.id, &Fact::new(OPERATOR, "tenant.created").detail(name)).await?;
    tx.commit().await?;
    Ok(tenant)
}

pub async fn find_tenant(db: &Db, name: &str) -> Result<Tenant> {
    let mut tx = db.system().await?;
    let tenant = store::tenants::by_name(&mut tx, name).await?;
    tenant.ok_or_else(|| Error::not_found(format!("tenant {name:?}")))
}

pub async fn list_tenants(db: &Db) -> Result<Vec<Tenant>> {
    let mut tx = db.system().await?;
    store::tenants::list(&mut tx).await
}

/// Removes a tenant with all that it has: issuers, keys, conversations, audit. That it was removed stays in the
/// operator's trail.
pub async fn remove_tenant(db: &Db, id: TenantId) -> Result<()> {
    let mut tx = db.system().await?;
    store::audit::record_for_operator(&mut tx, OPERATOR, "tenant.removed", &id.to_string()).await?;
    if !store::tenants::delete(&mut tx, id).await? {
        return Err(Error::not_found("tenant"));
    }
    tx.commit().await
}

fn check_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = name.len() <= 63
        && name.bytes().next().is_some_and(plain)
        && name.bytes().all(|byte| plain(byte) || byte == b'-');
    if fits {
        return Ok(());
    }
    Err(Error::invalid(
        "name",
        format!(
            "{name:?} is no tenant name: use 1 to 63 lower-case letters, digits or `-`, starting with a letter or digit"
        ),
    ))
}
