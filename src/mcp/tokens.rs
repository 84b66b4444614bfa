//! Access tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4), for servers that the program itself
//! signs in to.
//!
//! A token is asked for by one caller at a time, used by all connections with the same credentials until shortly
//! before it ends, and replaced once when a server refuses it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use url::form_urlencoded;

use super::{error::Failure, wire::locked};
use crate::{
    domain::{clock, scrub::Scrubber, secret::Secret, server::ClientCredentials},
    egress::{Egress, Limits, Request},
};

/// How long a token endpoint may take, and what it may say.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_ANSWER: usize = 64 * 1024;
/// A token of which nobody says how long it holds.
const DEFAULT_LIFE: Duration = Duration::from_secs(300);
/// It is replaced so long before its end, or when a quarter of its life is left.
const MARGIN: Duration = Duration::from_secs(30);
/// Different credentials that are remembered.
const REMEMBERED: usize = 4096;

type Slot = Arc<tokio::sync::Mutex<Option<Arc<Token>>>>;

/// The tokens of this process.
pub(super) struct Tokens {
    egress: Egress,
    slots: Mutex<HashMap<[u8; 32], Slot>>,
}

pub(super) struct Token {
    /// `Bearer …`
    pub(super) header: HeaderValue,
    /// Takes the token out of what a server says.
    pub(super) scrubber: Arc<Scrubber>,
    good_until: Instant,
}

/// How one connection gets its token.
#[derive(Clone)]
pub(super) struct Bearer {
    pub(super) tokens: Arc<Tokens>,
    pub(super) credentials: ClientCredentials,
}

/// What a token endpoint says.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    token_type: String,
    #[serde(default)]
    expires_in: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Refused {
    error: String,
}

impl Bearer {
    /// A token that is good for a while. One that was `refused` is not given again.
    pub(super) async fn token(&self, refused: Option<&Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let slot = self.tokens.slot(&self.credentials);
        let mut known = slot.lock().await;
        if let Some(token) = &*known {
            let same = refused.is_some_and(|refused| Arc::ptr_eq(refused, token));
            if !same && clock::instant() < token.good_until {
                return Ok(token.clone());
            }
        }
        *known = None;
        let token = Arc::new(self.tokens.ask(&self.credentials).await?);
        *known = Some(token.clone());
        Ok(token)
    }
}

impl Tokens {
    pub(super) fn new(egress: Egress) -> Self {
        Self { egress, slots: Mutex::default() }
    }

    fn slot(&self, of: &ClientCredentials) -> Slot {
        let mut digest = Sha256::new();
        let scope = of.scope.as_deref().unwrap_or_default();
        for part in [of.token_url.as_str(), of.client_id.expose(), of.client_secret.expose(), scope] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut slots = locked(&self.slots);
        if slots.len() >= REMEMBERED {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(digest.finalize().into()).or_default().clone()
    }

    async fn ask(&self, of: &ClientCredentials) -> Result<Token, Failure> {
        let asked_at = clock::instant();
        let answer = self.egress.send(request(of)).await;
        let answer = answer.map_err(|error| none(error.is_rejected(), &error.to_string()))?;
        let status = answer.status;
        let body = answer.bytes().await.map_err(|error| none(false, &error.to_string()))?;
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        let granted: Granted = serde_json::from_slice(&body)
            .map_err(|_| none(false, "the token endpoint answered with something else than a token"))?;
        if !granted.token_type.eq_ignore_ascii_case("bearer") {
            return Err(none(true, "the token endpoint gives other tokens than bearer tokens"));
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {}", granted.access_token))
            .map_err(|_| none(true, "the token endpoint gave a token that no header can carry"))?;
        header.set_sensitive(true);
        let life = granted.expires_in.as_ref().and_then(seconds).unwrap_or(DEFAULT_LIFE);
        let scrubber = Arc::new(Scrubber::new([&Secret::new(granted.access_token)]));
        Ok(Token { header, scrubber, good_until: asked_at + life.saturating_sub(MARGIN.min(life / 4)) })
    }
}

fn request(of: &ClientCredentials) -> Request {
    let encoded = |secret: &Secret| form_urlencoded::byte_serialize(secret.expose().as_bytes()).collect::<String>();
    let pair = format!("{}:{}", encoded(&of.client_id), encoded(&of.client_secret));
    let mut basic = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(pair))).expect("Base64 is ASCII");
    basic.set_sensitive(true);
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("grant_type", "client_credentials");
    if let Some(scope) = &of.scope {
        form.append_pair("scope", scope);
    }
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, basic);
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    let limits = Limits { deadline: Some(PATIENCE), max_body: MAX_ANSWER, ..Limits::default() };
    Request { method: Method::POST, url: of.token_url.clone(), headers, body: form.finish().into(), limits }
}

/// Some write the number as text.
fn seconds(value: &serde_json::Value) -> Option<Duration> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    Duration::try_from_secs_f64(number).ok()
}

/// The code of an error is a word of the protocol; whatever else an endpoint says is not repeated.
fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    let word = |code: &String| code.len() <= 64 && code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let code = serde_json::from_slice::<Refused>(body).ok().map(|refused| refused.error).filter(word);
    let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
    none(status.is_client_error(), &format!("the token endpoint answered with HTTP {}{code}", status.as_u16()))
}

/// There is no token, so nothing was sent to the server.
fn none(for_good: bool, why: &str) -> Failure {
    let text = format!("no access token for the server: {why}");
    if for_good { Failure::Misconfigured(text) } else { Failure::NotSent(text) }
}
