//! Usage, and the limits on it. Usage is counted in Postgres by day (UTC), for all replicas. Limits are
//! checked when a turn begins, so running turns may exceed them a little.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use time::{Date, OffsetDateTime};

use crate::app::App;
use domain::{
    error::{Error, Result},
    ids::{TenantId, UserId},
    principal::{Admin, GUEST_USER, Principal},
    usage::{self, DayLine, Line, Together, Used},
};
use store::Tx;

/// Checks that the principal may begin a run. `Limited` when they or their tenant have reached a limit of today,
/// `Suspended` when the tenant is suspended. Both are read from the database, so they hold on every replica.
pub async fn require_run(app: &App, tx: &mut Tx, principal: &Principal) -> Result<()> {
    let tenant = store::tenants::get(tx, principal.tenant)
        .await?
        .ok_or_else(|| Error::not_found("tenant"))?;
    tenant.require_active()?;
    let daily = tenant.limits.effective(&app.config.daily());
    if !daily.is_any() {
        return Ok(());
    }
    store::usage::lock(tx).await?;
    let (user, tenant) = store::usage::get_today(tx, &principal.user).await?;
    daily.check(user, tenant, app.clock.now())
}

/// Checks that the principal may store this many more bytes today. `Limited`, with the bytes that are left, when they
/// may not. The bytes of all replicas count, in the transaction that stores.
pub async fn require_space(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    bytes: usize,
) -> Result<()> {
    let is_guest = principal.user.as_str().starts_with(GUEST_USER);
    let (own, together, shared) = app.config.storage().limits_for(is_guest);
    if own.is_none() && shared.is_none() {
        return Ok(());
    }
    let stored = store::usage::get_stored_today(tx, &principal.user, together).await?;
    let bytes = i64::try_from(bytes).map_err(Error::internal)?;
    for (limit, stored) in [(own, stored.user), (shared, stored.together)] {
        if let Some(limit) = limit {
            usage::require_space(limit, stored, bytes, app.clock.now())?;
        }
    }
    Ok(())
}

/// Checks the limits of tokens alone, for a request that costs tokens and begins no run.
pub async fn require_tokens(app: &App, principal: &Principal) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let tenant = store::tenants::get(&mut tx, principal.tenant)
        .await?
        .ok_or_else(|| Error::not_found("tenant"))?;
    tenant.require_active()?;
    let daily = tenant.limits.effective(&app.config.daily()).of_tokens();
    if !daily.is_any() {
        return Ok(());
    }
    let (user, tenant) = store::usage::get_today(&mut tx, &principal.user).await?;
    daily.check(user, tenant, app.clock.now())
}

/// A user's usage of today, and their limits.
#[derive(Clone, Copy, Debug, Serialize, utoipa::ToSchema)]
pub struct OwnUsage {
    /// Turns: messages that the model was asked about.
    pub runs: i64,
    /// Absent: no limit of their own; the limits of the tenant hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_limit: Option<i64>,
    pub tokens: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_limit: Option<i64>,
    /// Bytes of messages, results of tools and attachments.
    pub stored_bytes: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes_limit: Option<i64>,
    /// When the day ends and counting begins again at 0.
    #[serde(with = "time::serde::rfc3339")]
    pub resets_at: OffsetDateTime,
}

/// The principal's usage of today.
pub async fn own(app: &App, principal: &Principal) -> Result<OwnUsage> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let tenant = store::tenants::get(&mut tx, principal.tenant)
        .await?
        .ok_or_else(|| Error::not_found("tenant"))?;
    let daily = tenant.limits.effective(&app.config.daily());
    let (used, _) = store::usage::get_today(&mut tx, &principal.user).await?;
    let is_guest = principal.user.as_str().starts_with(GUEST_USER);
    let (stored_bytes_limit, ..) = app.config.storage().limits_for(is_guest);
    let stored = store::usage::get_stored_today(&mut tx, &principal.user, Together::Nobody).await?;
    let today = app.clock.now().date();
    Ok(OwnUsage {
        runs: used.runs,
        runs_limit: daily.user_runs,
        tokens: used.tokens,
        tokens_limit: daily.user_tokens,
        stored_bytes: stored.user,
        stored_bytes_limit,
        resets_at: today.next_day().unwrap_or(today).midnight().assume_utc(),
    })
}

/// The most additions that are folded in one transaction.
const FOLD: i64 = 5000;
/// How often additions are folded.
pub const PERIOD: Duration = Duration::from_secs(5);

/// Adds the usage of runs to the rows of their days.
pub async fn fold(app: &Arc<App>) -> Result<()> {
    let tenants = app
        .db
        .look(|tx| Box::pin(store::usage::list_tenants_to_fold(tx)));
    let tenants = tenants.await?;
    for tenant in tenants {
        let mut tx = app.db.tenant(tenant).await?;
        store::usage::fold(&mut tx, FOLD).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// The usage of all users of a tenant today.
pub async fn of_tenant_today(app: &App, tenant: TenantId) -> Result<Used> {
    let mut tx = app.db.tenant(tenant).await?;
    // No user has the empty id.
    Ok(store::usage::get_today(&mut tx, &UserId("".into()))
        .await?
        .1)
}

/// The usage of a tenant by user and agent, from the day `since` to the day before `until`.
pub async fn list(
    app: &App,
    admin: &Admin,
    since: Option<Date>,
    until: Option<Date>,
    limit: i64,
) -> Result<Vec<Line>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    store::usage::list(&mut tx, since, until, limit).await
}

/// The usage of a tenant per day, of all users or of one, from the day `since` to the day before `until`.
pub async fn list_days(
    app: &App,
    admin: &Admin,
    user: Option<&UserId>,
    since: Date,
    until: Date,
) -> Result<Vec<DayLine>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    store::usage::list_by_day(&mut tx, user, since, until).await
}
