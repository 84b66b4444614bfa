//! Webhooks: how a tenant is told what happens, so that others can build bots and mail gateways. Which events
//! go where, what a message looks like, how it is signed ([Standard Webhooks]) and when it is tried again.
//!
//! A message is delivered at least once and in no promised order; its id is the same however often it is sent.
//!
//! [Standard Webhooks]: https://www.standardwebhooks.com

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::Sha256;
use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use zeroize::Zeroizing;

use super::{
    backoff,
    ids::{DeliveryId, WebhookId},
    secret::Secret,
};

/// Webhooks of a tenant; the table has as many slots.
pub const MAX_WEBHOOKS: usize = 20;
/// Event patterns of one webhook.
const MOST_EVENTS: usize = 20;
const SECRET_BYTES: usize = 32;
const SECRET_MARK: &str = "whsec_";

/// How long after each failed try the next one comes, in seconds, give or take a fifth. After the last try
/// the message is given up.
const PAUSES: [u64; 9] = [5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 21_600];
/// Tries of one message.
pub const TRIES: u32 = 10;
/// The longest that a receiver may ask us to wait.
const LONGEST: Duration = Duration::from_secs(21_600);

/// Where a tenant wants to be told.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Webhook {
    pub id: WebhookId,
    pub url: String,
    /// Names of events, as `approval.requested`; `approval.*` stands for all that begin so, `*` for all.
    pub events: Vec<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// Since when nothing is sent: the receiver answered 410.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub disabled_at: Option<OffsetDateTime>,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_delivered_at: Option<OffsetDateTime>,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_failed_at: Option<OffsetDateTime>,
    /// Why the latest failed try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// One message to a webhook, as its tenant sees it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// Also the header `webhook-id`.
    pub id: DeliveryId,
    pub event: String,
    pub state: DeliveryState,
    /// Tries so far.
    pub attempts: i32,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub next_attempt_at: Option<OffsetDateTime>,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub delivered_at: Option<OffsetDateTime>,
    /// The HTTP status of the last try, if there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_status: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// To be sent, or sent again.
    Pending,
    /// The receiver answered 2xx.
    Delivered,
    /// Given up.
    Failed,
}

/// A message as the receiver reads it.
#[derive(Serialize)]
struct Message<'a> {
    r#type: &'a str,
    #[serde(with = "time::serde::rfc3339")]
    timestamp: OffsetDateTime,
    data: &'a RawValue,
}

/// The body of a message: the same bytes each time it is sent.
pub fn body(event: &str, at: OffsetDateTime, payload: &RawValue) -> String {
    serde_json::to_string(&Message {
        r#type: event,
        timestamp: at,
        data: payload,
    })
    .expect("plain data can be written")
}

/// Checks names of events; the error is a sentence for whoever wrote them.
pub fn check_events(events: &[String]) -> Result<(), String> {
    if events.is_empty() || events.len() > MOST_EVENTS {
        return Err(format!(
            "name 1 to {MOST_EVENTS} events, such as `approval.requested`, `approval.*` or `*`"
        ));
    }
    match events.iter().find(|event| !is_pattern(event)) {
        Some(wrong) => {
            let short: String = wrong.chars().take(64).collect();
            Err(format!(
                "{short:?} is no name of events: write `approval.requested`, `approval.*` or `*`"
            ))
        }
        None => Ok(()),
    }
}

/// Words of small letters and `_` with dots between them; the last may be `*`.
fn is_pattern(text: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let stem = text.strip_suffix(".*").unwrap_or(text);
    text.len() <= 64 && (text == "*" || stem.split('.').all(word))
}

/// A fresh secret, as its receiver is shown it: once.
pub fn new_secret() -> Secret {
    let bytes = Zeroizing::new(rand::random::<[u8; SECRET_BYTES]>());
    Secret::new(format!(
        "{SECRET_MARK}{}",
        *Zeroizing::new(STANDARD.encode(*bytes))
    ))
}

/// The header `webhook-signature`: HMAC-SHA-256 over `id.timestamp.body`.
pub fn sign(secret: &Secret, id: &str, timestamp: i64, body: &str) -> Result<String, String> {
    let text = secret
        .expose()
        .strip_prefix(SECRET_MARK)
        .unwrap_or(secret.expose());
    let key = Zeroizing::new(
        STANDARD
            .decode(text)
            .map_err(|_| "the secret is not base64".to_owned())?,
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes a key of any length");
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    Ok(format!(
        "v1,{}",
        STANDARD.encode(mac.finalize().into_bytes())
    ))
}

/// How long to wait after a number of tries; `None`: it is given up. `chance` from 0 to 1 spreads messages that
/// failed at once; `asked` is what the receiver wants, which counts when it is longer, within bounds.
pub fn retry_delay(tries: u32, chance: f64, asked: Option<Duration>) -> Option<Duration> {
    let base = Duration::from_secs(*PAUSES.get(usize::try_from(tries.checked_sub(1)?).ok()?)?);
    let spread = backoff::spread(base, chance);
    Some(asked.map_or(spread, |asked| spread.max(asked.min(LONGEST))))
}

/// What `Retry-After` asks for: seconds, or a date.
pub fn retry_after(header: &str, now: OffsetDateTime) -> Option<Duration> {
    if let Ok(seconds) = header.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = OffsetDateTime::parse(header.trim(), &Rfc2822).ok()?;
    Duration::try_from(date - now).ok()
}
