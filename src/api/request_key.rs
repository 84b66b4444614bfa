//! A JSON body together with the key by which a repeated request is recognised: `Idempotency-Key`, or the
//! attempt count of OpenAI's SDKs.

use axum::extract::{FromRequest, Request};
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{
    ApiState,
    extract::{body, parse},
    problem::Problem,
};
use crate::{
    app::{
        App,
        runs::repeats::{self, EarlierRequest},
    },
    domain::{
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
        let headers = request.headers().clone();
        let mut digest = Sha256::new();
        for part in [request.method().as_str(), request.uri().path()] {
            digest.update(part);
            digest.update([0]);
        }
        let body = body(request, state).await?;
        digest.update(&body);
        Ok(Self(
            parse(&body)?,
            key(&headers, digest.finalize().into())?,
        ))
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
        Some(EarlierRequest::Different) => {
            let detail = "another request was sent with this Idempotency-Key; use a new key for each request";
            let code = "idempotency_key_reused";
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail))
        }
    }
}
