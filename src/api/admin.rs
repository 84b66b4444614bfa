//! What a tenant's admins do. A credential with the scope `admin` opens these, whether or not it may chat; one
//! without it is told 403, since these paths are no secret. What belongs to another tenant is not there: 404.
//!
//! Below `/v1/admin/tenants` are the routes of the operator of the installation, who is not a user. One token
//! of the settings opens them; no credential of a tenant does.

pub(super) mod access;
pub(super) mod audit;
pub(super) mod issuers;
pub(super) mod keys;
pub(super) mod replicas;
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
use crate::{
    app::{self, accounts},
    domain::principal,
};

/// The parameter of a path that names the tenant.
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

/// The operator. A wrong token is counted against the address that it comes from. The right one is not, or a
/// caller behind the same proxy could lock the operator out.
pub(super) struct Operator(pub principal::Operator);

impl FromRequestParts<ApiState> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let Some(token) = &state.app.config.operator_token else {
            return Err(layers::unknown_path());
        };
        let known = accounts::operator(token, &values_of(&parts.headers));
        if known.is_err() {
            Anonymous::from_request_parts(parts, state).await?;
        }
        Ok(Self(known?))
    }
}

/// Where the next page begins, if there is one: of one item more than a page has.
fn next<T>(items: &mut Vec<T>, limit: i64, place: impl Fn(&T) -> String) -> Option<String> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    items.last().filter(|_| more).map(place)
}

/// A page's size, from 1 to `most`.
fn page(limit: i64, most: i64) -> Result<i64, Problem> {
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::invalid(
        "limit",
        format!("must be from 1 to {most}"),
    ))
}

fn default_limit() -> i64 {
    50
}
