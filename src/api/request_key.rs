//! Extractors that read a JSON body together with the key that recognises a repeated request: `Idempotency-Key`, or the
//! attempt count of OpenAI's SDKs; and what an earlier request with that key began.

use axum::extract::{FromRequest, Request};
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{
    ApiState,
    body::read_json_body,
    extract::parse,
    problem::{AnswerIds, Problem},
};
use crate::app::{
    App,
    runs::repeats::{self, EarlierRequest, EqualRequest, RefusedRun},
};
use domain::{
    clock,
    error::ErrorCode,
    ids::RunId,
    principal::Principal,
    request_key::{KeySource, KeyedRun, RequestKey},
};

const KEY: &str = "idempotency-key";
const ATTEMPT: &str = "x-stainless-retry-count";
const MAX_KEY: usize = 255;

/// A typed JSON body, and the key of its request if it has one.
pub(super) struct Keyed<T>(pub T, pub Option<RequestKey>);

impl<T: DeserializeOwned> FromRequest<ApiState> for Keyed<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let unread = UnreadRequest::new(&request);
        let body = read_json_body(request, state).await?;
        Ok(Self(parse(&body)?, unread.key(&body)?))
    }
}

/// A typed JSON body, and a key for every request: without one from the client, its own content.
pub(super) struct AlwaysKeyed<T>(pub T, pub RequestKey);

impl<T: DeserializeOwned> FromRequest<ApiState> for AlwaysKeyed<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let unread = UnreadRequest::new(&request);
        let body = read_json_body(request, state).await?;
        Ok(Self(parse(&body)?, unread.key_or_digest(&body)?))
    }
}

/// The key of a request without a body.
pub(super) struct Key(pub Option<RequestKey>);

impl FromRequest<ApiState> for Key {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &ApiState) -> Result<Self, Problem> {
        UnreadRequest::new(&request).key(&[]).map(Self)
    }
}

/// The parts of a request that identify it besides its body, which was not read yet.
pub(super) struct UnreadRequest {
    headers: HeaderMap,
    digest: Sha256,
}

impl UnreadRequest {
    pub fn new(request: &Request) -> Self {
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

    /// The key that the client gave the request with this body, or a digest if the client counts its attempts. `None`
    /// for a client that does neither.
    pub fn key(self, body: &[u8]) -> Result<Option<RequestKey>, Problem> {
        let key = self.key_or_digest(body)?;
        Ok(Some(key).filter(RequestKey::may_come_back))
    }

    /// Like [`UnreadRequest::key`], but with a digest for every request whose client gave no key.
    fn key_or_digest(self, body: &[u8]) -> Result<RequestKey, Problem> {
        read_key(
            &self.headers,
            self.digest.chain_update(body).finalize().into(),
        )
    }
}

fn read_key(headers: &HeaderMap, digest: [u8; 32]) -> Result<RequestKey, Problem> {
    if let Some(key) = headers.get(KEY) {
        let key = key.to_str().unwrap_or_default().trim();
        if !(1..=MAX_KEY).contains(&key.len()) {
            let reason = format!("must have 1 to {MAX_KEY} printable characters of ASCII");
            return Err(Problem::invalid("Idempotency-Key", reason));
        }
        return Ok(RequestKey {
            key: format!("key:{key}"),
            digest,
            origin: KeySource::Named,
            sees_stop: false,
            names_message: false,
            arrived: clock::instant(),
            replaced: None,
            server: None,
        });
    }
    let attempt = headers.get(ATTEMPT).and_then(|count| count.to_str().ok());
    let attempt = attempt.and_then(|count| count.parse().ok());
    Ok(RequestKey {
        key: format!("sha256:{}", hex::encode(digest)),
        digest,
        origin: attempt.map_or(KeySource::Body, KeySource::Attempt),
        sees_stop: false,
        names_message: false,
        arrived: clock::instant(),
        replaced: None,
        server: None,
    })
}

/// Joins the run or the conversation that an earlier request with this key began, and counts the repetition. `None`
/// when there was no such request. A request with the same key and other content is refused.
pub(super) async fn join_earlier(
    app: &App,
    principal: &Principal,
    key: Option<&RequestKey>,
) -> Result<Option<KeyedRun>, Problem> {
    let Some(key) = key else { return Ok(None) };
    match repeats::join(app, principal, key).await? {
        None => Ok(None),
        Some(EarlierRequest::Same(begun)) => Ok(Some(begun)),
        Some(EarlierRequest::Different) => Err(reused()),
    }
}

/// Lets this request take the place of an earlier equal one (see [`repeats::settle_equal`]), and returns the run that
/// it replaces. Refuses it when the turn of the earlier one has failed a short time ago after it had called tools, or
/// when its client has left: with the status and the ids of that turn, and nothing of its text.
pub(super) async fn settle_equal_request(
    app: &App,
    principal: &Principal,
    key: &RequestKey,
) -> Result<Option<RunId>, Problem> {
    match repeats::settle_equal(app, principal, key).await? {
        EqualRequest::Refused(refused) => Err(problem_of_repeat(&refused)),
        EqualRequest::Replaced(run) => Ok(run),
    }
}

fn problem_of_repeat(refused: &RefusedRun) -> Problem {
    let RefusedRun {
        conversation,
        run,
        has_failed,
    } = *refused;
    let (code, why) = if has_failed {
        let why = "and failed after it had called tools, so it was not begun again";
        (ErrorCode::TurnFailedAfterCall, why)
    } else {
        let why = "and its turn goes on or has ended since, so it was not begun again";
        (ErrorCode::AnswerPending, why)
    };
    let detail = format!(
        "an equal request was sent shortly before {why}: look at run {run} in conversation {conversation}; {ANEW}"
    );
    let ids = AnswerIds {
        conversation,
        run,
        is_over: has_failed,
    };
    Problem::new(StatusCode::BAD_REQUEST, code, detail).with_run(ids)
}

/// Tells a client that a failure is stored as the answer to its key.
pub(super) const KEPT: &str =
    "this answer is kept under its Idempotency-Key for 24 hours, so send a new key to ask anew";

/// Tells a client how to repeat a request on purpose.
pub(super) const ANEW: &str =
    "whoever means to ask it anew waits 90 seconds, or sends a new Idempotency-Key";

/// The problem of a key that an earlier request with other content has used.
pub(super) fn reused() -> Problem {
    let detail =
        "another request was sent with this Idempotency-Key; use a new key for each request";
    let code = ErrorCode::IdempotencyKeyReused;
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
}
