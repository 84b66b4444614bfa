//! The tools that their servers have changed or added, and that wait until somebody accepts them.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{
    super::{
        extract::{Json, Path, Query},
        paging::{check_limit, default_limit, split_page},
        problem::Problem,
    },
    Admin,
};
use crate::app::{
    self, App,
    servers::pins::{ChangedTool, ChangedToolDetails},
};
use domain::{canonical::Hex, ids::DefinitionId};

/// The most tools that one request accepts.
const MOST: usize = 100;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct ChangedToolsQuery {
    /// Only those before this one: the `next` of the page before.
    cursor: Option<DefinitionId>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100)]
    limit: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct ChangedToolPage {
    items: Vec<ChangedTool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<DefinitionId>,
}

/// The tools that are not as somebody accepted them, of servers that the tenant's agents use, the newest first.
///
/// For admins. With `pin: hold` they are neither listed nor called until an admin or, for all tenants, the
/// operator accepts them.
#[utoipa::path(get, path = "/v1/admin/changed-tools", operation_id = "listChangedTools", tag = "tools",
    params(ChangedToolsQuery), responses((status = 200, body = ChangedToolPage)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Query(which): Query<ChangedToolsQuery>,
) -> Result<axum::Json<ChangedToolPage>, Problem> {
    let limit = check_limit(which.limit, 100)?;
    let items = app::servers::pins::list(&app, &admin, which.cursor, limit + 1).await?;
    let (items, next) = split_page(items, limit, |tool| tool.id);
    Ok(axum::Json(ChangedToolPage { items, next }))
}

/// One changed tool, with what was accepted and what its server says now.
///
/// For admins. The words are the server's, and nobody has checked them.
#[utoipa::path(get, path = "/v1/admin/changed-tools/{id}", operation_id = "getChangedTool", tag = "tools",
    params(("id" = DefinitionId, Path)), responses((status = 200, body = ChangedToolDetails)))]
pub(in crate::api) async fn get(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(id): Path<DefinitionId>,
) -> Result<axum::Json<ChangedToolDetails>, Problem> {
    Ok(axum::Json(app::servers::pins::get(&app, &admin, id).await?))
}

/// A tool as somebody has seen it.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct SeenTool {
    id: DefinitionId,
    /// The `hash` of what was seen.
    #[schema(value_type = String, pattern = "^[0-9a-fA-F]{64}$")]
    hash: Hex,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct AcceptedTools {
    #[schema(min_items = 1, max_items = 100)]
    tools: Vec<SeenTool>,
}

/// Accept tools as they are now, all of them or none.
///
/// For admins. It counts for the tenant, on every replica within a second. When one of them has changed again or
/// waits no more, none is accepted.
#[utoipa::path(post, path = "/v1/admin/changed-tools/accept", operation_id = "acceptChangedTools", tag = "tools",
    request_body = AcceptedTools, responses((status = 204)))]
pub(in crate::api) async fn accept(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Json(accepted): Json<AcceptedTools>,
) -> Result<StatusCode, Problem> {
    if accepted.tools.is_empty() || accepted.tools.len() > MOST {
        return Err(Problem::invalid("tools", format!("must be 1 to {MOST}")));
    }
    let seen = accepted.tools.iter();
    let seen: Vec<_> = seen.map(|tool| (tool.id, tool.hash.0)).collect();
    app::servers::pins::accept(&app, &admin, &seen).await?;
    Ok(StatusCode::NO_CONTENT)
}
