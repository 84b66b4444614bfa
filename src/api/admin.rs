//! Routes for the admins of a tenant. They take a credential with the scope `admin`, whether or not it may chat. A
//! credential without the scope gets 403, because these paths are no secret. Things of another tenant are not found: 404.
//!
//! Below `/v1/admin/tenants` are the routes of the operator of the installation, who is not a user. They take the one
//! token of the settings, and no credential of a tenant.

pub(super) mod access;
pub(super) mod audit;
pub(super) mod changed_tools;
pub(super) mod issuers;
pub(super) mod keys;
pub(super) mod policies;
pub(super) mod replicas;
pub(super) mod servers;
pub(super) mod tenants;
pub(super) mod usage;
pub(super) mod users;
pub(super) mod webhooks;

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;

use super::{
    ApiState,
    extract::{Anonymous, Authenticated, values_of},
    layers,
    problem::Problem,
};
use crate::app::{self, accounts};
use domain::principal;

/// The parameter of a path with the name of the tenant.
const TENANT: &str = "tenant";

/// A caller who may manage a tenant: one of its admins, or the operator where the path names the tenant.
pub(super) struct Admin(pub principal::Admin);

impl FromRequestParts<ApiState> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let named = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::not_found("what this path names"))?;
        let tenant = named
            .iter()
            .find_map(|(name, value)| (name == TENANT).then_some(value));
        if let Some(tenant) = tenant {
            let Operator(operator) = Operator::from_request_parts(parts, state).await?;
            return Ok(Self(
                app::runs::tenant_admin::admin(&state.app, &operator, tenant).await?,
            ));
        }
        let Authenticated(caller) = Authenticated::from_request_parts(parts, state).await?;
        Ok(Self(caller.admin()?))
    }
}

/// The operator. A wrong token counts against the address that it comes from. The right one does not, or a caller behind
/// the same proxy could lock the operator out.
pub(super) struct Operator(pub principal::Operator);

impl FromRequestParts<ApiState> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let Some(token) = &state.app.config.operator_token else {
            return Err(layers::unknown_path());
        };
        let operator = accounts::operator(token, &values_of(&parts.headers));
        if operator.is_err() {
            Anonymous::from_request_parts(parts, state).await?;
        }
        Ok(Self(operator?))
    }
}
