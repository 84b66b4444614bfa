//! What a status, a body or a broken connection says about a request: whether it was refused for good,
//! may come again, or may have been carried out.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use rmcp::{
    model::{ClientRequest, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::StreamableHttpPostResponse as Answer,
};

use super::collect;
use crate::{
    egress::{EgressError, Response},
    mcp::{error::Failure, wire::answer_in},
};

/// What is read of an answer that says no.
pub(super) const MAX_REFUSAL: usize = 64 * 1024;

/// A request that was answered with a status of failure.
pub(super) async fn refused(
    request: &ClientRequest,
    id: &RequestId,
    in_session: bool,
    tapped: bool,
    response: Response,
) -> Result<Answer, Failure> {
    let (status, headers) = (response.status, response.headers);
    // What cannot be read explains nothing; the status does.
    let body = collect(response.body, MAX_REFUSAL)
        .await
        .unwrap_or_default();
    let failure = refusal(status, &headers, &body);
    if in_session && forgot_session(status, &failure) {
        return Err(Failure::SessionUnknown);
    }
    let discovering = matches!(request, ClientRequest::DiscoverRequest(_));
    match failure {
        // Servers of the older revisions answer the question with any status and any text; what follows is
        // the older handshake, and it needs the answer under the id of its request.
        Failure::Refused { code, message } if !tapped && (code.is_some() || discovering) => {
            let code = code
                .and_then(|code| i32::try_from(code).ok())
                .map_or(ErrorCode::INVALID_REQUEST, ErrorCode);
            let data = error_data(&body);
            Ok(Answer::Json(
                ServerJsonRpcMessage::error(ErrorData::new(code, message, data), Some(id.clone())),
                None,
            ))
        }
        failure => Err(failure),
    }
}

/// What a status other than success means for the request.
pub(super) fn refusal(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Failure {
    let retry_after = retry_after(headers);
    match status {
        StatusCode::UNAUTHORIZED => return Failure::Unauthorized,
        StatusCode::FORBIDDEN => return Failure::Forbidden,
        StatusCode::TOO_MANY_REQUESTS => {
            return Failure::Busy {
                status: 429,
                retry_after,
            };
        }
        StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => {
            return Failure::Busy {
                status: 503,
                retry_after,
            };
        }
        _ => {}
    }
    match answer_in(body) {
        Some(Err(refused)) => refused,
        _ if status.is_server_error() => {
            Failure::Broken(format!("the server answered with HTTP {status}"))
        }
        _ => Failure::Refused {
            code: None,
            message: format!("the server answered with HTTP {status}"),
        },
    }
}

/// 404 by the specification; 400 and a sentence about it by the reference servers.
fn forgot_session(status: StatusCode, failure: &Failure) -> bool {
    let Failure::Refused { message, .. } = failure else {
        return false;
    };
    let message = message.to_ascii_lowercase();
    status == StatusCode::NOT_FOUND
        || (status == StatusCode::BAD_REQUEST
            && (message.contains("session") || message.contains("not initialized")))
}

/// The `data` of an error, in which a server names the revisions it speaks.
fn error_data(body: &[u8]) -> Option<serde_json::Value> {
    match serde_json::from_slice(body) {
        Ok(ServerJsonRpcMessage::Error(error)) => error.error.data,
        _ => None,
    }
}

pub(super) fn unreachable(error: &EgressError) -> Failure {
    let message = error.to_string();
    match (error.sent, error.is_rejected(), error.is_timeout()) {
        (false, true, _) => Failure::Misconfigured(message),
        (false, ..) => Failure::NotSent(message),
        (true, _, true) => Failure::Silent(message),
        (true, ..) => Failure::Lost(message),
    }
}

pub(super) fn broken(error: &EgressError) -> Failure {
    if error.is_timeout() {
        Failure::Silent(error.to_string())
    } else {
        Failure::Lost(error.to_string())
    }
}

/// `Retry-After` in seconds, at most an hour; a date is taken as a minute.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    Some(Duration::from_secs(
        value.trim().parse().unwrap_or(60).min(3600),
    ))
}
