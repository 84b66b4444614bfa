//! Deliveries as a tenant's administrator lists them, until they are old.

use crate::Tx;
use domain::{
    error::Result,
    ids::{DeliveryId, TenantId, WebhookId},
    webhook::{Delivery, DeliveryState},
};

/// Messages of a webhook, newest first, those before `before` only.
pub async fn list(
    tx: &mut Tx,
    tenant: TenantId,
    webhook: WebhookId,
    before: Option<DeliveryId>,
    limit: i64,
) -> Result<Vec<Delivery>> {
    let rows = sqlx::query!(
        r#"
        select id as "id: DeliveryId", event, attempts, created_at, next_attempt_at, delivered_at, last_status, last_error
        from webhook_deliveries
        where tenant_id = $1 and webhook_id = $2 and ($3::uuid is null or id < $3)
        order by id desc
        limit $4
        "#,
        tenant.0,
        webhook.0,
        before.map(|id| id.0),
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    let state = |delivered: bool, waits: bool| match (delivered, waits) {
        (true, _) => DeliveryState::Delivered,
        (false, true) => DeliveryState::Pending,
        (false, false) => DeliveryState::Failed,
    };
    let rows = rows.into_iter().map(|row| Delivery {
        id: row.id,
        event: row.event,
        state: state(row.delivered_at.is_some(), row.next_attempt_at.is_some()),
        attempts: row.attempts,
        created_at: row.created_at,
        next_attempt_at: row.next_attempt_at,
        delivered_at: row.delivered_at,
        last_status: row.last_status,
        last_error: row.last_error,
    });
    Ok(rows.collect())
}

/// Tenants with messages older than this many days; wants [`crate::Db::system`].
pub async fn tenants_with_old(tx: &mut Tx, days: i32) -> Result<Vec<TenantId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select distinct tenant_id as "id: TenantId" from (
          select tenant_id from webhook_deliveries
          where created_at < now() - make_interval(days => $1) and next_attempt_at is null
          order by created_at
          limit 10000
        ) old
        "#,
        days,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(ids)
}

/// Forgets some of a tenant's messages that are older than this and not to be sent any more; how many.
pub async fn prune(tx: &mut Tx, tenant: TenantId, days: i32, limit: i64) -> Result<u64> {
    let done = sqlx::query!(
        "
        delete from webhook_deliveries
        where tenant_id = $1 and id in (
          select id from webhook_deliveries
          where tenant_id = $1 and created_at < now() - make_interval(days => $2) and next_attempt_at is null
          limit $3
        )
        ",
        tenant.0,
        days,
        limit,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected())
}
