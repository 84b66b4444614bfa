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

/// Try a policy: what would become of examples, and of the calls that my tenant has kept, by the rules in force and by
/// rules that are not. Nothing is called or changed. Reading kept calls is a line of the audit trail.
#[utoipa::path(post, path = "/v1/admin/agents/{agent}/policy-trials", tag = "agents",
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
