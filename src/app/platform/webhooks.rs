//! Webhooks: a tenant's admin names a URL and the events that it receives. An event is put into the outbox in the
//! transaction of its fact ([`store::webhooks::enqueue`]) and sent from there, signed and through the egress guard.
//!
//! Each replica looks for messages that are due, claims them with a lease, sends them and records the outcome. A
//! message whose attempt breaks off is sent again with the same id when its lease ends: a receiver may get a message
//! twice, but it misses none.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::StreamExt;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::app::{
    App,
    platform::{
        keys::contexts,
        polls::{POLL, ticks},
    },
};
use domain::{
    audit::{Fact, SYSTEM},
    error::{Error, ErrorCode, Result},
    ids::{DeliveryId, WebhookId},
    principal::Admin,
    secret::Secret,
    webhook::{self, Delivery, Webhook},
};
use egress::{Egress, Limits, Request, Response, parse_url};
use store::deliveries::{ClaimedDelivery, DeliveryAttempt};

/// The most messages that this process sends at once.
const MAX_PARALLEL_DELIVERIES: usize = 64;
/// The most messages at once to one webhook: a slow receiver delays only its own messages.
const MAX_PARALLEL_OF_WEBHOOK: usize = 2;
const MAX_URL: usize = 2048;
/// The event that a test sends.
const PING: &str = "ping";

/// The sender of messages, and the messages under way.
pub struct Webhooks {
    egress: Egress,
    permits: Arc<Semaphore>,
    under_way: Mutex<HashMap<WebhookId, usize>>,
    /// Notified when a permit is given back.
    freed: Notify,
}

impl Webhooks {
    pub fn new(egress: Egress) -> Self {
        Self {
            egress,
            permits: Arc::new(Semaphore::new(MAX_PARALLEL_DELIVERIES)),
            under_way: Mutex::default(),
            freed: Notify::new(),
        }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<WebhookId, usize>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The webhooks that already have the most messages under way.
    fn busy_webhooks(&self) -> Vec<WebhookId> {
        self.under_way()
            .iter()
            .filter(|(_, count)| **count >= MAX_PARALLEL_OF_WEBHOOK)
            .map(|(id, _)| *id)
            .collect()
    }
}

/// A permit to send one message, which is given back when dropped.
struct DeliveryPermit {
    app: Arc<App>,
    webhook: WebhookId,
    _permit: OwnedSemaphorePermit,
}

impl DeliveryPermit {
    fn take(app: &Arc<App>, webhook: WebhookId) -> Option<Self> {
        let permit = app.webhooks.permits.clone().try_acquire_owned().ok()?;
        let mut under_way = app.webhooks.under_way();
        let count = under_way.entry(webhook).or_default();
        if *count >= MAX_PARALLEL_OF_WEBHOOK {
            return None;
        }
        *count += 1;
        Some(Self {
            app: app.clone(),
            webhook,
            _permit: permit,
        })
    }
}

impl Drop for DeliveryPermit {
    fn drop(&mut self) {
        let mut under_way = self.app.webhooks.under_way();
        if let Some(count) = under_way.get_mut(&self.webhook) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.webhook);
            }
        }
        drop(under_way);
        self.app.webhooks.freed.notify_one();
    }
}

/// Makes a webhook. Its secret is shown this once.
pub async fn create(
    app: &App,
    admin: &Admin,
    url: &str,
    events: &[String],
) -> Result<(Webhook, Secret)> {
    webhook::check_events(events).map_err(|reason| Error::invalid("events", reason))?;
    if url.len() > MAX_URL {
        return Err(Error::unfit(
            ErrorCode::TooLong,
            "url",
            format!("must have at most {MAX_URL} bytes"),
        ));
    }
    let parsed = parse_url(url).and_then(|url| app.webhooks.egress.check_url(&url).map(|()| url));
    let url = parsed.map_err(|refused| Error::invalid("url", refused.to_string()))?;
    let (tenant, id, secret) = (admin.tenant(), WebhookId::new(), webhook::new_secret());
    let sealed = app
        .keys
        .seal(tenant, &contexts::of_webhook(tenant, id), &secret)
        .await?;
    let mut tx = app.db.tenant(tenant).await?;
    let made = store::webhooks::insert(&mut tx, id, url.as_str(), events, &sealed).await?;
    // The path of a URL is often a secret.
    let detail = format!("{id} at {}", url.host_str().unwrap_or_default());
    let fact = Fact::new(admin.user().as_str(), "webhook.created").detail(&detail);
    store::audit::record(&mut tx, tenant, &fact).await?;
    tx.commit().await?;
    Ok((made, secret))
}

/// The tenant's webhooks, oldest first.
pub async fn list(app: &App, admin: &Admin) -> Result<Vec<Webhook>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    store::webhooks::list(&mut tx, admin.tenant()).await
}

