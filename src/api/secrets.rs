//! The secrets of a tenant, for its admins, who set them. No route ever returns a value.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use super::{
    extract::{Authenticated, Json, NoParameters, Path, Query},
    problem::Problem,
};
use crate::app::{self, App, servers::registry::SecretView};
use domain::secret::Secret;

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Secrets {
    items: Vec<SecretView>,
}

/// The names of the secrets.
///
/// For admins. The values are never read again.
#[utoipa::path(get, path = "/v1/secrets", operation_id = "listSecrets", tag = "secrets",
    responses((status = 200, body = Secrets)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    _: Query<NoParameters>,
) -> Result<axum::Json<Secrets>, Problem> {
    Ok(axum::Json(Secrets {
        items: app::servers::registry::list_secrets(&app, &caller.0.admin()?).await?,
    }))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SecretRequest)]
pub(super) struct NewSecret {
    /// 1 to 8192 bytes. It is stored encrypted and never comes back.
    #[serde(deserialize_with = "read_value")]
    #[schema(value_type = String)]
    value: Secret,
}

/// Reads the value. An error never repeats it.
fn read_value<'de, D: Deserializer<'de>>(input: D) -> Result<Secret, D::Error> {
    match Value::deserialize(input)? {
        Value::String(text) => Ok(Secret::new(text)),
        _ => Err(D::Error::custom("must be text")),
    }
}

/// Set a secret, new or not.
///
/// For admins. Definitions and packs name it as `{"$secret": "<name>"}`.
#[utoipa::path(put, path = "/v1/secrets/{name}", operation_id = "putSecret", tag = "secrets",
    params(("name" = String, Path)), request_body = NewSecret,
    responses((status = 204), (status = 409, description = "limit_reached")))]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    Path(name): Path<String>,
    Json(new): Json<NewSecret>,
) -> Result<StatusCode, Problem> {
    app::servers::registry::put_secret(&app, &caller.0.admin()?, &name, &new.value).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a secret that nothing names.
///
/// For admins. A definition or a pack that names it keeps it.
#[utoipa::path(delete, path = "/v1/secrets/{name}", operation_id = "removeSecret", tag = "secrets",
    params(("name" = String, Path)), responses((status = 204), (status = 409, description = "secret_in_use")))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    app::servers::registry::remove_secret(&app, &caller.0.admin()?, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
