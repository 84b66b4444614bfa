//! Rows of the webhooks' outbox. A message is a row that was written in the transaction of its event. The sender
//! moves the time of the row ahead, which is the lease, and counts the attempt, which is the fence.

use std::time::Duration;

use serde_json::{Value, value::RawValue};
use sqlx::types::Json;
use time::OffsetDateTime;

use super::Tx;
use domain::{
    error::Result,
    ids::{DeliveryId, TenantId, WebhookId},
    webhook::{Delivery, DeliveryState},
};

/// Adds a message to one webhook. The caller sends it at once, and it is not tried again.
pub async fn insert_once(
    tx: &mut Tx,
    tenant: TenantId,
    webhook: WebhookId,
    event: &str,
    payload: &Value,
) -> Result<DeliveryId> {
    let id = DeliveryId::new();
    sqlx::query!(
        "
        insert into webhook_deliveries (tenant_id, id, webhook_id, event, payload, attempts)
        values ($1, $2, $3, $4, $5::text::json, 1)
        ",
        tenant.0,
        id.0,
        webhook.0,
        event,
        payload.to_string(),
    )
    .execute(tx.conn())
    .await?;
    Ok(id)
}

/// A message that is due.
#[derive(Clone, Copy, Debug)]
pub struct DueDelivery {
    pub tenant: TenantId,
    pub id: DeliveryId,
    pub webhook: WebhookId,
}

/// The messages that are due, the longest waiting first, without those to webhooks in `busy`. Needs the system role.
pub async fn list_due(tx: &mut Tx, busy: &[WebhookId], limit: i64) -> Result<Vec<DueDelivery>> {
    let busy: Vec<_> = busy.iter().map(|id| id.0).collect();
    let due = sqlx::query_as!(
        DueDelivery,
        r#"
        select tenant_id as "tenant: _", id as "id: _", webhook_id as "webhook: _" from webhook_deliveries
        where next_attempt_at <= now() and webhook_id <> all ($1)
        order by next_attempt_at
        limit $2
        "#,
        &busy,
        limit,
    );
    Ok(due.fetch_all(tx.conn()).await?)
}

/// A message that this replica has claimed, and the webhook to send it to.
pub struct ClaimedDelivery {
    pub tenant: TenantId,
    pub id: DeliveryId,
    pub webhook: WebhookId,
    pub url: String,
    pub sealed: Vec<u8>,
    pub disabled: bool,
    pub event: String,
    pub payload: Box<RawValue>,
    pub created_at: OffsetDateTime,
    /// The number of this attempt, from 1.
    pub attempt: i32,
}

/// Claims a message for the time of a lease. `None` if another sender was first.
pub async fn claim(
    tx: &mut Tx,
    due: &DueDelivery,
    lease: Duration,
) -> Result<Option<ClaimedDelivery>> {
    let claimed = sqlx::query!(
        "
        update webhook_deliveries
        set attempts = attempts + 1, next_attempt_at = statement_timestamp() + make_interval(secs => $3)
        where tenant_id = $1 and id = (
          select id from webhook_deliveries
          where tenant_id = $1 and id = $2 and next_attempt_at <= statement_timestamp()
          for update skip locked
        )
        returning id
        ",
        due.tenant.0,
        due.id.0,
        lease.as_secs_f64(),
    )
    .fetch_optional(tx.conn())
    .await?;
    match claimed {
        Some(_) => get_claimed(tx, due.tenant, due.id).await.map(Some),
        None => Ok(None),
    }
}

/// Reads a message that this transaction has claimed.
pub async fn get_claimed(tx: &mut Tx, tenant: TenantId, id: DeliveryId) -> Result<ClaimedDelivery> {
    let row = sqlx::query!(
        r#"
        select d.webhook_id as "webhook: WebhookId", w.url, w.sealed, w.disabled_at is not null as "disabled!", d.event,
          d.payload as "payload: Json<Box<RawValue>>", d.created_at, d.attempts
        from webhook_deliveries d
        join webhooks w on w.tenant_id = d.tenant_id and w.id = d.webhook_id
        where d.tenant_id = $1 and d.id = $2
        "#,
        tenant.0,
        id.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(ClaimedDelivery {
        tenant,
        id,
        webhook: row.webhook,
        url: row.url,
        sealed: row.sealed,
        disabled: row.disabled,
        event: row.event,
        payload: row.payload.0,
        created_at: row.created_at,
        attempt: row.attempts,
    })
}

/// The result of an attempt.
#[derive(Clone, Debug)]
pub struct DeliveryAttempt {
    pub status: Option<u16>,
    /// `None` if the message was delivered.
    pub error: Option<String>,
    /// The time until the next attempt. `None` if there is none.
    pub again: Option<Duration>,
}

/// Records the result of an attempt in the message and in the webhook. `false` if another sender has claimed the
/// message since.
pub async fn finish(
    tx: &mut Tx,
    claimed: &ClaimedDelivery,
    tried: &DeliveryAttempt,
) -> Result<bool> {
    let done = sqlx::query!(
        "
        update webhook_deliveries
        set last_status = $4, last_error = $5,
          delivered_at = case when $5::text is null then clock.at end,
          next_attempt_at = clock.at + make_interval(secs => $6)
        from (select statement_timestamp() as at) clock
        where tenant_id = $1 and id = $2 and attempts = $3 and delivered_at is null
        ",
        claimed.tenant.0,
        claimed.id.0,
        claimed.attempt,
        tried.status.map(i32::from),
        tried.error,
        tried.again.map(|again| again.as_secs_f64()),
    )
    .execute(tx.conn())
    .await?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query!(
        "
        update webhooks
        set last_delivered_at = case when $3::text is null then clock.at else last_delivered_at end,
          last_failed_at = case when $3::text is null then last_failed_at else clock.at end,
          last_error = coalesce($3, last_error)
        from (select statement_timestamp() as at) clock
        where tenant_id = $1 and id = $2
        ",
        claimed.tenant.0,
        claimed.webhook.0,
        tried.error,
    )
    .execute(tx.conn())
    .await?;
    Ok(true)
}

/// At most `limit` messages of a webhook, the newest first, before `before`.
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

/// The tenants with messages that are older than this many days. Needs the system role.
pub async fn list_tenants_with_old(tx: &mut Tx, days: i32) -> Result<Vec<TenantId>> {
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

/// Deletes at most `limit` of a tenant's messages that are older than `days` and not to be sent any more. Returns how
/// many.
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