/// Removes a webhook with its messages.
pub async fn remove(app: &App, admin: &Admin, id: WebhookId) -> Result<()> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    store::webhooks::delete(&mut tx, admin.tenant(), id).await?;
    let detail = id.to_string();
    let fact = Fact::new(admin.user().as_str(), "webhook.removed").detail(&detail);
    store::audit::record(&mut tx, admin.tenant(), &fact).await?;
    tx.commit().await
}

/// The outcome of a test of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = Pinged)]
pub struct PingOutcome {
    pub delivered: bool,
    /// The HTTP status, if there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Sends one `ping` now and returns the outcome.
pub async fn test(app: &Arc<App>, admin: &Admin, id: WebhookId) -> Result<PingOutcome> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    let webhook = store::webhooks::get(&mut tx, admin.tenant(), id).await?;
    if webhook.disabled_at.is_some() {
        return Err(Error::conflict(
            ErrorCode::WebhookDisabled,
            format!("webhook {id} is disabled; remove it and make a new one"),
        ));
    }
    let busy = || Error::Busy {
        reason: "messages to this webhook are under way; try again".to_owned(),
        retry_after: Duration::from_secs(5),
    };
    let permit = DeliveryPermit::take(app, id).ok_or_else(busy)?;
    let payload = json!({ "webhook_id": id });
    let delivery =
        store::deliveries::insert_once(&mut tx, admin.tenant(), id, PING, &payload).await?;
    let claimed = store::deliveries::get_claimed(&mut tx, admin.tenant(), delivery).await?;
    tx.commit().await?;
    // The attempt continues and is recorded even when the caller has left.
    let sending = app.tasks.spawn(async move {
        let tried = attempt(&permit.app, &claimed, false).await;
        record_outcome(&permit.app, &claimed, &tried)
            .await
            .map(|()| tried)
    });
    let tried = sending.await.map_err(Error::internal)??;
    Ok(PingOutcome {
        delivered: tried.error.is_none(),
        status: tried.status,
        error: tried.error,
    })
}

/// Messages to a webhook, newest first.
pub async fn deliveries(
    app: &App,
    admin: &Admin,
    id: WebhookId,
    before: Option<DeliveryId>,
    limit: i64,
) -> Result<Vec<Delivery>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    store::webhooks::get(&mut tx, admin.tenant(), id).await?;
    store::deliveries::list(&mut tx, admin.tenant(), id, before, limit).await
}

/// The status with which a receiver refuses all further messages.
const GONE: u16 = 410;
/// The most messages that are looked up at once.
const BATCH: i64 = 64;
/// The time limit of one try, from the DNS look-up to the last byte of the answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// A message without an outcome after this time is sent by another replica.
const LEASE: Duration = Duration::from_secs(30);
/// Bytes of an answer that are read and discarded, so that the connection can be used again.
const MAX_ANSWER: usize = 64 * 1024;
/// How many days finished messages are kept.
const KEEP_DAYS: i32 = 7;
pub const PURGE_INTERVAL: Duration = Duration::from_secs(3600);
/// The most messages that one transaction deletes.
const PURGE_BATCH: i64 = 1000;

/// Sends messages as their time comes, until the process stops.
pub async fn deliver(app: Arc<App>) {
    let mut poll = ticks(&app, POLL);
    let mut more = false;
    loop {
        tokio::select! {
            _ = poll.tick() => {}
            () = app.webhooks.freed.notified(), if more => {}
            () = app.shutdown.cancelled() => return,
        }
        more = match send_due(&app).await {
            Ok(more) => more,
            Err(error) => {
                tracing::warn!(
                    error = error.with_cause(),
                    "cannot look for messages to webhooks; trying again"
                );
                false
            }
        };
    }
}

/// Starts to send the due messages for which there is a permit. Returns whether more may be due.
async fn send_due(app: &Arc<App>) -> Result<bool> {
    while !app.shutdown.is_cancelled() {
        if app.webhooks.permits.available_permits() == 0 {
            return Ok(true);
        }
        let busy = app.webhooks.busy_webhooks();
        let is_busy = !busy.is_empty();
        let due = app.db.look(move |tx| {
            Box::pin(async move { store::deliveries::list_due(tx, &busy, BATCH).await })
        });
        let due = due.await?;
        if due.is_empty() {
            return Ok(is_busy);
        }
        for due in due {
            let Some(permit) = DeliveryPermit::take(app, due.webhook) else {
                continue;
            };
            let mut tx = app.db.tenant(due.tenant).await?;
            let claimed = store::deliveries::claim(&mut tx, &due, LEASE).await?;
            tx.commit().await?;
            if let Some(claimed) = claimed {
                app.tasks
                    .spawn(async move { send(&permit, &claimed).await });
            }
        }
    }
    Ok(false)
}

async fn send(permit: &DeliveryPermit, claimed: &ClaimedDelivery) {
    let tried = attempt(&permit.app, claimed, true).await;
    if let Err(error) = record_outcome(&permit.app, claimed, &tried).await {
        tracing::warn!(delivery = %claimed.id, error = error.with_cause(), "how a message was sent cannot be written; it is sent again");
    }
}

