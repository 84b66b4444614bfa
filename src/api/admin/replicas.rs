//! The replicas of the installation and their state, for admins.

use std::sync::Arc;

use axum::extract::State;

use super::{
    super::{
        agents::List,
        extract::{NoParameters, Query},
        problem::Problem,
    },
    Admin,
};
use crate::app::{self, App};
use domain::replica::Replica;

/// The replicas that share the database, the oldest first. One that was killed stays for an hour, as `silent`.
#[utoipa::path(get, path = "/v1/admin/replicas", tag = "operations",
    responses((status = 200, body = List<Replica>)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<Replica>>, Problem> {
    let items = app::platform::replicas::list(&app, &admin).await?;
    Ok(axum::Json(List { items }))
}
