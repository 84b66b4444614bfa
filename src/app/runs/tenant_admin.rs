//! Tenants over the API, for the operator. [`accounts`] writes the rows; here the change is also applied on every
//! replica.
//!
//! The work of a tenant that is suspended or removed stops at once on the replica that made the change. Other replicas
//! stop it with the hint, or within five seconds without the hint ([`sign_outs::apply_tenant_change`]).

use serde::Serialize;
use time::OffsetDateTime;

use super::sign_outs;
use crate::app::{
    App,
    accounts::{self, usage},
};
use domain::{
    account::Tenant,
    error::{Error, Result},
    ids::TenantId,
    principal::{Admin, Operator},
    retention::{Days, Retention},
    usage::{Limits, Used},
};
use store::hints::Hint;

pub use crate::app::accounts::{NewTenant, TenantChange};

/// A tenant as the operator sees it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct TenantView {
    pub id: TenantId,
    pub name: String,
    pub display_name: String,
    /// Absent: every agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<String>>,
    pub guests: bool,
    pub suspended: bool,
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub suspended_at: Option<OffsetDateTime>,
    /// The tenant's own limits for one day.
    pub limits: Limits,
    /// The limits in force, from the tenant and the installation's settings. Absent: no limit.
    pub in_force: InForce,
    /// How many days the tenant's data is kept, in place of the installation's days.
    pub retention: Retention,
    /// The days in force. Absent: kept for ever.
    pub retention_in_force: Days,
    /// The usage since 00:00 UTC; only when one tenant is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_today: Option<Used>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// The limits in force for one day.
#[derive(Clone, Copy, Debug, Serialize, utoipa::ToSchema)]
pub struct InForce {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_per_user: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_user: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_per_tenant: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_tenant: Option<i64>,
}

fn view(app: &App, tenant: Tenant) -> TenantView {
    let daily = tenant.limits.effective(&app.config.daily());
    let in_force = InForce {
        runs_per_user: daily.user_runs,
        tokens_per_user: daily.user_tokens,
        runs_per_tenant: daily.tenant_runs,
        tokens_per_tenant: daily.tenant_tokens,
    };
    let Tenant {
        id,
        name,
        display_name,
        agents,
        guests,
        suspended_at,
        limits,
        retention,
        created_at,
    } = tenant;
    let (suspended, used_today) = (suspended_at.is_some(), None);
    let retention_in_force = retention.effective(&app.config.retention());
    let display_name = display_name.unwrap_or_else(|| name.clone());
    TenantView {
        id,
        name,
        display_name,
        agents,
        guests,
        suspended,
        suspended_at,
        limits,
        in_force,
        retention,
        retention_in_force,
        used_today,
        created_at,
    }
}

pub async fn create(app: &App, _: &Operator, new: NewTenant) -> Result<TenantView> {
    let tenant = accounts::create_tenant(&app.db, &app.clock, new).await?;
    Ok(view(app, tenant))
}

/// Lists tenants by name, only those after the name `after`.
pub async fn list(
    app: &App,
    _: &Operator,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<TenantView>> {
    let tenants = accounts::list_tenants_page(&app.db, after, limit).await?;
    Ok(tenants
        .into_iter()
        .map(|tenant| view(app, tenant))
        .collect())
}

pub async fn get(app: &App, _: &Operator, name: &str) -> Result<TenantView> {
    let tenant = accounts::find_tenant(&app.db, name).await?;
    view_with_usage(app, tenant).await
}

/// Reads the tenant of an admin.
pub async fn own(app: &App, admin: &Admin) -> Result<TenantView> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    let tenant = store::tenants::get(&mut tx, admin.tenant())
        .await?
        .ok_or_else(|| Error::not_found("tenant"))?;
    drop(tx);
    view_with_usage(app, tenant).await
}

async fn view_with_usage(app: &App, tenant: Tenant) -> Result<TenantView> {
    let used_today = Some(usage::of_tenant_today(app, tenant.id).await?);
    Ok(TenantView {
        used_today,
        ..view(app, tenant)
    })
}

/// Changes a tenant. The runs of a tenant that is suspended are asked to stop.
pub async fn change(
    app: &App,
    _: &Operator,
    name: &str,
    change: TenantChange,
) -> Result<TenantView> {
    let (tenant, changed) = accounts::change_tenant(&app.db, &app.clock, name, change).await?;
    // A tenant that was suspended before is included, because the earlier request may have failed half-way.
    if changed || tenant.suspended_at.is_some() {
        publish_change(app, tenant.id).await?;
    }
    Ok(view(app, tenant))
}

/// Removes a tenant with everything that it has. `confirm` is its name, once more.
pub async fn remove(app: &App, _: &Operator, name: &str, confirm: Option<&str>) -> Result<()> {
    let tenant = accounts::find_tenant(&app.db, name).await?;
    if confirm != Some(name) {
        let why = format!(
            "must be {name:?}: its users' conversations and credentials, its keys, issuers, servers and audit trail \
             are removed with it, and nothing of that can be brought back"
        );
        return Err(Error::invalid("confirm", why));
    }
    // The tokens are revoked first: once the tenant's key is gone they cannot be opened, and they would stay valid at
    // their authorization servers.
    sign_outs::end_sign_ins_of_all(app, tenant.id).await?;
    accounts::remove_tenant(&app.db, tenant.id).await?;
    publish_change(app, tenant.id).await
}

/// The operator as an admin of this tenant.
pub async fn admin(app: &App, operator: &Operator, name: &str) -> Result<Admin> {
    Ok(operator.admin_of(accounts::find_tenant(&app.db, name).await?.id))
}

async fn publish_change(app: &App, tenant: TenantId) -> Result<()> {
    let _ = app.hints.send(Hint::Tenant { tenant });
    sign_outs::apply_tenant_change(app, tenant).await
}
