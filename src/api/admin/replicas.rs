//! The replicas of the installation and their state, for admins and for the operator, and which of their rules count.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;

use super::{
    super::{
        agents::List,
        extract::{Json, NoParameters, Path, Query},
        problem::Problem,
    },
    Admin,
};
use crate::app::{self, App};
use domain::{policy::PolicyDigest, replica::Replica};

/// The replicas that share the database, the oldest first.
///
/// For admins. One that was killed stays for an hour, as `silent`.
#[utoipa::path(get, path = "/replicas", operation_id = "listReplicas", tag = "operations",
    responses((status = 200, body = List<Replica>)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<Replica>>, Problem> {
    let items = app::platform::replicas::list(&app, &admin).await?;
    Ok(axum::Json(List { items }))
}

/// The rules of an agent that count.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct SettledPolicy {
    /// Their digest, as a replica has it in its `policies`.
    #[schema(value_type = String, pattern = "^[0-9a-fA-F]{64}$")]
    digest: PolicyDigest,
}

#[derive(Deserialize)]
pub(in crate::api) struct AgentPath {
    agent: String,
}

/// Say which rules of an agent count while replicas have different ones.
///
/// For admins; an agent that other tenants have, too, is for the operator alone. The rules count at all replicas
/// within a second, and as long as one of them has them. 404 when no replica has them.
#[utoipa::path(put, path = "/agents/{agent}/policy", operation_id = "settlePolicy", tag = "operations",
    params(("agent" = String, Path)), request_body = SettledPolicy, responses((status = 204)))]
pub(in crate::api) async fn settle_policy(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(of): Path<AgentPath>,
    Json(settled): Json<SettledPolicy>,
) -> Result<StatusCode, Problem> {
    let digest = settled.digest;
    app::platform::replicas::settle_policy_of_tenant(&app, &admin, &of.agent, digest).await?;
    Ok(StatusCode::NO_CONTENT)
}
