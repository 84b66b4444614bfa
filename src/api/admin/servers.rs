//! What the admins of a tenant set for the servers of an agent or of a capability. `If-Match` is as with the entries of
//! the registry; with `If-None-Match: *` nothing is replaced.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};

use super::{
    super::{
        agents::List,
        extract::{Json, NoParameters, Path, Query},
        problem::Problem,
        registry::if_match,
    },
    Admin,
};
use crate::app::{
    App,
    servers::{
        agent_servers::{self, ConfiguredServer},
        registry::{
            ChangeOutcome, IfMatch,
            settings::{self, CapabilityView, SettingDefinition, agent_owner},
        },
    },
};
use domain::{error::ErrorCode, principal, registry::settings::SettingOwner};

/// The capabilities that agents of the tenant have.
///
/// For admins. A capability is a block that several packs share.
#[utoipa::path(get, path = "/v1/admin/capabilities", operation_id = "listCapabilities", tag = "registry",
    responses((status = 200, body = List<CapabilityView>)))]
pub(in crate::api) async fn capabilities(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<CapabilityView>>, Problem> {
    let items = settings::list_capabilities(&app, &admin).await?;
    Ok(axum::Json(List { items }))
}

/// The servers that an agent takes from the registry, with what admins set for it.
///
/// For admins. Sensitive values are `••••`.
#[utoipa::path(get, path = "/v1/admin/agents/{agent}/servers", operation_id = "listServerSettingsOfAgent",
    tag = "registry", params(("agent" = String, Path)), responses((status = 200, body = List<ConfiguredServer>)))]
pub(in crate::api) async fn list_of_agent(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(agent): Path<String>,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<ConfiguredServer>>, Problem> {
    list(&app, &admin, &agent_owner(&agent)?).await
}

/// The servers that a capability takes from the registry, with what admins set for it.
///
/// For admins. Sensitive values are `••••`.
#[utoipa::path(get, path = "/v1/admin/capabilities/{capability}/servers",
    operation_id = "listServerSettingsOfCapability", tag = "registry", params(("capability" = String, Path)),
    responses((status = 200, body = List<ConfiguredServer>)))]
pub(in crate::api) async fn list_of_capability(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(capability): Path<String>,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<ConfiguredServer>>, Problem> {
    list(&app, &admin, &SettingOwner::Capability(capability)).await
}

/// One server of an agent, with what admins set for it.
///
/// For admins. The `ETag` of the answer goes into `If-Match` of a change.
#[utoipa::path(get, path = "/v1/admin/agents/{agent}/servers/{server}", operation_id = "getServerSettingOfAgent",
    tag = "registry", params(("agent" = String, Path), ("server" = String, Path)),
    responses((status = 200, body = ConfiguredServer)))]
pub(in crate::api) async fn get_of_agent(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path((agent, server)): Path<(String, String)>,
) -> Result<Response, Problem> {
    get(&app, &admin, &agent_owner(&agent)?, &server).await
}

/// One server of a capability, with what admins set for it.
///
/// For admins. The `ETag` of the answer goes into `If-Match` of a change.
#[utoipa::path(get, path = "/v1/admin/capabilities/{capability}/servers/{server}",
    operation_id = "getServerSettingOfCapability", tag = "registry",
    params(("capability" = String, Path), ("server" = String, Path)),
    responses((status = 200, body = ConfiguredServer)))]
pub(in crate::api) async fn get_of_capability(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path((capability, server)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let owner = SettingOwner::Capability(capability);
    get(&app, &admin, &owner, &server).await
}

/// Add a server of the registry to an agent, or set keys of one that it has.
///
/// For admins. What is left out stays as the pack says. `If-Match` keeps two admins from overwriting each other.
#[utoipa::path(put, path = "/v1/admin/agents/{agent}/servers/{server}", operation_id = "putServerSettingOfAgent",
    tag = "registry", request_body = SettingDefinition, params(("agent" = String, Path), ("server" = String, Path),
    ("If-Match" = Option<String>, Header, description = "The `ETag` of what was read"),
    ("If-None-Match" = Option<String>, Header, description = "`*`: only if nothing is set yet")),
    responses((status = 200, body = ConfiguredServer), (status = 400, description = "unknown_reference"),
        (status = 409, description = "limit_reached"), (status = 412, description = "precondition_failed")))]
pub(in crate::api) async fn put_of_agent(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path((agent, server)): Path<(String, String)>,
    headers: HeaderMap,
    Json(definition): Json<SettingDefinition>,
) -> Result<Response, Problem> {
    let owner = agent_owner(&agent)?;
    put(&app, &admin, &owner, &server, &headers, &definition).await
}

