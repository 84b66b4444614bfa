//! Who may use which tool and why, for the tenant's admins.

use std::sync::Arc;

use axum::extract::State;

use super::super::{
    agents::List,
    extract::{Authenticated, Path},
    problem::Problem,
};
use crate::app::{
    App,
    tools::toolset::{
        ServerTools,
        access_matrix::{self, AccessMatrix},
    },
};

/// What each role may do with each tool of an agent, and why. Of a personal server these are the tools that the
/// caller sees.
#[utoipa::path(get, path = "/v1/admin/agents/{agent}/access", tag = "agents", params(("agent" = String, Path)),
    responses((status = 200, body = AccessMatrix)))]
pub(in crate::api) async fn matrix(
    State(app): State<Arc<App>>,
    Authenticated(caller): Authenticated,
    Path(agent): Path<String>,
) -> Result<axum::Json<AccessMatrix>, Problem> {
    caller.admin()?;
    Ok(axum::Json(
        access_matrix::access_matrix(&app, &caller.principal, &agent).await?,
    ))
}

/// What a user may use of an agent, and why not the rest: by the claims of their newest token.
#[utoipa::path(get, path = "/v1/admin/users/{user}/agents/{agent}/tools", tag = "users",
    params(("user" = String, Path), ("agent" = String, Path)), responses((status = 200, body = List<ServerTools>)))]
pub(in crate::api) async fn tools(
    State(app): State<Arc<App>>,
    Authenticated(caller): Authenticated,
    Path((user, agent)): Path<(String, String)>,
) -> Result<axum::Json<List<ServerTools>>, Problem> {
    caller.admin()?;
    let items = access_matrix::explain_for_user(&app, &caller.principal, &user, &agent).await?;
    Ok(axum::Json(List { items }))
}
