//! Trying policies: what rules would do with examples and with calls that the tenant has kept.

use std::sync::Arc;

use axum::extract::State;

use super::super::{
    extract::{Authenticated, Json, Path},
    problem::Problem,
};
use crate::app::{
    App,
    tools::policy_trials::{self, NewTrial, TrialResult},
};

/// Try what a policy would do with examples and with the calls that the tenant has kept.
///
/// For admins. The rules in force are compared with rules that are not. Nothing is called or changed, and reading
/// kept calls is a line of the audit trail.
#[utoipa::path(post, path = "/v1/admin/agents/{agent}/policy-trials", operation_id = "tryPolicy", tag = "agents",
    params(("agent" = String, Path)), request_body = NewTrial, responses((status = 200, body = TrialResult)))]
pub(in crate::api) async fn try_policy(
    State(app): State<Arc<App>>,
    Authenticated(caller): Authenticated,
    Path(agent): Path<String>,
    Json(new): Json<NewTrial>,
) -> Result<axum::Json<TrialResult>, Problem> {
    let admin = caller.admin()?;
    let result = policy_trials::try_policy(&app, &admin, &caller.principal, &agent, &new).await?;
    Ok(axum::Json(result))
}
