//! Rows of the webhooks' outbox. A message is a row that was written in the transaction of its event. The
//! sender moves the row's time ahead, which is the lease, and counts the try, which is the fence.

mod history;

use std::time::Duration;

use serde_json::{Value, value::RawValue};
use sqlx::types::Json;
use time::OffsetDateTime;

pub use self::history::{list, prune, tenants_with_old};
use super::Tx;
use domain::{
    error::Result,
    ids::{DeliveryId, TenantId, WebhookId},
};

/// Adds a message to one webhook that the caller sends at once, and only once.
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

/// A message whose time has come.
#[derive(Clone, Copy, Debug)]
pub struct DueDelivery {
    pub tenant: TenantId,
    pub id: DeliveryId,
    pub webhook: WebhookId,
}

/// Messages whose time has come, the longest waiting first; none to the webhooks in `busy`. Wants
/// [`super::Db::system`].
pub async fn due(tx: &mut Tx, busy: &[WebhookId], limit: i64) -> Result<Vec<DueDelivery>> {
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

/// A message to be sent by whoever claimed it, and where to.
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
    /// This try, counted from 1.
    pub attempt: i32,
}

/// Claims a message for the time of a lease; `None` when somebody else was first.
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

/// How a try ended.
#[derive(Clone, Debug)]
pub struct DeliveryAttempt {
    pub status: Option<u16>,
    /// `None`: it was delivered.
    pub error: Option<String>,
    /// After which time to try again; `None`: not at all.
    pub again: Option<Duration>,
}

/// Records how a try ended, in the message and in the webhook. `false` when another sender has claimed the
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
