//! Requests that make something: one with an `Idempotency-Key` is done once, and gets the first answer again when it is
//! repeated. Runs and messages have rules of their own ([`super::request_key`]), because their answers are not complete
//! when the request is answered.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use tracing::Instrument;
use uuid::Uuid;

use super::{problem::Problem, request_key};
use crate::app::{
    App,
    platform::{
        request_answers::{self, RequestClaim, RequestOwner},
        request_id,
    },
};
use domain::{
    error::{Error, ErrorCode},
    principal::{Admin, Principal},
    request_key::{KeySource, RequestKey},
    secret::Secret,
};

/// The header of an answer that was given before.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

impl From<&Principal> for RequestOwner {
    fn from(principal: &Principal) -> Self {
        Self::User(principal.tenant, principal.user.clone())
    }
}

impl From<&Admin> for RequestOwner {
    fn from(admin: &Admin) -> Self {
        Self::User(admin.tenant(), admin.user().clone())
    }
}

/// An answer as it is stored.
#[derive(Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

/// Runs `make`, unless an earlier request with the key has: then the answer is that of the earlier request. `make` runs
/// to its end even if the client leaves.
pub(super) async fn make_once<A: IntoResponse>(
    app: &Arc<App>,
    owner: impl Into<RequestOwner>,
    key: Option<RequestKey>,
    make: impl Future<Output = Result<A, Problem>> + Send + 'static,
) -> Result<Response, Problem> {
    let Some(key) = key.filter(|key| key.origin == KeySource::Named) else {
        return make.await.map(IntoResponse::into_response);
    };
    let owner = owner.into();
    match request_answers::claim(app, &owner, &key).await? {
        RequestClaim::First(id) => {
            let make = async move { make.await.map(IntoResponse::into_response) };
            let work = request_id::carry(make_and_keep(app.clone(), owner, id, make));
            let work = work.in_current_span();
            app.tasks.spawn(work).await.map_err(Error::internal)?
        }
        RequestClaim::Answered(answer) => restore(&answer),
        RequestClaim::Different => Err(request_key::reused()),
        RequestClaim::InProgress => {
            Err(Problem::from(Error::Repeated).retry_after(Duration::from_secs(1)))
        }
        RequestClaim::Unknown => {
            let detail = "a request with this Idempotency-Key came before, and its answer was not kept; look \
                          whether the thing was made, and use a new key";
            Err(Problem::new(
                StatusCode::CONFLICT,
                ErrorCode::AnswerNotKept,
                detail,
            ))
        }
    }
}

async fn make_and_keep(
    app: Arc<App>,
    owner: RequestOwner,
    id: Uuid,
    make: impl Future<Output = Result<Response, Problem>>,
) -> Result<Response, Problem> {
    let response = match make.await {
        Ok(response) => response,
        Err(problem) => {
            request_answers::forget(&app, &owner, id).await?;
            return Err(problem);
        }
    };
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(Error::internal)?.to_bytes();
    let answer = store(parts.status, &parts.headers, &body);
    // The client must have the answer, even if it cannot be stored for a repeated request.
    if let Err(error) = request_answers::keep(&app, &owner, id, &answer).await {
        tracing::warn!(
            error = error.with_cause(),
            "the answer to a request with a key is not kept"
        );
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// Writes an answer as it is stored.
fn store(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Secret {
    let headers = headers.iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?;
        Some((name.to_string(), value.to_owned()))
    });
    let answer = KeptAnswer {
        status: status.as_u16(),
        headers: headers.collect(),
        body: String::from_utf8_lossy(body).into_owned(),
    };
    Secret::new(serde_json::to_string(&answer).expect("plain data can be written"))
}

/// Makes the response of a stored answer.
fn restore(answer: &Secret) -> Result<Response, Problem> {
    // The answer goes only to the client that got it first.
    let answer: KeptAnswer = serde_json::from_str(answer.expose()).map_err(Error::internal)?;
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).map_err(Error::internal)?;
    for (name, value) in answer.headers {
        let name = HeaderName::try_from(name).map_err(Error::internal)?;
        let value = HeaderValue::try_from(value).map_err(Error::internal)?;
        response.headers_mut().insert(name, value);
    }
    mark_replayed(&mut response);
    Ok(response)
}

/// Says that an answer is the one that an earlier request with the key has got.
pub(super) fn mark_replayed(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
}
