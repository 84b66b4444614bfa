//! The JSON body of a request: its type, its size, its time, and what is wrong with it.

use std::{sync::Arc, time::Duration};

use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::api::{ApiState, limits::RequestPermit, problem::Problem, sockets::Socket};

/// A JSON body, typed.
pub(in crate::api) struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<ApiState> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        parse(&body(request, state).await?).map(Self)
    }
}

/// The whole body of a request that says that it is JSON.
pub(in crate::api) async fn body(request: Request, state: &ApiState) -> Result<Bytes, Problem> {
    if !is_json(request.headers()) {
        let detail = "the body must be JSON; send `content-type: application/json`";
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            detail,
        ));
    }
    read_body(request, state.app.config.max_body_bytes).await
}

/// A body has to arrive within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The body of a caller without a credential has to arrive within this time.
const UNKNOWN_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The whole body of a request, of at most `limit` bytes. While it arrives, the request does not count among
/// those in progress, and its connection may be closed when there are too many.
pub(in crate::api) async fn read_body(request: Request, limit: usize) -> Result<Bytes, Problem> {
    let place = request.extensions().get::<RequestPermit>().cloned();
    let socket = request.extensions().get::<Arc<Socket>>().cloned();
    let known = place
        .as_ref()
        .is_some_and(RequestPermit::is_principal_known);
    let time = if known {
        BODY_TIMEOUT
    } else {
        UNKNOWN_BODY_TIMEOUT
    };
    if let Some(place) = &place {
        place.release();
    }
    let waiting = socket.as_ref().map(Socket::wait);
    let body = tokio::time::timeout(time, read(request, limit)).await;
    drop(waiting);
    let body = body.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} seconds", time.as_secs());
        let status = StatusCode::REQUEST_TIMEOUT;
        Err(Problem::new(status, "request_timeout", detail))
    })?;
    if let Some(place) = &place {
        place.reacquire()?;
    }
    Ok(body)
}

fn is_json(headers: &HeaderMap) -> bool {
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media = media
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    media == "application/json" || (media.starts_with("application/") && media.ends_with("+json"))
}

/// The whole body. The rest of a body that is too large is read and dropped for a while: a client that is cut
/// off while writing never reads why.
async fn read(request: Request, limit: usize) -> Result<Bytes, Problem> {
    let mut body = request.into_body();
    let (mut bytes, mut size) = (BytesMut::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let broken = |_| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "broken_body",
                "the body could not be read to its end",
            )
        };
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        size = size.saturating_add(data.len());
        if size <= limit {
            bytes.extend_from_slice(&data);
        } else if size > limit.saturating_mul(8) {
            break;
        }
    }
    if size > limit {
        let detail = format!("the body is larger than {limit} bytes");
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            detail,
        ));
    }
    Ok(bytes.freeze())
}

/// A typed body of JSON.
pub(in crate::api) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // serde would read a list as the fields in their order, which no client intends.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid("body", "must be an object"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() {
            Problem::invalid(
                if path == "." { "body".to_owned() } else { path },
                unquoted(&inner.to_string()),
            )
        } else {
            malformed(&inner)
        }
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

/// serde's message about a wrong value, without the value, which may be a secret in the wrong field, and
/// without the names of Rust types.
fn unquoted(said: &str) -> String {
    let Some((wrong, wanted)) = said.rsplit_once(", expected ") else {
        return said.to_owned();
    };
    let wrong = [
        "invalid type: string",
        "invalid value: string",
        "unknown variant",
    ]
    .into_iter()
    .find(|kind| wrong.starts_with(kind))
    .unwrap_or(wrong);
    let wanted = match wanted
        .strip_prefix("struct ")
        .and_then(|wanted| wanted.split_once(' '))
    {
        Some((_, place)) => format!("an object {place}"),
        None => wanted.to_owned(),
    };
    format!("{wrong}, expected {wanted}")
}

fn malformed(error: &serde_json::Error) -> Problem {
    let mut problem = Problem::new(
        StatusCode::BAD_REQUEST,
        "malformed_json",
        format!("not JSON: {error}"),
    );
    problem.field = Some("body".to_owned());
    problem
}
