//! Rows of webhooks, and the messages that are put into their outbox. [`super::deliveries`] takes them out of it.

use serde_json::Value;
use uuid::Uuid;

use super::Tx;
use domain::{
    error::{Error, ErrorCode, Missing, Result},
    ids::{DeliveryId, TenantId, WebhookId},
    webhook::{MAX_WEBHOOKS, Webhook},
};

/// A query for webhooks: the SQL before and after the columns, and its values.
macro_rules! webhooks {
    ($before:literal, $after:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            Webhook,
            $before
                + r#" id as "id: _", url, events, created_at, disabled_at, last_delivered_at, last_failed_at, last_error "#
                + $after
            $(, $value)*
        )
    };
}

/// Adds a webhook in a free slot. `Conflict` if there is none.
pub async fn insert(
    tx: &mut Tx,
    id: WebhookId,
    url: &str,
    events: &[String],
    sealed: &[u8],
) -> Result<Webhook> {
    let none = || {
        Error::conflict(
            ErrorCode::LimitReached,
            format!(
                "there are {MAX_WEBHOOKS} webhooks, or one was made at this moment; look at the list"
            ),
        )
    };
    let tenant = tx.tenant()?;
    let taken = sqlx::query_scalar!("select slot from webhooks where tenant_id = $1", tenant.0)
        .fetch_all(tx.conn())
        .await?;
    let most = i16::try_from(MAX_WEBHOOKS).unwrap_or(i16::MAX);
    let free = (1..=most).find(|slot| !taken.contains(slot));
    let row = webhooks!(
        "insert into webhooks (tenant_id, id, slot, url, events, sealed) values ($1, $2, $3, $4, $5, $6)
         on conflict (tenant_id, slot) do nothing
         returning",
        "",
        tenant.0,
        id.0,
        free.ok_or_else(none)?,
        url,
        events,
        sealed,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.ok_or_else(none)
}

/// The tenant's webhooks, oldest first.
pub async fn list(tx: &mut Tx, tenant: TenantId) -> Result<Vec<Webhook>> {
    let all = webhooks!(
        "select",
        "from webhooks where tenant_id = $1 order by id",
        tenant.0
    );
    Ok(all.fetch_all(tx.conn()).await?)
}

pub async fn get(tx: &mut Tx, tenant: TenantId, id: WebhookId) -> Result<Webhook> {
    let one = webhooks!(
        "select",
        "from webhooks where tenant_id = $1 and id = $2",
        tenant.0,
        id.0
    );
    let one = one.fetch_optional(tx.conn()).await?;
    one.ok_or_else(|| Error::NotFound(Missing::Webhook(id)))
}

/// Deletes a webhook with its messages. `NotFound` if there is none.
pub async fn delete(tx: &mut Tx, tenant: TenantId, id: WebhookId) -> Result<()> {
    let done = sqlx::query!(
        "delete from webhooks where tenant_id = $1 and id = $2",
        tenant.0,
        id.0
    )
    .execute(tx.conn())
    .await?;
    if done.rows_affected() == 0 {
        Err(Error::NotFound(Missing::Webhook(id)))
    } else {
        Ok(())
    }
}

/// Puts a message into the outbox of each of the tenant's webhooks that wants this event, in the transaction of the
/// event. The message is sent about a second after the commit.
pub async fn enqueue(tx: &mut Tx, tenant: TenantId, event: &str, payload: &Value) -> Result<()> {
    let ids: Vec<Uuid> = (0..MAX_WEBHOOKS).map(|_| DeliveryId::new().0).collect();
    sqlx::query!(
        "
        insert into webhook_deliveries (tenant_id, id, webhook_id, event, payload, next_attempt_at)
        select tenant_id, ($4::uuid[])[slot], id, $2, $3::text::json, now()
        from webhooks
        where tenant_id = $1 and disabled_at is null and exists (
          select from unnest(events) wanted
          where wanted = $2 or (right(wanted, 1) = '*' and starts_with($2, left(wanted, -1)))
        )
        on conflict (tenant_id, id) do nothing
        ",
        tenant.0,
        event,
        payload.to_string(),
        &ids,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Disables a webhook, and gives its waiting messages up. `false` if it was disabled already.
pub async fn disable(tx: &mut Tx, tenant: TenantId, id: WebhookId) -> Result<bool> {
    let done = sqlx::query!(
        "update webhooks set disabled_at = now() where tenant_id = $1 and id = $2 and disabled_at is null",
        tenant.0,
        id.0,
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "
        update webhook_deliveries set next_attempt_at = null, last_error = coalesce(last_error, 'the webhook was disabled')
        where tenant_id = $1 and webhook_id = $2 and next_attempt_at is not null
        ",
        tenant.0,
        id.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}
