//! What a tenant's admins do. A credential with the scope `admin` opens these, whether or not it may chat; one
//! without it is told 403, since these paths are no secret. What belongs to another tenant is not there: 404.
//!
//! Below `/v1/admin/tenants` is what the operator of the installation does, who is nobody's user: one token of the
//! settings opens it, and no tenant's credential does.

pub(super) mod audit;
pub(super) mod issuers;
pub(super) mod keys;
pub(super) mod tenants;
pub(super) mod usage;
pub(super) mod users;
pub(super) mod webhooks;

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;

use super::{
    Door, edge,
    extract::{Known, Unknown, values_of},
    problem::Problem,
};
use crate::{
    app::{self, accounts},
    domain::principal,
};

/// The parameter of a path that names the tenant.
const TENANT: &str = "tenant";

/// Somebody who may manage a tenant: one of its admins, or the operator where the path names the tenant.
pub(super) struct Admin(pub principal::Admin);

impl FromRequestParts<Door> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        let named = RawPathParams::from_request_parts(parts, door)
            .await
            .map_err(|_| Problem::not_found("what this path names"))?;
        let tenant = named
            .iter()
            .find_map(|(name, value)| (name == TENANT).then_some(value));
        if let Some(tenant) = tenant {
            let Operator(operator) = Operator::from_request_parts(parts, door).await?;
            return Ok(Self(
                app::runs::tenant_admin::admin(&door.app, &operator, tenant).await?,
            ));
        }
        let Known(caller) = Known::from_request_parts(parts, door).await?;
        Ok(Self(caller.admin()?))
    }
}

/// Whoever runs the installation. Wrong tokens are counted against the address that they come from; the right one
/// is not, or whoever shares a proxy with the operator could keep them out.
pub(super) struct Operator(pub principal::Operator);

impl FromRequestParts<Door> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        let Some(token) = &door.app.config.operator_token else {
            return Err(edge::unknown_path());
        };
        let known = accounts::operator(token, &values_of(&parts.headers));
        if known.is_err() {
            Unknown::from_request_parts(parts, door).await?;
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

fn fifty() -> i64 {
    50
}
