//! The branches of a conversation, which edits and repeated questions make.

use std::sync::Arc;

use axum::extract::State;

use super::{
    agents::List,
    extract::{Caller, NoParameters, Path, Query},
    problem::Problem,
};
use crate::app::{self, App};
use domain::{ids::ConversationId, run::ConversationBranch};

/// The branches of a conversation, the first one first.
///
/// Those with the same `parent` and `from_seq` are versions of one message, beside the one that the parent itself
/// has there. `PATCH` the conversation to switch. At most 500.
#[utoipa::path(get, path = "/v1/conversations/{id}/branches", operation_id = "listBranches", tag = "branches",
    params(("id" = ConversationId, Path)), responses((status = 200, body = List<ConversationBranch>)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<ConversationBranch>>, Problem> {
    Ok(axum::Json(List {
        items: app::chat::branches::list(&app, caller.principal(), id).await?,
    }))
}
