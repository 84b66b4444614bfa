//! All data of one user: a copy, and the deletion, for the user and for their admins.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use tokio::sync::mpsc;

use super::{
    ApiState,
    admin::Admin,
    extract::{Caller, Path},
    limits,
    problem::Problem,
};
use crate::app::{App, runs::user_data};
use domain::error::Error;

/// Get a copy of all that is the caller's, as one JSON document.
///
/// Claims, connections, usage, requests for approval, lines of the audit trail, and conversations with their
/// messages. No credential is in it.
#[utoipa::path(get, path = "/v1/me/export", operation_id = "exportMyData", tag = "accounts",
    responses((status = 200, body = Value), (status = 429, description = "too_many_streams")))]
pub(super) async fn export_own(
    State(state): State<ApiState>,
    caller: Caller,
) -> Result<Response, Problem> {
    let open = state.limits.open_stream(caller.principal())?;
    let pieces = user_data::export_own(&state.app, caller.principal());
    Ok(document(pieces, Some(open)))
}

/// Delete all that is the caller's.
///
/// Conversations with their messages, what was entered for servers, claims. What runs for the caller is stopped,
/// what waits for approval is taken back, and the caller's tokens of until now are taken no more. The audit trail
/// and decided requests keep the caller's id.
#[utoipa::path(delete, path = "/v1/me/data", operation_id = "deleteMyData", tag = "accounts",
    responses((status = 204), (status = 409, description = "call_in_progress")))]
pub(super) async fn delete_own(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Result<StatusCode, Problem> {
    user_data::delete_own(&app, caller.principal()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get a copy of all that is a user's.
///
/// For admins. As `GET /v1/me/export` gives it to the user.
#[utoipa::path(get, path = "/v1/admin/users/{user}/export", operation_id = "exportUser", tag = "users",
    params(("user" = String, Path)), responses((status = 200, body = Value)))]
pub(super) async fn export(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(user): Path<String>,
) -> Result<Response, Problem> {
    let pieces = user_data::export_by_id(&app, &admin, &user).await?;
    Ok(document(pieces, None))
}

/// Delete all that is a user's.
///
/// For admins. Conversations with their messages, what they entered for servers, their claims. Their sessions end,
/// what runs is stopped, and what waits for approval is taken back. The audit trail, decided requests and usage
/// keep their id. A user whom an issuer or a frontend still vouches for may come back, with nothing.
#[utoipa::path(delete, path = "/v1/admin/users/{user}", operation_id = "deleteUser", tag = "users",
    params(("user" = String, Path)), responses((status = 204), (status = 409, description = "call_in_progress")))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(user): Path<String>,
) -> Result<StatusCode, Problem> {
    user_data::delete_by_id(&app, &admin, &user).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Streams a document as its pieces come. An error breaks the answer off, so that a client does not take it for complete.
fn document(
    inbox: mpsc::Receiver<Result<String, Error>>,
    open: Option<limits::Stream>,
) -> Response {
    let body = stream::unfold((inbox, open), |(mut inbox, open)| async move {
        let piece = inbox.recv().await?;
        if let Err(error) = &piece {
            tracing::error!(
                error = error.with_cause(),
                "a copy of a user's data broke off"
            );
        }
        Some((piece.map_err(std::io::Error::other), (inbox, open)))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "application/json"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"user-data.json\"",
        ),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