/// Sends a message once. `again` says whether there may be another try.
async fn attempt(app: &App, claimed: &ClaimedDelivery, again: bool) -> DeliveryAttempt {
    let (status, error, wanted_delay) = match send_request(app, claimed).await {
        Ok(answer) => {
            let header = answer
                .headers
                .get("retry-after")
                .and_then(|value| value.to_str().ok());
            let wanted_delay =
                header.and_then(|header| webhook::retry_after(header, app.clock.now()));
            let status = answer.status.as_u16();
            drain_body(answer).await;
            (Some(status), status_error(status), wanted_delay)
        }
        Err(reason) => (None, Some(reason), None),
    };
    let is_last = error.is_none() || !again || claimed.disabled || status == Some(GONE);
    let tries = u32::try_from(claimed.attempt).unwrap_or(webhook::TRIES);
    let pause = if is_last {
        None
    } else {
        webhook::retry_delay(tries, rand::random(), wanted_delay)
    };
    DeliveryAttempt {
        status,
        error,
        again: pause,
    }
}

/// Why a status is a failure; `None` for a success.
fn status_error(status: u16) -> Option<String> {
    match status {
        200..300 => None,
        GONE => Some("the receiver answered 410 Gone; nothing more is sent to it".to_owned()),
        300..400 => Some(format!(
            "the receiver answered {status}; redirects are not followed"
        )),
        _ => Some(format!("the receiver answered {status}")),
    }
}

/// Sends one signed request. The reason of a failure names the host and nothing else of the URL.
async fn send_request(app: &App, claimed: &ClaimedDelivery) -> Result<Response, String> {
    if claimed.disabled {
        return Err("the webhook is disabled".to_owned());
    }
    let context = contexts::of_webhook(claimed.tenant, claimed.webhook);
    let secret = app
        .keys
        .open(claimed.tenant, &context, &claimed.sealed)
        .await
        .map_err(|error| error.to_string())?;
    let url = parse_url(&claimed.url).map_err(|error| error.to_string())?;
    let (id, now) = (claimed.id.to_string(), app.clock.now().unix_timestamp());
    let body = webhook::body(&claimed.event, claimed.created_at, &claimed.payload);
    let signature = webhook::sign(&secret, &id, now, &body)?;
    let limits = Limits {
        deadline: Some(DEADLINE),
        max_body: usize::MAX,
        redirects: 0,
        ..Limits::default()
    };
    let request = Request {
        limits,
        ..Request::post(url, body)
            .header("content-type", "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", &now.to_string())
            .header("webhook-signature", &signature)
    };
    app.webhooks
        .egress
        .send(request)
        .await
        .map_err(|error| error.to_string())
}

async fn drain_body(answer: Response) {
    let (mut body, mut read) = (answer.body, 0);
    while read < MAX_ANSWER
        && let Some(Ok(chunk)) = body.next().await
    {
        read += chunk.len();
    }
}

/// Records the outcome of a try, and disables a webhook whose receiver has answered 410 Gone.
async fn record_outcome(
    app: &App,
    claimed: &ClaimedDelivery,
    tried: &DeliveryAttempt,
) -> Result<()> {
    let mut tx = app.db.tenant(claimed.tenant).await?;
    if !store::deliveries::finish(&mut tx, claimed, tried).await? {
        return Ok(());
    }
    let is_gone = tried.status == Some(GONE);
    if is_gone && store::webhooks::disable(&mut tx, claimed.tenant, claimed.webhook).await? {
        let detail = format!("{}: 410", claimed.webhook);
        let fact = Fact::new(SYSTEM, "webhook.disabled").detail(&detail);
        store::audit::record(&mut tx, claimed.tenant, &fact).await?;
    }
    tx.commit().await?;
    let outcome = match (&tried.error, tried.again) {
        (None, _) => "delivered",
        (Some(_), Some(_)) => "again",
        (Some(_), None) => "failed",
    };
    metrics::counter!("chatelaine_webhook_tries_total", "outcome" => outcome).increment(1);
    if let (Some(reason), None) = (&tried.error, tried.again) {
        tracing::warn!(webhook = %claimed.webhook, delivery = %claimed.id, reason, "a message to a webhook is given up");
    }
    Ok(())
}

/// Deletes the old finished messages of all tenants and returns their number.
pub async fn purge_old(app: &App) -> Result<u64> {
    let mut tx = app.db.system().await?;
    let tenants = store::deliveries::list_tenants_with_old(&mut tx, KEEP_DAYS).await?;
    drop(tx);
    let mut deleted = 0;
    for tenant in tenants {
        loop {
            let mut tx = app.db.tenant(tenant).await?;
            let some = store::deliveries::prune(&mut tx, tenant, KEEP_DAYS, PURGE_BATCH).await?;
            tx.commit().await?;
            deleted += some;
            if some == 0 || app.shutdown.is_cancelled() {
                break;
            }
        }
    }
    Ok(deleted)
}
