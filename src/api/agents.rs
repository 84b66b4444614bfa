//! The agents a principal may talk to, and what each offers them.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;

use super::{
    extract::{Caller, Path, Query},
    problem::Problem,
};
use crate::app::{self, App, agents::AgentView, connections::ConnectionView, tools::ServerTools};

/// The agents I may talk to.
#[utoipa::path(get, path = "/v1/agents", tag = "agents", responses((status = 200, body = Vec<AgentView>)))]
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<axum::Json<Vec<AgentView>>, Problem> {
    Ok(axum::Json(app::agents::list(&app, caller.principal()).await?))
}

/// One agent.
#[utoipa::path(get, path = "/v1/agents/{agent}", tag = "agents", params(("agent" = String, Path)),
    responses((status = 200, body = AgentView)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
) -> Result<axum::Json<AgentView>, Problem> {
    Ok(axum::Json(app::agents::get(&app, caller.principal(), &agent).await?))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Explain {
    /// Also the tools that are denied, with the reason and its remedy. For the pack's `adminUsers` and keys with
    /// the scope `admin`.
    #[serde(default)]
    explain: bool,
}

/// My tools at this agent, by server.
#[utoipa::path(get, path = "/v1/agents/{agent}/tools", tag = "agents", params(("agent" = String, Path), Explain),
    responses((status = 200, body = Vec<ServerTools>)))]
pub(super) async fn tools(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
    Query(query): Query<Explain>,
) -> Result<axum::Json<Vec<ServerTools>>, Problem> {
    let tools = if query.explain {
        app::tools::explain(&app, caller.principal(), &agent, caller.0.scopes.admin()).await?
    } else {
        app::tools::list(&app, caller.principal(), &agent).await?
    };
    Ok(axum::Json(tools))
}

/// The servers of this agent that I can use, and how each connection is.
#[utoipa::path(get, path = "/v1/agents/{agent}/connections", tag = "agents", params(("agent" = String, Path)),
    responses((status = 200, body = Vec<ConnectionView>)))]
pub(super) async fn connections(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
) -> Result<axum::Json<Vec<ConnectionView>>, Problem> {
    Ok(axum::Json(app::connections::list(&app, caller.principal(), &agent).await?))
}
