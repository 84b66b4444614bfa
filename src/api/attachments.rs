//! Attachments: images and text files of a conversation.

use std::{convert::Infallible, sync::Arc};

use axum::{
    extract::{FromRequest, Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
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
use crate::app::{self, App};
use domain::{
    attachment::{Attachment, MAX_SIZE},
    error::Error,
    ids::{AttachmentId, ConversationId},
    request_key::RequestKey,
};

/// The bytes that a form may have beside its file.
const MAX_ENVELOPE: usize = 64 << 10;

/// The file of a request: the body itself, or the one file of a form.
pub(super) struct File {
    uri: Uri,
    /// The name of the file in the form.
    name: Option<String>,
    data: Bytes,
    key: Option<RequestKey>,
}

impl FromRequest<ApiState> for File {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let (uri, unread) = (request.uri().clone(), UnreadRequest::new(&request));
        let ordinary = state.app.config.max_body_bytes;
        let boundary = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|media_type| multer::parse_boundary(media_type.to_str().ok()?).ok());
        let envelope = boundary.as_ref().map_or(0, |_| MAX_ENVELOPE);
        let body = read_body(request, ordinary, MAX_SIZE + envelope).await?;
        let key = unread.key(&body)?;
        let (name, data) = match boundary {
            Some(boundary) => read_form(body, boundary).await?,
            None => (None, body),
        };
        Ok(Self {
            uri,
            name,
            data,
            key,
        })
    }
}

/// Reads the one file of a form (RFC 7578), and its name.
async fn read_form(body: Bytes, boundary: String) -> Result<(Option<String>, Bytes), Error> {
    let unreadable = |error: multer::Error| {
        Error::invalid("body", format!("is a form that cannot be read: {error}"))
    };
    let body = stream::once(async { Ok::<_, Infallible>(body) });
    let mut form = multer::Multipart::new(body, boundary);
    let mut found = None;
    while let Some(field) = form.next_field().await.map_err(unreadable)? {
        if field.file_name().is_none() && field.name() != Some("file") {
            continue;
        }
        let name = field.file_name().map(str::to_owned);
        let file = (name, field.bytes().await.map_err(unreadable)?);
        if found.replace(file).is_some() {
            return Err(Error::invalid(
                "body",
                "is a form with several files; send each in a request of its own",
            ));
        }
    }
    found.ok_or_else(|| {
        Error::invalid(
            "body",
            "is a form without a file; send the file itself as the body, or as the part `file`",
        )
    })
}

/// A form with one file. Fields that are no files are ignored.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes what `File` reads")]
struct FileForm {
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FileQuery {
    /// What to call it, such as `notes.md`.
    #[serde(default)]
    name: String,
}

/// Send an image (PNG, JPEG, GIF, WebP) or a text in UTF-8, at most 10 MiB.
///
/// It is the body itself, or the one file of a form (`multipart/form-data`). The content decides what it is, not
/// the `Content-Type`. A message names it in `attachments`; one that no message names is deleted after an hour.
#[utoipa::path(post, path = "/v1/conversations/{id}/attachments", operation_id = "createAttachment",
    tag = "attachments", params(("id" = ConversationId, Path), FileQuery),
    request_body(content((Vec<u8> = "application/octet-stream"), (inline(FileForm) = "multipart/form-data"))),
    responses((status = 201, body = Attachment), (status = 409, description = "limit_reached, answer_not_kept"),
        (status = 429, description = "quota_exceeded")))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    Query(query): Query<FileQuery>,
    file: File,
) -> Result<Response, Problem> {
    let (maker, principal) = (app.clone(), caller.principal().clone());
    let make = async move {
        let name = Some(&query.name).filter(|name| !name.is_empty());
        let name = name.or(file.name.as_ref()).map_or("", String::as_str);
        let data = &file.data;
        let made = app::chat::attachments::create(&maker, &principal, id, name, data).await?;
        Ok(created(&file.uri, made.id, made))
    };
    make_once(&app, caller.principal(), file.key, make).await
}

/// The content of an attachment.
///
/// For the owner of the conversation. An image is sent as what it is, a text as a download, so that no browser
/// runs it.
#[utoipa::path(get, path = "/v1/conversations/{id}/attachments/{attachment}", operation_id = "getAttachment",
    tag = "attachments", params(("id" = ConversationId, Path), ("attachment" = AttachmentId, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, attachment)): Path<(ConversationId, AttachmentId)>,
) -> Result<Response, Problem> {
    let (about, data) =
        app::chat::attachments::get(&app, caller.principal(), id, attachment).await?;
    let mut response = data.into_response();
    // A browser must not show a text file as a page.
    let (media_type, disposition) = if about.is_image() {
        (about.media_type.clone(), "inline")
    } else {
        ("text/plain; charset=utf-8".to_owned(), "attachment")
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, media_type),
        (
            header::CONTENT_DISPOSITION,
            disposition_of(disposition, &about.name),
        ),
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

/// Writes `Content-Disposition` with a name of any characters (RFC 8187).
pub(super) fn disposition_of(disposition: &str, name: &str) -> String {
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
