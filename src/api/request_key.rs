//! A JSON body together with the key by which a repeated request is recognised: `Idempotency-Key`, or the
//! attempt count of OpenAI's SDKs.

use axum::extract::{FromRequest, Request};
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{ApiState, body::body, extract::parse, problem::Problem};
use crate::{
    app::{
        App,
        runs::repeats::{self, EarlierRequest},
    },
    domain::{
        error::ErrorCode,
        principal::Principal,
        request_key::{KeySource, KeyedRun, RequestKey},
    },
};

const KEY: &str = "idempotency-key";
const ATTEMPT: &str = "x-stainless-retry-count";
const MAX_KEY: usize = 255;

/// A typed JSON body, and the key of its request.
pub(super) struct Keyed<T>(pub T, pub Option<RequestKey>);

impl<T: DeserializeOwned> FromRequest<ApiState> for Keyed<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let unread = UnreadRequest::of(&request);
        let body = body(request, state).await?;
        Ok(Self(parse(&body)?, unread.key(&body)?))
    }
}

/// The key of a request without a body.
pub(super) struct Key(pub Option<RequestKey>);

impl FromRequest<ApiState> for Key {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &ApiState) -> Result<Self, Problem> {
        UnreadRequest::of(&request).key(&[]).map(Self)
    }
}

/// What identifies a request besides its body.
pub(super) struct UnreadRequest {
    headers: HeaderMap,
    digest: Sha256,
}

impl UnreadRequest {
    pub fn of(request: &Request) -> Self {
        let mut digest = Sha256::new();
        let (path, query) = (request.uri().path(), request.uri().query());
        for part in [request.method().as_str(), path].into_iter().chain(query) {
            digest.update(part);
            digest.update([0]);
        }
        Self {
            headers: request.headers().clone(),
            digest,
        }
    }

    /// The key of the request with this body.
    pub fn key(self, body: &[u8]) -> Result<Option<RequestKey>, Problem> {
        key(
            &self.headers,
            self.digest.chain_update(body).finalize().into(),
        )
    }
}

fn key(headers: &HeaderMap, digest: [u8; 32]) -> Result<Option<RequestKey>, Problem> {
    if let Some(key) = headers.get(KEY) {
        let key = key.to_str().unwrap_or_default().trim();
        if !(1..=MAX_KEY).contains(&key.len()) {
            let reason = format!("must have 1 to {MAX_KEY} printable characters of ASCII");
            return Err(Problem::invalid("Idempotency-Key", reason));
        }
        return Ok(Some(RequestKey {
            key: format!("key:{key}"),
            digest,
            origin: KeySource::Named,
        }));
    }
    let attempt = headers.get(ATTEMPT).and_then(|count| count.to_str().ok());
    let attempt = attempt.and_then(|count| count.parse().ok());
    Ok(attempt.map(|attempt| RequestKey {
        key: format!("sha256:{}", hex::encode(digest)),
        digest,
        origin: KeySource::Attempt(attempt),
    }))
}

/// What an earlier request with this key began. A request with the same key and other content is refused.
pub(super) async fn find_earlier(
    app: &App,
    principal: &Principal,
    key: Option<&RequestKey>,
) -> Result<Option<KeyedRun>, Problem> {
    let Some(key) = key else { return Ok(None) };
    match repeats::earlier(app, principal, key).await? {
        None => Ok(None),
        Some(EarlierRequest::Same(begun)) => Ok(Some(begun)),
        Some(EarlierRequest::Different) => Err(reused()),
    }
}

/// The key of an earlier request, which asked for something else.
pub(super) fn reused() -> Problem {
    let detail =
        "another request was sent with this Idempotency-Key; use a new key for each request";
    let code = ErrorCode::IdempotencyKeyReused;
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
}
