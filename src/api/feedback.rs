//! Feedback: the user's opinion of a message.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;

use super::{
    extract::{Caller, Json, Path, check_text},
    problem::Problem,
};
use crate::app::{self, App};
use domain::{
    ids::{ConversationId, MessageId},
    message::Feedback,
};

/// The most characters of a comment.
const MAX_COMMENT: usize = 2000;

/// What the caller thinks of a message, as they have said it.
///
/// There is none before they say it: 404.
#[utoipa::path(get, path = "/v1/conversations/{id}/messages/{message}/feedback", operation_id = "getFeedback",
    tag = "feedback", params(("id" = ConversationId, Path), ("message" = MessageId, Path)),
    responses((status = 200, body = Feedback)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, message)): Path<(ConversationId, MessageId)>,
) -> Result<axum::Json<Feedback>, Problem> {
    let feedback = app::chat::feedback::get(&app, caller.principal(), id, message).await?;
    Ok(axum::Json(feedback))
}

/// Say what the caller thinks of a message, in place of what they said before.
///
/// One word of each user about each message, so it may be said again.
#[utoipa::path(put, path = "/v1/conversations/{id}/messages/{message}/feedback", operation_id = "putFeedback",
    tag = "feedback", params(("id" = ConversationId, Path), ("message" = MessageId, Path)),
    request_body = Feedback, responses((status = 204)))]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, message)): Path<(ConversationId, MessageId)>,
    Json(feedback): Json<Feedback>,
) -> Result<StatusCode, Problem> {
    if let Some(comment) = &feedback.comment {
        check_text("comment", comment, MAX_COMMENT)?;
    }
    app::chat::feedback::put(&app, caller.principal(), id, message, &feedback).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Take back what the caller said of a message.
///
/// There may be nothing to take back.
#[utoipa::path(delete, path = "/v1/conversations/{id}/messages/{message}/feedback",
    operation_id = "removeFeedback", tag = "feedback",
    params(("id" = ConversationId, Path), ("message" = MessageId, Path)), responses((status = 204)))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, message)): Path<(ConversationId, MessageId)>,
) -> Result<StatusCode, Problem> {
    app::chat::feedback::delete(&app, caller.principal(), id, message).await?;
    Ok(StatusCode::NO_CONTENT)
}
