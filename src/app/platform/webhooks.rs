//! Webhooks: a tenant's admin names a URL and the events that it wants; what happens is put into the outbox with
//! the fact ([`store::webhooks::enqueue`]) and sent from there (`outbox`), signed and through the guard.

mod outbox;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

pub use self::outbox::{TIDY, deliver, forget_old};
use super::keys;
use crate::app::App;
use crate::{
    domain::{
        audit::Fact,
        error::{Error, ErrorCode, Result},
        ids::{DeliveryId, WebhookId},
        principal::Admin,
        secret::Secret,
        webhook::{self, Delivery, Webhook},
    },
    egress::{Egress, parse_url},
    store,
};

/// Messages under way from this process.
const MAX_PARALLEL_DELIVERIES: usize = 64;
/// Messages under way to one webhook: a slow receiver delays only its own messages.
const MAX_PARALLEL_OF_WEBHOOK: usize = 2;
const MAX_URL: usize = 2048;
/// The event that a test sends.
const PING: &str = "ping";

/// What sends messages.
pub struct Webhooks {
    egress: Egress,
    places: Arc<Semaphore>,
    under_way: Mutex<HashMap<WebhookId, usize>>,
    /// A place is free again.
    freed: Notify,
}

impl Webhooks {
    pub fn new(egress: Egress) -> Self {
        Self {
            egress,
            places: Arc::new(Semaphore::new(MAX_PARALLEL_DELIVERIES)),
            under_way: Mutex::default(),
            freed: Notify::new(),
        }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<WebhookId, usize>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The webhooks to which no more may be sent at the moment.
    fn busy(&self) -> Vec<WebhookId> {
        self.under_way()
            .iter()
            .filter(|(_, count)| **count >= MAX_PARALLEL_OF_WEBHOOK)
            .map(|(id, _)| *id)
            .collect()
    }
}

/// The right to send one message; given back when dropped.
struct DeliveryPermit {
    app: Arc<App>,
    webhook: WebhookId,
    _permit: OwnedSemaphorePermit,
}

impl DeliveryPermit {
    fn take(app: &Arc<App>, webhook: WebhookId) -> Option<Self> {
        let permit = app.webhooks.places.clone().try_acquire_owned().ok()?;
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
    let sealed = keys::seal(app, tenant, &keys::context_of_webhook(tenant, id), &secret).await?;
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

/// How a test went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PingOutcome {
    pub delivered: bool,
    /// The HTTP status, if there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Sends a `ping` now, once, and says how that went.
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
    let place = DeliveryPermit::take(app, id).ok_or_else(busy)?;
    let payload = json!({ "webhook_id": id });
    let delivery =
        store::deliveries::insert_once(&mut tx, admin.tenant(), id, PING, &payload).await?;
    let claimed = store::deliveries::get_claimed(&mut tx, admin.tenant(), delivery).await?;
    tx.commit().await?;
    // The attempt continues and is recorded even when the caller has left.
    let sending = app.tasks.spawn(async move {
        let tried = outbox::attempt(&place.app, &claimed, false).await;
        outbox::settle(&place.app, &claimed, &tried)
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
