//! The agents that the caller may talk to, and the tools, prompts, connections, servers and menu of each.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::{
    extract::{Caller, NoParameters, Path, Query},
    problem::Problem,
};
use crate::app::{
    self, App,
    chat::{menu::MenuView, prompts::PromptView},
    servers::{agent_servers::ServerView, agents::AgentView, connections::ConnectionView},
    tools::toolset::ServerTools,
};
use domain::{
    error::ErrorCode,
    ids::ConversationId,
    principal::{Principal, Scope},
};

/// All there is of something.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct List<T: utoipa::ToSchema> {
    pub(super) items: Vec<T>,
}

/// The agents that the caller may talk to.
///
/// For every user and guest. Which agents there are depends on the caller's claims.
#[utoipa::path(get, path = "/v1/agents", operation_id = "listAgents", tag = "agents",
    responses((status = 200, body = List<AgentView>)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<AgentView>>, Problem> {
    Ok(axum::Json(List {
        items: app::servers::agents::list(&app, caller.principal()).await?,
    }))
}

/// One agent.
///
/// An agent that the caller may not talk to is not found.
#[utoipa::path(get, path = "/v1/agents/{agent}", operation_id = "getAgent", tag = "agents",
    params(("agent" = String, Path)), responses((status = 200, body = AgentView)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
) -> Result<axum::Json<AgentView>, Problem> {
    Ok(axum::Json(
        app::servers::agents::get(&app, caller.principal(), &agent).await?,
    ))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ToolsQuery {
    /// Also the tools that are denied, with the reason and its remedy. For the pack's `adminUsers` and keys with
    /// the scope `admin`.
    #[serde(default)]
    explain: bool,
    /// With `explain`: the tools of this user, by the newest claims that were seen of them. For admins of the tenant.
    user: Option<String>,
}

/// The caller's tools at an agent, by server.
///
/// With `explain`, the tools that the caller does not get come along, each with the reason.
#[utoipa::path(get, path = "/v1/agents/{agent}/tools", operation_id = "listTools", tag = "agents",
    params(("agent" = String, Path), ToolsQuery), responses((status = 200, body = List<ServerTools>)))]
pub(super) async fn tools(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
    Query(query): Query<ToolsQuery>,
) -> Result<axum::Json<List<ServerTools>>, Problem> {
    if query.user.is_some() && !query.explain {
        return Err(Problem::invalid("user", "is for `explain=true` only"));
    }
    let items = if let Some(user) = &query.user {
        let admin = caller.0.admin()?;
        app::tools::toolset::explain_for(&app, &admin, user, &agent).await?
    } else if query.explain {
        app::tools::toolset::explain(
            &app,
            caller.principal(),
            &agent,
            caller.0.scopes.has(Scope::Admin),
        )
        .await?
    } else {
        app::tools::toolset::list(&app, caller.principal(), &agent).await?
    };
    Ok(axum::Json(List { items }))
}

/// The prompts of an agent's servers that the caller can use.
///
/// One is used by saying its `command` in a conversation, with `name=value` for each argument behind it; a value
/// with blanks stands in double quotes.
#[utoipa::path(get, path = "/v1/agents/{agent}/prompts", operation_id = "listPrompts", tag = "agents",
    params(("agent" = String, Path)), responses((status = 200, body = List<PromptView>)))]
pub(super) async fn prompts(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<PromptView>>, Problem> {
    Ok(axum::Json(List {
        items: app::chat::prompts::list(&app, caller.principal(), &agent).await?,
    }))
}

/// The servers of an agent that the caller can use, and how each connection is.
///
/// A personal server that wants a credential says so in its state.
#[utoipa::path(get, path = "/v1/agents/{agent}/connections", operation_id = "listConnections", tag = "agents",
    params(("agent" = String, Path)), responses((status = 200, body = List<ConnectionView>)))]
pub(super) async fn connections(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<ConnectionView>>, Problem> {
    let operator = caller.0.scopes.has(Scope::Admin);
    Ok(axum::Json(List {
        items: app::servers::credentials::list(&app, caller.principal(), &agent, operator).await?,
    }))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AgentServersQuery {
    /// Also every key of each server's configuration, and where its value comes from. For the pack's `adminUsers`
    /// and keys with the scope `admin`.
    #[serde(default)]
    explain: bool,
}

/// The servers that an agent takes from the registry.
///
/// For whoever may talk to the agent. Addresses and credentials are not in it.
#[utoipa::path(get, path = "/v1/agents/{agent}/servers", operation_id = "listServersOfAgent", tag = "agents",
    params(("agent" = String, Path), AgentServersQuery), responses((status = 200, body = List<ServerView>)))]
pub(super) async fn servers(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
    Query(query): Query<AgentServersQuery>,
) -> Result<axum::Json<List<ServerView>>, Problem> {
    let operator = caller.0.scopes.has(Scope::Admin);
    Ok(axum::Json(List {
        items: app::servers::agent_servers::list(
            &app,
            caller.principal(),
            &agent,
            query.explain,
            operator,
        )
        .await?,
    }))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MenuQuery {
    /// As it is in this conversation.
    conversation: Option<ConversationId>,
}

/// The caller's menu at an agent: what can be chosen now, and how much waits behind it.
///
/// A choice is posted to a conversation as `{"menu": "<id>"}`.
#[utoipa::path(get, path = "/v1/agents/{agent}/menu", operation_id = "getMenu", tag = "agents",
    params(("agent" = String, Path), MenuQuery), responses((status = 200, body = MenuView)))]
pub(super) async fn menu(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
    Query(query): Query<MenuQuery>,
) -> Result<axum::Json<MenuView>, Problem> {
    let conversation = query.conversation;
    Ok(axum::Json(
        app::chat::menu::view(&app, caller.principal(), &agent, conversation).await?,
    ))
}

/// The agent of a user who has exactly one; otherwise an error that asks for an id.
pub(super) async fn only_agent(app: &App, principal: &Principal) -> Result<String, Problem> {
    let mut agents = app::servers::agents::list(app, principal).await?;
    match (agents.pop(), agents.is_empty()) {
        (Some(agent), true) => Ok(agent.id),
        _ => {
            let reason = "is missing; give an id of GET /v1/agents (the transport of the AI SDK takes it as `body: { agent: \
                          \"…\" }`, OpenAI's SDKs as `extra_body`)";
            Err(Problem::unfit(ErrorCode::MissingField, "agent", reason))
        }
    }
}
