//! A JSON body together with what makes the request the same one when it is sent again: `Idempotency-Key`, or the
//! count of attempts that OpenAI's SDKs send.

use axum::extract::{FromRequest, Request};
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{
    Door,
    extract::{body, parse},
    problem::Problem,
};
use crate::{
    app::{
        App,
        runs::repeats::{self, Earlier},
    },
    domain::{
        principal::Principal,
        request_key::{Begun, Origin, RequestKey},
    },
};

const KEY: &str = "idempotency-key";
const ATTEMPT: &str = "x-stainless-retry-count";
const MAX_KEY: usize = 255;

/// A typed JSON body, and the key of its request.
pub(super) struct Keyed<T>(pub T, pub Option<RequestKey>);

impl<T: DeserializeOwned> FromRequest<Door> for Keyed<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Problem> {
        let headers = request.headers().clone();
        let mut digest = Sha256::new();
        for part in [request.method().as_str(), request.uri().path()] {
            digest.update(part);
            digest.update([0]);
        }
        let body = body(request, door).await?;
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
            origin: Origin::Named,
        }));
    }
    let attempt = headers.get(ATTEMPT).and_then(|count| count.to_str().ok());
    let attempt = attempt.and_then(|count| count.parse().ok());
    Ok(attempt.map(|attempt| RequestKey {
        key: format!("sha256:{}", hex::encode(digest)),
        digest,
        origin: Origin::Attempt(attempt),
    }))
}

/// What an earlier request with this key began; a request that differs from it is refused.
pub(super) async fn earlier(
    app: &App,
    principal: &Principal,
    key: Option<&RequestKey>,
) -> Result<Option<Begun>, Problem> {
    let Some(key) = key else { return Ok(None) };
    match repeats::earlier(app, principal, key).await? {
        None => Ok(None),
        Some(Earlier::Same(begun)) => Ok(Some(begun)),
        Some(Earlier::Different) => {
            let detail = "another request was sent with this Idempotency-Key; use a new key for each request";
            let code = "idempotency_key_reused";
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail))
        }
    }
}
