//! Images and text files of a conversation.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri, header};
use serde::Deserialize;

use super::{
    ApiState,
    body::read_body,
    extract::{Caller, Path, Query, created},
    once::make_once,
    problem::Problem,
    request_key::UnreadRequest,
};
use crate::{
    app::{self, App},
    domain::{
        attachment::{Attachment, MAX_SIZE},
        ids::{AttachmentId, ConversationId},
        request_key::RequestKey,
    },
};

/// A body of any type, as large as an attachment may be.
pub(super) struct File {
    uri: Uri,
    data: Bytes,
    key: Option<RequestKey>,
}

impl FromRequest<ApiState> for File {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let (uri, unread) = (request.uri().clone(), UnreadRequest::of(&request));
        let ordinary = state.app.config.max_body_bytes;
        let data = read_body(request, ordinary, MAX_SIZE).await?;
        let key = unread.key(&data)?;
        Ok(Self { uri, data, key })
    }
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FileQuery {
    /// What to call it, such as `notes.md`.
    #[serde(default)]
    name: String,
}

/// Send an image (PNG, JPEG, GIF, WebP) or a text in UTF-8, at most 10 MiB, as the body itself. The content decides what
/// it is, not the `Content-Type`. A message names it in `attachments`.
#[utoipa::path(post, path = "/v1/conversations/{id}/attachments", tag = "attachments",
    params(("id" = ConversationId, Path), FileQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Attachment)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    Query(query): Query<FileQuery>,
    file: File,
) -> Result<Response, Problem> {
    let (maker, principal) = (app.clone(), caller.principal().clone());
    let make = async move {
        let (name, data) = (&query.name, &file.data);
        let made = app::chat::attachments::create(&maker, &principal, id, name, data).await?;
        Ok(created(&file.uri, made.id, made))
    };
    make_once(&app, caller.principal(), file.key, make).await
}

/// The content of an attachment.
#[utoipa::path(get, path = "/v1/conversations/{id}/attachments/{attachment}", tag = "attachments",
    params(("id" = ConversationId, Path), ("attachment" = AttachmentId, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, attachment)): Path<(ConversationId, AttachmentId)>,
) -> Result<Response, Problem> {
    let (about, data) =
        app::chat::attachments::get(&app, caller.principal(), id, attachment).await?;
    let mut response = data.into_response();
    // A text is never shown as a page, whatever is in it.
    let (media_type, disposition) = if about.is_image() {
        (about.media_type.clone(), "inline")
    } else {
        ("text/plain; charset=utf-8".to_owned(), "attachment")
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_DISPOSITION, named(disposition, &about.name)),
        (
            HeaderName::from_static("content-security-policy"),
            "default-src 'none'; sandbox".to_owned(),
        ),
    ] {
        let value = HeaderValue::from_str(&value).expect("names are encoded");
        headers.insert(name, value);
    }
    Ok(response)
}

/// `Content-Disposition` with a name of any characters (RFC 8187).
pub(super) fn named(disposition: &str, name: &str) -> String {
    let encoded: String = name
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect();
    format!("{disposition}; filename*=UTF-8''{encoded}")
}