/// Add a server of the registry to a capability, or set keys of one that it has.
///
/// For admins. What is left out stays as the pack says. `If-Match` keeps two admins from overwriting each other.
#[utoipa::path(put, path = "/v1/admin/capabilities/{capability}/servers/{server}",
    operation_id = "putServerSettingOfCapability", tag = "registry", request_body = SettingDefinition,
    params(("capability" = String, Path), ("server" = String, Path),
    ("If-Match" = Option<String>, Header, description = "The `ETag` of what was read"),
    ("If-None-Match" = Option<String>, Header, description = "`*`: only if nothing is set yet")),
    responses((status = 200, body = ConfiguredServer), (status = 400, description = "unknown_reference"),
        (status = 409, description = "limit_reached"), (status = 412, description = "precondition_failed")))]
pub(in crate::api) async fn put_of_capability(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path((capability, server)): Path<(String, String)>,
    headers: HeaderMap,
    Json(definition): Json<SettingDefinition>,
) -> Result<Response, Problem> {
    let owner = SettingOwner::Capability(capability);
    put(&app, &admin, &owner, &server, &headers, &definition).await
}

/// Remove what admins set for a server of an agent.
///
/// For admins. A server that they added is gone from the agent; one of the pack is as the pack says.
#[utoipa::path(delete, path = "/v1/admin/agents/{agent}/servers/{server}",
    operation_id = "removeServerSettingOfAgent", tag = "registry", params(("agent" = String, Path),
    ("server" = String, Path), ("If-Match" = Option<String>, Header, description = "The `ETag` of what was read")),
    responses((status = 204), (status = 412, description = "precondition_failed")))]
pub(in crate::api) async fn remove_of_agent(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path((agent, server)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let owner = agent_owner(&agent)?;
    remove(&app, &admin, &owner, &server, &headers).await
}

/// Remove what admins set for a server of a capability.
///
/// For admins. A server that they added is gone from the capability; one of the pack is as the pack says.
#[utoipa::path(delete, path = "/v1/admin/capabilities/{capability}/servers/{server}",
    operation_id = "removeServerSettingOfCapability", tag = "registry", params(("capability" = String, Path),
    ("server" = String, Path), ("If-Match" = Option<String>, Header, description = "The `ETag` of what was read")),
    responses((status = 204), (status = 412, description = "precondition_failed")))]
pub(in crate::api) async fn remove_of_capability(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path((capability, server)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let owner = SettingOwner::Capability(capability);
    remove(&app, &admin, &owner, &server, &headers).await
}

async fn list(
    app: &App,
    admin: &principal::Admin,
    owner: &SettingOwner,
) -> Result<axum::Json<List<ConfiguredServer>>, Problem> {
    let items = agent_servers::list_configured(app, admin, owner).await?;
    Ok(axum::Json(List { items }))
}

async fn get(
    app: &App,
    admin: &principal::Admin,
    owner: &SettingOwner,
    server: &str,
) -> Result<Response, Problem> {
    let found = agent_servers::get_configured(app, admin, owner, server).await?;
    let etag = found.setting.as_ref().map(|setting| setting.etag.clone());
    Ok(match etag {
        Some(etag) => ([(header::ETAG, etag)], axum::Json(found)).into_response(),
        None => axum::Json(found).into_response(),
    })
}

async fn put(
    app: &App,
    admin: &principal::Admin,
    owner: &SettingOwner,
    server: &str,
    headers: &HeaderMap,
    definition: &SettingDefinition,
) -> Result<Response, Problem> {
    let is_new = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == b"*");
    let wanted = if is_new {
        IfMatch::Absent
    } else {
        if_match(headers)?
    };
    match settings::put(app, admin, owner, server, definition, &wanted).await? {
        ChangeOutcome::Done(()) => get(app, admin, owner, server).await,
        ChangeOutcome::Another => Err(changed(owner, server)),
    }
}

async fn remove(
    app: &App,
    admin: &principal::Admin,
    owner: &SettingOwner,
    server: &str,
    headers: &HeaderMap,
) -> Result<StatusCode, Problem> {
    match settings::remove(app, admin, owner, server, &if_match(headers)?).await? {
        ChangeOutcome::Done(()) => Ok(StatusCode::NO_CONTENT),
        ChangeOutcome::Another => Err(changed(owner, server)),
    }
}

/// The problem of a setting that somebody else has changed.
fn changed(owner: &SettingOwner, server: &str) -> Problem {
    let detail = format!(
        "what is set for the server {server} of the {owner} has changed since it was read; read it again"
    );
    Problem::new(
        StatusCode::PRECONDITION_FAILED,
        ErrorCode::PreconditionFailed,
        detail,
    )
}
