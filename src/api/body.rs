//! Reads the bodies of requests: of a bounded size, within a bounded time, and only a few large ones at once.

use std::{sync::Arc, time::Duration};

use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;

use super::{ApiState, limits::RequestPermit, problem::Problem, sockets::Socket};
use domain::error::ErrorCode;

/// Reads the whole body of a request. Its media type must be JSON.
pub(super) async fn read_json_body(request: Request, state: &ApiState) -> Result<Bytes, Problem> {
    if !is_json(request.headers()) {
        let detail = "the body must be JSON in UTF-8; send `content-type: application/json`";
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ErrorCode::UnsupportedMediaType,
            detail,
        ));
    }
    let ordinary = state.app.config.max_body_bytes;
    let holds_images = IMAGE_PATHS
        .iter()
        .any(|path| request.uri().path().starts_with(path));
    let limit = if holds_images {
        ordinary.max(MAX_IMAGE_BODY)
    } else {
        ordinary
    };
    read_body(request, ordinary, limit).await
}

/// The routes whose clients send all images of a chat in each request.
const IMAGE_PATHS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/ui/chat",
    "/v1/agui/",
];
const MAX_IMAGE_BODY: usize = 32 << 20;

/// A body has to arrive within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The body of a caller without a credential has to arrive within this time.
const UNKNOWN_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the whole body of a request, of at most `limit` bytes. While it arrives, the request gives its permit back,
/// and its connection may be closed when there are too many. Only some bodies larger than `ordinary` are read at once.
pub(super) async fn read_body(
    request: Request,
    ordinary: usize,
    limit: usize,
) -> Result<Bytes, Problem> {
    let permit = request.extensions().get::<RequestPermit>().cloned();
    let socket = request.extensions().get::<Arc<Socket>>().cloned();
    let is_known = permit
        .as_ref()
        .is_some_and(RequestPermit::is_principal_known);
    let time = if is_known {
        BODY_TIMEOUT
    } else {
        UNKNOWN_BODY_TIMEOUT
    };
    if let Some(permit) = &permit {
        permit.release();
    }
    let waiting = socket.as_ref().map(Socket::begin_wait);
    let body = tokio::time::timeout(time, collect(request, ordinary, limit, permit.as_ref())).await;
    drop(waiting);
    let body = body.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} seconds", time.as_secs());
        let status = StatusCode::REQUEST_TIMEOUT;
        Err(Problem::new(status, ErrorCode::RequestTimeout, detail))
    })?;
    if let Some(permit) = &permit {
        permit.reacquire()?;
    }
    Ok(body)
}

fn is_json(headers: &HeaderMap) -> bool {
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media = media.to_ascii_lowercase();
    let mut parts = media.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let charset = parts.find_map(|part| part.strip_prefix("charset="));
    if charset.is_some_and(|name| !["utf-8", "utf8"].contains(&name.trim_matches('"'))) {
        return false;
    }
    media == "application/json" || (media.starts_with("application/") && media.ends_with("+json"))
}

/// Collects the body. The rest of a body that is too large is read and dropped up to a bound, because a client that is
/// cut off while it writes never reads the reason.
async fn collect(
    request: Request,
    ordinary: usize,
    limit: usize,
    permit: Option<&RequestPermit>,
) -> Result<Bytes, Problem> {
    let mut body = request.into_body();
    let (mut bytes, mut size) = (BytesMut::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let broken = |_| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                ErrorCode::BrokenBody,
                "the body could not be read to its end",
            )
        };
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        let before = size;
        size = size.saturating_add(data.len());
        let grows_large = before <= ordinary && size > ordinary && limit > ordinary;
        if let Some(permit) = permit.filter(|_| grows_large) {
            permit.hold_large_body().await?;
        }
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
            ErrorCode::BodyTooLarge,
            detail,
        ));
    }
    Ok(bytes.freeze())
}
