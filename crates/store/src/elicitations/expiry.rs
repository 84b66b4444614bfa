//! The time that a question stays open, and how it is extended.

use std::time::Duration;

use uuid::Uuid;

use super::rows;
use crate::{Tx, elicitations::Row};
use domain::{
    elicitation::{Elicitation, State},
    error::Result,
    ids::TenantId,
};

/// How long an answered row is kept that no run has read: the run may wait in a queue.
const ANSWERED_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Renews the lease of the call that waits for the answer. The row as it is now; `None` when it is gone.
pub async fn renew_lease(tx: &mut Tx, id: Uuid, lease: Duration) -> Result<Option<Elicitation>> {
    let row = rows!(
        "update elicitations
         set expires_at = case when state = 'open' then clock.until else expires_at end
         from (select statement_timestamp() + make_interval(secs => $2) as until offset 0) clock
         where tenant_id = $3 and id = $1 returning",
        "",
        id,
        lease.as_secs_f64(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// The tenants with questions that nobody answered in time; wants [`crate::Db::system`].
pub async fn tenants_with_overdue(tx: &mut Tx) -> Result<Vec<TenantId>> {
    let ids = sqlx::query_scalar!(
        r#"select distinct tenant_id as "id: TenantId" from elicitations where expires_at < now()"#
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Deletes the tenant's overdue questions, and answered ones that no run has read. Returns those whose user
/// must be notified: the question was open, or the call that waited for the answer is gone.
pub async fn expire(tx: &mut Tx) -> Result<Vec<Elicitation>> {
    let rows = rows!(
        "delete from elicitations
         where tenant_id = $2
           and expires_at < now() - case when state = 'open' or live then interval '0' else make_interval(secs => $1) end
         returning",
        "",
        ANSWERED_LIFE.as_secs_f64(),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let expired: Result<Vec<Elicitation>> = rows.into_iter().map(TryInto::try_into).collect();
    let mut expired = expired?;
    expired.retain(|one| one.state == State::Open || one.live);
    Ok(expired)
}
