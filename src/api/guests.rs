//! The caller's own identity, and how a caller without a token becomes a guest.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::{
    extract::{Anonymous, Authenticated, Json, Located, located, readable},
    problem::Problem,
};
use crate::{
    app::{self, App, accounts::usage::OwnUsage, servers::agents::AgentRoles},
    domain::ids::TenantId,
};

/// The caller, as the program sees them.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Me {
    tenant: TenantId,
    user: String,
    /// What to call them.
    name: String,
    /// `false`: a guest.
    authenticated: bool,
    locale: Option<String>,
    /// What the credential may be used for.
    scopes: Vec<&'static str>,
    /// The agents that the caller may talk to, and the caller's roles there.
    agents: Vec<AgentRoles>,
    /// The verified claims that these agents read: who is an admin, and which roles somebody has.
    claims: Map<String, Value>,
    /// What the caller has used today, and may use.
    usage: OwnUsage,
}

/// Who am I?
#[utoipa::path(get, path = "/v1/me", tag = "accounts", responses((status = 200, body = Me)))]
pub(super) async fn me(
    State(app): State<Arc<App>>,
    Authenticated(caller): Authenticated,
) -> Result<axum::Json<Me>, Problem> {
    let principal = caller.principal;
    let (agents, claims) = app::servers::agents::roles(&app, &principal).await?;
    let usage = app::accounts::usage::own(&app, &principal).await?;
    Ok(axum::Json(Me {
        tenant: principal.tenant,
        user: principal.user.to_string(),
        name: principal.display_name(),
        authenticated: principal.authenticated,
        locale: principal.locale,
        scopes: caller.scopes.names(),
        agents,
        claims,
        usage,
    }))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewGuest {
    /// The tenant's name.
    tenant: String,
}

/// A token with which a guest may talk to the agents that do not require authentication.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Guest {
    token: String,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

/// Become a guest of a tenant that receives guests.
#[utoipa::path(post, path = "/v1/guests", tag = "accounts", security(()), request_body = NewGuest,
    responses((status = 201, body = Guest)))]
pub(super) async fn create_guest(
    State(app): State<Arc<App>>,
    _: Anonymous,
    Json(new): Json<NewGuest>,
) -> Result<Located<Guest>, Problem> {
    readable("tenant", &new.tenant, 63)?;
    let (token, expires_at) = app.accounts.create_guest(&new.tenant).await?;
    // The only response that holds the key; it goes to its owner.
    let token = token.expose().to_owned();
    let guest = Guest { token, expires_at };
    Ok(located(StatusCode::CREATED, "/v1/me".to_owned(), guest))
}
