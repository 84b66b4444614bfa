//! The caller's own identity, and how a caller without a token becomes a guest.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::{
    extract::{Anonymous, Authenticated, Json, readable},
    problem::Problem,
};
use crate::{app::App, domain::ids::TenantId};

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
}

/// Who am I?
#[utoipa::path(get, path = "/v1/me", tag = "accounts", responses((status = 200, body = Me)))]
pub(super) async fn me(Authenticated(caller): Authenticated) -> axum::Json<Me> {
    let principal = caller.principal;
    axum::Json(Me {
        tenant: principal.tenant,
        user: principal.user.to_string(),
        name: principal.display_name(),
        authenticated: principal.authenticated,
        locale: principal.locale,
        scopes: caller.scopes.names(),
    })
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
) -> Result<(StatusCode, axum::Json<Guest>), Problem> {
    readable("tenant", &new.tenant, 63)?;
    let (token, expires_at) = app.accounts.create_guest(&new.tenant).await?;
    // The only response that holds the key; it goes to its owner.
    let token = token.expose().to_owned();
    Ok((StatusCode::CREATED, axum::Json(Guest { token, expires_at })))
}
