//! The items of a conversation, for OpenAI's Conversations API: the messages of its user and its agent.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;

use super::{
    InputQuery,
    wire::{InputItem, ItemList, message_id},
};
use crate::{
    api::{
        extract::{Caller, Path, Query},
        problem::Problem,
    },
    app::{App, chat::responses},
};
use domain::{error::ErrorCode, ids::ConversationId};

/// What was said in a conversation, in its active branch.
///
/// In the shape of OpenAI's Conversations API. `include` asks for nothing that there is.
#[utoipa::path(get, path = "/v1/conversations/{id}/items", operation_id = "listConversationItems", tag = "openai",
    params(("id" = ConversationId, Path), InputQuery),
    responses((status = 200, body = ItemList), (status = 400, description = "unknown_reference")))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    Query(query): Query<InputQuery>,
) -> Result<axum::Json<ItemList>, Problem> {
    let (limit, range) = query.range()?;
    let found = responses::list_items(&app, caller.principal(), id, range).await?;
    Ok(axum::Json(ItemList::of_page(found, limit)))
}

/// One item of a conversation.
///
/// In the shape of OpenAI's Conversations API.
#[utoipa::path(get, path = "/v1/conversations/{id}/items/{item}", operation_id = "getConversationItem",
    tag = "openai", params(("id" = ConversationId, Path), ("item" = String, Path)),
    responses((status = 200, body = InputItem)))]
pub(in crate::api) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, item)): Path<(ConversationId, String)>,
) -> Result<axum::Json<InputItem>, Problem> {
    let found = match message_id(&item) {
        Some(message) => responses::find_item(&app, caller.principal(), id, message).await?,
        None => None,
    };
    let found = found.ok_or_else(|| {
        let item: String = item.chars().take(64).collect();
        Problem::not_found(format!("item {item:?}"))
    })?;
    Ok(axum::Json(InputItem::from_message(&found)))
}

/// The answer to a client that adds an item.
pub(in crate::api) async fn refuse_new() -> Problem {
    refuse(
        "items are not added to a conversation; say something with POST /v1/responses and its `conversation`",
    )
}

/// The answer to a client that deletes an item.
pub(in crate::api) async fn refuse_deletion() -> Problem {
    refuse("an item is not deleted alone; DELETE /v1/conversations/{id} deletes the conversation")
}

fn refuse(detail: &str) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::MethodNotAllowed,
        detail,
    )
}
