//! Schemas of webhooks and of their deliveries.

use time::OffsetDateTime;

use super::schemas;
use crate::app::platform::webhooks;
use domain::{
    ids::{DeliveryId, WebhookId},
    webhook::{self, DeliveryState},
};

schemas! {
    /// How a test went.
    struct Pinged for webhooks::PingOutcome {
        delivered: bool,
        /// The HTTP status, if there was an answer.
        status: Option<u16>,
        error: Option<String>,
    }

    /// Where a tenant wants to be told.
    struct Webhook for webhook::Webhook {
        id: WebhookId,
        url: String,
        /// Names of events, as `approval.requested`; `approval.*` stands for all that begin so, `*` for all.
        events: Vec<String>,
        created_at: OffsetDateTime,
        /// Since when nothing is sent any more: the receiver answered 410.
        disabled_at: Option<OffsetDateTime>,
        last_delivered_at: Option<OffsetDateTime>,
        last_failed_at: Option<OffsetDateTime>,
        /// Why the last try failed that did.
        last_error: Option<String>,
    }

    /// One message to a webhook, as its tenant sees it.
    struct Delivery for webhook::Delivery {
        /// Also the header `webhook-id`.
        id: DeliveryId,
        event: String,
        state: DeliveryState,
        /// Tries so far.
        attempts: i32,
        created_at: OffsetDateTime,
        next_attempt_at: Option<OffsetDateTime>,
        delivered_at: Option<OffsetDateTime>,
        /// The HTTP status of the last try, if there was an answer.
        last_status: Option<i32>,
        last_error: Option<String>,
    }

    #[serde(rename_all = "snake_case")]
    enum DeliveryState for webhook::DeliveryState {
        /// To be sent, or sent again.
        Pending,
        /// The receiver answered 2xx.
        Delivered,
        /// Given up.
        Failed,
    }
}
