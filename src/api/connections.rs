//! The caller's connections to the personal servers of an agent: enter values, test them, remove them. No route ever
//! returns the values.

use std::{collections::BTreeMap, sync::Arc};

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use super::{
    extract::{Caller, Json, Path},
    problem::Problem,
};
use crate::app::{
    self, App,
    servers::credentials::{ServerConnection, TestOutcome},
};
use domain::{principal::Scope, secret::Secret};

/// One server of an agent, how the caller's connection is, and what the caller enters for it.
///
/// What was entered is never in it.
#[utoipa::path(get, path = "/v1/agents/{agent}/connections/{server}", operation_id = "getConnection",
    tag = "connections", params(("agent" = String, Path), ("server" = String, Path)),
    responses((status = 200, body = ServerConnection)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((agent, server)): Path<(String, String)>,
) -> Result<axum::Json<ServerConnection>, Problem> {
    let operator = caller.0.scopes.has(Scope::Admin);
    Ok(axum::Json(
        app::servers::credentials::get(&app, caller.principal(), &agent, &server, operator).await?,
    ))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CredentialRequest)]
pub(super) struct NewCredential {
    /// A value for each field of the server. They are tested and stored encrypted; they never come back.
    #[serde(deserialize_with = "read_values")]
    #[schema(value_type = BTreeMap<String, String>)]
    fields: BTreeMap<String, Secret>,
}

/// Reads the values. An error never repeats one.
fn read_values<'de, D: Deserializer<'de>>(input: D) -> Result<BTreeMap<String, Secret>, D::Error> {
    let Value::Object(fields) = Value::deserialize(input)? else {
        return Err(D::Error::custom(
            "must be an object with a value for each field",
        ));
    };
    let text = |(name, value)| match value {
        Value::String(text) => Ok((name, Secret::new(text))),
        Value::Bool(flag) => Ok((name, Secret::new(flag.to_string()))),
        Value::Number(number) => Ok((name, Secret::new(number.to_string()))),
        _ => Err(D::Error::custom(format!(
            "the value of {name:?} must be text"
        ))),
    };
    fields.into_iter().map(text).collect()
}

/// Enter or replace what the caller uses at a personal server.
///
/// It is tested first: when it does not work, the answer is 422 with the reason as its `code`, and what was there
/// before stays in force.
#[utoipa::path(put, path = "/v1/agents/{agent}/connections/{server}", operation_id = "putConnection",
    tag = "connections", params(("agent" = String, Path), ("server" = String, Path)), request_body = NewCredential,
    responses((status = 200, body = ServerConnection), (status = 409, description = "server_shared"),
        (status = 422, description = "unauthorized, unreachable, timeout, bad_template, not_mcp")))]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((agent, server)): Path<(String, String)>,
    Json(new): Json<NewCredential>,
) -> Result<axum::Json<ServerConnection>, Problem> {
    let tested =
        app::servers::credentials::put(&app, caller.principal(), &agent, &server, &new.fields)
            .await?;
    if let Some(reason) = tested.reason {
        return Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            reason.code(),
            tested.message,
        ));
    }
    let operator = caller.0.scopes.has(Scope::Admin);
    Ok(axum::Json(
        app::servers::credentials::get(&app, caller.principal(), &agent, &server, operator).await?,
    ))
}

/// Connect once more with what the caller entered.
///
/// A definite no of the server takes its tools away, an outage nothing.
#[utoipa::path(post, path = "/v1/agents/{agent}/connections/{server}/test", operation_id = "testConnection",
    tag = "connections", params(("agent" = String, Path), ("server" = String, Path)),
    responses((status = 200, body = TestOutcome),
        (status = 409, description = "not_connected, credential_unusable, server_shared")))]
pub(super) async fn test(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((agent, server)): Path<(String, String)>,
) -> Result<axum::Json<TestOutcome>, Problem> {
    Ok(axum::Json(
        app::servers::credentials::test(&app, caller.principal(), &agent, &server).await?,
    ))
}

/// Delete what the caller entered, and close the connection made with it.
///
/// There may be nothing to delete.
#[utoipa::path(delete, path = "/v1/agents/{agent}/connections/{server}", operation_id = "removeConnection",
    tag = "connections", params(("agent" = String, Path), ("server" = String, Path)),
    responses((status = 204), (status = 409, description = "server_shared")))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((agent, server)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    app::servers::credentials::remove(&app, caller.principal(), &agent, &server).await?;
    Ok(StatusCode::NO_CONTENT)
}
