//! The access matrix of an agent: which role may use which tool and why.

use std::sync::Arc;

use axum::extract::State;

use super::super::{
    extract::{Authenticated, Path},
    problem::Problem,
};
use crate::app::{
    App,
    tools::toolset::access_matrix::{self, AccessMatrix},
};

/// What each role may do with each tool of an agent, and why.
///
/// For admins of the tenant. Of a personal server these are the tools that the caller sees.
#[utoipa::path(get, path = "/v1/admin/agents/{agent}/access", operation_id = "getAccessMatrix", tag = "agents",
    params(("agent" = String, Path)), responses((status = 200, body = AccessMatrix)))]
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
