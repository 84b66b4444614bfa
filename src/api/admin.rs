//! What a tenant's admins do. A credential with the scope `admin` opens these, whether or not it may chat; one
//! without it is told 403, since these paths are no secret. What belongs to another tenant is not there: 404.

pub(super) mod audit;
pub(super) mod usage;
pub(super) mod webhooks;

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::{Door, extract::Known, problem::Problem};
use crate::domain::principal;

/// Somebody who may manage their tenant.
pub(super) struct Admin(pub principal::Admin);

impl FromRequestParts<Door> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        let Known(caller) = Known::from_request_parts(parts, door).await?;
        Ok(Self(caller.admin()?))
    }
}

/// A page's size, from 1 to `most`.
fn page(limit: i64, most: i64) -> Result<i64, Problem> {
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::invalid("limit", format!("must be from 1 to {most}")))
}

fn fifty() -> i64 {
    50
}
