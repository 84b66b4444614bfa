//! The identity of the caller, and how a caller without a token becomes a guest.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::{
    extract::{Anonymous, Authenticated, check_text, located},
    once::make_once,
    problem::Problem,
    request_key::Keyed,
};
use crate::app::{
    self, App, accounts::usage::OwnUsage, platform::request_answers::RequestOwner,
    servers::agents::AgentRoles,
};
use domain::{
    ids::{TenantId, UserId},
    request_key::RequestKey,
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

/// Who the caller is.
///
/// For every credential, so a frontend can try one here.
#[utoipa::path(get, path = "/v1/me", operation_id = "getMe", tag = "accounts",
    responses((status = 200, body = Me)))]
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
#[schema(as = GuestRequest)]
pub(super) struct NewGuest {
    /// The tenant's name.
    #[schema(min_length = 1, max_length = 63, pattern = r"\S")]
    tenant: String,
}

/// A token with which a guest may talk to the agents that do not require authentication.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Guest {
    token: String,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

/// The fewest characters of an `Idempotency-Key` without a credential: a stranger must not guess it and become the same
/// guest.
const MIN_GUEST_KEY: usize = 16;

/// Become a guest of a tenant that receives guests.
///
/// It needs no credential. The key of the answer is shown this once. An `Idempotency-Key` must have 16 characters
/// or more here.
#[utoipa::path(post, path = "/v1/guests", operation_id = "createGuest", tag = "accounts", security(()),
    request_body = NewGuest,
    responses((status = 201, body = Guest), (status = 409, description = "answer_not_kept")))]
pub(super) async fn create_guest(
    State(app): State<Arc<App>>,
    Anonymous(address): Anonymous,
    Keyed(new, key): Keyed<NewGuest>,
) -> Result<Response, Problem> {
    check_text("tenant", &new.tenant, 63)?;
    let is_short = |key: &RequestKey| key.name().len() < MIN_GUEST_KEY;
    if key.as_ref().is_some_and(is_short) {
        let reason = format!("must have {MIN_GUEST_KEY} characters or more without a credential");
        return Err(Problem::invalid("Idempotency-Key", reason));
    }
    let tenant = app.accounts.tenant_for_guests(&new.tenant).await?;
    let address = address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
    let owner = RequestOwner::User(tenant, UserId(format!("address:{address}").into()));
    let accounts = app.clone();
    let make = async move {
        let (token, expires_at) = accounts.accounts.create_guest(tenant).await?;
        // This is the only response with the token, and it goes to its owner.
        let token = token.expose().to_owned();
        let guest = Guest { token, expires_at };
        Ok(located(StatusCode::CREATED, "/v1/me".to_owned(), guest))
    };
    make_once(&app, owner, key, make).await
}
