//! What was used, and that nobody uses more than they may. Counted in Postgres by day (UTC), for all replicas; asked
//! when a turn begins, so that what is under way may go somewhat beyond.

use time::Date;

use super::App;
use crate::{
    domain::{
        error::Result,
        principal::{Admin, Principal},
        usage::Line,
    },
    store::{self, Tx},
};

/// `Limited` when the principal or their tenant has used all of today's.
pub async fn admit(app: &App, tx: &mut Tx, principal: &Principal) -> Result<()> {
    if !app.config.daily.is_any() {
        return Ok(());
    }
    let (user, tenant) = store::usage::today(tx, &principal.user).await?;
    app.config.daily.admit(user, tenant, app.clock.now())
}

/// What was used in a tenant, by user and agent, from a day on and before another one.
pub async fn list(app: &App, admin: &Admin, since: Option<Date>, until: Option<Date>, limit: i64) -> Result<Vec<Line>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    store::usage::list(&mut tx, since, until, limit).await
}
