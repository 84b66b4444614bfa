//! The OAuth clients that the service registered at authorization servers, for the admins of a tenant.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde::Serialize;

use super::{
    extract::{Authenticated, NoParameters, Path, Query},
    problem::Problem,
};
use crate::app::{
    App,
    servers::oauth::{self, RegisteredClient},
};

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct RegisteredClients {
    items: Vec<RegisteredClient>,
}

/// The clients that were registered so that users can sign in at servers.
///
/// For admins. The secrets of clients are not in it.
#[utoipa::path(get, path = "/v1/oauth-clients", operation_id = "listOauthClients", tag = "oauth-clients",
    responses((status = 200, body = RegisteredClients)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    _: Query<NoParameters>,
) -> Result<axum::Json<RegisteredClients>, Problem> {
    Ok(axum::Json(RegisteredClients {
        items: oauth::list_clients(&app, &caller.0.admin()?).await?,
    }))
}

/// Forget a client that its authorization server knows no more.
///
/// For admins. Another one is registered at the next sign-in; the sign-ins that were made with it keep it.
#[utoipa::path(delete, path = "/v1/oauth-clients/{id}", operation_id = "forgetOauthClient", tag = "oauth-clients",
    params(("id" = String, Path)), responses((status = 204)))]
pub(super) async fn forget(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    oauth::forget_client(&app, &caller.0.admin()?, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
