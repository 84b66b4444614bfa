//! The resources that tool results of a conversation link to.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::{
    extract::{Caller, Path, Query},
    problem::Problem,
};
use crate::app::{
    self, App,
    chat::resources::{ResourceSelector, ResourceView},
};
use domain::ids::ConversationId;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ResourcesQuery {
    /// Read this one, exactly as a result said it. Absent: list what was linked to, and read nothing.
    uri: Option<String>,
    /// Whose it is, where several servers linked to the same `uri`; otherwise the one that did so last.
    server: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Resources {
    items: Vec<ResourceView>,
}

/// What tool results of a conversation linked to, the newest first.
///
/// With `uri` that one, read from its server. Only what a result of this conversation has named can be read.
#[utoipa::path(get, path = "/v1/conversations/{id}/resources", operation_id = "listResources",
    tag = "conversations", params(("id" = ConversationId, Path), ResourcesQuery),
    responses((status = 200, body = Resources), (status = 502, description = "unavailable")))]
pub(super) async fn resources(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    Query(which): Query<ResourcesQuery>,
) -> Result<axum::Json<Resources>, Problem> {
    let items = match &which.uri {
        None => app::chat::resources::list(&app, caller.principal(), id).await?,
        Some(uri) => {
            let which = ResourceSelector {
                uri,
                server: which.server.as_deref(),
            };
            vec![app::chat::resources::read(&app, caller.principal(), id, which).await?]
        }
    };
    Ok(axum::Json(Resources { items }))
}
