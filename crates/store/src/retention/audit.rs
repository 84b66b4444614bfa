//! Old arguments of approvals and old lines of the audit trail.

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Batch, ROWS, batch};
use crate::Tx;
use domain::{audit::id_after, error::Result, ids::TenantId};

/// Closed approvals with arguments to erase.
pub async fn count_arguments(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from approvals
           where tenant_id = $1 and length(sealed) > 7 and changed_at < $2
             and state not in ('pending', 'approved', 'executing')"#,
        tx.tenant()?.0,
        cutoff,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Erases the arguments of closed approvals, with what their servers answered and the claims of their requesters. Of the
/// sealed arguments the bytes stay that name their key.
pub async fn purge_arguments(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<Batch> {
    let ids = sqlx::query_scalar!(
        "update approvals
         set sealed = substr(sealed, 1, 7), evidence = null,
             principal = json_build_object('tenant', tenant_id, 'user', requester, 'claims', '{}'::json, 'locale', null,
                                           'authenticated', not starts_with(requester, 'guest:'))
         where tenant_id = $1 and id in (
           select id from approvals
           where tenant_id = $1 and length(sealed) > 7 and changed_at < $2
             and state not in ('pending', 'approved', 'executing')
           order by id limit $3 for update skip locked)
         returning id",
        tx.tenant()?.0,
        cutoff,
        ROWS,
    );
    let ids = ids.fetch_all(tx.conn()).await?;
    sqlx::query!(
        "update approval_results set result = null where tenant_id = $1 and id = any($2)",
        tx.tenant()?.0,
        &ids,
    )
    .execute(tx.conn())
    .await?;
    Ok(batch(&ids, ROWS))
}

/// Lines of the audit trail to delete.
pub async fn count_audit(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from audit where tenant_id = $1 and id < $2 and at < $3"#,
        tx.tenant()?.0,
        id_after(cutoff),
        cutoff,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Deletes lines of the audit trail, the oldest first. Only the role that this takes on for one statement can, and it sees
/// no line that is younger than [`set_audit_days`] has said.
pub async fn purge_audit(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<Batch> {
    let tenant = tx.tenant()?.0;
    sqlx::query("set local role chatelaine_retention")
        .execute(tx.conn())
        .await?;
    let deleted = sqlx::query!(
        "delete from audit where tenant_id = $1 and id in (
           select id from audit where tenant_id = $1 and id < $2 and at < $3 order by id limit $4)",
        tenant,
        id_after(cutoff),
        cutoff,
        ROWS,
    )
    .execute(tx.conn())
    .await?;
    sqlx::query("set local role chatelaine_tenant")
        .execute(tx.conn())
        .await?;
    let rows = deleted.rows_affected();
    let more = rows == ROWS.cast_unsigned();
    Ok(Batch {
        rows,
        before: more.then(Uuid::max),
    })
}

/// Says which lines of a tenant's trail may be deleted; whether that is new. Needs the system role.
pub async fn set_audit_days(tx: &mut Tx, tenant: TenantId, days: Option<i32>) -> Result<bool> {
    let changed = sqlx::query!(
        "update tenants set audit_days = $2 where id = $1 and audit_days is distinct from $2",
        tenant.0,
        days,
    )
    .execute(tx.conn())
    .await?;
    Ok(changed.rows_affected() == 1)
}
